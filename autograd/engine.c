/* The engine: backward through a graph.
 *
 * A run has three parts. Discovery walks from the roots along the edges and counts, for every node
 * and leaf, how many gradients will arrive. Then nodes whose gradients are complete run, the
 * youngest first (the same order on every rank): hooks, the rule, and each input's gradient goes
 * along its edge. A leaf is finished the moment its last contribution arrives: the sum of all is
 * added to its gradient once.
 *
 * tn_grad is the same run with two differences: only nodes that lead to a chosen input run, and
 * gradients are captured there instead of accumulated.
 *
 * Either can run in halves (halves.h): the run is kept in between, and each half runs what is due.
 */
#include "autograd/halves.h"
#include "autograd/kernel.h"
#include "autograd/links.h"
#include "autograd/mode.h"
#include "autograd/profile.h"
#include "autograd/run.h"
#include "core/memory.h"
#include "tern/sys/device.h"

#include <string.h>

/* The key of an edge's target in the run's table; NULL: this gradient is not needed. */
static const void *far_end(const tn__edge *edge) {
    return edge->node ? (const void *)edge->node : (const void *)edge->leaf;
}

static tn__slot *far_slot(const tn__run *run, const tn__edge *edge) {
    const void *key = far_end(edge);
    int index = key ? tn__run_find(run, key) : -1;
    return index < 0 ? NULL : &run->slots[index];
}

/* Whether gradients that arrive there are needed in this half: of a run that is whole, all. */
static bool is_due(const tn__run *run, const tn__slot *slot) {
    return slot && slot->wanted && slot->early != run->second;
}

/* Whether the first half leaves something to do there. */
static bool is_left(const tn__run *run, const tn__slot *slot) {
    return run->halved && !run->second && slot && slot->wanted && !slot->early;
}

/* Whether one of the node's edges leads to such a slot. */
static bool any_edge(const tn__run *run, const tn__slot *slot,
                     bool (*such)(const tn__run *run, const tn__slot *slot)) {
    bool any = false;
    for (int i = 0; slot->node && i < slot->node->inputs && !any; i++) {
        any = such(run, far_slot(run, &slot->node->edges[i]));
    }
    return any;
}

/* Whether the node's rule is called again in the second half. */
static bool leaves_some(const tn__run *run, const tn__slot *slot) {
    return run->halved && any_edge(run, slot, is_left);
}

/* ---- One node -------------------------------------------------------------------------------- */

/* The dtype of gradients along an edge: to a leaf what it asks for (tn_set_grad_dtype), to a
 * low-precision copy in the dtype of its leaf. */
static tn_dtype gradient_dtype(const tn__edge *edge) {
    if (edge->leaf && edge->leaf->leaf) {
        return edge->leaf->leaf->grad_dtype;
    }
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
    if (!gradient || !g->wants[i] || !tn__usable(gradient, g->op->name)) {
        return;
    }
    if (!tn_dims_equal(gradient->dims, edge->dims)) {
        gradient = tn__ops.sum_to(gradient, edge->dims);
    }
    tn_dtype dtype = gradient_dtype(edge);
    bool wide = gradient->dtype == TN_F32 && (edge->dtype == TN_BF16 || edge->dtype == TN_F16);
    if (gradient->dtype == edge->dtype || wide) {
        gradient = tn__ops.cast(gradient, dtype);
    }
    if (gradient->dtype != dtype && !gradient->inert) {
        tn__raise(TN_EDTYPE, g->op->name, "backward gives a gradient in %s for %s, which is %s",
                  tn_dtype_name(gradient->dtype), tn_op_input_name(g->op, i).text,
                  tn_dtype_name(edge->dtype));
        return;
    }
    if (gradient->inert) {
        return;
    }
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

/* While a rule runs, this thread's innermost run: what tn_op_pending reads. */
static _Thread_local tn__run *current_run;

tn_tensor *tn_op_pending(tn_op_grad *g, int i) {
    if (i < 0 || i >= g->inputs) {
        return NULL;
    }
    const tn__edge *edge = &g->node->edges[i];
    if (!g->wants[i] || g->din[i] || !current_run || current_run->create_graph || tn__anomaly) {
        return NULL; /* anomaly mode checks each gradient by itself */
    }
    tn__slot *slot = far_slot(current_run, edge);
    tn_tensor *sum = slot ? slot->grad[edge->output] : NULL;
    return sum && (tn__exclusive(sum) || tn__leaf_lent(edge->leaf, sum)) &&
                   sum->dtype == gradient_dtype(edge) && tn_dims_equal(sum->dims, edge->dims)
               ? sum
               : NULL;
}

tn_tensor *tn__grad_place(tn_op_grad *g, int i) {
    const tn__edge *edge = &g->node->edges[i];
    if (!g->wants[i] || g->din[i] || !edge->leaf || !current_run || !current_run->accumulate ||
        current_run->create_graph || tn__anomaly) {
        return NULL;
    }
    const tn__slot *slot = far_slot(current_run, edge);
    return slot && !slot->grad[0] ? tn__leaf_lend(edge->leaf) : NULL;
}

tn_tensor *tn__grad_before(tn_op_grad *g, int i) {
    return g->wants[i] && !g->din[i] && current_run && !tn__anomaly
               ? tn__run_before(current_run, g, i, tn_op_gradient_dtype(g, i))
               : NULL;
}

void tn__grad_continued(tn_op_grad *g, int i) {
    tn__run_continue(current_run, &g->node->edges[i]);
}

/* ---- Rule, kernel, composition --------------------------------------------------------------- */

/* An input as the composition reads it: with its own node where its gradient is wanted, since one
 * tensor may be several inputs; detached, unless its history is to be differentiated as well. */
static tn_tensor *composed_input(tn_op_grad *g, int i, bool create_graph) {
    tn_tensor *t = tn_op_saved_input(g, i);
    if (!t || t->inert) {
        return t;
    }
    if (create_graph) {
        return g->wants[i] ? tn__ops.identity(t) : t;
    }
    t = tn_detach(t);
    return g->wants[i] ? tn_set_requires_grad(t, true) : t;
}

/* The device that the operation ran on: that of a gradient that arrived. */
static tn_device composed_on(const tn_op_grad *g) {
    int k = 0;
    while (k < g->outputs - 1 && !g->dout[k]) {
        k++;
    }
    return g->dout[k]->storage->device;
}

/* Gradients through the operation's composition, which is run again, recorded. */
static void compose_backward(tn_op_grad *g, bool create_graph) {
    int n = g->inputs, count = 0, roots = 0;
    if (n > TN_OP_INPUTS) {
        tn__raise(TN_EUNSUPPORTED, g->op->name, "a composition takes at most %d inputs",
                  TN_OP_INPUTS);
        return;
    }
    tn_tensor *in[TN_OP_INPUTS], *chosen[TN_OP_INPUTS], *made[TN_OP_INPUTS];
    tn_tensor *root[TN_OP_OUTPUTS], *grad[TN_OP_OUTPUTS];
    int chosen_index[TN_OP_INPUTS];
    bool before = tn_grad_mode_begin(true);
    for (int i = 0; i < n; i++) {
        in[i] = composed_input(g, i, create_graph);
        if (in[i] && g->wants[i]) {
            chosen_index[count] = i;
            chosen[count++] = in[i];
        }
    }
    tn_device device = composed_on(g);
    tn_op_call c = {.op = g->op, .args = g->args, .inputs = n, .in = in, .record = true};
    c.kernels = tn_backend_of(device);
    c.ctx = tn_context_of(device);
    c.out[0] = tn__pending() ? NULL : g->op->compose(&c);
    tn_grad_mode_end(&before);
    for (int k = 0; k < g->outputs && !tn__pending(); k++) {
        if (g->dout[k] && !c.out[k]) {
            tn__raise(TN_EVALUE, g->op->name, "the composition did not make result %d", k);
        } else if (g->dout[k] && tn_requires_grad(c.out[k])) { /* the others lead nowhere */
            root[roots] = c.out[k];
            grad[roots++] = g->dout[k];
        }
    }
    tn_grad_options options = TN_WITH(tn_grad, .create_graph = create_graph, .allow_unused = true);
    if (!tn__pending() && roots > 0 &&
        tn_grad(root, grad, roots, chosen, count, made, options) == TN_OK) {
        for (int k = 0; k < count; k++) {
            tn_op_give(g, chosen_index[k], made[k]);
        }
    }
}

static tn_status run_kernel(tn_op_grad *g) {
    return tn__profiled() ? tn__profile_backward(g) : tn__kernel_backward(g);
}

/* The kernel, if no graph of the gradient is wanted and there is one for this device and these
 * dtypes; otherwise the rule, or else the composition. */
static void run_backward(tn_op_grad *g, bool create_graph) {
    const tn_op *op = g->op;
    if (!create_graph && run_kernel(g) != TN_EUNSUPPORTED) {
        return;
    }
    if (tn__pending()) {
        return;
    }
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

static bool run_hooks(tn_node *node, tn__slot *slot) {
    tn_hook id;
    for (tn__hook *h = tn__hook_after(node->hooks, 0); h; h = tn__hook_after(node->hooks, id)) {
        id = h->id;
        if (slot->grad[h->output] && !tn__hook_call(h, &slot->grad[h->output], true)) {
            return false;
        }
    }
    return !tn__pending();
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

/* Inputs up to this many keep their flags on the stack. */
enum { FEW = 16 };

bool tn__node_backward(tn__run *run, tn__slot *slot, tn_tensor **din) {
    TN_SCOPE;
    tn_node *node = slot->node;
    bool few[FEW];
    bool *wants = node->inputs <= FEW ? few : tn__malloc((size_t)node->inputs);
    if (!wants) {
        tn__raise(TN_ENOMEM, node->op->name, "out of memory in backward");
        return false;
    }
    bool any = false;
    for (int i = 0; i < node->inputs; i++) {
        wants[i] = is_due(run, far_slot(run, &node->edges[i]));
        any |= wants[i];
    }
    tn_op_grad g = {.op = node->op,
                    .args = node->args,
                    .inputs = node->inputs,
                    .outputs = node->outputs,
                    .wants = wants,
                    .node = node,
                    .din = din};
    bool reached = false;
    for (int k = 0; k < node->outputs; k++) {
        g.dout[k] = slot->grad[k];
        reached |= g.dout[k] != NULL;
    }
    if (any && reached) {
        tn__run *outer = current_run;
        current_run = run;
        bool before = tn_grad_mode_begin(run->create_graph), outer_rule = tn__grad_self.in_rule;
        tn__grad_self.in_rule = true;
        tn__span span;
        bool seen = run->profile && tn__profile_gradient(&span, node->op);
        run_backward(&g, run->create_graph);
        if (seen) {
            tn__span_end(&span);
        }
        tn__grad_self.in_rule = outer_rule;
        tn_grad_mode_end(&before);
        current_run = outer;
        if (!run->retain_graph && !leaves_some(run, slot)) {
            tn__node_free_saved(node);
        }
    }
    bool ok = !tn__pending() && check_anomaly(&g);
    if (wants != few) {
        free(wants);
    }
    return ok;
}

/* ---- Discovery ------------------------------------------------------------------------------- */

/* False after raising: a node that must run was freed by an earlier backward. */
static bool nothing_spent(const tn__run *run) {
    for (int i = 0; i < run->count; i++) {
        const tn_node *node = run->slots[i].node;
        if (node && tn__node_spent(node) && any_edge(run, &run->slots[i], is_due)) {
            tn__raise(
                TN_ESTATE, node->op->name,
                "backward a second time through a graph that was freed (retain_graph keeps it)");
            return false;
        }
    }
    return true;
}

static int root_slot(tn__run *run, tn_tensor *root) {
    bool fresh;
    return root->node ? tn__run_slot(run, root->node, NULL, &fresh)
                      : tn__run_slot(run, NULL, root, &fresh);
}

/* Slots are appended as they are discovered, so they are also the worklist. */
static bool discover_graph(tn__run *run, tn_tensor *const *roots, int n) {
    for (int i = 0; i < n; i++) {
        int slot = root_slot(run, roots[i]);
        if (slot < 0) {
            return false;
        }
        tn__run_hold(&run->slots[slot]);
    }
    for (int at = 0; at < run->count; at++) {
        tn_node *node = run->slots[at].node;
        if (!node) {
            continue;
        }
        for (int i = 0; i < node->inputs; i++) {
            const tn__edge *edge = &node->edges[i];
            if (far_end(edge)) {
                bool fresh;
                int target = tn__run_slot(run, edge->node, edge->node ? NULL : edge->leaf, &fresh);
                if (target < 0) {
                    return false;
                }
                run->slots[target].waiting++;
            }
        }
    }
    return true;
}

/* ---- The run --------------------------------------------------------------------------------- */

static bool finish_leaf(tn__run *run, tn__slot *slot) {
    tn_tensor *leaf = slot->leaf;
    if (!run->accumulate || !slot->grad[0] || !tn__wants_grad(leaf)) {
        return true;
    }
    TN_SCOPE;
    tn_status status =
        slot->continued ? tn__run_continued(slot) : tn__leaf_accumulate(leaf, &slot->grad[0]);
    tn_release(slot->grad[0]);
    slot->grad[0] = NULL;
    if (status != TN_OK) {
        return false;
    }
    tn_hook id;
    for (tn__hook *h = tn__hook_after(leaf->leaf->hooks, 0); h;
         h = tn__hook_after(leaf->leaf->hooks, id)) {
        id = h->id;
        if (h->after) {
            TN_SCOPE;
            h->after(leaf, h->user);
        }
    }
    return !tn__pending();
}

/* Passes a gradient to an edge's target, which waits for one fewer. */
static bool deliver_gradient(tn__run *run, const tn__edge *edge, tn_tensor *grad) {
    tn__slot *slot = far_slot(run, edge);
    if (!is_due(run, slot)) {
        return true;
    }
    if (grad) {
        tn__run_add(run, slot, edge->output, grad);
    }
    if (--slot->waiting > 0) {
        return !tn__pending();
    }
    if (slot->node) {
        tn__run_push(run, (int)(slot - run->slots));
        return !tn__pending();
    }
    return !tn__pending() && finish_leaf(run, slot);
}

static bool run_node(tn__run *run, int index) {
    tn__slot *slot = &run->slots[index];
    tn_node *node = slot->node;
    tn_tensor *few[FEW] = {NULL};
    tn_tensor **din = node->inputs <= FEW ? few : tn__calloc((size_t)node->inputs, sizeof *din);
    if (!din) {
        tn__raise(TN_ENOMEM, node->op->name, "out of memory in backward");
        return false;
    }
    if (run->profile) {
        tn__profile_node(run->profile, node);
    }
    bool again = run->second && slot->early, left = leaves_some(run, slot);
    bool ok = (again || run_hooks(node, slot)) && tn__node_backward(run, slot, din);
    if (!slot->captured && !left) {
        for (int k = 0; k < node->outputs; k++) {
            tn_release(slot->grad[k]);
            slot->grad[k] = NULL;
        }
    }
    for (int i = 0; i < node->inputs; i++) {
        const tn__edge *edge = &node->edges[i];
        if (ok && far_end(edge)) {
            tn_tensor *grad = din[i];
            din[i] = NULL;
            /* the slot's must be the only reference, so that later sums can be made in place */
            if (grad) {
                tn__slot *far = far_slot(run, edge);
                if (!far->grad[edge->output]) {
                    far->grad[edge->output] = grad;
                    grad = NULL;
                }
            }
            ok = deliver_gradient(run, edge, grad);
            tn_release(grad);
        }
        tn_release(din[i]);
    }
    if (din != few) {
        free(din);
    }
    return ok;
}

static bool start_roots(tn__run *run, tn_tensor *const *roots, tn_tensor *const *grads, int n) {
    for (int i = 0; i < n; i++) {
        tn_tensor *grad = grads ? grads[i] : NULL;
        tn__run_add(run, &run->slots[root_slot(run, roots[i])],
                    roots[i]->node ? roots[i]->output : 0,
                    grad ? grad : tn__ops.ones_like(roots[i]));
    }
    return !tn__pending() && tn__run_reserve_heap(run);
}

/* Whether the slot waits for nothing when this half begins. In the second, nodes of the first run
 * again for what they have left. */
static bool is_ready(const tn__run *run, const tn__slot *slot) {
    return run->second && slot->early ? any_edge(run, slot, is_due)
                                      : slot->waiting == 0 && is_due(run, slot);
}

static bool run_ready_nodes(tn__run *run) {
    if (!nothing_spent(run)) {
        return false;
    }
    for (int i = 0; i < run->count; i++) {
        tn__slot *slot = &run->slots[i];
        if (is_ready(run, slot)) {
            if (slot->node) {
                tn__run_push(run, i);
            } else if (!finish_leaf(run, slot)) {
                return false;
            }
        }
    }
    for (int i = tn__run_pop(run); i >= 0; i = tn__run_pop(run)) {
        if (!run_node(run, i)) {
            return false;
        }
    }
    return true;
}

/* ---- Checks and public calls ----------------------------------------------------------------- */

static bool check_root(tn_tensor *root, tn_tensor *grad, const char *operation) {
    if (!tn__usable(root, operation) || (grad && !tn__usable(grad, operation))) {
        return false;
    }
    if (!tn_requires_grad(root)) {
        tn__raise(TN_ESTATE, operation,
                  "the root %s does not depend on anything that requires a gradient",
                  tn_shape_text(root));
        return false;
    }
    if (!grad && tn_dims_count(root->dims) != 1) {
        tn__raise(TN_ESHAPE, operation,
                  "the root is %s; without a given gradient it must have one element",
                  tn_shape_text(root));
        return false;
    }
    if (grad && (!tn_dims_equal(grad->dims, root->dims) || grad->dtype != root->dtype)) {
        tn__raise(TN_ESHAPE, operation, "the root is %s %s but its gradient is %s %s",
                  tn_dtype_name(root->dtype), tn_shape_text(root), tn_dtype_name(grad->dtype),
                  tn_shape_text(grad));
        return false;
    }
    if (grad && !tn__same_device(grad->storage->device, root->storage->device)) {
        tn__raise(TN_EDEVICE, operation, "the root %s is on %s but its gradient is on %s",
                  tn_shape_text(root), tn_device_text(root->storage->device),
                  tn_device_text(grad->storage->device));
        return false;
    }
    return true;
}

static bool check_roots(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                        const char *operation) {
    if (tn__pending()) {
        return false;
    }
    if (!roots || n < 1) {
        tn__raise(TN_EVALUE, operation, "there are no roots");
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (!check_root(roots[i], grads ? grads[i] : NULL, operation)) {
            return false;
        }
    }
    return true;
}

/* Recompute and second derivatives nest a few runs; a hook that calls backward endlessly would nest
 * them until the stack overflows. */
enum { MOST_RUNS = 100 };

/* Brackets around a run. False after raising. */
static bool enter_run(const char *operation) {
    if (tn__grad_self.backward_depth + tn__grad_self.ending >= MOST_RUNS) {
        tn__raise(TN_ESTATE, operation,
                  "%d backward runs are inside each other (a hook that calls backward without "
                  "end?)",
                  MOST_RUNS);
        return false;
    }
    tn__grad_self.backward_depth++;
    return true;
}

static void leave_run(void) {
    if (--tn__grad_self.backward_depth == 0) {
        tn__grad_self.ending++;
        tn__backward_ended();
        tn__grad_self.ending--;
    }
}

/* The order for marking what leads to a chosen slot. Every edge points from a younger slot to an
 * older one, so one pass from the oldest node on is enough; leaves come first. */
static int by_age(const void *a, const void *b) {
    const tn__slot *x = *(tn__slot *const *)a, *y = *(tn__slot *const *)b;
    uint64_t left = x->node ? x->node->age : 0, right = y->node ? y->node->age : 0;
    return (left > right) - (left < right);
}

static bool mark_wanted(tn__run *run) {
    tn__slot **order = tn__malloc_for((size_t)(run->count + 1) * sizeof(tn__slot *), "grad");
    if (!order) {
        return false;
    }
    for (int i = 0; i < run->count; i++) {
        order[i] = &run->slots[i];
    }
    qsort(order, (size_t)run->count, sizeof *order, by_age);
    for (int i = 0; i < run->count; i++) {
        tn__slot *slot = order[i];
        slot->wanted |= slot->captured;
        for (int k = 0; slot->node && k < slot->node->inputs; k++) {
            const tn__slot *far = far_slot(run, &slot->node->edges[k]);
            slot->wanted |= far && far->wanted;
            slot->early |= far && far->early;
        }
    }
    free(order);
    return true;
}

static int input_slot(const tn__run *run, const tn_tensor *input) {
    return tn__run_find(run, input->node ? (const void *)input->node : (const void *)input);
}

/* first: for the first half. */
static bool choose_inputs(tn__run *run, tn_tensor *const *inputs, int n, bool first) {
    for (int i = 0; i < n; i++) {
        if (!tn__readable(inputs[i], "grad")) {
            return false;
        }
        int slot = input_slot(run, inputs[i]);
        if (slot >= 0) {
            run->slots[slot].captured = !run->accumulate;
            run->slots[slot].early |= first;
        }
    }
    return true;
}

/* Runs what is due, after discovering it from the roots (NULL: the second half). */
static void accumulate_due(tn__run *run, tn_tensor *const *roots, tn_tensor *const *grads, int n,
                           tn_tensor *input) {
    run->profile = tn__profiled() ? tn__profile_run_begin() : NULL;
    tn__grad_self.accumulating++;
    {
        TN_SCOPE;
        TN_NO_GRAD;
        if (!roots ||
            (discover_graph(run, roots, n) && (!input || choose_inputs(run, &input, 1, true)) &&
             (!run->halved || mark_wanted(run)) && start_roots(run, roots, grads, n))) {
            run_ready_nodes(run);
        }
        tn__profile_run_end(run->profile);
        if (!run->halved || run->second || tn__pending()) {
            tn__run_finish(run);
        }
    }
    tn__grad_self.accumulating--;
    leave_run();
}

tn_status tn_backward_from(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                           bool retain_graph) {
    if (check_roots(roots, grads, n, "backward") && enter_run("backward")) {
        tn__run run = {.accumulate = true, .retain_graph = retain_graph};
        accumulate_due(&run, roots, grads, n, NULL);
    }
    return tn_error();
}

tn_status tn_backward(tn_tensor *loss) {
    return tn_backward_from(&loss, NULL, 1, false);
}

static bool collect_gradients(tn__run *run, tn_tensor *const *inputs, int n, tn_tensor **results,
                              bool allow_unused) {
    for (int i = 0; i < n; i++) {
        int slot = input_slot(run, inputs[i]);
        tn_tensor *grad =
            slot < 0 ? NULL : run->slots[slot].grad[inputs[i]->node ? inputs[i]->output : 0];
        if (!grad && !allow_unused) {
            tn__raise(TN_EVALUE, "grad",
                      "the roots do not depend on input %d, %s (allow_unused gives NULL)", i,
                      tn_shape_text(inputs[i]));
            return false;
        }
        results[i] = grad ? tn_return(tn_adopt(tn_keep(grad))) : NULL;
    }
    return true;
}

tn_grad_options tn_grad_defaults(void) {
    return (tn_grad_options){.from_defaults = true};
}

/* As accumulate_due. inputs: those of this half. */
static void capture_due(tn__run *run, tn_tensor *const *roots, tn_tensor *const *grads, int n,
                        tn_tensor *const *inputs, int inputs_n, tn_tensor **results,
                        bool allow_unused) {
    run->profile = tn__profiled() ? tn__profile_run_begin() : NULL;
    {
        TN_SCOPE;
        bool before = tn_grad_mode_begin(run->create_graph);
        bool ok = !roots ||
                  (discover_graph(run, roots, n) && choose_inputs(run, inputs, inputs_n, true) &&
                   choose_inputs(run, run->later, run->later_n, false) && mark_wanted(run) &&
                   start_roots(run, roots, grads, n));
        ok = ok && run_ready_nodes(run) &&
             collect_gradients(run, inputs, inputs_n, results, allow_unused);
        tn_grad_mode_end(&before);
        tn__profile_run_end(run->profile);
        if (!run->halved || run->second || !ok) {
            tn__run_finish(run);
        }
        for (int i = 0; i < inputs_n && !ok; i++) {
            results[i] = tn_inert();
        }
    }
    leave_run();
}

tn_status tn_grad(tn_tensor *const *roots, tn_tensor *const *grads, int n, tn_tensor *const *inputs,
                  int inputs_n, tn_tensor **results, tn_grad_options options) {
    for (int i = 0; results && i < inputs_n; i++) {
        results[i] = tn_inert();
    }
    if (!tn__options_made(options.from_defaults, "grad", "tn_grad") ||
        !check_roots(roots, grads, n, "grad")) {
        return tn_error();
    }
    if (!inputs || !results || inputs_n < 1) {
        return tn__raise(TN_EVALUE, "grad", "there are no inputs");
    }
    if (enter_run("grad")) {
        tn__run run = {.create_graph = options.create_graph,
                       .retain_graph = options.retain_graph || options.create_graph};
        capture_due(&run, roots, grads, n, inputs, inputs_n, results, options.allow_unused);
    }
    return tn_error();
}

/* ---- In halves ------------------------------------------------------------------------------- */

/* On the heap, for the second half; NULL after raising. */
static tn__run *halved_run(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                           bool accumulate) {
    const char *operation = accumulate ? "backward" : "grad";
    if (!check_roots(roots, grads, n, operation)) {
        return NULL;
    }
    tn__run *run = tn__calloc_for(1, sizeof(*run), operation);
    if (!run || !enter_run(operation)) {
        free(run);
        return NULL;
    }
    *run = (tn__run){.accumulate = accumulate, .halved = true};
    return run;
}

/* The run, for its second half; NULL if the first has failed. */
static tn__run *rest_of(tn__run *run) {
    if (!tn__pending()) {
        return run;
    }
    tn__rest_free(run);
    return NULL;
}

static bool enter_rest(tn__run *rest, const char *operation) {
    rest->second = true;
    return !tn__pending() && enter_run(operation);
}

tn__run *tn__backward_input(tn_tensor *root, tn_tensor *grad, tn_tensor *input) {
    tn__run *run = halved_run(&root, &grad, 1, true);
    if (run) {
        accumulate_due(run, &root, &grad, 1, input);
    }
    return rest_of(run);
}

tn_status tn__backward_rest(tn__run *rest) {
    if (enter_rest(rest, "backward")) {
        accumulate_due(rest, NULL, NULL, 0, NULL);
    }
    tn__rest_free(rest);
    return tn_error();
}

tn__run *tn__grad_inputs(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                         tn_tensor *const *inputs, int inputs_n, tn_tensor *const *later,
                         int later_n, tn_tensor **results) {
    tn__run *run = halved_run(roots, grads, n, false);
    if (run) {
        run->later = tn__calloc_for((size_t)later_n + 1, sizeof(tn_tensor *), "grad");
        for (int i = 0; i < later_n && run->later; i++) {
            run->later[run->later_n++] = tn_keep(later[i]);
        }
        capture_due(run, roots, grads, n, inputs, inputs_n, results, true);
    }
    return rest_of(run);
}

tn_status tn__grad_rest(tn__run *rest, tn_tensor **results) {
    if (enter_rest(rest, "grad")) {
        capture_due(rest, NULL, NULL, 0, rest->later, rest->later_n, results, true);
    }
    tn__rest_free(rest);
    return tn_error();
}

tn__run **tn__rule_rest(const tn_op_grad *g) {
    tn__run *run = current_run;
    int index = run && run->halved ? tn__run_find(run, g->node) : -1;
    tn__slot *slot = index < 0 ? NULL : &run->slots[index];
    bool both = slot && slot->early && (run->second || leaves_some(run, slot));
    return both ? &slot->rest : NULL;
}

bool tn__rule_later(const tn_op_grad *g, int i) {
    return is_left(current_run, far_slot(current_run, &g->node->edges[i]));
}
