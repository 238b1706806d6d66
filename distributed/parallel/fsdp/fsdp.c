/* Sharding: a step. Read fsdp_naive.c first.
 *
 * A step at stage 3, on each rank, gathering one unit ahead:
 *
 *     forward     before a unit: it is gathered, unless it is here; the next one's gather is
 *                 started, in the learned order; the previous one is freed. The last one that
 *                 forward uses stays: its backward comes first. The rest (all that is in no unit)
 *                 stays as well
 *     backward    before a unit: the same, and the next one is started. After it: it is freed; the
 *                 youngest nodes run first, so none of its nodes are left to run.
 *                 A complete gradient is written into the unit's buffer; after the unit's last one
 *                 they are summed over the ranks, each of which gets its part, while backward
 *                 continues with the unit below
 *     its end     a missing gradient is an error; waits for all gradients, frees all wholes
 *     the step    of an optimiser works on the parts; a unit is gathered again when it is needed
 *                 next
 *
 * With replicas of the shards, sums that have arrived are summed again over the replicas, one set
 * later, while backward continues and the next sums are in flight.
 *
 * With find_unused, gradients may become ready in different orders on different ranks, but must be
 * scattered in the same one. So all stay until the end of backward, when the ranks exchange which
 * they have.
 *
 * Stage 2 frees wholes only when the optimiser has made them stale; stage 1 has a gradient buffer
 * per unit. Under TN_NO_SYNC gradients stay in their buffers; without it, those of each micro-batch
 * are sent and added to the parts.
 *
 * Forwards inside a backward (recompute around units) belong to the order of backward, and keep
 * what they gather: the unit's own backward follows. An error on this rank at any point aborts the
 * group, so that no rank waits in vain.
 */
#include "distributed/group/agree.h"
#include "autograd/mode.h"
#include "core/buffer.h"
#include "core/memory.h"
#include "distributed/parallel/fsdp/fsdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What comes next ------------------------------------------------------------------------- */

/* A limit for programs that call units but never the module: their passes have no beginning. */
enum { LONGEST_PASS = 1 << 16 };

/* Notes that the unit is needed. All ranks have the same order, since they call the same
 * modules. */
static void follow_order(tn__fsdp_order *order, tn__fsdp_unit *u) {
    order->at = order->at < LONGEST_PASS ? order->at : 0;
    if (order->at == order->count || order->units[order->at] != u) {
        if (!tn__grow(&order->units, order->at + 1, &order->capacity, sizeof(*order->units),
                      "fsdp")) {
            return;
        }
        order->units[order->at] = u;
        order->count = order->at + 1;
    }
    order->at++;
}

/* Makes the unit whole, and starts to gather those that will be needed next. */
static void need_unit(tn__fsdp_unit *u) {
    tn_fsdp_state *s = u->fsdp;
    bool backward = tn_in_backward();
    tn__fsdp_order *order = backward ? &s->backward : &s->forward;
    if (u != tn__fsdp_rest(s)) {
        follow_order(order, u);
        if (!backward && s->last != u) { /* if others run again first, its turn is still to come */
            tn__fsdp_set_last(s, NULL);
        }
    }
    tn__fsdp_gather(u);
    for (int i = 0; i < s->options.prefetch && order->at + i < order->count; i++) {
        tn__fsdp_gather(order->units[order->at + i]);
    }
    tn__fsdp_await(u);
}

/* ---- A forward ------------------------------------------------------------------------------- */

/* A forward of the whole module begins. Sets that were frozen at attaching may have been thawed
 * since. */
static void forward_begins(tn_fsdp_state *s) {
    if (!tn_in_backward()) { s->forward.at = 0; }
    for (int i = 0; i < s->base.count && tn__will_record() && !tn__pending(); i++) {
        const tn__fsdp_param *p = &s->params[i];
        if (p->set && !p->set->grad && tn_requires_grad(p->base.leaf)) { tn__fsdp_thaw(p->set); }
    }
}

static tn_values unit_before(tn_module *m, tn_values in, void *user) {
    tn__fsdp_unit *u = user;
    u->users++;
    if (u == tn__fsdp_rest(u->fsdp)) { forward_begins(u->fsdp); }
    need_unit(u);
    return in;
}

/* Keeps what a backward needs first; frees what was gathered in vain because the order differed. */
static void forward_ends(tn_fsdp_state *s) {
    bool records = tn__will_record();
    if (!records) { tn__fsdp_set_last(s, NULL); }
    for (int i = 0; i < s->unit_count - records; i++) { /* the rest stays */
        tn__fsdp_split(&s->units[i]);
    }
}

static tn_values unit_after(tn_module *m, tn_values in, tn_values out, void *user) {
    tn__fsdp_unit *u = user;
    tn_fsdp_state *s = u->fsdp;
    u->users--;
    if (tn__pending()) {
        tn__parallel_give_up(&s->base, tn_error_message());
    } else if (tn_in_backward()) {
        return out;
    } else if (u == tn__fsdp_rest(s)) {
        forward_ends(s);
    } else {
        tn__fsdp_set_last(s, u);
    }
    return out;
}

/* Before a recorded forward of the module. */
static void take_buffers(tn__parallel *p) {
    const tn_fsdp_state *s = (tn_fsdp_state *)p;
    if (s->options.broadcast_buffers) { tn__parallel_take_buffers(p); }
}

/* ---- A backward ------------------------------------------------------------------------------ */

/* The unit's gradients come next: places them, so that they are made in the buffer and not copied.
 * With find_unused it is unknown which will come. */
static void place_unit(const tn__fsdp_unit *u) {
    const tn_fsdp_state *s = u->fsdp;
    bool comes = s->base.running && s->base.reached && !s->options.find_unused;
    for (tn__fsdp_set *set = u->sets; set && comes; set = set->next) {
        if (set->grad && set->waiting > 0) { tn__fsdp_place_grads(set); }
    }
}

static void unit_backward_before(tn_module *m, void *user) {
    tn__fsdp_unit *u = user;
    tn__parallel_backward(m, &u->fsdp->base);
    u->users++;
    need_unit(u);
    place_unit(u);
}

static void unit_backward_after(tn_module *m, tn_values grads, void *user) {
    tn__fsdp_unit *u = user;
    u->users--;
    if (u == u->fsdp->last) { tn__fsdp_set_last(u->fsdp, NULL); }
    tn__fsdp_split(u);
}

/* The backward has reached a parameter, or the output of something that has one: determines which
 * gradients will come. */
static bool expect_grads(tn__parallel *p) {
    tn_fsdp_state *s = (tn_fsdp_state *)p;
    for (int i = 0; i < s->set_count; i++) {
        tn__fsdp_set *set = &s->sets[i];
        set->waiting = 0;
        for (int k = 0; k < set->count; k++) {
            set->waiting += set->params[k]->base.wanted;
        }
    }
    return !tn__pending();
}

static tn_tensor *gradient_coming(tn_tensor *grad, void *user) {
    tn__fsdp_param *p = user;
    if (!tn__parallel_reach(p->base.of)) { return NULL; }
    if (p->base.ready) {
        tn__raise(TN_ESTATE, "fsdp", "%s got two gradients: a hook has run its own backward",
                  p->base.path);
    } else if (!p->set) {
        tn__fsdp_put_aside(p);
    } else if (!p->base.wanted || !p->set->grad) {
        tn__raise(TN_ESTATE, "fsdp",
                  "%s has a gradient but no buffer for it: it was frozen until after the last "
                  "forward",
                  p->base.path);
    } else {
        tn__fsdp_place_grads(p->set);
    }
    return NULL;
}

static void gradient_added(tn_tensor *leaf, void *user) {
    tn__fsdp_param *p = user;
    if (tn__pending() || !p->base.of->running) { return; }
    tn__parallel_added(&p->base);
    if (!p->set) { return; }
    p->set->waiting--;
    const tn_fsdp_state *s = p->set->fsdp;
    if (p->set->waiting == 0 && s->base.sync && !s->options.find_unused) {
        tn__fsdp_scatter(p->set);
    }
}

static void backward_ended(tn__parallel *p) {
    tn_fsdp_state *s = (tn_fsdp_state *)p;
    if (s->options.find_unused ? tn__fsdp_scatter_used(s) : tn__parallel_all_ready(p)) {
        tn__fsdp_arrive_all(s);
        tn__fsdp_sum_ignored(s);
    }
}

/* With find_unused ranks may differ, so all ranks count. */
static bool has_grad(const tn__parallel_param *param) {
    const tn__fsdp_param *p = (const tn__fsdp_param *)param;
    const tn_fsdp_state *s = (const tn_fsdp_state *)param->of;
    return !s->options.find_unused && tn_grad_of(p->set ? p->part : param->leaf);
}

/* Sends what TN_NO_SYNC has kept in buffers of the sets. */
static void scatter_kept(tn__parallel *p) {
    tn_fsdp_state *s = (tn_fsdp_state *)p;
    if (s->options.find_unused || !tn__parallel_all_ready(p)) {
        return; /* the backward's end does it, or an error is pending */
    }
    for (int i = 0; i < s->set_count && !tn__pending(); i++) {
        if (s->sets[i].buffer) { tn__fsdp_scatter(&s->sets[i]); }
    }
}

/* Also after a backward without synchronisation: its units were gathered from all ranks. */
static void backward_over(tn__parallel *p) {
    tn_fsdp_state *s = (tn_fsdp_state *)p;
    if (tn__pending() && !p->sync) { tn__parallel_give_up(p, tn_error_message()); }
    s->forward.at = s->backward.at = 0;
    tn__fsdp_set_last(s, NULL);
    tn__fsdp_change_users(p, 0);
}

/* ---- Attaching ------------------------------------------------------------------------------- */

tn_fsdp_options tn_fsdp_defaults(void) {
    return (tn_fsdp_options){
        .stage = 3, .prefetch = 1, .broadcast_buffers = true, .from_defaults = true};
}

static void check_options(const tn_fsdp_options *o) {
    if (o->stage < 1 || o->stage > 3) {
        tn__raise(TN_EVALUE, "fsdp", "stage is %d (1, 2 or 3)", o->stage);
    } else if (o->prefetch < 0) {
        tn__raise(TN_EVALUE, "fsdp", "prefetch is %d (must be at least 0)", o->prefetch);
    }
}

tn_fsdp_state *tn_fsdp(void *m, tn_group *shard, tn_group *replicate, tn_fsdp_options options) {
    static const tn__parallel_rules rules = {
        .name = "sharding",
        .operation = "fsdp",
        .state_size = sizeof(tn_fsdp_state),
        .param_size = sizeof(tn__fsdp_param),
        .deferred = true,
        .start = tn__fsdp_start,
        .forward = take_buffers,
        .reached = expect_grads,
        .whole = tn__fsdp_change_whole,
        .hold = tn__fsdp_change_users,
        .coming = gradient_coming,
        .added = gradient_added,
        .flush = scatter_kept,
        .has_grad = has_grad,
        .ended = backward_ended,
        .over = backward_over,
        .abandon = tn__fsdp_abandon,
        .finish = tn__fsdp_finish,
    };
    if (!tn__agree_begin(shard, rules.operation)) {
        tn_group_abort(replicate, tn_error_message());
        return NULL;
    }
    if (tn__options_made(options.from_defaults, "fsdp", "tn_fsdp")) { check_options(&options); }
    char *text =
        tn__asprintf("fsdp",
                     "stage %d\nunits %s\nignore %s\nprefetch %d\nsum %d\n"
                     "find_unused %d\nbroadcast_buffers %d\noffload %d",
                     options.stage, options.units ? options.units : "of kind block",
                     options.ignore ? options.ignore : "nothing", options.prefetch, options.sum,
                     options.find_unused, options.broadcast_buffers, options.offload);
    tn__fsdp_plan plan = {.options = options,
                          .hooks = {.before = unit_before,
                                    .after = unit_after,
                                    .backward_before = unit_backward_before,
                                    .backward_after = unit_backward_after}};
    tn__parallel *p = tn__parallel_attach(m, shard, replicate, &rules, text, &plan);
    free(text);
    return (tn_fsdp_state *)p;
}

tn_fsdp_stats tn_fsdp_statistics(const tn_fsdp_state *fsdp) {
    return fsdp ? fsdp->stats : (tn_fsdp_stats){0};
}
