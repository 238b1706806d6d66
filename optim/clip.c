/* Clipping by the norm of all gradients together (Pascanu et al. 2013, arXiv:1211.5063).
 *
 * The sum of squares is taken by a kernel for each gradient and added in double, in order of registration: the same bits in
 * every run. Clipping before a step costs nothing more: the step multiplies each gradient as it reads it.
 */
#include "optim/optim.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

/* Sum of squares of one gradient; false after raising. */
static bool sum_squares(const tn_tensor *g, double *sum, const char *operation) {
    tn_desc x = {.data = tn__address(g), .dtype = g->dtype, .ndim = g->dims.ndim},
            y = {.data = sum, .dtype = TN_F64, .ndim = x.ndim};
    for (int i = 0; i < x.ndim; i++) {
        x.size[i] = g->dims.size[i];
        x.stride[i] = g->stride[i];
        y.size[i] = y.stride[i] = 1;
    }
    tn_device device = g->storage->device;
    const tn_backend *kernels = tn_backend_of(device);
    tn_status status = kernels->reduce(tn_context_of(device), TN_RED_SUM_SQUARES, &y, &x);
    if (status != TN_OK) {
        tn__raise(status, operation,
                  "the %s kernel for the sum of squares of a gradient (%s) failed with %s",
                  kernels->name, tn_dtype_name(g->dtype), tn_status_name(status));
    }
    return status == TN_OK;
}

double tn__grad_norm(tn_tensor *const *grads, int n, const char *operation) {
    double total = 0.0;
    for (int i = 0; i < n; i++) {
        double sum = 0.0;
        if (grads[i] &&
            (!tn__usable(grads[i], operation) || !sum_squares(grads[i], &sum, operation))) {
            return NAN;
        }
        total += sum;
    }
    return sqrt(total);
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

double tn_optim_clip(tn_optim *opt, double max_norm) {
    if (!opt) {
        tn__raise(TN_EVALUE, "optim_clip", "the optimiser is NULL");
        return NAN;
    }
    tn_tensor **grads = may_clip(max_norm, "optim_clip")
                            ? tn__malloc((size_t)opt->item_count * sizeof(*grads))
                            : NULL;
    if (!grads) {
        tn__raise(TN_ENOMEM, "optim_clip", "no memory for %d gradients",
                  opt->item_count); /* an earlier error stays */
        return NAN;
    }
    for (int i = 0; i < opt->item_count; i++) {
        tn_tensor *p = tn__item_param(&opt->items[i]);
        grads[i] = p ? tn_grad_of(p) : NULL;
    }
    double norm = tn__grad_norm(grads, opt->item_count, "optim_clip");
    opt->grad_scale = tn__clip_scale(norm, max_norm);
    free(grads);
    return norm;
}

/* The gradients of a module. */
typedef struct collection {
    tn_tensor **grads;
    int count, room;
    bool failed;
} collection;

static bool collect(const tn_entry *entry, void *user) {
    collection *c = user;
    tn_tensor *g = tn_grad_of(*entry->field);
    if (!g) {
        return true;
    }
    if (c->count == c->room) {
        int room = c->room ? 2 * c->room : 64;
        tn_tensor **grads = tn__realloc(c->grads, (size_t)room * sizeof(*grads));
        if (!grads) {
            c->failed = true;
            tn__raise(TN_ENOMEM, "clip_grad_norm", "no memory for %d gradients", room);
            return false;
        }
        c->grads = grads;
        c->room = room;
    }
    c->grads[c->count++] = g;
    return true;
}

double tn_clip_grad_norm(void *m, double max_norm) {
    if (!may_clip(max_norm, "clip_grad_norm")) {
        return NAN;
    }
    collection c = {0};
    tn_module_each(m, (tn_walk){0}, collect, &c);
    double norm = tn__pending() ? NAN : tn__grad_norm(c.grads, c.count, "clip_grad_norm");
    double scale = tn__clip_scale(norm, max_norm);
    TN_NO_GRAD;
    for (int i = 0; scale < 1.0 && i < c.count; i++) {
        tn_mul_scalar_(c.grads[i], scale);
    }
    free(c.grads);
    return norm;
}
