/* What the kernels of attention read (ops/nn/attention.c), in both directions. No Tq x Tk matrix is
 * kept: backward recomputes the probabilities from lse. A row that sees nothing gives y = 0 and lse
 * = -inf. */
#ifndef TERN_BACKENDS_ATTENTION_H
#define TERN_BACKENDS_ATTENTION_H

#include "backends/desc.h"

#include <math.h>

typedef struct tn_attention_args {
    bool causal;  /* query i of Tq sees keys 0 … i + (Tk - Tq) */
    double scale; /* of q k^T; 0: 1 / sqrt(D) */
} tn_attention_args;

typedef struct tn__attention {
    /* q and y (B, H, Tq, D), k and v (B, G, Tk, D), H a multiple of G: head h reads group
     * h / (H / G). lse (B, H, Tq), f32 (f64 for f64): the log of the sum of exponentials of each
     * row of scores. y and lse are outputs of forward. */
    const tn_desc *q, *k, *v, *y, *lse;
    const tn_desc *dy, *dq, *dk, *dv; /* NULL in forward */
    /* NULL, or bool (B, H, Tq, Tk) with stride 0 where it broadcasts; true: visible. */
    const tn_desc *mask;
    bool causal;
    double scale;
} tn__attention;

/* The operands that both directions share. *seen receives the mask's descriptor and must outlive
 * the result. */
TN__INLINE tn__attention tn__attention_of(const tn_desc *const *x, const tn_desc *const *y,
                                          const void *arguments, tn_desc *seen) {
    const tn_attention_args *args = (const tn_attention_args *)arguments;
    const tn_desc *q = x[0], *k = x[1], *mask = x[3];
    tn__attention a = {q,    k,    x[2], y[0], y[1],         NULL,
                       NULL, NULL, NULL, NULL, args->causal, args->scale};
    if (a.scale == 0.0) { a.scale = q->size[3] > 0 ? 1.0 / sqrt((double)q->size[3]) : 1.0; }
    if (mask) {
        int64_t size[4] = {q->size[0], q->size[1], q->size[2], k->size[2]};
        *seen = tn__desc_spread(mask, 4, size);
        a.mask = seen;
    }
    return a;
}

TN__INLINE tn__attention tn__attention_back_of(const tn_op_back *b, tn_desc *seen) {
    tn__attention a = tn__attention_of(b->x, b->y, b->args, seen);
    a.dy = b->dy[0];
    a.dq = b->dx[0];
    a.dk = b->dx[1];
    a.dv = b->dx[2];
    return a;
}

#endif
