/* What others keep with a module: the strategy that lays it on ranks, and whether an optimiser
 * holds its parameters. Both are facts of the registry, for whoever comes later to ask. */
#include "nn/module.h"

void tn__module_set_strategy(tn_module *m, const tn__strategy *strategy, void *state) {
    m->lists->strategy = strategy;
    m->lists->strategy_state = state;
}

const tn_module_lists *tn__strategy_around(const tn_module_lists *lists) {
    while (lists && !lists->strategy) {
        lists = lists->up;
    }
    return lists;
}

void tn__strategies_below(const tn_module_lists *lists, tn__strategy_visitor f, void *user) {
    if (lists->strategy) {
        f(lists, user);
    }
    for (int i = 0; i < lists->child_count; i++) {
        if (tn__module_stands(lists->children[i])) {
            tn__strategies_below(lists->children[i], f, user);
        }
    }
}

/* Whether the module, or one below it, has the parameter and is held by an optimiser. */
static bool holds_below(const tn_module_lists *lists, const tn_tensor *param) {
    bool stepped = __atomic_load_n(&lists->stepped, __ATOMIC_RELAXED) > 0;
    for (int i = 0; stepped && i < lists->record_count; i++) {
        const tn__record *record = lists->records[i];
        if (!record->buffer && tn__record_tensor(record) == param) {
            return true;
        }
    }
    for (int i = 0; i < lists->child_count; i++) {
        if (tn__module_stands(lists->children[i]) && holds_below(lists->children[i], param)) {
            return true;
        }
    }
    return false;
}

bool tn__entry_stepped(const tn_entry *entry) {
    const tn_module_lists *root = entry->owner->lists;
    while (root->up) {
        root = root->up;
    }
    return holds_below(root, tn__entry_tensor(entry));
}
