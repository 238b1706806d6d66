/* How gradients are sent: buckets go strictly in their order, no matter which is complete first, so
 * that all ranks issue the same operations.
 */
#include "autograd/leaf.h"
#include "distributed/group/group.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/ddp/ddp.h"
#include "tern/sys/tensor.h"

/* ---- Sending --------------------------------------------------------------------------------- */

void tn__ddp_expect(tn_ddp_state *d) {
    for (int i = 0; i < d->bucket_count; i++) {
        d->buckets[i].waiting = 0;
    }
    for (int i = 0; i < d->base.count; i++) {
        tn__ddp_param *p = &d->params[i];
        p->base.wanted = p->base.wanted && p->bucket >= 0;
        if (p->base.wanted) { d->buckets[p->bucket].waiting++; }
    }
    /* A rank that has joined does not know what is frozen elsewhere: then everything is sent. */
    for (int i = 0; i < d->bucket_count; i++) {
        d->buckets[i].idle = d->buckets[i].waiting == 0 && !d->options.join;
    }
    d->readies = d->launched = 0;
}

/* Whether p keeps a gradient that must not be sent: it is frozen, or the gradient is summed
 * already. */
static bool sits_out(const tn_ddp_state *d, const tn__ddp_param *p) {
    return tn_grad_of(p->base.leaf) && !p->base.ready &&
           (!p->base.wanted || (d->options.sum && p->reduced));
}

/* Zeroes the slots that got no gradient in this backward: they hold old numbers. */
static void fill_gaps(tn_ddp_state *d, int bucket) {
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        if (p->bucket != bucket || p->base.ready) { continue; }
        if (sits_out(d, p)) {
            p->aside = tn_keep(tn_copy(p->view));
            tn_zero_(p->view);
        } else if (!tn_grad_of(p->base.leaf)) {
            tn_zero_(p->view);
        }
    }
}

/* Counts what was given to the group. */
static void count_sent(tn_ddp_state *d, const tn_work *w) {
    if (w) { d->stats.sent += w->t.count * (int64_t)tn_dtype_size(w->t.dtype); }
}

static void call_hook(tn_ddp_state *d, tn__ddp_bucket *b, int stage) {
    const tn_ddp_options *o = &d->options;
    b->shown.arrived = b->result;
    b->work = o->hook(d->base.group, &b->shown, stage, o->hook_user);
    b->shown.arrived = NULL;
    count_sent(d, b->work);
    tn_release(b->result);
    bool other = b->work && b->work->out && b->work->out != b->flat;
    b->result = other ? tn_keep(b->work->out) : NULL;
}

static void bucket_launch(tn_ddp_state *d, int index) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn__ddp_bucket *b = &d->buckets[index];
    fill_gaps(d, index);
    if (d->options.hook) {
        b->shown.last = true;
        for (int i = index + 1; i < d->bucket_count; i++) {
            b->shown.last &= d->buckets[i].idle;
        }
        call_hook(d, b, 0);
        return;
    }
    b->work = tn_all_reduce(d->base.group, b->flat, b->shown.how);
    count_sent(d, b->work);
}

/* Sends the next buckets as long as they are complete; `all`: even incomplete ones. */
static bool launch_buckets(tn_ddp_state *d, bool all) {
    while (!tn__pending() && d->launched < d->bucket_count &&
           (all || d->buckets[d->launched].waiting == 0)) {
        if (!d->buckets[d->launched].idle) { bucket_launch(d, d->launched); }
        d->launched++;
    }
    return !tn__pending();
}

void tn__ddp_ready(tn_ddp_state *d, tn__ddp_param *p) {
    p->base.ready = true;
    d->ready[d->readies++] = p - d->params;
    d->buckets[p->bucket].waiting -= p->base.wanted;
    if (d->options.overlap) { launch_buckets(d, false); }
}

/* ---- The end of a backward ------------------------------------------------------------------- */

/* With find_unused: on how many ranks each parameter, as placed, has a gradient. (placed) i32 */
static tn_tensor *count_users(const tn_ddp_state *d) {
    TN__ON_CPU;
    tn_tensor *users = tn_zeros(TN_DIMS(d->placed), TN_I32);
    int32_t *has = tn_is_inert(users) ? NULL : tn_data_mut(users);
    for (int i = 0; has && i < d->placed; i++) {
        const tn__ddp_param *p = &d->params[d->order[i]];
        has[i] = p->base.ready || (tn_grad_of(p->base.leaf) && !sits_out(d, p));
    }
    return users;
}

static void bucket_arrive(tn__ddp_bucket *b) {
    tn__parallel_wait(b->work);
    b->work = NULL;
}

/* Waits for all buckets. A hook's later stages begin here, each for all buckets in their order, so
 * that all ranks issue in the same order. */
static void arrive_all(tn_ddp_state *d) {
    bool more = true;
    for (int stage = 1; more; stage++) {
        more = false;
        for (int i = 0; i < d->bucket_count; i++) {
            tn__ddp_bucket *b = &d->buckets[i];
            bool travels = b->work != NULL;
            bucket_arrive(b);
            if (travels && d->options.hook && !tn__pending()) {
                call_hook(d, b, stage);
                more |= b->work != NULL;
            }
        }
    }
}

/* The received values become the gradients; users: NULL, or on how many ranks each has one. */
static void settle_grads(tn_ddp_state *d, const int32_t *users) {
    for (int i = 0; i < d->placed; i++) {
        tn__ddp_param *p = &d->params[d->order[i]];
        if (d->buckets[p->bucket].idle) { continue; }
        tn__touch(p->view);
        if (p->aside) {
            tn_copy_(p->view, p->aside);
            tn_release(p->aside);
            p->aside = NULL;
            continue;
        }
        if (users && users[i] > 0 && p->base.wanted) {
            p->base.leaf->leaf->stale = false; /* another rank has sent one */
        }
        p->reduced = tn_grad_of(p->base.leaf) != NULL;
    }
}

bool tn__ddp_complete(tn_ddp_state *d) {
    TN_SCOPE;
    TN_NO_GRAD;
    if (!d->options.find_unused && !tn__parallel_all_ready(&d->base)) { return false; }
    tn_tensor *users = d->options.find_unused ? count_users(d) : NULL;
    if (!launch_buckets(d, true)) { return false; }
    tn_work *counting = users ? tn_all_reduce(d->base.group, users, TN_SUM) : NULL;
    double begin = tn_flight_now();
    arrive_all(d);
    tn__parallel_wait(counting);
    d->stats.waiting += tn_flight_now() - begin;
    if (tn__pending()) { return false; }
    tn_flight_mark("wait for gradients", begin);
    settle_grads(d, users ? tn_data(users) : NULL);
    if (tn__pending()) { return false; }
    d->stats.steps++;
    d->rebuild_due |= d->stats.steps == 1;
    return true;
}

void tn__ddp_abandon(tn__parallel *p) {
    tn_ddp_state *d = (tn_ddp_state *)p;
    tn__parallel_wait(d->join.backward);
    d->join.backward = NULL;
    for (int i = 0; i < d->bucket_count; i++) {
        bucket_arrive(&d->buckets[i]);
        tn_release(d->buckets[i].result);
        d->buckets[i].result = NULL;
    }
    for (int i = 0; i < p->count; i++) {
        tn_release(d->params[i].aside);
        d->params[i].aside = NULL;
    }
}
