/* Whether a module is where it was registered (module.c), and whether it was ever added (misuse.c).
 */
#ifndef TERN_NN_MISUSE_H
#define TERN_NN_MISUSE_H

#include "nn/module.h"

/* A module in which nothing was registered may move. */
static inline bool tn__module_moved(const tn_module *m) {
    return m->place && m->place != m;
}

/* Whether the module of these lists, or one around it, was seen elsewhere: as a rule modules are
 * members of each other's structs. */
static inline bool tn__module_has_left(const tn_module_lists *lists) {
    while (lists && !__atomic_load_n(&lists->left, __ATOMIC_RELAXED)) {
        lists = lists->up;
    }
    return lists != NULL;
}

/* Whether the module of these lists is still where it was: not finished, not seen elsewhere, and
 * not overwritten. (Memory that was freed and not used again looks like a module.) */
static inline bool tn__module_is_valid(const tn_module_lists *lists) {
    const tn_module *m = lists->module;
    return m && !tn__module_has_left(lists) &&
           (m->state == TN__MODULE_ALIVE || m->state == TN__MODULE_BROKEN) && m->place == m &&
           m->lists == lists;
}

/* The unfinished module of lists, or NULL after raising that it has moved. */
tn_module *tn__module_in_place(tn_module_lists *lists, const char *operation);

/* The outermost module around m, or m itself. NULL after raising that it has moved. */
tn_module *tn__module_root(tn_module *m, const char *operation);

#ifdef TN_DEBUG_TENSORS
/* For a call of m: false after raising that the forward which makes it calls a module that was
 * never added. nn/misuse.c. */
bool tn__module_at_home(tn_module *m);
#else
static inline bool tn__module_at_home(const tn_module *m) {
    return true;
}
#endif

#endif
