/* Attaching a strategy to a module: what is refused, its parameters, its hooks, and the end. */
#include "autograd/hooks.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/base.h"
#include "ops/deferred.h"
#include "tern/sys/device.h"

#include <stdlib.h>

/* ---- What is refused ------------------------------------------------------------------------- */

static void find_strategy(const tn_module_lists *lists, void *user) {
    *(const tn_module_lists **)user = lists;
}

/* False after raising: a module in or around m has a strategy. */
static bool is_first(const tn_module *m, const char *operation) {
    const tn_module_lists *found = tn__strategy_around(m->lists);
    if (m->lists && !found) { tn__strategies_below(m->lists, find_strategy, &found); }
    return !found || tn__fail(TN_ESTATE, operation, "%s%s%s is under %s already", found->kind,
                              found->name[0] ? " " : "", found->name, found->strategy->name);
}

typedef struct check {
    const tn__parallel_rules *rules;
    char first[256]; /* the first parameter; the others must be on its device */
    tn_device device;
} check;

static bool check_param(const tn_entry *entry, void *user) {
    check *c = user;
    const char *operation = c->rules->operation;
    tn_device device = tn_device_of(*entry->field);
    if (!c->first[0]) {
        snprintf(c->first, sizeof(c->first), "%s", entry->path);
        c->device = device;
    }
    if (entry->stored != *entry->field) { /* a block of a split layout counts as a whole */
        tn__raise(TN_ESTATE, operation, "the parameter %s is sharded: here is %s of %s",
                  entry->path, tn_shape_text(entry->stored), tn__dims_text(entry->layout.whole));
    } else if (c->rules->param_size > 0 && !tn_dtype_is_float(tn_dtype_of(*entry->field))) {
        tn__raise(TN_EUNSUPPORTED, operation,
                  "the parameter %s is quantised, and has no gradient: tn_quantize comes last",
                  entry->path);
    } else if (!tn__same_device(c->device, device)) {
        tn__raise(TN_EDEVICE, operation,
                  "%s is on %s, but %s is on %s (a rank has one device: start a process for each, "
                  "or use tn_local_run_on; a model that is split over devices by hand trains "
                  "without tn_%s)",
                  c->first, tn_device_text(c->device), entry->path, tn_device_text(device),
                  operation);
    } else if (!c->rules->deferred) {
        tn__elements_made(*entry->field, entry->path, operation);
    }
    return !tn__pending();
}

static bool is_member(const tn_group *g, const char *operation) {
    if (tn_group_rank(g) < 0) {
        tn__raise(TN_EVALUE, operation, "this rank is not a member of group %s", tn_group_name(g));
    }
    return !tn__pending();
}

/* Older graphs may still exist: they lead to the same leaves, and raise if what they saved has
 * changed. */
bool tn__parallel_may_attach(void *m, const tn_group *g, const tn__parallel_rules *rules) {
    const char *operation = rules->operation;
    tn_module *module = tn__module_of(m, operation);
    if (!module || tn__pending() || !is_first(module, operation)) { return false; }
    if (!is_member(g, operation)) { return false; }
    if (module->state == TN__MODULE_BROKEN) {
        return tn__fail(TN_ESTATE, operation, "the module (%s) is not complete", module->kind);
    }
    char held[256];
    if (tn__module_stepped(module, held, sizeof(held))) {
        return tn__fail(TN_ESTATE, operation,
                        "the parameter %s is held by an optimiser: attach parallelism first", held);
    }
    tn_module_each(m, (tn_walk){0}, check_param, &(check){.rules = rules});
    return !tn__pending();
}

static bool is_unsplit(const tn_entry *entry, void *user) {
    if (tn__entry_record(entry)->cut || entry->parts) {
        tn__raise(TN_ESTATE, user, "%s is split over ranks already: this comes first", entry->path);
    }
    return !tn__pending();
}

bool tn__parallel_unsplit(tn_module *m, const char *operation) {
    tn_module_each(m, (tn_walk){0}, is_unsplit, (void *)operation);
    return !tn__pending();
}

bool tn__parallel_divides(const tn_group *g, int64_t count, const char *what, const char *path,
                          const char *hint, const char *operation) {
    char list[128] = "";
    size_t at = 0;
    if (count % tn_group_size(g) == 0) { return true; }
    for (int64_t n = 1; n <= count && at < sizeof(list) - 24; n++) {
        if (count % n == 0) {
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%lld", at ? ", " : "",
                                   (long long)n);
        }
    }
    return tn__fail(TN_ESHAPE, operation, "%s: %d ranks do not divide %lld %s (%s would%s)", path,
                    tn_group_size(g), (long long)count, what, list, hint);
}

/* ---- Parameters ------------------------------------------------------------------------------ */

bool tn__leaf_thaw(tn_tensor *leaf) {
    bool frozen = !tn_requires_grad(leaf);
    if (frozen) { tn_set_requires_grad(leaf, true); }
    return frozen;
}

void tn__leaf_freeze(tn_tensor *leaf, bool frozen) {
    if (frozen) { tn_set_requires_grad(leaf, false); }
}

static bool count_param(const tn_entry *entry, void *user) {
    ++*(int *)user;
    return true;
}

static tn_tensor *gradient_coming(tn_tensor *grad, void *user) {
    const tn__parallel_param *param = user;
    tn__parallel_reach(param->of);
    return NULL;
}

static void gradient_added(tn_tensor *leaf, void *user) {
    tn__parallel_added(user);
}

/* Frozen parameters get hooks too: they may be thawed later. */
static bool add_param(const tn_entry *entry, void *user) {
    tn__parallel *p = user;
    const tn__parallel_rules *rules = p->rules;
    tn__parallel_param *param = tn__parallel_param_at(p, p->count++);
    *param = (tn__parallel_param){.of = p,
                                  .path = tn__strdup_for(entry->path, rules->operation),
                                  .leaf = tn_keep(*entry->field)};
    if (!param->path) { return false; }
    bool frozen = tn__leaf_thaw(param->leaf);
    tn_grad_hook coming = rules->coming ? rules->coming : gradient_coming;
    param->coming = tn__on_grad_observe(param->leaf, coming, param);
    param->added =
        tn_on_accumulated(param->leaf, rules->added ? rules->added : gradient_added, param);
    tn__leaf_freeze(param->leaf, frozen);
    return !tn__pending();
}

static bool list_params(tn__parallel *p) {
    int count = 0;
    tn_module_each(p->module, (tn_walk){0}, count_param, &count);
    p->params = tn__calloc_for((size_t)count + 1, p->rules->param_size, p->rules->operation);
    if (!p->params) { return false; }
    tn_module_each(p->module, (tn_walk){0}, add_param, p);
    return !tn__pending();
}

/* ---- The beginning and the end --------------------------------------------------------------- */

/* The module is finished, or attaching failed. */
static void parallel_free(void *user) {
    tn__parallel *p = user;
    if (p->running) { tn__parallel_give_up(p, "the module was finished during its backward"); }
    if (p->rules->finish) { p->rules->finish(p); }
    for (int i = 0; i < p->count; i++) {
        tn__parallel_param *param = tn__parallel_param_at(p, i);
        tn_remove_hook(param->leaf, param->coming);
        tn_remove_hook(param->leaf, param->added);
        tn_release(param->leaf);
        free(param->path);
    }
    free(p->params);
    p->finished = true;
    if (!p->running) { free(p); }
}

static bool find_sequence(tn_module *m, const char *path, void *user) {
    tn_group **found = user;
    *found = m->lists && m->lists->loss.sequence ? m->lists->loss.sequence : *found;
    return true;
}

/* Of ranks with positions of the same sequences each has gradients of its own, so all of them must
 * be among those that average. False after raising, on every rank. */
static bool covers_sequence(void *m, tn_group *g, tn_group *outer, const char *operation) {
    tn_group *sequence = NULL;
    tn_module_each_module(m, find_sequence, &sequence);
    if (!sequence) { return true; }
    TN_SCOPE;
    TN__ON_CPU;
    int64_t mine = tn_group_world_rank(sequence, 0), ranks = tn_group_size(g), together = 0;
    tn_tensor *inner = tn_empty(TN_DIMS(ranks), TN_I64),
              *all = tn_empty(TN_DIMS(tn_group_size(outer), ranks), TN_I64);
    tn_tensor *first = tn_from_data(&mine, TN_DIMS(), TN_I64);
    if (tn_work_wait(tn_all_gather(g, inner, first), 0) != TN_OK ||
        tn_work_wait(tn_all_gather(outer, all, inner), 0) != TN_OK) {
        return false;
    }
    for (int64_t i = 0; i < tn_count(all); i++) {
        together += ((const int64_t *)tn_data(all))[i] == mine;
    }
    if (together != tn_group_size(sequence)) {
        tn__raise(
            TN_EVALUE, operation,
            "%d ranks share each sequence (tn_context_parallel), and gradients would be "
            "averaged over %lld of them: attach over all, \"dp cp\" or \"shard cp\" of a mesh",
            tn_group_size(sequence), (long long)together);
    }
    return !tn__pending();
}

/* The module is the same on all ranks. NULL after raising. */
static tn__parallel *hang_on(tn_module *m, tn_group *g, tn_group *outer,
                             const tn__parallel_rules *rules, const void *options) {
    tn__parallel *p = tn__calloc_for(1, rules->state_size, rules->operation);
    if (!p) { return NULL; }
    *p = (tn__parallel){.strategy = {.name = rules->name, .round = tn__round_of(outer, g)},
                        .rules = rules,
                        .module = m,
                        .group = g,
                        .outer = outer,
                        .buffers_due = true};
    tn_module_hooks hooks = {.before = tn__parallel_forward,
                             .backward_before = tn__parallel_backward,
                             .user = p,
                             .free_user = parallel_free};
    if (!list_params(p) || (rules->start && !rules->start(p, options)) ||
        !tn_module_hook(m, hooks)) {
        parallel_free(p);
        return NULL;
    }
    m->lists->strategy = &p->strategy;
    tn__round_begin(p->strategy.round);
    return p;
}

/* Buffers are whole on every rank, even in a module that was built without elements. */
static bool make_buffer(const tn_entry *entry, void *user) {
    return !tn__deferred(*entry->field) || tn__deferred_make(*entry->field) == TN_OK;
}

static bool make_buffers(void *m) {
    const tn_walk buffers = {.buffers = true, .scratch = true, .no_parameters = true};
    tn_module_each(m, buffers, make_buffer, NULL);
    return !tn__pending();
}

bool tn__parallel_make_same(tn_module *m, tn_group *g, tn_group *outer,
                            const tn__parallel_rules *rules, const char *text) {
    if (!tn__pending()) { make_buffers(m); }
    if (outer) { tn__quiet(1); /* each tn__agree ends one */ }
    tn_status status = tn__parallel_agree(m, g, text, rules->operation);
    bool on_all = !outer; /* where there are two groups, some ranks are in neither with this one */
    if (outer) { status = tn__parallel_agree(m, outer, text, rules->operation); }
    if (status == TN_OK) {
        on_all = false;
        status = tn__parallel_share(m, g, 0, true);
        status = status == TN_OK ? tn__parallel_share(m, outer, 0, true) : status;
    }
    if (status != TN_OK && !on_all) {
        tn_group_abort(g, tn_error_message());
        tn_group_abort(outer, tn_error_message());
    }
    return status == TN_OK;
}

tn__parallel *tn__parallel_attach(void *m, tn_group *g, tn_group *outer,
                                  const tn__parallel_rules *rules, const char *text,
                                  const void *options) {
    if (tn__parallel_may_attach(m, g, rules)) { is_member(outer, rules->operation); }
    if (!tn__parallel_make_same(m, g, outer, rules, text)) { return NULL; }
    bool covers = covers_sequence(m, g, outer, rules->operation);
    tn__parallel *p = covers ? hang_on(m, g, outer, rules, options) : NULL;
    if (!p) {
        tn_group_abort(g, tn_error_message());
        tn_group_abort(outer, tn_error_message());
    }
    return p;
}
