/* Data parallelism: attaching to a module, and the course of a step. Read ddp_naive.c first.
 *
 * A step, on each rank:
 *
 *     forward     before: the generator is keyed; buckets are laid out again when the first
 *                 backward has shown a better order; in the first of the step buffers come from
 *                 rank 0 (not in the next, since those may be saved for the backward by then)
 *     backward    each gradient is written into its bucket; a bucket that is complete travels,
 *                 while backward goes on with the layers below
 *     its end     what is missing is an error or travels as zeros; all buckets are waited for
 *
 * An error of this rank at any point of a synchronised backward aborts the group, so that no rank
 * waits for a bucket that will never come. Under no_sync a backward is this rank's alone.
 *
 * Several modules may share a group, also in one backward: they travel in the order in which
 * backward reaches their parameters, which must be the same on all ranks.
 */
#include "autograd/mode.h"
#include "core/memory.h"
#include "distributed/parallel/ddp.h"
#include "distributed/on_cpu.h"
#include "nn/module.h"
#include "tensor/tensor.h"
#include "tern/sys/device.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- A backward ------------------------------------------------------------------------------ */

static void finish_step(tn_ddp_state *d) {
    if (tn__ddp_complete(d)) {
        d->stats.steps++;
        d->rebuild_due |= d->stats.steps == 1 && d->options.rebuild;
    }
}

static void give_up(tn_ddp_state *d, const char *reason) {
    tn_group_abort(d->group, reason);
    tn__ddp_abandon(d);
}

/* A parameter that was thawed since the last synchronised forward is in no bucket. False after
 * raising about one that has a gradient: it is this rank's own. */
static bool all_in_buckets(const tn_ddp_state *d) {
    for (int i = 0; i < d->param_count; i++) {
        const tn__ddp_param *p = &d->params[i];
        if (p->bucket < 0 && tn_requires_grad(p->leaf) && tn_grad_of(p->leaf)) {
            tn__raise(
                TN_ESTATE, "ddp",
                "%s has a gradient but no bucket to travel in: it was frozen until after the last "
                "synchronised forward (a forward outside of TN_NO_SYNC gives it one)",
                p->path);
            return false;
        }
    }
    return true;
}

static void backward_ended(void *user) {
    tn_ddp_state *d = user;
    d->running = false;
    if (d->finished) {
        free(d);
        return;
    }
    if (d->sync && d->touched && !tn__pending()) {
        tn_flight_mark("backward", d->began);
        if (all_in_buckets(d) && tn__ddp_hear_backward(d)) {
            finish_step(d);
        }
    }
    if (d->sync && tn__pending()) {
        give_up(d, tn_error_message());
    }
}

/* A backward comes near: its gradient is at the module's output, or at a parameter. */
static bool begin_backward(tn_ddp_state *d) {
    if (!d->running && tn_after_backward(backward_ended, d) == TN_OK) {
        d->running = true;
        d->touched = false;
        d->sync = d->no_sync == 0;
        d->began = tn_flight_now();
    }
    return d->running;
}

/* This backward is one of the module's: it has come to a parameter, or to the output of a module
 * that wants gradients. */
static bool touch_module(tn_ddp_state *d) {
    if (!begin_backward(d) || d->touched) {
        return d->running;
    }
    d->touched = true;
    if (d->sync) {
        d->buffers_due = true;
        tn__ddp_expect(d);
        if (d->options.join && !tn__ddp_announce_backward(d)) {
            return false;
        }
    }
    return tn__round_end(d->group) == TN_OK;
}

static bool wants_gradients(const tn_ddp_state *d) {
    for (int i = 0; i < d->placed; i++) {
        if (tn_requires_grad(d->params[d->order[i]].leaf)) {
            return true;
        }
    }
    return false;
}

/* A rank whose backward reaches no parameter beyond this point must not leave the others
 * waiting. */
static void backward_begins(tn_module *m, void *user) {
    (void)m;
    tn_ddp_state *d = user;
    if (begin_backward(d) && tn__grad_self.accumulating > 0 && wants_gradients(d)) {
        touch_module(d);
    }
}

/* Before a gradient is written: not on top of a sum that has been taken already, which the next sum
 * would take N times. An average may be added to: the average of what all have is itself. */
static tn_tensor *grad_adding(tn_tensor *grad, void *user) {
    (void)grad;
    tn__ddp_param *p = user;
    tn_ddp_state *d = p->ddp;
    if (!touch_module(d)) {
        return NULL;
    }
    p->reduced = p->reduced && tn_grad_of(p->leaf);
    if (p->reduced && d->options.sum && tn_group_size(d->group) > 1) {
        tn__raise(TN_ESTATE, "ddp",
                  "%s has a gradient that is summed over the ranks already, and a second backward "
                  "adds to it (zero the gradients first, or put all backwards but the last under "
                  "TN_NO_SYNC)",
                  p->path);
    }
    return NULL;
}

static void grad_added(tn_tensor *leaf, void *user) {
    tn__ddp_param *p = user;
    tn_ddp_state *d = p->ddp;
    if (tn__pending() || !d->running || !d->sync) {
        return;
    }
    if (p->bucket < 0) {
        tn__raise(TN_ESTATE, "ddp", "%s has no bucket, since making buckets failed", p->path);
    } else if (p->ready) {
        tn__raise(TN_ESTATE, "ddp", "%s got two gradients: a hook has run a backward of its own",
                  p->path);
    } else if (tn_grad_of(leaf) != p->view) {
        tn__raise(TN_ESTATE, "ddp", "the gradient buffer of %s was exchanged (tn_set_grad_buffer)",
                  p->path);
    } else {
        p->ready = true;
        d->ready[d->readies++] = (int)(p - d->params);
        d->buckets[p->bucket].waiting -= p->wanted;
        if (d->options.overlap) {
            tn__ddp_launch(d, false);
        }
    }
}

bool tn__ddp_hook_param(tn__ddp_param *p) {
    p->adding = tn_on_grad(p->leaf, grad_adding, p);
    p->added = p->adding ? tn_on_accumulated(p->leaf, grad_added, p) : 0;
    return p->added != 0;
}

void tn__ddp_pass(tn_ddp_state *d) {
    tn__ddp_expect(d);
    for (int i = 0; i < d->param_count; i++) {
        d->params[i].wanted = false;
    }
    finish_step(d);
    if (tn__pending()) {
        give_up(d, tn_error_message());
    }
}

/* ---- A forward ------------------------------------------------------------------------------- */

static tn_values forward_begins(tn_module *m, tn_values in, void *user) {
    tn_ddp_state *d = user;
    if (!tn__will_record() || tn__pending()) {
        return in;
    }
    tn__round_begin(d->group);
    if (d->no_sync > 0 || tn_in_recompute()) {
        return in;
    }
    bool relayout = tn__ddp_relayout_due(d);
    bool buffers = d->options.broadcast_buffers && d->buffers_due && m->training;
    int root = 0;
    if (d->options.join) {
        root = tn__ddp_announce(d, TN__DDP_FORWARD | (relayout ? TN__DDP_RELAYOUT : 0) |
                                       (buffers ? TN__DDP_BUFFERS : 0));
    }
    if (root >= 0 && (!relayout || tn__ddp_relayout(d, root)) && buffers) {
        d->buffers_due = tn__parallel_share(m, d->group, root, false) != TN_OK;
    }
    if (tn__pending()) {
        tn_group_abort(d->group, tn_error_message());
    }
    return in;
}

/* ---- Attaching ------------------------------------------------------------------------------- */

tn_ddp_options tn_ddp_defaults(void) {
    return (tn_ddp_options){.bucket_bytes = 25 << 20,
                            .first_bucket = 1 << 20,
                            .broadcast_buffers = true,
                            .rebuild = true,
                            .overlap = true};
}

static bool good_options(const tn_ddp_options *o) {
    if (o->bucket_bytes < 1 || o->first_bucket < 1) {
        tn__raise(TN_EVALUE, "ddp", "buckets of %lld bytes, the first of %lld (at least 1)",
                  (long long)o->bucket_bytes, (long long)o->first_bucket);
    }
    return !tn__pending();
}

static bool same_everywhere(tn_module *m, tn_group *g, const tn_ddp_options *o, bool *differ) {
    char text[256];
    snprintf(text, sizeof(text),
             "bucket_bytes %lld, first_bucket %lld, sum %d, find_unused %d, broadcast_buffers %d, "
             "join %d, rebuild %d, overlap %d, %s",
             (long long)o->bucket_bytes, (long long)o->first_bucket, o->sum, o->find_unused,
             o->broadcast_buffers, o->join, o->rebuild, o->overlap, o->hook ? "a hook" : "no hook");
    return tn__parallel_compare(m, g, text, "ddp", differ);
}

static bool count_param(const tn_entry *entry, void *user) {
    (void)entry;
    ++*(int *)user;
    return true;
}

static bool add_param(const tn_entry *entry, void *user) {
    tn_ddp_state *d = user;
    char *path = tn__strdup(entry->path);
    if (!path) {
        return false;
    }
    d->params[d->param_count++] =
        (tn__ddp_param){.ddp = d, .path = path, .leaf = tn_keep(*entry->field), .bucket = -1};
    return true;
}

/* Buckets hold gradients of one device. */
static bool one_device(const tn_ddp_state *d) {
    for (int i = 1; i < d->param_count; i++) {
        const tn__ddp_param *a = &d->params[0], *b = &d->params[i];
        if (!tn__same_device(tn_device_of(a->leaf), tn_device_of(b->leaf))) {
            tn__raise(TN_EDEVICE, "ddp", "%s is on %s, but %s is on %s", a->path,
                      tn_device_text(tn_device_of(a->leaf)), b->path,
                      tn_device_text(tn_device_of(b->leaf)));
            return false;
        }
    }
    return true;
}

static bool list_params(tn_ddp_state *d) {
    int count = 0;
    tn_module_each(d->module, (tn_walk){0}, count_param, &count);
    if (tn__pending()) {
        return false;
    }
    d->params = tn__calloc((size_t)count, sizeof(*d->params));
    d->order = tn__calloc((size_t)count, sizeof(int));
    d->ready = tn__calloc((size_t)count, sizeof(int));
    if (d->params && d->order && d->ready) {
        tn_module_each(d->module, (tn_walk){0}, add_param, d);
    }
    if (!tn__pending() && (!d->params || !d->order || !d->ready || d->param_count < count)) {
        tn__raise(TN_ENOMEM, "ddp", "no memory for %d parameters", count);
    }
    return !tn__pending();
}

/* Backward goes from the last layer to the first. */
static bool first_layout(tn_ddp_state *d) {
    int n = 0, *order = tn__malloc((size_t)d->param_count * sizeof(int));
    if (!order) {
        tn__raise(TN_ENOMEM, "ddp", "no memory for an order");
        return false;
    }
    for (int i = d->param_count - 1; i >= 0; i--) {
        if (tn_requires_grad(d->params[i].leaf)) {
            order[n++] = i;
        }
    }
    bool ok = tn__ddp_layout(d, order, n);
    free(order);
    return ok;
}

static bool prepare_join(tn_ddp_state *d) {
    TN_SCOPE;
    TN__ON_CPU;
    d->said = tn_keep(tn_zeros(TN_DIMS(1), TN_I64));
    d->heard = tn_keep(tn_zeros(TN_DIMS(tn_group_size(d->group), 1), TN_I64));
    return !tn__pending();
}

/* The module is finished, or attaching failed. Uses nothing of the group, which may be gone, unless
 * buckets travel. */
static void state_free(void *user) {
    tn_ddp_state *d = user;
    if (d->running) {
        give_up(d, "the module was finished during its backward");
    }
    tn__ddp_drop_buckets(d);
    for (int i = 0; i < d->param_count; i++) {
        tn__ddp_param *p = &d->params[i];
        tn_remove_hook(p->leaf, p->adding);
        tn_remove_hook(p->leaf, p->added);
        tn_release(p->leaf);
        free(p->path);
    }
    free(d->params);
    free(d->order);
    free(d->ready);
    tn_release(d->said);
    tn_release(d->heard);
    d->finished = true;
    if (!d->running) {
        free(d);
    }
}

static void change_no_sync(void *state, int change) {
    tn_ddp_state *d = state;
    d->no_sync += change > 0 || d->no_sync > 0 ? change : 0;
}

static const tn__strategy ddp_strategy = {.name = "data parallelism", .no_sync = change_no_sync};

/* The module is the same on all ranks. */
static tn_ddp_state *attach_module(tn_module *m, tn_group *g, tn_ddp_options options) {
    tn_ddp_state *d = tn__calloc(1, sizeof(*d));
    if (!d) {
        tn__raise(TN_ENOMEM, "ddp", "no memory");
        return NULL;
    }
    *d = (tn_ddp_state){.module = m, .group = g, .options = options, .buffers_due = true};
    tn_module_hooks hooks = {.before = forward_begins,
                             .backward_before = backward_begins,
                             .user = d,
                             .free_user = state_free};
    if (!list_params(d) || !one_device(d) || !first_layout(d) ||
        (options.join && !prepare_join(d)) || !tn_module_hook(m, hooks)) {
        state_free(d);
        return NULL;
    }
    tn__module_set_strategy(m, &ddp_strategy, d);
    tn__round_begin(g);
    return d;
}

tn_ddp_state *tn_ddp(void *m, tn_group *g, tn_ddp_options options) {
    bool differ = false;
    tn_ddp_state *d = NULL;
    if (tn__parallel_may_attach(m, g, "ddp") && good_options(&options) &&
        same_everywhere(m, g, &options, &differ) && tn__parallel_share(m, g, 0, true) == TN_OK) {
        d = attach_module(m, g, options);
    }
    if (!d && !differ) { /* a difference is known to all; of the rest the others know nothing */
        tn_group_abort(g, tn_error_message());
    }
    return d;
}

/* ---- What a program asks --------------------------------------------------------------------- */

tn_ddp_stats tn_ddp_statistics(const tn_ddp_state *ddp) {
    return ddp ? ddp->stats : (tn_ddp_stats){0};
}
