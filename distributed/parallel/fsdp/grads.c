/* Where gradients of a unit are stored, and how they are sent.
 *
 * Whole gradients briefly need as much memory as the wholes: two buffers serve all units in turn.
 * The rest, stage 1, and a set whose gradients stay (TN_NO_SYNC, find_unused) have their own. One
 * message sums them over the ranks and gives each its part. With offload the part is then copied to
 * the CPU, where parts are stored.
 */
#include "autograd/leaf.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/fsdp/fsdp.h"
#include "tern/sys/device.h"

/* ---- The parts' gradients -------------------------------------------------------------------- */

/* Gives the part its place in the set's part gradients, even while it is frozen. */
static bool hold_part_grad(const tn__fsdp_param *p) {
    tn_tensor *grad = tn_alias(p->set->grad, p->place, TN_DIMS(p->length));
    bool frozen = tn__leaf_thaw(p->part);
    bool ok = tn_set_grad_dtype(p->part, p->set->kind.grad) == TN_OK &&
              tn_set_grad_buffer(p->part, grad) == TN_OK;
    tn__leaf_freeze(p->part, frozen);
    return ok;
}

bool tn__fsdp_make_part_grads(tn__fsdp_set *set) {
    TN_SCOPE;
    tn_tensor *grad = tn_zero_(tn_empty_on(tn__fsdp_home(set), TN_DIMS(set->each), set->kind.grad));
    set->grad = tn_is_inert(grad) ? NULL : tn_keep(grad);
    for (int i = 0; i < set->count && set->grad; i++) {
        if (!hold_part_grad(set->params[i])) { return false; }
    }
    return set->grad != NULL;
}

/* ---- Buffers for gradients ------------------------------------------------------------------- */

/* The buffers that all sets whose gradients have the dtype share; NULL: none. */
static tn__fsdp_pool *find_pool(const tn_fsdp_state *s, tn_dtype dtype) {
    for (int i = 0; i < s->pool_count; i++) {
        if (s->pools[i].dtype == dtype) { return &s->pools[i]; }
    }
    return NULL;
}

static bool make_buffer(tn_fsdp_state *s, tn__fsdp_buffer *b, tn_dtype dtype, int64_t count) {
    TN_SCOPE;
    tn_tensor *flat = tn_group_empty_on(s->base.group, s->device, TN_DIMS(count), dtype);
    flat = tn_zero_(flat); /* the gaps between gradients are sent too */
    if (!tn_is_inert(flat)) {
        b->flat = tn_keep(flat);
        s->stats.buffers += count * (int64_t)tn_dtype_size(dtype);
    }
    return b->flat != NULL;
}

/* Elements of the set's whole gradients. */
static int64_t grad_count(const tn__fsdp_set *set) {
    return set->each * tn_group_size(set->fsdp->base.group);
}

static bool shares_buffers(const tn__fsdp_set *set) {
    const tn_fsdp_state *s = set->fsdp;
    return s->options.stage > 1 && set->unit != tn__fsdp_rest(s) && !s->options.find_unused;
}

static void join_pool(tn__fsdp_set *set) {
    tn_fsdp_state *s = set->fsdp;
    tn__fsdp_pool *pool = find_pool(s, set->kind.grad);
    if (!pool) {
        pool = &s->pools[s->pool_count++];
        *pool = (tn__fsdp_pool){.dtype = set->kind.grad};
    }
    pool->count = grad_count(set) > pool->count ? grad_count(set) : pool->count;
}

bool tn__fsdp_make_buffers(tn_fsdp_state *s) {
    for (int i = 0; i < s->set_count && !tn__pending(); i++) {
        tn__fsdp_set *set = &s->sets[i];
        if (set->kind.frozen) { continue; }
        if (shares_buffers(set)) {
            join_pool(set);
        } else {
            make_buffer(s, &set->own, set->kind.grad, grad_count(set));
        }
    }
    for (int i = 0; i < s->pool_count && !tn__pending(); i++) {
        tn__fsdp_pool *pool = &s->pools[i];
        for (int k = 0; k < 2; k++) {
            make_buffer(s, &pool->buffers[k], pool->dtype, pool->count);
        }
    }
    return !tn__pending();
}

void tn__fsdp_drop_buffers(tn_fsdp_state *s) {
    for (int i = 0; i < s->pool_count; i++) {
        tn_release(s->pools[i].buffers[0].flat);
        tn_release(s->pools[i].buffers[1].flat);
    }
}

bool tn__fsdp_thaw(tn__fsdp_set *set) {
    tn_fsdp_state *s = set->fsdp;
    return tn__fsdp_make_part_grads(set) &&
           (shares_buffers(set) || make_buffer(s, &set->own, set->kind.grad, grad_count(set)));
}

static tn__fsdp_buffer *idle_buffer(const tn__fsdp_pool *pool) {
    for (int i = 0; i < 2; i++) {
        const tn__fsdp_buffer *b = &pool->buffers[i];
        if (b->flat && !b->user) { return (tn__fsdp_buffer *)b; }
    }
    return NULL;
}

/* ---- Gradients in flight --------------------------------------------------------------------- */

/* Takes the gradients' place away, and drops their values. */
void tn__fsdp_forget_grads(tn__fsdp_set *set) {
    for (int i = 0; i < set->count; i++) {
        tn__fsdp_param *p = set->params[i];
        if (p->view) {
            bool frozen = tn__leaf_thaw(p->base.leaf);
            tn_set_grad_buffer(p->base.leaf, NULL);
            tn__leaf_freeze(p->base.leaf, frozen);
        }
        tn_release(p->view);
        p->view = NULL;
    }
    if (set->buffer) { set->buffer->user = NULL; }
    set->buffer = NULL;
}

/* Gives the parts what has arrived, and frees the buffer for another set. */
static void give_parts(tn__fsdp_set *set) {
    TN_SCOPE;
    TN_NO_GRAD;
    bool in_place = set->arrived == set->grad;
    for (int i = 0; i < set->count && !tn__pending(); i++) {
        const tn__fsdp_param *p = set->params[i];
        if (p->base.ready && in_place) {
            p->part->leaf->stale = false;
            tn__touch(p->part->leaf->grad);
        } else if (p->base.ready) {
            tn_tensor *mine = tn_keep(tn_alias(set->arrived, p->place, TN_DIMS(p->length)));
            tn__leaf_accumulate(p->part, &mine);
            tn_release(mine);
        }
    }
}

static tn_reduction sum_or_mean(const tn_fsdp_state *s) {
    return s->options.sum ? TN_SUM : TN_MEAN;
}

/* One replica's sum has arrived: starts the sum over all replicas. */
static void sum_replicas(tn__fsdp_set *set) {
    tn_fsdp_state *s = set->fsdp;
    if (tn_group_size(s->base.outer) > 1 && !set->replicating) {
        tn__fsdp_wait(s, &set->scatter);
        set->scatter = tn_all_reduce(s->base.outer, set->arrived, sum_or_mean(s));
        set->replicating = true;
    }
}

/* Whether the result may overwrite the parts' gradients: they have none yet. */
static bool parts_are_stale(const tn__fsdp_set *set) {
    for (int i = 0; i < set->count; i++) {
        const tn_leaf *leaf = set->params[i]->part->leaf;
        if (!leaf->stale || leaf->hooks || !leaf->grad ||
            !tn_shares_storage(leaf->grad, set->grad)) {
            return false;
        }
    }
    return true;
}

/* Whether the scatter writes where parts are stored. */
static bool arrives_at_home(const tn__fsdp_set *set) {
    return tn__same_device(set->fsdp->device, tn__fsdp_home(set));
}

static void bring_home(tn__fsdp_set *set) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *here = tn_keep(parts_are_stale(set) ? set->grad : tn_empty_like(set->grad));
    tn_copy_(here, set->arrived);
    tn_release(set->arrived);
    set->arrived = here;
}

static void arrive_first(tn_fsdp_state *s) {
    tn__fsdp_set *set = s->first_on_way;
    s->first_on_way = set->queued;
    sum_replicas(set);
    tn__fsdp_wait(s, &set->scatter);
    tn__fsdp_mark(set->unit, "scatter", set->sent);
    if (!tn__pending() && !arrives_at_home(set)) { bring_home(set); }
    if (!tn__pending()) { give_parts(set); }
    tn_release(set->arrived);
    set->arrived = NULL;
    tn__fsdp_forget_grads(set);
}

void tn__fsdp_arrive_all(tn_fsdp_state *s) {
    double begin = tn_flight_now();
    bool any = s->first_on_way != NULL;
    while (s->first_on_way) {
        arrive_first(s);
    }
    if (any) { tn_flight_mark("wait for gradients", begin); }
}

/* A buffer for the set's gradients: its own, or one of the two shared ones, for which it may have
 * to wait. If both are in use by units that are not complete yet (one that is called twice, or
 * TN_NO_SYNC), the set gets its own and keeps it. */
static tn__fsdp_buffer *choose_buffer(tn__fsdp_set *set) {
    tn_fsdp_state *s = set->fsdp;
    const tn__fsdp_pool *pool = find_pool(s, set->kind.grad);
    tn__fsdp_buffer *b = NULL;
    if (!set->own.flat && pool && pool->count >= grad_count(set)) {
        b = idle_buffer(pool);
        while (!b && s->first_on_way) {
            arrive_first(s);
            b = idle_buffer(pool);
        }
    }
    return b ? b : &set->own;
}

static bool hang_view(tn__fsdp_param *p) {
    tn_tensor *view = tn_alias(p->set->buffer->flat, p->offset, p->base.leaf->dims);
    if (tn_is_inert(view) || tn_set_grad_buffer(p->base.leaf, view) != TN_OK) { return false; }
    p->view = tn_keep(view);
    return true;
}

bool tn__fsdp_place_grads(tn__fsdp_set *set) {
    TN_SCOPE;
    if (!set->buffer) {
        tn__fsdp_buffer *b = choose_buffer(set);
        if (!b->flat && !make_buffer(set->fsdp, b, set->kind.grad, grad_count(set))) {
            return false;
        }
        b->user = set;
        set->buffer = b;
    }
    for (int i = 0; i < set->count && !tn__pending(); i++) {
        tn__fsdp_param *p = set->params[i];
        if (p->base.wanted && !p->view) { hang_view(p); }
    }
    return !tn__pending();
}

/* Zeroes the slots without a new gradient: they hold old numbers. A gradient kept since before its
 * parameter was frozen is sent with the others. */
static void fill_gaps(const tn__fsdp_set *set) {
    for (int i = 0; i < set->count; i++) {
        tn__fsdp_param *p = set->params[i];
        if (p->view && tn_grad_of(p->base.leaf)) {
            p->base.ready = true;
        } else {
            tn_zero_(tn_alias(set->buffer->flat, p->offset, p->base.leaf->dims));
        }
    }
}

void tn__fsdp_scatter(tn__fsdp_set *set) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_fsdp_state *s = set->fsdp;
    fill_gaps(set);
    bool in_place = arrives_at_home(set) && parts_are_stale(set);
    set->arrived =
        tn_keep(in_place ? set->grad : tn_empty_on(s->device, TN_DIMS(set->each), set->kind.grad));
    tn_dims all = TN_DIMS(tn_group_size(s->base.group), set->each);
    set->sent = tn_flight_now();
    set->scatter = tn_reduce_scatter(s->base.group, set->arrived,
                                     tn_alias(set->buffer->flat, 0, all), sum_or_mean(s));
    set->replicating = false;
    s->stats.scatters++;
    tn__fsdp_set **end = &s->first_on_way;
    for (; *end; end = &(*end)->queued) {
        sum_replicas(*end);
    }
    *end = set;
    set->queued = NULL;
}

/* ---- Gradients that some ranks have ---------------------------------------------------------- */

/* On how many ranks each parameter has a gradient; last, the sum of digests of the gathered units.
 * NULL after raising. */
static const int64_t *count_users(const tn_fsdp_state *s) {
    TN__ON_CPU;
    const tn__parallel *p = &s->base;
    tn_tensor *users = tn_zeros(TN_DIMS(p->count + 1), TN_I64);
    int64_t *has = tn_is_inert(users) ? NULL : tn_data_mut(users);
    for (int i = 0; has && i < p->count; i++) {
        const tn__parallel_param *param = tn__parallel_param_at(p, i);
        has[i] = param->wanted && tn_grad_of(param->leaf) && !s->params[i].summed;
    }
    if (has) { has[p->count] = (int64_t)s->gathered; }
    tn__parallel_wait(tn_all_reduce(p->group, users, TN_SUM));
    tn__parallel_wait(tn_all_reduce(p->outer, users, TN_SUM));
    return tn__pending() ? NULL : tn_data(users);
}

/* Ranks that gather different units would take one unit's parts for another's. Usually a gradient
 * is missing as well. */
static bool gathered_alike(const tn_fsdp_state *s, int64_t all) {
    bool alike = (uint64_t)all == (uint64_t)s->base.strategy.round.ranks * s->gathered;
    return alike ||
           tn__fail(TN_ESTATE, "fsdp",
                    "the ranks have gathered different units: every rank must call the same ones, "
                    "even with find_unused");
}

bool tn__fsdp_scatter_used(tn_fsdp_state *s) {
    TN_SCOPE;
    TN_NO_GRAD;
    const int64_t *users = count_users(s);
    if (!users || !gathered_alike(s, users[s->base.count])) { return false; }
    for (int i = 0; i < s->base.count; i++) {
        tn__parallel_param *param = tn__parallel_param_at(&s->base, i);
        param->ready = users[i] > 0 && param->wanted;
    }
    for (int i = 0; i < s->set_count && !tn__pending(); i++) {
        tn__fsdp_set *set = &s->sets[i];
        bool used = false;
        for (int k = 0; k < set->count; k++) {
            used |= set->params[k]->base.ready;
        }
        if (used && tn__fsdp_place_grads(set)) { tn__fsdp_scatter(set); }
    }
    return !tn__pending();
}
