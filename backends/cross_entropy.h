/* What the kernels of cross_entropy read: one loss per row, which ops/loss/cross_entropy.c reduces.
 * x[0] (n, c) logits, x[1] (n) labels; y[0], y[1] and y[2] (n), f32 (f64 for f64): loss, top and
 * log_sum,
 *
 *     loss[i] = (1 - s)(lse - x[label]) + s (lse - mean(x)) with lse = top[i] + log_sum[i]
 *
 * top is the row's largest logit. The two are separate because their rounded sum would lose digits
 * of x - top; if lse is NaN, one of them is. TN_EINDEX: a label outside [0, c) that is not
 * ignore_index (with `whole`: outside [0, whole)). Backward: dy[0] (n); dx[0] may be x's memory.
 *
 * With `ahead` the forward makes the gradient too, in the pass that has the row at hand: y[3] (n,
 * c) gets what the backward would write for the dloss in y[4], one element for all rows. y[3] may
 * be x's memory. The backward then has only dx[0], which is y[3], and dy[0], one element: it
 * multiplies the one by dy[0] / ahead, and reads nothing where that is 1. Every device other
 * than the CPU must have this form. */
#ifndef TERN_BACKENDS_CROSS_ENTROPY_H
#define TERN_BACKENDS_CROSS_ENTROPY_H

#include "core/inline.h"
#include "tern/sys/backend.h"

typedef struct tn_cross_entropy_args {
    int64_t ignore_index;   /* rows with this label have loss 0 and gradient 0 */
    double label_smoothing; /* in [0, 1] */
    /* x is columns [first, first + c) of `whole` (0: x has all of them). A label whose column is on
     * another rank has no target here: its loss is 0, and its gradient dloss exp(x - lse), with the
     * top and log_sum of all columns, which the caller provides. Not with smoothing. */
    int64_t whole, first;
    double ahead; /* the dy[0] that y[4] was made for; 0: y[3] and y[4] are not there */
} tn_cross_entropy_args;

/* Labels without a column here. */
enum { TN__IGNORED = -1, TN__ELSEWHERE = -2, TN__OUTSIDE = -3 };

/* The column of a label, in [0, n); or why there is none. */
TN__INLINE int64_t tn__target_of(const tn_cross_entropy_args *a, int64_t label, int64_t n) {
    int64_t column = label - a->first;
    if (label == a->ignore_index) { return TN__IGNORED; }
    if (column >= 0 && column < n) { return column; }
    return label >= 0 && label < a->whole ? TN__ELSEWHERE : TN__OUTSIDE;
}

#endif
