/* Buckets: where gradients lie, how they travel, and in which order.
 *
 * A bucket is one flat tensor in the group's memory; the gradient of a parameter is a view of it,
 * so nothing is copied between backward and the group. Parameters lie in the order in which their
 * gradients are expected: at first the reverse order of registration, later the order in which they
 * became ready on rank 0. Buckets travel strictly in their order, whatever is complete first: so
 * all ranks issue the same operations.
 */
#include "autograd/leaf.h"
#include "core/memory.h"
#include "distributed/parallel/ddp.h"
#include "distributed/group/group.h"
#include "distributed/on_cpu.h"
#include "tern/sys/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 }; /* bytes: a view begins at a cache line */

/* ---- Layout ---------------------------------------------------------------------------------- */

static tn_dtype grad_dtype(const tn__ddp_param *p) {
    return p->leaf->leaf->grad_dtype;
}

/* Elements that p takes of its bucket. */
static int64_t padded_count(const tn__ddp_param *p) {
    int64_t unit = ALIGNMENT / (int64_t)tn_dtype_size(grad_dtype(p));
    return (tn_count(p->leaf) + unit - 1) / unit * unit;
}

static int64_t bucket_bytes(const tn__ddp_bucket *b) {
    return b->count * (int64_t)tn_dtype_size(b->dtype);
}

/* Gives each parameter a bucket: the one of its dtype that is open, else a new one. A bucket closes
 * when it has reached its size. */
static void assign_buckets(tn_ddp_state *d) {
    int open[TN_DTYPES];
    for (int i = 0; i < TN_DTYPES; i++) {
        open[i] = -1;
    }
    d->bucket_count = 0;
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        int *at = &open[grad_dtype(p)];
        if (*at < 0) {
            *at = d->bucket_count++;
            d->buckets[*at] = (tn__ddp_bucket){.dtype = grad_dtype(p)};
        }
        p->bucket = *at;
        tn__ddp_bucket *b = &d->buckets[*at];
        b->count += padded_count(p);
        int64_t most = *at == 0 ? d->options.first_bucket : d->options.bucket_bytes;
        if (bucket_bytes(b) >= most) {
            *at = -1;
        }
    }
}

/* Calls that want a leaf with a gradient work on a frozen one as well. */
static bool param_thaw(const tn__ddp_param *p) {
    bool frozen = !tn_requires_grad(p->leaf);
    if (frozen) {
        tn_set_requires_grad(p->leaf, true);
    }
    return frozen;
}

static void param_freeze(const tn__ddp_param *p, bool frozen) {
    if (frozen) {
        tn_set_requires_grad(p->leaf, false);
    }
}

/* The parameter's place: elements from `offset` of its bucket. */
static bool param_place(tn__ddp_param *p, tn_tensor *flat, int64_t offset) {
    bool frozen = param_thaw(p);
    tn_tensor *view = tn_alias(flat, offset, tn_shape(p->leaf));
    bool ok = tn_set_grad_buffer(p->leaf, view) == TN_OK;
    if (ok) {
        p->view = tn_keep(view);
        ok = p->added || tn__ddp_hook_param(p);
    }
    param_freeze(p, frozen);
    return ok;
}

static bool allocate_buckets(tn_ddp_state *d) {
    for (int i = 0; i < d->bucket_count; i++) {
        tn__ddp_bucket *b = &d->buckets[i];
        tn_tensor *flat = tn_group_empty_on(d->group, tn_device_of(d->params[0].leaf),
                                            TN_DIMS(b->count), b->dtype);
        if (tn_is_inert(flat)) {
            return false;
        }
        b->flat = tn_keep(tn_zero_(flat)); /* what lies between the views travels too */
        b->count = 0;
        d->stats.bytes +=
            bucket_bytes(&(tn__ddp_bucket){.dtype = b->dtype, .count = tn_count(flat)});
    }
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        tn__ddp_bucket *b = &d->buckets[p->bucket];
        if (!param_place(p, b->flat, b->count)) {
            return false;
        }
        b->count += padded_count(p);
    }
    d->stats.buckets = d->bucket_count;
    return true;
}

static void param_displace(tn__ddp_param *p) {
    if (p->view) {
        bool frozen = param_thaw(p);
        tn_set_grad_buffer(p->leaf, NULL);
        param_freeze(p, frozen);
    }
    tn_release(p->view);
    tn_release(p->aside);
    p->view = p->aside = NULL;
    p->bucket = -1;
}

void tn__ddp_drop_buckets(tn_ddp_state *d) {
    for (int i = 0; i < d->placed; i++) {
        param_displace(&d->params[d->order[i]]);
    }
    d->placed = 0;
    for (int i = 0; i < d->bucket_count; i++) {
        tn_release(d->buckets[i].flat);
    }
    free(d->buckets);
    d->buckets = NULL;
    d->bucket_count = d->stats.buckets = 0;
    d->stats.bytes = 0;
}

/* Copies of the gradients that are not stale, by parameter. NULL after raising. */
static tn_tensor **carry_grads(const tn_ddp_state *d) {
    tn_tensor **grads = tn__calloc((size_t)d->param_count, sizeof(tn_tensor *));
    if (!grads) {
        tn__raise(TN_ENOMEM, "ddp", "no memory for %d gradients", d->param_count);
    }
    for (int i = 0; grads && i < d->param_count; i++) {
        tn_tensor *grad = tn_grad_of(d->params[i].leaf);
        grads[i] = grad ? tn_keep(tn_copy(grad)) : NULL;
    }
    return grads;
}

static bool bring_back(const tn_ddp_state *d, tn_tensor **grads) {
    for (int i = 0; i < d->param_count; i++) {
        const tn__ddp_param *p = &d->params[i];
        if (grads[i] && p->view) {
            bool frozen = param_thaw(p);
            tn_set_grad(p->leaf, grads[i]);
            param_freeze(p, frozen);
        }
        tn_release(grads[i]);
    }
    free(grads);
    return !tn__pending();
}

bool tn__ddp_layout(tn_ddp_state *d, const int *order, int n) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor **grads = carry_grads(d);
    if (!grads || tn__pending()) {
        return grads && bring_back(d, grads);
    }
    tn__ddp_drop_buckets(d); /* before the new ones: there is no room for both */
    memmove(d->order, order, (size_t)n * sizeof(int));
    d->placed = n;
    d->buckets = tn__calloc((size_t)n, sizeof(*d->buckets));
    if (!d->buckets) {
        tn__raise(TN_ENOMEM, "ddp", "no memory for buckets");
    } else {
        assign_buckets(d);
    }
    bool ok = !tn__pending() && allocate_buckets(d);
    if (!ok) {
        tn__ddp_drop_buckets(d);
    }
    return bring_back(d, grads) && ok;
}

/* ---- Another order --------------------------------------------------------------------------- */

static bool has_newcomers(const tn_ddp_state *d) {
    for (int i = 0; i < d->param_count; i++) {
        if (d->params[i].bucket < 0 && tn_requires_grad(d->params[i].leaf)) {
            return true;
        }
    }
    return false;
}

bool tn__ddp_relayout_due(const tn_ddp_state *d) {
    return d->rebuild_due || has_newcomers(d);
}

/* Writes to order[param_count] first what was ready, then what is placed but was not, then
 * newcomers. */
static void wanted_order(const tn_ddp_state *d, int64_t *order) {
    int n = 0;
    bool *taken = tn__calloc((size_t)d->param_count, sizeof(*taken));
    if (!taken) {
        tn__raise(TN_ENOMEM, "ddp", "no memory for an order");
        return;
    }
    for (int i = 0; d->rebuild_due && i < d->readies; i++) {
        order[n++] = d->ready[i];
        taken[d->ready[i]] = true;
    }
    for (int i = 0; i < d->placed; i++) {
        if (!taken[d->order[i]]) {
            order[n++] = d->order[i];
            taken[d->order[i]] = true;
        }
    }
    for (int i = d->param_count - 1; i >= 0; i--) {
        if (!taken[i] && tn_requires_grad(d->params[i].leaf)) {
            order[n++] = i;
        }
    }
    free(taken);
}

/* Rank `root`'s order to all; its end is marked by -1. */
bool tn__ddp_relayout(tn_ddp_state *d, int root) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *t = tn_full(TN_DIMS(d->param_count + 1), -1, TN_I64);
    if (tn_is_inert(t)) {
        return false;
    }
    int64_t *said = tn_data_mut(t);
    if (tn_group_rank(d->group) == root) {
        wanted_order(d, said);
    }
    if (tn__parallel_wait(tn_broadcast(d->group, t, root)) != TN_OK) {
        return false;
    }
    d->rebuild_due = false;
    int n = 0, *order = tn__malloc((size_t)d->param_count * sizeof(int));
    if (!order) {
        tn__raise(TN_ENOMEM, "ddp", "no memory for an order");
        return false;
    }
    for (; said[n] >= 0; n++) {
        order[n] = (int)said[n];
    }
    bool same = n == d->placed && memcmp(order, d->order, (size_t)n * sizeof(int)) == 0;
    bool ok = same || tn__ddp_layout(d, order, n);
    free(order);
    return ok;
}

/* ---- Travelling ------------------------------------------------------------------------------ */

void tn__ddp_expect(tn_ddp_state *d) {
    for (int i = 0; i < d->bucket_count; i++) {
        d->buckets[i].waiting = 0;
    }
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        p->wanted = tn_requires_grad(p->leaf);
        p->ready = false;
        d->buckets[p->bucket].waiting += p->wanted;
    }
    /* A rank that has joined does not know what is frozen elsewhere: then everything travels. */
    for (int i = 0; i < d->bucket_count; i++) {
        d->buckets[i].idle = d->buckets[i].waiting == 0 && !d->options.join;
    }
    d->readies = d->launched = 0;
}

/* Whether p keeps a gradient that must not travel: of a frozen parameter, or a sum that has been
 * taken already. */
static bool sits_out(const tn_ddp_state *d, const tn__ddp_param *p) {
    return tn_grad_of(p->leaf) && !p->ready && (!p->wanted || (d->options.sum && p->reduced));
}

/* What no gradient was written to in this backward has old numbers. */
static void fill_gaps(tn_ddp_state *d, int bucket) {
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        if (p->bucket != bucket || p->ready) {
            continue;
        }
        if (sits_out(d, p)) {
            p->aside = tn_keep(tn_copy(p->view));
            tn_zero_(p->view);
        } else if (!tn_grad_of(p->leaf)) {
            tn_zero_(p->view);
        }
    }
}

static void bucket_launch(tn_ddp_state *d, int index) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn__ddp_bucket *b = &d->buckets[index];
    const tn_ddp_options *o = &d->options;
    tn_reduction how = o->sum ? TN_SUM : TN_MEAN;
    fill_gaps(d, index);
    b->launched = tn_flight_now();
    b->work = o->hook ? o->hook(d->group, b->flat, how, o->hook_user)
                      : tn_all_reduce(d->group, b->flat, how);
    if (b->work && b->work->out && b->work->out != b->flat) {
        b->result = tn_keep(b->work->out);
    }
}

bool tn__ddp_launch(tn_ddp_state *d, bool all) {
    while (!tn__pending() && d->launched < d->bucket_count &&
           (all || d->buckets[d->launched].waiting == 0)) {
        if (!d->buckets[d->launched].idle) {
            bucket_launch(d, d->launched);
        }
        d->launched++;
    }
    return !tn__pending();
}

/* ---- The end of a backward ------------------------------------------------------------------- */

/* Raises the names of the parameters that backward did not reach. */
static bool all_reached(const tn_ddp_state *d) {
    enum { SHOWN = 8 };
    char names[512] = "";
    size_t length = 0;
    int missing = 0;
    for (int i = 0; i < d->param_count; i++) {
        const tn__ddp_param *p = &d->params[i];
        if (p->bucket < 0 || !p->wanted || p->ready) {
            continue;
        }
        if (missing++ < SHOWN && length < sizeof(names)) {
            length += (size_t)snprintf(names + length, sizeof(names) - length, "%s%s",
                                       missing > 1 ? ", " : "", p->path);
        }
    }
    if (missing > 0) {
        tn__raise(TN_ESTATE, "ddp",
                  "backward did not reach %d of %d parameters: %s%s (the option find_unused allows "
                  "it; tn_module_requires_grad takes a module out of a step)",
                  missing, d->placed, names, missing > SHOWN ? ", ..." : "");
    }
    return missing == 0;
}

/* With find_unused: on how many ranks each parameter, as placed, has a gradient. (placed) i32 */
static tn_tensor *count_users(const tn_ddp_state *d) {
    TN__ON_CPU;
    tn_tensor *users = tn_zeros(TN_DIMS(d->placed), TN_I32);
    if (tn_is_inert(users)) {
        return users;
    }
    int32_t *has = tn_data_mut(users);
    for (int i = 0; i < d->placed; i++) {
        const tn__ddp_param *p = &d->params[d->order[i]];
        has[i] = p->ready || (tn_grad_of(p->leaf) && !sits_out(d, p));
    }
    return users;
}

/* Waits for a bucket. The group runs one operation after the other, so one that is not done yet
 * began when it was launched, or when the one before it ended. */
static void bucket_arrive(tn_ddp_state *d, tn__ddp_bucket *b, double *last_end) {
    bool done = tn_work_done(b->work);
    double seconds = tn__work_seconds(b->work);
    tn__parallel_wait(b->work);
    double now = tn_flight_now();
    if (b->work && !done) {
        seconds = now - (b->launched > *last_end ? b->launched : *last_end);
        *last_end = now;
    }
    d->stats.traffic += seconds;
    b->work = NULL;
    if (b->result && !tn__pending()) {
        tn_copy_(b->flat, b->result);
    }
    tn_release(b->result);
    b->result = NULL;
}

void tn__ddp_abandon(tn_ddp_state *d) {
    tn__parallel_wait(d->announcement);
    d->announcement = NULL;
    for (int i = 0; i < d->bucket_count; i++) {
        double end = 0;
        bucket_arrive(d, &d->buckets[i], &end);
    }
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        tn_release(p->aside);
        p->aside = NULL;
    }
}

/* What has arrived becomes the gradients; users: NULL, or on how many ranks each has one. */
static void settle_grads(tn_ddp_state *d, const int32_t *users) {
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        if (d->buckets[p->bucket].idle) {
            continue;
        }
        tn__touch(p->view);
        if (p->aside) {
            tn_copy_(p->view, p->aside);
            tn_release(p->aside);
            p->aside = NULL;
            continue;
        }
        if (users && users[i] > 0 && p->wanted) {
            p->leaf->leaf->stale = false; /* another rank has brought one */
        }
        p->reduced = tn_grad_of(p->leaf) != NULL;
    }
}

bool tn__ddp_complete(tn_ddp_state *d) {
    TN_SCOPE;
    TN_NO_GRAD;
    const tn_ddp_options *o = &d->options;
    if (!o->find_unused && !all_reached(d)) {
        return false;
    }
    tn_tensor *users = o->find_unused ? count_users(d) : NULL;
    if (!tn__ddp_launch(d, true)) {
        return false;
    }
    tn_work *counting = users ? tn_all_reduce(d->group, users, TN_SUM) : NULL;
    double begin = tn_flight_now(), end = 0;
    for (int i = 0; i < d->bucket_count; i++) {
        bucket_arrive(d, &d->buckets[i], &end);
    }
    tn__parallel_wait(counting);
    d->stats.waiting += tn_flight_now() - begin;
    if (!tn__pending()) {
        tn_flight_mark("wait for gradients", begin);
        settle_grads(d, users ? tn_data(users) : NULL);
    }
    return !tn__pending();
}
