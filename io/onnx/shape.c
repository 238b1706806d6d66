/* Views, copies and indexing as ONNX nodes. */
#include "io/onnx/graph.h"

#include "tern/ops.h"

static void put_cast(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__onnx_give(g, c, 0, tn__onnx_cast(g, tn__onnx_in(g, c, 0), tn_dtype_of(c->out[0])));
}

/* A parameter's copy in the dtype in which a module computes: input 1 is the parameter, input 0 the
 * copy, which has a value if it was just made. */
static void put_lend(tn__onnx *g, const tn_op_call *c, const char *type) {
    int y = tn__onnx_known(g, c->in[0])
                ? TN__NODE(g, type, tn__onnx_in(g, c, 0))
                : tn__onnx_cast(g, tn__onnx_in(g, c, 1), tn_dtype_of(c->out[0]));
    tn__onnx_give(g, c, 0, y);
}

static void put_reshape(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__onnx_give(g, c, 0, tn__onnx_reshape(g, tn__onnx_in(g, c, 0), tn_shape(c->out[0])));
}

static void put_expand(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), shape = tn__onnx_dims(g, tn_shape(c->out[0]));
    tn__onnx_give(g, c, 0, TN__NODE(g, type, x, shape));
}

static void put_permute(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn_dims order = tn__arg_dims(c, "dims");
    for (int i = 0; i < order.ndim; i++) {
        order.size[i] += order.size[i] < 0 ? order.ndim : 0;
    }
    int y = TN__NODE(g, type, tn__onnx_in(g, c, 0));
    tn__onnx_ints(g, "perm", order.size, order.ndim);
    tn__onnx_give(g, c, 0, y);
}

static void put_slice(tn__onnx *g, const tn_op_call *c, const char *type) {
    int64_t dim = tn__onnx_dim(c), step = tn__arg_whole(c, "step");
    int64_t start = tn__arg_whole(c, "start"), length = tn__arg_whole(c, "length");
    int64_t end = length > 0 ? start + (length - 1) * step + 1 : start;
    int x = tn__onnx_in(g, c, 0), first = tn__onnx_wholes(g, &start, 1),
        last = tn__onnx_wholes(g, &end, 1), axis = tn__onnx_wholes(g, &dim, 1),
        steps = step == 1 ? 0 : tn__onnx_wholes(g, &step, 1);
    tn__onnx_give(g, c, 0, TN__NODE(g, type, x, first, last, axis, steps));
}

static void put_select(tn__onnx *g, const tn_op_call *c, const char *type) {
    int64_t dim = tn__onnx_dim(c), index = tn__arg_whole(c, "index");
    int x = tn__onnx_in(g, c, 0), place = tn__onnx_number(g, (double)index, TN_I64);
    int y = TN__NODE(g, type, x, place);
    tn__onnx_int(g, "axis", dim);
    tn__onnx_give(g, c, 0, y);
}

/* Concatenates all inputs along an axis; stacked ones first get size 1 there. */
static void put_cat(tn__onnx *g, const tn_op_call *c, const char *type) {
    int64_t dim = tn__arg_whole(c, "dim");
    int ndim = tn_ndim(c->out[0]), n = 0;
    bool stack = ndim > tn_ndim(c->in[0]);
    dim += dim < 0 ? ndim : 0;
    int axis = stack ? tn__onnx_wholes(g, &dim, 1) : 0, y = 0, parts[256];
    for (int i = 0; i <= c->inputs; i++) { /* 256 at a time, however many there are */
        if (i == c->inputs || n == 256) {
            y = tn__onnx_node(g, type, parts, n);
            tn__onnx_int(g, "axis", dim);
            parts[0] = y;
            n = 1;
        }
        if (i < c->inputs) {
            int x = tn__onnx_in(g, c, i);
            parts[n++] = stack ? TN__NODE(g, "Unsqueeze", x, axis) : x;
        }
    }
    tn__onnx_give(g, c, 0, y);
}

/* From (before, after) with the last dimension first to all begins and then all ends. */
static void put_pad(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn_dims pads = tn__arg_dims(c, "pad");
    int ndim = tn_ndim(c->in[0]);
    int64_t all[2 * TN_MAX_DIMS] = {0};
    for (int i = 0; i < pads.ndim; i++) {
        int dim = ndim - 1 - i / 2;
        all[i % 2 ? ndim + dim : dim] = pads.size[i];
    }
    int x = tn__onnx_in(g, c, 0), amounts = tn__onnx_wholes(g, all, 2 * ndim);
    int value = tn__onnx_number(g, tn__arg_real(c, "value"), tn_dtype_of(c->in[0]));
    tn__onnx_give(g, c, 0, TN__NODE(g, type, x, amounts, value));
}

/* ---- Sorting --------------------------------------------------------------------------------- */

/* The positions of the first k. The values, the first output, are not needed. */
static void put_places(tn__onnx *g, const tn_op_call *c, int64_t k, bool largest) {
    int64_t dim = tn__onnx_dim(c);
    int x = tn__onnx_in(g, c, 0), count = tn__onnx_wholes(g, &k, 1);
    TN__NODE(g, "TopK", x, count);
    int places = tn__onnx_output(g);
    tn__onnx_int(g, "axis", dim);
    tn__onnx_int(g, "largest", largest);
    tn__onnx_give(g, c, 0, places);
}

static void put_topk(tn__onnx *g, const tn_op_call *c, const char *type) {
    put_places(g, c, tn__arg_whole(c, "k"), tn__arg_whole(c, "largest") != 0);
}

static void put_argsort(tn__onnx *g, const tn_op_call *c, const char *type) {
    put_places(g, c, tn_size(c->in[0], (int)tn__arg_whole(c, "dim")),
               tn__arg_whole(c, "descending") != 0);
}

const tn__onnx_rule tn__onnx_shape[] = {
    {"identity", tn__onnx_unary, "Identity", NULL},
    {"copy", tn__onnx_unary, "Identity", NULL},
    {"to", tn__onnx_unary, "Identity", NULL},
    {"cast", put_cast, NULL, NULL},
    {"lend", put_lend, "Identity", NULL},
    {"reshape", put_reshape, NULL, NULL},
    {"expand", put_expand, "Expand", NULL},
    {"permute", put_permute, "Transpose", NULL},
    {"slice", put_slice, "Slice", tn__onnx_has_dims},
    {"select", put_select, "Gather", tn__onnx_has_dims},
    {"cat", put_cat, "Concat", NULL},
    {"stack", put_cat, "Concat", NULL},
    {"pad", put_pad, "Pad", NULL},
    {"index_select", tn__onnx_along, "Gather", tn__onnx_has_dims},
    {"gather", tn__onnx_along, "GatherElements", tn__onnx_has_dims},
    {"embedding", tn__onnx_binary, "Gather", NULL},
    {"topk", put_topk, NULL, tn__onnx_has_dims},
    {"argsort", put_argsort, NULL, tn__onnx_has_dims},
    {0},
};
