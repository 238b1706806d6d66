/* The lifecycle of a step, the same for all strategies.
 *
 *     forward     the generator is keyed for this rank's micro-batch; rules->forward
 *     backward    its first gradient, or the module's output, shows that it concerns this module:
 *                 rules->reached; each gradient: rules->coming, rules->added
 *     its end     rules->ended, rules->over
 *
 * An error on this rank at any point of a synchronised backward aborts the group, so that no rank
 * waits in vain. Under no_sync a backward concerns this rank only.
 *
 * tn_sync_gradients does what a synchronised backward does besides computing, without a backward.
 *
 * Several modules may share a group, even in one backward: they use it in the order in which
 * backward reaches their parameters, which must be the same on all ranks.
 */
#include "autograd/mode.h"
#include "distributed/parallel/base.h"

#include <stdio.h>
#include <stdlib.h>

static void abort_groups(const tn__parallel *p, const char *reason) {
    tn_group_abort(p->group, reason);
    tn_group_abort(p->outer, reason);
}

tn_values tn__parallel_forward(tn_module *m, tn_values in, void *user) {
    tn__parallel *p = user;
    if (!tn__will_record() || tn__pending()) { return in; }
    tn__round_begin(p->strategy.round);
    if (p->rules->forward && p->no_sync == 0 && !tn_in_recompute()) {
        p->rules->forward(p);
        if (tn__pending()) { abort_groups(p, tn_error_message()); }
    }
    return in;
}

void tn__parallel_give_up(tn__parallel *p, const char *reason) {
    abort_groups(p, reason);
    if (p->rules->abandon) { p->rules->abandon(p); }
}

/* The end of every synchronised backward, even one that failed. */
static void leave_backward(tn__parallel *p) {
    if (p->sync && tn__pending()) { tn__parallel_give_up(p, tn_error_message()); }
    for (int i = 0; i < p->count && p->sync; i++) {
        tn__parallel_param_at(p, i)->kept = false;
    }
    if (p->rules->over) { p->rules->over(p); }
}

static void backward_ended(void *user) {
    tn__parallel *p = user;
    p->running = false;
    if (p->finished) {
        free(p);
        return;
    }
    if (p->sync && p->reached && !tn__pending()) {
        tn_flight_mark("backward", p->began);
        if (p->rules->ended) { p->rules->ended(p); }
    }
    leave_backward(p);
}

/* A backward arrives at the module's output or at a parameter. */
static bool begin_backward(tn__parallel *p) {
    if (!p->running && tn_after_backward(backward_ended, p) == TN_OK) {
        p->running = true;
        p->reached = false;
        p->sync = p->no_sync == 0;
        p->began = tn_flight_now();
    }
    return p->running;
}

bool tn__parallel_begin(tn__parallel *p) {
    if (!begin_backward(p) || p->reached) { return p->running; }
    p->reached = true;
    p->buffers_due |= p->sync;
    for (int i = 0; i < p->count; i++) {
        tn__parallel_param *param = tn__parallel_param_at(p, i);
        param->wanted = tn_requires_grad(param->leaf);
        param->ready = false;
    }
    if (p->rules->reached && !p->rules->reached(p)) { return false; }
    return tn__round_end(p->strategy.round) == TN_OK;
}

static bool wants_gradients(const tn__parallel *p) {
    for (int i = 0; i < p->count; i++) {
        if (tn_requires_grad(tn__parallel_param_at(p, i)->leaf)) { return true; }
    }
    return false;
}

/* Even if this rank's backward then reaches no parameter, the others must not wait for it. */
void tn__parallel_backward(tn_module *m, void *user) {
    tn__parallel *p = user;
    if (begin_backward(p) && tn__grad_self.accumulating > 0 && wants_gradients(p)) {
        tn__parallel_reach(p);
    }
}

bool tn__parallel_all_ready(const tn__parallel *p) {
    enum { SHOWN = 8 };
    char names[512] = "";
    size_t length = 0;
    int wanted = 0, missing = 0;
    for (int i = 0; i < p->count; i++) {
        const tn__parallel_param *param = tn__parallel_param_at(p, i);
        wanted += param->wanted;
        if (!param->wanted || param->ready) { continue; }
        if (missing++ < SHOWN && length < sizeof(names)) {
            length += (size_t)snprintf(names + length, sizeof(names) - length, "%s%s",
                                       missing > 1 ? ", " : "", param->path);
        }
    }
    return missing == 0 ||
           tn__fail(
               TN_ESTATE, p->rules->operation,
               "backward did not reach %d of %d parameters: %s%s (the option find_unused allows "
               "it; tn_module_requires_grad takes a module out of a step)",
               missing, wanted, names, missing > SHOWN ? ", ..." : "");
}

/* ---- Without a backward ---------------------------------------------------------------------- */

static bool has_grad(const tn__parallel *p, const tn__parallel_param *param) {
    return p->rules->has_grad ? p->rules->has_grad(param) : tn_grad_of(param->leaf) != NULL;
}

void tn__parallel_flush(tn__parallel *p) {
    if (p->running) {
        tn__raise(TN_ESTATE, "sync_gradients", "called inside a backward");
        return;
    }
    p->running = p->reached = p->sync = p->buffers_due = true;
    for (int i = 0; i < p->count; i++) {
        tn__parallel_param *param = tn__parallel_param_at(p, i);
        param->ready = param->kept && tn_grad_of(param->leaf);
        param->wanted = tn_requires_grad(param->leaf) && (param->ready || !has_grad(p, param));
    }
    bool fine = !tn__pending() && (!p->rules->reached || p->rules->reached(p));
    if (fine && p->rules->flush) { p->rules->flush(p); }
    if (fine && !tn__pending() && p->rules->ended) { p->rules->ended(p); }
    p->running = false;
    leave_backward(p);
}
