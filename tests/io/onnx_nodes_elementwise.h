/* Elementwise operators and reductions (onnx_node.h). */
#ifndef TERN_TESTS_IO_ONNX_NODES_ELEMENTWISE_H
#define TERN_TESTS_IO_ONNX_NODES_ELEMENTWISE_H

#include "tests/io/onnx_node.h"

#define UNARY(name, f)                 \
    static void name##_node(node *n) { \
        n->out[0] = f(n->in[0]);       \
    }
#define BINARY(name, f)                    \
    static void name##_node(node *n) {     \
        n->out[0] = f(n->in[0], n->in[1]); \
    }
#define FOLDED(name, f)                         \
    static void name##_node(node *n) {          \
        n->out[0] = tn_identity(n->in[0]);      \
        for (int i = 1; i < n->inputs; i++) {   \
            n->out[0] = f(n->out[0], n->in[i]); \
        }                                       \
    }
UNARY(abs, tn_abs)
UNARY(acos, tn_acos)
UNARY(asin, tn_asin)
UNARY(atan, tn_atan)
UNARY(ceil, tn_ceil)
UNARY(cos, tn_cos)
UNARY(cosh, tn_cosh)
UNARY(erf, tn_erf)
UNARY(exp, tn_exp)
UNARY(floor, tn_floor)
UNARY(hardswish, tn_hardswish)
UNARY(identity, tn_identity)
UNARY(isnan, tn_isnan)
UNARY(log, tn_log)
UNARY(mish, tn_mish)
UNARY(neg, tn_neg)
UNARY(not, tn_logical_not)
UNARY(reciprocal, tn_reciprocal)
UNARY(relu, tn_relu)
UNARY(round, tn_round)
UNARY(sigmoid, tn_sigmoid)
UNARY(sign, tn_sign)
UNARY(sin, tn_sin)
UNARY(sinh, tn_sinh)
UNARY(sqrt, tn_sqrt)
UNARY(tan, tn_tan)
UNARY(tanh, tn_tanh)
BINARY(div, tn_div)
BINARY(sub, tn_sub)
BINARY(mul, tn_mul)
BINARY(add, tn_add)
BINARY(equal, tn_eq)
BINARY(greater, tn_gt)
BINARY(greater_equal, tn_ge)
BINARY(less, tn_lt)
BINARY(less_equal, tn_le)
BINARY(and, tn_logical_and)
BINARY(or, tn_logical_or)
BINARY(xor, tn_logical_xor)
FOLDED(max, tn_maximum)
FOLDED(min, tn_minimum)
FOLDED(sum, tn_add)

static void pow_node(node *n) {
    if (tn_dtype_of(n->in[0]) != tn_dtype_of(n->in[1])) {
        note_missing(n, "operands of two dtypes");
        return;
    }
    n->out[0] = tn_pow(n->in[0], n->in[1]);
}

static void mod_node(node *n) {
    n->out[0] =
        whole_of(n, "fmod", 0) ? tn_fmod(n->in[0], n->in[1]) : tn_remainder(n->in[0], n->in[1]);
}

static void isinf_node(node *n) {
    if (must_be(n, "detect_negative", 1) && must_be(n, "detect_positive", 1)) {
        n->out[0] = tn_isinf(n->in[0]);
    }
}

static void softplus_node(node *n) {
    n->out[0] = tn_softplus(n->in[0], 1.0, 20.0);
}

static void leaky_relu_node(node *n) {
    n->out[0] = tn_leaky_relu(n->in[0], real_of(n, "alpha", 0.01));
}

static void elu_node(node *n) {
    n->out[0] = tn_elu(n->in[0], real_of(n, "alpha", 1.0));
}

static void selu_node(node *n) {
    if (must_be(n, "alpha", 1.6732632423543772) && must_be(n, "gamma", 1.0507009873554805)) {
        n->out[0] = tn_selu(n->in[0]);
    }
}

static void hard_sigmoid_node(node *n) {
    if (fabs(real_of(n, "alpha", 0.2) - 1.0 / 6) > 1e-7 || real_of(n, "beta", 0.5) != 0.5) {
        note_missing(n, "alpha other than 1/6");
        return;
    }
    n->out[0] = tn_hardsigmoid(n->in[0]);
}

static void swish_node(node *n) {
    if (must_be(n, "alpha", 1)) {
        n->out[0] = tn_silu(n->in[0]);
    }
}

static void gelu_node(node *n) {
    bool tanh = attribute_is(n, "approximate", "none", "tanh");
    n->out[0] = tanh ? tn_gelu_tanh(n->in[0]) : tn_gelu(n->in[0]);
}

static void clip_node(node *n) {
    n->out[0] = tn_clamp(n->in[0], number_of(n, 1, real_of(n, "min", -INFINITY)),
                         number_of(n, 2, real_of(n, "max", INFINITY)));
}

static void where_node(node *n) {
    n->out[0] = tn_where(n->in[0], n->in[1], n->in[2]);
}

static tn_dtype dtype_named(node *n, int64_t number) {
    static const int64_t numbers[TN_DTYPES] = {
        [TN_F32] = 1, [TN_F64] = 11, [TN_BF16] = 16, [TN_F16] = 10, [TN_I64] = 7,
        [TN_I32] = 6, [TN_U8] = 2,   [TN_BOOL] = 9,  [TN_I8] = 3};
    for (int i = 0; i < TN_DTYPES; i++) {
        if (numbers[i] == number) {
            return (tn_dtype)i;
        }
    }
    note_missing(n, "the dtype that it casts to");
    return TN_F32;
}

static void cast_node(node *n) {
    tn_dtype to = dtype_named(n, whole_of(n, "to", 1));
    n->out[0] = tn_cast(n->in[0], to);
}

static void cast_like_node(node *n) {
    n->out[0] = tn_cast(n->in[0], tn_dtype_of(n->in[1]));
}

/* ---- Reductions ------------------------------------------------------------------------------ */

/* The axes; none means all, or with noop_with_empty_axes nothing to do. */
static bool has_axes(node *n, tn_dims *axes) {
    *axes = axes_of(n, 1);
    if (axes->ndim == 0 && whole_of(n, "noop_with_empty_axes", 0)) {
        n->out[0] = n->in[0];
        return false;
    }
    return true;
}

static tn_tensor *lack_choice(node *n) {
    note_missing(n, "the largest or least of nothing");
    return NULL;
}

#define REDUCTION(name, result)                      \
    static void reduce_##name##_node(node *n) {      \
        tn_dims axes;                                \
        tn_tensor *x = n->in[0];                     \
        bool keep = whole_of(n, "keepdims", 1) != 0; \
        if (has_axes(n, &axes)) {                    \
            n->out[0] = result;                      \
        }                                            \
    }
REDUCTION(sum, tn_sum(x, axes, keep))
REDUCTION(mean, tn_mean(x, axes, keep))
REDUCTION(max, tn_count(x) > 0 ? tn_max(x, axes, keep) : lack_choice(n))
REDUCTION(min, tn_count(x) > 0 ? tn_min(x, axes, keep) : lack_choice(n))
REDUCTION(prod, tn_prod(x, axes, keep))
REDUCTION(l1, tn_norm(x, 1.0, axes, keep))
REDUCTION(l2, tn_norm(x, 2.0, axes, keep))
REDUCTION(log_sum_exp, tn_logsumexp(x, axes, keep))
REDUCTION(log_sum, tn_log(tn_sum(x, axes, keep)))
REDUCTION(sum_square, tn_sum(tn_square(x), axes, keep))

static void argmax_node(node *n) {
    if (must_be(n, "select_last_index", 0)) {
        n->out[0] = tn_argmax(n->in[0], (int)whole_of(n, "axis", 0), whole_of(n, "keepdims", 1));
    }
}

static void argmin_node(node *n) {
    if (must_be(n, "select_last_index", 0)) {
        n->out[0] = tn_argmin(n->in[0], (int)whole_of(n, "axis", 0), whole_of(n, "keepdims", 1));
    }
}

/* False if a sum or product of integers would change the dtype. */
static bool same_sums(node *n) {
    if (!is_float_node(n) && tn_dtype_of(n->in[0]) != TN_I64) {
        note_missing(n, "dtype: of integers all sums are i64");
    }
    return !*n->missing;
}

static void cumsum_node(node *n) {
    if (must_be(n, "exclusive", 0) && must_be(n, "reverse", 0) && same_sums(n)) {
        n->out[0] = tn_cumsum(n->in[0], (int)number_of(n, 1, 0));
    }
}

static void cumprod_node(node *n) {
    if (must_be(n, "exclusive", 0) && must_be(n, "reverse", 0) && same_sums(n)) {
        n->out[0] = tn_cumprod(n->in[0], (int)number_of(n, 1, 0));
    }
}

static const node_case elementwise_nodes[] = {
    {"Abs", abs_node},
    {"Acos", acos_node},
    {"Add", add_node},
    {"And", and_node},
    {"ArgMax", argmax_node},
    {"ArgMin", argmin_node},
    {"Asin", asin_node},
    {"Atan", atan_node},
    {"Cast", cast_node},
    {"CastLike", cast_like_node},
    {"Ceil", ceil_node},
    {"Clip", clip_node},
    {"Cos", cos_node},
    {"Cosh", cosh_node},
    {"CumProd", cumprod_node},
    {"CumSum", cumsum_node},
    {"Div", div_node},
    {"Elu", elu_node},
    {"Equal", equal_node},
    {"Erf", erf_node},
    {"Exp", exp_node},
    {"Floor", floor_node},
    {"Gelu", gelu_node},
    {"Greater", greater_node},
    {"GreaterOrEqual", greater_equal_node},
    {"HardSigmoid", hard_sigmoid_node},
    {"HardSwish", hardswish_node},
    {"Identity", identity_node},
    {"IsInf", isinf_node},
    {"IsNaN", isnan_node},
    {"LeakyRelu", leaky_relu_node},
    {"Less", less_node},
    {"LessOrEqual", less_equal_node},
    {"Log", log_node},
    {"Max", max_node},
    {"Min", min_node},
    {"Mish", mish_node},
    {"Mod", mod_node},
    {"Mul", mul_node},
    {"Neg", neg_node},
    {"Not", not_node},
    {"Or", or_node},
    {"Pow", pow_node},
    {"Reciprocal", reciprocal_node},
    {"ReduceL1", reduce_l1_node},
    {"ReduceL2", reduce_l2_node},
    {"ReduceLogSum", reduce_log_sum_node},
    {"ReduceLogSumExp", reduce_log_sum_exp_node},
    {"ReduceMax", reduce_max_node},
    {"ReduceMean", reduce_mean_node},
    {"ReduceMin", reduce_min_node},
    {"ReduceProd", reduce_prod_node},
    {"ReduceSum", reduce_sum_node},
    {"ReduceSumSquare", reduce_sum_square_node},
    {"Relu", relu_node},
    {"Round", round_node},
    {"Selu", selu_node},
    {"Sigmoid", sigmoid_node},
    {"Sign", sign_node},
    {"Sin", sin_node},
    {"Sinh", sinh_node},
    {"Softplus", softplus_node},
    {"Sqrt", sqrt_node},
    {"Sub", sub_node},
    {"Sum", sum_node},
    {"Swish", swish_node},
    {"Tan", tan_node},
    {"Tanh", tanh_node},
    {"Where", where_node},
    {"Xor", xor_node},
    {0},
};

#endif
