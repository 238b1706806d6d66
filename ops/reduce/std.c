/* y = sqrt(var(x)) over dims
 *
 *     x: any shape, f32 f64 bf16 f16
 *     y: x's shape without dims (or 1 there); like var where there are too few elements
 *     dx = dy (x - m) / (y (n - correction)), and 0 where y is 0, as in PyTorch
 */
#include "ops/reduce/reduce.h"

typedef struct std_args {
    tn__reduce_args over;
    int correction;
} std_args;

static bool std_shape(tn_op_call *c) {
    return tn__needs_float(c) && tn__reduce_out(c, c->in[0]->dtype);
}

static tn_tensor *std_compose(tn_op_call *c) {
    const std_args *args = c->args;
    return tn__sqrt_or_zero(
        tn_var(c->in[0], args->over.dims, args->correction, args->over.keepdim));
}

/* The last has equal elements, so its deviation is 0. */
static void std_samples(tn_op_samples *s) {
    static const struct {
        tn_dims shape;
        std_args args;
        const char *text;
    } cases[] = {
        {{1, {7}}, {{{0, {0}}, false}, 1}, "dim=[0], correction=1, keepdim=False"},
        {{2, {3, 4}}, {{{1, {1}}, false}, 0}, "dim=[1], correction=0, keepdim=False"},
        {{2, {3, 4}}, {{{1, {-2}}, true}, 1}, "dim=[-2], correction=1, keepdim=True"},
        {{3, {2, 3, 4}}, {{{2, {0, 2}}, false}, 1}, "dim=[0, 2], correction=1, keepdim=False"},
        {{2, {0, 3}}, {{{1, {1}}, false}, 1}, "dim=[1], correction=1, keepdim=False"},
        {{2, {2, 300}}, {{{1, {1}}, false}, 1}, "dim=[1], correction=1, keepdim=False"},
    };
    static const double equal[] = {2.0, 2.0, 2.0, -1.0, -1.0, -1.0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_sample sample = {
            .text = cases[i].text,
            .args = &cases[i].args,
            .inputs = 1,
            .in = {tn_spec_distinct(cases[i].shape, -3.0, 3.0)},
        };
        tn_sample_add(s, &sample);
    }
    tn__sample_flat(s, &cases[1].args, cases[1].text, TN_DIMS(2, 3), equal);
}

const tn_op tn__op_std = {
    .name = "std",
    .inputs = {"x"},
    .args_size = sizeof(std_args),
    .shape = std_shape,
    .compose = std_compose,
    .flags = TN_OP_WIDE,
    .add_samples = std_samples,
};

tn_tensor *tn_std(tn_tensor *x, tn_dims dims, int correction, bool keepdim) {
    std_args args = {{dims, keepdim}, correction};
    return tn_apply1(&tn__op_std, &args, x);
}
