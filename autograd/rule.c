/* One node of a backward: its rule, kernel or composition, and what these call. engine.c says which
 * node runs, and when.
 */
#include "autograd/again.h"
#include "autograd/halves.h"
#include "autograd/kernel.h"
#include "autograd/links.h"
#include "autograd/mode.h"
#include "autograd/profile.h"
#include "autograd/run.h"
#include "core/memory.h"
#include "tern/sys/device.h"

/* ---- What a rule gives, and reads ------------------------------------------------------------ */

/* The dtype of gradients along an edge: to a leaf what it asks for (tn_set_grad_dtype), to a
 * low-precision copy in the dtype of its leaf. */
static tn_dtype gradient_dtype(const tn__edge *edge) {
    if (edge->leaf && edge->leaf->leaf) { return edge->leaf->leaf->grad_dtype; }
    return edge->node && edge->node->op->flags & TN_OP_LOW_PRECISION_COPY
               ? gradient_dtype(&edge->node->edges[1])
               : edge->dtype;
}

tn_dtype tn_op_gradient_dtype(const tn_op_grad *g, int i) {
    return i >= 0 && i < g->inputs ? gradient_dtype(&g->node->edges[i]) : TN_F32;
}

void tn_op_give(tn_op_grad *g, int i, tn_tensor *gradient) {
    if (i < 0 || i >= g->inputs) {
        tn__raise(TN_EVALUE, g->op->name, "backward gives a gradient to input %d of %d", i,
                  g->inputs);
        return;
    }
    const tn__edge *edge = &g->node->edges[i];
    if (!gradient || !g->wants[i] || !tn__usable(gradient, g->op->name)) { return; }
    if (!tn_dims_equal(gradient->dims, edge->dims)) {
        gradient = tn__ops.sum_to(gradient, edge->dims);
    }
    tn_dtype dtype = gradient_dtype(edge);
    bool wide = gradient->dtype == TN_F32 && tn__is_narrow(edge->dtype);
    if (gradient->dtype == edge->dtype || wide) { gradient = tn__ops.cast(gradient, dtype); }
    if (gradient->dtype != dtype && !gradient->inert) {
        tn__raise(TN_EDTYPE, g->op->name, "backward gives a gradient in %s for %s, which is %s",
                  tn_dtype_name(gradient->dtype), tn_op_input_name(g->op, i).text,
                  tn_dtype_name(edge->dtype));
        return;
    }
    if (gradient->inert) { return; }
    if (!tn__same_device(gradient->storage->device, edge->device)) {
        tn__raise(TN_EDEVICE, g->op->name, "backward gives a gradient on %s for %s, which is on %s",
                  tn_device_text(gradient->storage->device), tn_op_input_name(g->op, i).text,
                  tn_device_text(edge->device));
        return;
    }
    tn_tensor *before = g->din[i];
    g->din[i] = tn_keep(before ? tn__ops.add(before, gradient) : gradient);
    tn_release(before);
}

/* ---- Rule, kernel, composition --------------------------------------------------------------- */

/* An input as the composition reads it: with its own node where its gradient is wanted, since one
 * tensor may be several inputs; detached, unless its history is to be differentiated as well. */
static tn_tensor *composed_input(tn_op_grad *g, int i, bool create_graph) {
    tn_tensor *t = tn_op_saved_input(g, i);
    if (!t || t->inert) { return t; }
    if (create_graph) { return g->wants[i] ? tn__ops.identity(t) : t; }
    t = tn_detach(t);
    return g->wants[i] ? tn_set_requires_grad(t, true) : t;
}

/* Gradients through the operation's composition, which is run again, recorded. */
static void compose_backward(tn_op_grad *g, bool create_graph) {
    int n = g->inputs;
    if (n > TN_OP_INPUTS) {
        tn__raise(TN_EUNSUPPORTED, g->op->name, "a composition takes at most %d inputs",
                  TN_OP_INPUTS);
        return;
    }
    tn_values in = {.n = n}, out = {.n = g->outputs};
    bool before = tn_grad_mode_begin(true);
    for (int i = 0; i < n; i++) {
        in.v[i] = composed_input(g, i, create_graph);
    }
    tn_device device = tn__gradient_device(g);
    tn_op_call c = {.op = g->op, .args = g->args, .inputs = n, .in = in.v, .record = true};
    c.kernels = tn_backend_of(device);
    c.ctx = tn_context_of(device);
    c.out[0] = tn__pending() ? NULL : g->op->compose(&c);
    tn_grad_mode_end(&before);
    for (int k = 0; k < g->outputs && !tn__pending(); k++) {
        out.v[k] = c.out[k];
        if (g->dout[k] && !out.v[k]) {
            tn__raise(TN_EVALUE, g->op->name, "the composition did not make result %d", k);
        }
    }
    if (!tn__pending()) { tn__give_again(g, in, out, NULL); }
}

static tn_status run_kernel(tn_op_grad *g) {
    return tn__profiled() ? tn__profile_backward(g) : tn__kernel_backward(g);
}

/* The kernel, if no graph of the gradient is wanted and there is one for this device and these
 * dtypes; otherwise the rule, or else the composition. */
static void run_backward(tn_op_grad *g, bool create_graph) {
    const tn_op *op = g->op;
    if (!create_graph && run_kernel(g) != TN_EUNSUPPORTED) { return; }
    if (tn__pending()) { return; }
    g->widened = op->flags & TN_OP_WIDE;
    for (int k = 0; k < g->outputs && g->widened; k++) {
        g->dout[k] = tn__widened(g->dout[k]);
    }
    if (op->backward) {
        op->backward(g);
    } else if (op->compose) {
        compose_backward(g, create_graph);
    } else {
        tn__raise(TN_EUNSUPPORTED, op->name,
                  "its gradient has only a kernel, which %s (it needs a rule or a composition)",
                  create_graph ? "cannot be differentiated again" : "does not handle this case");
    }
}

static bool check_anomaly(const tn_op_grad *g) {
    for (int i = 0; tn__anomaly && i < g->inputs; i++) {
        if (g->din[i] && !tn__anomaly_check(g->din[i], g->op->name, "the gradient of an input",
                                            g->node->where)) {
            return false;
        }
    }
    return true;
}

bool tn__node_backward(tn__run *run, tn__slot *slot, tn_tensor **din) {
    TN_SCOPE;
    tn_node *node = slot->node;
    bool few[TN__RUN_FEW];
    bool *wants = node->inputs <= TN__RUN_FEW ? few : tn__malloc((size_t)node->inputs);
    if (!wants) { return tn__fail(TN_ENOMEM, node->op->name, "out of memory in backward"); }
    bool any = false;
    for (int i = 0; i < node->inputs; i++) {
        wants[i] = tn__slot_due(run, tn__far_slot(run, &node->edges[i]));
        any |= wants[i];
    }
    tn_op_grad g = {.op = node->op,
                    .args = node->args,
                    .inputs = node->inputs,
                    .outputs = node->outputs,
                    .wants = wants,
                    .node = node,
                    .run = run,
                    .din = din};
    bool reached = false;
    for (int k = 0; k < node->outputs; k++) {
        g.dout[k] = slot->grad[k];
        reached |= g.dout[k] != NULL;
    }
    if (any && reached) {
        bool before = tn_grad_mode_begin(run->create_graph), outer_rule = tn__grad_self.in_rule;
        tn__grad_self.in_rule = true;
        tn__span span;
        bool seen = run->profile && tn__profile_gradient(&span, node->op);
        run_backward(&g, run->create_graph);
        if (seen) { tn__span_end(&span); }
        tn__grad_self.in_rule = outer_rule;
        tn_grad_mode_end(&before);
        if (!run->retain_graph && !tn__leaves_some(run, slot)) { tn__node_free_saved(node); }
    }
    bool ok = !tn__pending() && check_anomaly(&g);
    if (wants != few) { free(wants); }
    return ok;
}

/* ---- In halves ------------------------------------------------------------------------------- */

tn__run **tn__rule_rest(const tn_op_grad *g) {
    tn__run *run = g->run;
    int index = run->halved ? tn__run_find(run, g->node) : -1;
    tn__slot *slot = index < 0 ? NULL : &run->slots[index];
    bool both = slot && slot->early && (run->second || tn__leaves_some(run, slot));
    return both ? &slot->rest : NULL;
}

bool tn__rule_later(const tn_op_grad *g, int i) {
    return tn__slot_left(g->run, tn__far_slot(g->run, &g->node->edges[i]));
}
