/* What avg_pool and its gradient, avg_unpool, share. */
#ifndef TERN_OPS_AVG_POOL_H
#define TERN_OPS_AVG_POOL_H

#include "ops/pool/pool.h"

/* Runs piece, whose job is a tn__pool_job, over all planes of a call. */
tn_status tn__avg_pool_host(const tn_op_call *c, tn__host_piece *piece);

#endif
