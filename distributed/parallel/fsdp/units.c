/* Where a unit's parameters are stored, and how they are gathered and freed.
 *
 * The unit's parameters of one kind make a set: they are adjacent in a flat buffer of N equal
 * parts. So one message gathers them, and one sums their gradients and gives each rank its part,
 * without copies before or after. Between uses the flat buffer is a storage without bytes, which
 * the wholes, and graphs through them, still hold.
 *
 * With offload parts are stored on the CPU, and copied to the device for the gather.
 */
#include "autograd/leaf.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/flat.h"
#include "distributed/parallel/fsdp/fsdp.h"
#include "nn/defer.h"
#include "nn/layout.h"
#include "tensor/recipe.h"
#include "tern/sys/device.h"

#include <stdlib.h>
#include <string.h>

static int64_t set_bytes(const tn__fsdp_set *set, tn_dtype dtype) {
    return set->each * tn_group_size(set->fsdp->base.group) * (int64_t)tn_dtype_size(dtype);
}

/* ---- Cutting --------------------------------------------------------------------------------- */

/* The elements of the largest block of the parameter: those of a vocabulary need not be equal, and
 * what comes after it must be in the same places on all ranks, which save it as one. */
static int64_t largest_block(const tn__fsdp_param *p) {
    tn_layout largest = p->block;
    largest.slice = 0;
    return tn_dims_count(tn__layout_block(&largest));
}

static void lay_out(tn__fsdp_set *set) {
    const tn_group *g = set->fsdp->base.group;
    int64_t total = 0, line = tn__flat_line(set->kind.dtype);
    for (int i = 0; i < set->count; i++) {
        tn__fsdp_param *p = set->params[i];
        p->offset = tn__flat_place(&total, largest_block(p), line);
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
    tn_tensor *flat = tn_empty_on(set->fsdp->device, TN_DIMS(count), dtype);
    return tn_storage_empty(flat) == TN_OK ? tn_keep(flat) : NULL;
}

/* (each), zeros in memory that the other ranks read from; NULL after raising. */
static tn_tensor *make_part(const tn__fsdp_set *set, tn_dtype dtype) {
    tn_fsdp_state *s = set->fsdp;
    tn_tensor *part =
        tn_group_empty_on(s->base.group, tn__fsdp_home(set), TN_DIMS(set->each), dtype);
    part = tn_zero_(part);
    s->stats.parts += set->each * (int64_t)tn_dtype_size(dtype);
    return tn_is_inert(part) ? NULL : tn_keep(part);
}

/* t's elements become those of flat from `offset` on; its own are freed. It stays the same leaf.
 * False after raising. */
static bool rebase_leaf(tn_tensor *t, tn_tensor *flat, int64_t offset) {
    TN_SCOPE;
    tn_tensor *place = tn_alias(flat, offset, t->dims), before = *t;
    if (tn_is_inert(place)) { return false; }
    t->storage = place->storage;
    t->offset = place->offset;
    memcpy(t->stride, place->stride, sizeof(t->stride));
    t->version = t->own_version = place->own_version;
    place->storage = before.storage; /* dies with the scope */
    place->version = before.version;
    place->own_version = before.own_version;
    return true;
}

/* Makes this rank's part; the whole loses its bytes. False after raising. */
static bool cut_param(tn__fsdp_param *p) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn__fsdp_set *set = p->set;
    tn_fsdp_state *s = set->fsdp;
    tn_tensor *part = tn_alias(set->shard, p->place, TN_DIMS(p->length));
    tn_layout mine = tn__layout_whole(p->base.leaf->dims); /* of what is here, perhaps a block */
    mine.start = p->start;
    mine.length = p->length;
    if (tn_is_inert(part) || !tn__fill_part(p->base.leaf, &mine, part)) { return false; }
    p->part = tn_keep(part);
    if (set->low) { /* what forwards read instead of the whole comes with the flat buffer */
        tn__low_precision_set(p->base.leaf, tn_alias(set->flat, p->offset, p->base.leaf->dims));
    }
    tn_layout layout = p->block;
    layout.start = p->start;
    layout.length = p->length;
    return rebase_leaf(p->base.leaf, set->low ? set->exact : set->flat, p->offset) &&
           tn_module_set_part(
               s->base.module, p->base.path, p->part, layout,
               tn__parallel_chain(s->chains, &s->chain_count, s->base.group, p->beyond)) == TN_OK;
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
    return !tn__pending() && (set->kind.frozen || tn__fsdp_make_part_grads(set));
}

/* ---- Whole and split ------------------------------------------------------------------------- */

void tn__fsdp_wait(tn_fsdp_state *s, tn_work **w) {
    double begin = tn_flight_now();
    tn__parallel_wait(*w);
    *w = NULL;
    s->stats.waiting += tn_flight_now() - begin;
}

void tn__fsdp_mark(const tn__fsdp_unit *u, const char *what, double began) {
    char text[80];
    const char *name = u == tn__fsdp_rest(u->fsdp) ? "rest" : u->module->lists->name;
    snprintf(text, sizeof(text), "%s %s", what, name);
    tn_flight_mark(text, began);
}

/* A number that changes with the parts, by an optimiser's step or a loaded checkpoint. */
static uint64_t unit_version(const tn__fsdp_unit *u) {
    uint64_t sum = 1;
    for (const tn__fsdp_set *set = u->sets; set; set = set->next) {
        for (int i = 0; i < set->count; i++) {
            sum += __atomic_load_n(&set->params[i]->part->version->value, __ATOMIC_RELAXED);
        }
    }
    return sum;
}

/* A graph that saved the wholes before a step must not continue with new values. */
static void touch_wholes(const tn__fsdp_set *set) {
    for (int i = 0; i < set->count; i++) {
        tn_tensor *whole = set->params[i]->base.leaf;
        tn__touch(whole);
        if (set->low) { tn__touch(whole->leaf->copy); }
    }
}

/* Counts gathered bytes of wholes; negative: freed. */
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
    part = tn_to(part, s->device); /* another tensor with offload: the gather holds it */
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
    if (!u->sets || (u->presence != TN__SPLIT && u->seen == now)) { return; }
    tn__fsdp_await(u); /* the gather from before the step */
    bool changed = u->seen != now;
    for (tn__fsdp_set *set = u->sets; set; set = set->next) {
        if (changed && set->low) { tn_copy_(set->low, set->shard); }
        set->asked = tn_flight_now();
        set->gather = gather_flat(set, set->flat, set->low ? set->low : set->shard);
        if (changed) { touch_wholes(set); }
    }
    u->presence = TN__COMING;
    u->seen = now;
    u->fsdp->gathered = u->fsdp->gathered * 31 + (uint64_t)(u - u->fsdp->units) + 1;
}

void tn__fsdp_await(tn__fsdp_unit *u) {
    if (u->presence != TN__COMING) { return; }
    for (tn__fsdp_set *set = u->sets; set; set = set->next) {
        tn__fsdp_wait(u->fsdp, &set->gather);
        tn__fsdp_mark(u, "gather", set->asked);
    }
    u->presence = TN__WHOLE;
}

void tn__fsdp_split(tn__fsdp_unit *u) {
    bool stays = u->fsdp->options.stage < 3 || u->users > 0 || tn__pending();
    if (stays || u->presence == TN__SPLIT) { return; }
    tn__fsdp_await(u);
    for (const tn__fsdp_set *set = u->sets; set; set = set->next) {
        empty_flat(set, set->flat);
        tn__fsdp_mark(u, "whole", set->asked);
    }
    u->presence = TN__SPLIT;
}

void tn__fsdp_change_users(tn__parallel *p, int change) {
    tn_fsdp_state *s = (tn_fsdp_state *)p;
    for (int i = 0; i < s->unit_count; i++) {
        s->units[i].users += change;
        tn__fsdp_split(&s->units[i]);
    }
}

void tn__fsdp_set_last(tn_fsdp_state *s, tn__fsdp_unit *u) {
    tn__fsdp_unit *before = s->last;
    s->last = u;
    if (u) { u->users++; }
    if (before) {
        before->users--;
        tn__fsdp_split(before);
    }
}

/* Under a policy forwards read copies in another dtype: this gathers the exact wholes, for
 * TN_WHOLE. */
static void gather_exact(tn__fsdp_set *set) {
    if (set->exact) {
        tn_work *w = gather_flat(set, set->exact, set->shard);
        tn__fsdp_wait(set->fsdp, &w);
    }
}

void tn__fsdp_change_whole(tn__parallel *p, int change) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_fsdp_state *s = (tn_fsdp_state *)p;
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
        tn__parallel_give_up(p, tn_error_message());
    }
    tn__fsdp_change_users(p, change);
}

/* ---- After a failure, and the end ------------------------------------------------------------ */

void tn__fsdp_abandon(tn__parallel *p) {
    tn_fsdp_state *s = (tn_fsdp_state *)p;
    tn_error_record e;
    tn__quiet(1);
    bool failed = tn_error_take(&e);
    for (int i = 0; i < s->set_count; i++) {
        tn__fsdp_set *set = &s->sets[i];
        tn__fsdp_wait(s, &set->gather);
        tn__fsdp_wait(s, &set->scatter);
        tn_error_clear();
        tn_release(set->arrived);
        set->arrived = NULL;
        tn__fsdp_forget_grads(set);
        if (set->flat) { empty_flat(set, set->flat); }
    }
    for (int i = 0; i < s->base.count && s->params; i++) {
        tn__fsdp_wait(s, &s->params[i].sum);
        tn_error_clear();
    }
    s->first_on_way = NULL;
    for (int i = 0; i < s->unit_count; i++) {
        s->units[i].presence = TN__SPLIT;
        s->units[i].seen = 0;
    }
    tn__fsdp_set_last(s, NULL);
    if (failed) { tn_error_give(&e); }
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
