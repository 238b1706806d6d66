/* conv_weight_grad(dy, x): the gradient of conv's weight, as a differentiable operation
 *
 *     dy: (N, O, out…), x: (N, C, in…); f32 f64 bf16 f16       dw: (O, C / groups, k…)
 *     dw[o, c, i] = sum over n and p of dy[n, o, p] x[n, c, p stride - padding + i dilation]
 *     from g, the gradient of dw: conv(x, g) is dy's, conv_transpose(dy, g) is x's
 */
#include "ops/conv/conv.h"

enum { DY, X, INPUTS };

static bool conv_weight_grad_shape(tn_op_call *c) {
    const tn__conv_call *call = c->args;
    if (!tn_op_same_dtype(c) || !tn_op_float(c, DY) || !tn__conv_rank(c, DY, "batch, channels") ||
        !tn__conv_rank(c, X, "batch, channels")) {
        return false;
    }
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
    const tn__conv_call *call = g->args;
    tn_tensor *back = g->dout[0];
    if (g->wants[DY]) {
        tn_dims size = tn__conv_sizes(tn_op_input_dims(g, DY));
        tn_op_give(g, DY, tn__conv(tn_op_saved_input(g, X), back, *call, size));
    }
    if (g->wants[X]) {
        tn_dims size = tn__conv_sizes(tn_op_input_dims(g, X));
        tn_op_give(g, X, tn__conv_transpose(tn_op_saved_input(g, DY), back, *call, size));
    }
}

static void conv_weight_grad_work(tn_op_work *w) {
    tn__conv_work(w, w->x[DY], w->y[0]);
}

static void conv_weight_grad_samples(tn_op_samples *s) {
    static tn__conv_call calls[CONV_CASES];
    const tn__conv_case *all = tn__conv_cases();
    for (int i = 0; i < CONV_CASES; i++) {
        calls[i] = all[i].call;
        calls[i].size = tn__conv_sizes(all[i].w);
        tn_sample sample = {
            .text = all[i].text,
            .args = &calls[i],
            .inputs = INPUTS,
            .in = {tn_spec_real(tn__conv_case_result(&all[i]), -1.0, 1.0),
                   tn_spec_real(all[i].x, -1.0, 1.0)},
        };
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_conv_weight_grad = {
    .name = "conv_weight_grad",
    .inputs = {"dy", "x"},
    .args_size = sizeof(tn__conv_call),
    .saves_for = {TN_SAVES_INPUT(X), TN_SAVES_INPUT(DY)},
    .shape = conv_weight_grad_shape,
    .forward = conv_weight_grad_forward,
    .backward = conv_weight_grad_backward,
    .flags = TN_OP_WIDE,
    .add_samples = conv_weight_grad_samples,
    .work = conv_weight_grad_work,
};

tn_tensor *tn__conv_weight_grad(tn_tensor *dy, tn_tensor *x, tn__conv_call call, tn_dims kernel) {
    call.size = kernel;
    return tn_apply2(&tn__op_conv_weight_grad, &call, dy, x);
}
