/* Buckets: where gradients are stored, and in which order.
 *
 * A bucket is one flat tensor in the group's memory; the gradient of a parameter is a view of it,
 * so nothing is copied between backward and the group. Parameters are placed in the order in which
 * their gradients are expected: at first the reverse order of registration, later the order in
 * which they became ready on rank 0.
 */
#include "autograd/leaf.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/ddp/ddp.h"
#include "distributed/parallel/flat.h"

#include <stdlib.h>
#include <string.h>

/* ---- Places ---------------------------------------------------------------------------------- */

enum { FIRST_BUCKET = 1 << 20 }; /* bytes, so that it is sent early */

/* Gives each parameter a place in a bucket: the open one of its dtype, else a new one. A bucket
 * that has reached its size is closed. */
static void assign_buckets(tn_ddp_state *d) {
    int open[TN_DTYPES];
    for (int i = 0; i < TN_DTYPES; i++) {
        open[i] = -1;
    }
    d->bucket_count = 0;
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        tn_dtype dtype = p->base.leaf->leaf->grad_dtype;
        if (open[dtype] < 0) {
            open[dtype] = d->bucket_count++;
            d->buckets[open[dtype]] = (tn__ddp_bucket){.dtype = dtype};
        }
        p->bucket = open[dtype];
        tn__ddp_bucket *b = &d->buckets[p->bucket];
        p->offset = tn__flat_place(&b->count, tn_count(p->base.leaf), tn__flat_line(dtype));
        int64_t most = d->options.bucket_bytes;
        most = p->bucket == 0 && most > FIRST_BUCKET ? FIRST_BUCKET : most;
        if (b->count * (int64_t)tn_dtype_size(dtype) >= most) { open[dtype] = -1; }
    }
}

static bool allocate_buckets(tn_ddp_state *d) {
    for (int i = 0; i < d->bucket_count; i++) {
        tn__ddp_bucket *b = &d->buckets[i];
        tn_tensor *flat = tn_group_empty_on(d->base.group, tn_device_of(d->params[0].base.leaf),
                                            TN_DIMS(b->count), b->dtype);
        if (tn_is_inert(flat)) { return false; }
        b->flat = tn_keep(tn_zero_(flat)); /* the gaps between the views are sent too */
        d->stats.bytes += b->count * (int64_t)tn_dtype_size(b->dtype);
    }
    d->stats.buckets = d->bucket_count;
    return true;
}

/* From now on the leaf's gradient is stored at `view`; NULL: anywhere. */
static void set_view(tn__ddp_param *p, tn_tensor *view) {
    bool frozen = tn__leaf_thaw(p->base.leaf);
    bool ok = tn_set_grad_buffer(p->base.leaf, view) == TN_OK;
    tn__leaf_freeze(p->base.leaf, frozen);
    tn_release(p->view);
    p->view = ok && view ? tn_keep(view) : NULL;
}

static bool place_params(tn_ddp_state *d) {
    for (int i = 0; i < d->placed && !tn__pending(); i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        set_view(p, tn_alias(d->buckets[p->bucket].flat, p->offset, tn_shape(p->base.leaf)));
    }
    return !tn__pending();
}

/* Shows the buckets to options.hook. */
static void show_buckets(tn_ddp_state *d) {
    tn_tensor **end = d->views;
    for (int i = 0; i < d->bucket_count; i++) {
        tn_ddp_bucket *shown = &d->buckets[i].shown;
        *shown = (tn_ddp_bucket){.flat = d->buckets[i].flat,
                                 .index = i,
                                 .gradients = end,
                                 .how = d->options.sum ? TN_SUM : TN_MEAN};
        for (int k = 0; k < d->placed; k++) {
            const tn__ddp_param *p = &d->params[d->order[k]];
            if (p->bucket == i) {
                *end++ = p->view;
                shown->count++;
            }
        }
    }
}

/* Makes the buckets of order[placed]. False after raising; some may be made. */
static bool make_buckets(tn_ddp_state *d) {
    d->buckets = tn__calloc_for((size_t)d->placed + 1, sizeof(*d->buckets), "ddp");
    d->views = tn__calloc_for((size_t)d->placed + 1, sizeof(tn_tensor *), "ddp");
    if (!d->buckets || !d->views) { return false; }
    assign_buckets(d);
    if (!allocate_buckets(d) || !place_params(d)) { return false; }
    show_buckets(d);
    return true;
}

void tn__ddp_drop_buckets(tn_ddp_state *d) {
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        if (p->view) { set_view(p, NULL); }
        p->bucket = -1;
    }
    for (int i = 0; i < d->bucket_count; i++) {
        tn_release(d->buckets[i].flat);
    }
    free(d->buckets);
    free(d->views);
    d->buckets = NULL;
    d->views = NULL;
    d->placed = d->bucket_count = d->stats.buckets = 0;
    d->stats.bytes = 0;
}

/* Copies the gradients that are not stale. */
static void carry_grads(tn_ddp_state *d) {
    for (int i = 0; i < d->base.count; i++) {
        tn_tensor *grad = tn_grad_of(d->params[i].base.leaf);
        d->params[i].aside = grad ? tn_keep(tn_copy(grad)) : NULL;
    }
}

static void bring_back(tn_ddp_state *d) {
    for (int i = 0; i < d->base.count; i++) {
        tn__ddp_param *p = &d->params[i];
        if (p->aside && p->view) {
            tn_copy_(p->view, p->aside);
            p->base.leaf->leaf->stale = false;
        }
        tn_release(p->aside);
        p->aside = NULL;
    }
}

/* Puts parameters into buckets in this order, which ends with -1; those already placed must be in
 * it. Every rank calls. False after raising. */
static bool layout_buckets(tn_ddp_state *d, const int64_t *order) {
    TN_SCOPE;
    TN_NO_GRAD;
    carry_grads(d);
    if (!tn__pending()) {
        tn__ddp_drop_buckets(d); /* before the new ones: memory may not hold both */
        while (order[d->placed] >= 0) {
            d->order[d->placed] = order[d->placed];
            d->placed++;
        }
        if (!make_buckets(d)) { tn__ddp_drop_buckets(d); }
    }
    bring_back(d);
    return !tn__pending();
}

/* ---- Orders ---------------------------------------------------------------------------------- */

/* First the parameters that were ready, then those placed but not ready, then new ones from last to
 * first, as in backward; then -1. (count + 1) i64, inert after raising. */
static tn_tensor *wanted_order(tn_ddp_state *d) {
    tn_tensor *t = tn_full(TN_DIMS(d->base.count + 1), -1, TN_I64);
    if (tn_is_inert(t)) { return t; }
    int64_t *order = tn_data_mut(t);
    for (int i = 0; i < d->base.count; i++) {
        d->params[i].listed = false;
    }
    for (int i = 0; d->rebuild_due && i < d->readies; i++) {
        *order++ = d->ready[i];
        d->params[d->ready[i]].listed = true;
    }
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        if (!p->listed) {
            *order++ = d->order[i];
            p->listed = true;
        }
    }
    for (int i = d->base.count - 1; i >= 0; i--) {
        if (!d->params[i].listed && tn_requires_grad(d->params[i].base.leaf)) { *order++ = i; }
    }
    return t;
}

bool tn__ddp_first_layout(tn_ddp_state *d) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *order = wanted_order(d);
    return !tn_is_inert(order) && layout_buckets(d, tn_data(order));
}

bool tn__ddp_relayout_due(const tn_ddp_state *d) {
    bool due = d->rebuild_due;
    for (int i = 0; i < d->base.count && !due; i++) {
        due = d->params[i].bucket < 0 && tn_requires_grad(d->params[i].base.leaf);
    }
    return due;
}

static bool is_order(const tn_ddp_state *d, const int64_t *order) {
    return memcmp(order, d->order, (size_t)d->placed * sizeof(*order)) == 0 && order[d->placed] < 0;
}

bool tn__ddp_relayout(tn_ddp_state *d, int root) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *order = wanted_order(d);
    if (tn_is_inert(order) ||
        tn__parallel_wait(tn_broadcast(d->base.group, order, root)) != TN_OK) {
        return false;
    }
    d->rebuild_due = false;
    return is_order(d, tn_data(order)) || layout_buckets(d, tn_data(order));
}
