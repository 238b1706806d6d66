/* Optimisers: making one, its groups, its state by name. The step itself is in step.c.
 *
 * State is made here, at construction, on the parameter's device: f32, f64 for f64 parameters; bf16
 * and f16 parameters get an f32 master copy, which is what steps change (the parameter is its
 * rounding). The number of steps is read on the host at every step, so it stays there.
 */
#include "optim/optim.h"

#include "core/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tn__adam_states[2] = {"exp_avg", "exp_avg_sq"};
const char *const tn__sgd_states[2] = {"momentum_buffer", NULL};

/* ---- Options --------------------------------------------------------------------------------- */

tn_sgd_options tn_sgd_defaults(void) {
    return (tn_sgd_options){.lr = 1e-3};
}

tn_adam_options tn_adam_defaults(void) {
    return (tn_adam_options){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

tn_adamw_options tn_adamw_defaults(void) {
    tn_adamw_options options = tn_adam_defaults();
    options.weight_decay = 1e-2;
    return options;
}

static bool not_negative(double x) {
    return x >= 0.0 && x < INFINITY;
}

static bool sgd_options_fit(const tn_sgd_options *o) {
    if (!not_negative(o->lr) || !not_negative(o->momentum) || !not_negative(o->weight_decay) ||
        !isfinite(o->dampening)) {
        tn__raise(
            TN_EVALUE, "sgd",
            "lr %g, momentum %g, dampening %g, weight decay %g (none may be negative or infinite)",
            o->lr, o->momentum, o->dampening, o->weight_decay);
        return false;
    }
    if (o->nesterov && (o->momentum == 0.0 || o->dampening != 0.0)) {
        tn__raise(TN_EVALUE, "sgd",
                  "nesterov needs momentum (it is %g) and no dampening (it is %g)", o->momentum,
                  o->dampening);
        return false;
    }
    return true;
}

static bool adam_options_fit(const tn_adam_options *o, const char *kind) {
    bool betas = o->beta1 >= 0.0 && o->beta1 < 1.0 && o->beta2 >= 0.0 && o->beta2 < 1.0;
    if (!betas || !not_negative(o->lr) || !not_negative(o->eps) || !not_negative(o->weight_decay)) {
        tn__raise(
            TN_EVALUE, kind,
            "lr %g, beta1 %g, beta2 %g, eps %g, weight decay %g (betas in [0, 1), none negative)",
            o->lr, o->beta1, o->beta2, o->eps, o->weight_decay);
        return false;
    }
    return true;
}

/* ---- One parameter --------------------------------------------------------------------------- */

static void item_finish(tn__item *item) {
    free((char *)item->entry.path);
    tn__module_lists_release(item->lists);
    tn_release(item->param);
    tn_release(item->steps);
    tn_release(item->state[0]);
    tn_release(item->state[1]);
    tn_release(item->master);
}

/* A state tensor that the optimiser keeps; NULL after raising. */
static tn_tensor *keep_new(tn_tensor *t) {
    return tn_is_inert(t) ? NULL : tn_keep(t);
}

/* False after raising. */
static bool make_state(const tn_optim *opt, tn__item *item) {
    TN_SCOPE;
    TN_NO_GRAD;
    const tn_tensor *p = item->param;
    int states = opt->method == TN__ADAM ? 2 : opt->sgd.momentum != 0.0;
    for (int i = 0; i < states; i++) {
        tn_dtype dtype = p->dtype == TN_F64 ? TN_F64 : TN_F32;
        item->state[i] = keep_new(tn_zero_(tn_empty_on(p->storage->device, p->dims, dtype)));
        if (!item->state[i]) {
            return false;
        }
    }
    if (states > 0) {
        item->steps = keep_new(tn_zero_(tn_empty_on(tn_cpu(), TN_DIMS(), TN_I64)));
        if (!item->steps) {
            return false;
        }
    }
    if (p->dtype == TN_BF16 || p->dtype == TN_F16) {
        item->master = keep_new(tn_cast(item->param, TN_F32));
        if (!item->master) {
            return false;
        }
        item->master_seen = item->master->version->value;
    }
    item->param_seen = p->version->value;
    return true;
}

/* Checks that sharing is explicit: the same tensor under two names would be stepped twice. */
static bool seen_before(const tn_optim *opt, const tn_entry *entry) {
    for (int i = 0; i < opt->item_count; i++) {
        if (opt->items[i].param == *entry->field) {
            tn__raise(TN_EVALUE, opt->kind,
                      "%s and %s are the same tensor (share it with tn_module_tie)",
                      opt->items[i].entry.path, entry->path);
            return true;
        }
    }
    return false;
}

static bool grow_items(tn_optim *opt) {
    if (opt->item_count < opt->item_room) {
        return true;
    }
    int room = opt->item_room ? opt->item_room * 2 : 16;
    tn__item *items = tn__realloc(opt->items, (size_t)room * sizeof(*items));
    if (!items) {
        tn__raise(TN_ENOMEM, opt->kind, "no memory for %d parameters", room);
        return false;
    }
    opt->items = items;
    opt->item_room = room;
    return true;
}

/* Adds a parameter that wants a gradient; false after raising. */
static bool add_item(const tn_entry *entry, void *user) {
    tn_optim *opt = user;
    tn_tensor *p = *entry->field;
    if (!tn_requires_grad(p)) {
        return true;
    }
    if (!tn_is_contiguous(p)) {
        tn__raise(TN_EVALUE, opt->kind, "%s is not contiguous (parameters must be)", entry->path);
        return false;
    }
    if (seen_before(opt, entry) || !grow_items(opt)) {
        return false;
    }
    tn__item *item = &opt->items[opt->item_count];
    *item = (tn__item){
        .entry = *entry, .lists = tn__module_lists_keep(entry->owner->lists), .param = tn_keep(p)};
    item->entry.path = tn__strdup(entry->path);
    opt->item_count++; /* from here on tn_optim_free releases it */
    if (!item->entry.path) {
        tn__raise(TN_ENOMEM, opt->kind, "no memory for a name");
        return false;
    }
    return make_state(opt, item);
}

/* ---- Making and freeing ---------------------------------------------------------------------- */

static int add_group(tn_optim *opt, tn_optim_group_options options) {
    tn_optim_group_options **groups =
        tn__realloc(opt->groups, (size_t)(opt->group_count + 1) * sizeof(*groups));
    tn_optim_group_options *group = groups ? tn__malloc(sizeof(*group)) : NULL;
    opt->groups = groups ? groups : opt->groups;
    if (!group) {
        tn__raise(TN_ENOMEM, opt->kind, "no memory for a parameter group");
        return -1;
    }
    *group = options;
    opt->groups[opt->group_count] = group;
    return opt->group_count++;
}

static bool fill(tn_optim *opt, void *m, double weight_decay) {
    if (add_group(opt, (tn_optim_group_options){.lr_scale = 1.0, .weight_decay = weight_decay}) <
        0) {
        return false;
    }
    tn_module_each(m, (tn_walk){0}, add_item, opt);
    if (tn__pending()) {
        return false;
    }
    if (opt->item_count == 0) {
        tn__raise(TN_EVALUE, opt->kind, "the module has no parameter that requires a gradient");
        return false;
    }
    opt->spans = tn__malloc((size_t)opt->item_count * sizeof(*opt->spans));
    if (!opt->spans) {
        tn__raise(TN_ENOMEM, opt->kind, "no memory for %d parameters", opt->item_count);
        return false;
    }
    return true;
}

static tn_optim *optim_new(void *m, tn_optim from, double weight_decay) {
    tn_optim *opt = tn__malloc(sizeof(*opt));
    if (!opt) {
        tn__raise(TN_ENOMEM, from.kind, "no memory for an optimiser");
        return NULL;
    }
    *opt = from;
    opt->grad_scale = 1.0;
    if (!fill(opt, m, weight_decay)) {
        tn_optim_free(opt);
        return NULL;
    }
    return opt;
}

tn_optim *tn_sgd(void *m, tn_sgd_options o) {
    if (tn__pending() || !sgd_options_fit(&o)) {
        return NULL;
    }
    tn_sgd_step step = {.momentum = o.momentum, .dampening = o.dampening, .nesterov = o.nesterov};
    return optim_new(m, (tn_optim){.kind = "sgd", .method = TN__SGD, .sgd = step, .lr = o.lr},
                     o.weight_decay);
}

static tn_optim *adam_new(void *m, const tn_adam_options *o, const char *kind, bool decoupled) {
    if (tn__pending() || !adam_options_fit(o, kind)) {
        return NULL;
    }
    tn_adam_step step = {
        .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .decoupled = decoupled};
    return optim_new(m, (tn_optim){.kind = kind, .method = TN__ADAM, .adam = step, .lr = o->lr},
                     o->weight_decay);
}

tn_optim *tn_adam(void *m, tn_adam_options options) {
    return adam_new(m, &options, "adam", false);
}

tn_optim *tn_adamw(void *m, tn_adamw_options options) {
    return adam_new(m, &options, "adamw", true);
}

void tn_optim_free(tn_optim *opt) {
    if (!opt) {
        return;
    }
    for (int i = 0; i < opt->item_count; i++) {
        item_finish(&opt->items[i]);
    }
    for (int i = 0; i < opt->group_count; i++) {
        free(opt->groups[i]);
    }
    free(opt->groups);
    free(opt->items);
    free(opt->spans);
    free(opt);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

int tn_optim_split(tn_optim *opt, tn_match match, void *user) {
    if (!opt || !match || tn__pending()) {
        tn__raise(TN_EVALUE, "optim_split", "the %s is NULL", opt ? "match" : "optimiser");
        return -1;
    }
    int added = add_group(opt, *opt->groups[0]), from = -1;
    for (int i = 0; added >= 0 && i < opt->item_count; i++) {
        tn__item *item = &opt->items[i];
        if (match(&item->entry, user)) {
            from = from < 0 ? item->group : from;
            item->group = added;
        }
    }
    if (from > 0) {
        *opt->groups[added] = *opt->groups[from];
    }
    return added;
}

bool tn_match_vectors(const tn_entry *entry, void *user) {
    (void)user;
    return entry && entry->global_dims.ndim < 2;
}

tn_optim_group_options *tn_optim_group(tn_optim *opt, int index) {
    return opt && index >= 0 && index < opt->group_count ? opt->groups[index] : NULL;
}

int tn_optim_groups(const tn_optim *opt) {
    return opt ? opt->group_count : 0;
}

/* ---- Looking --------------------------------------------------------------------------------- */

void tn_optim_set_lr(tn_optim *opt, double lr) {
    if (!opt) {
        return;
    }
    if (!not_negative(lr)) {
        tn__raise(TN_EVALUE, "optim_set_lr", "the learning rate is %g", lr);
        return;
    }
    opt->lr = lr;
}

double tn_optim_lr(const tn_optim *opt) {
    return opt ? opt->lr : NAN;
}

int64_t tn_optim_steps(const tn_optim *opt) {
    return opt ? opt->steps : 0;
}

void tn_optim_set_steps(tn_optim *opt, int64_t steps) {
    if (opt && steps >= 0) {
        opt->steps = steps;
    }
}

const char *tn_optim_kind(const tn_optim *opt) {
    return opt ? opt->kind : "";
}

/* False when the visitor stops or memory is out. */
static bool visit(const tn__item *item, const char *what, tn_tensor *t, tn_optim_visitor f,
                  void *user) {
    if (!t || !what) {
        return true;
    }
    size_t room = strlen(item->entry.path) + strlen(what) + 2;
    char *name = tn__malloc(room);
    if (!name) {
        tn__raise(TN_ENOMEM, "optim_each", "no memory for a name");
        return false;
    }
    snprintf(name, room, "%s.%s", item->entry.path, what);
    bool more = f(name, t, user);
    free(name);
    return more;
}

void tn_optim_each(tn_optim *opt, tn_optim_visitor f, void *user) {
    for (int i = 0; opt && f && i < opt->item_count; i++) {
        const tn__item *item = &opt->items[i];
        const char *const *names = opt->method == TN__ADAM ? tn__adam_states : tn__sgd_states;
        if (!visit(item, "step", item->steps, f, user) ||
            !visit(item, names[0], item->state[0], f, user) ||
            !visit(item, names[1], item->state[1], f, user) ||
            !visit(item, "master", item->master, f, user)) {
            return;
        }
    }
}
