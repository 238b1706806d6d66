/* The entries of the kernel table (tern/sys/backend.h), once. Each table, the declarations of its
 * kernels and the tests' walks over entries are made from this list.
 *
 * X(entry, kind, cpu, cuda). kind: PRIMITIVE, which no table may lack, or FUSED, which a table may
 * leave out: the operation's composition runs instead. ref has a kernel for each. cpu, cuda:
 * whether that table has its OWN kernel, tn__cuda_fill and the like; REF's; or NONE.
 */
#ifndef TERN_BACKENDS_ENTRIES_H
#define TERN_BACKENDS_ENTRIES_H

#include "tern/sys/backend.h"

/* clang-format off */
#define TN_ENTRIES(X) \
    /* entry                   kind       cpu   cuda */ \
    X(fill,                    PRIMITIVE, OWN,  OWN) \
    X(arange,                  PRIMITIVE, REF,  OWN) \
    X(copy,                    PRIMITIVE, OWN,  OWN) \
    X(unary,                   PRIMITIVE, OWN,  OWN) \
    X(binary,                  PRIMITIVE, OWN,  OWN) \
    X(compare,                 PRIMITIVE, OWN,  OWN) \
    X(where,                   PRIMITIVE, OWN,  OWN) \
    X(reduce,                  PRIMITIVE, OWN,  OWN) \
    X(argmax,                  PRIMITIVE, REF,  OWN) \
    X(matmul,                  PRIMITIVE, OWN,  OWN) \
    X(gather_rows,             PRIMITIVE, OWN,  OWN) \
    X(scatter_add_rows,        PRIMITIVE, OWN,  OWN) \
    X(gather,                  PRIMITIVE, REF,  OWN) \
    X(scatter_add,             PRIMITIVE, REF,  OWN) \
    X(random,                  PRIMITIVE, OWN,  OWN) \
    X(dropout,                 PRIMITIVE, OWN,  OWN) \
    X(adam,                    PRIMITIVE, OWN,  OWN) \
    X(sgd,                     PRIMITIVE, OWN,  OWN) \
    X(conv,                    PRIMITIVE, OWN,  OWN) \
    X(conv_backward_input,     PRIMITIVE, OWN,  OWN) \
    X(conv_backward_weight,    PRIMITIVE, OWN,  OWN) \
    X(linear,                  FUSED,     OWN,  OWN) \
    X(linear_q8,               FUSED,     OWN,  NONE) \
    X(softmax,                 FUSED,     OWN,  OWN) \
    X(softmax_backward,        FUSED,     OWN,  OWN) \
    X(layer_norm,              FUSED,     OWN,  OWN) \
    X(layer_norm_backward,     FUSED,     OWN,  OWN) \
    X(rms_norm,                FUSED,     OWN,  OWN) \
    X(rms_norm_backward,       FUSED,     OWN,  OWN) \
    X(batch_norm,              FUSED,     OWN,  OWN) \
    X(batch_norm_backward,     FUSED,     OWN,  OWN) \
    X(attention,               FUSED,     OWN,  OWN) \
    X(attention_backward,      FUSED,     OWN,  OWN) \
    X(cross_entropy,           FUSED,     OWN,  OWN) \
    X(cross_entropy_backward,  FUSED,     OWN,  OWN) \
    X(rotary,                  FUSED,     OWN,  OWN) \
    X(recurrent,               FUSED,     OWN,  OWN) \
    X(recurrent_backward,      FUSED,     OWN,  OWN) \
    /* On the CPU the operations' own loops are as fast as these … */ \
    X(max_pool,                FUSED,     NONE, OWN) \
    X(max_pool_backward,       FUSED,     NONE, OWN) \
    X(avg_pool,                FUSED,     NONE, OWN) \
    X(avg_pool_backward,       FUSED,     NONE, OWN) \
    /* … and the entries above, one after another, as these. */ \
    X(linear_gelu,             FUSED,     NONE, OWN) \
    X(linear_backward_weight,  FUSED,     NONE, OWN) \
    X(add_layer_norm,          FUSED,     NONE, OWN) \
    X(add_layer_norm_backward, FUSED,     NONE, OWN)
/* clang-format on */

/* The type of the functions of an entry. */
#define TN_ENTRY_TYPE(entry) __typeof__(*((tn_backend *)0)->entry)

#endif
