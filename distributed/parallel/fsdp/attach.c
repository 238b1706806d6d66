/* Sharding: attaching. Which modules are units, which parameter belongs to which, and what is
 * refused.
 *
 * A parameter belongs to the innermost unit around its module, or to the rest; one with several
 * names to the innermost unit around all of them. So whenever a module of these runs, the
 * parameter's unit runs too. The parameters of a unit that are of one kind become a set.
 *
 * First everything is checked and compared with the other ranks; then set after set is cut, so that
 * a rank holds at most one of them twice. A failure from there on leaves a module without weights,
 * which can only be finished.
 */
#include "autograd/leaf.h"
#include "core/memory.h"
#include "distributed/parallel/fsdp/fsdp.h"
#include "nn/paths.h"
#include "ops/deferred.h"
#include "tern/sys/device.h"
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Units ----------------------------------------------------------------------------------- */

/* Whether a module of this path is a unit. The root is not, nor is a transparent module, whose path
 * is another's. */
static bool is_unit(const tn_fsdp_state *s, const tn_module *m, const char *path) {
    const char *units = s->options.units;
    bool block = strcmp(m->kind, "block") == 0 || tn__ends_with(m->kind, "_block");
    return *path && m->name[0] && (units ? tn__paths_fit(units, path) : block);
}

/* False after raising. */
static bool append_unit(tn_fsdp_state *s, tn_module *m, const char *path) {
    if (!tn__grow(&s->units, s->unit_count + 1, &s->unit_capacity, sizeof(*s->units), "fsdp")) {
        return false;
    }
    char *name = tn__strdup_for(path, "fsdp");
    s->units[s->unit_count++] = (tn__fsdp_unit){.fsdp = s, .module = m, .path = name};
    return name != NULL;
}

static bool add_unit(tn_module *m, const char *path, void *user) {
    tn_fsdp_state *s = user;
    return !is_unit(s, m, path) || append_unit(s, m, path);
}

/* The unit m, or else the nearest around it. */
static tn__fsdp_unit *unit_around(tn_fsdp_state *s, const tn_module *m) {
    for (; m && m != s->base.module; m = m->parent) {
        for (int i = 0; i < s->unit_count; i++) {
            if (s->units[i].module == m) { return &s->units[i]; }
        }
    }
    return tn__fsdp_rest(s);
}

static bool find_units(tn_fsdp_state *s) {
    if (!tn__patterns_used(s->base.module, s->options.units, false, "fsdp", "units") ||
        !tn__patterns_used(s->base.module, s->options.ignore, true, "fsdp", "ignore")) {
        return false;
    }
    tn_module_each_module(s->base.module, add_unit, s);
    if (tn__pending() || !append_unit(s, s->base.module, "")) { return false; }
    for (int i = 0; i < s->unit_count - 1; i++) {
        s->units[i].around = unit_around(s, s->units[i].module->parent);
    }
    return true;
}

/* ---- Parameters ------------------------------------------------------------------------------ */

static bool is_inside(const tn__fsdp_unit *u, const tn__fsdp_unit *outer) {
    while (u && u != outer) {
        u = u->around;
    }
    return u != NULL;
}

/* Whether other stages of a pipeline have the parameter too. */
static bool is_copied(const tn_entry *entry) {
    const tn_parts *p = entry->parts;
    while (p && !p->copied) {
        p = p->next;
    }
    return p != NULL;
}

static tn__fsdp_kind kind_of(const tn_entry *entry) {
    const tn_tensor *t = *entry->field;
    return (tn__fsdp_kind){.dtype = t->dtype,
                           .compute = tn_module_compute_dtype(entry->owner, t->dtype),
                           .grad = t->leaf->grad_dtype,
                           .frozen = !tn_requires_grad(t),
                           .tied = is_copied(entry)};
}

static bool same_kind(const tn__fsdp_kind *a, const tn__fsdp_kind *b) {
    return a->dtype == b->dtype && a->compute == b->compute && a->grad == b->grad &&
           a->frozen == b->frozen && a->tied == b->tied;
}

/* Other hooks on a leaf expect whole gradients, so they are refused. The strategy's own hook is the
 * first if there was none before. */
static bool may_cut(const tn__fsdp_param *p) {
    const tn_leaf *leaf = p->base.leaf->leaf;
    if (leaf->hooks->id != p->base.coming || leaf->preset) {
        tn__raise(TN_ESTATE, p->base.of->rules->operation, "%s has %s: attach sharding first",
                  p->base.path, leaf->preset ? "a gradient buffer" : "hooks");
    }
    return !tn__pending();
}

/* One name of a parameter, which may have others. */
static bool claim_name(const tn_entry *entry, void *user) {
    tn_fsdp_state *s = user;
    tn__fsdp_unit *u = unit_around(s, entry->owner);
    tn__fsdp_kind kind = kind_of(entry);
    tn__fsdp_param *p = s->params;
    while (p->base.leaf != *entry->field) {
        p++;
    }
    p->ignored |= s->options.ignore && tn__paths_fit(s->options.ignore, entry->path);
    if (!p->unit) {
        p->unit = u;
        p->kind = kind;
        p->block = entry->layout;
        p->beyond = entry->parts;
        return may_cut(p);
    }
    while (!is_inside(u, p->unit)) { /* up to the unit around both */
        p->unit = p->unit->around;
    }
    if (kind.compute != p->kind.compute) {
        tn__raise(TN_ESTATE, "fsdp", "%s is computed in %s, but under its name %s in %s",
                  p->base.path, tn_dtype_name(p->kind.compute), entry->path,
                  tn_dtype_name(kind.compute));
    }
    return !tn__pending();
}

static bool claim_params(tn_fsdp_state *s) {
    size_t capacity = (size_t)s->base.count + 1;
    s->chains = tn__calloc_for(capacity, sizeof(*s->chains), "fsdp");
    s->members = tn__calloc_for(capacity, sizeof(*s->members), "fsdp");
    s->sets = tn__calloc_for(capacity, sizeof(*s->sets), "fsdp");
    s->pools = tn__calloc_for(capacity, sizeof(*s->pools), "fsdp");
    if (tn__pending()) { return false; }
    tn_module_each(s->base.module, (tn_walk){.with_shared = true}, claim_name, s);
    for (int i = 0; i < s->base.count; i++) {
        if (s->params[i].ignored) { /* under any of its names */
            s->params[i].unit = NULL;
        }
    }
    return !tn__pending();
}

/* The unit's set for a parameter, made if missing. */
static tn__fsdp_set *set_for(tn_fsdp_state *s, const tn__fsdp_param *p, bool alone) {
    tn__fsdp_set **at = &p->unit->sets;
    while (*at && (alone || p->kind.tied || !same_kind(&(*at)->kind, &p->kind))) {
        at = &(*at)->next;
    }
    if (!*at) {
        *at = &s->sets[s->set_count++];
        **at = (tn__fsdp_set){.fsdp = s, .unit = p->unit, .kind = p->kind};
    }
    return *at;
}

static void make_sets(tn_fsdp_state *s, bool alone) {
    for (int i = 0; i < s->unit_count; i++) {
        for (int k = 0; k < s->base.count; k++) {
            tn__fsdp_param *p = &s->params[k];
            if (p->unit && p->unit == &s->units[i]) { /* an ignored one has none */
                p->set = set_for(s, p, alone);
                p->set->count++;
            }
        }
        s->stats.units += s->units[i].sets != NULL;
    }
    tn__fsdp_param **place = s->members;
    for (int i = 0; i < s->set_count; i++) {
        s->sets[i].params = place;
        place += s->sets[i].count;
        s->sets[i].count = 0;
    }
    for (int i = 0; i < s->base.count; i++) {
        tn__fsdp_set *set = s->params[i].set;
        if (set) { set->params[set->count++] = &s->params[i]; }
    }
}

/* ---- The beginning and the end --------------------------------------------------------------- */

/* Ignored parameters may have been built without elements. */
static bool make_ignored(const tn_fsdp_state *s) {
    for (int i = 0; i < s->base.count && !tn__pending(); i++) {
        const tn__fsdp_param *p = &s->params[i];
        if (p->ignored && tn__deferred(p->base.leaf)) { tn__deferred_make(p->base.leaf); }
    }
    return !tn__pending();
}

static bool cut_sets(tn_fsdp_state *s) {
    s->cut = true;
    for (int i = 0; i < s->set_count && !tn__pending(); i++) {
        tn__fsdp_cut(&s->sets[i]);
    }
    return !tn__pending();
}

static bool hook_units(tn_fsdp_state *s, tn_module_hooks hooks) {
    for (int i = 0; i < s->unit_count; i++) {
        tn__fsdp_unit *u = &s->units[i];
        hooks.user = u;
        u->hook = tn_module_hook(u->module, hooks);
        if (!u->hook) { return false; }
        u->module->lists->unit = true;
    }
    return true;
}

/* Tensors made here have elements, even under TN_DEFER_INIT. */
static bool cut_and_hook(tn_fsdp_state *s, const tn__fsdp_plan *how) {
    tn_status (*deferring)(const tn_tensor *t) = tn__deferring;
    tn__deferring = NULL;
    bool done = make_ignored(s) && cut_sets(s) && (how->alone || tn__fsdp_make_buffers(s)) &&
                hook_units(s, how->hooks);
    tn__deferring = deferring;
    return done;
}

bool tn__fsdp_start(tn__parallel *p, const void *plan) {
    tn_fsdp_state *s = (tn_fsdp_state *)p;
    const tn__fsdp_plan *how = plan;
    s->options = how->options;
    s->params = p->params;
    s->device = p->count > 0 ? tn_device_of(s->params->base.leaf) : tn_cpu();
    if (!find_units(s) || !claim_params(s)) { return false; }
    make_sets(s, how->alone);
    s->options.units = s->options.ignore = NULL;
    return cut_and_hook(s, how);
}

/* Attaching failed: the module drops the state, and cannot be used if weights are gone. */
static void leave_module(const tn_fsdp_state *s) {
    tn_module *m = s->base.module;
    for (int i = 0; i < s->unit_count; i++) {
        if (s->units[i].hook) {
            tn_module_unhook(s->units[i].module, s->units[i].hook);
            s->units[i].module->lists->unit = false;
        }
    }
    for (int i = 0; i < s->base.count && s->cut; i++) {
        const tn__fsdp_param *p = &s->params[i];
        if (p->part) { tn_module_set_part(m, p->base.path, NULL, p->block, p->beyond); }
        m->state = TN__MODULE_BROKEN;
    }
}

void tn__fsdp_finish(tn__parallel *p) {
    tn_fsdp_state *s = (tn_fsdp_state *)p;
    tn_error_record e;
    tn__quiet(1);
    bool failed = tn_error_take(&e);
    tn__fsdp_abandon(p);
    if (p->module->state != TN__MODULE_FINISHED) { leave_module(s); }
    if (failed) { tn_error_give(&e); }
    tn__quiet(-1);
    for (int i = 0; i < s->set_count; i++) {
        tn__fsdp_drop(&s->sets[i]);
    }
    tn__fsdp_drop_buffers(s);
    for (int i = 0; i < p->count && s->params; i++) {
        tn_release(s->params[i].part);
        tn_release(s->params[i].aside);
    }
    for (int i = 0; i < s->unit_count; i++) {
        free(s->units[i].path);
    }
    free(s->forward.units);
    free(s->backward.units);
    free(s->chains);
    free(s->members);
    free(s->units);
    free(s->sets);
    free(s->pools);
}
