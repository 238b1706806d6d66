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
 *
 * What happens in a node is in rule.c.
 */
#include "autograd/links.h"
#include "autograd/mode.h"
#include "autograd/profile.h"
#include "autograd/target.h"
#include "core/memory.h"
#include "tern/sys/device.h"

#include <string.h>

/* ---- Discovery ------------------------------------------------------------------------------- */

/* False after raising: a node that must run was freed by an earlier backward. */
static bool nothing_spent(const tn__run *run) {
    for (int i = 0; i < run->count; i++) {
        const tn_node *node = run->slots[i].node;
        if (node && tn__node_spent(node) && tn__any_edge(run, &run->slots[i], tn__slot_due)) {
            return tn__fail(
                TN_ESTATE, node->op->name,
                "backward a second time through a graph that was freed (retain_graph keeps it)");
        }
    }
    return true;
}

static int root_slot(tn__run *run, tn_tensor *root) {
    return tn__run_slot(run, root->node, root->node ? NULL : root);
}

/* Slots are appended as they are discovered, so they are also the worklist. */
bool tn__run_discover(tn__run *run, tn_tensor *const *roots, int n) {
    for (int i = 0; i < n; i++) {
        int slot = root_slot(run, roots[i]);
        if (slot < 0) { return false; }
        tn__run_hold(&run->slots[slot]);
    }
    for (int at = 0; at < run->count; at++) {
        tn_node *node = run->slots[at].node;
        if (!node) { continue; }
        for (int i = 0; i < node->inputs; i++) {
            const tn__edge *edge = &node->edges[i];
            if (tn__far_end(edge)) {
                int target = tn__run_slot(run, edge->node, edge->leaf);
                if (target < 0) { return false; }
                run->slots[target].waiting++;
            }
        }
    }
    return true;
}

/* ---- The run --------------------------------------------------------------------------------- */

static bool finish_leaf(tn__run *run, tn__slot *slot) {
    tn_tensor *leaf = slot->leaf;
    if (!run->accumulate || !slot->grad[0] || !tn__wants_grad(leaf)) { return true; }
    TN_SCOPE;
    tn_status status =
        slot->continued ? tn__target_check(slot) : tn__leaf_accumulate(leaf, &slot->grad[0]);
    tn_release(slot->grad[0]);
    slot->grad[0] = NULL;
    if (status != TN_OK) { return false; }
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
    tn__slot *slot = tn__far_slot(run, edge);
    if (!tn__slot_due(run, slot)) { return true; }
    if (grad) { tn__run_add(run, slot, edge->output, grad); }
    if (--slot->waiting > 0) { return !tn__pending(); }
    if (slot->node) {
        tn__run_push(run, (int)(slot - run->slots));
        return !tn__pending();
    }
    return !tn__pending() && finish_leaf(run, slot);
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

static bool run_node(tn__run *run, int index) {
    tn__slot *slot = &run->slots[index];
    tn_node *node = slot->node;
    tn_tensor *few[TN__RUN_FEW] = {NULL};
    tn_tensor **din =
        node->inputs <= TN__RUN_FEW ? few : tn__calloc((size_t)node->inputs, sizeof *din);
    if (!din) { return tn__fail(TN_ENOMEM, node->op->name, "out of memory in backward"); }
    if (run->profile) { tn__profile_node(run->profile, node); }
    bool again = run->second && slot->early, left = tn__leaves_some(run, slot);
    bool ok = (again || run_hooks(node, slot)) && tn__node_backward(run, slot, din);
    if (!slot->captured && !left) {
        for (int k = 0; k < node->outputs; k++) {
            tn_release(slot->grad[k]);
            slot->grad[k] = NULL;
        }
    }
    for (int i = 0; i < node->inputs; i++) {
        const tn__edge *edge = &node->edges[i];
        if (ok && tn__far_end(edge)) {
            tn_tensor *grad = din[i];
            din[i] = NULL;
            /* the slot's must be the only reference, so that later sums can be made in place */
            if (grad) {
                tn__slot *far = tn__far_slot(run, edge);
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
    if (din != few) { free(din); }
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
    return run->second && slot->early ? tn__any_edge(run, slot, tn__slot_due)
                                      : slot->waiting == 0 && tn__slot_due(run, slot);
}

static bool run_ready_nodes(tn__run *run) {
    if (!nothing_spent(run)) { return false; }
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
        if (!run_node(run, i)) { return false; }
    }
    return true;
}

/* ---- Checks and public calls ----------------------------------------------------------------- */

static bool check_root(tn_tensor *root, tn_tensor *grad, const char *operation) {
    if (!tn__usable(root, operation) || (grad && !tn__usable(grad, operation))) { return false; }
    if (!tn_requires_grad(root)) {
        return tn__fail(
            TN_ESTATE, operation,
            "the root %s does not depend on anything that requires a gradient (was it made "
            "under TN_NO_GRAD, or from tn_detach?)",
            tn_shape_text(root));
    }
    if (!grad && tn_dims_count(root->dims) != 1) {
        return tn__fail(TN_ESHAPE, operation,
                        "the root is %s; without a given gradient it must have one element",
                        tn_shape_text(root));
    }
    if (grad && (!tn_dims_equal(grad->dims, root->dims) || grad->dtype != root->dtype)) {
        return tn__fail(TN_ESHAPE, operation, "the root is %s %s but its gradient is %s %s",
                        tn_dtype_name(root->dtype), tn_shape_text(root), tn_dtype_name(grad->dtype),
                        tn_shape_text(grad));
    }
    if (grad && !tn__same_device(grad->storage->device, root->storage->device)) {
        return tn__fail(TN_EDEVICE, operation, "the root %s is on %s but its gradient is on %s",
                        tn_shape_text(root), tn_device_text(root->storage->device),
                        tn_device_text(grad->storage->device));
    }
    return true;
}

bool tn__check_roots(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                     const char *operation) {
    if (tn__pending()) { return false; }
    if (!roots || n < 1) { return tn__fail(TN_EVALUE, operation, "there are no roots"); }
    for (int i = 0; i < n; i++) {
        if (!check_root(roots[i], grads ? grads[i] : NULL, operation)) { return false; }
    }
    return true;
}

/* Recompute and second derivatives nest a few runs; a hook that calls backward endlessly would nest
 * them until the stack overflows. */
enum { MAX_RUNS = 100 };

bool tn__run_enter(const char *operation) {
    if (tn__grad_self.backward_depth + tn__grad_self.ending >= MAX_RUNS) {
        return tn__fail(
            TN_ESTATE, operation,
            "%d backward runs are inside each other (a hook that calls backward without "
            "end?)",
            MAX_RUNS);
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
    if (!order) { return false; }
    for (int i = 0; i < run->count; i++) {
        order[i] = &run->slots[i];
    }
    qsort(order, (size_t)run->count, sizeof *order, by_age);
    for (int i = 0; i < run->count; i++) {
        tn__slot *slot = order[i];
        slot->wanted |= slot->captured;
        for (int k = 0; slot->node && k < slot->node->inputs; k++) {
            const tn__slot *far = tn__far_slot(run, &slot->node->edges[k]);
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
        if (!tn__readable(inputs[i], "grad")) { return false; }
        int slot = input_slot(run, inputs[i]);
        if (slot >= 0) {
            run->slots[slot].captured = !run->accumulate;
            run->slots[slot].early |= first;
        }
    }
    return true;
}

void tn__run_accumulate(tn__run *run, tn_tensor *const *roots, tn_tensor *const *grads, int n,
                        tn_tensor *input) {
    run->profile = tn__profiled() ? tn__profile_run_begin() : NULL;
    tn__grad_self.accumulating++;
    {
        TN_SCOPE;
        TN_NO_GRAD;
        if (!roots ||
            (tn__run_discover(run, roots, n) && (!input || choose_inputs(run, &input, 1, true)) &&
             (!run->halved || mark_wanted(run)) && start_roots(run, roots, grads, n))) {
            run_ready_nodes(run);
        }
        if (run->profile) { tn__profile_run_end(run->profile); }
        if (!run->halved || run->second || tn__pending()) { tn__run_finish(run); }
    }
    tn__grad_self.accumulating--;
    leave_run();
}

tn_status tn_backward_from(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                           bool retain_graph) {
    if (tn__check_roots(roots, grads, n, "backward") && tn__run_enter("backward")) {
        tn__run run = {.accumulate = true, .retain_graph = retain_graph};
        tn__run_accumulate(&run, roots, grads, n, NULL);
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
            return tn__fail(TN_EVALUE, "grad",
                            "the roots do not depend on input %d, %s (allow_unused gives NULL)", i,
                            tn_shape_text(inputs[i]));
        }
        results[i] = grad ? tn_return(tn_adopt(tn_keep(grad))) : NULL;
    }
    return true;
}

tn_grad_options tn_grad_defaults(void) {
    return (tn_grad_options){.from_defaults = true};
}

void tn__run_capture(tn__run *run, tn_tensor *const *roots, tn_tensor *const *grads, int n,
                     tn_tensor *const *inputs, int inputs_n, tn_tensor **results,
                     bool allow_unused) {
    run->profile = tn__profiled() ? tn__profile_run_begin() : NULL;
    {
        TN_SCOPE;
        bool before = tn_grad_mode_begin(run->create_graph);
        bool ok = !roots ||
                  (tn__run_discover(run, roots, n) && choose_inputs(run, inputs, inputs_n, true) &&
                   choose_inputs(run, run->later, run->later_n, false) && mark_wanted(run) &&
                   start_roots(run, roots, grads, n));
        ok = ok && run_ready_nodes(run) &&
             collect_gradients(run, inputs, inputs_n, results, allow_unused);
        tn_grad_mode_end(&before);
        if (run->profile) { tn__profile_run_end(run->profile); }
        if (!run->halved || run->second || !ok) { tn__run_finish(run); }
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
        !tn__check_roots(roots, grads, n, "grad")) {
        return tn_error();
    }
    if (!inputs || !results || inputs_n < 1) {
        return tn__raise(TN_EVALUE, "grad", "there are no inputs");
    }
    if (tn__run_enter("grad")) {
        tn__run run = {.create_graph = options.create_graph,
                       .retain_graph = options.retain_graph || options.create_graph};
        tn__run_capture(&run, roots, grads, n, inputs, inputs_n, results, options.allow_unused);
    }
    return tn_error();
}
