/* conv(x, w, b): a filter slides over 1, 2 or 3 dimensions (LeCun et al. 1989, Neural Computation
 * 1)
 *
 *     x: (N, C, in…), w: (O, C / groups, k…), b: (O) or absent; f32 f64 bf16 f16
 *     y: (N, O, out…), out = (in + 2 padding - dilation (k - 1) - 1) / stride + 1, rounded down
 *     y[n, o, p] = b[o] + sum over c and i of x[n, c, p stride - padding + i dilation] w[o, c, i]
 *     dx = conv_transpose(dy, w)        dw = conv_weight_grad(dy, x)        db = sums of dy
 *
 * x is padded with 0. Output channels are in `groups` parts, each of which sees its own part of the
 * input channels. Each gradient keeps only what it reads.
 */
#include "ops/conv/conv.h"

#include "core/error.h"

enum { X, W, B };

/* The result's size in dimension i, or -1 after raising. */
static int64_t places_of_kernel(const tn_op_call *c, int i) {
    const tn__conv_call *call = c->args;
    if (call->size.ndim > 0) { return call->size.size[i]; }
    int64_t in = tn_size(c->in[X], i + 2), kernel = tn_size(c->in[W], i + 2),
            padding = tn__conv_last(call->kernel.padding, call->spatial)[i],
            dilation = tn__conv_last(call->kernel.dilation, call->spatial)[i],
            stride = tn__conv_last(call->kernel.stride, call->spatial)[i],
            span = kernel > 0 ? dilation * (kernel - 1) + 1 : 0;
    int64_t padded = in + 2 * padding;
    if (kernel < 1 || span > padded) {
        tn_op_fail(c, TN_ESHAPE,
                   "weight is %s, which with dilation %lld spans %lld elements, but x is %s, which "
                   "with padding %lld has %lld there (dimension %d)",
                   tn_shape_text(c->in[W]), (long long)dilation, (long long)span,
                   tn_shape_text(c->in[X]), (long long)padding, (long long)padded, i + 2);
        return -1;
    }
    return (padded - span) / stride + 1;
}

static bool conv_shape(tn_op_call *c) {
    const tn__conv_call *call = c->args;
    if (!tn__conv_inputs(c, "batch, channels", "channels out, channels in of a group")) {
        return false;
    }
    tn_dims x = tn_shape(c->in[X]), w = tn_shape(c->in[W]);
    int64_t groups = call->kernel.groups, channels = w.size[1] * groups;
    if (x.size[1] != channels || w.size[0] % groups != 0) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but weight is %s with %lld groups (x needs %lld channels, the "
                          "second dimension, and weight's first a multiple of groups)",
                          tn_shape_text(c->in[X]), tn_shape_text(c->in[W]), (long long)groups,
                          (long long)channels);
    }
    tn_dims y = TN_DIMS(x.size[0], w.size[0]);
    for (int i = 0; i < call->spatial; i++) {
        int64_t size = places_of_kernel(c, i);
        if (size < 0) { return false; }
        y.size[y.ndim++] = size;
    }
    return tn__conv_bias(c, w.size[0]) && tn_op_out(c, y, tn_dtype_of(c->in[X]));
}

static tn_status conv_forward(const tn_op_call *c) {
    const tn__conv_call *call = c->args;
    tn_desc y, x, w;
    return c->kernels->conv(c->ctx, tn__conv_volume(c->y[0], &y), tn__conv_volume(c->x[X], &x),
                            tn__conv_volume(c->x[W], &w), c->x[B], &call->kernel);
}

static void conv_backward(tn_op_grad *g) {
    tn_tensor *dy = g->dout[0];
    if (g->wants[X]) { tn__conv_give(g, X, &tn__op_conv_transpose, dy, tn_op_saved_input(g, W)); }
    if (g->wants[W]) { tn__conv_give(g, W, &tn__op_conv_weight_grad, dy, tn_op_saved_input(g, X)); }
    if (g->inputs > B && g->wants[B]) { tn_op_give(g, B, tn__conv_bias_grad(dy)); }
}

static tn_status conv_backward_kernel(const tn_op_back *b) {
    const tn__conv_call *call = b->args;
    tn_desc x, w, dx, dw, dy;
    tn__conv_volume(b->dy[0], &dy);
    tn_status status = TN_OK;
    if (b->dx[X]) {
        status = b->kernels->conv_backward_input(b->ctx, tn__conv_volume(b->dx[X], &dx), &dy,
                                                 tn__conv_volume(b->x[W], &w), NULL, &call->kernel);
    }
    if (status == TN_OK && (b->dx[W] || b->dx[B])) {
        status = b->kernels->conv_backward_weight(b->ctx, tn__conv_volume(b->dx[W], &dw), b->dx[B],
                                                  &dy, tn__conv_volume(b->x[X], &x), &call->kernel);
    }
    return status;
}

static void conv_work(tn_op_work *w) {
    tn__conv_work(w, w->y[0], w->x[W]);
}

const tn_op tn__op_conv = {
    .name = "conv",
    .inputs = {"x", "weight", "bias"},
    .args_size = sizeof(tn__conv_call),
    .fields = {TN__CONV_FIELDS},
    .optional = 1u << B,
    .saves_for = {TN_SAVES_INPUT(W), TN_SAVES_INPUT(X)},
    .shape = conv_shape,
    .forward = conv_forward,
    .backward = conv_backward,
    .backward_kernel = conv_backward_kernel,
    .flags = TN_OP_WIDE,
    .widens = 1u << W | 1u << B,
    /* Each dimension count; strides, paddings, dilations and groups, alone and together; a kernel
     * of one element, of even sizes, as large as the input; a padding of more than the kernel;
     * elements at the end that the kernel does not reach; an empty batch; more channels and
     * positions than a vector register holds. */
    .samples = "{-1:1} [2, 3, 7] [4, 3, 3] [4] spatial=1; "
               "[2, 2, 8] [3, 2, 4] - spatial=1, stride=[2], padding=[1]; "
               "[2, 4, 9] [6, 2, 3] [6] spatial=1, stride=[3], padding=[4], dilation=[2], "
               "groups=2; [2, 3, 5, 6] [4, 3, 3, 2] [4]; "
               "[1, 2, 4, 5] [3, 2, 3, 3] - padding=[1, 1]; "
               "[2, 2, 7, 6] [3, 2, 3, 3] [3] stride=[2, 2], padding=[1, 1]; "
               "[2, 2, 6, 5] [2, 2, 2, 3] [2] stride=[2, 1], padding=[0, 2], dilation=[1, 2]; "
               "[2, 3, 5, 4] [5, 3, 1, 1] - stride=[2, 2]; "
               "[2, 4, 4, 3] [4, 1, 3, 3] [4] padding=[1, 1], groups=4; "
               "[1, 4, 3, 3] [6, 2, 3, 3] [6] padding=[1, 1], groups=2; "
               "[2, 2, 3, 4] [3, 2, 3, 4] -; [1, 1, 2, 1] [1, 1, 2, 2] [1] padding=[3, 3]; "
               "[0, 2, 4, 4] [3, 2, 3, 3] [3] padding=[1, 1]; "
               "[1, 17, 5, 9] [19, 17, 3, 3] - padding=[1, 1]; "
               "[2, 2, 3, 4, 3] [3, 2, 2, 2, 2] [3] spatial=3; "
               "[1, 4, 3, 4, 6] [2, 2, 3, 3, 2] [2] spatial=3, stride=[1, 2, 2], padding=[1, 0, "
               "1], dilation=[1, 1, 2], groups=2",
    .sample_args = &tn__conv_plain,
    .work = conv_work,
};

/* ---- The functions --------------------------------------------------------------------------- */

/* The padding with which stride 1 keeps the sizes. If its total is odd, the larger half is at the
 * end. */
static bool keep_sizes(const char *name, const tn_tensor *x, const tn_tensor *w,
                       tn__conv_call *call) {
    int spatial = call->spatial, first = CONV_SPATIAL - spatial;
    call->size = tn__conv_sizes(tn_shape(x));
    for (int i = 0; i < spatial; i++) {
        int64_t kernel = tn_size(w, i + 2);
        if (call->kernel.stride[first + i] != 1 || kernel < 1) {
            return tn__fail(
                TN_EVALUE, name,
                "padding is to keep x's sizes, but stride is %lld and weight is %s (stride 1 "
                "and a kernel are needed)",
                (long long)call->kernel.stride[first + i], tn_shape_text(w));
        }
        call->kernel.padding[first + i] = call->kernel.dilation[first + i] * (kernel - 1) / 2;
    }
    return true;
}

static tn_tensor *convolve_forward(const char *name, int spatial, tn_tensor *x, tn_tensor *w,
                                   tn_tensor *b, const tn_conv_options *options) {
    tn__conv_call call;
    bool single;
    if (!tn__conv_begin(name, spatial, options, &call)) { return tn_inert(); }
    x = tn__conv_batched(x, spatial, &single);
    if (options->same && tn__usable(x, name) && tn__usable(w, name) && tn_ndim(x) == spatial + 2 &&
        tn_ndim(w) == spatial + 2 && !keep_sizes(name, x, w, &call)) {
        return tn_inert();
    }
    return tn__conv_unbatched(tn_apply3(&tn__op_conv, &call, x, w, b), single);
}

tn_tensor *tn_conv1d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_options options) {
    return convolve_forward("conv1d", 1, x, weight, bias, &options);
}

tn_tensor *tn_conv2d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_options options) {
    return convolve_forward("conv2d", 2, x, weight, bias, &options);
}

tn_tensor *tn_conv3d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_options options) {
    return convolve_forward("conv3d", 3, x, weight, bias, &options);
}
