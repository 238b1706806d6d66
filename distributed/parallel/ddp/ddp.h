/* The inside of data parallelism. The public side is tern/parallel.h; read ddp_naive.c first.
 *
 *     ddp_naive.c     the same at its plainest, to compare with
 *     ddp.c           the step, and the options
 *     buckets.c       where gradients are stored, and in which order
 *     communicate.c   how they are sent
 *     join.c          ranks whose data ends earlier
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_DDP_H
#define TERN_DISTRIBUTED_PARALLEL_DDP_H

#include "distributed/parallel/base.h"

/* A parameter of the module. */
typedef struct tn__ddp_param {
    tn__parallel_param base;
    int bucket;       /* -1: none, it has not required a gradient yet */
    int64_t offset;   /* in elements */
    tn_tensor *view;  /* its slot in the bucket, the leaf's gradient buffer; one reference */
    tn_tensor *aside; /* a copy of its gradient, while the view has something else; one reference */
    bool listed;      /* while an order is made: whether it is in it */
    bool reduced;     /* its gradient has been reduced and not zeroed since */
} tn__ddp_param;

typedef struct tn__ddp_bucket {
    tn_tensor *flat; /* (count); one reference */
    tn_dtype dtype;
    int64_t count;
    int waiting;         /* wanted gradients that are not ready */
    bool idle;           /* none of its parameters wants a gradient: it is not sent */
    tn_work *work;       /* while it is sent; may be NULL then too */
    tn_tensor *result;   /* what is sent, if not `flat`; one reference */
    tn_ddp_bucket shown; /* to options.hook */
} tn__ddp_bucket;

/* With options.join. */
typedef struct tn__ddp_join {
    tn_tensor *said, *heard; /* one announcement, (1) and (ranks) i64; one reference each */
    tn_work *backward;       /* the announcement of a backward, until its end */
    int last_active;         /* the lowest rank that took part in the last step */
} tn__ddp_join;

struct tn_ddp_state {
    tn__parallel base;
    tn_ddp_options options;
    tn_ddp_stats stats;
    tn__ddp_param *params; /* base.params */
    int64_t *order;        /* [count]: the parameters in buckets, in their order there */
    int placed;            /* how many of them */
    int64_t *ready;        /* [count]: as they became ready in the last synchronised backward */
    int readies;
    bool rebuild_due;
    tn__ddp_bucket *buckets;
    tn_tensor **views; /* [placed], bucket by bucket: what hooks see */
    int bucket_count;
    int launched; /* buckets 0 … launched-1 have been sent */
    tn__ddp_join join;
};

/* ---- buckets.c ------------------------------------------------------------------------------- */

/* The first buckets, in backward's order, from the last layer to the first. False after raising. */
bool tn__ddp_first_layout(tn_ddp_state *d);
void tn__ddp_drop_buckets(tn_ddp_state *d);

/* Whether to lay the buckets out again: gradients became ready in another order, or a parameter
 * newly requires one. */
bool tn__ddp_relayout_due(const tn_ddp_state *d);
/* Lays them out again in rank `root`'s order; gradients that are not stale are carried over. False
 * after raising. */
bool tn__ddp_relayout(tn_ddp_state *d, int root);

/* ---- communicate.c --------------------------------------------------------------------------- */

/* A backward begins: determines which gradients will come. */
void tn__ddp_expect(tn_ddp_state *d);
/* A gradient is ready: sends its bucket if it was the last one missing. */
void tn__ddp_ready(tn_ddp_state *d, tn__ddp_param *p);
/* Sends the remaining buckets and waits for all; then every rank has the same gradients. False
 * after raising. */
bool tn__ddp_complete(tn_ddp_state *d);
/* After a failure, waits until nothing is in flight. */
void tn__ddp_abandon(tn__parallel *p);

/* ---- join.c: no effect without options.join ---------------------------------------------------
 */

bool tn__ddp_join_start(tn_ddp_state *d);
void tn__ddp_join_finish(tn_ddp_state *d);
/* All ranks begin a forward. Returns the rank whose order and buffers all take, -1 after
 * raising. */
int tn__ddp_join_forward(tn_ddp_state *d, bool relayout, bool buffers);
/* A backward begins, and ends. False after raising. */
bool tn__ddp_join_backward(tn_ddp_state *d);
bool tn__ddp_join_ended(tn_ddp_state *d);

#endif
