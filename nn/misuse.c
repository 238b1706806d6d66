/* A mistake with modules that nothing else would show: a layer that a forward calls but that was
 * never added. It learns nothing, since no optimiser finds it. Looking for it costs every call a
 * little, so only debug builds do.
 */
#include "nn/layer.h"
#include "nn/misuse.h"

#include <stdio.h>

void tn_module_set_apart(void *module, bool apart) {
    tn_module *m = tn__module_of(module, "module_set_apart");
    tn_module_lists *lists = m ? tn__module_lists(m, "module_set_apart") : NULL;
    if (lists) { lists->apart = apart; }
}

#ifdef TN_DEBUG_TENSORS

/* Not every call into another tree is a mistake: a teacher is frozen, the other network of a pair
 * has an optimiser, and calls outside any forward, or by a hook, are up to the program. A part of
 * another model may also be called while nothing is trained yet. The rest is an error, unless
 * tn_module_set_apart allows it. */

/* The frame of the forward that makes this call. Those of the forwards around it follow, up to one
 * without a module: a hook's. */
static const tn__frame *calling_frame(void) {
    return tn__self.frames->up;
}

typedef struct parameter_search {
    const tn_tensor *wanted;
    bool found;
} parameter_search;

static bool is_wanted(const tn_entry *entry, void *user) {
    parameter_search *search = user;
    search->found = tn__entry_tensor(entry) == search->wanted;
    return !search->found;
}

/* Whether a module around this call has the tensor too (two modules that share it). */
static bool is_known_outside(const tn_tensor *param) {
    parameter_search search = {.wanted = param};
    for (const tn__frame *f = calling_frame(); f && f->module && !search.found; f = f->up) {
        tn_module *root = tn__module_root(f->module, "call");
        if (root) { tn_module_each(root, (tn_walk){.with_shared = true}, is_wanted, &search); }
    }
    return search.found;
}

/* Finds a parameter that would not learn: it requires a gradient, but no optimiser has it and no
 * module around. */
static bool find_stray(const tn_entry *entry, void *user) {
    char *path = user;
    tn_tensor *param = tn__entry_tensor(entry);
    if (!tn_requires_grad(param) ||
        __atomic_load_n(&entry->owner->lists->stepped, __ATOMIC_RELAXED) > 0 ||
        is_known_outside(param)) {
        return true;
    }
    snprintf(path, TN_MODULE_NAME, "%s", entry->path);
    return false;
}

/* Whether one of the modules whose forward is running belongs to the tree of this root. */
static bool is_around(const tn_module *root) {
    for (const tn__frame *f = calling_frame(); f && f->module; f = f->up) {
        if (tn__module_root(f->module, "call") == root) { return true; }
    }
    return false;
}

/* Whether an optimiser steps the modules whose forward is running: they are being trained. */
static bool is_training(void) {
    char path[TN_MODULE_NAME];
    for (const tn__frame *f = calling_frame(); f && f->module; f = f->up) {
        if (tn__module_stepped(f->module, path, sizeof(path))) { return true; }
    }
    return false;
}

/* Whether m is called as a part of the tree around it, or was set apart. */
static bool is_expected(tn_module *m, const tn_module *caller) {
    for (const tn_module_lists *l = m->lists; l; l = l->up) {
        if (l->apart || l == caller->lists) { return true; }
    }
    tn_module *root = tn__module_root(m, "call");
    return !root || is_around(root) ||
           (root != m && root->forward_values != tn__list_forward && !is_training());
}

bool tn__module_at_home(tn_module *m) {
    const tn__frame *frame = calling_frame();
    const tn_module *caller = frame ? frame->module : NULL;
    if (!caller || !tn_grad_mode() || is_expected(m, caller)) { return true; }
    char path[TN_MODULE_NAME] = "";
    tn_module_each(m, (tn_walk){0}, find_stray, path);
    if (!path[0]) { return true; }
    const tn_module *root = tn__module_root(m, "call");
    bool part = root && root != m;
    return tn__fail(
        TN_ESTATE, caller->kind,
        "the forward calls %s%s%sa %s that was never added, whose parameter \"%s\" no optimiser "
        "would step (tn_module_add it to the %s; if another optimiser steps it, make that first; "
        "if nothing does, TN_NO_GRAD or tn_module_requires_grad(layer, false); if it is meant so, "
        "tn_module_set_apart)",
        part ? "\"" : "", part ? m->name : "", part ? "\" of " : "", part ? root->kind : m->kind,
        path, caller->kind);
}

#endif
