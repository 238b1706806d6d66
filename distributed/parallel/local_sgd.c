/* Local SGD and DiLoCo: ranks train separately and become the same again now and then.
 *
 * A synchronisation goes through the parameters in flat buffers of up to 25 MiB, so that a slow
 * network carries few large messages:
 *
 *     mean    = the mean of all ranks' weights
 *     change  = last - mean                       the outer gradient; `last` is what all began with
 *     moment  = momentum moment + change
 *     weights = last - lr (change + momentum moment)                      with nesterov
 *     weights = last - lr moment                                          without
 *
 * With lr 1 and momentum 0 this is the mean, which is then taken as it is: to the bit, and without
 * keeping anything.
 */
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/base.h"
#include "nn/layer.h"
#include "ops/dims.h"
#include "tensor/recipe.h"
#include "tern/sys/device.h"
#include "tern/sys/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER_BYTES = 25 << 20 };

struct tn_local_sgd {
    tn_module base;
    tn_local_sgd_options options;
    tn_module *model;
    tn_group *group;
    tn_local_sgd_stats stats;
    tn_tensor *steps;    /* (1) i64, a buffer on the CPU: since the last synchronisation */
    tn_tensor ***fields; /* [count]: where the parameters are */
    int count;
    int64_t capacity;
    /* [count], buffers; NULL unless there is an outer optimiser. Moments are at least f32. */
    tn_tensor **last, **moments;
};

static bool has_outer(const tn_local_sgd *l) {
    return l->options.lr != 1.0 || l->options.momentum != 0.0;
}

/* ---- The outer step -------------------------------------------------------------------------- */

/* The change becomes the step that is subtracted. */
static tn_tensor *with_momentum(const tn_local_sgd *l, int i, tn_tensor *change) {
    double momentum = l->options.momentum;
    if (momentum == 0.0) { return change; }
    tn_tensor *moment = l->moments[i];
    tn_add_(tn_mul_scalar_(moment, momentum), change);
    return l->options.nesterov ? tn_add_scaled_(change, moment, momentum) : moment;
}

static void step_parameter(const tn_local_sgd *l, int i, tn_tensor *mean) {
    tn_tensor *weight = *l->fields[i];
    if (!has_outer(l)) {
        tn_copy_(weight, mean);
        return;
    }
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(weight));
    tn_tensor *last = tn_copy(tn_cast(l->last[i], wide));
    tn_tensor *step = with_momentum(l, i, tn_sub(last, tn_cast(mean, wide)));
    tn_copy_(weight, tn_add_scaled_(last, step, -l->options.lr));
    tn_copy_(l->last[i], weight);
}

/* ---- Synchronising --------------------------------------------------------------------------- */

/* The end of the parameters from `first` that share a flat buffer. */
static int buffer_end(const tn_local_sgd *l, int first) {
    const tn_tensor *begin = *l->fields[first];
    int64_t size = (int64_t)tn_dtype_size(tn_dtype_of(begin)), bytes = tn_count(begin) * size;
    int end = first + 1;
    for (; end < l->count; end++) {
        const tn_tensor *t = *l->fields[end];
        bytes += tn_count(t) * size;
        if (tn_dtype_of(t) != tn_dtype_of(begin) ||
            !tn__same_device(tn_device_of(t), tn_device_of(begin)) || bytes > BUFFER_BYTES) {
            break;
        }
    }
    return end;
}

static tn_tensor *flatten_weights(const tn_local_sgd *l, int first, int end) {
    tn_tensor **parts = tn__calloc_for((size_t)(end - first), sizeof(*parts), "local_sgd");
    for (int i = first; parts && i < end; i++) {
        parts[i - first] = tn_reshape(tn_detach(*l->fields[i]), TN_DIMS(-1));
    }
    tn_tensor *flat = parts ? tn_cat(parts, end - first, 0) : NULL;
    free(parts);
    return flat;
}

/* Adds the squared distance of the weights from their mean to *drift. */
static void synchronise_buffer(tn_local_sgd *l, int first, int end, double *drift) {
    TN_SCOPE;
    tn_tensor *flat = flatten_weights(l, first, end);
    if (tn__pending() || tn__parallel_wait(tn_all_reduce(l->group, flat, TN_MEAN)) != TN_OK) {
        return;
    }
    l->stats.sent += tn_count(flat) * (int64_t)tn_dtype_size(tn_dtype_of(flat));
    tn_tensor *own = flatten_weights(l, first, end);
    tn_dtype wide = tn__wide_dtype(tn_dtype_of(flat)); /* squares of f16 soon overflow or vanish */
    tn_tensor *apart = tn_sub(tn_cast(flat, wide), tn_cast(own, wide));
    *drift += tn_item(tn_sum_all(tn_square(apart)));
    int64_t at = 0;
    for (int i = first; i < end; i++) {
        tn_tensor *weight = *l->fields[i];
        tn_tensor *mean = tn_narrow(flat, 0, at, tn_count(weight));
        at += tn_count(weight);
        step_parameter(l, i, tn_reshape(mean, tn_shape(weight)));
    }
}

static void synchronise_all(tn_local_sgd *l) {
    TN_SCOPE;
    TN_NO_GRAD;
    double began = tn_flight_now(), drift = 0.0;
    for (int first = 0; first < l->count && !tn__pending();) {
        int end = buffer_end(l, first);
        synchronise_buffer(l, first, end, &drift);
        first = end;
    }
    if (!tn__pending()) {
        tn__parallel_share(l->model, l->group, 0, false);
        tn_fill_(l->steps, 0.0);
        l->model->ranks_differ = false;
        tn_flight_mark("local SGD", began);
    }
    l->stats.rounds++;
    l->stats.drift = sqrt(drift);
    l->stats.waiting += tn_flight_now() - began;
}

/* Ends the group after an error, so that no rank waits for this one. */
static tn_status leave_call(tn_local_sgd *l) {
    if (tn__pending()) { tn_group_abort(l->group, tn_error_message()); }
    return tn_error();
}

tn_status tn_local_sgd_step(tn_local_sgd *l) {
    if (!l) { return tn__raise(TN_EVALUE, "local_sgd", "it is NULL"); }
    TN_SCOPE;
    double steps = tn_item(l->steps) + 1.0;
    if (!tn__pending()) {
        tn_fill_(l->steps, steps);
        l->model->ranks_differ = true;
    }
    if (!tn__pending() && steps >= (double)l->options.every) { synchronise_all(l); }
    return leave_call(l);
}

tn_status tn_local_sgd_sync(tn_local_sgd *l) {
    if (!l) { return tn__raise(TN_EVALUE, "local_sgd", "it is NULL"); }
    if (!tn__pending() && tn_item(l->steps) > 0.0) { synchronise_all(l); }
    return leave_call(l);
}

tn_local_sgd_stats tn_local_sgd_statistics(const tn_local_sgd *l) {
    return l ? l->stats : (tn_local_sgd_stats){0};
}

/* ---- Making ---------------------------------------------------------------------------------- */

tn_local_sgd_options tn_local_sgd_defaults(void) {
    return (tn_local_sgd_options){.every = 16, .lr = 1.0, .from_defaults = true};
}

tn_local_sgd_options tn_diloco_defaults(void) {
    return (tn_local_sgd_options){
        .every = 500, .lr = 0.7, .momentum = 0.9, .nesterov = true, .from_defaults = true};
}

static bool good_options(const tn_local_sgd_options *o) {
    static const char name[] = "local_sgd";
    tn__options_made(o->from_defaults, name, "tn_local_sgd");
    if (tn__pending()) { return false; }
    if (o->every < 1 || o->every > INT64_C(1) << 53) {
        tn__raise(TN_EVALUE, name, "every %lld steps (must be at least 1)", (long long)o->every);
    } else if (!(o->lr > 0.0 && isfinite(o->lr))) {
        tn__raise(TN_EVALUE, name, "lr is %g (must be above 0)", o->lr);
    } else if (!(o->momentum >= 0.0 && o->momentum < 1.0)) {
        tn__raise(TN_EVALUE, name, "momentum is %g (must be in [0, 1))", o->momentum);
    } else if (o->nesterov && o->momentum == 0.0) {
        tn__raise(TN_EVALUE, name, "nesterov needs a momentum");
    }
    return !tn__pending();
}

static bool check_whole(const tn_entry *entry, void *user) {
    static const char name[] = "local_sgd";
    if (entry->absent || entry->stored != *entry->field ||
        tn_dims_count(entry->layout.whole) != tn_count(entry->stored)) {
        tn__raise(TN_EUNSUPPORTED, name, "the parameter %s is not whole on this rank", entry->path);
    } else {
        tn__elements_made(*entry->field, entry->path, name);
    }
    return !tn__pending();
}

/* Ends tn__agree_begin. False after raising on all ranks. */
static bool agree_to_start(tn_module *m, tn_group *g, const tn_local_sgd_options *o) {
    if (tn_group_rank(g) < 0) {
        tn__raise(TN_EVALUE, "local_sgd", "this rank is not a member of group %s",
                  tn_group_name(g));
    }
    char text[128];
    snprintf(text, sizeof(text), "every %lld\nlr %.17g\nmomentum %.17g\nnesterov %d",
             (long long)o->every, o->lr, o->momentum, o->nesterov);
    if (!tn__pending()) { tn_module_each(m, (tn_walk){.absent = true}, check_whole, NULL); }
    return tn__parallel_agree(m, g, text, "local_sgd") == TN_OK;
}

static bool add_field(const tn_entry *entry, void *user) {
    tn_local_sgd *l = user;
    if (!tn_requires_grad(*entry->field)) { return true; }
    if (!tn__grow(&l->fields, l->count + 1, &l->capacity, sizeof(*l->fields), "local_sgd")) {
        return false;
    }
    l->fields[l->count++] = entry->field;
    return true;
}

static bool list_fields(tn_local_sgd *l) {
    tn_module_each(l->model, (tn_walk){0}, add_field, l);
    l->last = tn__calloc_for((size_t)l->count + 1, sizeof(*l->last), "local_sgd");
    l->moments = tn__calloc_for((size_t)l->count + 1, sizeof(*l->moments), "local_sgd");
    return !tn__pending();
}

/* Registers the outer state: "steps", and by the number of the parameter "last.0", "moment.0". */
static void add_buffers(tn_local_sgd *l) {
    TN_SCOPE;
    TN_NO_GRAD;
    {
        TN__ON_CPU;
        tn_module_buffer(l, "steps", &l->steps, tn_zeros(TN_DIMS(1), TN_I64));
    }
    for (int i = 0; i < l->count && has_outer(l) && !tn__pending(); i++) {
        tn_tensor *weight = *l->fields[i];
        char name[TN_MODULE_NAME];
        snprintf(name, sizeof(name), "last.%d", i);
        tn_module_buffer(l, name, &l->last[i], tn_copy(tn_detach(weight)));
        if (l->options.momentum > 0.0) {
            snprintf(name, sizeof(name), "moment.%d", i);
            tn_tensor *zeros =
                tn_zero_(tn_copy(tn_cast(tn_detach(weight), tn__wide_dtype(tn_dtype_of(weight)))));
            tn_module_buffer(l, name, &l->moments[i], zeros);
        }
    }
}

static void finish_lists(tn_module *m) {
    tn_local_sgd *l = (tn_local_sgd *)m;
    free(l->fields);
    free(l->last);
    free(l->moments);
}

static const tn_field local_sgd_fields[] = {
    TN_FIELD_OPTION(tn_local_sgd, every),
    TN_FIELD_OPTION(tn_local_sgd, lr),
    TN_FIELD_OPTION(tn_local_sgd, momentum),
    TN_FIELD_OPTION(tn_local_sgd, nesterov),
    {0},
};

tn_local_sgd *tn_local_sgd_new(void *m, tn_group *g, tn_local_sgd_options o) {
    if (!tn__agree_begin(g, "local_sgd")) { return NULL; }
    tn_module *model = good_options(&o) ? tn__module_of(m, "local_sgd") : NULL;
    if (!agree_to_start(model, g, &o)) { return NULL; }
    tn_local_sgd *l = NULL;
    if (tn__parallel_share(model, g, 0, true) == TN_OK) {
        l = tn_module_new(sizeof(*l), "local_sgd", tn__no_forward);
    }
    if (l) {
        l->base.finish = finish_lists;
        l->base.fields = local_sgd_fields;
        l->options = o;
        l->model = model;
        l->group = g;
        if (list_fields(l)) { add_buffers(l); }
    }
    if (tn__pending()) {
        tn_module_free(l);
        l = NULL;
        tn_group_abort(g, tn_error_message());
    }
    return l;
}
