/* Gradients through calls. tn_rpc_forward is a node here, and a graph there (graphs.c) that lives
 * as long as the node. Backward sends the results' gradients, and gets the inputs'.
 *
 *     here                                  rank 1
 *     x --- rpc_forward --- y --- loss      x' --- f --- y'
 */
#include "autograd/node.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "distributed/rpc/values.h"
#include "tensor/tensor.h"
#include "tern/module.h"
#include "tern/ops.h"

#include <string.h>

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
        tn__connections_send(&args->rpc->connections, args->owner, args->forget);
        tn__rpc_release(args->rpc);
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* While this waits, other backwards through this rank have their turn, the inner ones of this one
 * too. */
static bool ask_backward(const forward_args *args, const tn_values *grads, uint8_t *mask,
                         tn_values *out) {
    tn_rpc *r = args->rpc;
    tn__rpc_head head = {
        .kind = TN__RPC_BACKWARD, .mask = *mask, .subject = args->forget->head.number};
    bool yields = tn__graphs_yield(&r->graphs);
    tn_future *f = tn__rpc_issue(r, head, args->owner, NULL, grads, args->timeout, "rpc_backward");
    tn__rpc_frame *reply = tn__rpc_finish(f, out, "rpc_backward");
    *mask = reply ? reply->head.mask : 0;
    free(reply);
    return reply && (!yields || tn__graphs_resume(&r->graphs, tn__served->deadline));
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
                      .mask = records ? tn__values_learning(&in) : 0};
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
