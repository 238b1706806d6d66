/* Two mistakes with modules that nothing else would show.
 *
 * A module that has moved (a vector that grew, a struct that was copied): its old place must no
 * longer be read. Every build checks, where a module is used and where a walk reaches it, for
 * instance when an optimiser is made.
 *
 * A layer that a forward calls but that was never added: it learns nothing, since no optimiser
 * finds it. Looking for it costs every call a little, so only debug builds do.
 */
#include "nn/layer.h"
#include "nn/misuse.h"

#include "core/fork.h"
#include "core/memory.h"

#include <pthread.h>
#include <stdio.h>

/* ---- Modules that have moved ----------------------------------------------------------------- *
 *
 * A module is in the program's memory. Its `place` is its address when it first registered
 * something. When it is seen elsewhere, that place is recorded; code that holds its lists, or those
 * of a module below it, checks before it reads there. */

bool tn__modules_moved;

static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static const tn_module **places;
static int place_count;
static int64_t place_capacity;

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&places_lock);
}

/* Where in the list it is, or -1. */
static int find_place(const tn_module *place) {
    int i = place_count - 1;
    while (i >= 0 && places[i] != place) {
        i--;
    }
    return i;
}

void tn__module_left(const tn_module *place) {
    pthread_mutex_lock(&places_lock);
    if (find_place(place) < 0 &&
        tn__grow(&places, place_count + 1, &place_capacity, sizeof(*places), NULL)) {
        places[place_count++] = place;
        __atomic_store_n(&tn__modules_moved, true, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&places_lock);
}

void tn__module_is_back(const tn_module *place) {
    pthread_mutex_lock(&places_lock);
    int i = find_place(place);
    if (i >= 0) {
        places[i] = places[--place_count];
        __atomic_store_n(&tn__modules_moved, place_count > 0, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&places_lock);
}

/* Modules are members of each other's structs as a rule, so what is below one has moved as well. */
bool tn__module_has_left(const tn_module_lists *lists) {
    pthread_mutex_lock(&places_lock);
    while (lists && find_place(lists->module) < 0) {
        lists = lists->up;
    }
    pthread_mutex_unlock(&places_lock);
    return lists != NULL;
}

/* ---- Modules that were never added ----------------------------------------------------------- */

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
