/* The base of every strategy for a model on many ranks. The public side is tern/parallel.h.
 *
 *     attach.c     attaching a strategy to a module, and what is refused
 *     lifecycle.c  the lifecycle of a step, as the hooks of a module and its parameters see it
 *     same.c       whether the module is the same on all ranks; one rank's values for all; waiting
 *     round.c      the random numbers of a global micro-batch
 *     flat.c       tensors one after the other in a flat buffer
 *     patterns.c   whether lists of paths name anything
 *     scopes.c     TN_NO_SYNC, TN_WHOLE, tn_sync_gradients
 *
 * A strategy is a tn__parallel_rules: what it does at the points of a step. ddp_naive.c is the
 * smallest; read it first.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_BASE_H
#define TERN_DISTRIBUTED_PARALLEL_BASE_H

#include "core/error.h"
#include "nn/module.h"
#include "tern/parallel.h"
#include "tern/split.h"

/* ---- round.c --------------------------------------------------------------------------------- */

/* The tn__round of the ranks of `inner` and, unless `outer` is NULL, of its counterparts across
 * `outer`. The ranks of an inner group get consecutive micro-batches. */
TN_API tn__round tn__round_of(const tn_group *outer, const tn_group *inner);

/* Before a forward: keys the default generator for this rank's micro-batch of the round. */
TN_API void tn__round_begin(tn__round r);
/* Call inside a backward: the round ends with the outermost one. Further calls do nothing. */
tn_status tn__round_end(tn__round r);

/* ---- attach.c, lifecycle.c ------------------------------------------------------------------- */

typedef struct tn__parallel tn__parallel;

/* A parameter of the module. A strategy's own struct begins with it. */
typedef struct tn__parallel_param {
    tn__parallel *of;
    char *path;
    tn_tensor *leaf; /* one reference */
    tn_hook coming, added;
    bool wanted; /* in this backward: wants a gradient */
    bool ready;  /* in this backward: has it */
    bool kept;   /* a backward under no_sync has added to its gradient */
} tn__parallel_param;

/* What a strategy does. Everything but the operation may be NULL or 0. A false result means that
 * an error was raised. */
typedef struct tn__parallel_rules {
    const char *name;      /* "data parallelism" */
    const char *operation; /* "ddp", in messages */
    size_t state_size;     /* of a struct that begins with a tn__parallel … */
    size_t param_size;     /* … and with a tn__parallel_param */
    bool deferred;         /* takes parameters that TN_DEFER_INIT has left without elements */

    /* The last step of attaching: the module is the same everywhere, the parameters are listed.
     * After an error `finish` is called. */
    bool (*start)(tn__parallel *p, const void *options);
    /* Before a recorded forward; not under no_sync, not when it is recomputed. */
    void (*forward)(tn__parallel *p);
    /* A backward has reached a parameter, or the module's output: p->sync says whether it is
     * synchronised. */
    bool (*reached)(tn__parallel *p);
    /* TN_WHOLE begins (+1) or ends (-1), and a scope in which what was gathered stays. */
    void (*whole)(tn__parallel *p, int change);
    void (*hold)(tn__parallel *p, int change);
    /* On each parameter, before and after its gradient is accumulated, also under no_sync; user is
     * the parameter. The first must call tn__parallel_reach, the second tn__parallel_added. The
     * gradient may be where it is stored already (tn__on_grad_observe). */
    tn_grad_hook coming;
    tn_accumulated_hook added;
    /* Synchronises without a backward (tn_sync_gradients), between `reached` and `ended`.
     * Parameters with a `kept` gradient are `wanted` and `ready`; those without has_grad are
     * `wanted` only. */
    void (*flush)(tn__parallel *p);
    /* Whether the parameter has a synchronised gradient, the same answer on all ranks; NULL: if the
     * leaf has one. */
    bool (*has_grad)(const tn__parallel_param *param);
    /* The outermost backward is over, it was synchronised, and no error is pending. */
    void (*ended)(tn__parallel *p);
    /* At the end of every outermost backward that reached the module, even if it failed. */
    void (*over)(tn__parallel *p);
    /* After an error in a synchronised backward, when the group is aborted: waits for operations
     * in flight. */
    void (*abandon)(tn__parallel *p);
    /* The module is finished. Must not use the group, which may be gone. */
    void (*finish)(tn__parallel *p);
} tn__parallel_rules;

/* A strategy on a module, which owns it. */
struct tn__parallel {
    tn__strategy strategy; /* its name, and the round of both groups */
    const tn__parallel_rules *rules;
    tn_module *module;
    tn_group *group;
    tn_group *outer; /* this rank and its counterparts in the other groups; NULL: only one group */
    void *params;    /* [count] of rules->param_size, in order of registration; they do not move */
    int count;

    int no_sync;      /* depth */
    bool running;     /* a backward is running */
    bool reached;     /* it has reached a parameter, or the output */
    bool sync;        /* it is synchronised */
    bool finished;    /* the module is gone: the backward frees what is left of the state */
    bool buffers_due; /* none received since the last synchronised backward, or attaching */
    double began;     /* when the backward began */
};

static inline tn__parallel_param *tn__parallel_param_at(const tn__parallel *p, int i) {
    return (tn__parallel_param *)((char *)p->params + (size_t)i * p->rules->param_size);
}

/* Attaches a strategy to m. Checks that m is a module, this rank is in the groups, nothing in or
 * around m has a strategy, and its parameters are on one device and neither sharded nor an
 * optimiser's already; compares modules and `text` (the options), broadcasts rank 0's values,
 * calls start(p, options) and adds the hooks. With `outer`, all ranks of both groups take part.
 * Ends tn__agree_begin. NULL after raising, on all ranks; the groups are aborted if they had agreed
 * before. */
TN_API tn__parallel *tn__parallel_attach(void *m, tn_group *g, tn_group *outer,
                                         const tn__parallel_rules *rules, const char *text,
                                         const void *options);

/* The first two steps of it, for what cuts a module before a strategy is attached (of rules:
 * operation, deferred). The module and its parameters are fit for it, and nothing in or around it
 * is parallel; false after raising. */
bool tn__parallel_may_attach(void *m, const tn_group *g, const tn__parallel_rules *rules);
/* False after raising TN_ESTATE: other ranks have other parts of a parameter, or other parameters.
 */
bool tn__parallel_unsplit(tn_module *m, const char *operation);
/* Ends tn__agree_begin: agrees and shares, within the first group, then across the second (NULL:
 * none). False after raising on all ranks. */
bool tn__parallel_make_same(tn_module *m, tn_group *g, tn_group *outer,
                            const tn__parallel_rules *rules, const char *text);

/* A backward has reached the module: at its first gradient. False after raising. */
TN_API bool tn__parallel_begin(tn__parallel *p);

/* A gradient is coming: the current backward is one of the module's. False after raising. */
static inline bool tn__parallel_reach(tn__parallel *p) {
    return (p->running && p->reached) || tn__parallel_begin(p);
}

/* False after raising the names of wanted gradients that are not ready at the backward's end. */
TN_API bool tn__parallel_all_ready(const tn__parallel *p);

/* Aborts the groups and waits for operations in flight. */
void tn__parallel_give_up(tn__parallel *p, const char *reason);

/* The hooks of the module. */
tn_values tn__parallel_forward(tn_module *m, tn_values in, void *p);
void tn__parallel_backward(tn_module *m, void *p);

/* Inside rules->added. */
static inline void tn__parallel_added(tn__parallel_param *param) {
    param->ready = true;
    param->kept = !param->of->sync;
}

/* tn_sync_gradients. */
void tn__parallel_flush(tn__parallel *p);

/* False after raising TN_ESHAPE: the ranks do not divide `count` of "heads" at a path, which
 * numbers would, and a hint that follows, such as "; or so". */
bool tn__parallel_divides(const tn_group *g, int64_t count, const char *what, const char *path,
                          const char *hint, const char *operation);

/* Between these two a frozen leaf requires a gradient. */
bool tn__leaf_thaw(tn_tensor *leaf); /* whether it was frozen */
void tn__leaf_freeze(tn_tensor *leaf, bool frozen);

/* ---- same.c ---------------------------------------------------------------------------------- */

/* Ends tn__agree_begin: names, shapes, blocks, dtypes and `options` (lines of text) are the same on
 * all ranks of g, and none has an error; else all raise it. */
tn_status tn__parallel_agree(tn_module *m, tn_group *g, const char *options, const char *operation);

/* For the ranks of a group that compute each batch of m together: whether x, if it is tokens, is
 * the same on all of them; nothing else would say so. The first batch is compared, and the first
 * after each change between training and evaluation, which may have a sampler of its own. False
 * after raising TN_EMISMATCH on each rank. `last` begins as zeros. */
typedef struct tn__compared {
    bool any, training;
} tn__compared;
static inline bool tn__compare_due(const tn__compared *last, const tn_module *m) {
    return !last->any || last->training != m->training;
}
bool tn__parallel_same_input(tn_group *g, const tn_tensor *x, const tn_module *m,
                             tn__compared *last, const char *operation);

/* Broadcasts rank `root`'s buffers, and with `parameters` also its parameters. */
tn_status tn__parallel_share(tn_module *m, tn_group *g, int root, bool parameters);

/* tn_parts.sum, where parts->group is a tn_group. */
tn_status tn__parallel_sum_parts(const tn_parts *parts, double *values, int n);
/* The ranks that have the rest of a parameter: those of g, then `beyond`, those that had other
 * parts of it before. links[*count] gets one for each different chain beyond. */
const tn_parts *tn__parallel_chain(tn_parts *links, int *count, tn_group *g,
                                   const tn_parts *beyond);

/* For rules->forward: a training step's first forward broadcasts rank 0's buffers. */
void tn__parallel_take_buffers(tn__parallel *p);

/* False after raising "OPERATION: what: no parameter …" (or module): each pattern of a list of
 * paths (nn/paths.h; NULL: none) must match something in m. */
TN_API bool tn__patterns_used(tn_module *m, const char *list, bool parameters,
                              const char *operation, const char *what);

/* Gives dp or shard the ranks that are left; false after raising. */
bool tn__spread_sizes(tn_spread_options *o, int ranks);

/* Waits for one operation of a step. Its error says what to do about ranks whose data has ended. */
tn_status tn__parallel_wait(tn_work *w);

#endif
