/* The inside of sharding. The public side is tern/parallel.h; read fsdp_naive.c first.
 *
 *     fsdp_naive.c    the same at its plainest, to compare with
 *     fsdp.c          a step: its hooks decide what is gathered, sent and freed when
 *     units.c         where a unit's parameters are; cutting, gathering, freeing
 *     grads.c         where its gradients are; scattering
 *     ignored.c       parameters that stay whole
 *     attach.c        which parameter belongs to which unit; attaching and what it refuses
 *     ../scopes.c     TN_WHOLE, TN_NO_SYNC
 *
 * A parameter has three tensors. The *whole* is the leaf in the module's field, which graphs lead
 * to: its elements are in its set's flat buffer, which has no bytes between uses. The *part* is a
 * leaf too: this rank's elements, which the optimiser steps; the module's registry knows it
 * (tn_module_set_part), so code that steps, clips or saves need not know about sharding. The *view*
 * is where the whole's gradient is in a buffer, while it is in one.
 *
 * A flat buffer itself is neither in a graph nor a leaf: all three are tn_alias views of it, each
 * with a version of its own.
 *
 *     flat     | w0 . | w1     . | w2 | b2 . . |     (ranks, each), parameters 64 bytes apart
 *     shard    |-- rank 0 --|-- rank 1 --|-- rank 2 --|     (each): rows may be cut
 *
 * Memory per rank, in bytes, for psi f32 parameters, AdamW, N ranks and a compute dtype of c bytes;
 * `each` is the number of elements of a set (each parameter aligned to 16), divided by N and
 * rounded up to 16:
 *
 *     parts      4 each (shard), and c each if the compute dtype differs (low): group memory
 *     gradients  4 each, for trainable sets only
 *     state      8 per element of a part
 *     at rest    16 psi / N and the padding; stage 2: also c N each for every set, which stays
 *                whole; stage 1: also 4 N each, for its gradients
 *     running    c N each for the rest and for 1 + prefetch units
 *     buffers    4 N each for the rest, and twice that for the largest unit: group memory, which
 *                stays. Under TN_NO_SYNC more are made, up to one per set: 4 psi
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_FSDP_H
#define TERN_DISTRIBUTED_PARALLEL_FSDP_H

#include "distributed/parallel/base.h"
#include "nn/module.h"

typedef struct tn__fsdp_set tn__fsdp_set;
typedef struct tn__fsdp_unit tn__fsdp_unit;

/* The properties that parameters in one message must share. */
typedef struct tn__fsdp_kind {
    tn_dtype dtype, compute, grad; /* of the parameter, of what forwards read, of the gradient */
    bool frozen;                   /* at attaching */
    bool tied; /* other stages have it too, and sum its gradients: cut alike there, its own set */
} tn__fsdp_kind;

typedef struct tn__fsdp_param {
    tn__parallel_param base; /* .leaf: the whole */
    tn__fsdp_unit *unit;
    tn__fsdp_kind kind;
    tn_layout block;        /* what the field had at attaching: a whole, or a block of it … */
    const tn_parts *beyond; /* … and who had the other blocks */
    tn__fsdp_set *set;      /* NULL: ignored */
    tn_tensor *part;        /* one reference */
    tn_tensor *view;        /* one reference, or NULL */
    int64_t offset;         /* of the whole in the flat buffer */
    int64_t start, length;  /* of the part: elements of the whole … */
    int64_t place;          /* … and where they are in the shard */

    /* If it is ignored. */
    bool ignored;
    bool summed;      /* the gradient is the sum of all ranks' */
    tn_tensor *aside; /* the sum so far; one reference, or NULL */
    tn_work *sum;
} tn__fsdp_param;

/* Holds a set's whole gradients until they are scattered. */
typedef struct tn__fsdp_buffer {
    tn_tensor *flat; /* one reference; NULL: not made yet */
    tn__fsdp_set *user;
} tn__fsdp_buffer;

/* The parameters of a unit that are of one kind. */
struct tn__fsdp_set {
    tn_fsdp_state *fsdp;
    tn__fsdp_unit *unit;
    tn__fsdp_set *next; /* of the same unit */
    tn__fsdp_kind kind;
    tn__fsdp_param **params; /* [count], in order of registration */
    int count;
    int64_t each; /* elements of a part */

    tn_tensor *flat;  /* (ranks each), compute */
    tn_tensor *exact; /* (ranks each), dtype: the wholes, under a policy; has bytes in TN_WHOLE */
    tn_tensor *shard; /* (each), dtype */
    tn_tensor *low;   /* (each), compute: the shard as it is sent under a policy; else NULL */
    tn_tensor *grad;  /* (each), grad: of the parts; NULL: frozen */

    tn_work *gather;    /* in flight; may be NULL then too */
    double asked, sent; /* when its gather and its scatter began */
    tn_work *scatter;
    bool replicating;        /* `scatter` is already the sum over the replicas */
    tn__fsdp_set *queued;    /* the next of those whose gradients are in flight */
    tn_tensor *arrived;      /* (each): what the scatter writes; one reference */
    tn__fsdp_buffer own;     /* its gradients' own buffer, when it has one */
    tn__fsdp_buffer *buffer; /* where its gradients are now, or NULL */
    int waiting;             /* wanted gradients that are not ready */
};

typedef enum tn__fsdp_presence { TN__SPLIT, TN__COMING, TN__WHOLE } tn__fsdp_presence;

struct tn__fsdp_unit {
    tn_fsdp_state *fsdp;
    tn_module *module;
    tn_hook hook;
    char *path;            /* "" of the rest */
    tn__fsdp_unit *around; /* the unit around this one, the rest being outermost; NULL: this is the
                              rest */
    tn__fsdp_set *sets;    /* NULL: it has no parameters */
    tn__fsdp_presence presence;
    uint64_t seen; /* the versions of the parts that its wholes have; 0: none yet */
    int users;     /* forwards, backwards and scopes that need it whole */
};

/* Units in the order in which they were needed, learned on the way and truncated where a pass
 * differs. */
typedef struct tn__fsdp_order {
    tn__fsdp_unit **units;
    int count;
    int64_t capacity;
    int at; /* how many were needed in this pass */
} tn__fsdp_order;

/* Two buffers that the units' gradients of one dtype use in turn. */
typedef struct tn__fsdp_pool {
    tn_dtype dtype;
    int64_t count; /* elements of the largest set */
    tn__fsdp_buffer buffers[2];
} tn__fsdp_pool;

struct tn_fsdp_state {
    tn__parallel base;
    tn_fsdp_options options; /* without its strings, which are the caller's */
    tn_fsdp_stats stats;
    tn_device device; /* of all parameters */
    tn_parts *chains; /* [chain_count], with room for one per parameter: who has the rest of one */
    int chain_count;

    tn__fsdp_param *params;   /* base.params */
    tn__fsdp_param **members; /* [base.count], set by set */
    tn__fsdp_unit *units;     /* [unit_count], in order of registration; the rest is the last */
    tn__fsdp_set *sets;       /* [set_count], unit by unit */
    tn__fsdp_pool *pools;     /* [pool_count] */
    int unit_count, set_count, pool_count;
    int64_t unit_capacity;

    tn__fsdp_order forward, backward;
    tn__fsdp_unit *last;        /* the last that forward used, for its backward; or NULL */
    tn__fsdp_set *first_on_way; /* whose gradients are in flight, oldest first */
    uint64_t gathered;          /* a digest of which units, in which order */
    int whole;                  /* depth of TN_WHOLE */
    bool cut;                   /* parameters have lost their bytes */
};

static inline tn__fsdp_unit *tn__fsdp_rest(const tn_fsdp_state *s) {
    return &s->units[s->unit_count - 1];
}

/* Where parts are stored and stepped. */
static inline tn_device tn__fsdp_home(const tn__fsdp_set *set) {
    return set->fsdp->options.offload ? tn_cpu() : set->fsdp->device;
}

/* ---- attach.c -------------------------------------------------------------------------------- */

/* What tn__fsdp_start gets. */
typedef struct tn__fsdp_plan {
    tn_fsdp_options options;
    bool alone;            /* each parameter is its own set, and there are no buffers */
    tn_module_hooks hooks; /* on each unit, with the unit as their user */
} tn__fsdp_plan;

/* Rules of a strategy whose state is a tn_fsdp_state (base.h): cuts the module. */
bool tn__fsdp_start(tn__parallel *p, const void *plan);
void tn__fsdp_finish(tn__parallel *p);

/* ---- units.c --------------------------------------------------------------------------------- */

/* Cuts the set's parameters: afterwards the wholes have no bytes. Every rank calls. False after
 * raising. */
bool tn__fsdp_cut(tn__fsdp_set *set);
/* Frees all that the set has, even if it was only partly cut. */
void tn__fsdp_drop(tn__fsdp_set *set);

/* Starts to gather the unit's parameters, unless their current values are here or coming. */
void tn__fsdp_gather(tn__fsdp_unit *u);
/* Waits until they are here. */
void tn__fsdp_await(tn__fsdp_unit *u);
/* Frees them, unless the unit has users. */
void tn__fsdp_split(tn__fsdp_unit *u);
/* Its units have one user more or less. Those that none needs are freed. */
void tn__fsdp_change_users(tn__parallel *p, int change);
/* TN_WHOLE: +1 where it begins, -1 where it ends. */
void tn__fsdp_change_whole(tn__parallel *p, int change);
/* The unit that stays whole for its backward is another one; NULL: none. */
void tn__fsdp_set_last(tn_fsdp_state *s, tn__fsdp_unit *u);

/* Waits for an operation, and counts how long. */
void tn__fsdp_wait(tn_fsdp_state *s, tn_work **w);
/* Adds to the ranks' trace what the unit waited for, or its state, from `began` to now. */
void tn__fsdp_mark(const tn__fsdp_unit *u, const char *what, double began);

/* ---- grads.c --------------------------------------------------------------------------------- */

/* The gradients of the set's parts. False after raising. */
bool tn__fsdp_make_part_grads(tn__fsdp_set *set);
/* A set that was frozen gets what its gradients need. Every rank calls, since others read it in the
 * group's memory. False after raising. */
bool tn__fsdp_thaw(tn__fsdp_set *set);

/* Buffers for the gradients of all sets. Every rank calls. False after raising. */
bool tn__fsdp_make_buffers(tn_fsdp_state *s);
void tn__fsdp_drop_buffers(tn_fsdp_state *s);
/* Gives the gradients of the set's wanted parameters a place, if they have none. False after
 * raising. */
bool tn__fsdp_place_grads(tn__fsdp_set *set);
/* Takes the place away again, except for what TN_NO_SYNC has kept of a frozen one. */
void tn__fsdp_forget_grads(tn__fsdp_set *set);
/* Starts to send them. */
void tn__fsdp_scatter(tn__fsdp_set *set);
/* With find_unused, at the end of backward: sends those that some rank has. Parameters for which no
 * rank has one stay without a gradient. False after raising. */
bool tn__fsdp_scatter_used(tn_fsdp_state *s);
/* Waits for all in flight; then the parts have them. */
void tn__fsdp_arrive_all(tn_fsdp_state *s);

/* ---- ignored.c ------------------------------------------------------------------------------- */

/* Called before an ignored parameter's gradient is added to. */
void tn__fsdp_put_aside(tn__fsdp_param *p);
/* Called at the end of a synchronised backward. */
void tn__fsdp_sum_ignored(tn_fsdp_state *s);

/* ---- The end --------------------------------------------------------------------------------- */

/* After a failure: waits until nothing is in flight, and leaves every unit split. */
void tn__fsdp_abandon(tn__parallel *p);

#endif
