/* Reductions as ONNX nodes. */
#include "io/onnx/graph.h"

#include "tern/ops.h"

#include <string.h>

/* The call's dims as an input of a reduction; 0, absent, for all. */
static int axes_of(tn__onnx *g, const tn_op_call *c, const char *field) {
    tn_dims dims = tn__arg_dims(c, field);
    int ndim = tn_ndim(c->in[0]);
    for (int i = 0; i < dims.ndim; i++) {
        dims.size[i] += dims.size[i] < 0 ? ndim : 0;
    }
    return dims.ndim == 0 || ndim == 0 ? 0 : tn__onnx_dims(g, dims);
}

static int reduce_node(tn__onnx *g, const char *type, int x, int axes, bool keepdims) {
    int y = TN__NODE(g, type, x, axes);
    tn__onnx_int(g, "keepdims", keepdims);
    return y;
}

/* Integers and bools sum to i64, as the result's dtype says. */
static void put_reduce(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), axes = axes_of(g, c, "dim");
    tn_dtype to = tn_dtype_of(c->out[0]);
    if (to != tn_dtype_of(c->in[0])) { x = tn__onnx_cast(g, x, to); }
    tn__onnx_give(g, c, 0, reduce_node(g, type, x, axes, tn__arg_whole(c, "keepdim") != 0));
}

/* sum((x - mean)^2) / (n - correction) */
static void put_var(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), axes = axes_of(g, c, "dim");
    bool keep = tn__arg_whole(c, "keepdim") != 0;
    int mean = reduce_node(g, "ReduceMean", x, axes, true), away = TN__NODE(g, "Sub", x, mean);
    int sum = reduce_node(g, type, TN__NODE(g, "Mul", away, away), axes, keep);
    double of_each =
        tn_count(c->out[0]) > 0 ? (double)tn_count(c->in[0]) / (double)tn_count(c->out[0]) : 0.0;
    double n = of_each - (double)tn__arg_whole(c, "correction");
    int count = tn__onnx_number(g, n > 0 ? n : 0.0, tn_dtype_of(c->in[0]));
    tn__onnx_give(g, c, 0, TN__NODE(g, "Div", sum, count));
}

/* Bools: their maximum, or minimum, as integers. */
static void put_any(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_cast(g, tn__onnx_in(g, c, 0), TN_I32);
    tn__onnx_give(g, c, 0, tn__onnx_cast(g, reduce_node(g, type, x, 0, false), TN_BOOL));
}

static void put_arg(tn__onnx *g, const tn_op_call *c, const char *type) {
    int y = TN__NODE(g, type, tn__onnx_in(g, c, 0));
    tn__onnx_int(g, "axis", tn__onnx_dim(c));
    tn__onnx_int(g, "keepdims", tn__arg_whole(c, "keepdim"));
    tn__onnx_give(g, c, 0, y);
}

static void put_cumulative(tn__onnx *g, const tn_op_call *c, const char *type) {
    int64_t dim = tn__onnx_dim(c);
    int x = tn__onnx_in(g, c, 0);
    if (tn_dtype_of(c->out[0]) != tn_dtype_of(c->in[0])) {
        x = tn__onnx_cast(g, x, tn_dtype_of(c->out[0]));
    }
    int y = TN__NODE(g, type, x, tn__onnx_number(g, (double)dim, TN_I64));
    tn__onnx_int(g, "reverse", tn__arg_whole(c, "reverse"));
    tn__onnx_give(g, c, 0, y);
}

const tn__onnx_rule tn__onnx_reduce[] = {
    {"sum", put_reduce, "ReduceSum", NULL},
    {"mean", put_reduce, "ReduceMean", NULL},
    {"max", put_reduce, "ReduceMax", NULL},
    {"min", put_reduce, "ReduceMin", NULL},
    {"prod", put_reduce, "ReduceProd", NULL},
    {"logsumexp", put_reduce, "ReduceLogSumExp", NULL},
    {"var", put_var, "ReduceSum", NULL},
    {"any", put_any, "ReduceMax", tn__onnx_has_elements},
    {"all", put_any, "ReduceMin", tn__onnx_has_elements},
    {"argmax", put_arg, "ArgMax", tn__onnx_has_dims},
    {"argmin", put_arg, "ArgMin", tn__onnx_has_dims},
    {"cumsum", put_cumulative, "CumSum", tn__onnx_has_dims},
    {0},
};
