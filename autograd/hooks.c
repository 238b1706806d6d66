/* Hooks: adding, removing and calling them; what is queued for the end of a backward. */
#include "autograd/hooks.h"

#include "autograd/leaf.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "tern/sys/device.h"

/* ---- The list -------------------------------------------------------------------------------- */

/* Appends a copy of `hook`, with an id. 0 after raising. */
static tn_hook add_hook(tn__hook **list, tn__hook hook, const char *operation) {
    static int64_t last;
    if (!hook.before && !hook.after) {
        tn__raise(TN_EVALUE, operation, "the hook is NULL");
        return 0;
    }
    tn__hook *made = tn__malloc_for(sizeof *made, operation);
    if (!made) { return 0; }
    *made = hook;
    made->id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    while (*list) {
        list = &(*list)->next;
    }
    *list = made;
    return made->id;
}

tn_hook tn_on_grad(tn_tensor *t, tn_grad_hook hook, void *user) {
    if (!tn__readable(t, "on_grad")) { return 0; }
    if (t->node) {
        return add_hook(&t->node->hooks,
                        (tn__hook){.output = t->output, .before = hook, .user = user}, "on_grad");
    }
    tn_leaf *leaf = tn__usable_leaf(t, "on_grad");
    return leaf ? add_hook(&leaf->hooks, (tn__hook){.before = hook, .user = user}, "on_grad") : 0;
}

tn_hook tn__on_grad_observe(tn_tensor *t, tn_grad_hook hook, void *user) {
    tn_leaf *leaf = tn__usable_leaf(t, "on_grad");
    return leaf ? add_hook(&leaf->hooks, (tn__hook){.before = hook, .observes = true, .user = user},
                           "on_grad")
                : 0;
}

tn_hook tn_on_accumulated(tn_tensor *t, tn_accumulated_hook hook, void *user) {
    tn_leaf *leaf = tn__usable_leaf(t, "on_accumulated");
    return leaf ? add_hook(&leaf->hooks, (tn__hook){.after = hook, .user = user}, "on_accumulated")
                : 0;
}

static void take_out(tn__hook **list, tn_hook id) {
    while (*list && (*list)->id != id) {
        list = &(*list)->next;
    }
    tn__hook *gone = *list;
    if (gone) {
        *list = gone->next;
        free(gone);
    }
}

void tn_remove_hook(tn_tensor *t, tn_hook id) {
    if (t && t->node) { take_out(&t->node->hooks, id); }
    if (t && t->leaf) { take_out(&t->leaf->hooks, id); }
}

void tn__hooks_free(tn__hook *list) {
    while (list) {
        tn__hook *next = list->next;
        free(list);
        list = next;
    }
}

/* ---- Calling --------------------------------------------------------------------------------- */

bool tn__hook_call(const tn__hook *hook, tn_tensor **grad, bool same_dtype) {
    TN_SCOPE;
    tn_tensor *given = *grad, *other = hook->before(given, hook->user);
    if (!other || other == given) { return !tn__pending(); }
    if (!tn__usable(other, "gradient hook")) { return false; }
    if (!tn_dims_equal(other->dims, given->dims) || (same_dtype && other->dtype != given->dtype)) {
        return tn__fail(TN_ESHAPE, "gradient hook",
                        "the gradient is %s %s but the hook returned %s %s",
                        tn_dtype_name(given->dtype), tn_shape_text(given),
                        tn_dtype_name(other->dtype), tn_shape_text(other));
    }
    if (!tn__same_device(other->storage->device, given->storage->device)) {
        return tn__fail(
            TN_EDEVICE, "gradient hook", "the gradient is on %s but the hook returned one on %s",
            tn_device_text(given->storage->device), tn_device_text(other->storage->device));
    }
    *grad = tn_keep(other);
    tn_release(given);
    return !tn__pending();
}

/* ---- The end of a backward ------------------------------------------------------------------- */

tn_status tn_after_backward(void (*f)(void *user), void *user) {
    if (!f) { return tn__raise(TN_EVALUE, "after_backward", "the function is NULL"); }
    if (tn__grad_self.backward_depth == 0) {
        return tn__raise(TN_ESTATE, "after_backward", "no backward is running on this thread");
    }
    tn__after *after = tn__malloc_for(sizeof *after, "after_backward");
    if (!after) { return TN_ENOMEM; }
    *after = (tn__after){NULL, f, user};
    tn__after **end = &tn__grad_self.after;
    while (*end) {
        end = &(*end)->next;
    }
    *end = after;
    return TN_OK;
}

void tn__backward_ended(void) {
    while (tn__grad_self.after) {
        TN_SCOPE;
        tn__after *next = tn__grad_self.after;
        tn__grad_self.after = next->next;
        next->f(next->user);
        free(next);
    }
}
