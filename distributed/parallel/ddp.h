/* The inside of data parallelism. The public side is tern/parallel.h; read ddp_naive.c first.
 *
 *     ddp_naive.c    the same in the plainest way, to compare with
 *     ddp.c          attaching; the hooks, and so the course of a step
 *     ddp_buckets.c  where gradients lie, how they travel, and the order of both
 *     ddp_join.c     ranks whose data ends earlier
 *     ddp_hooks.c    what may travel instead of the plain bucket
 */
#ifndef TERN_DISTRIBUTED_DDP_H
#define TERN_DISTRIBUTED_DDP_H

#include "distributed/parallel/base.h"

/* A parameter of the module. */
typedef struct tn__ddp_param {
    tn_ddp_state *ddp;
    char *path;
    tn_tensor *leaf; /* one reference */
    tn_hook adding, added;
    int bucket;       /* -1: in none, it has not wanted a gradient yet */
    tn_tensor *view;  /* its place in the bucket, the leaf's gradient buffer; one reference */
    tn_tensor *aside; /* its gradient while the bucket travels without it; one reference or NULL */
    bool wanted;      /* in this backward: wants a gradient */
    bool ready;       /* in this backward: has it */
    bool reduced;     /* its gradient has been reduced and not forgotten since */
} tn__ddp_param;

typedef struct tn__ddp_bucket {
    tn_tensor *flat; /* one reference */
    tn_dtype dtype;
    int64_t count;     /* elements */
    int waiting;       /* wanted gradients that are not ready */
    bool idle;         /* nobody in it wants a gradient: it stays */
    tn_work *work;     /* while it travels; may be NULL then too */
    tn_tensor *result; /* what travels, when that is another tensor; one reference */
    double launched;
} tn__ddp_bucket;

struct tn_ddp_state {
    tn_module *module;
    tn_group *group;
    tn_ddp_options options;
    tn_ddp_stats stats;

    tn__ddp_param *params; /* [param_count], in order of registration; they do not move */
    int param_count;
    int *order; /* [param_count]: the parameters in buckets, as they lie there */
    int placed; /* of them in buckets */
    int *ready; /* [param_count]: as they became ready in the last synchronised backward */
    int readies;
    bool rebuild_due;
    bool buffers_due; /* none came since the last synchronised backward, or attaching */

    tn__ddp_bucket *buckets;
    int bucket_count;
    int launched; /* buckets 0 … launched-1 are on their way */

    int no_sync;   /* depth */
    bool running;  /* a backward is under way */
    bool touched;  /* and has reached a parameter, or the output */
    bool sync;     /* and is synchronised */
    bool finished; /* the module is gone: what is left of the state goes with the backward */
    double began;

    /* With options.join. */
    tn_tensor *said, *heard; /* one announcement, (1) and (ranks) i64; one reference each */
    tn_work *announcement;   /* of a backward, until its end */
    int last_active;         /* the lowest rank that took part in the last step */
};

/* ---- ddp.c ----------------------------------------------------------------------------------- */

/* The hooks of one parameter, which must want a gradient. False after raising. */
bool tn__ddp_hook_param(tn__ddp_param *p);

/* A backward in which this rank has nothing: the others' gradients pass through. */
void tn__ddp_pass(tn_ddp_state *d);

/* ---- ddp_buckets.c --------------------------------------------------------------------------- */

/* Puts the parameters order[0 … n-1] into buckets, in this order; those placed already must be
 * among them. Gradients that are not stale are carried over. Every rank calls. False after raising:
 * then there are no buckets. */
bool tn__ddp_layout(tn_ddp_state *d, const int *order, int n);
void tn__ddp_drop_buckets(tn_ddp_state *d);

/* Whether the buckets are to be laid out again: as gradients became ready, or since a parameter
 * wants one that did not. */
bool tn__ddp_relayout_due(const tn_ddp_state *d);
/* Lays them out again as rank `root` says. */
bool tn__ddp_relayout(tn_ddp_state *d, int root);

/* A backward begins: which gradients will come. */
void tn__ddp_expect(tn_ddp_state *d);
/* Sends the next buckets while they are complete; `all`: whatever they lack. False after
 * raising. */
bool tn__ddp_launch(tn_ddp_state *d, bool all);
/* Sends the rest and waits for all; then every rank has the same gradients. False after raising. */
bool tn__ddp_complete(tn_ddp_state *d);
/* Waits until nothing travels any more, after a failure. */
void tn__ddp_abandon(tn_ddp_state *d);

/* ---- ddp_join.c ------------------------------------------------------------------------------ */

/* What an active rank is about to do: bits. A rank that has joined says 0. */
enum { TN__DDP_FORWARD = 1, TN__DDP_RELAYOUT = 2, TN__DDP_BUFFERS = 4, TN__DDP_BACKWARD = 8 };

/* Tells all ranks and hears them. Returns the lowest active rank, -1 after raising. */
int tn__ddp_announce(tn_ddp_state *d, int what);
/* The same for a backward, without waiting: the answer is read at its end. False after raising. */
bool tn__ddp_announce_backward(tn_ddp_state *d);
bool tn__ddp_hear_backward(tn_ddp_state *d);

#endif
