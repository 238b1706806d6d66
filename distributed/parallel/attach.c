/* Attaching a strategy to a module: what is refused. */
#include "distributed/parallel/base.h"
#include "nn/module.h"
#include "tensor/tensor.h"

static void find_strategy(const tn_module_lists *lists, void *user) {
    *(const tn_module_lists **)user = lists;
}

/* Raises about a module in or around m that a strategy is attached to. */
static bool is_first(const tn_module *m, const char *operation) {
    const tn_module_lists *found = tn__strategy_around(m->lists);
    if (m->lists && !found) {
        tn__strategies_below(m->lists, find_strategy, &found);
    }
    if (found) {
        tn__raise(TN_ESTATE, operation, "%s%s%s is under %s already", found->kind,
                  found->name[0] ? " " : "", found->name, found->strategy->name);
    }
    return !found;
}

/* Graphs from before may live on: they lead to the same leaves, and raise where what they saved has
 * been changed since. */
static bool check_param(const tn_entry *entry, void *user) {
    const char *operation = user;
    if (entry->stored != *entry->field ||
        !tn_dims_equal(entry->layout.whole, tn_shape(entry->stored))) {
        tn__raise(TN_ESTATE, operation, "the parameter %s is sharded: here is %s of %s",
                  entry->path, tn_shape_text(entry->stored), tn__dims_text(entry->layout.whole));
    } else if (tn__entry_stepped(entry)) {
        tn__raise(TN_ESTATE, operation,
                  "the parameter %s is held by an optimiser: parallelism is attached first",
                  entry->path);
    }
    return !tn__pending();
}

bool tn__parallel_may_attach(void *m, tn_group *g, const char *operation) {
    tn_module *module = tn__module_of(m, operation);
    if (!module || tn__pending() || !is_first(module, operation)) {
        return false;
    }
    if (tn_group_rank(g) < 0) {
        tn__raise(TN_EVALUE, operation, "this rank is not a member of group %s", tn_group_name(g));
        return false;
    }
    if (module->state == TN__MODULE_BROKEN) {
        tn__raise(TN_ESTATE, operation, "the module (%s) is not complete", module->kind);
        return false;
    }
    tn_module_each(m, (tn_walk){0}, check_param, (void *)operation);
    return !tn__pending();
}
