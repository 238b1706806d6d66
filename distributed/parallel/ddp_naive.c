/* Data parallelism in the plainest way: what ddp.c does, without what makes it fast.
 *
 * Every rank has the same module and sees its own batch. The gradient of the whole batch is the
 * mean of the ranks' gradients. So: at the start all take rank 0's parameters; before the first
 * forward of a step, its buffers; after each backward every gradient is replaced by its mean over
 * the ranks. Then all optimisers take the same step, and the parameters stay equal.
 *
 * That is three hooks: one before the forward of the module; one on each parameter, which tells
 * that a backward reaches this module; and one at the end of that backward. What it costs: nothing
 * travels while backward computes, and each small gradient travels alone.
 * ddp.c mends both, with buckets.
 */
#include "autograd/mode.h"
#include "core/memory.h"
#include "distributed/parallel/ddp.h"
#include "nn/module.h"

#include <stdlib.h>

typedef struct leaf {
    tn_tensor *tensor; /* one reference */
    tn_hook hook;
} leaf;

typedef struct naive {
    tn_module *module;
    tn_group *group;
    leaf *leaves;
    int count, room;
    int no_sync;      /* depth */
    bool running;     /* a backward has reached a parameter */
    bool buffers_due; /* none came since the last, or attaching */
    bool finished;    /* the module went while it ran */
} naive;

static void naive_free(void *user) {
    naive *d = user;
    for (int i = 0; i < d->count; i++) {
        tn_remove_hook(d->leaves[i].tensor, d->leaves[i].hook);
        tn_release(d->leaves[i].tensor);
    }
    d->count = 0;
    d->finished = true;
    if (!d->running) {
        free(d->leaves);
        free(d);
    }
}

/* ---- A step ---------------------------------------------------------------------------------- */

static tn_values forward_begins(tn_module *m, tn_values in, void *user) {
    naive *d = user;
    if (tn__will_record()) {
        tn__round_begin(d->group);
        if (m->training && d->buffers_due && !tn_in_recompute()) {
            d->buffers_due = tn__parallel_share(m, d->group, 0, false) != TN_OK;
        }
    }
    return in;
}

static bool average_grad(const tn_entry *entry, void *user) {
    const naive *d = user;
    tn_tensor *grad = tn_grad_of(*entry->field);
    if (!tn_requires_grad(*entry->field)) {
        return true;
    }
    if (!grad) {
        tn__raise(TN_ESTATE, "ddp_naive", "backward did not reach the parameter %s", entry->path);
        return false;
    }
    return tn__parallel_wait(tn_all_reduce(d->group, grad, TN_MEAN)) == TN_OK;
}

static void backward_ended(void *user) {
    naive *d = user;
    d->running = false;
    if (d->finished) {
        naive_free(d);
        return;
    }
    if (tn_error() == TN_OK && d->no_sync == 0) {
        tn_module_each(d->module, (tn_walk){0}, average_grad, d);
        d->buffers_due = true;
    }
    if (tn_error() != TN_OK) { /* the other ranks must not wait for this one */
        tn_group_abort(d->group, tn_error_message());
    }
}

/* The first gradient of a backward asks for the reduction at its end. */
static void gradient_added(tn_tensor *unused, void *user) {
    naive *d = user;
    (void)unused;
    if (!d->running && tn_after_backward(backward_ended, d) == TN_OK) {
        d->running = true;
        tn__round_end(d->group);
    }
}

/* ---- Attaching ------------------------------------------------------------------------------- */

static bool hook_leaf(const tn_entry *entry, void *user) {
    naive *d = user;
    if (!tn_requires_grad(*entry->field)) {
        return true;
    }
    if (d->count == d->room) {
        int room = 2 * d->room + 16;
        leaf *more = tn__realloc(d->leaves, (size_t)room * sizeof(*more));
        if (!more) {
            tn__raise(TN_ENOMEM, "ddp_naive", "no memory for %d parameters", room);
            return false;
        }
        d->leaves = more;
        d->room = room;
    }
    tn_hook hook = tn_on_accumulated(*entry->field, gradient_added, d);
    if (hook) {
        d->leaves[d->count++] = (leaf){tn_keep(*entry->field), hook};
    }
    return hook != 0;
}

static void change_no_sync(void *state, int change) {
    naive *d = state;
    d->no_sync += change > 0 || d->no_sync > 0 ? change : 0;
}

static const tn__strategy naive_strategy = {.name = "data parallelism", .no_sync = change_no_sync};

static void attach_module(tn_module *m, tn_group *g) {
    naive *d = tn__calloc(1, sizeof(*d));
    if (!d) {
        tn__raise(TN_ENOMEM, "ddp_naive", "no memory");
        return;
    }
    *d = (naive){.module = m, .group = g, .buffers_due = true};
    tn_module_each(m, (tn_walk){0}, hook_leaf, d);
    tn_module_hooks hooks = {.before = forward_begins, .user = d, .free_user = naive_free};
    if (tn_error() != TN_OK || !tn_module_hook(m, hooks)) {
        naive_free(d);
        return;
    }
    tn__module_set_strategy(m, &naive_strategy, d);
    tn__round_begin(g);
}

tn_status tn_ddp_naive(void *m, tn_group *g) {
    bool differ = false;
    if (tn__parallel_may_attach(m, g, "ddp_naive") &&
        tn__parallel_compare(m, g, "of ddp_naive", "ddp_naive", &differ) &&
        tn__parallel_share(m, g, 0, true) == TN_OK) {
        attach_module(m, g);
    }
    if (tn_error() != TN_OK && !differ) {
        tn_group_abort(g, tn_error_message());
    }
    return tn_error();
}
