/* Gradients through calls. tn_rpc_forward is a node here, and a graph there that lives as long as
 * the node. Backward sends the results' gradients, and gets the inputs'.
 *
 *     here                                  rank 1
 *     x --- rpc_forward --- y --- loss      x' --- f --- y'
 *
 * Parameters have one gradient each, so backwards of several callers take turns.
 */
#include "autograd/node.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "tensor/tensor.h"
#include "tern/module.h"
#include "tern/ops.h"

#include <string.h>

/* ---- Turns ----------------------------------------------------------------------------------- */

static _Thread_local const tn_rpc *turn_of; /* whose turn this thread has */

/* False after raising: not by the deadline. */
static bool take_turn(tn_rpc *r, double deadline) {
    pthread_mutex_lock(&r->lock);
    while (r->turn_taken && tn__rpc_await(r, deadline)) {}
    bool ours = !r->turn_taken;
    r->turn_taken = true;
    pthread_mutex_unlock(&r->lock);
    if (!ours) {
        tn__raise(TN_EPEER, "rpc_backward", "another backward through this rank takes too long");
    }
    turn_of = ours ? r : NULL;
    return ours;
}

/* False: this thread has no turn. */
static bool give_turn(tn_rpc *r) {
    if (turn_of != r) { return false; }
    pthread_mutex_lock(&r->lock);
    r->turn_taken = false;
    tn__rpc_unlock(r);
    turn_of = NULL;
    return true;
}

/* Which of them require a gradient. */
static uint8_t learning_mask(const tn_values *v) {
    uint8_t mask = 0;
    for (int i = 0; i < v->n && i < TN_MAX_VALUES; i++) {
        mask = (uint8_t)(mask | (v->v[i] && tn_requires_grad(v->v[i])) << i);
    }
    return mask;
}

/* ---- Graphs that are kept here --------------------------------------------------------------- */

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
static void release_graph(tn_rpc *r, tn__graph *g) {
    pthread_mutex_lock(&r->lock);
    bool last = --g->refs == 0;
    pthread_mutex_unlock(&r->lock);
    if (last) {
        release_values(&g->in);
        release_values(&g->out);
        free(g);
    }
}

bool tn__rpc_keep_graph(tn_rpc *r, const tn__rpc_frame *call, const tn_values *in,
                        const tn_values *out, uint8_t *mask) {
    tn__peer *p = &r->peers[call->from];
    *mask = learning_mask(out);
    tn__graph *g = *mask ? tn__calloc_for(1, sizeof(*g), "rpc_forward") : NULL;
    if (!g) { return !*mask; }
    *g = (tn__graph){.number = call->head.number, .refs = 1};
    keep_values(&g->in, in);
    keep_values(&g->out, out);
    pthread_mutex_lock(&r->lock);
    bool gone = p->gone; /* then no one forgets it */
    if (!gone) {
        g->next = p->graphs;
        p->graphs = g;
    }
    pthread_mutex_unlock(&r->lock);
    if (gone) { release_graph(r, g); }
    return true;
}

/* Under the lock: the link to the graph of this call; 0: to the first. */
static tn__graph **link_of(tn_rpc *r, int caller, uint64_t number) {
    tn__graph **at = &r->peers[caller].graphs;
    while (*at && number && (*at)->number != number) {
        at = &(*at)->next;
    }
    return at;
}

void tn__rpc_forget_graph(tn_rpc *r, int caller, uint64_t number) {
    for (;;) {
        pthread_mutex_lock(&r->lock);
        tn__graph **at = link_of(r, caller, number), *g = *at;
        if (g) { *at = g->next; }
        pthread_mutex_unlock(&r->lock);
        if (!g) { return; }
        release_graph(r, g);
    }
}

/* For one backward; NULL after raising. */
static tn__graph *borrow_graph(tn_rpc *r, const tn__rpc_frame *call) {
    pthread_mutex_lock(&r->lock);
    tn__graph *g = *link_of(r, call->from, call->head.subject);
    bool busy = g && g->refs > 1;
    if (g && !busy) { g->refs++; }
    pthread_mutex_unlock(&r->lock);
    if (!g || busy) {
        tn__raise(TN_ESTATE, "rpc_backward",
                  busy ? "another backward through this call runs"
                       : "there is no graph of this call");
    }
    return busy ? NULL : g;
}

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

tn_values tn__rpc_backward(tn_rpc *r, const tn__rpc_frame *call, const tn_values *grads,
                           uint8_t *mask) {
    tn_values out = {0};
    tn__graph *g = borrow_graph(r, call);
    if (g && take_turn(r, call->deadline)) {
        run_backward(g, grads, call->head.mask);
        out = take_grads(g, mask);
        give_turn(r);
    }
    if (g) { release_graph(r, g); }
    return out;
}

/* ---- The node -------------------------------------------------------------------------------- */

typedef struct forward_args {
    tn_rpc *rpc; /* one reference */
    int owner;
    double timeout;
    tn__rpc_frame *forget; /* to be sent in the end: has the call's number */
} forward_args;

static void forward_finish(void *memory) {
    const forward_args *args = memory;
    if (tn__inherited(args->rpc->process)) {
        free(args->forget);
    } else {
        tn__rpc_send(args->rpc, args->owner, args->forget);
        tn__rpc_release(args->rpc);
    }
}

/* While this waits, other backwards through this rank have their turn, the inner ones of this one
 * too. */
static bool ask_backward(const forward_args *args, const tn_values *grads, uint8_t *mask,
                         tn_values *out) {
    tn_rpc *r = args->rpc;
    tn__rpc_head head = {
        .kind = TN__RPC_BACKWARD, .mask = *mask, .subject = args->forget->head.number};
    bool yields = give_turn(r);
    tn_future *f = tn__rpc_issue(r, head, args->owner, NULL, grads, args->timeout, "rpc_backward");
    tn__rpc_frame *reply = tn__rpc_finish(f, out, "rpc_backward");
    *mask = reply ? reply->head.mask : 0;
    free(reply);
    return reply && (!yields || take_turn(r, tn__served->deadline));
}

static void forward_backward(tn_op_grad *g) {
    const forward_args *args = g->args;
    if (tn_grad_mode()) {
        tn__raise(TN_EUNSUPPORTED, "rpc_forward",
                  "its gradient cannot be differentiated again: it is on rank %d", args->owner);
        return;
    }
    tn_values grads = {0}, out;
    uint8_t mask = 0;
    for (int i = 0; i < g->outputs; i++) {
        if (g->dout[i]) {
            grads.v[grads.n++] = g->dout[i];
            mask = (uint8_t)(mask | 1 << i);
        }
    }
    if (!ask_backward(args, &grads, &mask, &out)) { return; }
    for (int i = 0, k = 0; i < g->inputs - 1 && k < out.n; i++) {
        tn_tensor *grad = mask >> i & 1 ? out.v[k++] : NULL;
        if (grad && g->wants[i]) { tn_op_give(g, i, tn_to(grad, tn_op_input_device(g, i))); }
    }
}

static const tn_op forward_op = {
    .name = "rpc_forward",
    .args_size = sizeof(forward_args),
    .backward = forward_backward,
    .args_finish = forward_finish,
};

/* ---- Forward --------------------------------------------------------------------------------- */

/* Makes the results in the mask outputs of a node. A graph may be wanted though no input requires a
 * gradient: so the node has one input more, a leaf that gets none. */
static void record_node(const forward_args *args, const tn_values *in, const tn_values *out,
                        uint8_t mask) {
    tn_tensor *all[TN_MAX_VALUES + 1];
    memcpy(all, in->v, (size_t)in->n * sizeof(all[0]));
    all[in->n] = tn_set_requires_grad(tn_empty_on(tn_cpu(), TN_DIMS(0), TN_F32), true);
    if (tn__pending()) {
        forward_finish((void *)(uintptr_t)args);
        return;
    }
    tn_node *node = tn__node_new(&forward_op, args, all, in->n + 1, out->n, 0);
    for (int i = 0; node && i < out->n; i++) {
        if (mask >> i & 1) { tn__node_attach(node, out->v[i], i); }
    }
    if (node) { tn__node_release(node); }
}

tn_values tn_rpc_forward(tn_rpc *r, int to, const char *name, tn_values in, double timeout) {
    bool records = tn_grad_mode();
    tn__rpc_head h = {.kind = records ? TN__RPC_FORWARD : TN__RPC_CALL,
                      .mask = records ? learning_mask(&in) : 0};
    tn_future *f = tn__rpc_issue(r, h, to, name, &in, timeout, "rpc_forward");
    tn_values out;
    tn__rpc_frame *reply = tn__rpc_finish(f, &out, "rpc_forward");
    if (!reply) { return TN_VALUES(tn_inert()); }
    tn_device device = in.n > 0 ? tn_device_of(in.v[0]) : tn_cpu();
    for (int i = 0; i < out.n; i++) {
        out.v[i] = tn_to(out.v[i], device);
    }
    uint8_t mask = reply->head.mask;
    if (mask) {
        record_node(&(forward_args){tn__rpc_keep(r), to, timeout, tn__rpc_forget(reply)}, &in, &out,
                    mask);
    } else {
        free(reply);
    }
    return tn__pending() ? TN_VALUES(tn_inert()) : out;
}
