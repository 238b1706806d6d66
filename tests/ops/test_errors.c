/* What every operation refuses: a wrong dtype, shapes that do not fit, arguments out of range. The
 * message names the operation and both sides. The last test walks the registry: an operation that
 * nothing above was refused by fails.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

#define F(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_F32)
#define D(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_F64)
#define I(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_I64)
#define B(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_BOOL)

static bool seen[256]; /* by place in the registry */

static void note(const char *name, size_t length) {
    for (int i = 0; i < tn_op_count(); i++) {
        const char *known = tn_op_at(i)->name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) {
            seen[i] = true;
        }
    }
}

/* y is inert, and the error is this one. `message` begins with the operation's name and a colon. */
static void refused(tn_tensor *y, tn_status status, const char *message) {
    if (!tn_is_inert(y) || tn_error() != status || !strstr(tn_error_message(), message)) {
        fail_msg("%s, not %s: %s", message, tn_status_name(tn_error()), tn_error_message());
    }
    note(message, strcspn(message, ":"));
    tn_error_clear();
}

/* The same, with a message in which %s stands for the operation's name. */
static void refused_by(tn_tensor *y, const char *name, tn_status status, const char *text) {
    char message[256];
    snprintf(message, sizeof message, "%s: %s", name, text);
    refused(y, status, message);
}

/* ---- elementwise/ ---------------------------------------------------------------------------- */

typedef struct pair {
    const char *name;
    tn_tensor *(*f)(tn_tensor *a, tn_tensor *b);
    char takes; /* n: numbers, f: floating point, a: anything */
} pair;

static void two_inputs(void **state) {
    (void)state;
    TN_SCOPE;
    static const pair all[] = {
        {"add", tn_add, 'n'},         {"sub", tn_sub, 'n'},         {"mul", tn_mul, 'n'},
        {"maximum", tn_maximum, 'n'}, {"minimum", tn_minimum, 'n'}, {"div", tn_div, 'f'},
        {"pow", tn_pow, 'f'},         {"eq", tn_eq, 'a'},           {"ne", tn_ne, 'a'},
        {"lt", tn_lt, 'a'},           {"le", tn_le, 'a'},           {"gt", tn_gt, 'a'},
        {"ge", tn_ge, 'a'},
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

static void one_input(void **state) {
    (void)state;
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

static void constants(void **state) {
    (void)state;
    TN_SCOPE;
    refused(tn_add_scalar(B(2), 1.0), TN_EDTYPE, "add_scalar: x is bool");
    refused(tn_mul_scalar(B(2), 1.0), TN_EDTYPE, "mul_scalar: x is bool");
    refused(tn_sub_scalar(B(2), 1.0), TN_EDTYPE, "sub_scalar: x is bool");
    refused(tn_rsub_scalar(B(2), 1.0), TN_EDTYPE, "rsub_scalar: x is bool");
    refused(tn_add_scalar(I(2), 0.5), TN_EVALUE, "add_scalar: x is i64 but k is 0.5");
    refused(tn_mul_scalar(I(2), NAN), TN_EVALUE, "mul_scalar: x is i64 but k is");
    refused(tn_rsub_scalar(I(2), 1e30), TN_EVALUE, "rsub_scalar: x is i64 but k is 1e+30");
    refused(tn_sub_scalar(I(2), 0.5), TN_EVALUE, "sub_scalar: x is i64 but k is 0.5");
    refused(tn_div_scalar(I(2), 1.0), TN_EDTYPE, "div_scalar: x is i64");
    refused(tn_rdiv_scalar(I(2), 1.0), TN_EDTYPE, "rdiv_scalar: x is i64");
    refused(tn_pow_scalar(I(2), 2.0), TN_EDTYPE, "pow_scalar: x is i64");
    refused(tn_clamp(B(2), 0.0, 1.0), TN_EDTYPE, "clamp: x is bool");
    refused(tn_clamp(F(2), NAN, 1.0), TN_EVALUE, "clamp: low is nan and high is 1");
    refused(tn_clamp(F(2), 0.0, NAN), TN_EVALUE, "clamp: low is 0 and high is nan");
}

static void conditions(void **state) {
    (void)state;
    TN_SCOPE;
    refused(tn_where(F(2), F(2), F(2)), TN_EDTYPE, "where: condition is f32 (bool is needed)");
    refused(tn_where(B(2), F(2), D(2)), TN_EDTYPE, "where: a is f32 but b is f64");
    refused(tn_where(B(2), F(2), F(3)), TN_ESHAPE,
            "where: condition is [2], a is [2] and b is [3]");
    refused(tn_where(B(3), F(2), F(2)), TN_ESHAPE,
            "where: condition is [3], a is [2] and b is [2]");
    refused(tn_masked_fill(F(2), F(2), 0.0), TN_EDTYPE, "masked_fill: mask is f32");
    refused(tn_masked_fill(F(2, 3), B(2), 0.0), TN_ESHAPE,
            "masked_fill: x is [2, 3] but mask is [2]");
    refused(tn_masked_fill(F(3), B(2, 3), 0.0), TN_ESHAPE,
            "masked_fill: x is [3] but mask is [2, 3]");
    refused(tn_masked_fill(I(2), B(2), NAN), TN_EVALUE, "masked_fill: nan is not a value of x's");
}

/* ---- reduce/ --------------------------------------------------------------------------------- */

static tn_tensor *var(tn_tensor *x, tn_dims dims, bool keepdim) {
    return tn_var(x, dims, 1, keepdim);
}

static void reductions(void **state) {
    (void)state;
    TN_SCOPE;
    static const struct {
        const char *name;
        tn_tensor *(*f)(tn_tensor *x, tn_dims dims, bool keepdim);
        bool floats;
    } all[] = {{"sum", tn_sum, false}, {"mean", tn_mean, true}, {"max", tn_max, false},
               {"min", tn_min, false}, {"var", var, true},      {"logsumexp", tn_logsumexp, true}};
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
        if (all[i].floats) {
            refused_by(all[i].f(I(2), TN_DIMS(), false), name, TN_EDTYPE, "x is i64");
        } else {
            refused_by(all[i].f(B(2), TN_DIMS(), false), name, TN_EDTYPE, "x is bool");
        }
    }
    refused(tn_max(F(2, 0), TN_DIMS(1), false), TN_ESHAPE, "max: x is [2, 0]");
    refused(tn_min(F(2, 0), TN_DIMS(1), false), TN_ESHAPE, "min: x is [2, 0]");
    refused(tn_argmax(F(2, 0), 1, false), TN_ESHAPE, "argmax: x is [2, 0]");
    refused(tn_argmax(F(2, 3), 2, false), TN_EINDEX, "argmax: dimension 2 of a tensor with 2");
    refused(tn_argmax(B(2), 0, false), TN_EDTYPE, "argmax: x is bool");
    refused(tn_any(F(2)), TN_EDTYPE, "any: x is f32 (bool is needed)");
    refused(tn_all(I(2)), TN_EDTYPE, "all: x is i64 (bool is needed)");
    refused(tn_sum_to(I(2, 3), TN_DIMS(3)), TN_EDTYPE, "sum_to: x is i64");
    refused(tn_sum_to(F(2, 3), TN_DIMS(2)), TN_ESHAPE,
            "sum_to: x is [2, 3] but the sum shall be [2]");
    refused(tn_sum_to(F(2, 3), TN_DIMS(4, 2, 3)), TN_ESHAPE,
            "sum_to: x is [2, 3] but the sum shall be [4, 2, 3]");
    refused(tn_sum_to(F(1, 3), TN_DIMS(2, 3)), TN_ESHAPE,
            "sum_to: x is [1, 3] but the sum shall be [2, 3]");
}

/* ---- shape/: more in test_views.c ------------------------------------------------------------ */

static void shapes(void **state) {
    (void)state;
    TN_SCOPE;
    refused(tn_reshape(F(2, 3), TN_DIMS(4)), TN_ESHAPE, "reshape: x is [2, 3] but [4] is wanted");
    refused(tn_permute(F(2, 3), TN_DIMS(0, 0)), TN_ESHAPE,
            "permute: x is [2, 3] but the order is [0, 0]");
    refused(tn_expand(F(2, 3), TN_DIMS(4, 3)), TN_ESHAPE,
            "expand: x is [2, 3] but [4, 3] is wanted");
    refused(tn_narrow(F(2, 3), 1, 2, 2), TN_EINDEX, "slice: x is [2, 3] but start 2, length 2");
    refused(tn_narrow(F(2, 3), 2, 0, 1), TN_EINDEX, "slice: dimension 2 of a tensor with 2");
    refused(tn_slice(F(2, 3), 2, 0, 1, 1), TN_EINDEX, "slice: dimension 2 of a tensor with 2");
    refused(tn_select(F(2, 3), 1, 3), TN_EINDEX, "select: x is [2, 3] but position 3");
    refused(tn_select(F(2, 3), 2, 0), TN_EINDEX, "select: dimension 2 of a tensor with 2");
    refused(tn_cat((tn_tensor *[]){F(2, 2), F(3, 3)}, 2, 0), TN_ESHAPE,
            "cat: tensor 1 is [3, 3] but tensor 0 is [2, 2]");
    refused(tn_cat((tn_tensor *[]){F(2), D(2)}, 2, 0), TN_EDTYPE,
            "cat: tensor 1 is f64 but tensor 0 is f32");
    refused(tn_stack((tn_tensor *[]){F(2), F(3)}, 2, 0), TN_ESHAPE,
            "stack: tensor 1 is [3] but tensor 0 is [2]");
    refused(tn_stack((tn_tensor *[]){F(2), D(2)}, 2, 0), TN_EDTYPE,
            "stack: tensor 1 is f64 but tensor 0 is f32");
    refused(tn_stack((tn_tensor *[]){F(1, 1, 1, 1, 1, 1, 1, 1)}, 1, 0), TN_ESHAPE, "stack: ");
}

/* ---- linalg/, index/ ------------------------------------------------------------------------- */

static void products(void **state) {
    (void)state;
    TN_SCOPE;
    refused(tn_matmul(F(2, 3), D(3, 2)), TN_EDTYPE, "matmul: a is f32 but b is f64");
    refused(tn_matmul(I(2, 3), I(3, 2)), TN_EDTYPE, "matmul: the dtype of a is i64");
    refused(tn_matmul(F(), F(3)), TN_ESHAPE, "matmul: a is [] and b is [3]");
    refused(tn_matmul(F(2, 3), F(2, 3)), TN_ESHAPE,
            "matmul: a is [2, 3] but b is [2, 3] (a's last dimension must equal b's last but one)");
    refused(tn_matmul(F(2, 3), F(2)), TN_ESHAPE,
            "matmul: a is [2, 3] but b is [2] (a's last dimension must equal b's only one)");
    refused(tn_matmul(F(4, 2, 3), F(5, 3, 2)), TN_ESHAPE,
            "matmul: a is [4, 2, 3] but b is [5, 3, 2]");
    refused(tn_linear_op(F(2, 3), D(4, 3), NULL), TN_EDTYPE, "linear: x is f32 but weight is f64");
    refused(tn_linear_op(I(2, 3), I(4, 3), NULL), TN_EDTYPE, "linear: the dtype of x is i64");
    refused(tn_linear_op(F(2, 3), F(3), NULL), TN_ESHAPE, "linear: weight is [3]");
    refused(tn_linear_op(F(2, 3), F(3, 4), NULL), TN_ESHAPE,
            "linear: x is [2, 3] but weight is [3, 4]");
    refused(tn_linear_op(F(), F(3, 4), NULL), TN_ESHAPE, "linear: x is [] but weight is [3, 4]");
    refused(tn_linear_op(F(2, 3), F(4, 3), F(3)), TN_ESHAPE,
            "linear: weight is [4, 3] but bias is [3]");
    refused(tn_linear_op(F(2, 3), F(4, 3), F(4, 1)), TN_ESHAPE,
            "linear: weight is [4, 3] but bias is [4, 1]");
    tn_tensor *bytes = tn_zeros(TN_DIMS(4, 3), TN_I8);
    refused(tn_linear_q8(F(2, 3), F(4, 3), F(4), NULL), TN_EDTYPE, "linear_q8: weight is f32");
    refused(tn_linear_q8(F(2, 3), bytes, F(4), D(4)), TN_EDTYPE, "x is f32 and bias f64");
    refused(tn_linear_q8(I(2, 3), bytes, F(4), NULL), TN_EDTYPE, "the dtype of x is i64");
    refused(tn_linear_q8(F(2, 3), bytes, I(4), NULL), TN_EDTYPE, "the dtype of scale is i64");
    refused(tn_linear_q8(F(2, 4), bytes, F(4), NULL), TN_ESHAPE,
            "linear_q8: x is [2, 4] but weight is [4, 3]");
    refused(tn_linear_q8(F(2, 3), bytes, F(3), NULL), TN_ESHAPE, "but scale is [3]");
    refused(tn_linear_q8(F(2, 3), bytes, F(4), F(4, 1)), TN_ESHAPE, "but bias is [4, 1]");
    refused(tn_linear_gelu(F(2, 3), D(4, 3), NULL), TN_EDTYPE,
            "linear_gelu: x is f32 but weight is f64");
    refused(tn_linear_gelu(F(2, 3), F(3, 4), NULL), TN_ESHAPE,
            "linear_gelu: x is [2, 3] but weight is [3, 4]");
    refused(tn_linear_gelu(F(2, 3), F(4, 3), F(3)), TN_ESHAPE,
            "linear_gelu: weight is [4, 3] but bias is [3]");
}

/* The arguments of the private operations, as their files have them. */
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

static tn_tensor *apply(const char *name, const void *args, tn_tensor *a, tn_tensor *b) {
    return tn_apply(tn_op_named(name), args, (tn_tensor *[]){a, b}, b ? 2 : 1);
}

static void indices(void **state) {
    (void)state;
    TN_SCOPE;
    refused(tn_index_select(F(2, 3), 2, I(1)), TN_EINDEX, "index_select: dimension 2 of a tensor");
    refused(tn_index_select(F(2, 3), 0, F(1)), TN_EDTYPE,
            "index_select: the dtype of index is f32");
    refused(tn_index_select(F(2, 3), 0, I(1, 1)), TN_ESHAPE, "index_select: index is [1, 1]");
    refused(tn_gather(F(2, 3), 2, I(2, 3)), TN_EINDEX, "gather: dimension 2 of a tensor");
    refused(tn_gather(F(2, 3), 0, F(2, 3)), TN_EDTYPE, "gather: the dtype of index is f32");
    refused(tn_gather(F(2, 3), 0, I(2)), TN_ESHAPE, "gather: x is [2, 3] but index is [2]");
    refused(tn_gather(F(2, 3), 0, I(2, 4)), TN_ESHAPE,
            "gather: x is [2, 3] but index is [2, 4] (index is larger in dimension 1)");
    refused(tn_embedding_op(F(3), I(2)), TN_ESHAPE, "embedding: weight is [3]");
    refused(tn_embedding_op(F(3, 2), F(2)), TN_EDTYPE, "embedding: the dtype of index is f32");
    refused(tn_embedding_op(F(3, 2), I(1, 1, 1, 1, 1, 1, 1, 1)), TN_ESHAPE,
            "embedding: index is [1, 1, 1, 1, 1, 1, 1, 1]");
    rows_args rows = {0, 4}, off = {2, 4};
    refused(apply("scatter_rows", &off, F(2, 3), I(2)), TN_EINDEX, "scatter_rows: dimension 2");
    refused(apply("scatter_rows", &rows, I(2, 3), I(2)), TN_EDTYPE,
            "scatter_rows: the dtype of src is i64");
    refused(apply("scatter_rows", &rows, F(2, 3), I(3)), TN_ESHAPE,
            "scatter_rows: src is [2, 3] but index is [3]");
    refused(apply("scatter_rows", &rows, F(2, 3), tn_full(TN_DIMS(2), 4, TN_I64)), TN_EINDEX,
            "scatter_rows: index 4 at position 0 is outside [0, 4)");
    add_args add = {0, TN_DIMS(4, 3)}, small = {0, TN_DIMS(4, 2)};
    refused(apply("scatter_add", &add, I(2, 3), I(2, 3)), TN_EDTYPE,
            "scatter_add: the dtype of src is i64");
    refused(apply("scatter_add", &add, F(2, 3), I(2)), TN_ESHAPE,
            "scatter_add: src is [2, 3] but index is [2]");
    refused(apply("scatter_add", &small, F(2, 3), I(2, 3)), TN_ESHAPE,
            "scatter_add: src is [2, 3] but index is [2, 3]");
    place_args outside = {0, 3, 1, 4}, nowhere = {2, 0, 1, 4};
    refused(apply("place", &outside, F(2, 3), NULL), TN_EINDEX,
            "place: x is [2, 3] but dimension 0 has room for 4");
    refused(apply("place", &nowhere, F(2, 3), NULL), TN_EINDEX, "place: dimension 2 of a tensor");
    refused(tn_to(F(2, 3), tn_cuda(99)), TN_EDEVICE, "to: there is no device cuda:99");
}

/* ---- nn/, loss/ ------------------------------------------------------------------------------ */

static void layers(void **state) {
    (void)state;
    TN_SCOPE;
    refused(tn_softmax(I(2), 0), TN_EDTYPE, "softmax: the dtype of x is i64");
    refused(tn_softmax(F(2), 1), TN_EINDEX, "softmax: dimension 1 of a tensor with 1");
    refused(tn_log_softmax(I(2), 0), TN_EDTYPE, "log_softmax: the dtype of x is i64");
    refused(tn_log_softmax(F(2), -2), TN_EINDEX, "log_softmax: dimension -2 of a tensor with 1");
    refused(tn_layer_norm_op(I(2), NULL, NULL, 1e-5), TN_EDTYPE,
            "layer_norm: the dtype of x is i64");
    refused(tn_layer_norm_op(F(2), D(2), NULL, 1e-5), TN_EDTYPE,
            "layer_norm: x is f32 but weight is f64");
    refused(tn_layer_norm_op(F(), NULL, NULL, 1e-5), TN_ESHAPE, "layer_norm: x is []");
    refused(tn_layer_norm_op(F(2, 3), F(2), NULL, 1e-5), TN_ESHAPE,
            "layer_norm: x is [2, 3] but weight is [2]");
    refused(tn_layer_norm_op(F(2, 3), NULL, F(1, 3), 1e-5), TN_ESHAPE,
            "layer_norm: x is [2, 3] but bias is [1, 3]");
    refused(tn_add_layer_norm(F(2, 3), F(3), NULL, NULL, 1e-5, NULL), TN_ESHAPE,
            "add_layer_norm: a is [2, 3] and b is [3]");
    refused(tn_add_layer_norm(F(2, 3), F(2, 3), F(2), NULL, 1e-5, NULL), TN_ESHAPE,
            "add_layer_norm: a is [2, 3] but weight is [2]");
    refused(tn_rms_norm_op(I(2), NULL, 1e-5), TN_EDTYPE, "rms_norm: the dtype of x is i64");
    refused(tn_rms_norm_op(F(2), D(2), 1e-5), TN_EDTYPE, "rms_norm: x is f32 but weight is f64");
    refused(tn_rms_norm_op(F(), NULL, 1e-5), TN_ESHAPE, "rms_norm: x is []");
    refused(tn_rms_norm_op(F(2, 3), F(2), 1e-5), TN_ESHAPE,
            "rms_norm: x is [2, 3] but weight is [2]");
    refused(tn_dropout_op(F(2), 1.5), TN_EVALUE, "dropout: p is 1.5");
    refused(tn_dropout_op(F(2), NAN), TN_EVALUE, "dropout: p is nan");
    refused(tn_dropout_op(I(2), 0.5), TN_EDTYPE, "dropout: x is i64");
}

static void rotary(void **state) {
    (void)state;
    TN_SCOPE;
    tn_rotary_options o = tn_rotary_defaults();
    refused(tn_rotary(I(1, 1, 3, 2), I(3), o), TN_EDTYPE, "rotary: the dtype of x is i64");
    refused(tn_rotary(F(1, 1, 3, 2), F(3), o), TN_EDTYPE, "rotary: the dtype of positions is f32");
    refused(tn_rotary(F(1, 3, 2), I(3), o), TN_ESHAPE, "rotary: x is [1, 3, 2] but needs 4");
    refused(tn_rotary(F(1, 1, 3, 5), I(3), o), TN_ESHAPE, "rotary: x is [1, 1, 3, 5]");
    refused(tn_rotary(F(2, 1, 3, 2), I(4), o), TN_ESHAPE,
            "positions are [4] (they must be [3] or [2, 3])");
    refused(tn_rotary(F(2, 1, 3, 2), I(3, 3), o), TN_ESHAPE, "positions are [3, 3]");
    refused(tn_rotary(F(2, 1, 3, 2), I(), o), TN_ESHAPE, "positions are []");
    o.theta = 0.0;
    refused(tn_rotary(F(1, 1, 3, 2), I(3), o), TN_EVALUE, "rotary: theta is 0 and factor 1");
    o = tn_rotary_defaults();
    o.factor = 2.0;
    o.high_freq_factor = 1.0;
    refused(tn_rotary(F(1, 1, 3, 2), I(3), o), TN_EVALUE, "high_freq_factor 1");
}

static void attention(void **state) {
    (void)state;
    TN_SCOPE;
    tn_attention_options o = tn_attention_defaults();
    tn_tensor *q = F(1, 4, 3, 2), *k = F(1, 2, 5, 2);
    refused(tn_attention(I(1, 1, 1, 1), k, k, NULL, o), TN_EDTYPE,
            "attention: the dtype of q is i64");
    refused(tn_attention(q, D(1, 2, 5, 2), k, NULL, o), TN_EDTYPE,
            "attention: q is f32 but k is f64");
    refused(tn_attention(q, k, F(2, 5, 2), NULL, o), TN_ESHAPE, "attention: v is [2, 5, 2]");
    refused(tn_attention(q, k, F(1, 2, 4, 2), NULL, o), TN_ESHAPE,
            "attention: k is [1, 2, 5, 2] but v is [1, 2, 4, 2]");
    refused(tn_attention(q, F(2, 2, 5, 2), F(2, 2, 5, 2), NULL, o), TN_ESHAPE,
            "attention: q is [1, 4, 3, 2] but k is [2, 2, 5, 2]");
    refused(tn_attention(q, F(1, 2, 5, 3), F(1, 2, 5, 3), NULL, o), TN_ESHAPE,
            "attention: q is [1, 4, 3, 2] but k is [1, 2, 5, 3]");
    refused(tn_attention(q, F(1, 3, 5, 2), F(1, 3, 5, 2), NULL, o), TN_ESHAPE,
            "attention: q is [1, 4, 3, 2] but k is [1, 3, 5, 2]");
    refused(tn_attention(q, k, k, F(3, 5), o), TN_EDTYPE, "attention: mask is f32");
    refused(tn_attention(q, k, k, B(3, 4), o), TN_ESHAPE,
            "attention: mask is [3, 4] but must broadcast to (batch, heads, queries, keys) = [1, "
            "4, 3, 5]");
    refused(tn_attention_qkv(I(1, 2, 6), 1, NULL, o), TN_EDTYPE,
            "attention_qkv: the dtype of qkv is i64");
    refused(tn_attention_qkv(F(2, 6), 1, NULL, o), TN_ESHAPE, "attention_qkv: qkv is [2, 6]");
    refused(tn_attention_qkv(F(1, 2, 6), 4, NULL, o), TN_ESHAPE,
            "attention_qkv: qkv is [1, 2, 6] but heads is 4");
    refused(tn_attention_qkv(F(1, 2, 6), 0, NULL, o), TN_ESHAPE,
            "attention_qkv: qkv is [1, 2, 6] but heads is 0");
    refused(tn_attention_qkv(F(1, 2, 6), 2, F(2, 2), o), TN_EDTYPE, "attention_qkv: mask is f32");
}

static void convolutions(void **state) {
    (void)state;
    TN_SCOPE;
    tn_conv_options o = tn_conv_defaults();
    refused(tn_conv2d_op(I(1, 1, 3, 3), I(1, 1, 2, 2), NULL, o), TN_EDTYPE,
            "conv: the dtype of x is i64");
    refused(tn_conv2d_op(F(1, 1, 3, 3), D(1, 1, 2, 2), NULL, o), TN_EDTYPE,
            "conv: x is f32 but weight is f64");
    refused(tn_conv1d_op(F(1, 1, 3, 3), F(1, 1, 2), NULL, o), TN_ESHAPE,
            "conv: x is [1, 1, 3, 3] but needs 3 dimensions: batch, channels and 1 of the kernel");
    refused(tn_conv3d_op(F(1, 1, 3, 3, 3), F(1, 1, 2, 2), NULL, o), TN_ESHAPE,
            "conv: weight is [1, 1, 2, 2] but needs 5 dimensions");
    refused(tn_conv2d_op(F(2, 4, 8, 8), F(6, 3, 3, 3), NULL, o), TN_ESHAPE,
            "conv: x is [2, 4, 8, 8] but weight is [6, 3, 3, 3] with 1 groups (x needs 3 channels");
    refused(tn_conv2d_op(F(1, 1, 2, 5), F(1, 1, 3, 3), NULL, o), TN_ESHAPE,
            "conv: weight is [1, 1, 3, 3], which with dilation 1 spans 3 elements, but x is "
            "[1, 1, 2, 5], which with padding 0 has 2 there (dimension 2)");
    refused(tn_conv2d_op(F(1, 1, 2, 5), F(1, 1, 0, 3), NULL, o), TN_ESHAPE, "spans 0 elements");
    refused(tn_conv2d_op(F(1, 1, 3, 3), F(4, 1, 2, 2), F(3), o), TN_ESHAPE,
            "conv: weight is [4, 1, 2, 2], which makes 4 channels, but bias is [3]");
    refused(tn_conv_transpose2d_op(F(2, 4, 8, 8), F(3, 6, 3, 3), NULL, o), TN_ESHAPE,
            "conv_transpose: x is [2, 4, 8, 8] but weight is [3, 6, 3, 3] with 1 groups");
    refused(tn_conv_transpose1d_op(F(2, 4), F(3, 6), NULL, o), TN_ESHAPE,
            "conv_transpose: weight is [3, 6] but needs 3 dimensions: channels in");
    refused(tn_conv_transpose1d_op(F(1, 1, 2), F(1, 1, 2), NULL, tn_conv_with(1, 2)), TN_ESHAPE,
            "the result would have size -1 in dimension 2");
    o.groups = 2;
    refused(tn_conv2d_op(F(2, 4, 8, 8), F(3, 2, 3, 3), NULL, o), TN_ESHAPE, "with 2 groups");
    o.groups = 0;
    refused(tn_conv2d_op(F(2, 4, 8, 8), F(3, 2, 3, 3), NULL, o), TN_EVALUE,
            "conv2d: groups is 0 (it must be at least 1)");
    refused(tn_conv3d_op(F(), F(), NULL, tn_conv_with(0, 0)), TN_EVALUE, "conv3d: stride is 0");
    refused(tn_conv1d_op(F(), F(), NULL, tn_conv_with(1, -1)), TN_EVALUE, "conv1d: padding is -1");
    o = tn_conv_defaults();
    o.dilation = TN_DIMS(1, 1);
    refused(tn_conv1d_op(F(), F(), NULL, o), TN_EVALUE,
            "conv1d: dilation has 2 numbers (1 or 1 are needed)");
    o = tn_conv_with(2, 0);
    o.output_padding = TN_DIMS(2);
    refused(tn_conv_transpose1d_op(F(), F(), NULL, o), TN_EVALUE,
            "conv_transpose1d: output_padding is 2 but stride is 2 and dilation 1");
    o.same = true;
    refused(tn_conv1d_op(F(1, 1, 4), F(1, 1, 3), NULL, o), TN_EVALUE,
            "conv1d: padding is to keep x's sizes, but stride is 2");
    struct { /* the arguments of conv_weight_grad, which has no function */
        tn_conv_args kernel;
        int spatial;
        tn_dims size;
    } call = {{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}, 1, TN_DIMS(2)};
    const tn_op *gradient = tn_op_named("conv_weight_grad");
    assert_int_equal(gradient->args_size, sizeof call);
    refused(tn_apply2(gradient, &call, F(1, 2, 3), F(2, 2, 4)), TN_ESHAPE,
            "conv_weight_grad: dy is [1, 2, 3] but x is [2, 2, 4]");
}

static void losses(void **state) {
    (void)state;
    TN_SCOPE;
    refused(tn_mse(F(2), D(2), TN_MEAN), TN_EDTYPE, "mse: x is f32 but target is f64");
    refused(tn_mse(I(2), I(2), TN_MEAN), TN_EDTYPE, "mse: the dtype of x is i64");
    refused(tn_mse(F(2), F(2, 1), TN_MEAN), TN_ESHAPE, "mse: x is [2] but target is [2, 1]");
    refused(tn_mse(F(2), F(2), (tn_reduction)9), TN_EVALUE, "mse: reduction is 9");
    refused(tn_mse(F(2), F(2), TN_MAX), TN_EVALUE, "(TN_MEAN, TN_SUM or TN_NONE)");
    refused(tn_cross_entropy(F(2, 3), I(2), TN_PRODUCT), TN_EVALUE, "(TN_MEAN, TN_SUM or TN_NONE)");
    refused(tn_cross_entropy(I(2, 3), I(2), TN_MEAN), TN_EDTYPE,
            "cross_entropy: the dtype of logits is i64");
    refused(tn_cross_entropy(F(2, 3), F(2), TN_MEAN), TN_EDTYPE,
            "cross_entropy: the dtype of labels is f32");
    refused(tn_cross_entropy(F(2, 3), I(3), TN_MEAN), TN_ESHAPE,
            "cross_entropy: logits are [2, 3] but labels are [3]");
    refused(tn_cross_entropy(F(2, 3), I(2), (tn_reduction)9), TN_EVALUE,
            "cross_entropy: reduction is 9");
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    o.label_smoothing = 1.5;
    refused(tn_cross_entropy_with(F(2, 3), I(2), o), TN_EVALUE,
            "cross_entropy: label_smoothing is 1.5");
}

static void ctc(void **state) {
    (void)state;
    TN_SCOPE;
    tn_ctc_options o = tn_ctc_defaults();
    tn_tensor *x = F(3, 2, 4), *targets = I(2, 1), *n = I(2);
    refused(tn_ctc(F(3, 2), targets, n, n, o), TN_ESHAPE,
            "ctc: log_probs are [3, 2] but must be (times, batch, classes)");
    refused(tn_ctc(I(3, 2, 4), targets, n, n, o), TN_EDTYPE, "ctc: the dtype of log_probs is i64");
    refused(tn_ctc(x, I(3, 1), n, n, o), TN_ESHAPE,
            "ctc: log_probs are [3, 2, 4] but targets are [3, 1]");
    refused(tn_ctc(x, targets, I(3), n, o), TN_ESHAPE,
            "ctc: log_probs are [3, 2, 4] but input_lengths are [3]");
    tn_tensor *long_ones = tn_full(TN_DIMS(2), 5.0, TN_I64), *ones = tn_ones(TN_DIMS(2), TN_I64);
    refused(tn_ctc(x, targets, long_ones, n, o), TN_EVALUE,
            "ctc: input_lengths[0] is 5 but log_probs are [3, 2, 4] (0 to 3)");
    refused(tn_ctc(x, targets, n, long_ones, o), TN_EVALUE,
            "ctc: target_lengths[0] is 5 but targets are [2, 1] (0 to 1)");
    refused(tn_ctc(x, I(3), ones, ones, o), TN_EVALUE,
            "ctc: target_lengths add up to 2 but targets are [3]");
    o.blank = 4;
    refused(tn_ctc(x, targets, ones, n, o), TN_EVALUE,
            "ctc: blank is 4 but log_probs are [3, 2, 4] (0 to 3)");
    o.blank = 1;
    o.reduction = TN_MAX;
    refused(tn_ctc(x, targets, ones, n, o), TN_EVALUE, "ctc: reduction is");
}

static void recurrent(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = F(2, 1, 2);
    tn_rnn_weights w = {.weight_ih = F(3, 2), .weight_hh = F(3, 3)};
    refused(tn_rnn_op(F(2, 2), NULL, w, NULL, false, false, NULL), TN_ESHAPE,
            "rnn: x is [2, 2] but must be (times, batch, in)");
    refused(tn_rnn_op(I(2, 1, 2), NULL, w, NULL, false, false, NULL), TN_EDTYPE,
            "rnn: the dtype of x is i64");
    refused(tn_rnn_op(x, D(1, 3), w, NULL, false, false, NULL), TN_EDTYPE,
            "rnn: x is f32 but h0 is f64");
    refused(tn_rnn_op(x, F(2, 3), w, NULL, false, false, NULL), TN_ESHAPE,
            "rnn: h0 is [2, 3] but must be [1, 3] (batch, units)");
    refused(tn_gru_op(x, NULL, w, NULL, false, NULL), TN_ESHAPE,
            "gru: weight_hh is [3, 3] but must be (3 units, units)");
    w.weight_hh = F(12, 3);
    refused(tn_lstm_op(x, NULL, NULL, w, NULL, false, NULL, NULL), TN_ESHAPE,
            "lstm: weight_ih is [3, 2] but must be [12, 2]");
    w.weight_ih = F(12, 2);
    refused(tn_lstm_op(x, NULL, F(1, 2), w, NULL, false, NULL, NULL), TN_ESHAPE,
            "lstm: c0 is [1, 2] but must be [1, 3]");
    refused(tn_lstm_op(x, NULL, NULL, w, F(1), false, NULL, NULL), TN_EDTYPE,
            "lstm: the dtype of lengths is f32");
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* These take any tensor and have no other arguments that could be wrong. */
static bool takes_anything(const char *name) {
    return !strcmp(name, "identity") || !strcmp(name, "copy") || !strcmp(name, "cast");
}

static void every_operation_refuses_something(void **state) {
    (void)state;
    TN_SCOPE;
    assert_true(tn_op_count() <= (int)(sizeof seen / sizeof *seen));
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        char message[128];
        snprintf(message, sizeof message, "%s: %s must not be NULL", op->name,
                 tn_op_input_name(op, 0).text);
        bool refuses = seen[i] || takes_anything(op->name);
        refused(tn_apply(op, NULL, (tn_tensor *[]){NULL}, 1), TN_EVALUE, message);
        if (!refuses) {
            fail_msg("%s: nothing here shows what it refuses", op->name);
        }
    }
}

/* An operation whose samples all have the same number of inputs names each of them, and no more;
 * one that takes any number of tensors counts them. */
static struct { int fewest, most; } given;

static void note_inputs(tn_op_samples *s, const tn_sample *sample) {
    (void)s;
    given.fewest = sample->inputs < given.fewest ? sample->inputs : given.fewest;
    given.most = sample->inputs > given.most ? sample->inputs : given.most;
}

static void every_input_has_a_name(void **state) {
    (void)state;
    TN_SCOPE;
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
            fail_msg("%s names %d inputs but its samples have %d to %d", op->name, names,
                     given.fewest, given.most);
        }
    }
    assert_string_equal(tn_op_input_name(tn_op_named("cross_entropy"), 1).text, "labels");
    assert_string_equal(tn_op_input_name(tn_op_named("cross_entropy"), 2).text, "input 2");
    assert_string_equal(tn_op_input_name(tn_op_named("cat"), 100).text, "input 100");
    assert_string_equal(tn_op_input_name(NULL, -1).text, "input -1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_inputs),
        cmocka_unit_test(one_input),
        cmocka_unit_test(constants),
        cmocka_unit_test(conditions),
        cmocka_unit_test(reductions),
        cmocka_unit_test(shapes),
        cmocka_unit_test(products),
        cmocka_unit_test(indices),
        cmocka_unit_test(layers),
        cmocka_unit_test(attention),
        cmocka_unit_test(rotary),
        cmocka_unit_test(ctc),
        cmocka_unit_test(recurrent),
        cmocka_unit_test(convolutions),
        cmocka_unit_test(losses),
        cmocka_unit_test(every_operation_refuses_something),
        cmocka_unit_test(every_input_has_a_name),
    };
    return cmocka_run_group_tests_name("errors", tests, NULL, NULL);
}
