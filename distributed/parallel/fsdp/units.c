/* Where a unit's parameters and gradients lie, and how they come and go.
 *
 * The unit's parameters of one kind make a set: they lie one behind the other in a flat buffer of
 * N equal parts, so that one message brings them together, and one sums their gradients and gives
 * each rank its part, with nothing to copy before or after. Between uses the flat buffer is a
 * storage without bytes, which the wholes, and graphs through them, go on holding.
 *
 * Whole gradients need as much room as the wholes, for a moment: two buffers serve all units in
 * turns. The rest, stage 1, and a set whose gradients stay (TN_NO_SYNC, find_unused) have one of
 * their own.
 *
 * With offload parts and their gradients are at home on the CPU: a part is brought to the device
 * for its gather, and what is scattered there goes down when it has arrived.
 */
#include "autograd/leaf.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/flat.h"
#include "distributed/parallel/fsdp/fsdp.h"
#include "distributed/parallel/layout.h"
#include "nn/defer.h"
#include "tensor/recipe.h"
#include "tern/sys/device.h"

#include <stdlib.h>
#include <string.h>

static int64_t set_bytes(const tn__fsdp_set *set, tn_dtype dtype) {
    return set->each * tn_group_size(set->fsdp->base.group) * (int64_t)tn_dtype_size(dtype);
}

/* Where parts are stored, and stepped. */
static tn_device home_of(const tn__fsdp_set *set) {
    return set->fsdp->options.offload ? tn_cpu() : set->kind.device;
}

/* ---- Cutting --------------------------------------------------------------------------------- */

static void lay_out(tn__fsdp_set *set) {
    const tn_group *g = set->fsdp->base.group;
    int64_t total = 0, line = tn__flat_line(set->kind.dtype);
    for (int i = 0; i < set->count; i++) {
        tn__fsdp_param *p = set->params[i];
        p->offset = tn__flat_place(&total, tn_count(p->base.leaf), line);
    }
    set->each = tn__flat_each(total, tn_group_size(g), line);
    for (int i = 0; i < set->count; i++) {
        tn__fsdp_param *p = set->params[i];
        tn__flat_cut cut =
            tn__flat_cut_of(p->offset, tn_count(p->base.leaf), set->each, tn_group_rank(g));
        p->start = cut.start;
        p->length = cut.length;
        p->place = cut.at;
    }
}

/* (ranks each) without bytes; NULL after raising. */
static tn_tensor *make_flat(const tn__fsdp_set *set, tn_dtype dtype) {
    int64_t count = set->each * tn_group_size(set->fsdp->base.group);
    tn_tensor *flat = tn_empty_on(set->kind.device, TN_DIMS(count), dtype);
    return tn_storage_empty(flat) == TN_OK ? tn_keep(flat) : NULL;
}

/* (each), zeros in memory that the other ranks read from; NULL after raising. */
static tn_tensor *make_part(const tn__fsdp_set *set, tn_dtype dtype) {
    tn_fsdp_state *s = set->fsdp;
    tn_tensor *part = tn_group_empty_on(s->base.group, home_of(set), TN_DIMS(set->each), dtype);
    part = tn_zero_(part);
    s->stats.parts += set->each * (int64_t)tn_dtype_size(dtype);
    return tn_is_inert(part) ? NULL : tn_keep(part);
}

/* The elements of t are those of flat from `offset` on; what it had goes. It stays the leaf that it
 * is. False after raising. */
static bool rebase_leaf(tn_tensor *t, tn_tensor *flat, int64_t offset) {
    TN_SCOPE;
    tn_tensor *place = tn_alias(flat, offset, t->dims), before = *t;
    if (tn_is_inert(place)) {
        return false;
    }
    t->storage = place->storage;
    t->offset = place->offset;
    memcpy(t->stride, place->stride, sizeof(t->stride));
    t->version = t->own_version = place->own_version;
    place->storage = before.storage; /* dies with the scope */
    place->version = before.version;
    place->own_version = before.own_version;
    return true;
}

/* Its place in the gradients of the set's parts, which it has also while it is frozen. */
static bool hold_part_grad(const tn__fsdp_param *p) {
    tn_tensor *grad = tn_alias(p->set->grad, p->place, TN_DIMS(p->length));
    bool frozen = tn__leaf_thaw(p->part);
    bool ok = tn_set_grad_dtype(p->part, p->set->kind.grad) == TN_OK &&
              tn_set_grad_buffer(p->part, grad) == TN_OK;
    tn__leaf_freeze(p->part, frozen);
    return ok;
}

/* Of all its parts. False after raising. */
static bool make_part_grads(tn__fsdp_set *set) {
    TN_SCOPE;
    tn_tensor *grad = tn_zero_(tn_empty_on(home_of(set), TN_DIMS(set->each), set->kind.grad));
    set->grad = tn_is_inert(grad) ? NULL : tn_keep(grad);
    for (int i = 0; i < set->count && set->grad; i++) {
        if (!hold_part_grad(set->params[i])) {
            return false;
        }
    }
    return set->grad != NULL;
}

/* This rank's elements: of those that are there, or made here alone (TN_DEFER_INIT). False after
 * raising. */
static bool fill_part(const tn__fsdp_param *p, tn_tensor *part) {
    TN_SCOPE;
    tn_tensor *whole = p->base.leaf;
    if (tn__deferred(whole)) {
        return tn__draw_part(whole, p->start, p->length, part) == TN_OK;
    }
    tn_tensor *elements = tn_reshape(tn_detach(whole), TN_DIMS(tn_count(whole)));
    return !tn_is_inert(tn_copy_(part, tn_narrow(elements, 0, p->start, p->length)));
}

/* This rank's part; the whole loses its bytes. False after raising. */
static bool cut_param(tn__fsdp_param *p) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn__fsdp_set *set = p->set;
    tn_fsdp_state *s = set->fsdp;
    tn_tensor *part = tn_alias(set->shard, p->place, TN_DIMS(p->length));
    if (tn_is_inert(part) || !fill_part(p, part)) {
        return false;
    }
    p->part = tn_keep(part);
    if (set->low) { /* what forwards read instead of the whole comes with the flat buffer */
        tn__lend_give(p->base.leaf, tn_alias(set->flat, p->offset, p->base.leaf->dims));
    }
    tn_layout layout = tn__layout_whole(p->base.leaf->dims);
    layout.start = p->start;
    layout.length = p->length;
    return rebase_leaf(p->base.leaf, set->low ? set->exact : set->flat, p->offset) &&
           tn_module_set_part(s->base.module, p->base.path, p->part, layout, &s->parts) == TN_OK;
}

bool tn__fsdp_cut(tn__fsdp_set *set) {
    TN_SCOPE;
    TN_NO_GRAD;
    bool lower = set->kind.compute != set->kind.dtype;
    lay_out(set);
    set->flat = make_flat(set, set->kind.compute);
    set->exact = lower ? make_flat(set, set->kind.dtype) : NULL;
    set->shard = make_part(set, set->kind.dtype);
    set->low = lower ? make_part(set, set->kind.compute) : NULL;
    for (int i = 0; i < set->count && !tn__pending(); i++) {
        cut_param(set->params[i]);
    }
    return !tn__pending() && (set->kind.frozen || make_part_grads(set));
}

/* ---- Whole and split ------------------------------------------------------------------------- */

static void await_work(tn_fsdp_state *s, tn_work **w) {
    double begin = tn_flight_now();
    tn__parallel_wait(*w);
    *w = NULL;
    s->stats.waiting += tn_flight_now() - begin;
}

/* In the trace of the ranks: what the unit waited for, or was, from `began` to now. */
static void mark_unit(const tn__fsdp_unit *u, const char *what, double began) {
    char text[80];
    const char *name = u == tn__fsdp_rest(u->fsdp) ? "rest" : u->module->lists->name;
    snprintf(text, sizeof(text), "%s %s", what, name);
    tn_flight_mark(text, began);
}

/* What changes when a part does: an optimiser has stepped it, a checkpoint was loaded. */
static uint64_t unit_version(const tn__fsdp_unit *u) {
    uint64_t sum = 1;
    for (const tn__fsdp_set *set = u->sets; set; set = set->next) {
        for (int i = 0; i < set->count; i++) {
            sum += __atomic_load_n(&set->params[i]->part->version->value, __ATOMIC_RELAXED);
        }
    }
    return sum;
}

/* A graph that has saved the wholes as they were before a step must not go on with other ones. */
static void touch_wholes(const tn__fsdp_set *set) {
    for (int i = 0; i < set->count; i++) {
        tn_tensor *whole = set->params[i]->base.leaf;
        tn__touch(whole);
        if (set->low) {
            tn__touch(whole->leaf->copy);
        }
    }
}

/* Counts bytes of wholes that have come; negative: gone. */
static void count_whole(tn_fsdp_state *s, int64_t bytes) {
    s->stats.whole += bytes;
    s->stats.most_whole =
        s->stats.whole > s->stats.most_whole ? s->stats.whole : s->stats.most_whole;
}

static tn_work *gather_flat(const tn__fsdp_set *set, tn_tensor *flat, tn_tensor *part) {
    tn_fsdp_state *s = set->fsdp;
    if (tn_storage_is_empty(flat) && tn_storage_refill(flat) == TN_OK) {
        count_whole(s, set_bytes(set, tn_dtype_of(flat)));
    }
    s->stats.gathers++;
    tn_dims all = TN_DIMS(tn_group_size(s->base.group), set->each);
    part = tn_to(part, set->kind.device); /* another tensor with offload: the gather holds it */
    return tn_all_gather(s->base.group, tn_alias(flat, 0, all), part);
}

static void empty_flat(const tn__fsdp_set *set, tn_tensor *flat) {
    if (flat && !tn_storage_is_empty(flat) && tn_storage_empty(flat) == TN_OK) {
        count_whole(set->fsdp, -set_bytes(set, tn_dtype_of(flat)));
    }
}

void tn__fsdp_gather(tn__fsdp_unit *u) {
    TN_SCOPE;
    TN_NO_GRAD;
    uint64_t now = unit_version(u);
    if (!u->sets || (u->presence != TN__SPLIT && u->seen == now)) {
        return;
    }
    tn__fsdp_await(u); /* of what was before the step */
    bool changed = u->seen != now;
    for (tn__fsdp_set *set = u->sets; set; set = set->next) {
        if (changed && set->low) {
            tn_copy_(set->low, set->shard);
        }
        set->asked = tn_flight_now();
        set->gather = gather_flat(set, set->flat, set->low ? set->low : set->shard);
        if (changed) {
            touch_wholes(set);
        }
    }
    u->presence = TN__COMING;
    u->seen = now;
    u->fsdp->gathered = u->fsdp->gathered * 31 + (uint64_t)(u - u->fsdp->units) + 1;
}

void tn__fsdp_await(tn__fsdp_unit *u) {
    if (u->presence != TN__COMING) {
        return;
    }
    for (tn__fsdp_set *set = u->sets; set; set = set->next) {
        await_work(u->fsdp, &set->gather);
        mark_unit(u, "gather", set->asked);
    }
    u->presence = TN__WHOLE;
}

void tn__fsdp_split(tn__fsdp_unit *u) {
    const tn_fsdp_state *s = u->fsdp;
    if (s->options.stage < 3 || s->whole > 0 || u->running > 0 || u->presence == TN__SPLIT ||
        tn__pending()) {
        return;
    }
    tn__fsdp_await(u);
    for (const tn__fsdp_set *set = u->sets; set; set = set->next) {
        empty_flat(set, set->flat);
        mark_unit(u, "whole", set->asked);
    }
    u->presence = TN__SPLIT;
}

/* Under a policy forwards read copies in another dtype: the wholes themselves, for TN_WHOLE. */
static void gather_exact(tn__fsdp_set *set) {
    if (set->exact) {
        tn_work *w = gather_flat(set, set->exact, set->shard);
        await_work(set->fsdp, &w);
    }
}

void tn__fsdp_change_whole(void *state, int change) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_fsdp_state *s = state;
    if (s->whole + change < 0) { /* the scope began before s */
        return;
    }
    s->whole += change;
    for (int i = 0; i < s->unit_count && change > 0; i++) {
        tn__fsdp_gather(&s->units[i]);
        tn__fsdp_await(&s->units[i]);
    }
    for (int i = 0; i < s->set_count; i++) {
        if (change > 0) {
            gather_exact(&s->sets[i]);
        } else if (s->whole == 0) {
            empty_flat(&s->sets[i], s->sets[i].exact);
        }
    }
    if (change > 0 && tn__pending()) { /* the others wait for this rank's parts */
        tn__parallel_give_up(&s->base, tn_error_message());
    }
    for (int i = 0; i < s->unit_count; i++) {
        tn__fsdp_split(&s->units[i]);
    }
}

/* ---- Buffers for gradients ------------------------------------------------------------------- */

/* Those that all sets of the dtype and device share; NULL: none do. */
static tn__fsdp_pool *find_pool(const tn_fsdp_state *s, const tn__fsdp_kind *kind) {
    for (int i = 0; i < s->pool_count; i++) {
        tn__fsdp_pool *pool = &s->pools[i];
        if (pool->dtype == kind->grad && tn__same_device(pool->device, kind->device)) {
            return pool;
        }
    }
    return NULL;
}

static bool make_buffer(tn_fsdp_state *s, tn__fsdp_buffer *b, const tn__fsdp_kind *kind,
                        int64_t count) {
    TN_SCOPE;
    tn_tensor *flat = tn_group_empty_on(s->base.group, kind->device, TN_DIMS(count), kind->grad);
    flat = tn_zero_(flat); /* what lies between gradients travels too */
    if (!tn_is_inert(flat)) {
        b->flat = tn_keep(flat);
        s->stats.buffers += count * (int64_t)tn_dtype_size(kind->grad);
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
    tn__fsdp_pool *pool = find_pool(s, &set->kind);
    if (!pool) {
        pool = &s->pools[s->pool_count++];
        *pool = (tn__fsdp_pool){.dtype = set->kind.grad, .device = set->kind.device};
    }
    pool->count = grad_count(set) > pool->count ? grad_count(set) : pool->count;
}

bool tn__fsdp_make_buffers(tn_fsdp_state *s) {
    for (int i = 0; i < s->set_count && !tn__pending(); i++) {
        tn__fsdp_set *set = &s->sets[i];
        if (set->kind.frozen) {
            continue;
        }
        if (shares_buffers(set)) {
            join_pool(set);
        } else {
            make_buffer(s, &set->own, &set->kind, grad_count(set));
        }
    }
    for (int i = 0; i < s->pool_count && !tn__pending(); i++) {
        tn__fsdp_pool *pool = &s->pools[i];
        tn__fsdp_kind kind = {.grad = pool->dtype, .device = pool->device};
        for (int k = 0; k < 2; k++) {
            make_buffer(s, &pool->buffers[k], &kind, pool->count);
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
    return make_part_grads(set) &&
           (shares_buffers(set) || make_buffer(s, &set->own, &set->kind, grad_count(set)));
}

static tn__fsdp_buffer *idle_buffer(const tn__fsdp_pool *pool) {
    for (int i = 0; i < 2; i++) {
        const tn__fsdp_buffer *b = &pool->buffers[i];
        if (b->flat && !b->user) {
            return (tn__fsdp_buffer *)b;
        }
    }
    return NULL;
}

/* ---- Gradients on their way ------------------------------------------------------------------ */

/* Takes their place from the gradients, and forgets what is there. */
static void forget_grads(tn__fsdp_set *set) {
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
    if (set->buffer) {
        set->buffer->user = NULL;
    }
    set->buffer = NULL;
}

/* The parts get what has arrived; the buffer is free for another set. */
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

/* What has arrived is one replica's: the sum of all replicas' is next. */
static void sum_replicas(tn__fsdp_set *set) {
    tn_fsdp_state *s = set->fsdp;
    if (tn_group_size(s->base.outer) > 1 && !set->replicating) {
        await_work(s, &set->scatter);
        set->scatter = tn_all_reduce(s->base.outer, set->arrived, sum_or_mean(s));
        set->replicating = true;
    }
}

/* Whether what arrives may be written where the parts' gradients are: they have none yet. */
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

/* Whether what is scattered arrives at home. */
static bool arrives_at_home(const tn__fsdp_set *set) {
    return tn__same_device(set->kind.device, home_of(set));
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
    await_work(s, &set->scatter);
    mark_unit(set->unit, "scatter", set->sent);
    if (!tn__pending() && !arrives_at_home(set)) {
        bring_home(set);
    }
    if (!tn__pending()) {
        give_parts(set);
    }
    tn_release(set->arrived);
    set->arrived = NULL;
    forget_grads(set);
}

void tn__fsdp_arrive_all(tn_fsdp_state *s) {
    double begin = tn_flight_now();
    bool any = s->first_on_way != NULL;
    while (s->first_on_way) {
        arrive_first(s);
    }
    if (any) {
        tn_flight_mark("wait for gradients", begin);
    }
}

/* A buffer for the set's gradients: its own; or one of two that take turns, for which it may have
 * to wait. Where both are in use by units that are not complete yet (one that is called twice, or
 * TN_NO_SYNC), it gets its own, and keeps it. */
static tn__fsdp_buffer *choose_buffer(tn__fsdp_set *set) {
    tn_fsdp_state *s = set->fsdp;
    const tn__fsdp_pool *pool = find_pool(s, &set->kind);
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
    if (tn_is_inert(view) || tn_set_grad_buffer(p->base.leaf, view) != TN_OK) {
        return false;
    }
    p->view = tn_keep(view);
    return true;
}

bool tn__fsdp_place_grads(tn__fsdp_set *set) {
    TN_SCOPE;
    if (!set->buffer) {
        tn__fsdp_buffer *b = choose_buffer(set);
        if (!b->flat && !make_buffer(set->fsdp, b, &set->kind, grad_count(set))) {
            return false;
        }
        b->user = set;
        set->buffer = b;
    }
    for (int i = 0; i < set->count && !tn__pending(); i++) {
        tn__fsdp_param *p = set->params[i];
        if (p->base.wanted && !p->view) {
            hang_view(p);
        }
    }
    return !tn__pending();
}

/* What no gradient was written to has old numbers. One that was kept until its parameter was frozen
 * goes with the others'. */
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
    set->arrived = tn_keep(
        in_place ? set->grad : tn_empty_on(set->kind.device, TN_DIMS(set->each), set->kind.grad));
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

/* ---- Gradients that some ranks have -----------------------------------------------------------
 */

/* On how many ranks each parameter has a gradient, and at last the sum of what tells which units
 * they have gathered. NULL after raising. */
static const int64_t *count_users(const tn_fsdp_state *s) {
    TN__ON_CPU;
    const tn__parallel *p = &s->base;
    tn_tensor *users = tn_zeros(TN_DIMS(p->count + 1), TN_I64);
    int64_t *has = tn_is_inert(users) ? NULL : tn_data_mut(users);
    for (int i = 0; has && i < p->count; i++) {
        const tn__parallel_param *param = tn__parallel_param_at(p, i);
        has[i] = param->wanted && tn_grad_of(param->leaf) && !s->params[i].summed;
    }
    if (has) {
        has[p->count] = (int64_t)s->gathered;
    }
    tn__parallel_wait(tn_all_reduce(p->group, users, TN_SUM));
    tn__parallel_wait(tn_all_reduce(p->outer, users, TN_SUM));
    return tn__pending() ? NULL : tn_data(users);
}

/* Ranks that gather different units take others' parts for their own. As a rule a gradient is
 * missing then. */
static bool gathered_alike(const tn_fsdp_state *s, int64_t all) {
    bool alike = (uint64_t)all == (uint64_t)s->base.round.ranks * s->gathered;
    if (!alike) {
        tn__raise(TN_ESTATE, "fsdp",
                  "the ranks have gathered different units: every rank calls the same ones, also "
                  "with find_unused");
    }
    return alike;
}

bool tn__fsdp_scatter_used(tn_fsdp_state *s) {
    TN_SCOPE;
    TN_NO_GRAD;
    const int64_t *users = count_users(s);
    if (!users || !gathered_alike(s, users[s->base.count])) {
        return false;
    }
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
        if (used && tn__fsdp_place_grads(set)) {
            tn__fsdp_scatter(set);
        }
    }
    return !tn__pending();
}

/* ---- After a failure, and the end ------------------------------------------------------------ */

void tn__fsdp_abandon(tn_fsdp_state *s) {
    tn_error_record e;
    tn__quiet(1);
    bool failed = tn_error_take(&e);
    for (int i = 0; i < s->set_count; i++) {
        tn__fsdp_set *set = &s->sets[i];
        await_work(s, &set->gather);
        await_work(s, &set->scatter);
        tn_error_clear();
        tn_release(set->arrived);
        set->arrived = NULL;
        forget_grads(set);
        if (set->flat) {
            empty_flat(set, set->flat);
        }
    }
    for (int i = 0; i < s->base.count && s->params; i++) {
        await_work(s, &s->params[i].sum);
        tn_error_clear();
    }
    s->first_on_way = NULL;
    s->last = NULL;
    for (int i = 0; i < s->unit_count; i++) {
        s->units[i].presence = TN__SPLIT;
        s->units[i].seen = 0;
    }
    if (failed) {
        tn_error_give(&e);
    }
    tn__quiet(-1);
}

void tn__fsdp_drop(tn__fsdp_set *set) {
    tn_release(set->flat);
    tn_release(set->exact);
    tn_release(set->shard);
    tn_release(set->low);
    tn_release(set->grad);
    tn_release(set->own.flat);
}
