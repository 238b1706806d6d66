/* Scopes that a program opens on a module, whichever strategy it has, and its other requests.
 *
 * A scope addresses the strategies that are attached to the module or below it. It holds the
 * module's lists, so that it may outlive the module.
 */
#include "distributed/parallel/base.h"
#include "nn/module.h"

static void change_no_sync(const tn_module_lists *lists, void *change) {
    tn__parallel *p = (tn__parallel *)lists->strategy;
    int depth = p->no_sync + *(int *)change;
    p->no_sync = depth > 0 ? depth : 0; /* the scope may have begun before p */
}

static void change_whole(const tn_module_lists *lists, void *change) {
    tn__parallel *p = (tn__parallel *)lists->strategy;
    if (p->rules->whole) { p->rules->whole(p, *(int *)change); }
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

/* The lists of m; NULL if it has none, or after raising: a part cannot keep or send its gradients
 * on its own. */
static tn_module_lists *outermost_lists(void *module, const char *operation) {
    const tn_module *m = module ? tn__module_of(module, operation) : NULL;
    const tn_module_lists *above = m && m->lists ? tn__strategy_around(m->lists->up) : NULL;
    if (above) {
        tn__raise(TN_ESTATE, operation, "%s %s is inside a %s that is under %s: name that one",
                  m->kind, m->name, above->kind, above->strategy->name);
    }
    return m && !above ? m->lists : NULL;
}

void *tn_no_sync_begin(void *module) {
    tn_module_lists *lists = outermost_lists(module, "no_sync");
    return lists ? begin_scope(lists, change_no_sync) : NULL;
}

void tn_no_sync_end(void **scope) {
    end_scope(scope, change_no_sync);
}

/* Given part of an attached module, all of the module becomes whole. */
void *tn_whole_begin(void *module) {
    const tn_module *m = tn__module_of(module, "whole");
    const tn_module_lists *above = m ? tn__strategy_around(m->lists) : NULL;
    tn_module_lists *lists = above ? above->module->lists : m ? m->lists : NULL;
    return lists ? begin_scope(lists, change_whole) : NULL;
}

void tn_whole_end(void **scope) {
    end_scope(scope, change_whole);
}

static void flush_one(const tn_module_lists *lists, void *unused) {
    tn__parallel_flush((tn__parallel *)lists->strategy);
}

/* Runs even with an error pending: the other ranks must not wait for this one. */
tn_status tn_sync_gradients(void *module) {
    const tn_module_lists *lists =
        tn__module_of(module, "sync_gradients") ? outermost_lists(module, "sync_gradients") : NULL;
    if (tn_in_backward()) {
        tn__raise(TN_ESTATE, "sync_gradients", "called inside a backward");
    } else if (lists) {
        tn__strategies_below(lists, flush_one, NULL);
    }
    return tn_error();
}
