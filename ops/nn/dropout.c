/* dropout(x, p) = keep x / (1 - p), keep(i) = 1 with probability 1 - p, else 0
 * (Srivastava et al. 2014, Journal of Machine Learning Research 15)
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x
 *     dx = keep dy / (1 - p)               the same operation with the same key
 *
 * keep is a function of the key and the element's position: it is recomputed in backward, not
 * stored. The key names one call of the thread's generator and is drawn before the operation runs,
 * so a recompute that restores the generator draws the same key.
 */
#include "ops/op.h"

typedef struct dropout_args {
    double p;
    tn_random_key key;
} dropout_args;

static bool dropout_shape(tn_op_call *c) {
    const dropout_args *args = c->args;
    if (!(args->p >= 0.0 && args->p <= 1.0)) {
        return tn_op_fail(c, TN_EVALUE, "p is %g (a probability must be in [0, 1])", args->p);
    }
    return tn__shape_float(c);
}

static tn_status dropout_forward(const tn_op_call *c) {
    const dropout_args *args = c->args;
    return c->kernels->dropout(c->ctx, c->y[0], c->x[0], args->p, args->key);
}

static void dropout_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(g->op, g->args, g->dout[0]));
}

const tn_op tn__op_dropout = {
    .name = "dropout",
    .inputs = {"x"},
    .args_size = sizeof(dropout_args),
    .fields = {TN_FIELD(dropout_args, p)},
    .shape = dropout_shape,
    .forward = dropout_forward,
    .backward = dropout_backward,
    .samples = "{-2:2} * p=0.5; * p=0.1; * p=1.0; * p=0.0",
    .sample_args = &(const dropout_args){.key = {7, 0, 3, 0}},
};

tn_tensor *tn_dropout_op(tn_tensor *x, double p) {
    if (p == 0.0 && tn__usable(x, "dropout")) { return x; }
    dropout_args args = {.p = p};
    if (p > 0.0 && p <= 1.0) {
        tn_generator *generator = tn_default_generator();
        args.key = tn__draw_key(generator);
    }
    return tn_apply1(&tn__op_dropout, &args, x);
}
