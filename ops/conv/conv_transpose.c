/* conv_transpose(x, w, b): the gradient of conv, as an operation (Zeiler et al. 2010,
 * "deconvolution"; Dumoulin, Visin 2016, arXiv:1603.07285)
 *
 *     x: (N, C, in…), w: (C, O / groups, k…), b: (O) or absent; f32 f64 bf16 f16
 *     y: (N, O, out…), out = (in - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1
 *     y[n, o, q] = b[o] + sum over c, i and p of x[n, c, p] w[c, o, i]
 *                  where p stride - padding + i dilation = q
 *     dx = conv(dy, w)        dw = conv_weight_grad(x, dy)        db = sums of dy
 */
#include "ops/conv/conv.h"

#include "core/error.h"

enum { X, W, B };

/* Whether conv of a result of that size gives dimension i of x. */
static bool size_fits(const tn_op_call *c, int i) {
    const tn__conv_call *call = c->args;
    int64_t in = tn_size(c->in[X], i + 2), kernel = tn_size(c->in[W], i + 2),
            out = call->size.size[i];
    if (kernel >= 1 && in >= 1 && out >= 1) { return true; }
    return tn_op_fail(c, TN_ESHAPE,
                      "x is %s and weight is %s, from which the result would have size %lld in "
                      "dimension %d (all sizes must be at least 1)",
                      tn_shape_text(c->in[X]), tn_shape_text(c->in[W]), (long long)out, i + 2);
}

static bool conv_transpose_shape(tn_op_call *c) {
    const tn__conv_call *call = c->args;
    if (!tn__conv_inputs(c, "batch, channels", "channels in, channels out of a group")) {
        return false;
    }
    tn_dims x = tn_shape(c->in[X]), w = tn_shape(c->in[W]);
    int64_t groups = call->kernel.groups;
    if (x.size[1] != w.size[0] || w.size[0] % groups != 0) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but weight is %s with %lld groups (x's second dimension and "
                          "weight's first must be equal, and a multiple of groups)",
                          tn_shape_text(c->in[X]), tn_shape_text(c->in[W]), (long long)groups);
    }
    for (int i = 0; i < call->spatial; i++) {
        if (!size_fits(c, i)) { return false; }
    }
    return tn__conv_bias(c, w.size[1] * groups) &&
           tn_op_out(c, tn__conv_dims(x.size[0], w.size[1] * groups, call->size),
                     tn_dtype_of(c->in[X]));
}

static tn_status conv_transpose_forward(const tn_op_call *c) {
    const tn__conv_call *call = c->args;
    tn_desc y, x, w;
    return c->kernels->conv_backward_input(c->ctx, tn__conv_volume(c->y[0], &y),
                                           tn__conv_volume(c->x[X], &x),
                                           tn__conv_volume(c->x[W], &w), c->x[B], &call->kernel);
}

static void conv_transpose_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0];
    if (g->wants[X]) { tn__conv_give(g, X, &tn__op_conv, dy, tn_op_saved_input(g, W)); }
    if (g->wants[W]) { tn__conv_give(g, W, &tn__op_conv_weight_grad, tn_op_saved_input(g, X), dy); }
    if (g->inputs > B && g->wants[B]) { tn_op_give(g, B, tn__conv_bias_grad(dy)); }
}

static void conv_transpose_work(tn_op_work *w) {
    tn__conv_work(w, w->x[X], w->x[W]);
}

static tn_status conv_transpose_backward_kernel(const tn_op_back *b) {
    const tn__conv_call *call = b->args;
    tn_desc x, w, dx, dw, dy, db;
    tn__conv_volume(b->dy[0], &dy);
    tn_status status = TN_OK;
    if (b->dx[X]) {
        status = b->kernels->conv(b->ctx, tn__conv_volume(b->dx[X], &dx), &dy,
                                  tn__conv_volume(b->x[W], &w), NULL, &call->kernel);
    }
    if (status == TN_OK && b->dx[W]) {
        status = b->kernels->conv_backward_weight(b->ctx, tn__conv_volume(b->dx[W], &dw), NULL,
                                                  tn__conv_volume(b->x[X], &x), &dy, &call->kernel);
    }
    if (status == TN_OK && b->dx[B]) {
        db = (tn_desc){.data = b->dx[B]->data,
                       .dtype = dy.dtype,
                       .ndim = dy.ndim,
                       .size = {1, dy.size[1], 1, 1, 1},
                       .stride = {1, b->dx[B]->stride[0], 1, 1, 1}};
        status = b->kernels->reduce(b->ctx, TN_SUM, &db, &dy);
    }
    return status;
}

const tn_op tn__op_conv_transpose = {
    .name = "conv_transpose",
    .inputs = {"x", "weight", "bias"},
    .args_size = sizeof(tn__conv_call),
    .fields = {TN__CONV_FIELDS},
    .optional = 1u << B,
    .saves_for = {TN_SAVES_INPUT(W), TN_SAVES_INPUT(X)},
    .shape = conv_transpose_shape,
    .forward = conv_transpose_forward,
    .backward = conv_transpose_backward,
    .backward_kernel = conv_transpose_backward_kernel,
    .flags = TN_OP_WIDE,
    /* Those of conv.c, with its results as x. Elements that a stride skips at the end of conv's x
     * are output_padding here. */
    .samples = "{-1:1} [2, 4, 5] [4, 3, 3] [3] size=[7], spatial=1; "
               "[2, 3, 4] [3, 2, 4] - size=[8], spatial=1, stride=[2], padding=[1]; "
               "[2, 6, 5] [6, 2, 3] [4] size=[9], spatial=1, stride=[3], padding=[4], "
               "dilation=[2], groups=2; [2, 4, 3, 5] [4, 3, 3, 2] [3] size=[5, 6]; "
               "[1, 3, 4, 5] [3, 2, 3, 3] - size=[4, 5], padding=[1, 1]; "
               "[2, 3, 4, 3] [3, 2, 3, 3] [2] size=[7, 6], stride=[2, 2], padding=[1, 1]; "
               "[2, 2, 3, 5] [2, 2, 2, 3] [2] size=[6, 5], stride=[2, 1], padding=[0, 2], "
               "dilation=[1, 2]; [2, 5, 3, 2] [5, 3, 1, 1] - size=[5, 4], stride=[2, 2]; "
               "[2, 4, 4, 3] [4, 1, 3, 3] [4] size=[4, 3], padding=[1, 1], groups=4; "
               "[1, 6, 3, 3] [6, 2, 3, 3] [4] size=[3, 3], padding=[1, 1], groups=2; "
               "[2, 3, 1, 1] [3, 2, 3, 4] - size=[3, 4]; "
               "[1, 1, 7, 6] [1, 1, 2, 2] [1] size=[2, 1], padding=[3, 3]; "
               "[0, 3, 4, 4] [3, 2, 3, 3] [2] size=[4, 4], padding=[1, 1]; "
               "[1, 19, 5, 9] [19, 17, 3, 3] - size=[5, 9], padding=[1, 1]; "
               "[2, 3, 2, 3, 2] [3, 2, 2, 2, 2] [2] size=[3, 4, 3], spatial=3; "
               "[1, 2, 3, 1, 3] [2, 2, 3, 3, 2] [4] size=[3, 4, 6], spatial=3, stride=[1, 2, 2], "
               "padding=[1, 0, 1], dilation=[1, 1, 2], groups=2",
    .sample_args = &tn__conv_plain,
    .work = conv_transpose_work,
};

/* ---- The functions --------------------------------------------------------------------------- */

/* The result's sizes, if x and w have enough dimensions. */
static void find_sizes(const tn_tensor *x, const tn_tensor *w, const int64_t *more,
                       tn__conv_call *call) {
    const int64_t *stride = tn__conv_last(call->kernel.stride, call->spatial),
                  *padding = tn__conv_last(call->kernel.padding, call->spatial),
                  *dilation = tn__conv_last(call->kernel.dilation, call->spatial);
    call->size.ndim = call->spatial;
    for (int i = 0; i < call->spatial; i++) {
        call->size.size[i] = (tn_size(x, i + 2) - 1) * stride[i] - 2 * padding[i] +
                             dilation[i] * (tn_size(w, i + 2) - 1) + more[i] + 1;
    }
}

static tn_tensor *convolve_back(const char *name, int spatial, tn_tensor *x, tn_tensor *w,
                                tn_tensor *b, const tn_conv_options *options) {
    tn__conv_call call;
    int64_t more[CONV_SPATIAL];
    bool single;
    if (!tn__conv_begin(name, spatial, options, &call) ||
        !tn__spread_numbers(name, "output_padding", spatial, options->output_padding, 0, more)) {
        return tn_inert();
    }
    for (int i = 0; i < spatial; i++) {
        int64_t stride = tn__conv_last(call.kernel.stride, spatial)[i],
                dilation = tn__conv_last(call.kernel.dilation, spatial)[i];
        if (tn__conv_last(more, spatial)[i] >= (stride > dilation ? stride : dilation)) {
            return tn__refused(
                TN_EVALUE, name,
                "output_padding is %lld but stride is %lld and dilation %lld (it must be "
                "smaller than one of them)",
                (long long)tn__conv_last(more, spatial)[i], (long long)stride, (long long)dilation);
        }
    }
    x = tn__conv_batched(x, spatial, &single);
    if (tn__usable(x, name) && tn__usable(w, name) && tn_ndim(x) == spatial + 2 &&
        tn_ndim(w) == spatial + 2) {
        find_sizes(x, w, tn__conv_last(more, spatial), &call);
    }
    return tn__conv_unbatched(tn_apply3(&tn__op_conv_transpose, &call, x, w, b), single);
}

tn_tensor *tn_conv_transpose1d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                  tn_conv_options options) {
    return convolve_back("conv_transpose1d", 1, x, weight, bias, &options);
}

tn_tensor *tn_conv_transpose2d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                  tn_conv_options options) {
    return convolve_back("conv_transpose2d", 2, x, weight, bias, &options);
}

tn_tensor *tn_conv_transpose3d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                  tn_conv_options options) {
    return convolve_back("conv_transpose3d", 3, x, weight, bias, &options);
}
