/* Scopes that a program opens on a module, whatever lays it on ranks.
 *
 * A scope speaks to the strategies that are attached to the module or below it. It holds the lists
 * of the module, so that it can end after the module did.
 */
#include "distributed/parallel/base.h"
#include "nn/module.h"

static void change_no_sync(const tn_module_lists *lists, void *change) {
    if (lists->strategy->no_sync) {
        lists->strategy->no_sync(lists->strategy_state, *(int *)change);
    }
}

static void change_whole(const tn_module_lists *lists, void *change) {
    if (lists->strategy->whole) {
        lists->strategy->whole(lists->strategy_state, *(int *)change);
    }
}

static void *begin_scope(tn_module_lists *lists, tn__strategy_visitor change) {
    tn__strategies_below(lists, change, &(int){1});
    return tn__module_lists_keep(lists);
}

static void end_scope(void **scope, tn__strategy_visitor change) {
    tn_module_lists *lists = scope ? *scope : NULL;
    if (lists) {
        tn__strategies_below(lists, change, &(int){-1});
        tn__module_lists_release(lists);
        *scope = NULL;
    }
}

/* Part of a module cannot keep its gradients while the rest sends them. */
void *tn_no_sync_begin(void *module) {
    const tn_module *m = module ? tn__module_of(module, "no_sync") : NULL;
    const tn_module_lists *above = m && m->lists ? tn__strategy_around(m->lists->up) : NULL;
    if (above) {
        tn__raise(TN_ESTATE, "no_sync", "%s %s is inside of a %s that is under %s: name that one",
                  m->kind, m->name, above->kind, above->strategy->name);
    }
    return m && m->lists && !above ? begin_scope(m->lists, change_no_sync) : NULL;
}

void tn_no_sync_end(void **scope) {
    end_scope(scope, change_no_sync);
}

/* A part of what is attached becomes whole with all of that. */
void *tn_whole_begin(void *module) {
    const tn_module *m = tn__module_of(module, "whole");
    const tn_module_lists *above = m ? tn__strategy_around(m->lists) : NULL;
    tn_module_lists *lists = above ? above->module->lists : m ? m->lists : NULL;
    return lists ? begin_scope(lists, change_whole) : NULL;
}

void tn_whole_end(void **scope) {
    end_scope(scope, change_whole);
}
