/* What others keep with a module: the strategy that distributes it, and whether an optimiser holds
 * its parameters. Both are kept here, for later callers to check. */
#include "nn/misuse.h"

const tn_module_lists *tn__strategy_around(const tn_module_lists *lists) {
    while (lists && !lists->strategy) {
        lists = lists->up;
    }
    return lists;
}

void tn__strategies_below(const tn_module_lists *lists, tn__strategy_visitor f, void *user) {
    if (lists->strategy) { f(lists, user); }
    for (int i = 0; i < lists->child_count; i++) {
        if (tn__module_is_valid(lists->children[i])) {
            tn__strategies_below(lists->children[i], f, user);
        }
    }
}

static void find_round(const tn_module_lists *lists, void *user) {
    *(tn__round *)user = lists->strategy->round;
}

tn__round tn__strategy_round(const tn_module *m) {
    tn__round round = {.ranks = 1};
    const tn_module_lists *around = m->lists ? tn__strategy_around(m->lists) : NULL;
    if (around) {
        find_round(around, &round);
    } else if (m->lists) {
        tn__strategies_below(m->lists, find_round, &round);
    }
    return round;
}

/* Whether an optimiser holds the parameter (NULL: any) in the module or below it. */
static bool holds_below(const tn_module_lists *lists, const tn_tensor *param) {
    bool stepped = __atomic_load_n(&lists->stepped, __ATOMIC_RELAXED) > 0;
    for (int i = 0; stepped && i < lists->record_count; i++) {
        const tn__record *record = lists->records[i];
        if (!record->buffer && (!param || tn__record_tensor(record) == param)) { return true; }
    }
    for (int i = 0; i < lists->child_count; i++) {
        if (tn__module_is_valid(lists->children[i]) && holds_below(lists->children[i], param)) {
            return true;
        }
    }
    return false;
}

typedef struct stepped_search {
    const tn_module_lists *root;
    char *path;
    size_t size;
    bool found;
} stepped_search;

static bool find_stepped(const tn_entry *entry, void *user) {
    stepped_search *search = user;
    search->found = holds_below(search->root, tn__entry_tensor(entry));
    if (search->found) { snprintf(search->path, search->size, "%s", entry->path); }
    return !search->found;
}

bool tn__module_stepped(tn_module *m, char *path, size_t size) {
    stepped_search search = {.root = m->lists, .path = path, .size = size};
    while (search.root && search.root->up) {
        search.root = search.root->up;
    }
    if (search.root && holds_below(search.root, NULL)) {
        tn_module_each(m, (tn_walk){0}, find_stepped, &search);
    }
    return search.found;
}
