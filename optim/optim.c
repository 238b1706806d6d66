/* Optimisers: making one from a descriptor (sgd.c, adam.c, …), its groups, its state by name. The
 * step itself is in step.c.
 *
 * State is made here, at construction, on the parameter's device: f32, f64 for f64 parameters; bf16
 * and f16 parameters get an f32 master copy, which is what steps change (the parameter is its
 * rounding). The number of steps is read on the host at every step, so it stays there.
 */
#include "optim/optim.h"

#include "core/buffer.h"
#include "core/memory.h"
#include "tensor/recipe.h"
#include "tensor/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TN__ALIVE_LIST(optimisers, "optimiser");

bool tn__optim_here(const tn_optim *opt, const char *operation) {
    return tn__alive_is(&optimisers, opt, operation);
}

/* ---- One parameter --------------------------------------------------------------------------- */

static void item_finish(tn__item *item) {
    free((char *)item->entry.path);
    __atomic_fetch_sub(&item->lists->stepped, 1, __ATOMIC_RELAXED);
    tn__module_lists_release(item->lists);
    tn_release(item->param);
    tn_release(item->steps);
    for (int i = 0; i < TN_OPTIM_STATES; i++) {
        tn_release(item->state[i]);
    }
    tn_release(item->master);
}

/* A state tensor that the optimiser keeps; NULL after raising. */
static tn_tensor *state_keep(tn_tensor *t) {
    return tn_is_inert(t) ? NULL : tn_keep(t);
}

/* Makes state i of a parameter, if it has one; false after raising. */
static bool item_add_state(const tn_optim *opt, tn__item *item, int i) {
    const tn_optim_method *method = opt->method;
    const tn_tensor *p = item->param;
    tn_state_kind kind = TN_STATE_LIKE_PARAM;
    tn_dims dims = item->entry.layout.whole;
    if (method->state_kind) { kind = method->state_kind(opt->options, i, &item->entry, &dims); }
    if (kind == TN_STATE_NONE) { return true; }
    item->whole_state[i] = kind == TN_STATE_WHOLE;
    tn_dtype dtype = p->dtype == TN_F64 ? TN_F64 : TN_F32;
    item->state[i] = state_keep(
        tn_zero_(tn_empty_on(p->storage->device, kind == TN_STATE_WHOLE ? dims : p->dims, dtype)));
    if (item->state[i] && !item->steps) {
        item->steps = state_keep(tn_zero_(tn_empty_on(tn_cpu(), TN_DIMS(), TN_I64)));
    }
    return item->state[i] && item->steps;
}

/* False after raising. */
static bool item_make_state(const tn_optim *opt, tn__item *item) {
    TN_SCOPE;
    TN_NO_GRAD;
    const tn_tensor *p = item->param;
    for (int i = 0; i < TN_OPTIM_STATES && opt->method->states[i]; i++) {
        if (!item_add_state(opt, item, i)) { return false; }
    }
    if (p->dtype == TN_BF16 || p->dtype == TN_F16) {
        item->master = state_keep(tn_cast(item->param, TN_F32));
        if (!item->master) { return false; }
        item->master_seen = item->master->version->value;
    }
    item->param_seen = p->version->value;
    return true;
}

/* Checks that sharing is explicit: the same tensor under two names would be stepped twice. */
static bool item_seen(const tn_optim *opt, const tn_entry *entry) {
    for (int i = 0; i < opt->item_count; i++) {
        if (opt->items[i].param == entry->stored) {
            tn__raise(TN_EVALUE, opt->method->name,
                      "%s and %s are the same tensor (share it with tn_module_tie)",
                      opt->items[i].entry.path, entry->path);
            return true;
        }
    }
    return false;
}

/* Adds a parameter that requires a gradient; false after raising. */
static bool item_add(const tn_entry *entry, void *user) {
    tn_optim *opt = user;
    tn_tensor *p = entry->stored;
    if (!tn_requires_grad(p)) { return true; }
    if (!entry->absent && !tn__elements_made(p, entry->path, opt->method->name)) { return false; }
    if (!tn_is_contiguous(p)) {
        return tn__fail(TN_EVALUE, opt->method->name, "%s is not contiguous (parameters must be)",
                        entry->path);
    }
    if (item_seen(opt, entry) || !tn__grow(&opt->items, opt->item_count + 1, &opt->item_capacity,
                                           sizeof(*opt->items), opt->method->name)) {
        return false;
    }
    tn__item *item = &opt->items[opt->item_count];
    *item = (tn__item){.entry = *entry,
                       .lists = tn__module_lists_keep(entry->owner->lists),
                       .param = entry->absent ? NULL : tn_keep(p)};
    item->entry.path = tn__strdup_for(entry->path, opt->method->name);
    __atomic_fetch_add(&item->lists->stepped, 1, __ATOMIC_RELAXED);
    opt->item_count++; /* from here on tn_optim_free releases it */
    if (!item->entry.path) { return false; }
    return entry->absent || item_make_state(opt, item);
}

/* ---- Making and freeing ---------------------------------------------------------------------- */

static int group_add(tn_optim *opt, tn_optim_group_options options) {
    bool fits = tn__grow(&opt->groups, opt->group_count + 1, &opt->group_capacity,
                         sizeof(*opt->groups), opt->method->name);
    tn_optim_group_options *group =
        fits ? tn__calloc_for(1, sizeof(*group), opt->method->name) : NULL;
    if (!group) { return -1; }
    *group = options;
    opt->groups[opt->group_count] = group;
    return opt->group_count++;
}

/* False after raising. */
static bool method_fits(const tn_optim_method *method, const void *options, tn_optim_rates rates) {
    if (!method || !method->name || !method->reference || (method->options_size > 0 && !options)) {
        return tn__fail(TN_EVALUE, method && method->name ? method->name : "optim_new",
                        "an optimiser needs a name, a reference step, and its options");
    }
    for (int i = 0; i < TN_OPTIM_STATES && method->states[i]; i++) {
        const char *name = method->states[i];
        bool taken = strcmp(name, "step") == 0 || strcmp(name, "master") == 0;
        for (int j = 0; j < i; j++) {
            taken = taken || strcmp(name, method->states[j]) == 0;
        }
        if (taken) {
            return tn__fail(TN_EVALUE, method->name,
                            "a state cannot be named \"%s\": the name is taken", name);
        }
    }
    if (!tn__not_negative(rates.lr) || !tn__not_negative(rates.weight_decay)) {
        return tn__fail(TN_EVALUE, method->name,
                        "lr %g, weight decay %g (neither may be negative or infinite)", rates.lr,
                        rates.weight_decay);
    }
    char wrong[200];
    if (!tn__fields_fit(method->fields, options, wrong, sizeof(wrong)) ||
        (method->check && !method->check(options, wrong, sizeof(wrong)))) {
        return tn__fail(TN_EVALUE, method->name, "%s", wrong);
    }
    return true;
}

/* Takes over options, groups and the parameters of m; false after raising. */
static bool optim_fill(tn_optim *opt, void *m, const void *options, tn_optim_rates rates) {
    size_t size = opt->method->options_size;
    opt->options = size > 0 ? tn__malloc_for(size, opt->method->name) : NULL;
    if (size > 0 && !opt->options) { return false; }
    if (size > 0) { memcpy(opt->options, options, size); }
    tn_optim_group_options all = {.lr_scale = 1.0, .weight_decay = rates.weight_decay};
    if (group_add(opt, all) < 0) { return false; }
    tn_module_each(m, (tn_walk){.absent = true}, item_add, opt);
    if (tn__pending()) { return false; }
    if (opt->item_count == 0) {
        return tn__fail(TN_EVALUE, opt->method->name,
                        "the module has no parameter that requires a gradient");
    }
    opt->spans = tn__malloc_for((size_t)opt->item_count * sizeof(*opt->spans), opt->method->name);
    if (!opt->spans) { return false; }
    if (rates.no_decay) {
        tn_optim_group(opt, tn_optim_split(opt, rates.no_decay, NULL))->weight_decay = 0.0;
    }
    return !tn__pending();
}

tn_optim *tn_optim_new(void *m, const tn_optim_method *method, const void *options,
                       tn_optim_rates rates) {
    tn_optim *opt = NULL;
    if (!tn__pending() && method_fits(method, options, rates)) {
        opt = tn__malloc_for(sizeof(*opt), method->name);
    }
    if (!opt) {
        tn_parameters_free(tn__is_parameters(m) ? m : NULL);
        return NULL;
    }
    *opt = (tn_optim){.method = method,
                      .lr = rates.lr,
                      .grad_scale = 1.0,
                      .own_module = tn__is_parameters(m) ? m : NULL};
    tn__alive_begin(&optimisers, opt);
    if (!optim_fill(opt, m, options, rates)) {
        tn_optim_free(opt);
        return NULL;
    }
    return opt;
}

void tn_optim_free(tn_optim *opt) {
    if (!opt || !tn__alive_end(&optimisers, opt, "optim_free")) { return; }
    for (int i = 0; i < opt->item_count; i++) {
        item_finish(&opt->items[i]);
    }
    for (int i = 0; i < opt->group_count; i++) {
        free(opt->groups[i]);
    }
    free(opt->groups);
    free(opt->items);
    free(opt->spans);
    tn_release(opt->clip);
    free(opt->options);
    tn_parameters_free(opt->own_module);
    free(opt);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

/* The group that consists of exactly what `match` chooses; -1: none. */
static int group_of_matches(const tn_optim *opt, tn_match match, void *user) {
    for (int g = 1; g < opt->group_count; g++) {
        bool same = true;
        for (int i = 0; same && i < opt->item_count; i++) {
            same = match(&opt->items[i].entry, user) == (opt->items[i].group == g);
        }
        if (same) { return g; }
    }
    return -1;
}

int tn_optim_split(tn_optim *opt, tn_match match, void *user) {
    if (!opt || !match || tn__pending()) {
        tn__raise(TN_EVALUE, "optim_split", "the %s is NULL", opt ? "match" : "optimiser");
        return -1;
    }
    if (!tn__optim_here(opt, "optim_split")) { return -1; }
    int known = group_of_matches(opt, match, user);
    if (known >= 0) { return known; }
    int added = group_add(opt, *opt->groups[0]), from = -1;
    for (int i = 0; added >= 0 && i < opt->item_count; i++) {
        tn__item *item = &opt->items[i];
        if (match(&item->entry, user)) {
            from = from < 0 ? item->group : from;
            item->group = added;
        }
    }
    if (from > 0) { *opt->groups[added] = *opt->groups[from]; }
    return added;
}

bool tn_match_vectors(const tn_entry *entry, void *user) {
    return entry && entry->layout.whole.ndim < 2;
}

tn_optim_group_options *tn_optim_group(tn_optim *opt, int index) {
    /* returned after an error: writes to it are ignored */
    static _Thread_local tn_optim_group_options nowhere;
    bool here = opt && tn__optim_here(opt, "optim_group");
    if (here && index >= 0 && index < opt->group_count) { return opt->groups[index]; }
    if (here) {
        tn__raise(TN_EINDEX, "optim_group", "group %d of %d", index, opt->group_count);
    } else if (!opt) {
        tn__raise(TN_EVALUE, "optim_group", "the optimiser is NULL");
    }
    nowhere = (tn_optim_group_options){.lr_scale = 1.0};
    return &nowhere;
}

int tn_optim_groups(const tn_optim *opt) {
    return opt && tn__optim_here(opt, "optim_groups") ? opt->group_count : 0;
}

/* ---- Inspecting ------------------------------------------------------------------------------ */

void tn_optim_set_lr(tn_optim *opt, double lr) {
    if (!opt || !tn__optim_here(opt, "optim_set_lr")) { return; }
    if (!tn__not_negative(lr)) {
        tn__raise(TN_EVALUE, "optim_set_lr", "the learning rate is %g", lr);
        return;
    }
    opt->lr = lr;
}

double tn_optim_lr(const tn_optim *opt) {
    return opt && tn__optim_here(opt, "optim_lr") ? opt->lr : NAN;
}

int64_t tn_optim_steps(const tn_optim *opt) {
    return opt && tn__optim_here(opt, "optim_steps") ? opt->steps : 0;
}

void tn_optim_set_steps(tn_optim *opt, int64_t steps) {
    if (opt && steps >= 0 && tn__optim_here(opt, "optim_set_steps")) { opt->steps = steps; }
}

const char *tn_optim_kind(const tn_optim *opt) {
    return opt && tn__optim_here(opt, "optim_kind") ? opt->method->name : "";
}

int tn__optim_group_count(const tn_optim *opt, int group) {
    int count = 0;
    for (int i = 0; i < opt->item_count; i++) {
        count += opt->items[i].group == group;
    }
    return count;
}

/* False when the visitor stops or memory runs out. */
static bool state_visit(const tn__item *item, const char *what, tn_tensor *t, const tn_entry *like,
                        tn__optim_visitor *f, void *user) {
    if (!t || !what) { return true; }
    char *name = tn__asprintf("optim_each", "%s.%s", item->entry.path, what);
    if (!name) { return false; }
    bool more = f(name, t, like, user);
    free(name);
    return more;
}

static bool item_visit(const tn_optim *opt, const tn__item *item, tn__optim_visitor *f,
                       void *user) {
    const tn_entry *like = &item->entry;
    bool more = state_visit(item, "step", item->steps, NULL, f, user);
    for (int i = 0; more && i < TN_OPTIM_STATES; i++) {
        more = state_visit(item, opt->method->states[i], item->state[i],
                           item->whole_state[i] ? NULL : like, f, user);
    }
    return more && state_visit(item, "master", item->master, like, f, user);
}

void tn__optim_each(tn_optim *opt, tn__optim_visitor *f, void *user) {
    bool here = opt && f && tn__optim_here(opt, "optim_each");
    for (int i = 0; here && i < opt->item_count; i++) {
        if (!item_visit(opt, &opt->items[i], f, user)) { return; }
    }
}

/* A visitor of names and tensors only. */
typedef struct plain_visit {
    tn_optim_visitor f;
    void *user;
} plain_visit;

static bool visit_plainly(const char *name, tn_tensor *t, const tn_entry *like, void *user) {
    const plain_visit *v = user;
    return v->f(name, t, v->user);
}

void tn_optim_each(tn_optim *opt, tn_optim_visitor f, void *user) {
    plain_visit v = {f, user};
    tn__optim_each(opt, f ? visit_plainly : NULL, &v);
}
