/* What avg_pool and its gradient, avg_unpool, share. */
#ifndef TERN_OPS_AVG_POOL_H
#define TERN_OPS_AVG_POOL_H

#include "ops/pool/pool.h"

/* piece over all planes of a call, as a tn__pool_job. */
tn_status tn__avg_pool_host(const tn_op_call *c, tn__host_piece *piece);

/* The samples of avg_pool; of_result: over what it makes, for avg_unpool. */
void tn__avg_pool_samples(tn_op_samples *s, bool of_result);

#endif
