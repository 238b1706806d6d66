/* Permission to change a tensor, and operands that overlap it: see inplace.h. */
#include "ops/inplace/inplace.h"

#include "autograd/node.h"
#include "autograd/tracer.h"
#include "tern/sys/device.h"

/* False after raising: backward, or x's strides, forbid a change. */
static bool may_change(const tn_tensor *x, const char *operation) {
    if (x->node) {
        tn__raise(TN_ESTATE, operation,
                  "x %s is the result of a recorded %s (a change would be lost to backward; "
                  "tn_detach it)",
                  tn_shape_text(x), x->node->op->name);
        return false;
    }
    if (tn_grad_mode() && tn_requires_grad(x)) {
        return tn__fail(TN_ESTATE, operation,
                        "x %s is a leaf that requires a gradient (change it under TN_NO_GRAD)",
                        tn_shape_text(x));
    }
    for (int i = 0; i < x->dims.ndim; i++) {
        if (x->stride[i] == 0 && x->dims.size[i] > 1 && tn_count(x) > 0) {
            return tn__fail(TN_ESHAPE, operation,
                            "x %s repeats the same elements along dimension %d (tn_copy it first)",
                            tn_shape_text(x), i);
        }
    }
    return true;
}

bool tn__writable(const tn_tensor *x, const char *operation) {
    return !tn__pending() && tn__usable(x, operation) && may_change(x, operation);
}

bool tn__settable(const tn_tensor *x, const char *operation) {
    return !tn__pending() && tn__usable_or_deferred(x, operation) && may_change(x, operation);
}

/* The addresses between t's first element and the end of its last. */
static void memory_extent(const tn_tensor *t, uintptr_t *from, uintptr_t *to) {
    int64_t last = 0;
    for (int i = 0; i < t->dims.ndim; i++) {
        last += (t->dims.size[i] - 1) * t->stride[i];
    }
    *from = (uintptr_t)tn__address(t);
    *to = *from + (uintptr_t)(last + 1) * tn_dtype_size(t->dtype);
}

/* Whether writing x could change what is still to be read from y. The same element at the same
 * position is harmless; beyond that only addresses are compared, so two interleaved slices count as
 * overlapping. */
static bool in_the_way(const tn_tensor *x, const tn_tensor *y) {
    uintptr_t x_from, x_to, y_from, y_to;
    if (tn_count(x) == 0 || tn_count(y) == 0) { return false; }
    memory_extent(x, &x_from, &x_to);
    memory_extent(y, &y_from, &y_to);
    if (x_to <= y_from || y_to <= x_from) { return false; }
    if (x_from != y_from || x->dtype != y->dtype || !tn_dims_equal(x->dims, y->dims)) {
        return true;
    }
    for (int i = 0; i < x->dims.ndim; i++) {
        if (x->dims.size[i] > 1 && x->stride[i] != y->stride[i]) { return true; }
    }
    return false;
}

bool tn__operand(const tn_tensor *x, tn_tensor *y, const char *operation, tn_desc *desc) {
    if (!tn__usable(y, operation) || !tn__tracer_change(y, operation)) { return false; }
    tn_dims all;
    if (!tn_dims_equal(x->dims, y->dims) &&
        (!tn_dims_broadcast(x->dims, y->dims, &all) || !tn_dims_equal(all, x->dims))) {
        return tn__fail(TN_ESHAPE, operation, "x is %s but y is %s (it must broadcast to x)",
                        tn_shape_text(x), tn_shape_text(y));
    }
    if (!tn__same_device(x->storage->device, y->storage->device)) {
        return tn__fail(TN_EDEVICE, operation,
                        "x %s is on %s but y %s is on %s (tn_to one of them)", tn_shape_text(x),
                        tn_device_text(x->storage->device), tn_shape_text(y),
                        tn_device_text(y->storage->device));
    }
    if (in_the_way(x, y)) {
        TN_NO_GRAD;
        y = tn_copy(y);
        if (tn_is_inert(y)) { return false; }
    }
    tn_desc target = tn_desc_of(x), source = tn_desc_of(y);
    *desc = tn_desc_expand(&source, &target);
    return true;
}

tn_tensor *tn__changed(tn_tensor *x, tn_status status, const char *operation) {
    tn__touch(x);
    return tn__kernel_ok(status, operation) ? x : tn_inert();
}
