/* The shorthand of ops/op.h: shape rules, forwards and small tensors that many operations share. */
#include "ops/op.h"

#include "autograd/tracer.h"
#include "core/memory.h"

#include <math.h>

/* ---- Shape rules ----------------------------------------------------------------------------- */

bool tn__needs_number(const tn_op_call *c) {
    return c->in[0]->dtype != TN_BOOL ||
           tn_op_fail(c, TN_EDTYPE, "%s is bool (a number is needed; cast it)",
                      tn_op_input_name(c->op, 0).text);
}

bool tn__needs_float(const tn_op_call *c) {
    tn_dtype dtype = c->in[0]->dtype;
    return tn_dtype_is_float(dtype) ||
           tn_op_fail(c, TN_EDTYPE, "%s is %s (floating point is needed; cast it)",
                      tn_op_input_name(c->op, 0).text, tn_dtype_name(dtype));
}

bool tn__not_nan(const tn_op_call *c, const char *name, double value) {
    return !isnan(value) || tn_op_fail(c, TN_EVALUE, "%s is nan (a number is needed)", name);
}

bool tn__eps_fits(const tn_op_call *c, double eps) {
    return eps >= 0 || tn_op_fail(c, TN_EVALUE, "eps is %g (it must not be negative)", eps);
}

bool tn__shape_float(tn_op_call *c) {
    return tn__needs_float(c) && tn_op_out_like(c, 0);
}

bool tn__shape_number(tn_op_call *c) {
    return tn__needs_number(c) && tn_op_out_like(c, 0);
}

bool tn__shape_scalar(tn_op_call *c) {
    double k = ((const tn__scalar_args *)c->args)->k;
    tn_dtype dtype = c->in[0]->dtype;
    if (!tn_dtype_is_float(dtype) && dtype != TN_BOOL && (k != trunc(k) || !tn__fits(k, TN_I64))) {
        return tn_op_fail(c, TN_EVALUE, "x is %s but k is %g (a whole number is needed)",
                          tn_dtype_name(dtype), k);
    }
    return tn__shape_number(c);
}

bool tn__shape_float2(tn_op_call *c) {
    return tn_op_same_dtype(c) && tn__needs_float(c) &&
           tn_op_out_broadcast(c, 0, 1, c->in[0]->dtype);
}

bool tn__shape_number2(tn_op_call *c) {
    return tn_op_same_dtype(c) && tn__needs_number(c) &&
           tn_op_out_broadcast(c, 0, 1, c->in[0]->dtype);
}

bool tn__shape_compare(tn_op_call *c) {
    return tn_op_same_dtype(c) && tn_op_out_broadcast(c, 0, 1, TN_BOOL);
}

/* ---- Forwards -------------------------------------------------------------------------------- */

tn_status tn__unary(const tn_op_call *c, tn_unary f) {
    return c->kernels->unary(c->ctx, f, c->y[0], c->x[0], 0.0, 0.0);
}

tn_status tn__unary_k(const tn_op_call *c, tn_unary f) {
    const tn__scalar_args *args = c->args;
    return c->kernels->unary(c->ctx, f, c->y[0], c->x[0], args->k, 0.0);
}

/* x with y's sizes: x itself if it has them, else `expanded`, which repeats it. */
static const tn_desc *fit_desc(const tn_desc *x, const tn_desc *y, tn_desc *expanded) {
    bool same = x->ndim == y->ndim;
    for (int i = 0; i < y->ndim && same; i++) {
        same = x->size[i] == y->size[i];
    }
    if (same) { return x; }
    *expanded = tn_desc_expand(x, y);
    return expanded;
}

tn_status tn__binary(const tn_op_call *c, tn_binary f) {
    tn_desc a, b;
    return c->kernels->binary(c->ctx, f, c->y[0], fit_desc(c->x[0], c->y[0], &a),
                              fit_desc(c->x[1], c->y[0], &b));
}

tn_status tn__compare(const tn_op_call *c, tn_compare f) {
    tn_desc a, b;
    return c->kernels->compare(c->ctx, f, c->y[0], fit_desc(c->x[0], c->y[0], &a),
                               fit_desc(c->x[1], c->y[0], &b));
}

tn_status tn__copy_forward(const tn_op_call *c) {
    return c->kernels->copy(c->ctx, c->y[0], c->x[0]);
}

void tn__pass_backward(tn_op_grad *g) {
    tn_op_give(g, 0, g->dout[0]);
}

tn_status tn__binary_back(const tn_op_back *b, tn_binary f, const tn_desc *a) {
    return b->kernels->binary(b->ctx, f, b->dx[0], a, b->dy[0]);
}

tn_status tn__slope_back(const tn_op_back *b, tn_unary slope, double k0, double k1) {
    tn_status status = b->kernels->unary(b->ctx, slope, b->dx[0], b->x[0], k0, k1);
    return status == TN_OK ? tn__binary_back(b, TN_MUL, b->dx[0]) : status;
}

/* ---- Outside of tn_apply --------------------------------------------------------------------- */

bool tn__kernel_ok(tn_status status, const char *operation) {
    if (status == TN_OK) { return true; }
    if (status == TN_ENOMEM) {
        tn__raise(status, operation, "no memory for a kernel's scratch space");
    } else if (status == TN_EUNSUPPORTED) {
        tn__raise(status, operation, "the device's kernels do not handle this dtype");
    } else {
        tn__raise(status, operation, "a kernel failed (%s)", tn_status_name(status));
    }
    return false;
}

tn_tensor *tn__filled(const tn_tensor *t, tn_dims dims, double value) {
    if (!tn__usable(t, "fill")) { return tn_inert(); }
    tn_device device = tn_device_of(t);
    tn_tensor *y = tn__new(dims, t->dtype, device);
    if (tn_is_inert(y)) { return y; }
    tn_desc desc = tn_desc_of(y);
    return tn__kernel_ok(tn_backend_of(device)->fill(tn_context_of(device), &desc, value), "fill")
               ? y
               : tn_inert();
}

bool tn__probabilities(tn_tensor *p, const char *name, const char *advice, const char *operation) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn__tracer *tracer = tn__tracer_begin(NULL);         /* a check is not traced */
    tn_tensor *inside = tn_eq(p, tn_clamp(p, 0.0, 1.0)); /* NaN equals nothing */
    tn_tensor *all = tn_all(inside);
    tn__tracer_begin(tracer);
    if (tn_is_inert(all) || tn_item(all) != 0.0) { return !tn_is_inert(all); }
    tn_tensor *first = tn_argmin(tn_reshape(tn_cast(inside, TN_I32), TN_DIMS(-1)), 0, false);
    int64_t at = (int64_t)tn_item(first);
    tn_dims index = tn_shape(p);
    for (int d = index.ndim - 1; d >= 0; d--) {
        int64_t size = index.size[d];
        index.size[d] = at % size;
        at /= size;
    }
    return tn__fail(TN_EVALUE, operation, "%s%s is %g (it must be between 0 and 1%s)", name,
                    index.ndim > 0 ? tn__dims_text(index) : "", tn_at(p, index), advice);
}

int64_t *tn__read_indices(tn_tensor *t, const char *operation) {
    TN_SCOPE;
    int64_t *values = tn__calloc_for((size_t)tn_count(t), sizeof *values, operation);
    if (values && tn_copy_out(tn_cast(t, TN_I64), values) == TN_OK) { return values; }
    free(values);
    return NULL;
}

tn_tensor *tn__constant(const tn_tensor *t, double value) {
    return tn__filled(t, TN_DIMS(), value);
}

tn_tensor *tn__scalar_like(const tn_tensor *x, double k, const char *operation) {
    if (!tn__usable(x, operation)) { return tn_inert(); }
    bool fits =
        k == trunc(k) && tn__fits(k, x->dtype) && (x->dtype != TN_BOOL || k == 0.0 || k == 1.0);
    if (!fits && !tn_dtype_is_float(x->dtype)) {
        return tn__refused(TN_EVALUE, operation,
                           "x is %s but k is %g (which it cannot hold; cast x)",
                           tn_dtype_name(x->dtype), k);
    }
    return tn__constant(x, k);
}

int tn__dim_of_any(const tn_tensor *x, int dim, const char *operation) {
    return tn_ndim(x) == 0 && (dim == 0 || dim == -1) ? 0 : tn__dim(x, dim, operation);
}

tn_tensor *tn__from_first(tn_tensor *x, tn_dims dims) {
    if (tn_count(x) == 0) { return x; }
    tn_tensor *first = tn_detach(x); /* a shift needs no gradient */
    int count = tn_ndim(x) > 0 && dims.ndim > 0 ? dims.ndim : tn_ndim(x);
    for (int i = 0; i < count; i++) {
        first = tn_narrow(first, dims.ndim > 0 ? (int)dims.size[i] : i, 0, 1);
    }
    return tn_sub(x, first);
}

bool tn__fits(double value, tn_dtype dtype) {
    double whole = trunc(value);
    switch (dtype) {
    case TN_I64:
        return whole >= -0x1p63 && whole < 0x1p63;
    case TN_I32:
        return whole >= -0x1p31 && whole < 0x1p31;
    case TN_U8:
        return whole >= 0.0 && whole < 256.0;
    case TN_I8:
        return whole >= -128.0 && whole < 128.0;
    default:
        return true;
    }
}

double tn__work_count(const tn_dims *dims) {
    return dims ? (double)tn_dims_count(*dims) : 0;
}

void tn__work_product(tn_op_work *w, double multiplications, uint32_t inputs) {
    int times = w->wants ? 0 : 1;
    for (int i = 0; w->wants && i < TN_OP_INPUTS; i++) {
        times += w->x[i] && (inputs >> i & 1) && w->wants[i];
    }
    w->flops = 2 * multiplications * times;
}

void tn__work_picked(tn_op_work *w) {
    double all = tn__work_count(w->x[0]), read = tn__work_count(w->y[0]);
    if (!w->wants && read < all) { w->bytes -= w->x_bytes[0] * (1 - read / all); }
}
