/* What every operation refuses: a wrong dtype, shapes that do not fit, arguments out of range. The
 * message names the operation and both sides. One test walks the registry and fails for each
 * operation that refused nothing here.
 */
#include <math.h>
#include <stdarg.h>

#include "ops/reduce/cumulative.h"
#include "tests/ops/errors_layers.h"
#include "tests/ops/errors_losses.h"

/* ---- elementwise/ ---------------------------------------------------------------------------- */

typedef struct pair {
    const char *name;
    tn_tensor *(*f)(tn_tensor *a, tn_tensor *b);
    char takes; /* n: numbers, f: floating point, a: anything */
} pair;

PLAIN_TEST(two_inputs) {
    TN_SCOPE;
    static const pair all[] = {
        {"add", tn_add, 'n'},         {"sub", tn_sub, 'n'},
        {"mul", tn_mul, 'n'},         {"maximum", tn_maximum, 'n'},
        {"minimum", tn_minimum, 'n'}, {"div", tn_div, 'f'},
        {"pow", tn_pow, 'f'},         {"atan2", tn_atan2, 'f'},
        {"eq", tn_eq, 'a'},           {"ne", tn_ne, 'a'},
        {"lt", tn_lt, 'a'},           {"le", tn_le, 'a'},
        {"gt", tn_gt, 'a'},           {"ge", tn_ge, 'a'},
        {"fmod", tn_fmod, 'n'},       {"remainder", tn_remainder, 'n'},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const pair *p = &all[i];
        refused_by(p->f(F(2, 3), D(2, 3)), p->name, TN_EDTYPE, "a is f32 but b is f64");
        refused_by(p->f(F(2, 3), F(2, 4)), p->name, TN_ESHAPE,
                   "a is [2, 3] but b is [2, 4] (dimension 1: 3 and 4 do not broadcast)");
        refused_by(p->f(F(3), F(2, 2, 2)), p->name, TN_ESHAPE,
                   "a is [3] but b is [2, 2, 2] (dimension 2: 3 and 2 do not broadcast)");
        if (p->takes == 'n') {
            refused_by(p->f(B(2), B(2)), p->name, TN_EDTYPE, "a is bool (a number is needed");
        } else if (p->takes == 'f') {
            refused_by(p->f(I(2), I(2)), p->name, TN_EDTYPE, "a is i64 (floating point is needed");
        }
    }
}

typedef struct single {
    const char *name;
    tn_tensor *(*f)(tn_tensor *x);
} single;

static tn_tensor *leaky_relu(tn_tensor *x) {
    return tn_leaky_relu(x, 0.01);
}
static tn_tensor *elu_1(tn_tensor *x) {
    return tn_elu(x, 1.0);
}
static tn_tensor *softplus_1(tn_tensor *x) {
    return tn_softplus(x, 1.0, 20.0);
}

PLAIN_TEST(one_input) {
    TN_SCOPE;
    static const single floats[] = {
        {"exp", tn_exp},
        {"log", tn_log},
        {"sqrt", tn_sqrt},
        {"rsqrt", tn_rsqrt},
        {"sin", tn_sin},
        {"cos", tn_cos},
        {"erf", tn_erf},
        {"tanh", tn_tanh},
        {"sigmoid", tn_sigmoid},
        {"relu", tn_relu},
        {"silu", tn_silu},
        {"gelu", tn_gelu},
        {"gelu_tanh", tn_gelu_tanh},
        {"expm1", tn_expm1},
        {"log1p", tn_log1p},
        {"reciprocal", tn_reciprocal},
        {"floor", tn_floor},
        {"ceil", tn_ceil},
        {"round", tn_round},
        {"tan", tn_tan},
        {"asin", tn_asin},
        {"acos", tn_acos},
        {"atan", tn_atan},
        {"sinh", tn_sinh},
        {"cosh", tn_cosh},
        {"mish", tn_mish},
        {"hardsigmoid", tn_hardsigmoid},
        {"hardswish", tn_hardswish},
        {"hardtanh", tn_relu6},
        {"leaky_relu", leaky_relu},
        {"elu", elu_1},
        {"softplus", softplus_1},
    };
    static const single numbers[] = {
        {"neg", tn_neg}, {"abs", tn_abs}, {"sign", tn_sign}, {"square", tn_square}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        refused_by(floats[i].f(I(2)), floats[i].name, TN_EDTYPE,
                   "x is i64 (floating point is needed");
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        refused_by(numbers[i].f(B(2)), numbers[i].name, TN_EDTYPE, "x is bool (a number is needed");
    }
}

PLAIN_TEST(constant_errors) {
    TN_SCOPE;
    refused_with(tn_add_scalar(B(2), 1.0), TN_EDTYPE, "add_scalar: x is bool");
    refused_with(tn_mul_scalar(B(2), 1.0), TN_EDTYPE, "mul_scalar: x is bool");
    refused_with(tn_sub_scalar(B(2), 1.0), TN_EDTYPE, "sub_scalar: x is bool");
    refused_with(tn_rsub_scalar(B(2), 1.0), TN_EDTYPE, "rsub_scalar: x is bool");
    refused_with(tn_add_scalar(I(2), 0.5), TN_EVALUE, "add_scalar: x is i64 but k is 0.5");
    refused_with(tn_mul_scalar(I(2), NAN), TN_EVALUE, "mul_scalar: x is i64 but k is");
    refused_with(tn_rsub_scalar(I(2), 1e30), TN_EVALUE, "rsub_scalar: x is i64 but k is 1e+30");
    refused_with(tn_sub_scalar(I(2), 0.5), TN_EVALUE, "sub_scalar: x is i64 but k is 0.5");
    refused_with(tn_div_scalar(I(2), 1.0), TN_EDTYPE, "div_scalar: x is i64");
    refused_with(tn_rdiv_scalar(I(2), 1.0), TN_EDTYPE, "rdiv_scalar: x is i64");
    refused_with(tn_pow_scalar(I(2), 2.0), TN_EDTYPE, "pow_scalar: x is i64");
    refused_with(tn_remainder_scalar(I(2), 0.0), TN_EVALUE,
                 "remainder_scalar: x is i64 but k is 0");
    refused_with(tn_fmod_scalar(I(2), 0.0), TN_EVALUE, "fmod_scalar: x is i64 but k is 0");
    refused_with(tn_fmod_scalar(I(2), 0.5), TN_EVALUE, "fmod_scalar: x is i64 but k is 0.5");
    refused_with(tn_remainder_scalar(B(2), 1.0), TN_EDTYPE, "remainder: a is bool");
    refused_with(tn_clamp(B(2), 0.0, 1.0), TN_EDTYPE, "clamp: x is bool");
    refused_with(tn_clamp(F(2), NAN, 1.0), TN_EVALUE, "clamp: low is nan and high is 1");
    refused_with(tn_clamp(F(2), 0.0, NAN), TN_EVALUE, "clamp: low is 0 and high is nan");
    refused_with(tn_hardtanh(F(2), 2.0, 1.0), TN_EVALUE, "hardtanh: low is 2 but high is 1");
    refused_with(tn_hardtanh(F(2), NAN, 1.0), TN_EVALUE, "hardtanh: low is nan but high is 1");
    refused_with(tn_leaky_relu(F(2), NAN), TN_EVALUE, "leaky_relu: slope is nan");
    refused_with(tn_elu(F(2), NAN), TN_EVALUE, "elu: alpha is nan");
    refused_with(tn_softplus(F(2), NAN, 20.0), TN_EVALUE, "softplus: beta is nan");
    refused_with(tn_softplus(F(2), 1.0, NAN), TN_EVALUE, "softplus: threshold is nan");
    refused_with(tn_softplus(F(2), 0.0, 20.0), TN_EVALUE, "softplus: beta is 0");
}

PLAIN_TEST(truth_errors) {
    TN_SCOPE;
    static const struct {
        const char *name;
        tn_tensor *(*f)(tn_tensor *x, double k);
    } all[] = {{"eq_scalar", tn_eq_scalar}, {"ne_scalar", tn_ne_scalar},
               {"lt_scalar", tn_lt_scalar}, {"le_scalar", tn_le_scalar},
               {"gt_scalar", tn_gt_scalar}, {"ge_scalar", tn_ge_scalar}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *name = all[i].name;
        refused_by(all[i].f(I(2), 0.5), name, TN_EVALUE, "x is i64 but k is 0.5 (which it cannot");
        refused_by(all[i].f(I(2), NAN), name, TN_EVALUE, "x is i64 but k is nan");
        refused_by(all[i].f(tn_cast(I(2), TN_I8), 128), name, TN_EVALUE, "x is i8 but k is 128");
        refused_by(all[i].f(B(2), 2), name, TN_EVALUE, "x is bool but k is 2");
        refused_by(all[i].f(NULL, 2), name, TN_EVALUE, "the tensor is NULL");
    }
    refused_with(tn_logical_and(F(2), B(2)), TN_EDTYPE,
                 "logical_and: an input is f32 (bool is needed");
    refused_with(tn_logical_or(B(2), I(2)), TN_EDTYPE, "logical_or: an input is i64");
    refused_with(tn_logical_xor(I(2), I(2)), TN_EDTYPE, "logical_xor: an input is i64");
    refused_with(tn_logical_not(F(2)), TN_EDTYPE, "logical_not: an input is f32");
    refused_with(tn_logical_and(B(2), B(3)), TN_ESHAPE, "[2]");
    refused_with(tn_logical_xor(B(2), B(3)), TN_ESHAPE, "[3]");
}

PLAIN_TEST(condition_errors) {
    TN_SCOPE;
    refused_with(tn_where(F(2), F(2), F(2)), TN_EDTYPE, "where: condition is f32 (bool is needed)");
    refused_with(tn_where(B(2), F(2), D(2)), TN_EDTYPE, "where: a is f32 but b is f64");
    refused_with(tn_where(B(2), F(2), F(3)), TN_ESHAPE,
                 "where: condition is [2], a is [2] and b is [3]");
    refused_with(tn_where(B(3), F(2), F(2)), TN_ESHAPE,
                 "where: condition is [3], a is [2] and b is [2]");
    refused_with(tn_masked_fill(F(2), F(2), 0.0), TN_EDTYPE, "masked_fill: mask is f32");
    refused_with(tn_masked_fill(F(2, 3), B(2), 0.0), TN_ESHAPE,
                 "masked_fill: x is [2, 3] but mask is [2]");
    refused_with(tn_masked_fill(F(3), B(2, 3), 0.0), TN_ESHAPE,
                 "masked_fill: x is [3] but mask is [2, 3]");
    refused_with(tn_masked_fill(I(2), B(2), NAN), TN_EVALUE,
                 "masked_fill: nan is not a value of x's");
}

/* ---- reduce/ --------------------------------------------------------------------------------- */

static tn_tensor *sample_var(tn_tensor *x, tn_dims dims, bool keepdim) {
    return tn_var(x, dims, 1, keepdim);
}

static tn_tensor *sample_std(tn_tensor *x, tn_dims dims, bool keepdim) {
    return tn_std(x, dims, 1, keepdim);
}

static tn_tensor *norm_2(tn_tensor *x, tn_dims dims, bool keepdim) {
    return tn_norm(x, 2.0, dims, keepdim);
}

PLAIN_TEST(reduction_errors) {
    TN_SCOPE;
    static const struct {
        const char *name;
        tn_tensor *(*f)(tn_tensor *x, tn_dims dims, bool keepdim);
        char takes; /* as above */
    } all[] = {{"sum", tn_sum, 'a'},  {"mean", tn_mean, 'f'},   {"max", tn_max, 'n'},
               {"min", tn_min, 'n'},  {"var", sample_var, 'f'}, {"logsumexp", tn_logsumexp, 'f'},
               {"norm", norm_2, 'f'}, {"std", sample_std, 'f'}, {"prod", tn_prod, 'a'}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *name = all[i].name;
        refused_by(all[i].f(F(2, 3), TN_DIMS(2), false), name, TN_EINDEX,
                   "x is [2, 3] but dimension 2 is named (it has 2)");
        refused_by(all[i].f(F(2, 3), TN_DIMS(-3), false), name, TN_EINDEX,
                   "x is [2, 3] but dimension -3 is named (it has 2)");
        refused_by(all[i].f(F(2, 3), TN_DIMS(0, -2), true), name, TN_EVALUE,
                   "dimension 0 of x [2, 3] is named twice");
        refused_by(all[i].f(F(2, 3), TN_DIMS(0, 0, 0, 0, 0, 0, 0, 0, 0), true), name, TN_ESHAPE,
                   "more than 8 dimensions are named (x is [2, 3])");
        if (all[i].takes == 'f') {
            refused_by(all[i].f(I(2), TN_DIMS(), false), name, TN_EDTYPE, "x is i64");
        } else if (all[i].takes == 'n') {
            refused_by(all[i].f(B(2), TN_DIMS(), false), name, TN_EDTYPE, "x is bool");
        }
    }
    refused_with(tn_max(F(2, 0), TN_DIMS(1), false), TN_ESHAPE, "max: x is [2, 0]");
    refused_with(tn_min(F(2, 0), TN_DIMS(1), false), TN_ESHAPE, "min: x is [2, 0]");
    refused_with(tn_argmax(F(2, 0), 1, false), TN_ESHAPE, "argmax: x is [2, 0]");
    refused_with(tn_argmax(F(2, 3), 2, false), TN_EINDEX, "argmax: dimension 2 of a tensor with 2");
    refused_with(tn_argmax(B(2), 0, false), TN_EDTYPE, "argmax: x is bool");
    refused_with(tn_argmin(F(2, 0), 1, false), TN_ESHAPE, "argmin: x is [2, 0]");
    refused_with(tn_argmin(F(2, 3), -3, false), TN_EINDEX,
                 "argmin: dimension -3 of a tensor with 2");
    refused_with(tn_argmin(B(2), 0, false), TN_EDTYPE, "argmin: x is bool");
    refused_with(tn_norm(F(2), NAN, TN_DIMS(), false), TN_EVALUE, "norm: p is NaN");
    refused_with(tn_norm(F(2, 0), INFINITY, TN_DIMS(1), false), TN_ESHAPE, "norm: x is [2, 0]");
    refused_with(tn_cumsum(F(2, 3), 2), TN_EINDEX, "cumsum: dimension 2 of a tensor with 2");
    refused_with(tn_cumprod(F(2, 3), -3), TN_EINDEX, "cumprod: dimension -3 of a tensor with 2");
    refused_with(tn_logcumsumexp(F(2, 3), 2), TN_EINDEX, "logcumsumexp: dimension 2 of a tensor");
    refused_with(tn_logcumsumexp(I(2), 0), TN_EDTYPE, "logcumsumexp: the dtype of x is i64");
    refused_with(tn_any(F(2)), TN_EDTYPE, "any: x is f32 (bool is needed)");
    refused_with(tn_all(I(2)), TN_EDTYPE, "all: x is i64 (bool is needed)");
    refused_with(tn_sum_to(I(2, 3), TN_DIMS(3)), TN_EDTYPE, "sum_to: x is i64");
    refused_with(tn_sum_to(F(2, 3), TN_DIMS(2)), TN_ESHAPE,
                 "sum_to: x is [2, 3] but the sum's shape is [2]");
    refused_with(tn_sum_to(F(2, 3), TN_DIMS(4, 2, 3)), TN_ESHAPE,
                 "sum_to: x is [2, 3] but the sum's shape is [4, 2, 3]");
    refused_with(tn_sum_to(F(1, 3), TN_DIMS(2, 3)), TN_ESHAPE,
                 "sum_to: x is [1, 3] but the sum's shape is [2, 3]");
}

/* ---- shape/: more in test_views.c ------------------------------------------------------------ */

PLAIN_TEST(shape_errors) {
    TN_SCOPE;
    refused_with(tn_reshape(F(2, 3), TN_DIMS(4)), TN_ESHAPE,
                 "reshape: x is [2, 3] and cannot become [4]");
    refused_with(tn_permute(F(2, 3), TN_DIMS(0, 0)), TN_ESHAPE,
                 "permute: x is [2, 3] but the order is [0, 0]");
    refused_with(tn_expand(F(2, 3), TN_DIMS(4, 3)), TN_ESHAPE,
                 "expand: x is [2, 3] and cannot become [4, 3]");
    refused_with(tn_narrow(F(2, 3), 1, 2, 2), TN_EINDEX,
                 "slice: x is [2, 3] but start is 2, length 2");
    refused_with(tn_narrow(F(2, 3), 2, 0, 1), TN_EINDEX, "slice: dimension 2 of a tensor with 2");
    refused_with(tn_slice(F(2, 3), 2, 0, 1, 1), TN_EINDEX, "slice: dimension 2 of a tensor with 2");
    refused_with(tn_select(F(2, 3), 1, 3), TN_EINDEX, "select: x is [2, 3] and has no position 3");
    refused_with(tn_select(F(2, 3), 2, 0), TN_EINDEX, "select: dimension 2 of a tensor with 2");
    refused_with(tn_cat((tn_tensor *[]){F(2, 2), F(3, 3)}, 2, 0), TN_ESHAPE,
                 "cat: tensor 1 is [3, 3] but tensor 0 is [2, 2]");
    refused_with(tn_cat((tn_tensor *[]){F(2), D(2)}, 2, 0), TN_EDTYPE,
                 "cat: tensor 1 is f64 but tensor 0 is f32");
    refused_with(tn_stack((tn_tensor *[]){F(2), F(3)}, 2, 0), TN_ESHAPE,
                 "stack: tensor 1 is [3] but tensor 0 is [2]");
    refused_with(tn_stack((tn_tensor *[]){F(2), D(2)}, 2, 0), TN_EDTYPE,
                 "stack: tensor 1 is f64 but tensor 0 is f32");
    refused_with(tn_stack((tn_tensor *[]){F(1, 1, 1, 1, 1, 1, 1, 1)}, 1, 0), TN_ESHAPE, "stack: ");
}

PLAIN_TEST(rearrangement_errors) {
    TN_SCOPE;
    tn_tensor *x = F(2, 3);
    refused_with(tn_flip(x, TN_DIMS(2)), TN_EINDEX, "flip: x is [2, 3] but dimension 2 is named");
    refused_with(tn_flip(x, TN_DIMS(0, -2)), TN_EVALUE,
                 "flip: dimension 0 of x [2, 3] is named twice");
    refused_with(tn_roll(x, TN_DIMS(1), TN_DIMS(2)), TN_EINDEX,
                 "roll: dimension 2 of a tensor with 2");
    refused_with(tn_roll(x, TN_DIMS(1, 1), TN_DIMS(0)), TN_EVALUE,
                 "roll: 2 shifts are given for 1 dimensions");
    refused_with(tn_repeat(x, TN_DIMS(2)), TN_ESHAPE,
                 "repeat: x is [2, 3] but times has 1 numbers (2 to 8 are needed)");
    refused_with(tn_repeat(x, TN_DIMS(2, -1)), TN_EVALUE,
                 "repeat: x is [2, 3] but cannot be repeated -1 times (times[1])");
    refused_with(tn_repeat_interleave(x, -1, 0), TN_EVALUE,
                 "repeat_interleave: x is [2, 3] but cannot be repeated -1 times");
    refused_with(tn_repeat_interleave(x, INT64_MAX, 0), TN_EVALUE,
                 "repeat_interleave: x is [2, 3]");
    refused_with(tn_repeat_interleave(x, 2, 2), TN_EINDEX,
                 "repeat_interleave: dimension 2 of a tensor");
    refused_with(tn_tril(F(3), 0), TN_ESHAPE, "tril: x is [3] but must have at least 2 dimensions");
    refused_with(tn_triu(F(3), 0), TN_ESHAPE, "triu: x is [3] but must have at least 2 dimensions");
    refused_with(tn_pad(x, TN_DIMS(1), TN_PAD_CONSTANT, 0.0), TN_EVALUE,
                 "pad: x is [2, 3] but 1 pads are given (two for each dimension)");
    refused_with(tn_pad(x, TN_DIMS(-2, -2), TN_PAD_CONSTANT, 0.0), TN_EVALUE,
                 "pad: x is [2, 3]: dimension 1 cannot have pads of -2 and -2");
    refused_with(tn_pad(I(2), TN_DIMS(1, 1), TN_PAD_CONSTANT, NAN), TN_EVALUE,
                 "pad: nan is not a value of x's dtype i64");
    refused_with(tn_pad(x, TN_DIMS(3, 0), TN_PAD_REFLECT, 0.0), TN_EVALUE,
                 "pad_around: x is [2, 3]: a pad of 3 in dimension 1 has nothing to copy");
    refused_with(tn_pad(x, TN_DIMS(4, 0), TN_PAD_CIRCULAR, 0.0), TN_EVALUE,
                 "pad_around: x is [2, 3]");
    refused_with(tn_pad(x, TN_DIMS(1, 1), (tn_pad_mode)9, 0.0), TN_EVALUE,
                 "pad_around: mode 9 is not a tn_pad_mode");
    refused_with(tn_argsort(x, 2, false), TN_EINDEX, "argsort: dimension 2 of a tensor with 2");
    refused_with(tn_topk(x, 1, 2, true, NULL), TN_EINDEX, "topk: dimension 2 of a tensor with 2");
    refused_with(tn_topk(x, 4, 1, true, NULL), TN_EVALUE,
                 "topk: x is [2, 3]: there are no 4 elements in dimension 1");
    refused_with(tn_topk(x, -1, 1, true, NULL), TN_EVALUE, "topk: x is [2, 3]: there are no -1");
}

/* ---- linalg/, index/ ------------------------------------------------------------------------- */

PLAIN_TEST(product_errors) {
    TN_SCOPE;
    refused_with(tn_matmul(F(2, 3), D(3, 2)), TN_EDTYPE, "matmul: a is f32 but b is f64");
    refused_with(tn_matmul(I(2, 3), I(3, 2)), TN_EDTYPE, "matmul: the dtype of a is i64");
    refused_with(tn_matmul(F(), F(3)), TN_ESHAPE, "matmul: a is [] and b is [3]");
    refused_with(
        tn_matmul(F(2, 3), F(2, 3)), TN_ESHAPE,
        "matmul: a is [2, 3] but b is [2, 3] (a's last dimension must equal b's last but one)");
    refused_with(tn_matmul(F(2, 3), F(2)), TN_ESHAPE,
                 "matmul: a is [2, 3] but b is [2] (a's last dimension must equal b's only one)");
    refused_with(tn_matmul(F(4, 2, 3), F(5, 3, 2)), TN_ESHAPE,
                 "matmul: a is [4, 2, 3] but b is [5, 3, 2]");
    refused_with(tn_linear_op(F(2, 3), D(4, 3), NULL), TN_EDTYPE,
                 "linear: x is f32 but weight is f64");
    refused_with(tn_linear_op(I(2, 3), I(4, 3), NULL), TN_EDTYPE, "linear: the dtype of x is i64");
    refused_with(tn_linear_op(F(2, 3), F(3), NULL), TN_ESHAPE, "linear: weight is [3]");
    refused_with(tn_linear_op(F(2, 3), F(3, 4), NULL), TN_ESHAPE,
                 "linear: x is [2, 3] but weight is [3, 4]");
    refused_with(tn_linear_op(F(), F(3, 4), NULL), TN_ESHAPE,
                 "linear: x is [] but weight is [3, 4]");
    refused_with(tn_linear_op(F(2, 3), F(4, 3), F(3)), TN_ESHAPE,
                 "linear: weight is [4, 3] but bias is [3]");
    refused_with(tn_linear_op(F(2, 3), F(4, 3), F(4, 1)), TN_ESHAPE,
                 "linear: weight is [4, 3] but bias is [4, 1]");
    tn_tensor *bytes = tn_zeros(TN_DIMS(4, 3), TN_I8);
    refused_with(tn_linear_q8(F(2, 3), F(4, 3), F(4), NULL), TN_EDTYPE, "linear_q8: weight is f32");
    refused_with(tn_linear_q8(F(2, 3), bytes, F(4), D(4)), TN_EDTYPE, "x is f32 and bias f64");
    refused_with(tn_linear_q8(I(2, 3), bytes, F(4), NULL), TN_EDTYPE, "the dtype of x is i64");
    refused_with(tn_linear_q8(F(2, 3), bytes, I(4), NULL), TN_EDTYPE, "the dtype of scale is i64");
    refused_with(tn_linear_q8(F(2, 4), bytes, F(4), NULL), TN_ESHAPE,
                 "linear_q8: x is [2, 4] but weight is [4, 3]");
    refused_with(tn_linear_q8(F(2, 3), bytes, F(3), NULL), TN_ESHAPE, "but scale is [3]");
    refused_with(tn_linear_q8(F(2, 3), bytes, F(4), F(4, 1)), TN_ESHAPE, "but bias is [4, 1]");
    const tn_op *cat = tn_op_named("linear_cat");
    tn_tensor *in[8] = {F(2, 3), F(4, 3), D(4, 3)};
    refused_with(tn_apply(cat, NULL, in, 8), TN_EDTYPE, "linear_cat: x is f32 and weight2 f64");
    in[2] = bytes;
    refused_with(tn_apply(cat, NULL, in, 8), TN_EDTYPE, "linear_cat: x is f32 and weight2 i8");
    in[5] = F(3);
    refused_with(tn_apply(cat, NULL, in, 8), TN_ESHAPE,
                 "linear_cat: weight2 is [4, 3] but its scale [3]");
    in[5] = F(4);
    in[7] = F(2, 7);
    refused_with(tn_apply(cat, NULL, in, 8), TN_ESHAPE,
                 "linear_cat: the result is [2, 8] in f32 but add is [2, 7] in f32");
    in[1] = F(3, 4);
    refused_with(tn_apply(cat, NULL, in, 8), TN_ESHAPE,
                 "linear_cat: x is [2, 3] but weight1 is [3, 4]");
    refused_with(tn_silu_mul(F(2, 3), D(2, 3)), TN_EDTYPE, "silu_mul: a is f32 but b is f64");
    refused_with(tn_silu_mul(I(2), I(2)), TN_EDTYPE, "silu_mul: the dtype of a is i64");
    refused_with(tn_silu_mul(F(2, 3), F(3)), TN_ESHAPE, "silu_mul: a is [2, 3] and b is [3]");
    refused_with(tn_linear_gelu(F(2, 3), D(4, 3), NULL), TN_EDTYPE,
                 "linear_gelu: x is f32 but weight is f64");
    refused_with(tn_linear_gelu(F(2, 3), F(3, 4), NULL), TN_ESHAPE,
                 "linear_gelu: x is [2, 3] but weight is [3, 4]");
    refused_with(tn_linear_gelu(F(2, 3), F(4, 3), F(3)), TN_ESHAPE,
                 "linear_gelu: weight is [4, 3] but bias is [3]");
    refused_with(tn_mlp_op(F(2, 3), F(4, 3), NULL, D(2, 4), NULL), TN_EDTYPE,
                 "mlp: x is f32 but weight2 is f64");
    refused_with(tn_mlp_op(F(2, 3), F(4, 3), NULL, F(2, 5), NULL), TN_ESHAPE,
                 "mlp: x is [2, 3], weight1 [4, 3] and weight2 [2, 5]");
    refused_with(tn_mlp_op(F(2, 3), F(4, 3), F(3), F(2, 4), NULL), TN_ESHAPE,
                 "mlp: weight1 is [4, 3] but bias1 is [3]");
    refused_with(tn_mlp_op(F(2, 3), F(4, 3), NULL, F(2, 4), F(4)), TN_ESHAPE,
                 "mlp: weight2 is [2, 4] but bias2 is [4]");
}

PLAIN_TEST(sums_of_products) {
    TN_SCOPE;
    tn_tensor *both[] = {F(2, 3), F(4, 3)};
    refused_with(tn_einsum(NULL, both, 2), TN_EVALUE, "einsum: the equation is NULL");
    refused_with(tn_einsum("ij,jk->ik", both, 2), TN_ESHAPE,
                 "einsum: 'ij,jk->ik': operand 1 is [4, 3], where dimension 0 should have size 3");
    refused_with(tn_einsum("ij,k->ik", both, 2), TN_ESHAPE,
                 "einsum: 'ij,k->ik': operand 1 is [4, 3] but has 1 subscripts");
    refused_with(tn_einsum("ij->i", both, 2), TN_EVALUE, "einsum: 'ij->i' is not for 2 operands");
    refused_with(tn_einsum("ij,kj->im", both, 2), TN_EVALUE,
                 "einsum: 'ij,kj->im': the result has a subscript that no operand has");
    refused_with(tn_einsum("i1,kj->ik", both, 2), TN_EVALUE,
                 "einsum: 'i1,kj->ik': letters and one");
    refused_with(tn_einsum("ij,kj", ((tn_tensor *[]){F(2, 3), D(4, 3)}), 2), TN_EDTYPE,
                 "einsum: input 0 is f32 but input 1 is f64");
    tn_tensor *a = F(5, 3), *b = F(5, 4), *w = F(2, 3, 4);
    refused_with(tn_bilinear(a, D(5, 4), w, NULL), TN_EDTYPE, "bilinear: a is f32 but b is f64");
    refused_with(tn_bilinear(I(5, 3), I(5, 4), I(2, 3, 4), NULL), TN_EDTYPE,
                 "bilinear: the dtype of a is i64");
    refused_with(tn_bilinear(a, F(6, 4), w, NULL), TN_ESHAPE,
                 "bilinear: a is [5, 3], b [6, 4] and weight [2, 3, 4]");
    refused_with(tn_bilinear(a, b, F(2, 4, 3), NULL), TN_ESHAPE,
                 "bilinear: a is [5, 3], b [5, 4] and weight [2, 4, 3]");
    refused_with(tn_bilinear(a, b, w, F(3)), TN_ESHAPE,
                 "bilinear: weight is [2, 3, 4] but bias is [3]");
}

/* The arguments of the private operations, as their files declare them. */
typedef struct rows_args {
    int dim;
    int64_t size;
} rows_args;
typedef struct add_args {
    int dim;
    tn_dims dims;
} add_args;
typedef struct place_args {
    int dim;
    int64_t start, step, size;
} place_args;

static tn_tensor *apply_op(const char *name, const void *args, tn_tensor *a, tn_tensor *b) {
    return tn_apply(tn_op_named(name), args, (tn_tensor *[]){a, b}, b ? 2 : 1);
}

PLAIN_TEST(index_errors) {
    TN_SCOPE;
    refused_with(tn_index_select(F(2, 3), 2, I(1)), TN_EINDEX,
                 "index_select: dimension 2 of a tensor");
    refused_with(tn_index_select(F(2, 3), 0, F(1)), TN_EDTYPE,
                 "index_select: the dtype of index is f32");
    refused_with(tn_index_select(F(2, 3), 0, I(1, 1)), TN_ESHAPE, "index_select: index is [1, 1]");
    refused_with(tn_gather(F(2, 3), 2, I(2, 3)), TN_EINDEX, "gather: dimension 2 of a tensor");
    refused_with(tn_gather(F(2, 3), 0, F(2, 3)), TN_EDTYPE, "gather: the dtype of index is f32");
    refused_with(tn_gather(F(2, 3), 0, I(2)), TN_ESHAPE, "gather: x is [2, 3] but index is [2]");
    refused_with(tn_gather(F(2, 3), 0, I(2, 4)), TN_ESHAPE,
                 "gather: x is [2, 3] but index is [2, 4] (index is larger in dimension 1)");
    refused_with(tn_embedding_op(F(3), I(2)), TN_ESHAPE, "embedding: weight is [3]");
    refused_with(tn_embedding_op(F(3, 2), F(2)), TN_EDTYPE, "embedding: the dtype of index is f32");
    refused_with(tn_embedding_op(F(3, 2), I(1, 1, 1, 1, 1, 1, 1, 1)), TN_ESHAPE,
                 "embedding: index is [1, 1, 1, 1, 1, 1, 1, 1]");
    rows_args rows = {0, 4}, off = {2, 4};
    refused_with(apply_op("scatter_rows", &off, F(2, 3), I(2)), TN_EINDEX,
                 "scatter_rows: dimension 2");
    refused_with(apply_op("scatter_rows", &rows, I(2, 3), I(2)), TN_EDTYPE,
                 "scatter_rows: the dtype of src is i64");
    refused_with(apply_op("scatter_rows", &rows, F(2, 3), I(3)), TN_ESHAPE,
                 "scatter_rows: src is [2, 3] but index is [3]");
    refused_with(apply_op("scatter_rows", &rows, F(2, 3), tn_full(TN_DIMS(2), 4, TN_I64)),
                 TN_EINDEX, "scatter_rows: index 4 at position 0 is outside [0, 4)");
    add_args add = {0, TN_DIMS(4, 3)}, small = {0, TN_DIMS(4, 2)};
    refused_with(apply_op("scatter_add", &add, I(2, 3), I(2, 3)), TN_EDTYPE,
                 "scatter_add: the dtype of src is i64");
    refused_with(apply_op("scatter_add", &add, F(2, 3), I(2)), TN_ESHAPE,
                 "scatter_add: src is [2, 3] but index is [2]");
    refused_with(apply_op("scatter_add", &small, F(2, 3), I(2, 3)), TN_ESHAPE,
                 "scatter_add: src is [2, 3] but index is [2, 3]");
    place_args outside = {0, 3, 1, 4}, nowhere = {2, 0, 1, 4};
    refused_with(apply_op("place", &outside, F(2, 3), NULL), TN_EINDEX,
                 "place: x is [2, 3] but dimension 0 of the result is 4 (start 3, step 1)");
    refused_with(apply_op("place", &nowhere, F(2, 3), NULL), TN_EINDEX,
                 "place: dimension 2 of a tensor");
    tn__cumulative_args along = {1, false}, beyond = {2, false};
    refused_with(apply_op("linear_scan", &along, I(2, 3), I(2, 3)), TN_EDTYPE,
                 "linear_scan: the dtype of b is i64");
    refused_with(apply_op("linear_scan", &along, F(2, 3), D(2, 3)), TN_EDTYPE,
                 "linear_scan: b is f32 but a is f64");
    refused_with(apply_op("linear_scan", &along, F(2, 3), F(3, 2)), TN_ESHAPE,
                 "linear_scan: b is [2, 3] but a is [3, 2]");
    refused_with(apply_op("linear_scan", &beyond, F(2, 3), F(2, 3)), TN_EINDEX,
                 "linear_scan: dimension 2 of a tensor");
    const tn_op *put = tn_op_named("put_rows");
    refused_with(tn_apply3(put, NULL, F(4, 3), F(2), F(2, 3)), TN_EDTYPE,
                 "put_rows: the dtype of index is f32");
    refused_with(tn_apply3(put, NULL, F(4, 3), I(2), D(2, 3)), TN_EDTYPE,
                 "put_rows: x is f32 but values is f64");
    refused_with(tn_apply3(put, NULL, F(4, 3), I(2), F(3, 3)), TN_ESHAPE,
                 "put_rows: x is [4, 3], index is [2], values is [3, 3]");
    refused_with(tn_apply3(put, NULL, F(4, 3), tn_full(TN_DIMS(2), 4, TN_I64), F(2, 3)), TN_EINDEX,
                 "put_rows: index 4 at position 0 is outside [0, 4)");
    refused_with(tn_to(F(2, 3), tn_cuda(99)), TN_EDEVICE, "to: there is no device cuda:99");
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* These take any tensor and have no other arguments that could be wrong. */
static bool takes_anything(const char *name) {
    static const char *const all[] = {"identity", "copy", "cast", "isnan", "isinf", "isfinite"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!strcmp(name, all[i])) {
            return true;
        }
    }
    return false;
}

/* Appends to `list`, so that a test can name all failing operations at once. */
static void list_failure(char *list, size_t size, const char *format, ...) {
    size_t length = strlen(list);
    va_list values;
    va_start(values, format);
    vsnprintf(list + length, size - length, format, values);
    va_end(values);
}

PLAIN_TEST(every_operation_refuses_something) {
    TN_SCOPE;
    char missing[4096] = "";
    assert_true(tn_op_count() <= (int)(sizeof seen / sizeof *seen));
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        char message[128];
        snprintf(message, sizeof message, "%s: %s must not be NULL", op->name,
                 tn_op_input_name(op, 0).text);
        bool refuses = seen[i] || takes_anything(op->name);
        static int64_t args[512];
        tn_tensor *none[TN_OP_INPUTS] = {NULL};
        int n = 1;
        while (n < TN_OP_INPUTS && op->inputs[n]) {
            n++;
        }
        assert_true(op->args_size <= sizeof args);
        refused_with(tn_apply(op, args, none, n), TN_EVALUE, message);
        if (!refuses) {
            list_failure(missing, sizeof missing, " %s", op->name);
        }
    }
    if (missing[0]) {
        fail_msg("no test here shows what these refuse:%s", missing);
    }
}

/* An operation whose samples all have the same number of inputs names each of them and no more; one
 * that takes any number of tensors names none. */
static struct { int fewest, most; } given;

static void note_inputs(tn_op_samples *s, const tn_sample *sample) {
    given.fewest = sample->inputs < given.fewest ? sample->inputs : given.fewest;
    given.most = sample->inputs > given.most ? sample->inputs : given.most;
}

PLAIN_TEST(every_input_has_a_name) {
    TN_SCOPE;
    char wrong[4096] = "";
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        given.fewest = TN_OP_INPUTS;
        given.most = 0;
        op->samples(&(tn_op_samples){.add = note_inputs});
        int names = 0;
        while (names < TN_OP_INPUTS && op->inputs[names]) {
            names++;
        }
        if (names != (given.fewest == given.most ? given.most : 0)) {
            list_failure(wrong, sizeof wrong, "\n%s names %d inputs but its samples have %d to %d",
                         op->name, names, given.fewest, given.most);
        }
    }
    if (wrong[0]) {
        fail_msg("inputs that are absent are TN_SPEC_ABSENT in samples:%s", wrong);
    }
    assert_string_equal(tn_op_input_name(tn_op_named("cross_entropy"), 1).text, "labels");
    assert_string_equal(tn_op_input_name(tn_op_named("cross_entropy"), 2).text, "input 2");
    assert_string_equal(tn_op_input_name(tn_op_named("cat"), 100).text, "input 100");
    assert_string_equal(tn_op_input_name(NULL, -1).text, "input -1");
}
