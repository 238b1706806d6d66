/* What every operation refuses: a wrong dtype, shapes that do not fit, arguments out of range. The
 * message (refusals.txt) names the operation and both sides. One test walks the registry and fails
 * for each operation that refused nothing here.
 */
#include <math.h>
#include <stdarg.h>

#include "backends/lines.h"
#include "tests/ops/errors_layers.h"
#include "tests/ops/errors_losses.h"

/* ---- elementwise/ ---------------------------------------------------------------------------- */

typedef struct pair {
    tn_tensor *(*f)(tn_tensor *a, tn_tensor *b);
    char takes; /* n: numbers, f: floating point, a: anything */
} pair;

TEST(two_inputs) {
    static const pair all[] = {
        {tn_add, 'n'},     {tn_sub, 'n'}, {tn_mul, 'n'},  {tn_maximum, 'n'},
        {tn_minimum, 'n'}, {tn_div, 'f'}, {tn_pow, 'f'},  {tn_atan2, 'f'},
        {tn_eq, 'a'},      {tn_ne, 'a'},  {tn_lt, 'a'},   {tn_le, 'a'},
        {tn_gt, 'a'},      {tn_ge, 'a'},  {tn_fmod, 'n'}, {tn_remainder, 'n'},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const pair *p = &all[i];
        refused(p->f(F(2, 3), D(2, 3)));
        refused(p->f(F(2, 3), F(2, 4)));
        refused(p->f(F(3), F(2, 2, 2)));
        if (p->takes == 'n') {
            refused(p->f(B(2), B(2)));
        } else if (p->takes == 'f') {
            refused(p->f(I(2), I(2)));
        }
    }
}

static tn_tensor *leaky_relu(tn_tensor *x) {
    return tn_leaky_relu(x, 0.01);
}
static tn_tensor *elu_1(tn_tensor *x) {
    return tn_elu(x, 1.0);
}
static tn_tensor *softplus_1(tn_tensor *x) {
    return tn_softplus(x, 1.0, 20.0);
}

TEST(one_input) {
    static tn_tensor *(*const floats[])(tn_tensor * x) = {
        tn_exp,   tn_log,        tn_sqrt,  tn_rsqrt,  tn_sin,   tn_cos,         tn_erf,
        tn_tanh,  tn_sigmoid,    tn_relu,  tn_silu,   tn_gelu,  tn_gelu_tanh,   tn_expm1,
        tn_log1p, tn_reciprocal, tn_floor, tn_ceil,   tn_round, tn_tan,         tn_asin,
        tn_acos,  tn_atan,       tn_sinh,  tn_cosh,   tn_mish,  tn_hardsigmoid, tn_hardswish,
        tn_relu6, leaky_relu,    elu_1,    softplus_1};
    static tn_tensor *(*const numbers[])(tn_tensor * x) = {tn_neg, tn_abs, tn_sign, tn_square};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        refused(floats[i](I(2)));
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        refused(numbers[i](B(2)));
    }
}

TEST(constant_errors) {
    refused(tn_add_scalar(B(2), 1.0));
    refused(tn_mul_scalar(B(2), 1.0));
    refused(tn_sub_scalar(B(2), 1.0));
    refused(tn_rsub_scalar(B(2), 1.0));
    refused(tn_add_scalar(I(2), 0.5));
    refused(tn_mul_scalar(I(2), NAN));
    refused(tn_rsub_scalar(I(2), 1e30));
    refused(tn_sub_scalar(I(2), 0.5));
    refused(tn_div_scalar(I(2), 1.0));
    refused(tn_rdiv_scalar(I(2), 1.0));
    refused(tn_pow_scalar(I(2), 2.0));
    refused(tn_remainder_scalar(I(2), 0.0));
    refused(tn_fmod_scalar(I(2), 0.0));
    refused(tn_fmod_scalar(I(2), 0.5));
    refused(tn_remainder_scalar(B(2), 1.0));
    refused(tn_clamp(B(2), 0.0, 1.0));
    refused(tn_clamp(F(2), NAN, 1.0));
    refused(tn_clamp(F(2), 0.0, NAN));
    refused(tn_hardtanh(F(2), 2.0, 1.0));
    refused(tn_hardtanh(F(2), NAN, 1.0));
    refused(tn_leaky_relu(F(2), NAN));
    refused(tn_elu(F(2), NAN));
    refused(tn_softplus(F(2), NAN, 20.0));
    refused(tn_softplus(F(2), 1.0, NAN));
    refused(tn_softplus(F(2), 0.0, 20.0));
}

TEST(truth_errors) {
    static tn_tensor *(*const all[])(tn_tensor * x, double k) = {
        tn_eq_scalar, tn_ne_scalar, tn_lt_scalar, tn_le_scalar, tn_gt_scalar, tn_ge_scalar};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        refused(all[i](I(2), 0.5));
        refused(all[i](I(2), NAN));
        refused(all[i](tn_cast(I(2), TN_I8), 128));
        refused(all[i](B(2), 2));
        refused(all[i](NULL, 2));
    }
    refused(tn_logical_and(F(2), B(2)));
    refused(tn_logical_or(B(2), I(2)));
    refused(tn_logical_xor(I(2), I(2)));
    refused(tn_logical_not(F(2)));
    refused(tn_logical_and(B(2), B(3)));
    refused(tn_logical_xor(B(2), B(3)));
}

TEST(condition_errors) {
    refused(tn_where(F(2), F(2), F(2)));
    refused(tn_where(B(2), F(2), D(2)));
    refused(tn_where(B(2), F(2), F(3)));
    refused(tn_where(B(3), F(2), F(2)));
    refused(tn_masked_fill(F(2), F(2), 0.0));
    refused(tn_masked_fill(tn_zeros(TN_DIMS(2), TN_I32), B(2), 1e12));
    refused(tn_masked_fill(F(2, 3), B(2), 0.0));
    refused(tn_masked_fill(F(3), B(2, 3), 0.0));
    refused(tn_masked_fill(I(2), B(2), NAN));
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

TEST(reduction_errors) {
    static const struct {
        tn_tensor *(*f)(tn_tensor *x, tn_dims dims, bool keepdim);
        char takes; /* as above */
    } all[] = {{tn_sum, 'a'}, {tn_mean, 'f'},    {tn_max, 'n'},
               {tn_min, 'n'}, {sample_var, 'f'}, {tn_logsumexp, 'f'},
               {norm_2, 'f'}, {sample_std, 'f'}, {tn_prod, 'a'}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        refused(all[i].f(F(2, 3), TN_DIMS(2), false));
        refused(all[i].f(F(2, 3), TN_DIMS(-3), false));
        refused(all[i].f(F(2, 3), TN_DIMS(0, -2), true));
        refused(all[i].f(F(2, 3), TN_DIMS(0, 0, 0, 0, 0, 0, 0, 0, 0), true));
        if (all[i].takes == 'f') {
            refused(all[i].f(I(2), TN_DIMS(), false));
        } else if (all[i].takes == 'n') {
            refused(all[i].f(B(2), TN_DIMS(), false));
        }
    }
    refused(tn_max(F(2, 0), TN_DIMS(1), false));
    refused(tn_min(F(2, 0), TN_DIMS(1), false));
    refused(tn_min(F(2, 0), TN_DIMS(), false));
    refused(tn_sum(F(), TN_DIMS(1), false));
    refused(tn_sum(F(), TN_DIMS(0, -1), false));
    refused(tn_argmax(F(), 1, false));
    refused(tn_argmax(F(2, 0), 1, false));
    refused(tn_argmax(F(2, 3), 2, false));
    refused(tn_argmax(B(2), 0, false));
    refused(tn_argmin(F(2, 0), 1, false));
    refused(tn_argmin(F(2, 3), -3, false));
    refused(tn_argmin(B(2), 0, false));
    refused(tn_norm(F(2), NAN, TN_DIMS(), false));
    refused(tn_norm(F(2, 0), INFINITY, TN_DIMS(1), false));
    refused(tn_cumsum(F(2, 3), 2));
    refused(tn_cumprod(F(2, 3), -3));
    refused(tn_logcumsumexp(F(2, 3), 2));
    refused(tn_logcumsumexp(I(2), 0));
    refused(tn_any(F(2)));
    refused(tn_all(I(2)));
    refused(tn_sum_to(I(2, 3), TN_DIMS(3)));
    refused(tn_sum_to(F(2, 3), TN_DIMS(2)));
    refused(tn_sum_to(F(2, 3), TN_DIMS(4, 2, 3)));
    refused(tn_sum_to(F(1, 3), TN_DIMS(2, 3)));
}

/* ---- shape/: more in test_views.c ------------------------------------------------------------ */

TEST(shape_errors) {
    refused(tn_reshape(F(2, 3), TN_DIMS(4)));
    refused(tn_permute(F(2, 3), TN_DIMS(0, 0)));
    refused(tn_expand(F(2, 3), TN_DIMS(4, 3)));
    refused(tn_narrow(F(2, 3), 1, 2, 2));
    refused(tn_narrow(F(2, 3), 2, 0, 1));
    refused(tn_slice(F(2, 3), 2, 0, 1, 1));
    refused(tn_select(F(2, 3), 1, 3));
    refused(tn_select(F(2, 3), 2, 0));
    refused(tn_cat((tn_tensor *[]){F(2, 2), F(3, 3)}, 2, 0));
    refused(tn_cat((tn_tensor *[]){F(2), D(2)}, 2, 0));
    refused(tn_stack((tn_tensor *[]){F(2), F(3)}, 2, 0));
    refused(tn_stack((tn_tensor *[]){F(2), D(2)}, 2, 0));
    refused(tn_stack((tn_tensor *[]){F(1, 1, 1, 1, 1, 1, 1, 1)}, 1, 0));
}

TEST(rearrangement_errors) {
    tn_tensor *x = F(2, 3);
    refused(tn_flip(x, TN_DIMS(2)));
    refused(tn_pad(tn_zeros(TN_DIMS(2), TN_U8), TN_DIMS(1, 1), TN_PAD_CONSTANT, -1.0));
    refused(tn_flip(x, TN_DIMS(0, -2)));
    refused(tn_roll(x, TN_DIMS(1), TN_DIMS(2)));
    refused(tn_roll(x, TN_DIMS(1), TN_DIMS(INT64_C(1) << 40)));
    refused(tn_roll(x, TN_DIMS(1, 1), TN_DIMS(0)));
    refused(tn_repeat(x, TN_DIMS(2)));
    refused(tn_repeat(x, TN_DIMS(2, -1)));
    refused(tn_repeat_interleave(x, -1, 0));
    refused(tn_repeat_interleave(x, INT64_MAX, 0));
    refused(tn_repeat_interleave(x, 2, 2));
    refused(tn_tril(F(3), 0));
    refused(tn_triu(F(3), 0));
    refused(tn_pad(x, TN_DIMS(1), TN_PAD_CONSTANT, 0.0));
    refused(tn_pad(x, TN_DIMS(-2, -2), TN_PAD_CONSTANT, 0.0));
    refused(tn_pad(I(2), TN_DIMS(1, 1), TN_PAD_CONSTANT, NAN));
    refused(tn_pad(x, TN_DIMS(3, 0), TN_PAD_REFLECT, 0.0));
    refused(tn_pad(x, TN_DIMS(4, 0), TN_PAD_CIRCULAR, 0.0));
    refused(tn_pad(x, TN_DIMS(-1, 3), TN_PAD_CIRCULAR, 0.0));
    refused(tn_pad(I(3), TN_DIMS(1, 1, 1, 1), TN_PAD_CONSTANT, 0.0));
    refused(tn_pad(x, TN_DIMS(1, 1), (tn_pad_mode)9, 0.0));
    refused(tn_argsort(x, 2, false));
    refused(tn_topk(x, 1, 2, true, NULL));
    refused(tn_topk(x, 4, 1, true, NULL));
    refused(tn_topk(x, -1, 1, true, NULL));
}

/* ---- linalg/, index/ ------------------------------------------------------------------------- */

TEST(product_errors) {
    refused(tn_matmul(F(2, 3), D(3, 2)));
    refused(tn_matmul(I(2, 3), I(3, 2)));
    refused(tn_matmul(F(), F(3)));
    refused(tn_matmul(F(2, 3), F(2, 3)));
    refused(tn_matmul(F(2, 3), F(2)));
    refused(tn_matmul(F(4, 2, 3), F(5, 3, 2)));
    refused(tn_linear_op(F(2, 3), D(4, 3), NULL));
    refused(tn_linear_op(I(2, 3), I(4, 3), NULL));
    refused(tn_linear_op(F(2, 3), F(3), NULL));
    refused(tn_linear_op(F(2, 3), F(3, 4), NULL));
    refused(tn_linear_op(F(), F(3, 4), NULL));
    refused(tn_linear_op(F(2, 3), NULL, NULL));
    refused(tn_linear_op(F(2, 3), F(4, 3), F(3)));
    refused(tn_linear_op(F(2, 3), F(4, 3), F(4, 1)));
    tn_tensor *bytes = tn_zeros(TN_DIMS(4, 3), TN_I8);
    refused(tn_linear_q8(F(2, 3), F(4, 3), F(4), NULL));
    refused(tn_linear_q8(F(2, 3), bytes, F(4), D(4)));
    refused(tn_linear_q8(I(2, 3), bytes, F(4), NULL));
    refused(tn_linear_q8(F(2, 3), bytes, I(4), NULL));
    refused(tn_linear_q8(F(2, 4), bytes, F(4), NULL));
    refused(tn_linear_q8(F(2, 3), bytes, F(3), NULL));
    refused(tn_linear_q8(F(2, 3), bytes, F(4), F(4, 1)));
    const tn_op *cat = tn_op_named("linear_cat");
    tn_tensor *in[8] = {F(2, 3), F(4, 3), D(4, 3)};
    refused(tn_apply(cat, NULL, in, 8));
    in[2] = bytes;
    refused(tn_apply(cat, NULL, in, 8));
    in[5] = F(3);
    refused(tn_apply(cat, NULL, in, 8));
    in[5] = F(4);
    in[7] = F(2, 7);
    refused(tn_apply(cat, NULL, in, 8));
    in[1] = F(3, 4);
    refused(tn_apply(cat, NULL, in, 8));
    refused(tn_silu_mul(F(2, 3), D(2, 3)));
    refused(tn_silu_mul(I(2), I(2)));
    refused(tn_silu_mul(F(2, 3), F(3)));
    refused(tn_linear_gelu(F(2, 3), D(4, 3), NULL));
    refused(tn_linear_gelu(F(2, 3), F(3, 4), NULL));
    refused(tn_linear_gelu(F(2, 3), F(4, 3), F(3)));
    refused(tn_mlp_op(F(2, 3), F(4, 3), NULL, D(2, 4), NULL));
    refused(tn_mlp_op(F(2, 3), F(4, 3), NULL, F(2, 5), NULL));
    refused(tn_mlp_op(F(2, 3), F(4, 3), F(3), F(2, 4), NULL));
    refused(tn_mlp_op(F(2, 3), F(4, 3), NULL, F(2, 4), F(4)));
}

TEST(sums_of_products) {
    tn_tensor *both[] = {F(2, 3), F(4, 3)};
    refused(tn_einsum(NULL, both, 2));
    refused(tn_einsum("ij,jk->ik", both, 2));
    refused(tn_einsum("ij,k->ik", both, 2));
    refused(tn_einsum("ij->i", both, 2));
    refused(tn_einsum("ij,kj->im", both, 2));
    refused(tn_einsum("i1,kj->ik", both, 2));
    refused(tn_einsum("ij,kj", ((tn_tensor *[]){F(2, 3), D(4, 3)}), 2));
    tn_tensor *a = F(5, 3), *b = F(5, 4), *w = F(2, 3, 4);
    refused(tn_bilinear(a, D(5, 4), w, NULL));
    refused(tn_bilinear(I(5, 3), I(5, 4), I(2, 3, 4), NULL));
    refused(tn_bilinear(a, F(6, 4), w, NULL));
    refused(tn_bilinear(a, b, F(2, 4, 3), NULL));
    refused(tn_bilinear(a, b, w, F(3)));
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

TEST(index_errors) {
    refused(tn_index_select(F(2, 3), 2, I(1)));
    refused(tn_index_select(F(2, 3), 0, F(1)));
    refused(tn_index_select(F(2, 3), 0, I(1, 1)));
    refused(tn_gather(F(2, 3), 2, I(2, 3)));
    refused(tn_gather(F(2, 3), 0, F(2, 3)));
    refused(tn_gather(F(2, 3), 0, I(2)));
    refused(tn_gather(F(2, 3), 0, I(2, 4)));
    refused(tn_embedding_op(F(3), I(2)));
    refused(tn_embedding_op(F(3, 2), F(2)));
    refused(tn_embedding_op(F(3, 2), I(1, 1, 1, 1, 1, 1, 1, 1)));
    rows_args rows = {0, 4}, off = {2, 4};
    refused(apply_op("scatter_rows", &off, F(2, 3), I(2)));
    refused(apply_op("scatter_rows", &rows, I(2, 3), I(2)));
    refused(apply_op("scatter_rows", &rows, F(2, 3), I(3)));
    refused(apply_op("scatter_rows", &rows, F(2, 3), tn_full(TN_DIMS(2), 4, TN_I64)));
    add_args add = {0, TN_DIMS(4, 3)}, small = {0, TN_DIMS(4, 2)};
    refused(apply_op("scatter_add", &add, I(2, 3), I(2, 3)));
    refused(apply_op("scatter_add", &add, F(2, 3), I(2)));
    refused(apply_op("scatter_add", &small, F(2, 3), I(2, 3)));
    place_args outside = {0, 3, 1, 4}, nowhere = {2, 0, 1, 4};
    refused(apply_op("place", &outside, F(2, 3), NULL));
    refused(apply_op("place", &nowhere, F(2, 3), NULL));
    tn__cumulative_args along = {1, false}, beyond = {2, false};
    refused(apply_op("linear_scan", &along, I(2, 3), I(2, 3)));
    refused(apply_op("linear_scan", &along, F(2, 3), D(2, 3)));
    refused(apply_op("linear_scan", &along, F(2, 3), F(3, 2)));
    refused(apply_op("linear_scan", &beyond, F(2, 3), F(2, 3)));
    const tn_op *put = tn_op_named("put_rows");
    refused(tn_apply3(put, NULL, F(4, 3), F(2), F(2, 3)));
    refused(tn_apply3(put, NULL, F(4, 3), I(2), D(2, 3)));
    refused(tn_apply3(put, NULL, F(4, 3), I(2), F(3, 3)));
    refused(tn_apply3(put, NULL, F(4, 3), tn_full(TN_DIMS(2), 4, TN_I64), F(2, 3)));
    /* the rest of it depends on the machine */
    assert_inert(tn_to(F(2, 3), tn_cuda(99)), TN_EDEVICE, "to: there is no device cuda:99");
    note_operation("to:");
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* These take any tensor and have no other arguments that could be wrong. */
static bool takes_anything(const char *name) {
    static const char *const all[] = {"identity", "copy", "cast", "isnan", "isinf", "isfinite"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!strcmp(name, all[i])) { return true; }
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

TEST(every_operation_refuses_something) {
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
        assert_inert(tn_apply(op, args, none, n), TN_EVALUE, message);
        none[0] = tn_inert(); /* whose error is cleared: there is no second one */
        assert_true(tn_is_inert(tn_apply(op, args, none, n)));
        assert_int_equal(tn_error(), TN_OK);
        if (!refuses) { list_failure(missing, sizeof missing, " %s", op->name); }
    }
    if (missing[0]) { fail_msg("no test here shows what these refuse:%s", missing); }
}

/* An operation whose samples all have the same number of inputs names each of them and no more; one
 * that takes any number of tensors names none. */
static struct { int fewest, most; } given;

static void note_inputs(tn_op_samples *s, const tn_sample *sample) {
    given.fewest = sample->inputs < given.fewest ? sample->inputs : given.fewest;
    given.most = sample->inputs > given.most ? sample->inputs : given.most;
}

TEST(every_input_has_a_name) {
    char wrong[4096] = "";
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        given.fewest = TN_OP_INPUTS;
        given.most = 0;
        tn_op_list_samples(op, &(tn_op_samples){.add = note_inputs});
        int names = 0;
        while (names < TN_OP_INPUTS && op->inputs[names]) {
            names++;
        }
        if (names != (given.fewest == given.most ? given.most : 0)) {
            list_failure(wrong, sizeof wrong, "\n%s names %d inputs but its samples have %d to %d",
                         op->name, names, given.fewest, given.most);
        }
    }
    if (wrong[0]) { fail_msg("inputs that are absent are TN_SPEC_ABSENT in samples:%s", wrong); }
    assert_string_equal(tn_op_input_name(tn_op_named("cross_entropy"), 1).text, "labels");
    assert_string_equal(tn_op_input_name(tn_op_named("cross_entropy"), 2).text, "input 2");
    assert_string_equal(tn_op_input_name(tn_op_named("cat"), 100).text, "input 100");
    assert_string_equal(tn_op_input_name(NULL, -1).text, "input -1");
}
