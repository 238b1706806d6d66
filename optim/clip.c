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

static gradient gradient_of(const tn_tensor *stored, const tn_parts *parts) {
    tn_tensor *g = stored ? tn_grad_of(stored) : NULL;
    return (gradient){g && tn_count(g) > 0 ? g : NULL, parts};
}

static bool is_on(const gradient *g, tn_device device) {
    return g->here && tn__same_device(g->here->storage->device, device);
}

/* The sums of squares of the gradients on one device into host[i]; the others stay. False after
 * raising. */
static bool sums_on(tn_device device, const gradient *grads, int n, double *host,
                    const char *operation) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *sums = tn_empty_on(device, TN_DIMS(n), TN_F64);
    double *here = tn__malloc_for((size_t)n * sizeof(*here), operation);
    tn_span *spans = tn__malloc_for((size_t)n * sizeof(*spans), operation);
    bool done = here && spans && !tn_is_inert(sums);
    int there = 0;
    for (int i = 0; done && i < n; i++) {
        if (is_on(&grads[i], device)) { spans[there++] = tn__span_of(grads[i].here); }
    }
    done = done && tn__sum_squares(spans, there, sums, operation) &&
           tn_copy_out(tn_narrow(sums, 0, 0, there), here) == TN_OK;
    for (int i = 0, k = 0; done && i < n; i++) {
        if (is_on(&grads[i], device)) { host[i] = here[k++]; }
    }
    free(spans);
    free(here);
    return done;
}

/* Whether an earlier gradient is on the same device as gradient i. */
static bool device_seen(const gradient *grads, int i) {
    for (int k = 0; k < i; k++) {
        if (is_on(&grads[k], grads[i].here->storage->device)) { return true; }
    }
    return false;
}

/* All sums of squares into host[n]; false after raising. */
static bool all_sums(const gradient *grads, int n, double *host, const char *operation) {
    for (int i = 0; i < n; i++) {
        host[i] = 0.0;
        if (grads[i].here && !tn__usable(grads[i].here, operation)) { return false; }
    }
    for (int i = 0; i < n; i++) {
        if (grads[i].here && !device_seen(grads, i) &&
            !sums_on(grads[i].here->storage->device, grads, n, host, operation)) {
            return false;
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
static bool list_levels(levels *l, const gradient *grads, int n, const char *operation) {
    size_t count = 1;
    for (int i = 0; i < n; i++) {
        for (const tn_parts *p = grads[i].parts; p; p = p->next) {
            count++;
        }
    }
    *l = (levels){.at = tn__malloc_for(count * sizeof(*l->at), operation)};
    for (int i = 0; l->at && i < n; i++) {
        add_chain(l, grads[i].parts);
    }
    return l->at != NULL;
}

/* The sum of all sums[n]. Level by level: a node waits until all that lead to it have been added,
 * so that each group sums once, however different the chains of its ranks are before it (stages of
 * a pipeline). Parameters without a gradient are included, and absent ones: every rank takes part
 * in the same sums, even if all that it has is frozen. False after raising. */
static bool total_sum(const gradient *grads, const double *sums, int n, double *total,
                      const char *operation) {
    levels l;
    if (!list_levels(&l, grads, n, operation)) { return false; }
    *total = 0.0;
    for (int i = 0; i < n; i++) {
        level_add(&l, grads[i].parts, sums[i], total);
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

/* The square root of the sum of squares of n gradients, in double and in order. NaN after raising.
 */
static double grad_norm(const gradient *grads, int n, const char *operation) {
    double *sums = tn__malloc_for((size_t)(n > 0 ? n : 1) * sizeof(*sums), operation), total;
    if (!sums) { return NAN; }
    bool done = all_sums(grads, n, sums, operation) && total_sum(grads, sums, n, &total, operation);
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
    gradient *grads = tn__malloc_for((size_t)opt->item_count * sizeof(*grads), operation);
    if (!grads) { return NAN; }
    for (int i = 0; i < opt->item_count; i++) {
        grads[i] = gradient_of(tn__item_param(&opt->items[i]), opt->items[i].entry.parts);
    }
    double norm = grad_norm(grads, opt->item_count, operation);
    free(grads);
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

/* Whether the whole norm is of gradients here, on one device, and that device steps all of them. */
static bool stays_there(const tn_optim *opt, tn_device *device) {
    bool any = false, all = true;
    for (int i = 0; i < opt->item_count && all; i++) {
        const tn__item *item = &opt->items[i];
        gradient g = gradient_of(tn__item_param(item), item->entry.parts);
        if (g.here && !any) {
            *device = g.here->storage->device;
            any = true;
        }
        all = !g.parts && (!g.here || (is_on(&g, *device) && !tn_is_inert(g.here)));
    }
    return any && all && opt->method->step;
}

/* The norm and the factor of the gradients on the device; inert after raising. */
static tn_tensor *clip_there(tn_optim *opt, tn_device device, double max_norm) {
    tn_tensor *sums = tn_empty_on(device, TN_DIMS(opt->item_count), TN_F64),
              *clip = tn_empty_on(device, TN_DIMS(2), TN_F64);
    tn_span *spans = tn__malloc_for((size_t)opt->item_count * sizeof(*spans), "optim_clip_later");
    int n = 0;
    for (int i = 0; spans && i < opt->item_count; i++) {
        gradient g = gradient_of(tn__item_param(&opt->items[i]), NULL);
        if (g.here && tn__usable(g.here, "optim_clip_later")) { spans[n++] = tn__span_of(g.here); }
    }
    const tn_backend *kernels = tn_backend_of(device);
    bool done = !tn__pending() && tn__sum_squares(spans, n, sums, "optim_clip_later");
    tn_status status = TN_OK;
    if (done) {
        status = kernels->clip(tn_context_of(device), (const double *)tn__address(sums), n,
                               max_norm, (double *)tn__address(clip));
    }
    free(spans);
    if (status != TN_OK) {
        tn__raise(status, "optim_clip_later", "the %s kernel for clipping failed with %s",
                  kernels->name, tn_status_name(status));
    }
    return tn__pending() ? tn_inert() : clip;
}

tn_tensor *tn_optim_clip_later(tn_optim *opt, double max_norm) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_device device;
    if (!opt || !may_clip(max_norm, "optim_clip_later") ||
        !tn__optim_here(opt, "optim_clip_later") || !stays_there(opt, &device)) {
        double norm = tn_optim_clip(opt, max_norm);
        return tn_return(tn__pending() ? tn_inert() : tn_scalar(norm, TN_F64));
    }
    tn_tensor *clip = clip_there(opt, device, max_norm);
    if (tn_is_inert(clip)) { return clip; }
    tn__optim_scale(opt, 1.0);
    opt->clip = tn_keep(clip);
    return tn_return(tn_select(clip, 0, 0));
}

/* The gradients of a module, one for each parameter, including absent ones. */
typedef struct collection {
    gradient *grads;
    int count;
    int64_t capacity;
} collection;

static bool collect_gradient(const tn_entry *entry, void *user) {
    collection *c = user;
    if (!tn__grow(&c->grads, c->count + 1, &c->capacity, sizeof(*c->grads), "clip_grad_norm")) {
        return false;
    }
    c->grads[c->count++] = gradient_of(entry->stored, entry->parts);
    return true;
}

double tn_clip_grad_norm(void *m, double max_norm) {
    if (!may_clip(max_norm, "clip_grad_norm")) { return NAN; }
    collection c = {0};
    tn_module_each(m, (tn_walk){.absent = true}, collect_gradient, &c);
    double norm = tn__pending() ? NAN : grad_norm(c.grads, c.count, "clip_grad_norm");
    double scale = tn__clip_scale(norm, max_norm);
    TN_NO_GRAD;
    for (int i = 0; scale < 1.0 && i < c.count; i++) {
        if (c.grads[i].here) { tn_mul_scalar_(c.grads[i].here, scale); }
    }
    free(c.grads);
    return norm;
}

static bool clamp_gradient(const tn_entry *entry, void *user) {
    const double *most = user;
    tn_tensor *g = gradient_of(entry->stored, NULL).here;
    return !g || !tn_is_inert(tn_clamp_(g, -*most, *most));
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
