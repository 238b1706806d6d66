/* Hooks of leaves and nodes: a list each, in order of registration.
 *
 * A hook may remove any hook, itself included: a walk goes from id to id and keeps no pointer
 * across a call.
 *
 *     tn_hook id;
 *     for (tn__hook *h = tn__hook_after(list, 0); h; h = tn__hook_after(list, id)) {
 *         id = h->id;
 *         ...
 *     }
 */
#ifndef TERN_AUTOGRAD_HOOKS_H
#define TERN_AUTOGRAD_HOOKS_H

#include "tern/autograd.h"

typedef struct tn__hook {
    struct tn__hook *next;
    tn_hook id;                /* grows along the list */
    int output;                /* of a node; 0 on a leaf */
    tn_grad_hook before;       /* on the gradient … */
    tn_accumulated_hook after; /* … or on a leaf, after it was accumulated */
    bool observes;             /* before: neither replaces nor keeps the gradient */
    void *user;
} tn__hook;

/* The list's first hook after `id`; NULL: none. */
static inline tn__hook *tn__hook_after(tn__hook *list, tn_hook id) {
    while (list && list->id <= id) {
        list = list->next;
    }
    return list;
}

/* tn_on_grad on a leaf for a hook that neither replaces nor keeps the gradient, nor changes where
 * it will be stored: so backward may write it there directly (tn__leaf_lend). */
TN_API tn_hook tn__on_grad_observe(tn_tensor *leaf, tn_grad_hook hook, void *user);

/* Calls a hook on the gradient *grad, a reference of the caller's: a replacement takes its place.
 * False when an error is pending afterwards, a replacement that does not fit included. */
bool tn__hook_call(const tn__hook *hook, tn_tensor **grad, bool same_dtype);

void tn__hooks_free(tn__hook *list);

/* Calls what tn_after_backward has queued. */
void tn__backward_ended(void);

#endif
