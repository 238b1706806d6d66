/* The step: one pass of the backend's kernel over all parameters, gradients and state; if there is
 * no such kernel, the method's reference for each parameter.
 *
 * First everything is checked (fields, gradients, what others have changed); only if everything is
 * right does the first weight change. Parameters of one group that are at the same step make one
 * kernel call; usually that is a whole group.
 */
#include "optim/optim.h"

#include "autograd/leaf.h"
#include "nn/misuse.h"
#include "profile/work.h"
#include "tern/sys/device.h"

#include <string.h>

/* ---- Checking -------------------------------------------------------------------------------- */

static const char *gone_reason(const tn__item *item) {
    return !item->lists->module               ? "its module was finished"
           : tn__module_is_valid(item->lists) ? "its module's field is NULL"
                                              : "its module has moved";
}

/* The tensor stored now: another may have replaced the one before. NULL after raising. */
static tn_tensor *current_param(tn_optim *opt, tn__item *item) {
    tn_tensor *p = tn__item_param(item), *old = item->param;
    if (p == old) { return tn__usable(p, "optim_step") ? p : NULL; }
    if (!p) {
        tn__raise(TN_ESTATE, "optim_step", "%s is gone: %s", item->entry.path, gone_reason(item));
        return NULL;
    }
    if (!tn__usable(p, "optim_step")) { return NULL; }
    if (p->dtype != old->dtype || tn_count(p) != tn_count(old) || !tn_is_contiguous(p)) {
        tn__raise(TN_ESTATE, "optim_step",
                  "%s is now %s %s but the optimiser was made for %s %s (shard and cast first, "
                  "then make the optimiser)",
                  item->entry.path, tn_dtype_name(p->dtype), tn_shape_text(p),
                  tn_dtype_name(old->dtype), tn_shape_text(old));
        return NULL;
    }
    if (!tn__same_device(p->storage->device, old->storage->device)) {
        tn__raise(TN_ESTATE, "optim_step",
                  "%s is now on %s but the optimiser was made for %s (move first, then make the "
                  "optimiser)",
                  item->entry.path, tn_device_text(p->storage->device),
                  tn_device_text(old->storage->device));
        return NULL;
    }
    for (int i = 0; i < opt->item_count; i++) {
        if (opt->items[i].param == p) {
            tn__raise(TN_ESTATE, "optim_step",
                      "%s has become the same tensor as %s (tie first, then make the optimiser)",
                      item->entry.path, opt->items[i].entry.path);
            return NULL;
        }
    }
    item->param = tn_keep(p);
    /* as if it had changed: the master copy must follow */
    item->param_seen = p->version->value - 1;
    tn_release(old);
    return p;
}

/* Finds the gradient; false after raising. item->grad is NULL when there is none. */
static bool item_check(tn_optim *opt, tn__item *item) {
    item->done = true;
    item->grad = item->copy = NULL;
    if (item->entry.absent) { return true; }
    tn_tensor *p = current_param(opt, item), *g = p ? tn_grad_of(p) : NULL;
    if (!p || !g) { return p != NULL; }
    if (!tn__usable(g, "optim_step")) { return false; }
    if (tn_count(g) != tn_count(p)) {
        return tn__fail(TN_ESHAPE, "optim_step", "%s is %s but its gradient is %s",
                        item->entry.path, tn_shape_text(p), tn_shape_text(g));
    }
    item->grad = tn_contiguous(g);
    item->count = item->steps ? (int64_t)tn_item(item->steps) + 1 : 1;
    item->done = false;
    return !tn_is_inert(item->grad);
}

/* Whether the parameter is what its master copy rounds to: it was changed and restored
 * (tn_average_end), and the copy is more precise. */
static bool is_rounding(const tn__item *item) {
    TN_SCOPE;
    tn_tensor *rounded = tn_cast(item->master, item->param->dtype);
    return tn_equal(tn_reshape(rounded, item->param->dims), item->param);
}

/* Weights loaded or set since the last step replace the master copy, unless that was loaded as
 * well. */
static bool follow_param(const tn__item *item) {
    bool param_changed = item->param->version->value != item->param_seen;
    bool master_changed = item->master && item->master->version->value != item->master_seen;
    if (item->master && param_changed && !master_changed && !is_rounding(item)) {
        return !tn_is_inert(tn_copy_(item->master, item->param));
    }
    return !tn__pending();
}

/* ---- Stepping -------------------------------------------------------------------------------- */

/* To a kernel a parameter's copy for computing is the parameter, and the parameter its master copy.
 */
static tn_optim_span item_span(tn__item *item) {
    tn_tensor *copy = item->copy = item->master ? NULL : tn__low_precision_copy(item->param);
    tn_tensor *param = copy ? copy : item->param, *master = copy ? item->param : item->master;
    tn_optim_span span = {
        .param = tn__address(param),
        .param_dtype = param->dtype,
        .grad = tn__address(item->grad),
        .grad_dtype = item->grad->dtype,
        .master = master ? (float *)tn__address(master) : NULL,
        .count = tn_count(item->param),
    };
    for (int i = 0; i < TN_SPAN_STATES; i++) {
        span.state[i] = item->state[i] ? (float *)tn__address(item->state[i]) : NULL;
    }
    return span;
}

/* The call for this parameter and all that step like it. */
static tn_optim_call call_like(const tn_optim *opt, const tn__item *like) {
    const tn_optim_group_options *group = opt->groups[like->group];
    return (tn_optim_call){
        .options = opt->options,
        .lr = opt->lr * group->lr_scale,
        .weight_decay = group->weight_decay,
        .grad_scale = opt->grad_scale,
        .step = like->count,
        .entry = &like->entry,
    };
}

/* For the profiler: parameters, states and master copies are read and written. */
static bool profile_step(tn__span *span, const tn_optim *opt, const tn__item *like, int spans) {
    double bytes = 0, count = 0;
    for (int i = 0; i < spans; i++) {
        const tn_optim_span *s = &opt->spans[i];
        size_t state = s->param_dtype == TN_F64 ? sizeof(double) : sizeof(float);
        size_t each = 2 * tn_dtype_size(s->param_dtype) + tn_dtype_size(s->grad_dtype) +
                      (s->master ? 2 * sizeof(float) : 0);
        for (size_t k = 0; k < sizeof(s->state) / sizeof(*s->state); k++) {
            each += s->state[k] ? 2 * state : 0;
        }
        count += (double)s->count;
        bytes += (double)s->count * (double)each;
    }
    if (!tn__span_begin(span, TN__SPAN_OP, opt->method->name)) { return false; }
    tn__profile_work(span, TN_F32, bytes, count);
    return true;
}

/* One call of the kernel for the first `spans` of opt->spans. */
static tn_status run_kernel(const tn_optim *opt, const tn__item *like, const tn_optim_call *call,
                            int spans) {
    tn_device device = like->param->storage->device;
    const tn_backend *kernels = tn_backend_of(device);
    tn_step step = {.lr = call->lr,
                    .add = call->weight_decay,
                    .shrink = 1.0,
                    .grad_scale = call->grad_scale,
                    .clip = opt->clip ? (const double *)tn__address(opt->clip) + 1 : NULL};
    opt->method->step(call, &step);
    if ((unsigned)step.rule > TN_STEP_LION) {
        return tn__raise(TN_EVALUE, "optim_step", "%s has no rule %d", opt->method->name,
                         (int)step.rule);
    }
    tn__span span;
    bool seen = tn__profiled() && profile_step(&span, opt, like, spans);
    tn_status status = kernels->step(tn_context_of(device), opt->spans, spans, &step);
    if (seen) { tn__profile_end(&span, device); }
    if (status != TN_OK) {
        tn__raise(status, "optim_step",
                  "the %s kernel for %s failed with %s (first parameter: %s, %s)", kernels->name,
                  opt->method->name, tn_status_name(status), like->entry.path,
                  tn_dtype_name(like->param->dtype));
    }
    return status;
}

/* The same for one parameter, using operations. */
static tn_status run_reference(const tn_optim *opt, const tn__item *item,
                               const tn_optim_call *call) {
    TN_SCOPE;
    tn_dims dims = tn__reference_dims(&item->entry, tn_shape(item->param));
    tn_tensor *p = tn_reshape(item->master ? item->master : item->param, dims);
    tn_tensor *g =
        tn_mul_scalar(tn_cast(tn_reshape(item->grad, dims), tn_dtype_of(p)), call->grad_scale);
    tn_tensor *state[TN_OPTIM_STATES] = {NULL};
    for (int i = 0; i < TN_OPTIM_STATES; i++) {
        tn_tensor *kept = item->state[i];
        state[i] = kept && !item->whole_state[i] ? tn_reshape(kept, dims) : kept;
    }
    opt->method->reference(call, p, g, state);
    if (item->master) { tn_copy_(tn_reshape(item->param, dims), p); }
    return tn_error();
}

/* Whether two parameters can be stepped by one kernel call. */
static bool items_alike(const tn__item *a, const tn__item *b) {
    return a->group == b->group && a->count == b->count &&
           tn__same_device(a->param->storage->device, b->param->storage->device);
}

static void note_step(tn__item *item) {
    tn__touch(item->param);
    item->param_seen = item->param->version->value;
    if (item->copy) { tn__low_precision_filled(item->param); }
    if (item->master) {
        tn__touch(item->master);
        item->master_seen = item->master->version->value;
    }
    if (item->steps) { *(int64_t *)tn_data_mut(item->steps) = item->count; }
    item->done = true;
}

/* Steps `first` and, with a kernel, everything like it that is not done yet. */
static tn_status step_alike(tn_optim *opt, tn__item *first) {
    tn__item *end = opt->items + opt->item_count;
    tn_optim_call call = call_like(opt, first);
    if (!opt->method->step) {
        tn_status done = run_reference(opt, first, &call);
        if (done == TN_OK) { note_step(first); }
        return done;
    }
    int spans = 0;
    for (tn__item *item = first; item < end; item++) {
        /* A rank may have no element of a parameter; its count of steps is that of the others. */
        if (!item->done && items_alike(first, item) && tn_count(item->param) > 0) {
            opt->spans[spans++] = item_span(item);
        }
    }
    tn_status status = spans > 0 ? run_kernel(opt, first, &call, spans) : TN_OK;
    for (tn__item *item = first; status == TN_OK && item < end; item++) {
        if (!item->done && items_alike(first, item)) { note_step(item); }
    }
    return status;
}

tn_status tn_optim_step(tn_optim *opt) {
    if (!opt || tn__pending()) {
        return tn__raise(tn__pending() ? tn_error() : TN_EVALUE, "optim_step",
                         "the optimiser is NULL");
    }
    if (!tn__optim_here(opt, "optim_step")) { return tn_error(); }
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < opt->item_count; i++) {
        if (!item_check(opt, &opt->items[i])) { return tn_error(); }
    }
    for (int i = 0; i < opt->item_count; i++) {
        if (!opt->items[i].done && !follow_param(&opt->items[i])) { return tn_error(); }
    }
    for (int i = 0; i < opt->item_count; i++) {
        if (!opt->items[i].done && step_alike(opt, &opt->items[i]) != TN_OK) { return tn_error(); }
    }
    tn__optim_scale(opt, 1.0);
    opt->steps++;
    return TN_OK;
}

void tn_optim_zero_grad(tn_optim *opt) {
    if (!opt || !tn__optim_here(opt, "optim_zero_grad")) { return; }
    for (int i = 0; i < opt->item_count; i++) {
        tn_tensor *p = tn__item_param(&opt->items[i]);
        if (p) { /* of a part, and of the whole, where gradients stay until they are scattered */
            tn_zero_grad(p);
            tn_zero_grad(tn__entry_tensor(&opt->items[i].entry));
        }
    }
    tn__optim_scale(opt, 1.0);
}
