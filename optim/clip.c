/* Clipping by the norm of all gradients together (Pascanu et al. 2013, arXiv:1211.5063), and by
 * value.
 *
 * A kernel on each device takes the sums of squares of its gradients; they come to the host
 * together (one wait for a device) and are added in double, in order of registration: the same bits
 * in every run. Where other ranks have more of the parameters, sums over them follow, one for each
 * group (tn_parts). Clipping before a step costs nothing extra: the step scales each gradient as it
 * reads it. If all gradients are on one device, their norm need not come to the host for that: a
 * kernel adds the sums in the same order, and the step reads the factor from there.
 */
#include "optim/optim.h"

#include "core/memory.h"
#include "tern/sys/device.h"

#include <math.h>
#include <stdlib.h>

tn_span tn__span_of(tn_tensor *t) {
    const tn_tensor *dense = tn_contiguous(t);
    return (tn_span){tn_count(dense) > 0 ? tn__address(dense) : NULL, dense->dtype,
                     tn_count(dense)};
}

bool tn__sum_squares(const tn_span *spans, int n, const tn_tensor *sums, const char *operation) {
    tn_device device = sums->storage->device;
    const tn_backend *kernels = tn_backend_of(device);
    tn_status status = tn__pending() ? tn_error()
                                     : kernels->sum_squares(tn_context_of(device), spans, n,
                                                            (double *)tn__address(sums));
    if (status != TN_OK) {
        tn__raise(status, operation, "the %s kernel for sums of squares failed with %s",
                  kernels->name, tn_status_name(status));
    }
    return status == TN_OK;
}

/* The gradient of the part stored here (NULL: none, or no elements), and the ranks that have the
 * rest. */
typedef struct gradient {
    tn_tensor *here;
    const tn_parts *parts;
} gradient;

/* Those of all parameters, with and without a gradient, in order of registration. */
typedef struct gradients {
    gradient *at;
    int count;
    int64_t capacity;
    const char *operation;
    bool failed; /* some are missing, after raising */
} gradients;

/* False after raising. */
static bool add_gradient(gradients *g, const tn_tensor *stored, const tn_parts *parts) {
    g->failed = !tn__grow(&g->at, g->count + 1, &g->capacity, sizeof(*g->at), g->operation);
    if (g->failed) { return false; }
    tn_tensor *grad = stored ? tn_grad_of(stored) : NULL;
    g->at[g->count++] = (gradient){grad && tn_count(grad) > 0 ? grad : NULL, parts};
    return true;
}

/* What the next step of opt reads. The caller frees `at`, after an error too. */
static gradients gradients_of(const tn_optim *opt, const char *operation) {
    gradients g = {.operation = operation};
    for (int i = 0; i < opt->item_count; i++) {
        const tn__item *item = &opt->items[i];
        if (!add_gradient(&g, tn__item_param(item), item->entry.parts)) { break; }
    }
    return g;
}

static bool is_on(const gradient *g, tn_device device) {
    return g->here && tn__same_device(g->here->storage->device, device);
}

/* The sums of squares of the gradients on one device, 0 for the others; inert after raising. */
static tn_tensor *sums_on(tn_device device, const gradients *g) {
    tn_tensor *sums = tn_empty_on(device, TN_DIMS(g->count), TN_F64);
    tn_span *spans = tn__malloc_for((size_t)g->count * sizeof(*spans), g->operation);
    for (int i = 0; spans && i < g->count; i++) {
        spans[i] = is_on(&g->at[i], device) ? tn__span_of(g->at[i].here) : (tn_span){0};
    }
    bool done = spans && !tn_is_inert(sums) && tn__sum_squares(spans, g->count, sums, g->operation);
    free(spans);
    return done ? sums : tn_inert();
}

/* Whether an earlier gradient is on the same device as gradient i. */
static bool device_seen(const gradients *g, int i) {
    for (int k = 0; k < i; k++) {
        if (is_on(&g->at[k], g->at[i].here->storage->device)) { return true; }
    }
    return false;
}

/* All sums of squares into host[count], which has space for as many again; false after raising. */
static bool all_sums(const gradients *g, double *host) {
    for (int i = 0; i < g->count; i++) {
        host[i] = 0.0;
        if (g->at[i].here && !tn__usable(g->at[i].here, g->operation)) { return false; }
    }
    TN_NO_GRAD;
    for (int i = 0; i < g->count; i++) {
        if (!g->at[i].here || device_seen(g, i)) { continue; }
        TN_SCOPE;
        tn_tensor *sums = sums_on(g->at[i].here->storage->device, g);
        double *here = host + g->count;
        if (tn_is_inert(sums) || tn_copy_out(sums, here) != TN_OK) { return false; }
        for (int k = 0; k < g->count; k++) {
            host[k] += here[k];
        }
    }
    return true;
}

/* Sums values[n] over the ranks of one node of a chain. False after raising. */
static bool sum_at(const tn_parts *p, double *values, int n) {
    for (int i = 0; !p->counts && i < n; i++) {
        values[i] = 0.0;
    }
    return !p->sum || p->sum(p, values, n) == TN_OK;
}

bool tn__sum_over_ranks(const tn_parts *parts, double *values, int n) {
    for (const tn_parts *p = parts; tn__parts_of_one(p); p = p->next) {
        if (!sum_at(p, values, n)) { return false; }
    }
    return true;
}

/* ---- The sum of all -------------------------------------------------------------------------- */

/* A node of the chains, for ranks that share some parameters, and the sum of what leads to it. */
typedef struct level {
    const tn_parts *parts;
    int depth; /* how many nodes follow it in its chain */
    double sum;
} level;

typedef struct levels {
    level *at; /* [count], in the order of the parameters */
    int count, deepest;
} levels;

/* Adds to the sum of a node of a chain; NULL: to the total. */
static void level_add(levels *l, const tn_parts *parts, double sum, double *total) {
    int i = 0;
    while (parts && i < l->count && l->at[i].parts != parts) {
        i++;
    }
    *(parts ? &l->at[i].sum : total) += sum;
}

/* Lists a chain, for which there is space. */
static void add_chain(levels *l, const tn_parts *parts) {
    int depth = 0;
    for (const tn_parts *p = parts; p; p = p->next) {
        depth++;
    }
    l->deepest = depth > l->deepest ? depth : l->deepest;
    for (const tn_parts *p = parts; p; p = p->next) {
        int i = 0;
        while (i < l->count && l->at[i].parts != p) {
            i++;
        }
        l->count += i == l->count;
        depth--;
        l->at[i] = (level){.parts = p, .depth = depth};
    }
}

/* False after raising. */
static bool list_levels(levels *l, const gradients *g) {
    size_t count = 1;
    for (int i = 0; i < g->count; i++) {
        for (const tn_parts *p = g->at[i].parts; p; p = p->next) {
            count++;
        }
    }
    *l = (levels){.at = tn__malloc_for(count * sizeof(*l->at), g->operation)};
    for (int i = 0; l->at && i < g->count; i++) {
        add_chain(l, g->at[i].parts);
    }
    return l->at != NULL;
}

/* The sum of all sums[count]. Level by level: a node waits until all that lead to it have been
 * added, so that each group sums once, however different the chains of its ranks are before it
 * (stages of a pipeline). Parameters without a gradient are included, and absent ones: every rank
 * takes part in the same sums, even if all that it has is frozen. False after raising. */
static bool total_sum(const gradients *g, const double *sums, double *total) {
    levels l;
    if (!list_levels(&l, g)) { return false; }
    *total = 0.0;
    for (int i = 0; i < g->count; i++) {
        level_add(&l, g->at[i].parts, sums[i], total);
    }
    bool done = true;
    for (int depth = l.deepest - 1; done && depth >= 0; depth--) {
        for (int i = 0; done && i < l.count; i++) {
            level *at = &l.at[i];
            if (at->depth == depth) {
                done = sum_at(at->parts, &at->sum, 1);
                level_add(&l, at->parts->next, at->sum, total);
            }
        }
    }
    free(l.at);
    return done;
}

/* The square root of the sum of squares, in double and in order. NaN after raising. */
static double grad_norm(const gradients *g) {
    if (g->failed || tn__pending()) { return NAN; }
    double *sums = tn__malloc_for(2 * (size_t)g->count * sizeof(*sums), g->operation), total;
    bool done = sums && all_sums(g, sums) && total_sum(g, sums, &total);
    free(sums);
    return done ? sqrt(total) : NAN;
}

double tn__clip_scale(double norm, double max_norm) {
    double scale = max_norm / (norm + 1e-6);
    return isfinite(norm) && scale < 1.0 ? scale : 1.0;
}

/* False after raising. */
static bool may_clip(double max_norm, const char *operation) {
    if (!tn__pending() && !(max_norm >= 0.0)) {
        tn__raise(TN_EVALUE, operation, "max_norm is %g (must not be negative)", max_norm);
    }
    return !tn__pending();
}

double tn__optim_norm(tn_optim *opt, const char *operation) {
    gradients g = gradients_of(opt, operation);
    double norm = grad_norm(&g);
    free(g.at);
    return norm;
}

double tn_optim_clip(tn_optim *opt, double max_norm) {
    if (!opt) {
        tn__raise(TN_EVALUE, "optim_clip", "the optimiser is NULL");
        return NAN;
    }
    if (!tn__optim_here(opt, "optim_clip")) { return NAN; }
    double norm = may_clip(max_norm, "optim_clip") ? tn__optim_norm(opt, "optim_clip") : NAN;
    tn__optim_scale(opt, tn__clip_scale(norm, max_norm));
    return norm;
}

/* Whether the whole norm is of gradients here, on one device. */
static bool all_on_device(const gradients *g, tn_device *device) {
    bool any = false, all = !g->failed;
    for (int i = 0; i < g->count && all; i++) {
        const tn_tensor *here = g->at[i].here;
        if (here && !any) { *device = here->storage->device; }
        any = any || here;
        all = !g->at[i].parts && (!here || (is_on(&g->at[i], *device) && !tn_is_inert(here)));
    }
    return any && all;
}

/* The norm and the factor of the gradients, on their device; inert after raising. */
static tn_tensor *clip_on_device(const gradients *g, tn_device device, double max_norm) {
    tn_tensor *sums = sums_on(device, g), *clip = tn_empty_on(device, TN_DIMS(2), TN_F64);
    if (tn_is_inert(sums) || tn_is_inert(clip)) { return tn_inert(); }
    const tn_backend *kernels = tn_backend_of(device);
    tn_status status = kernels->clip(tn_context_of(device), (const double *)tn__address(sums),
                                     g->count, max_norm, (double *)tn__address(clip));
    if (status == TN_OK) { return clip; }
    tn__raise(status, g->operation, "the %s kernel for clipping failed with %s", kernels->name,
              tn_status_name(status));
    return tn_inert();
}

tn_tensor *tn_optim_clip_later(tn_optim *opt, double max_norm) {
    static const char operation[] = "optim_clip_later";
    TN_SCOPE;
    TN_NO_GRAD;
    gradients g = {0};
    if (opt && may_clip(max_norm, operation) && tn__optim_here(opt, operation) &&
        opt->method->step) {
        g = gradients_of(opt, operation);
    }
    tn_device device;
    tn_tensor *clip = all_on_device(&g, &device) ? clip_on_device(&g, device, max_norm) : NULL;
    free(g.at);
    if (!clip) {
        double norm = tn_optim_clip(opt, max_norm);
        return tn_return(tn__pending() ? tn_inert() : tn_scalar(norm, TN_F64));
    }
    if (tn_is_inert(clip)) { return clip; }
    tn__optim_scale(opt, 1.0);
    opt->clip = tn_keep(clip);
    return tn_return(tn_select(clip, 0, 0));
}

static bool collect_gradient(const tn_entry *entry, void *user) {
    return add_gradient(user, entry->stored, entry->parts);
}

double tn_clip_grad_norm(void *m, double max_norm) {
    if (!may_clip(max_norm, "clip_grad_norm")) { return NAN; }
    gradients g = {.operation = "clip_grad_norm"};
    tn_module_each(m, (tn_walk){.absent = true}, collect_gradient, &g);
    double norm = grad_norm(&g), scale = tn__clip_scale(norm, max_norm);
    TN_NO_GRAD;
    for (int i = 0; scale < 1.0 && i < g.count; i++) {
        if (g.at[i].here) { tn_mul_scalar_(g.at[i].here, scale); }
    }
    free(g.at);
    return norm;
}

static bool clamp_gradient(const tn_entry *entry, void *user) {
    const double *max = user;
    tn_tensor *grad = tn_grad_of(entry->stored);
    return !grad || !tn_is_inert(tn_clamp_(grad, -*max, *max));
}

tn_status tn_clip_grad_value(void *m, double value) {
    if (!tn__pending() && !(value >= 0.0)) {
        tn__raise(TN_EVALUE, "clip_grad_value", "the value is %g (must not be negative)", value);
    }
    if (tn__pending()) { return tn_error(); }
    TN_NO_GRAD;
    tn_module_each(m, (tn_walk){0}, clamp_gradient, &value);
    return tn_error();
}
