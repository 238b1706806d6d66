/* conv_weight_grad(dy, x): the gradient of conv's weight, as a differentiable operation
 *
 *     dy: (N, O, out…), x: (N, C, in…); f32 f64 bf16 f16       dw: (O, C / groups, k…)
 *     dw[o, c, i] = sum over n and p of dy[n, o, p] x[n, c, p stride - padding + i dilation]
 *     from g, the gradient of dw: conv(x, g) is dy's, conv_transpose(dy, g) is x's
 */
#include "ops/conv/conv.h"

enum { DY, X };

static bool conv_weight_grad_shape(tn_op_call *c) {
    const tn__conv_call *call = c->args;
    if (!tn__conv_inputs(c, "batch, channels", "batch, channels")) { return false; }
    tn_dims dy = tn_shape(c->in[DY]), x = tn_shape(c->in[X]);
    int64_t groups = call->kernel.groups;
    if (dy.size[0] != x.size[0] || dy.size[1] % groups != 0 || x.size[1] % groups != 0) {
        return tn_op_fail(c, TN_ESHAPE,
                          "dy is %s but x is %s with %lld groups (one batch, and multiples of "
                          "groups as channels, are needed)",
                          tn_shape_text(c->in[DY]), tn_shape_text(c->in[X]), (long long)groups);
    }
    return tn_op_out(c, tn__conv_dims(dy.size[1], x.size[1] / groups, call->size),
                     tn_dtype_of(c->in[DY]));
}

static tn_status conv_weight_grad_forward(const tn_op_call *c) {
    const tn__conv_call *call = c->args;
    tn_desc dw, dy, x;
    return c->kernels->conv_backward_weight(c->ctx, tn__conv_volume(c->y[0], &dw), NULL,
                                            tn__conv_volume(c->x[DY], &dy),
                                            tn__conv_volume(c->x[X], &x), &call->kernel);
}

static void conv_weight_grad_backward(tn_op_grad *g) {
    tn_tensor *back = g->dout[0];
    if (g->wants[DY]) { tn__conv_give(g, DY, &tn__op_conv, tn_op_saved_input(g, X), back); }
    if (g->wants[X]) {
        tn__conv_give(g, X, &tn__op_conv_transpose, tn_op_saved_input(g, DY), back);
    }
}

static void conv_weight_grad_work(tn_op_work *w) {
    tn__conv_work(w, w->x[DY], w->y[0]);
}

const tn_op tn__op_conv_weight_grad = {
    .name = "conv_weight_grad",
    .inputs = {"dy", "x"},
    .args_size = sizeof(tn__conv_call),
    .fields = {TN__CONV_FIELDS},
    .saves_for = {TN_SAVES_INPUT(X), TN_SAVES_INPUT(DY)},
    .shape = conv_weight_grad_shape,
    .forward = conv_weight_grad_forward,
    .backward = conv_weight_grad_backward,
    .flags = TN_OP_WIDE,
    /* Those of conv.c, with its results as dy. */
    .samples = "{-1:1} [2, 4, 5] [2, 3, 7] size=[3], spatial=1; "
               "[2, 3, 4] [2, 2, 8] size=[4], spatial=1, stride=[2], padding=[1]; "
               "[2, 6, 5] [2, 4, 9] size=[3], spatial=1, stride=[3], padding=[4], dilation=[2], "
               "groups=2; [2, 4, 3, 5] [2, 3, 5, 6] size=[3, 2]; "
               "[1, 3, 4, 5] [1, 2, 4, 5] size=[3, 3], padding=[1, 1]; "
               "[2, 3, 4, 3] [2, 2, 7, 6] size=[3, 3], stride=[2, 2], padding=[1, 1]; "
               "[2, 2, 3, 5] [2, 2, 6, 5] size=[2, 3], stride=[2, 1], padding=[0, 2], "
               "dilation=[1, 2]; [2, 5, 3, 2] [2, 3, 5, 4] size=[1, 1], stride=[2, 2]; "
               "[2, 4, 4, 3] [2, 4, 4, 3] size=[3, 3], padding=[1, 1], groups=4; "
               "[1, 6, 3, 3] [1, 4, 3, 3] size=[3, 3], padding=[1, 1], groups=2; "
               "[2, 3, 1, 1] [2, 2, 3, 4] size=[3, 4]; "
               "[1, 1, 7, 6] [1, 1, 2, 1] size=[2, 2], padding=[3, 3]; "
               "[0, 3, 4, 4] [0, 2, 4, 4] size=[3, 3], padding=[1, 1]; "
               "[1, 19, 5, 9] [1, 17, 5, 9] size=[3, 3], padding=[1, 1]; "
               "[2, 3, 2, 3, 2] [2, 2, 3, 4, 3] size=[2, 2, 2], spatial=3; "
               "[1, 2, 3, 1, 3] [1, 4, 3, 4, 6] size=[3, 3, 2], spatial=3, stride=[1, 2, 2], "
               "padding=[1, 0, 1], dilation=[1, 1, 2], groups=2",
    .sample_args = &tn__conv_plain,
    .work = conv_weight_grad_work,
};
