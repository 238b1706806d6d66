/* y = x's elements in the same order, with other sizes
 *
 *     x: any shape and dtype
 *     y: args.dims, one of which may be -1, the same count; a view where strides allow, else a copy
 *     dx = dy, with x's sizes
 */
#include "ops/shape/shape.h"

/* dims with one -1 replaced so that there are `count` elements. False if they cannot have that
 * many. */
static bool resolve_dims(tn_dims dims, int64_t count, tn_dims *resolved) {
    int open = -1;
    if (dims.ndim < 0 || dims.ndim > TN_MAX_DIMS) { return false; }
    for (int i = 0; i < dims.ndim; i++) {
        if (dims.size[i] == -1 && open < 0) {
            open = i;
            dims.size[i] = 1;
        }
    }
    int64_t rest = tn_dims_count(dims);
    if (open >= 0) {
        if (rest <= 0 || count % rest != 0) { return false; }
        dims.size[open] = count / rest;
        rest = tn_dims_count(dims);
    }
    *resolved = dims;
    return rest == count;
}

/* The strides with which dims read the elements of t in order; false if there are none.
 *
 * Adjacent dimensions of t that one stride can traverse are joined first (dimensions of size 1 join
 * anything). Each new size then has to divide what is left of a joined run, from the last
 * backwards. */
static bool find_strides(const tn_tensor *t, tn_dims dims, int64_t *stride) {
    int64_t size[TN_MAX_DIMS], step[TN_MAX_DIMS];
    int runs = 0;
    if (tn_count(t) == 0) {
        tn__contiguous_strides(dims, stride);
        return true;
    }
    for (int i = 0; i < t->dims.ndim; i++) {
        int64_t n = t->dims.size[i];
        if (n == 1) { continue; }
        if (runs > 0 && step[runs - 1] == n * t->stride[i]) {
            size[runs - 1] *= n;
            step[runs - 1] = t->stride[i];
        } else {
            size[runs] = n;
            step[runs++] = t->stride[i];
        }
    }
    int run = runs - 1;
    int64_t left = run >= 0 ? size[run] : 1, next = run >= 0 ? step[run] : 1;
    for (int i = dims.ndim - 1; i >= 0; i--) {
        if (dims.size[i] > 1 && left == 1 && run > 0) {
            run--;
            left = size[run];
            next = step[run];
        }
        stride[i] = next;
        if (dims.size[i] == 1) { /* common, and saves a slow division */
            continue;
        }
        if (left % dims.size[i] != 0) { return false; }
        next *= dims.size[i];
        left /= dims.size[i];
    }
    return true;
}

static bool reshape_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    tn_dims wanted = ((const tn__dims_args *)c->args)->dims, dims;
    int64_t stride[TN_MAX_DIMS];
    if (!resolve_dims(wanted, tn_count(x), &dims)) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s and cannot become %s (it has %lld elements)",
                          tn_shape_text(x), tn__dims_text(wanted), (long long)tn_count(x));
    }
    if (find_strides(x, dims, stride)) { return tn_op_view(c, dims, stride, x->offset); }
    return tn_op_out(c, dims, x->dtype);
}

/* A copy is written through x's sizes: y is contiguous, so its elements have the same order under
 * both. */
static tn_status reshape_forward(const tn_op_call *c) {
    if (tn_shares_storage(c->in[0], c->out[0])) { return TN_OK; }
    tn_desc y = *c->y[0];
    y.ndim = c->x[0]->ndim;
    for (int i = 0; i < y.ndim; i++) {
        y.size[i] = c->x[0]->size[i];
    }
    tn__contiguous_strides(c->in[0]->dims, y.stride);
    return c->kernels->copy(c->ctx, &y, c->x[0]);
}

static void reshape_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_reshape(g->dout[0], tn_op_input_dims(g, 0)));
}

const tn_op tn__op_reshape = {
    .name = "reshape",
    .inputs = {"x"},
    .args_size = sizeof(tn__dims_args),
    .fields = {TN_FIELD_AS("shape", tn__dims_args, dims)},
    .shape = reshape_shape,
    .forward = reshape_forward,
    .backward = reshape_backward,
    .samples = "[3, 4] shape=[12]; [12] shape=[3, -1]; [2, 3, 4] shape=[6, 4]; "
               "[2, 3, 4] shape=[4, 2, 3]; [] shape=[1, 1]; [1, 1] shape=[]; [0, 3] shape=[3, 0]; "
               "[3, 4] shape=[3, 1, 2, 2]; [35, 34] shape=[34, 35]",
};

tn_tensor *tn_reshape(tn_tensor *t, tn_dims dims) {
    return tn_apply1(&tn__op_reshape, &(tn__dims_args){dims}, t);
}

tn_tensor *tn_flatten(tn_tensor *t, int first, int last) {
    if (!tn__usable(t, "flatten")) { return tn_inert(); }
    if (t->dims.ndim == 0) { return tn_reshape(t, TN_DIMS(1)); }
    int from = tn__dim(t, first, "flatten"), to = from < 0 ? -1 : tn__dim(t, last, "flatten");
    if (from < 0 || to < 0) { return tn_inert(); }
    if (from > to) {
        return tn__refused(TN_EVALUE, "flatten", "first is %d but last is %d (x is %s)", first,
                           last, tn_shape_text(t));
    }
    tn_dims dims = {.ndim = t->dims.ndim - (to - from)};
    for (int i = 0; i < dims.ndim; i++) {
        dims.size[i] = t->dims.size[i <= from ? i : i + to - from];
    }
    for (int i = from + 1; i <= to; i++) {
        dims.size[from] *= t->dims.size[i];
    }
    return tn_reshape(t, dims);
}

tn_tensor *tn_squeeze(tn_tensor *t, int dim) {
    if (!tn__usable(t, "squeeze")) { return tn_inert(); }
    int at = tn__dim(t, dim, "squeeze");
    if (at < 0) { return tn_inert(); }
    if (t->dims.size[at] != 1) { return t; }
    tn_dims dims = {.ndim = t->dims.ndim - 1};
    for (int i = 0; i < dims.ndim; i++) {
        dims.size[i] = t->dims.size[i < at ? i : i + 1];
    }
    return tn_reshape(t, dims);
}

tn_tensor *tn_unsqueeze(tn_tensor *t, int dim) {
    if (!tn__usable(t, "unsqueeze")) { return tn_inert(); }
    int n = t->dims.ndim + 1, at = dim < 0 ? dim + n : dim;
    if (at < 0 || at >= n || n > TN_MAX_DIMS) {
        return tn__refused(n > TN_MAX_DIMS ? TN_ESHAPE : TN_EINDEX, "unsqueeze",
                           "a dimension at %d of x %s (it has %d, at most %d are possible)", dim,
                           tn_shape_text(t), t->dims.ndim, TN_MAX_DIMS);
    }
    tn_dims dims = {.ndim = n};
    for (int i = 0; i < n; i++) {
        dims.size[i] = i == at ? 1 : t->dims.size[i < at ? i : i - 1];
    }
    return tn_reshape(t, dims);
}
