/* y = elements start, start + step, … of one dimension of x, `length` of them: a view
 *
 *     x: any shape and dtype       y: x's shape with `length` at dim
 *     dx = zeros with dy at the positions it came from
 *
 * narrow, slice, split and chunk are this operation.
 */
#include "ops/shape/shape.h"

static bool slice_shape(tn_op_call *c) {
    const tn__slice_args *args = c->args;
    const tn_tensor *x = c->in[0];
    int dim = tn__dim(x, args->dim, c->op->name);
    if (dim < 0) { return false; }
    int64_t size = x->dims.size[dim], start = args->start, length = args->length, step = args->step;
    if (step < 1 || start < 0 || length < 0 || start > size ||
        (length > 0 && (length - 1) > (size - 1 - start) / step) || (length > 0 && start == size)) {
        return tn_op_fail(
            c, TN_EINDEX,
            "x is %s but start is %lld, length %lld and step %lld in dimension %d (size %lld)",
            tn_shape_text(x), (long long)start, (long long)length, (long long)step, dim,
            (long long)size);
    }
    tn_dims dims = x->dims;
    int64_t stride[TN_MAX_DIMS];
    for (int i = 0; i < dims.ndim; i++) {
        stride[i] = x->stride[i];
    }
    dims.size[dim] = length;
    stride[dim] = length > 1 ? x->stride[dim] * step : x->stride[dim];
    return tn_op_view(c, dims, stride, length > 0 ? x->offset + start * x->stride[dim] : x->offset);
}

static void slice_backward(tn_op_grad *g) {
    tn__give_slice(g, *(const tn__slice_args *)g->args, g->dout[0]);
}

const tn_op tn__op_slice = {
    .name = "slice",
    .inputs = {"x"},
    .args_size = sizeof(tn__slice_args),
    .fields = {TN_FIELD(tn__slice_args, dim), TN_FIELD(tn__slice_args, start),
               TN_FIELD(tn__slice_args, length), TN_FIELD(tn__slice_args, step)},
    .shape = slice_shape,
    .backward = slice_backward,
    .samples = "[7] dim=0, start=2, length=3, step=1; [3, 4] dim=1, start=1, length=2, step=1; "
               "[3, 4] dim=-2, start=0, length=2, step=2; "
               "[2, 3, 8] dim=-1, start=1, length=3, step=3; "
               "[2, 3, 4] dim=1, start=0, length=3, step=1; "
               "[3, 4] dim=0, start=1, length=0, step=1; [3, 0] dim=0, start=1, length=2, step=1; "
               "[1] dim=0, start=0, length=1, step=1; [35, 67] dim=1, start=3, length=30, step=2",
};

tn_tensor *tn_narrow(tn_tensor *t, int dim, int64_t start, int64_t length) {
    return tn_apply1(&tn__op_slice, &(tn__slice_args){dim, start, length, 1}, t);
}

/* Like Python's x[start:end:step]: negative positions count from the end, and both are clamped to
 * the dimension. */
tn_tensor *tn_slice(tn_tensor *t, int dim, int64_t start, int64_t end, int64_t step) {
    if (!tn__usable(t, "slice")) { return tn_inert(); }
    int at = tn__dim(t, dim, "slice");
    if (at < 0) { return tn_inert(); }
    if (step < 1) {
        return tn__refused(TN_EVALUE, "slice", "step is %lld (it must be positive)",
                           (long long)step);
    }
    int64_t size = t->dims.size[at];
    start = start < 0 ? start + size : start;
    end = end < 0 ? end + size : end;
    start = start < 0 ? 0 : start > size ? size : start;
    end = end < start ? start : end > size ? size : end;
    return tn_apply1(
        &tn__op_slice,
        &(tn__slice_args){at, start, end > start ? (end - start - 1) / step + 1 : 0, step}, t);
}

int tn_split(tn_tensor *t, int64_t size, int dim, tn_tensor **out, int most) {
    for (int i = 0; out && i < most; i++) {
        out[i] = tn_inert();
    }
    if (!out && most > 0) {
        tn__raise(TN_EVALUE, "split", "out is NULL but most is %d", most);
        return 0;
    }
    if (!tn__usable(t, "split")) { return 0; }
    int at = tn__dim(t, dim, "split");
    if (at < 0) { return 0; }
    int64_t whole = t->dims.size[at];
    if (size < 1) {
        tn__raise(TN_EVALUE, "split", "size is %lld (it must be positive)", (long long)size);
        return 0;
    }
    int64_t pieces = whole > 0 ? (whole - 1) / size + 1 : 1;
    if (pieces > INT32_MAX) {
        tn__raise(TN_EVALUE, "split", "x is %s: %lld pieces are too many", tn_shape_text(t),
                  (long long)pieces);
        return 0;
    }
    for (int i = 0; i < most; i++) {
        int64_t start = i < pieces ? i * size : whole;
        out[i] = i < pieces ? tn_narrow(t, at, start, whole - start < size ? whole - start : size)
                            : NULL;
    }
    return (int)pieces;
}

/* An empty dimension gives as many pieces as requested, all empty. */
int tn_chunk(tn_tensor *t, int chunks, int dim, tn_tensor **out, int most) {
    int at = tn__usable(t, "chunk") ? tn__dim(t, dim, "chunk") : -1;
    if (at >= 0 && chunks < 1) {
        tn__raise(TN_EVALUE, "chunk", "chunks is %d (it must be positive)", chunks);
        at = -1;
    }
    int64_t whole = at < 0 ? 1 : t->dims.size[at];
    int pieces = tn_split(t, at < 0 ? 0 : whole > 0 ? (whole - 1) / chunks + 1 : 1, dim, out, most);
    for (; whole == 0 && pieces > 0 && pieces < chunks; pieces++) {
        if (pieces < most) { out[pieces] = tn_narrow(t, at, 0, 0); }
    }
    return pieces;
}
