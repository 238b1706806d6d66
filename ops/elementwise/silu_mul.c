/* y = silu(a) · b,  silu(a) = a / (1 + exp(-a))
 *
 *     a, b: the same shape, f32 f64 bf16 f16       y: like a
 *     da = dy · b · silu'(a)    db = dy · silu(a)
 */
#include "ops/op.h"

static tn_status silu_mul_forward(const tn_op_call *c) {
    return tn__binary(c, TN_SILU_MUL);
}

static tn_status silu_mul_backward_kernel(const tn_op_back *b) {
    const tn_desc *dy = b->dy[0], *da = b->dx[0], *db = b->dx[1];
    tn_status status = TN_OK;
    if (da && da->dtype == TN_F16) {
        return TN_EUNSUPPORTED; /* which may not hold dy b: the composition computes in f32 */
    }
    if (da) {
        status = b->kernels->binary(b->ctx, TN_MUL, da, dy, b->x[1]);
        status =
            status == TN_OK ? b->kernels->binary(b->ctx, TN_SILU_GRAD, da, b->x[0], da) : status;
    }
    return status == TN_OK && db ? b->kernels->binary(b->ctx, TN_SILU_MUL, db, b->x[0], dy)
                                 : status;
}

static tn_tensor *silu_mul_compose(tn_op_call *c) {
    return tn_mul(tn_silu(c->in[0]), c->in[1]);
}

const tn_op tn__op_silu_mul = {
    .name = "silu_mul",
    .inputs = {"a", "b"},
    .saves = TN_SAVES_INPUTS,
    .shapes = "..., ... -> ...",
    .forward = silu_mul_forward,
    .compose = silu_mul_compose,
    .backward_kernel = silu_mul_backward_kernel,
    .flags = TN_OP_WIDE,
    /* silu's minimum, both tails (exp must not overflow), and zero. */
    .samples = "{-3:3, -2:2} [7] [7]; [3, 4] [3, 4]; [2, 3, 4] [2, 3, 4]; [] []; [0, 3] [0, 3]; "
               "[7]=(-1.278, 0, -0, -90, 90, -300, 300) [7]=(2, 3, -1, 0.5, -0.5, 0, 1)",
};

tn_tensor *tn_silu_mul(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_silu_mul, NULL, a, b);
}
