/* A module on another device: replaces every parameter and buffer by a copy there.
 *
 * All copies are made before the first field changes,
 * so a full device leaves the module as it was.
 */
#include "autograd/leaf.h"
#include "core/memory.h"
#include "nn/defer.h"
#include "nn/misuse.h"
#include "tern/sys/device.h"

#include <stdlib.h>

/* A field and what will be in it. */
typedef struct move {
    tn_tensor **field;
    tn_tensor *to; /* one reference */
} move;

typedef struct plan {
    tn_device device;
    move *moves;
    int count;
    int64_t capacity;
} plan;

/* Optimisers and graphs that will call a module again hold its lists. While it is called its fields
 * may hold copies of its parameters. */
static bool check_free(tn_module *m, const char *path, void *user) {
    const char *space = *path ? " " : "";
    if (m->lists && m->lists->lending) {
        tn__raise(TN_ESTATE, "module_to", "%s%s%s is being called", m->kind, space, path);
    } else if (m->lists && __atomic_load_n(&m->lists->refs, __ATOMIC_ACQUIRE) > 1) {
        bool stepped = __atomic_load_n(&m->lists->stepped, __ATOMIC_RELAXED) > 0;
        tn__raise(TN_ESTATE, "module_to", "%s%s%s is held by %s: modules are moved first", m->kind,
                  space, path, stepped ? "an optimiser" : "a graph that will call it again");
    }
    return !tn__pending();
}

/* What is attached to a leaf would be lost when the tensor is replaced: hooks and a gradient buffer
 * belong to others. */
static bool may_leave(const tn_entry *entry) {
    const tn_leaf *leaf = (*entry->field)->leaf;
    if (leaf && (leaf->preset || leaf->hooks)) {
        return tn__fail(TN_ESTATE, "module_to", "%s has %s: modules are moved first", entry->path,
                        leaf->preset ? "a gradient buffer" : "hooks");
    }
    return true;
}

/* t on the device, a leaf that requires a gradient if t does. Inert after raising. */
static tn_tensor *copy_on(tn_device device, tn_tensor *t) {
    tn_tensor *copy =
        tn__deferred(t) ? tn__deferred_like(t, tn_dtype_of(t), device) : tn_to(t, device);
    return tn__leaf_like(copy, t) ? copy : tn_inert();
}

/* The copy that an earlier field with the same tensor got: they stay shared. NULL: this is the
 * first. */
static tn_tensor *copied_before(const plan *p, const tn_tensor *t) {
    for (int i = 0; i < p->count; i++) {
        if (*p->moves[i].field == t) { return p->moves[i].to; }
    }
    return NULL;
}

static bool plan_entry(const tn_entry *entry, void *user) {
    plan *p = user;
    tn_tensor *t = *entry->field;
    bool there = tn__same_device(t->storage->device, p->device);
    if (entry->stored != t) { /* its field may have no elements now */
        if (!there) {
            tn__raise(TN_ESTATE, "module_to", "%s is sharded: modules are moved first",
                      entry->path);
        }
        return there;
    }
    if (!tn__usable_or_deferred(t, "module_to")) { return false; }
    if (there) { return true; }
    if (!may_leave(entry) ||
        !tn__grow(&p->moves, p->count + 1, &p->capacity, sizeof(*p->moves), "module_to")) {
        return false;
    }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *before = copied_before(p, t), *to = before ? before : copy_on(p->device, t);
    if (tn_is_inert(to)) { return false; }
    p->moves[p->count++] = (move){entry->field, tn_keep(to)};
    return true;
}

/* A tied parameter has one tensor: its name elsewhere would keep the old one. */
static bool check_tie(const tn_entry *entry, void *user) {
    const plan *p = user;
    for (int i = 0; i < p->count; i++) {
        if (p->moves[i].field == entry->field) { return true; }
    }
    if (copied_before(p, *entry->field)) {
        tn__raise(TN_ESTATE, "module_to",
                  "%s is tied to a parameter that would move to %s (move a module that has both)",
                  entry->path, tn_device_text(p->device));
    }
    return !tn__pending();
}

tn_status tn_module_to(void *module, tn_device device) {
    tn_module *m = tn__module_of(module, "module_to");
    if (!m || tn__pending() || !tn__device_exists(device, "module_to")) { return tn_error(); }
    plan p = {.device = device};
    tn_module_each_module(m, check_free, NULL);
    if (!tn__pending()) {
        tn_walk all = {.buffers = true, .scratch = true, .with_shared = true};
        tn_module_each(m, all, plan_entry, &p);
    }
    tn_module *root = !tn__pending() && p.count > 0 ? tn__module_root(m, "module_to") : m;
    if (root && root != m) { tn_module_each(root, (tn_walk){.with_shared = true}, check_tie, &p); }
    for (int i = 0; i < p.count; i++) {
        if (!tn__pending()) { tn__field_set(p.moves[i].field, p.moves[i].to); }
        tn_release(p.moves[i].to);
    }
    free(p.moves);
    return tn_error();
}
