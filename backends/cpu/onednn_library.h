/* oneDNN, loaded at the first product that can use it: libtern neither links to it nor needs it.
 *
 *     const tn__onednn_library *dnn = tn__onednn();
 *     if (!dnn) { … tn__onednn_why() … }
 *     status = dnn->stream_create(&stream, …);            the function dnnl_stream_create
 *
 * TERN_ONEDNN=0 pretends that it is missing. TERN_ONEDNN=always also loads it where the CPU has no
 * AMX, and gives it products of any size in f32 and, where the CPU multiplies bf16, in bf16: so
 * tests run its code on every machine. TERN_CPU limits it as well: below v4 it multiplies no bf16,
 * at v3 it is limited to AVX2, and below v3 it is not used.
 */
#ifndef TERN_BACKENDS_CPU_ONEDNN_LIBRARY_H
#define TERN_BACKENDS_CPU_ONEDNN_LIBRARY_H

#include <stdbool.h>

/* Whether this CPU multiplies tiles of bf16 (AMX) and oneDNN is not turned off, or
 * TERN_ONEDNN=always. */
bool tn__onednn_profits(void);
bool tn__onednn_always(void);

#if TN_HAVE_ONEDNN

#include <oneapi/dnnl/dnnl.h>

/* clang-format off */
#define TN__ONEDNN_FUNCTIONS(X)                                                                 \
    X(set_max_cpu_isa) X(get_effective_cpu_isa) X(engine_create) X(engine_destroy)              \
    X(stream_create) X(stream_destroy) X(stream_wait) X(memory_desc_init_by_strides)            \
    X(memory_desc_get_size) X(memory_create) X(memory_destroy) X(matmul_desc_init)              \
    X(post_ops_create) X(post_ops_append_sum) X(post_ops_destroy) X(primitive_attr_create)      \
    X(primitive_attr_destroy) X(primitive_attr_set_post_ops)                                    \
    X(primitive_attr_set_scratchpad_mode) X(primitive_desc_create) X(primitive_desc_destroy)    \
    X(primitive_desc_query) X(primitive_desc_query_md) X(primitive_create) X(primitive_destroy) \
    X(primitive_execute)
/* clang-format on */

typedef struct tn__onednn_library {
    dnnl_engine_t engine; /* the CPU's */
#define TN__FIELD(name) __typeof__(dnnl_##name) *name;
    TN__ONEDNN_FUNCTIONS(TN__FIELD)
#undef TN__FIELD
} tn__onednn_library;

/* The library, or NULL; then tn__onednn_why has the reason. Any thread; loaded once. */
const tn__onednn_library *tn__onednn(void);
const char *tn__onednn_why(void);

#endif
#endif
