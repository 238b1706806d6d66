/* The dimensions of an operand as few ranges as possible, for reductions: dimensions that are
 * contiguous with each other are merged. For host code in C and C++.
 */
#ifndef TERN_BACKENDS_AXES_H
#define TERN_BACKENDS_AXES_H

#include <tern/sys/backend.h>

typedef struct tn__axes {
    int count;
    int64_t total, size[TN_MAX_DIMS];
    int64_t x[TN_MAX_DIMS], y[TN_MAX_DIMS]; /* strides; y's only for a dimension that is kept */
} tn__axes;

/* Appends an axis, or merges it with the last one if both operands allow that. */
static inline void tn__axes_push(tn__axes *a, int64_t size, int64_t x, int64_t y) {
    int k = a->count;
    if (k > 0 && a->x[k - 1] == x * size && a->y[k - 1] == y * size) {
        a->size[k - 1] *= size;
        a->x[k - 1] = x;
        a->y[k - 1] = y;
    } else {
        a->size[k] = size;
        a->x[k] = x;
        a->y[k] = y;
        a->count++;
    }
    a->total *= size;
}

/* Adds the offsets of position i, in row-major order, to *x and *y. */
static inline void tn__axes_at(const tn__axes *a, int64_t i, int64_t *x, int64_t *y) {
    for (int k = a->count - 1; k >= 0; k--) {
        int64_t index = i % a->size[k];
        i /= a->size[k];
        *x += index * a->x[k];
        *y += index * a->y[k];
    }
}

/* x's dimensions except those of size 1, by descending stride; returns how many. */
static inline int tn__axes_order(const tn_desc *x, int *order) {
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (x->size[d] == 1) { continue; }
        int k = n++;
        for (; k > 0 && x->stride[order[k - 1]] < x->stride[d]; k--) {
            order[k] = order[k - 1];
        }
        order[k] = d;
    }
    return n;
}

#endif
