/* Micro-batches: a leaf's gradient that goes on in place.
 *
 * The gradient of a weight is usually made by one kernel, which can as well add to what an earlier
 * backward has left: a product with beta 1, and neither a temporary nor an addition afterwards. It
 * may where this kernel makes all that the leaf gets in the run, so that between the kernel and the
 * leaf nothing can look, and where no hook waits for what this run adds. On devices only: on a CPU
 * an addition does not round as a product that adds. And in f32 only: a bf16 or f16 sum that is
 * rounded once would not be the one that ranks make of their parts, each of which is rounded first.
 */
#include "autograd/run.h"
#include "tern/sys/device.h"

/* The slot of the leaf behind an edge, perhaps through a low-precision copy, if all that the leaf
 * still waits for, and all that it gets, is this edge's gradient. */
static tn__slot *leaf_alone(const tn__run *run, const tn__edge *edge) {
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

tn_tensor *tn__run_before(const tn__run *run, const tn_op_grad *g, int i, tn_dtype dtype) {
    const tn__edge *edge = &g->node->edges[i];
    bool plain = run->accumulate && !run->create_graph && !run->halved;
    const tn__slot *slot = plain ? leaf_alone(run, edge) : NULL;
    const tn_tensor *t = slot ? slot->leaf : NULL;
    tn_tensor *grad = t && tn__wants_grad(t) && !t->leaf->preset ? tn_grad_of(t) : NULL;
    return grad && dtype == TN_F32 && grad->dtype == dtype && !is_watched(t->leaf) && !grad->node &&
                   tn_is_contiguous(grad) && tn_dims_equal(grad->dims, edge->dims) &&
                   grad->storage->device.kind != TN_CPU &&
                   tn__same_device(grad->storage->device, edge->device) && !is_read(g, grad)
               ? grad
               : NULL;
}

void tn__run_continue(const tn__run *run, const tn__edge *edge) {
    tn__slot *leaf = leaf_alone(run, edge);
    tn__far_slot(run, edge)->grad[edge->output] = tn_keep(tn_grad_of(leaf->leaf));
    leaf->continued = true;
}

tn_status tn__run_continued(const tn__slot *slot) {
    const tn_tensor *grad = tn_grad_of(slot->leaf), *sum = slot->grad[0];
    if (!grad || grad->storage != sum->storage || grad->offset != sum->offset) {
        return tn__raise(TN_ESTATE, "backward",
                         "the gradient of the leaf %s was set while a backward added to it",
                         tn_shape_text(slot->leaf));
    }
    return tn_error();
}
