/* Leaves: tensors that the program made and that collect gradients. */
#include "autograd/leaf.h"

#include "autograd/links.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "tern/sys/device.h"

static tn_leaf *leaf_of(tn_tensor *t) {
    if (!t->leaf) {
        tn_leaf *leaf = tn__calloc_for(1, sizeof *leaf, "requires_grad");
        if (!leaf) { return NULL; }
        leaf->grad_dtype = t->dtype;
        t->leaf = leaf;
    }
    return t->leaf;
}

void tn__leaf_free(tn_leaf *leaf) {
    tn_release(leaf->grad);
    tn_release(leaf->copy);
    tn_release(leaf->lent);
    tn__hooks_free(leaf->hooks);
    free(leaf);
}

/* ---- What is recorded ------------------------------------------------------------------------ */

tn_tensor *tn_set_requires_grad(tn_tensor *t, bool requires_grad) {
    if (!tn__readable(t, "set_requires_grad")) { return tn_inert(); }
    if (requires_grad && !tn_dtype_is_float(t->dtype)) {
        tn__raise(TN_EDTYPE, "set_requires_grad",
                  "%s has no gradient (only f32, f64, bf16 and f16 do)", tn_dtype_name(t->dtype));
        return tn_inert();
    }
    if (t->node) {
        tn__raise(TN_ESTATE, "set_requires_grad",
                  "the tensor %s is the result of %s, not a leaf (tn_detach makes one)",
                  tn_shape_text(t), t->node->op->name);
        return tn_inert();
    }
    if (!requires_grad && !t->leaf) { return t; }
    tn_leaf *leaf = leaf_of(t);
    if (!leaf) { return tn_inert(); }
    leaf->requires_grad = requires_grad;
    return t;
}

bool tn__leaf_like(tn_tensor *t, const tn_tensor *like) {
    tn_leaf *leaf = like->leaf && !tn_is_inert(t) ? leaf_of(t) : NULL;
    if (leaf) {
        leaf->requires_grad = like->leaf->requires_grad;
        leaf->grad_dtype = like->leaf->grad_dtype;
    }
    return !tn__pending();
}

bool tn_requires_grad(const tn_tensor *t) {
    return t && (t->node || tn__wants_grad(t));
}

bool tn_is_leaf(const tn_tensor *t) {
    return t && !t->node;
}

tn_tensor *tn_detach(const tn_tensor *t) {
    return tn__readable(t, "detach") ? tn__view(t, t->dims, t->stride, t->offset) : tn_inert();
}

/* ---- The gradient ---------------------------------------------------------------------------- */

tn_tensor *tn_grad_of(const tn_tensor *leaf) {
    return leaf && leaf->leaf && !leaf->leaf->stale ? leaf->leaf->grad : NULL;
}

void tn_zero_grad(tn_tensor *t) {
    if (!t || !t->leaf) { return; }
    t->leaf->stale = true;
    if (!t->leaf->preset) {
        tn_release(t->leaf->grad);
        t->leaf->grad = NULL;
    }
}

tn_leaf *tn__usable_leaf(tn_tensor *t, const char *operation) {
    if (!tn__readable(t, operation)) { return NULL; }
    if (t->node || !tn__wants_grad(t)) {
        tn__raise(TN_ESTATE, operation, "the tensor %s is not a leaf that requires a gradient",
                  tn_shape_text(t));
        return NULL;
    }
    return t->leaf;
}

static tn_status must_match(const tn_tensor *t, const tn_tensor *grad, const char *operation) {
    if (!tn_dims_equal(t->dims, grad->dims)) {
        return tn__raise(TN_ESHAPE, operation, "the leaf is %s but the gradient is %s",
                         tn_shape_text(t), tn_shape_text(grad));
    }
    if (grad->dtype != t->leaf->grad_dtype) {
        return tn__raise(TN_EDTYPE, operation,
                         "gradients of this leaf are %s but the gradient given is %s",
                         tn_dtype_name(t->leaf->grad_dtype), tn_dtype_name(grad->dtype));
    }
    if (!tn__same_device(grad->storage->device, t->storage->device)) {
        return tn__raise(TN_EDEVICE, operation, "the leaf %s is on %s but the gradient is on %s",
                         tn_shape_text(t), tn_device_text(t->storage->device),
                         tn_device_text(grad->storage->device));
    }
    return TN_OK;
}

static int32_t count_references(const tn_tensor *t) {
    return __atomic_load_n(&t->object.refs, __ATOMIC_ACQUIRE);
}

static void drop_loan(tn_leaf *leaf) {
    tn_release(leaf->lent);
    leaf->lent = NULL;
}

static void replace_grad(tn_leaf *leaf, tn_tensor *grad, bool preset, bool stale) {
    tn_tensor *old = leaf->grad;
    if (leaf->lent && count_references(leaf->lent) == 1) { /* left by a failed backward */
        drop_loan(leaf);
    }
    leaf->grad = tn_keep(grad);
    leaf->preset = preset;
    leaf->stale = stale;
    tn_release(old);
}

/* ---- A backward writes into the caller's buffer ---------------------------------------------- */

static bool in_lent_buffer(const tn_leaf *leaf, const tn_tensor *grad) {
    return grad == leaf->lent && leaf->preset && leaf->stale &&
           tn__address(grad) == tn__address(leaf->grad);
}

static bool hooks_observe_only(const tn_leaf *leaf) {
    bool all = true;
    for (const tn__hook *h = leaf->hooks; h; h = h->next) {
        all = all && (!h->before || h->observes);
    }
    return all;
}

tn_tensor *tn__leaf_lend(tn_tensor *t) {
    tn_leaf *leaf = t->leaf;
    bool idle = !leaf->lent || count_references(leaf->lent) == 1;
    if (!leaf->preset || !leaf->stale || !idle || !tn_is_contiguous(leaf->grad) ||
        !hooks_observe_only(leaf)) {
        return NULL;
    }
    tn_tensor *place = tn_alias(leaf->grad, leaf->grad->offset, t->dims);
    if (!place->inert) {
        drop_loan(leaf);
        leaf->lent = tn_keep(place);
    }
    return place;
}

bool tn__leaf_lent(const tn_tensor *t, const tn_tensor *sum) {
    return t && t->leaf && in_lent_buffer(t->leaf, sum) && count_references(sum) == 2;
}

static void swap_elements(tn_tensor *a, tn_tensor *b) {
    tn_tensor was = *a;
    a->storage = b->storage;
    a->offset = b->offset;
    a->version = b->version;
    a->own_version = b->own_version;
    b->storage = was.storage;
    b->offset = was.offset;
    b->version = was.version;
    b->own_version = was.own_version;
}

/* Takes the buffer back. A backward that is still summing there continues in a copy. */
static void end_loan(tn_leaf *leaf) {
    if (leaf->lent && count_references(leaf->lent) > 1) {
        TN_SCOPE;
        tn_tensor *copy = tn__ops.copy(leaf->lent);
        if (!copy->inert) { swap_elements(leaf->lent, copy); /* both are row-major */ }
    }
    drop_loan(leaf);
}

/* ---- Setting the gradient -------------------------------------------------------------------- */

tn_status tn_set_grad_dtype(tn_tensor *t, tn_dtype dtype) {
    tn_leaf *leaf = tn__usable_leaf(t, "set_grad_dtype");
    if (!leaf) { return tn_error(); }
    if (!tn_dtype_is_float(dtype)) {
        return tn__raise(TN_EDTYPE, "set_grad_dtype", "%s cannot hold a gradient",
                         tn_dtype_name(dtype));
    }
    if (leaf->grad && leaf->grad->dtype != dtype) {
        return tn__raise(TN_ESTATE, "set_grad_dtype", "the leaf already has a gradient in %s",
                         tn_dtype_name(leaf->grad->dtype));
    }
    leaf->grad_dtype = dtype;
    return TN_OK;
}

tn_status tn_set_grad_buffer(tn_tensor *t, tn_tensor *buffer) {
    tn_leaf *leaf = tn__usable_leaf(t, "set_grad_buffer");
    if (!leaf) { return tn_error(); }
    if (!buffer) {
        replace_grad(leaf, NULL, false, true);
        return TN_OK;
    }
    if (!tn__readable(buffer, "set_grad_buffer")) { return tn_error(); }
    tn_status status = must_match(t, buffer, "set_grad_buffer");
    if (status == TN_OK) { replace_grad(leaf, buffer, true, true); }
    return status;
}

tn_status tn_set_grad(tn_tensor *t, tn_tensor *grad) {
    tn_leaf *leaf = tn__usable_leaf(t, "set_grad");
    if (!leaf) { return tn_error(); }
    if (!grad) {
        tn_zero_grad(t);
        return TN_OK;
    }
    if (!tn__readable(grad, "set_grad")) { return tn_error(); }
    tn_status status = must_match(t, grad, "set_grad");
    if (status == TN_OK && leaf->preset) {
        TN_NO_GRAD;
        end_loan(leaf);
        tn__ops.copy_(leaf->grad, grad);
        leaf->stale = false;
        status = tn_error();
    } else if (status == TN_OK) {
        tn_tensor *mine = grad->node ? tn_detach(grad) : grad;
        if (tn_is_inert(mine)) { return tn_error(); }
        replace_grad(leaf, mine, false, false);
    }
    return status;
}

/* ---- Accumulation ---------------------------------------------------------------------------- */

bool tn__exclusive(const tn_tensor *t) {
    return __atomic_load_n(&t->object.refs, __ATOMIC_ACQUIRE) == 1 &&
           __atomic_load_n(&t->storage->refs, __ATOMIC_ACQUIRE) == 1 && !t->node &&
           tn_is_contiguous(t);
}

/* The gradient in a form that the leaf may keep: of this dtype, row-major, with no other
 * references, in a storage no larger than itself (a small view would keep a large one alive). */
static tn_tensor *own_copy(tn_tensor *grad, tn_dtype dtype) {
    if (grad->dtype != dtype) { return tn__ops.cast(grad, dtype); }
    size_t bytes = (size_t)tn_dims_count(grad->dims) * tn_dtype_size(dtype);
    return tn__exclusive(grad) && grad->storage->bytes == bytes ? grad : tn__ops.copy(grad);
}

/* Makes grad the leaf's gradient, in the caller's buffer if there is one, or adds it to what is
 * there. */
static tn_status write_grad(tn_leaf *leaf, tn_tensor *grad) {
    bool there = in_lent_buffer(leaf, grad);
    if (leaf->preset && grad != leaf->lent) { end_loan(leaf); }
    if (there) {
        tn__touch(leaf->grad);
    } else if (leaf->grad && !leaf->stale) {
        tn__ops.add_(leaf->grad,
                     grad->dtype == leaf->grad_dtype ? grad : tn__ops.cast(grad, leaf->grad_dtype));
    } else if (leaf->preset) {
        tn__ops.copy_(leaf->grad, grad);
    } else {
        tn_tensor *mine = own_copy(grad, leaf->grad_dtype);
        if (!mine->inert) { replace_grad(leaf, mine, false, false); }
    }
    leaf->stale = leaf->stale && tn__pending();
    return tn_error();
}

tn_status tn__leaf_accumulate(tn_tensor *t, tn_tensor **grad) {
    tn_hook id;
    for (tn__hook *h = tn__hook_after(t->leaf->hooks, 0); h;
         h = tn__hook_after(t->leaf->hooks, id)) {
        id = h->id;
        if (h->before && !tn__hook_call(h, grad, false)) { return tn_error(); }
    }
    tn_leaf *leaf = t->leaf;
    tn_status status = tn__pending() ? tn_error() : write_grad(leaf, *grad);
    if (*grad == leaf->lent) { drop_loan(leaf); }
    return status;
}
