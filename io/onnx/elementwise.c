/* Elementwise operations as ONNX nodes. One that ONNX lacks becomes several nodes. */
#include "io/onnx/graph.h"

#include "tern/ops.h"

#include <math.h>

static tn_dtype dtype_of(const tn_op_call *c) {
    return tn_dtype_of(c->in[0]);
}

/* ---- With a number --------------------------------------------------------------------------- */

static void put_scalar(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), k = tn__onnx_number(g, tn__arg_real(c, "k"), dtype_of(c));
    tn__onnx_give(g, c, 0, TN__NODE(g, type, x, k));
}

/* The constant is the first operand: k - x, k / x. */
static void put_scalar_before(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), k = tn__onnx_number(g, tn__arg_real(c, "k"), dtype_of(c));
    tn__onnx_give(g, c, 0, TN__NODE(g, type, k, x));
}

/* ---- Several for one ------------------------------------------------------------------------- */

static void put_rsqrt(tn__onnx *g, const tn_op_call *c, const char *type) {
    int root = TN__NODE(g, "Sqrt", tn__onnx_in(g, c, 0));
    tn__onnx_give(g, c, 0, TN__NODE(g, type, root));
}

static void put_square(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0);
    tn__onnx_give(g, c, 0, TN__NODE(g, type, x, x));
}

static void put_silu(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), gate = TN__NODE(g, "Sigmoid", x);
    tn__onnx_give(g, c, 0, TN__NODE(g, type, x, gate));
}

/* x (1 + f(…)) / 2 */
static int half_gate(tn__onnx *g, int x, int gate, tn_dtype dtype) {
    int above = TN__NODE(g, "Add", gate, tn__onnx_number(g, 1.0, dtype));
    int half = TN__NODE(g, "Mul", x, tn__onnx_number(g, 0.5, dtype));
    return TN__NODE(g, "Mul", half, above);
}

static void put_gelu(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0);
    int scaled = TN__NODE(g, "Mul", x, tn__onnx_number(g, M_SQRT1_2, dtype_of(c)));
    tn__onnx_give(g, c, 0, half_gate(g, x, TN__NODE(g, type, scaled), dtype_of(c)));
}

/* tanh of sqrt(2 / pi) (x + 0.044715 x^3) */
static void put_gelu_tanh(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn_dtype dtype = dtype_of(c);
    int x = tn__onnx_in(g, c, 0), square = TN__NODE(g, "Mul", x, x);
    int bent = TN__NODE(g, "Mul", square, tn__onnx_number(g, 0.044715, dtype));
    int slope = TN__NODE(g, "Add", bent, tn__onnx_number(g, 1.0, dtype));
    int scaled = TN__NODE(g, "Mul", x, tn__onnx_number(g, M_2_SQRTPI * M_SQRT1_2, dtype));
    int gate = TN__NODE(g, type, TN__NODE(g, "Mul", scaled, slope));
    tn__onnx_give(g, c, 0, half_gate(g, x, gate, dtype));
}

static void put_leaky_relu(tn__onnx *g, const tn_op_call *c, const char *type) {
    int y = TN__NODE(g, type, tn__onnx_in(g, c, 0));
    tn__onnx_float(g, "alpha", tn__arg_real(c, "k"));
    tn__onnx_give(g, c, 0, y);
}

static void put_elu(tn__onnx *g, const tn_op_call *c, const char *type) {
    double scale = tn__arg_real(c, "scale");
    int y = TN__NODE(g, type, tn__onnx_in(g, c, 0));
    tn__onnx_float(g, "alpha", tn__arg_real(c, "alpha"));
    if (scale != 1.0) { y = TN__NODE(g, "Mul", y, tn__onnx_number(g, scale, dtype_of(c))); }
    tn__onnx_give(g, c, 0, y);
}

/* softplus(beta x) / beta, x itself where beta x > threshold. */
static void put_softplus(tn__onnx *g, const tn_op_call *c, const char *type) {
    double beta = tn__arg_real(c, "beta");
    tn_dtype dtype = dtype_of(c);
    int x = tn__onnx_in(g, c, 0), times = x;
    if (beta != 1.0) { times = TN__NODE(g, "Mul", x, tn__onnx_number(g, beta, dtype)); }
    int y = TN__NODE(g, type, times);
    if (beta != 1.0) { y = TN__NODE(g, "Div", y, tn__onnx_number(g, beta, dtype)); }
    int limit = tn__onnx_number(g, tn__arg_real(c, "threshold"), dtype);
    int beyond = TN__NODE(g, "Greater", times, limit);
    tn__onnx_give(g, c, 0, TN__NODE(g, "Where", beyond, x, y));
}

static void put_clamp(tn__onnx *g, const tn_op_call *c, const char *type) {
    double low = tn__arg_real(c, "low"), high = tn__arg_real(c, "high");
    int x = tn__onnx_in(g, c, 0);
    int least = low == -INFINITY ? 0 : tn__onnx_number(g, low, dtype_of(c));
    int most = high == INFINITY ? 0 : tn__onnx_number(g, high, dtype_of(c));
    tn__onnx_give(g, c, 0, TN__NODE(g, type, x, least, most));
}

/* A fractional bound for integers, or one out of range, cannot be expressed. */
static bool clamp_fits(const tn_op_call *c) {
    double low = tn__arg_real(c, "low"), high = tn__arg_real(c, "high");
    return tn_dtype_is_float(dtype_of(c)) ||
           ((low == -INFINITY || (low == floor(low) && fabs(low) < 0x1p31)) &&
            (high == INFINITY || (high == floor(high) && fabs(high) < 0x1p31)));
}

static void put_not(tn__onnx *g, const tn_op_call *c, const char *type) {
    int a = tn__onnx_in(g, c, 0), b = tn__onnx_in(g, c, 1);
    tn__onnx_give(g, c, 0, TN__NODE(g, "Not", TN__NODE(g, type, a, b)));
}

static bool is_float(const tn_op_call *c) {
    return tn_dtype_is_float(dtype_of(c));
}

/* onnxruntime has no Where of bools: condition and a, or not condition and b. */
static void put_where(tn__onnx *g, const tn_op_call *c, const char *type) {
    int condition = tn__onnx_in(g, c, 0), a = tn__onnx_in(g, c, 1), b = tn__onnx_in(g, c, 2), y;
    if (tn_dtype_of(c->out[0]) == TN_BOOL) {
        int first = TN__NODE(g, "And", condition, a);
        int second = TN__NODE(g, "And", TN__NODE(g, "Not", condition), b);
        y = TN__NODE(g, "Or", first, second);
    } else {
        y = TN__NODE(g, type, condition, a, b);
    }
    tn__onnx_give(g, c, 0, y);
}

static void put_masked_fill(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), mask = tn__onnx_in(g, c, 1);
    int value = tn__onnx_number(g, tn__arg_real(c, "value"), dtype_of(c));
    tn__onnx_give(g, c, 0, TN__NODE(g, type, mask, value, x));
}

const tn__onnx_rule tn__onnx_elementwise[] = {
    {"add", tn__onnx_binary, "Add", NULL},
    {"sub", tn__onnx_binary, "Sub", NULL},
    {"mul", tn__onnx_binary, "Mul", NULL},
    {"div", tn__onnx_binary, "Div", NULL},
    {"pow", tn__onnx_binary, "Pow", NULL},
    {"maximum", tn__onnx_binary, "Max", NULL},
    {"minimum", tn__onnx_binary, "Min", NULL},
    {"add_scalar", put_scalar, "Add", NULL},
    {"mul_scalar", put_scalar, "Mul", NULL},
    {"sub_scalar", put_scalar, "Sub", NULL},
    {"div_scalar", put_scalar, "Div", NULL},
    {"rsub_scalar", put_scalar_before, "Sub", NULL},
    {"rdiv_scalar", put_scalar_before, "Div", NULL},
    {"pow_scalar", put_scalar, "Pow", NULL},
    {"clamp", put_clamp, "Clip", clamp_fits},
    {"hardtanh", put_clamp, "Clip", NULL},
    {"neg", tn__onnx_unary, "Neg", NULL},
    {"abs", tn__onnx_unary, "Abs", NULL},
    {"sign", tn__onnx_unary, "Sign", NULL},
    {"exp", tn__onnx_unary, "Exp", NULL},
    {"log", tn__onnx_unary, "Log", NULL},
    {"sqrt", tn__onnx_unary, "Sqrt", NULL},
    {"rsqrt", put_rsqrt, "Reciprocal", NULL},
    {"square", put_square, "Mul", NULL},
    {"sin", tn__onnx_unary, "Sin", NULL},
    {"cos", tn__onnx_unary, "Cos", NULL},
    {"tan", tn__onnx_unary, "Tan", NULL},
    {"asin", tn__onnx_unary, "Asin", NULL},
    {"acos", tn__onnx_unary, "Acos", NULL},
    {"atan", tn__onnx_unary, "Atan", NULL},
    {"sinh", tn__onnx_unary, "Sinh", NULL},
    {"cosh", tn__onnx_unary, "Cosh", NULL},
    {"erf", tn__onnx_unary, "Erf", NULL},
    {"tanh", tn__onnx_unary, "Tanh", NULL},
    {"sigmoid", tn__onnx_unary, "Sigmoid", NULL},
    {"relu", tn__onnx_unary, "Relu", NULL},
    {"silu", put_silu, "Mul", NULL},
    {"gelu", put_gelu, "Erf", NULL},
    {"gelu_tanh", put_gelu_tanh, "Tanh", NULL},
    {"leaky_relu", put_leaky_relu, "LeakyRelu", NULL},
    {"elu", put_elu, "Elu", NULL},
    {"softplus", put_softplus, "Softplus", NULL},
    {"mish", tn__onnx_unary, "Mish", NULL},
    {"hardswish", tn__onnx_unary, "HardSwish", NULL},
    {"reciprocal", tn__onnx_unary, "Reciprocal", NULL},
    {"floor", tn__onnx_unary, "Floor", NULL},
    {"ceil", tn__onnx_unary, "Ceil", NULL},
    {"round", tn__onnx_unary, "Round", NULL},
    {"eq", tn__onnx_binary, "Equal", NULL},
    {"ne", put_not, "Equal", NULL},
    {"lt", tn__onnx_binary, "Less", NULL},
    {"le", tn__onnx_binary, "LessOrEqual", NULL},
    {"gt", tn__onnx_binary, "Greater", NULL},
    {"ge", tn__onnx_binary, "GreaterOrEqual", NULL},
    {"isnan", tn__onnx_unary, "IsNaN", is_float},
    {"isinf", tn__onnx_unary, "IsInf", is_float},
    {"where", put_where, "Where", NULL},
    {"masked_fill", put_masked_fill, "Where", NULL},
    {0},
};
