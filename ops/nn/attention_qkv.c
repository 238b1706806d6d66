/* attention_qkv(qkv, heads, mask): self-attention over the rows of one projection of x
 *
 *     qkv: (B, T, 3 C) = q, k and v side by side, C = heads D; f32 f64 bf16 f16       y: (B, T, C)
 *     mask: absent, or bool, broadcasts to (B, heads, T, T)
 *     y = attention(q, k, v, mask) with q, k, v: (B, T, C) as (B, T, heads, D) as (B, heads, T, D)
 *
 * The mathematics and the kernels are attention's (attention.c): they read q, k and v as strided
 * views of qkv and write the three gradients into the three thirds of one dqkv. Composed of narrow,
 * reshape and transpose, backward would fill three (B, T, 3 C) tensors with zeros and add them.
 */
#include "ops/nn/attention.h"
#include "ops/dims.h"

typedef struct attention_qkv_args {
    int heads;
    tn_attention_args options;
} attention_qkv_args;

static bool attention_qkv_shape(tn_op_call *c) {
    const attention_qkv_args *args = c->args;
    tn_dims d = tn_shape(c->in[0]);
    if (!tn_op_shapes(c, "batch positions 3*width, bool: ...")) { return false; }
    if (args->heads < 1 || d.size[2] % (3 * (int64_t)args->heads) != 0) {
        return tn_op_fail(
            c, TN_ESHAPE,
            "qkv is %s but heads is %d (the last dimension must be a multiple of 3 x heads)",
            tn_shape_text(c->in[0]), args->heads);
    }
    tn_dims scores = TN_DIMS(d.size[0], args->heads, d.size[1], d.size[1]);
    tn_dtype dtype = tn_dtype_of(c->in[0]);
    return tn__attention_mask_fits(c, 1, scores) &&
           tn_op_out(c, tn__dims_with_last(d, d.size[2] / 3), dtype) &&
           tn_op_out(c, tn__dims_leading(scores), tn__wide_dtype(dtype));
}

/* Part `part` of x (B, T, parts * heads * D) as (B, heads, T, D). */
static tn_desc heads_of(const tn_desc *x, int part, int parts, int heads) {
    int64_t width = x->size[2] / parts / heads;
    int64_t first = part * heads * width * x->stride[2];
    return (tn_desc){
        .data = x->data ? (char *)x->data + first * (int64_t)tn_dtype_size(x->dtype) : NULL,
        .dtype = x->dtype,
        .ndim = 4,
        .size = {x->size[0], heads, x->size[1], width},
        .stride = {x->stride[0], width * x->stride[2], x->stride[1], x->stride[2]},
    };
}

static tn_status attention_qkv_forward(const tn_op_call *c) {
    const attention_qkv_args *args = c->args;
    tn_desc x[3], y = heads_of(c->y[0], 0, 1, args->heads);
    tn_op_call heads = {.args = &args->options,
                        .kernels = c->kernels,
                        .ctx = c->ctx,
                        .x = {[3] = c->x[1]},
                        .y = {&y, c->y[1]}};
    for (int i = 0; i < 3; i++) {
        x[i] = heads_of(c->x[0], i, 3, args->heads);
        heads.x[i] = &x[i];
    }
    return tn_op_run(&tn__op_attention, &heads);
}

static tn_status attention_qkv_backward_kernel(const tn_op_back *b) {
    const attention_qkv_args *args = b->args;
    tn_desc x[3], dx[3], y = heads_of(b->y[0], 0, 1, args->heads),
                         dy = heads_of(b->dy[0], 0, 1, args->heads);
    tn_op_back heads = {.args = &args->options,
                        .kernels = b->kernels,
                        .ctx = b->ctx,
                        .x = {[3] = b->x[1]},
                        .y = {&y, b->y[1]},
                        .dy = {&dy}};
    for (int i = 0; i < 3; i++) {
        x[i] = heads_of(b->x[0], i, 3, args->heads);
        dx[i] = heads_of(b->dx[0], i, 3, args->heads);
        heads.x[i] = &x[i];
        heads.dx[i] = &dx[i];
    }
    return tn_op_run_back(&tn__op_attention, &heads);
}

static tn_tensor *attention_qkv_compose(tn_op_call *c) {
    const attention_qkv_args *args = c->args;
    tn_dims d = tn_shape(c->in[0]);
    int64_t width = d.size[2] / 3;
    tn_tensor *x[3];
    for (int i = 0; i < 3; i++) {
        tn_tensor *third = tn_narrow(c->in[0], 2, i * width, width);
        x[i] = tn_transpose(
            tn_reshape(third, TN_DIMS(d.size[0], d.size[1], args->heads, width / args->heads)), 1,
            2);
    }
    tn_tensor *y = tn__attention_explicit(x[0], x[1], x[2], tn__optional(c, 1), args->options);
    return tn_reshape(tn_transpose(y, 1, 2), tn__dims_with_last(d, width));
}

static void attention_qkv_work(tn_op_work *w) {
    const attention_qkv_args *args = w->args;
    const tn_dims *x = w->x[0];
    int64_t width = x->size[2] / 3 / args->heads;
    tn__attention_work(w, (double)(x->size[0] * args->heads * x->size[1]), (double)x->size[1],
                       (double)width, args->options.causal);
}

const tn_op tn__op_attention_qkv = {
    .name = "attention_qkv",
    .inputs = {"qkv", "mask"},
    .args_size = sizeof(attention_qkv_args),
    .fields = {TN_FIELD(attention_qkv_args, heads),
               TN_FIELD_AS("causal", attention_qkv_args, options.causal),
               TN_FIELD_AS("scale", attention_qkv_args, options.scale)},
    .optional = 1u << 1,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(0) | TN_SAVES_OUTPUT(1),
    .shape = attention_qkv_shape,
    .forward = attention_qkv_forward,
    .compose = attention_qkv_compose,
    .backward_kernel = attention_qkv_backward_kernel,
    .flags = TN_OP_WIDE,
    .samples = "{-1.5:1.5, bool} [2, 3, 6] - heads=1; [2, 3, 12] - heads=2; "
               "[2, 4, 12] - heads=2, causal=True; [1, 3, 18] - heads=3, causal=True, scale=0.25; "
               "[2, 3, 12] [2, 1, 3, 3] heads=2; [2, 3, 12] [3, 3] heads=2, causal=True; "
               "[1, 1, 3] - heads=1; [2, 0, 3] - heads=1; [0, 2, 6] - heads=2; "
               "[1, 70, 6] - heads=1, causal=True",
    .work = attention_qkv_work,
};

tn_tensor *tn_attention_qkv(tn_tensor *qkv, int heads, tn_tensor *mask,
                            tn_attention_options options) {
    if (!tn__options_made(options.from_defaults, "attention_qkv", "tn_attention")) {
        return tn_inert();
    }
    attention_qkv_args args = {heads, {options.causal, options.scale}};
    return tn_apply2(&tn__op_attention_qkv, &args, qkv, mask);
}
