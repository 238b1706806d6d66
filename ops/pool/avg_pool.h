/* What avg_pool and its gradient, avg_unpool, share. */
#ifndef TERN_OPS_AVG_POOL_H
#define TERN_OPS_AVG_POOL_H

#include "ops/pool/pool.h"

/* 1 / the divisor of the window that w[3] make. */
static inline double tn__window_share(const tn__pool_args *a, const tn__window *w) {
    if (a->divisor > 0) {
        return 1.0 / (double)a->divisor;
    }
    return a->count_include_pad ? 1.0 / (double)(w[0].span * w[1].span * w[2].span)
                                : 1.0 / (double)(w[0].count * w[1].count * w[2].count);
}

/* piece over all planes of a call, as a tn__pool_job. */
tn_status tn__avg_pool_host(const tn_op_call *c, tn__host_piece *piece);

/* The samples of avg_pool; of_result: over what it makes, for avg_unpool. */
void tn__avg_pool_samples(tn_op_samples *s, bool of_result);

#endif
