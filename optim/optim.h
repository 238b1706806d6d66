/* The internals of an optimiser: what it steps, with which numbers. The public side is
 * tern/optim.h.
 *
 * One tn__item per parameter. Its stored tensor is looked up at every step, since sharding and
 * precision replace tensors.
 */
#ifndef TERN_OPTIM_OPTIM_H
#define TERN_OPTIM_OPTIM_H

#include "core/alive.h"
#include "core/error.h"
#include "nn/misuse.h"
#include "tern/optim.h"
#include "tern/sys/optim.h"
#include "tern/sys/tensor.h"

#include <math.h>

/* A parameter, its state and its group. Tensors are references that the optimiser owns. */
typedef struct tn__item {
    tn_entry entry;         /* path is the optimiser's own copy */
    tn_module_lists *lists; /* of entry.owner, one reference: they outlive it */
    tn_tensor *param;       /* what was stored at the last step */
    int group;
    /* i64, 0-dimensional: steps of this parameter; NULL: the method needs no count */
    tn_tensor *steps;
    tn_tensor *state[TN_OPTIM_STATES]; /* the method's; NULL: unused */
    bool whole_state[TN_OPTIM_STATES]; /* TN_STATE_WHOLE */
    tn_tensor *master;                 /* f32 copy of a bf16 or f16 parameter, or NULL */
    /* their versions after the last step, to notice other changes */
    uint32_t param_seen, master_seen;

    /* While a step runs. */
    /* NULL: this parameter is left alone. Owned by the step's scope or the leaf. */
    tn_tensor *grad;
    tn_tensor *copy; /* the parameter's copy for computing, which the kernel writes too; or NULL */
    int64_t count;   /* which step of this parameter it is: 1 for the first */
    bool done;
} tn__item;

struct tn_optim {
    tn__alive alive;
    const tn_optim_method *method;
    void *options; /* the method's, which all groups share */
    double lr;
    tn_optim_group_options **groups; /* allocated one by one, so that pointers to them stay valid */
    int group_count;
    int64_t group_capacity;
    tn__item *items;
    int item_count;
    int64_t item_capacity;
    tn_optim_span *spans; /* [item_count] */
    int64_t steps;
    double grad_scale; /* from tn_optim_clip or a scaler, for the next step */
    tn_tensor *clip;   /* from tn_optim_clip_later, for the next step: norm and factor; or NULL */
    void *own_module;  /* tn_parameters, or NULL */
};

/* The shape of a parameter for a reference step: its own if the whole is here, else `stored`. */
static inline tn_dims tn__reference_dims(const tn_entry *entry, tn_dims stored) {
    tn_dims whole = entry->layout.whole;
    return tn_dims_count(whole) == tn_dims_count(stored) ? whole : stored;
}

/* The parameter's stored tensor now. NULL once the module is gone, and for an absent parameter: it
 * has only a name and a group, so that groups are alike on all ranks. (entry.stored is the tensor
 * from when the optimiser was made.) */
static inline tn_tensor *tn__item_param(const tn__item *item) {
    bool here = tn__module_is_valid(item->lists) && !item->entry.absent;
    return here ? tn__entry_stored(&item->entry) : NULL;
}

/* Whether the optimiser, which is not NULL, was not freed; false after raising. */
bool tn__optim_here(const tn_optim *opt, const char *operation);

extern const tn_field tn__scaler_fields[]; /* of a tn_scaler */

/* How many parameters the group has, including absent ones. */
TN_API int tn__optim_group_count(const tn_optim *opt, int group);

/* Like tn_optim_each, with the parameter's entry for a tensor laid out like the parameter, and NULL
 * for one that is the same on every rank (a count of steps). */
typedef bool tn__optim_visitor(const char *name, tn_tensor *t, const tn_entry *like, void *user);
void tn__optim_each(tn_optim *opt, tn__optim_visitor *f, void *user);

/* Queues the sums of squares of the spans, which go to sums (f64, on their device); false after
 * raising. */
bool tn__sum_squares(const tn_span *spans, int n, const tn_tensor *sums, const char *operation);
/* All elements of t, which the span's memory belongs to, or to a copy in the open scope. */
tn_span tn__span_of(tn_tensor *t);

/* The ranks that share a parameter, from a link of its chain; NULL: no other rank has a part. */
static inline const tn_parts *tn__parts_of_one(const tn_parts *p) {
    return p && !p->others ? p : NULL;
}
/* Turns values[n], sums over this rank's part of a parameter, into sums over all ranks' parts.
 * False after raising. */
bool tn__sum_over_ranks(const tn_parts *parts, double *values, int n);

/* Whether tn_parameters made it. */
bool tn__is_parameters(const void *m);

/* Whether x is valid as a learning rate, decay or the like. */
static inline bool tn__not_negative(double x) {
    return x >= 0.0 && x < (double)INFINITY;
}

/* The norm of all gradients that the next step of opt reads, over all ranks. NaN after raising. */
double tn__optim_norm(tn_optim *opt, const char *operation);

/* The next step reads each gradient times `scale`, and by no other factor. */
static inline void tn__optim_scale(tn_optim *opt, double scale) {
    opt->grad_scale = scale;
    tn_release(opt->clip);
    opt->clip = NULL;
}

/* The factor that makes the gradients' norm at most max_norm; at most 1, as in PyTorch. */
double tn__clip_scale(double norm, double max_norm);

#endif
