/* Where the gradients that a kernel makes go (target.h).
 *
 * Micro-batches: the gradient of a weight is usually made by one kernel, which can as well add to
 * what an earlier backward has left: a product with beta 1, and neither a temporary nor an addition
 * afterwards. It may where this kernel makes all that the leaf gets in the run, so that between the
 * kernel and the leaf nothing can look, and where no hook waits for what this run adds. On devices
 * only: on a CPU an addition does not round as a product that adds. And in f32 only: a bf16 or f16
 * sum that is rounded once would not be the one that ranks make of their parts, each of which is
 * rounded first.
 */
#include "autograd/target.h"

#include "autograd/mode.h"
#include "tern/sys/device.h"

/* Whether the gradient of input i may be made elsewhere than in new memory. Anomaly mode checks
 * each gradient by itself. */
static bool may_share(const tn_op_grad *g, int i) {
    return g->wants[i] && !g->din[i] && !g->run->create_graph && !tn__anomaly;
}

/* ---- A sum of this run ----------------------------------------------------------------------- */

tn_tensor *tn_op_pending(tn_op_grad *g, int i) {
    if (i < 0 || i >= g->inputs || !may_share(g, i)) { return NULL; }
    const tn__edge *edge = &g->node->edges[i];
    const tn__slot *slot = tn__far_slot(g->run, edge);
    tn_tensor *sum = slot ? slot->grad[edge->output] : NULL;
    return sum && (tn__exclusive(sum) || tn__leaf_lent(edge->leaf, sum)) &&
                   sum->dtype == tn_op_gradient_dtype(g, i) && tn_dims_equal(sum->dims, edge->dims)
               ? sum
               : NULL;
}

/* ---- A leaf's gradient from before the run --------------------------------------------------- */

/* The slot of the leaf behind an edge, perhaps through a low-precision copy, if all that the leaf
 * still waits for, and all that it gets, is this edge's gradient. */
static tn__slot *sole_receiver(const tn__run *run, const tn__edge *edge) {
    const tn_node *copy = edge->node;
    const tn__slot *slot = tn__far_slot(run, edge);
    bool alone = slot && slot->waiting == 1 && !slot->grad[edge->output];
    if (alone && copy) {
        alone = copy->op->flags & TN_OP_LOW_PRECISION_COPY && !copy->hooks;
        edge = &copy->edges[1];
    }
    tn__slot *leaf = alone && edge->leaf ? tn__far_slot(run, edge) : NULL;
    return leaf && leaf->waiting == 1 && !leaf->grad[0] ? leaf : NULL;
}

/* Whether a hook is called with what a run adds. */
static bool is_watched(const tn_leaf *leaf) {
    bool any = false;
    for (const tn__hook *h = leaf->hooks; h; h = h->next) {
        any = any || h->before;
    }
    return any;
}

/* Whether the rule reads this memory, which a kernel can then not add to. */
static bool is_read(const tn_op_grad *g, const tn_tensor *t) {
    bool any = false;
    for (int i = 0; i < g->node->saved_count; i++) {
        const tn_tensor *saved = g->node->saved[i].tensor;
        any = any || (saved && saved->storage == t->storage);
    }
    for (int k = 0; k < g->outputs; k++) {
        any = any || (g->dout[k] && g->dout[k]->storage == t->storage);
    }
    return any;
}

/* The gradient of the leaf behind input i, or behind the low-precision copy that is input i, if the
 * kernel may add to it; else NULL. */
static tn_tensor *gradient_before(const tn_op_grad *g, int i) {
    const tn__run *run = g->run;
    const tn__edge *edge = &g->node->edges[i];
    bool plain = may_share(g, i) && run->accumulate && !run->halved;
    const tn__slot *slot = plain ? sole_receiver(run, edge) : NULL;
    const tn_tensor *t = slot ? slot->leaf : NULL;
    tn_tensor *grad = t && tn__wants_grad(t) && !t->leaf->preset ? tn_grad_of(t) : NULL;
    return grad && tn_op_gradient_dtype(g, i) == TN_F32 && grad->dtype == TN_F32 &&
                   !is_watched(t->leaf) && !grad->node && tn_is_contiguous(grad) &&
                   tn_dims_equal(grad->dims, edge->dims) && grad->storage->device.kind != TN_CPU &&
                   tn__same_device(grad->storage->device, edge->device) && !is_read(g, grad)
               ? grad
               : NULL;
}

void tn__target_continued(tn_op_grad *g, int i) {
    const tn__edge *edge = &g->node->edges[i];
    tn__slot *leaf = sole_receiver(g->run, edge);
    tn__far_slot(g->run, edge)->grad[edge->output] = tn_keep(tn_grad_of(leaf->leaf));
    leaf->continued = true;
}

tn_status tn__target_check(const tn__slot *leaf) {
    const tn_tensor *grad = tn_grad_of(leaf->leaf), *sum = leaf->grad[0];
    if (!grad || grad->storage != sum->storage || grad->offset != sum->offset) {
        return tn__raise(TN_ESTATE, "backward",
                         "the gradient of the leaf %s was set while a backward added to it",
                         tn_shape_text(leaf->leaf));
    }
    return tn_error();
}

/* ---- Memory ---------------------------------------------------------------------------------- */

tn_tensor *tn__target_sum(tn_op_grad *g, int i, tn_dtype dtype, tn__target *how) {
    tn_tensor *sum = tn_op_pending(g, i);
    *how = sum ? TN__TARGET_ADD : TN__TARGET_CONTINUE;
    sum = sum ? sum : gradient_before(g, i);
    return sum && sum->dtype == dtype ? sum : NULL;
}

/* The buffer of the leaf behind input i, if the kernel may write there; else NULL. */
static tn_tensor *leaf_buffer(tn_op_grad *g, int i, tn_dtype dtype, tn_device device) {
    const tn__edge *edge = &g->node->edges[i];
    bool may = edge->leaf && g->run->accumulate && may_share(g, i);
    const tn__slot *slot = may ? tn__far_slot(g->run, edge) : NULL;
    tn_tensor *at = slot && !slot->grad[0] ? tn__leaf_lend(edge->leaf) : NULL;
    return at && at->dtype == dtype && tn_dims_equal(at->dims, edge->dims) &&
                   tn__same_device(at->storage->device, device)
               ? at
               : NULL;
}

tn_tensor *tn__target_memory(tn_op_grad *g, int i, tn_dtype dtype, tn_device device,
                             tn_tensor *const *made, tn__target *how) {
    tn_tensor *at = made && g->op->dx_out ? g->op->dx_out(g, i, made) : NULL;
    at = at ? at : leaf_buffer(g, i, dtype, device);
    *how = at ? TN__TARGET_FILL : TN__TARGET_FRESH;
    return at ? at : tn__new(tn_op_input_dims(g, i), dtype, device);
}
