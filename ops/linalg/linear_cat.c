/* linear_cat(x, w1, w2, w3, …) = x [w1; w2; w3]^T + r: linears of one input, one behind another
 *
 *     x: (…, in), f32 f64 bf16 f16
 *     wi: (outi, in), like x, or i8 with si: (outi), a float (linear_q8); w2 and w3 may be absent
 *     r: like y, or absent             y: (…, out1 + out2 + out3), like x
 *
 * For decoding, where a product of one row takes about as long as a launch: queries, keys and
 * values, or both halves of a gated MLP, are one launch, and so are the last product of a block and
 * its residual sum. The weights stay where they are: the kernel takes their addresses. A device's
 * own kernel is for few rows (backends/few_rows.h); more are the composition's, which has all
 * gradients.
 */
#include "ops/linalg/linear.h"

enum { X, W, SCALE = W + 3, R = SCALE + 3, INPUTS };

/* Weight i fits x and has, if it is i8, its scale. False after raising. */
static bool part_fits(tn_op_call *c, int i) {
    const tn_tensor *x = c->in[X], *w = c->in[W + i], *scale = tn__optional(c, SCALE + i);
    if (w->dtype != (scale ? TN_I8 : x->dtype)) {
        return tn_op_fail(c, TN_EDTYPE, "x is %s and %s %s (%s is needed)", tn_dtype_name(x->dtype),
                          c->op->inputs[W + i], tn_dtype_name(w->dtype),
                          scale ? "i8 with a scale" : "the same");
    }
    if (w->dims.ndim != 2 || x->dims.size[x->dims.ndim - 1] != w->dims.size[1]) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s but %s is %s (…, in and out, in are needed)",
                          tn_shape_text(x), c->op->inputs[W + i], tn_shape_text(w));
    }
    if (scale && (!tn_op_float(c, SCALE + i) || scale->dims.ndim != 1 ||
                  scale->dims.size[0] != w->dims.size[0])) {
        return tn_op_fail(c, TN_ESHAPE, "%s is %s but its scale %s (one element per row)",
                          c->op->inputs[W + i], tn_shape_text(w), tn_shape_text(scale));
    }
    return true;
}

static bool linear_cat_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[X], *r = tn__optional(c, R);
    if (!tn_op_float(c, X)) { return false; }
    if (x->dims.ndim == 0) {
        return tn_op_fail(c, TN_ESHAPE, "x is [] (it needs a last dimension)");
    }
    tn_dims y = x->dims;
    int64_t *out = &y.size[y.ndim - 1];
    *out = 0;
    for (int i = 0; i < 3; i++) {
        if (tn__optional(c, W + i) && !part_fits(c, i)) { return false; }
        *out += tn__optional(c, W + i) ? c->in[W + i]->dims.size[0] : 0;
    }
    if (r && (r->dtype != x->dtype || !tn_dims_equal(r->dims, y))) {
        return tn_op_fail(c, TN_ESHAPE, "the result is %s in %s but add is %s in %s",
                          tn__dims_text(y), tn_dtype_name(x->dtype), tn_shape_text(r),
                          tn_dtype_name(r->dtype));
    }
    return tn_op_out(c, y, x->dtype);
}

static tn_tensor *linear_cat_compose(tn_op_call *c) {
    tn_tensor *parts[3] = {NULL}, *x = c->in[X], *r = tn__optional(c, R);
    int n = 0;
    for (int i = 0; i < 3; i++) {
        tn_tensor *w = tn__optional(c, W + i), *scale = tn__optional(c, SCALE + i);
        if (w) { parts[n++] = scale ? tn_linear_q8(x, w, scale, NULL) : tn_linear_op(x, w, NULL); }
    }
    tn_tensor *y = n > 1 ? tn_cat(parts, n, -1) : parts[0];
    return r ? tn_add(y, r) : y;
}

static void linear_cat_work(tn_op_work *w) {
    double rows = 0;
    for (int i = 0; i < 3; i++) {
        rows += w->x[W + i] ? (double)w->x[W + i]->size[0] : 0;
    }
    tn__work_product(w, tn__work_count(w->x[X]) * rows, 1u << X);
}

const tn_op tn__op_linear_cat = {
    .name = "linear_cat",
    .inputs = {"x", "weight1", "weight2", "weight3", "scale1", "scale2", "scale3", "add"},
    .optional = 0xffu & ~(1u << X | 1u << W),
    .saves = TN_SAVES_INPUTS,
    .shape = linear_cat_shape,
    .kernel = TN_FUSED(linear_cat),
    .compose = linear_cat_compose,
    .flags = TN_OP_WIDE,
    .x_rows = {[X] = TN_ROWS(1), [R] = TN_ROWS(1)},
    .y_rows = {TN_ROWS(1)},
    /* One, two and three weights, also in bytes; none or one row, more than the kernel takes;
     * width 0, and one longer than a warp's packs. */
    .samples = "{-1:1} [3, 4] [5, 4] [2, 4] [3, 4] - - - -; [4] [3, 4] [2, 4] - - - - [5]; {-1:1, "
               "byte, byte, byte, 0.001:0.01, 0.001:0.01, 0.001:0.01, -1:1} [2, 3, 4] [2, 4] - - "
               "[2] - - [2, 3, 2]; {-1:1} [0, 4] [3, 4] [1, 4] [1, 4] - - - -; "
               "[2, 0] [3, 0] [2, 0] - - - - -; {-1:1, byte, byte, byte, 0.001:0.01} [1, 70] [37, "
               "70] [1, 70] [3, 70] [37] [1] [3] -; "
               "{-1:1} [1, 544] [9, 544] [3, 544] - - - - [1, 12]; {-1:1, byte, byte, byte, "
               "0.001:0.01, 0.001:0.01, 0.001:0.01, -1:1} [8, 544] [2, 544] [11, 544] [2, 544] "
               "[2] [11] [2] [8, 15]; {-1:1} [11, 70] [5, 70] [3, 70] - - - - [11, 8]; "
               "[2, 1, 24] [4, 24] [3, 24] [9, 24] - - - -",
    .work = linear_cat_work,
};

tn_tensor *tn__linear_cat(tn_tensor *x, int n, tn_tensor *const *weights, tn_tensor *const *scales,
                          tn_tensor *add) {
    tn_tensor *in[INPUTS] = {[X] = x, [R] = add};
    for (int i = 0; i < n; i++) {
        in[W + i] = weights[i];
        in[SCALE + i] = scales[i];
    }
    return tn_apply(&tn__op_linear_cat, NULL, in, INPUTS);
}
