/* Walks over strided operands, the host's part: dimensions are dropped, sorted and merged until as
 * few as possible are left. loop.cuh is the kernels' part and says how both are used.
 */
#ifndef TERN_BACKENDS_CUDA_LOOP_H
#define TERN_BACKENDS_CUDA_LOOP_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TN__OPERANDS = 4 };

/* n / size for n < 2^31, by a product and a shift (Granlund and Montgomery 1994, "Division by
 * invariant integers using multiplication"). */
typedef struct tn__divisor {
    uint32_t size, factor, shift;
} tn__divisor;

/* Operands visited in step. Dimension 0 is the innermost: the one in which operand 0 is densest. */
typedef struct tn__loop {
    char *data[TN__OPERANDS];
    size_t element[TN__OPERANDS]; /* bytes of one */
    int operands, ndim;           /* ndim >= 1 */
    int64_t size[TN_MAX_DIMS];
    int64_t stride[TN__OPERANDS][TN_MAX_DIMS]; /* in elements */
} tn__loop;

/* The same for a kernel. Its dimension 0 counts packs of V elements; in a loop of one dimension
 * `rest` elements follow the last pack. */
typedef struct tn__plan {
    char *data[TN__OPERANDS];
    int ndim;
    uint32_t count, rest;
    tn__divisor size[TN_MAX_DIMS];
    uint32_t stride[TN__OPERANDS][TN_MAX_DIMS];
    bool same[TN__OPERANDS]; /* a pack is one element repeated: a broadcast */
} tn__plan;

/* A walk in row-major order: merged, not sorted. Dimension 0 is the innermost. */
typedef struct tn__walk {
    char *data[TN__OPERANDS];
    int ndim;
    bool narrow; /* numbers and sizes fit in 32 bits */
    int64_t count;
    int64_t size[TN_MAX_DIMS];
    int64_t stride[TN__OPERANDS][TN_MAX_DIMS];
} tn__walk;

/* Sizes are those of op[0], an output (it has no stride 0). */
tn__loop tn__cuda_loop(int operands, const tn_desc *const *op);
int64_t tn__cuda_loop_count(const tn__loop *loop);

/* Whether offsets fit in 31 bits; otherwise tn__cuda_loop_cut halves the longest dimension, keeps
 * the first half in *loop and returns the second. */
bool tn__cuda_loop_fits(const tn__loop *loop);
tn__loop tn__cuda_loop_cut(tn__loop *loop);

/* Whether every operand can be accessed v elements at a time, at aligned addresses. */
bool tn__cuda_loop_packs(const tn__loop *loop, int v);
tn__plan tn__cuda_loop_plan(const tn__loop *loop, int v);

/* Sizes are op[0]'s; the others have the same ndim and may be larger. */
tn__walk tn__cuda_walk(int operands, const tn_desc *const *op);

#ifdef __cplusplus
}
#endif
#endif
