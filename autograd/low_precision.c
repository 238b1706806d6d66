/* Low-precision copies of parameters: y = x in a narrower dtype. x keeps the copy, which is
 * refilled once for each change of x, or written by the optimiser's step together with x:
 *
 *     copy: x's shape, another float dtype; x: a leaf       y: a view of copy
 *     dx = dy, in x's dtype
 *
 * However many calls there were, a graph holds only this copy. Gradients that reach y are in x's
 * dtype already: they were widened before they were summed (TN_OP_LOW_PRECISION_COPY).
 */
#include "autograd/leaf.h"
#include "autograd/links.h"
#include "tern/sys/device.h"
#include "tern/sys/op.h"

static bool lend_shape(tn_op_call *c) {
    return tn_op_view(c, c->in[0]->dims, c->in[0]->stride, c->in[0]->offset);
}

static void lend_backward(tn_op_grad *g) {
    tn_op_give(g, 1, tn__ops.cast(g->dout[0], tn_op_input_dtype(g, 1)));
}

static const tn_op lend_op = {
    .name = "lend",
    .shape = lend_shape,
    .backward = lend_backward,
    .flags = TN_OP_LOW_PRECISION_COPY,
};

/* The leaf's copy, up to date with t; NULL after raising. */
static tn_tensor *current_copy(tn_tensor *t, tn_dtype dtype) {
    tn_leaf *leaf = t->leaf;
    if (leaf->copy_given && leaf->copy->dtype == dtype) { return leaf->copy; }
    uint32_t now = __atomic_load_n(&t->version->value, __ATOMIC_RELAXED);
    tn_tensor *copy = leaf->copy;
    bool fits =
        copy && copy->dtype == dtype && tn__same_device(copy->storage->device, t->storage->device);
    if (fits && leaf->copied_from == now) { return copy; }
    TN_SCOPE;
    TN_NO_GRAD;
    if (fits) {
        tn__ops.copy_(copy, t);
    } else {
        tn__low_precision_drop(t);
        copy = tn__ops.cast(t, dtype);
        leaf->copy = copy->inert ? NULL : tn_keep(copy);
    }
    if (tn__pending() || !leaf->copy) {
        tn__low_precision_drop(t);
        return NULL;
    }
    leaf->copied_from = now;
    return leaf->copy;
}

tn_tensor *tn__low_precision(tn_tensor *t, tn_dtype dtype) {
    if (!tn__readable(t, "lend")) { return tn_inert(); }
    if (t->node || !t->leaf) { /* not a leaf: nothing could keep the copy */
        return tn__ops.cast(t, dtype);
    }
    tn_tensor *in[2] = {current_copy(t, dtype), t};
    return in[0] ? tn_apply(&lend_op, NULL, in, 2) : tn_inert();
}

void tn__low_precision_set(tn_tensor *t, tn_tensor *copy) {
    tn_keep(copy);
    tn__low_precision_drop(t);
    t->leaf->copy = copy;
    t->leaf->copy_given = true;
}

tn_tensor *tn__low_precision_copy(const tn_tensor *t) {
    tn_tensor *copy = t->leaf && !t->leaf->copy_given ? t->leaf->copy : NULL;
    bool narrower = copy && t->dtype == TN_F32 && tn__is_narrow(copy->dtype);
    return narrower && tn_is_contiguous(t) &&
                   tn__same_device(copy->storage->device, t->storage->device)
               ? copy
               : NULL;
}

void tn__low_precision_filled(const tn_tensor *t) {
    tn__touch(t->leaf->copy);
    t->leaf->copied_from = t->version->value;
}

void tn__low_precision_drop(tn_tensor *t) {
    if (t && t->leaf) {
        tn_release(t->leaf->copy);
        t->leaf->copy = NULL;
        t->leaf->copy_given = false;
    }
}
