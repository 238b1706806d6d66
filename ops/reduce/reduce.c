/* Dimensions of reductions: see reduce.h. */
#include "ops/reduce/reduce.h"

/* ---- Shapes ---------------------------------------------------------------------------------- */

bool tn__reduce_checked(const tn_op_call *c, tn_dims dims) {
    const tn_tensor *x = c->in[0];
    /* a 0-dimensional x counts as having dimension 0 */
    int ndim = x->dims.ndim > 0 ? x->dims.ndim : 1;
    unsigned seen = 0;
    if (dims.ndim < 0 || dims.ndim > TN_MAX_DIMS) {
        return tn_op_fail(c, TN_ESHAPE, "more than %d dimensions are named (x is %s)", TN_MAX_DIMS,
                          tn_shape_text(x));
    }
    for (int i = 0; i < dims.ndim; i++) {
        int64_t dim = dims.size[i] < 0 ? dims.size[i] + ndim : dims.size[i];
        if (dim < 0 || dim >= ndim) {
            return tn_op_fail(c, TN_EINDEX, "x is %s but dimension %lld is named (it has %d)",
                              tn_shape_text(x), (long long)dims.size[i], x->dims.ndim);
        }
        if (seen & 1u << dim) {
            return tn_op_fail(c, TN_EVALUE, "dimension %lld of x %s is named twice", (long long)dim,
                              tn_shape_text(x));
        }
        seen |= 1u << dim;
    }
    return true;
}

unsigned tn__reduce_mask(tn_dims dims, int ndim) {
    unsigned mask = 0;
    for (int i = 0; i < dims.ndim; i++) {
        mask |= 1u << (dims.size[i] < 0 ? dims.size[i] + (ndim > 0 ? ndim : 1) : dims.size[i]);
    }
    return dims.ndim ? mask : (1u << ndim) - 1;
}

tn_dims tn__reduce_kept(tn_dims x, unsigned mask) {
    for (int i = 0; i < x.ndim; i++) {
        x.size[i] = mask >> i & 1 ? 1 : x.size[i];
    }
    return x;
}

int64_t tn__reduce_count(tn_dims x, unsigned mask) {
    int64_t count = 1;
    for (int i = 0; i < x.ndim; i++) {
        count *= mask >> i & 1 ? x.size[i] : 1;
    }
    return count;
}

tn_dims tn__reduce_left(tn_dims x, unsigned mask, bool keepdim) {
    if (keepdim) { return tn__reduce_kept(x, mask); }
    tn_dims left = {0, {0}};
    for (int i = 0; i < x.ndim; i++) {
        if (!(mask >> i & 1)) { left.size[left.ndim++] = x.size[i]; }
    }
    return left;
}

bool tn__reduce_out(tn_op_call *c, tn_dtype dtype) {
    const tn__reduce_args *args = c->args;
    if (!tn__reduce_checked(c, args->dims)) { return false; }
    tn_dims x = c->in[0]->dims;
    unsigned mask = tn__reduce_mask(args->dims, x.ndim);
    return tn_op_out(c, tn__reduce_left(x, mask, args->keepdim), dtype);
}

bool tn__reduce_float(tn_op_call *c) {
    return tn__needs_float(c) && tn__reduce_out(c, c->in[0]->dtype);
}

bool tn__reduce_nonempty(const tn_op_call *c) {
    const tn__reduce_args *args = c->args;
    tn_dims x = c->in[0]->dims;
    if (tn__reduce_checked(c, args->dims) &&
        tn__reduce_count(x, tn__reduce_mask(args->dims, x.ndim)) > 0) {
        return true;
    }
    return tn_op_fail(c, TN_ESHAPE, "x is %s (there is nothing to choose from)",
                      tn_shape_text(c->in[0]));
}

/* ---- Forwards -------------------------------------------------------------------------------- */

tn_desc tn__reduce_desc(const tn_op_call *c, tn_dims dims) {
    tn_desc y = *c->y[0];
    y.ndim = dims.ndim;
    for (int i = 0; i < dims.ndim; i++) {
        y.size[i] = dims.size[i];
    }
    tn__contiguous_strides(dims, y.stride);
    return y;
}

tn_status tn__reduce(const tn_op_call *c, tn_reduction f) {
    const tn__reduce_args *args = c->args;
    tn_dims x = c->in[0]->dims;
    tn_desc y = tn__reduce_desc(c, tn__reduce_kept(x, tn__reduce_mask(args->dims, x.ndim)));
    return c->kernels->reduce(c->ctx, f, &y, c->x[0]);
}

tn_tensor *tn__counted(tn_tensor *x, tn_dtype dtype, const char *operation) {
    return tn__usable(x, operation) && x->dtype == TN_BOOL ? tn_cast(x, dtype) : x;
}

/* ---- Backwards ------------------------------------------------------------------------------- */

tn_tensor *tn__spread(const tn_op_grad *g, tn_tensor *t) {
    const tn__reduce_args *args = g->args;
    tn_dims x = tn_op_input_dims(g, 0);
    return tn_expand(tn_reshape(t, tn__reduce_kept(x, tn__reduce_mask(args->dims, x.ndim))), x);
}

tn_tensor *tn__sqrt_or_zero(tn_tensor *x) {
    tn_tensor *zero = tn_eq(x, tn__constant(x, 0.0));
    return tn_masked_fill(tn_sqrt(tn_masked_fill(x, zero, 1.0)), zero, 0.0);
}
