/* The element loop: up to four operands of one size, their dimensions dropped, sorted and merged
 * until as few as possible are left, walked in parallel row by row.
 */
#ifndef TERN_BACKENDS_CPU_LOOP_H
#define TERN_BACKENDS_CPU_LOOP_H

#include "backends/cpu/cpu.h"

enum { LOOP_OPERANDS = 4 };

typedef struct element_loop {
    int ndim, operands; /* ndim >= 1; the last dimension is the row */
    int64_t size[TN_MAX_DIMS];
    int64_t stride[LOOP_OPERANDS][TN_MAX_DIMS]; /* in elements */
    int64_t count;
} element_loop;

/* One piece of a row: n elements from off[operand] (in elements),
 * stride[operand][ndim - 1] apart. */
typedef void (*loop_body)(const void *user, const element_loop *loop, const int64_t *off,
                          int64_t n);

/* Sizes are those of op[0], an output (it has no stride 0). */
void TN_CPU(loop_init)(element_loop *loop, int operands, const tn_desc *const *op);

void TN_CPU(loop_run)(const element_loop *loop, loop_body body, const void *user);

static inline int64_t inner_stride(const element_loop *loop, int operand) {
    return loop->stride[operand][loop->ndim - 1];
}

#endif
