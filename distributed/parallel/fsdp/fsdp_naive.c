/* Sharding at its plainest: what fsdp.c does, without what makes it fast.
 *
 * Attaching has cut every parameter: rank r of N keeps the r-th of N equal pieces, its part, which
 * is what the optimiser steps. The whole has bytes only while its unit runs: before the unit's
 * forward and before its backward all parts are gathered into it; afterwards it is emptied. A
 * complete gradient is averaged over the ranks, each of which takes its piece and adds it to its
 * part's gradient; the whole gradient is dropped. The rest, all that is in no unit, stays whole
 * from the module's forward to the end of its backward.
 *
 * So a step is four hooks on each unit, and one on each parameter. This is slow: every parameter is
 * sent alone, and everything waits for it. fsdp.c fixes both. tn__parallel_rules (base.h) says when
 * the hooks are called.
 */
#include "distributed/group/agree.h"
#include "autograd/leaf.h"
#include "autograd/mode.h"
#include "distributed/parallel/fsdp/fsdp.h"

/* ---- Whole and empty ------------------------------------------------------------------------- */

static void gather_unit(const tn__fsdp_unit *u) {
    for (const tn__fsdp_set *set = u->sets; set; set = set->next) { /* of one parameter each */
        TN_SCOPE;
        TN_NO_GRAD;
        tn_group *g = u->fsdp->base.group;
        tn_tensor *part = tn_cast(set->shard, set->kind.compute);
        tn_storage_refill(set->flat);
        tn_tensor *all = tn_alias(set->flat, 0, TN_DIMS(tn_group_size(g), set->each));
        tn__parallel_wait(tn_all_gather(g, all, part));
    }
}

static void empty_unit(const tn__fsdp_unit *u) {
    for (const tn__fsdp_set *set = u->sets; set && u->users == 0; set = set->next) {
        tn_storage_empty(set->flat);
    }
}

/* ---- A step ---------------------------------------------------------------------------------- */

static tn_values unit_before(tn_module *m, tn_values in, void *user) {
    gather_unit(user);
    return in;
}

/* A unit that is recomputed in backward stays whole: its own backward follows. */
static tn_values unit_after(tn_module *m, tn_values in, tn_values out, void *user) {
    const tn__fsdp_unit *u = user;
    if (!tn_in_backward() && (u != tn__fsdp_rest(u->fsdp) || !tn__will_record())) { empty_unit(u); }
    return out;
}

static void unit_backward_before(tn_module *m, void *user) {
    gather_unit(user);
}

static void unit_backward_after(tn_module *m, tn_values grads, void *user) {
    empty_unit(user);
}

/* A gradient is complete. Under TN_NO_SYNC it stays, and others are added to it. */
static void average_grad(tn_tensor *whole, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn__fsdp_param *p = user;
    const tn__fsdp_set *set = p->set;
    tn__parallel_added(&p->base);
    if (!p->base.of->sync) { return; }
    tn_group *g = p->base.of->group;
    tn_tensor *grad = tn_grad_of(whole);
    tn_tensor *mine = tn_empty_on(set->fsdp->device, TN_DIMS(set->each), set->kind.grad);
    tn_dims dims = TN_DIMS(tn_group_size(g), set->each); /* the gradient, then zeros */
    tn_tensor *all = tn_zero_(tn_empty_on(set->fsdp->device, dims, set->kind.grad));
    tn_copy_(tn_alias(all, 0, tn_shape(grad)), grad);
    if (tn__parallel_wait(tn_reduce_scatter(g, mine, all, TN_MEAN)) == TN_OK) {
        tn_tensor *piece = tn_keep(tn_alias(mine, p->place, TN_DIMS(p->length)));
        tn__leaf_accumulate(p->part, &piece);
        tn_release(piece);
        tn_zero_grad(whole);
    }
}

/* Averages what TN_NO_SYNC has kept. */
static void average_kept(tn__parallel *p) {
    for (int i = 0; i < p->count && !tn__pending(); i++) {
        tn__parallel_param *param = tn__parallel_param_at(p, i);
        if (param->ready) { average_grad(param->leaf, param); }
    }
}

static void empty_rest(tn__parallel *p) {
    empty_unit(tn__fsdp_rest((tn_fsdp_state *)p));
}

/* ---- Attaching ------------------------------------------------------------------------------- */

tn_status tn_fsdp_naive(void *m, tn_group *shard) {
    static const tn__parallel_rules rules = {
        .name = "sharding",
        .operation = "fsdp_naive",
        .state_size = sizeof(tn_fsdp_state),
        .param_size = sizeof(tn__fsdp_param),
        .deferred = true,
        .start = tn__fsdp_start,
        .forward = tn__parallel_take_buffers,
        .whole = tn__fsdp_change_whole,
        .added = average_grad,
        .flush = average_kept,
        .over = empty_rest,
        .finish = tn__fsdp_finish,
    };
    tn__fsdp_plan plan = {.options = tn_fsdp_defaults(),
                          .alone = true,
                          .hooks = {.before = unit_before,
                                    .after = unit_after,
                                    .backward_before = unit_backward_before,
                                    .backward_after = unit_backward_after}};
    if (tn__agree_begin(shard, rules.operation)) {
        tn__parallel_attach(m, shard, NULL, &rules, "of fsdp_naive", &plan);
    }
    return tn_error();
}
