/* Parameters have one gradient each, so backwards of several callers take turns. */
#include "distributed/rpc/graphs.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/rpc/values.h"
#include "tensor/tensor.h"
#include "tern/ops.h"

static _Thread_local tn__graphs *turn_of; /* whose turn this thread has */

void tn__graphs_init(tn__graphs *gs) {
    pthread_mutex_init(&gs->lock, NULL);
    tn__condition_init(&gs->free);
}

void tn__graphs_finish(tn__graphs *gs) {
    pthread_cond_destroy(&gs->free);
    pthread_mutex_destroy(&gs->lock);
}

/* ---- The list -------------------------------------------------------------------------------- */

static void keep_values(tn_values *to, const tn_values *from) {
    *to = *from;
    for (int i = 0; i < from->n; i++) {
        tn_keep(from->v[i]);
    }
}

static void release_values(const tn_values *v) {
    for (int i = 0; i < v->n; i++) {
        tn_release(v->v[i]);
    }
}

/* Not under the lock: what the graph has ends, and may tell further ranks. */
static void release_graph(tn__graphs *gs, tn__graph *g) {
    pthread_mutex_lock(&gs->lock);
    bool last = --g->refs == 0;
    pthread_mutex_unlock(&gs->lock);
    if (last) {
        release_values(&g->in);
        release_values(&g->out);
        free(g);
    }
}

bool tn__graphs_keep(tn__graphs *gs, int caller, uint64_t number, const tn_values *in,
                     const tn_values *out, uint8_t *mask) {
    *mask = tn__values_learning(out);
    tn__graph *g = *mask ? tn__calloc_for(1, sizeof(*g), "rpc_forward") : NULL;
    if (!g) { return !*mask; }
    *g = (tn__graph){.caller = caller, .number = number, .refs = 1};
    keep_values(&g->in, in);
    keep_values(&g->out, out);
    pthread_mutex_lock(&gs->lock);
    g->next = gs->first;
    gs->first = g;
    pthread_mutex_unlock(&gs->lock);
    return true;
}

/* Under the lock: the link to the first graph of this call (0: of any, -1: of any caller). */
static tn__graph **link_of(tn__graphs *gs, int caller, uint64_t number) {
    tn__graph **at = &gs->first;
    while (*at &&
           !((caller < 0 || (*at)->caller == caller) && (number == 0 || (*at)->number == number))) {
        at = &(*at)->next;
    }
    return at;
}

void tn__graphs_forget(tn__graphs *gs, int caller, uint64_t number) {
    for (;;) {
        pthread_mutex_lock(&gs->lock);
        tn__graph **at = link_of(gs, caller, number), *g = *at;
        if (g) { *at = g->next; }
        pthread_mutex_unlock(&gs->lock);
        if (!g) { return; }
        release_graph(gs, g);
    }
}

/* ---- Turns ----------------------------------------------------------------------------------- */

bool tn__graphs_resume(tn__graphs *gs, double deadline) {
    struct timespec until = tn__timespec(deadline);
    bool late = false;
    pthread_mutex_lock(&gs->lock);
    while (gs->taken && !late) {
        late = pthread_cond_timedwait(&gs->free, &gs->lock, &until) != 0;
    }
    bool ours = !gs->taken;
    gs->taken = true;
    pthread_mutex_unlock(&gs->lock);
    if (!ours) {
        tn__raise(TN_EPEER, "rpc_backward", "another backward through this rank takes too long");
    }
    turn_of = ours ? gs : NULL;
    return ours;
}

bool tn__graphs_yield(tn__graphs *gs) {
    if (turn_of != gs) { return false; }
    pthread_mutex_lock(&gs->lock);
    gs->taken = false;
    pthread_cond_signal(&gs->free);
    pthread_mutex_unlock(&gs->lock);
    turn_of = NULL;
    return true;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Takes the gradients of the inputs, for the current scope. */
static tn_values take_grads(const tn__graph *g, uint8_t *mask) {
    tn_values out = {0};
    *mask = 0;
    for (int i = 0; i < g->in.n; i++) {
        tn_tensor *grad = tn__pending() ? NULL : tn_grad_of(g->in.v[i]);
        if (grad) {
            out.v[out.n++] = tn_adopt(tn_keep(grad));
            *mask = (uint8_t)(*mask | 1 << i);
        }
        tn_zero_grad(g->in.v[i]);
    }
    return out;
}

/* The graph stays: only the caller knows whether it goes through it again. */
static void run_backward(const tn__graph *g, const tn_values *grads, uint8_t mask) {
    tn_tensor *roots[TN_MAX_VALUES], *given[TN_MAX_VALUES];
    int n = 0, k = 0;
    for (int i = 0; i < g->out.n; i++) {
        tn_tensor *grad = mask >> i & 1 ? grads->v[k++] : NULL;
        if (grad && tn_requires_grad(g->out.v[i])) {
            roots[n] = g->out.v[i];
            given[n++] = tn_to(grad, tn_device_of(g->out.v[i]));
        }
    }
    if (k < grads->n) {
        tn__raise(TN_EMISMATCH, "rpc_backward", "gradients of more than %d results", g->out.n);
    } else if (n > 0) {
        tn_backward_from(roots, given, n, true);
    }
}

/* For one backward; NULL after raising. */
static tn__graph *borrow_graph(tn__graphs *gs, int caller, uint64_t number) {
    pthread_mutex_lock(&gs->lock);
    tn__graph *g = *link_of(gs, caller, number);
    bool busy = g && g->refs > 1;
    if (g && !busy) { g->refs++; }
    pthread_mutex_unlock(&gs->lock);
    if (!g || busy) {
        tn__raise(TN_ESTATE, "rpc_backward",
                  busy ? "another backward through this call runs"
                       : "there is no graph of this call");
    }
    return busy ? NULL : g;
}

tn_values tn__graphs_backward(tn__graphs *gs, int caller, uint64_t number, const tn_values *grads,
                              uint8_t *mask, double deadline) {
    tn_values out = {0};
    tn__graph *g = borrow_graph(gs, caller, number);
    if (g && tn__graphs_resume(gs, deadline)) {
        run_backward(g, grads, *mask);
        out = take_grads(g, mask);
        tn__graphs_yield(gs);
    }
    if (g) { release_graph(gs, g); }
    return out;
}
