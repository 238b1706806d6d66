/* What every file of this folder includes: names, thread teams, descriptors.
 *
 * The folder is compiled once per instruction level (TN_CPU_LEVEL 2, 3, 4: x86-64-v2, -v3, -v4; on
 * aarch64 once, as `neon`, with 3, since it too has fused multiply-adds); every symbol that crosses
 * files goes through TN_CPU, which appends the level's name. The code is plain C that gcc and clang
 * vectorise; where a vector must stay in registers (the matrix product) it is
 * written with vector types, which both support.
 *
 * Work is cut into chunks whose size depends on the shape alone, and partial sums are combined in
 * the order of the chunks: the bits do not depend on the number of threads.
 */
#ifndef TERN_BACKENDS_CPU_H
#define TERN_BACKENDS_CPU_H

#include "backends/entries.h"
#include "backends/scratch.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#ifndef TN_CPU_LEVEL
#error "compile backends/cpu with -DTN_CPU_LEVEL=2, 3 or 4"
#endif

#if defined(__aarch64__)
#define TN_CPU_NAME(level) "neon"
#define TN_CPU_GLUE2(name, level) tn__cpu_##name##_neon
#else
#define TN_CPU_NAME(level) "v" #level
#define TN_CPU_GLUE2(name, level) tn__cpu_##name##_v##level
#endif
#define TN_CPU_GLUE(name, level) TN_CPU_GLUE2(name, level)
#define TN_CPU(name) TN_CPU_GLUE(name, TN_CPU_LEVEL)

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

/* Elements per task of a memory-bound loop, and the least work (elements, each about a nanosecond)
 * worth waking a second thread for: a parallel region costs 2-5 microseconds. */
enum { CHUNK = 16384, GRAIN = 16384 };

/* Elements converted at a time between bf16 or f16 (or a strided row) and the f32 that kernels
 * compute in. */
enum { TILE = 1024 };

/* The kernels: each has the type of its entry in tn_backend. */
#define TN__DECLARE(entry, ...) TN_ENTRY_TYPE(entry) TN_CPU(entry);
TN_ENTRIES(TN__DECLARE)
#undef TN__DECLARE

/* The kernels of operations. */
#define TN_OP(folder, ...) TN__DEVICES(__VA_ARGS__, , , )
#define TN__ON_CPU(name) extern const tn_op_kernel TN_CPU(op_##name);
#define TN__ON_CUDA(name)
#include "ops/list.h"
#undef TN_OP
#undef TN__ON_CPU
#undef TN__ON_CUDA

/* The reference table, for what a fast path does not handle. */
extern const tn_backend *TN_CPU(ref);

/* How many threads `tasks` tasks with `work` in total should use: 1 inside a parallel region and
 * for little work. */
static inline int team_size(int64_t tasks, int64_t work) {
    if (tasks < 2 || work < GRAIN || omp_in_parallel()) { return 1; }
    int threads = tn_threads();
    return threads < tasks ? threads : (int)tasks;
}

static inline int64_t div_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t min_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline size_t size_of(tn_dtype dtype) {
    switch (dtype) {
    case TN_F64:
    case TN_I64:
        return 8;
    case TN_F32:
    case TN_I32:
        return 4;
    case TN_BF16:
    case TN_F16:
        return 2;
    default:
        return 1;
    }
}
static inline bool is_float(tn_dtype dtype) {
    return dtype <= TN_F16;
}
/* f32, bf16 and f16: the dtypes computed in f32. */
static inline bool is_f32_like(tn_dtype dtype) {
    return dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F16;
}
/* All of them; NULL ones are absent operands. */
static inline bool all_f32_like(int count, const tn_desc *const *d) {
    for (int i = 0; i < count; i++) {
        if (d[i] && !is_f32_like(d[i]->dtype)) { return false; }
    }
    return true;
}
static inline char *desc_at(const tn_desc *d, int64_t offset) {
    return (char *)d->data + offset * (int64_t)size_of(d->dtype);
}
/* An index at an offset: i64 or i32. */
static inline int64_t index_at(const tn_desc *d, int64_t offset) {
    const void *p = desc_at(d, offset);
    return d->dtype == TN_I64 ? *(const int64_t *)p : *(const int32_t *)p;
}
static inline tn_status bad_index(tn_context *ctx, int64_t position, int64_t value) {
    ctx->bad_position = position;
    ctx->bad_value = value;
    return TN_EINDEX;
}
static inline bool is_index(tn_dtype dtype) {
    return dtype == TN_I64 || dtype == TN_I32;
}
static inline int64_t count_of(const tn_desc *d) {
    int64_t n = 1;
    for (int i = 0; i < d->ndim; i++) {
        n *= d->size[i];
    }
    return n;
}
/* Whether the last dimension's elements are contiguous. */
static inline bool unit_rows(const tn_desc *d) {
    return d->ndim > 0 && (d->stride[d->ndim - 1] == 1 || d->size[d->ndim - 1] <= 1);
}
static inline bool is_contiguous(const tn_desc *d) {
    int64_t expected = 1;
    for (int i = d->ndim - 1; i >= 0; i--) {
        if (d->size[i] != 1 && d->stride[i] != expected) { return false; }
        expected *= d->size[i];
    }
    return true;
}

#endif
