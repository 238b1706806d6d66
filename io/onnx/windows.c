/* Sliding windows as ONNX nodes: convolutions, pooling, interpolation. */
#include "io/onnx/graph.h"

#include "core/error.h"
#include "ops/pool/pool.h"
#include "ops/pool/resample.h"
#include "tern/ops.h"

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* The last numbers of a field of three, for the existing dimensions. */
static tn_dims last_numbers(const tn_op_call *c, const char *field) {
    tn_dims all = tn__arg_dims(c, field);
    int n = (int)tn__arg_whole(c, "spatial");
    return tn_dims_from(n, all.size + (all.ndim > n ? all.ndim - n : 0));
}

/* Begins a node of either kind; `after`: the padding at the ends. */
static int conv_node(tn__onnx *g, const tn_op_call *c, const char *type, int x, tn_dims after) {
    int weight = tn__onnx_in(g, c, 1), bias = tn__onnx_in(g, c, 2);
    int y = TN__NODE(g, type, x, weight, bias);
    tn_dims stride = last_numbers(c, "stride"), dilation = last_numbers(c, "dilation"),
            padding = last_numbers(c, "padding");
    int64_t pads[2 * TN_MAX_DIMS];
    for (int i = 0; i < padding.ndim; i++) {
        pads[i] = padding.size[i];
        pads[padding.ndim + i] = after.size[i];
    }
    tn__onnx_ints(g, "strides", stride.size, stride.ndim);
    tn__onnx_ints(g, "dilations", dilation.size, dilation.ndim);
    tn__onnx_ints(g, "pads", pads, 2 * padding.ndim);
    tn__onnx_int(g, "group", tn__arg_whole(c, "groups"));
    return y;
}

/* A convolution's padding at the ends: the same as at the beginnings, unless a given size needs
 * another, as PyTorch's padding="same" does for an even kernel. */
static tn_dims padding_after(const tn_op_call *c) {
    tn_dims stride = last_numbers(c, "stride"), dilation = last_numbers(c, "dilation"),
            after = last_numbers(c, "padding");
    for (int i = 0; i < after.ndim; i++) {
        int64_t in = tn_size(c->in[0], 2 + i), out = tn_size(c->out[0], 2 + i);
        int64_t span = dilation.size[i] * (tn_size(c->in[1], 2 + i) - 1) + 1;
        if ((in + 2 * after.size[i] - span) / stride.size[i] + 1 != out) {
            after.size[i] = (out - 1) * stride.size[i] + span - in - after.size[i];
        }
    }
    return after;
}

/* The gradient of a transposed convolution may end before x does. */
static bool conv_fits(const tn_op_call *c) {
    tn_dims after = padding_after(c);
    for (int i = 0; i < after.ndim; i++) {
        if (after.size[i] < 0) { return false; }
    }
    return true;
}

static void put_conv(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__onnx_give(g, c, 0, conv_node(g, c, type, tn__onnx_in(g, c, 0), padding_after(c)));
}

/* How much larger the result is than the other numbers give; smaller or of any size, it is the
 * gradient of a convolution. */
static tn_dims output_padding(const tn_op_call *c) {
    tn_dims stride = last_numbers(c, "stride"), dilation = last_numbers(c, "dilation"),
            more = last_numbers(c, "padding");
    for (int i = 0; i < more.ndim; i++) {
        int64_t in = tn_size(c->in[0], 2 + i), kernel = tn_size(c->in[1], 2 + i);
        int64_t least =
            (in - 1) * stride.size[i] - 2 * more.size[i] + dilation.size[i] * (kernel - 1) + 1;
        more.size[i] = tn_size(c->out[0], 2 + i) - least;
    }
    return more;
}

/* Some runtimes require output_padding below the stride. */
static bool conv_transpose_fits(const tn_op_call *c) {
    tn_dims stride = last_numbers(c, "stride"), more = output_padding(c);
    for (int i = 0; i < more.ndim; i++) {
        if (more.size[i] < 0 || more.size[i] >= stride.size[i]) { return false; }
    }
    return true;
}

static void put_conv_transpose(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn_dims more = output_padding(c);
    int y = conv_node(g, c, type, tn__onnx_in(g, c, 0), last_numbers(c, "padding"));
    tn__onnx_ints(g, "output_padding", more.size, more.ndim);
    tn__onnx_give(g, c, 0, y);
}

/* ---- Pooling --------------------------------------------------------------------------------- */

/* A call's window: its own, or the uniform one of adaptive windows if the sizes divide. */
static tn__pool_args window_of(const tn_op_call *c) {
    tn__pool_args a = *(const tn__pool_args *)c->args;
    for (int i = 0; i < POOL_SPATIAL && a.adaptive; i++) {
        a.kernel[i] = a.stride[i] = a.out[i] > 0 ? a.in[i] / a.out[i] : 1;
        a.padding[i] = 0;
        a.dilation[i] = 1;
    }
    return a;
}

/* Whether all windows are alike. */
static bool is_regular(const tn_op_call *c) {
    const tn__pool_args *a = c->args;
    for (int i = 0; i < POOL_SPATIAL && a->adaptive; i++) {
        if (a->out[i] == 0 || a->in[i] % a->out[i] != 0) { return false; }
    }
    return tn_count(c->out[0]) > 0;
}

/* All begins and then all ends: padding at an end reaches as far as the last window. */
static void pool_pads(const tn__pool_args *a, int64_t *pads) {
    for (int i = 0; i < a->spatial; i++) {
        int k = POOL_SPATIAL - a->spatial + i;
        int64_t reach = (a->out[k] - 1) * a->stride[k] + a->dilation[k] * (a->kernel[k] - 1) + 1;
        int64_t after = reach - a->in[k] - a->padding[k];
        pads[i] = a->padding[k];
        pads[a->spatial + i] = after > 0 ? after : 0;
    }
}

/* Begins a node. */
static int pool_node(tn__onnx *g, const char *type, int x, const tn__pool_args *a,
                     const int64_t *pads) {
    int n = a->spatial, y = TN__NODE(g, type, x);
    tn__onnx_ints(g, "kernel_shape", a->kernel + POOL_SPATIAL - n, n);
    tn__onnx_ints(g, "strides", a->stride + POOL_SPATIAL - n, n);
    tn__onnx_ints(g, "pads", pads, 2 * n);
    return y;
}

/* Runtimes only take padding smaller than the kernel; a dilated window may have more. */
static bool max_pool_fits(const tn_op_call *c) {
    tn__pool_args a = window_of(c);
    int64_t pads[2 * POOL_SPATIAL];
    pool_pads(&a, pads);
    for (int i = 0; i < 2 * a.spatial; i++) {
        if (pads[i] >= a.kernel[POOL_SPATIAL - a.spatial + i % a.spatial]) { return false; }
    }
    return is_regular(c);
}

static void put_max_pool(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__pool_args a = window_of(c);
    int64_t pads[2 * POOL_SPATIAL];
    pool_pads(&a, pads);
    int y = pool_node(g, type, tn__onnx_in(g, c, 0), &a, pads);
    tn__onnx_ints(g, "dilations", a.dilation + POOL_SPATIAL - a.spatial, a.spatial);
    tn__onnx_give(g, c, 0, y);
}

/* The factor for each window's mean, which counts all padding as zeros: (out…). NULL: none. */
static tn_tensor *window_shares(const tn__pool_args *a, tn_dtype dtype) {
    tn_dims dims = tn_dims_from(a->spatial, a->out + POOL_SPATIAL - a->spatial);
    tn_tensor *shares = tn_empty_on(tn_cpu(), dims, TN_F64);
    double *to = tn_data_mut(shares), volume = (double)tn__pool_volume(a->kernel);
    bool all_one = true;
    for (int64_t i = 0; i < tn_count(shares) && !tn_is_inert(shares); i++) {
        int64_t rest = i / a->out[2];
        tn__window w[3] = {tn__window_at(a, 0, rest / a->out[1]),
                           tn__window_at(a, 1, rest % a->out[1]),
                           tn__window_at(a, 2, i % a->out[2])};
        to[i] = volume * tn__window_share(a, w);
        all_one = all_one && to[i] == 1.0;
    }
    return all_one ? NULL : tn_cast(shares, dtype);
}

static void put_avg_pool(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__pool_args a = window_of(c);
    tn_tensor *shares = window_shares(&a, tn_dtype_of(c->in[0]));
    int64_t pads[2 * POOL_SPATIAL];
    pool_pads(&a, pads);
    int y = pool_node(g, type, tn__onnx_in(g, c, 0), &a, pads);
    tn__onnx_int(g, "count_include_pad", 1);
    if (shares) { y = TN__NODE(g, "Mul", y, tn__onnx_constant(g, shares)); }
    tn__onnx_give(g, c, 0, y);
}

/* ---- Interpolation --------------------------------------------------------------------------- */

/* x at the k-th taps of all results, times their weights if there are several taps. */
static int pick_taps(tn__onnx *g, const tn_op_call *c, int x, int k) {
    const tn__resample_args *a = c->args;
    tn_dtype dtype = tn_dtype_of(c->in[0]);
    int dim = a->dim < 0 ? a->dim + tn_ndim(c->in[0]) : a->dim;
    tn_dims along = {.ndim = tn_ndim(c->in[0]) - dim, .size = {a->out}}; /* (out, 1, …) */
    for (int i = 1; i < along.ndim; i++) {
        along.size[i] = 1;
    }
    tn_tensor *places = tn_empty_on(tn_cpu(), TN_DIMS(a->out), TN_I64);
    tn_tensor *weights = tn_empty_on(tn_cpu(), along, TN_F64);
    int64_t *place = tn_data_mut(places);
    double *weight = tn_data_mut(weights);
    for (int64_t i = 0; i < a->out && !tn__pending(); i++) {
        tn__tap tap = tn__tap_of(a, i, dtype);
        place[i] = tap.place[k];
        weight[i] = tap.weight[k];
    }
    int y = TN__NODE(g, "Gather", x, tn__onnx_constant(g, places));
    tn__onnx_int(g, "axis", dim);
    if (tn__tap_of(a, 0, dtype).count > 1) {
        y = TN__NODE(g, "Mul", y, tn__onnx_constant(g, tn_cast(weights, dtype)));
    }
    return y;
}

/* One dimension, as in the operation: each result is a weighted sum of elements. Resize would do,
 * but it finds the elements from a factor that it rounds to f32. */
static void put_resample(tn__onnx *g, const tn_op_call *c, const char *type) {
    int x = tn__onnx_in(g, c, 0), y = pick_taps(g, c, x, 0);
    for (int k = 1; k < tn__tap_of(c->args, 0, tn_dtype_of(c->in[0])).count; k++) {
        y = TN__NODE(g, type, y, pick_taps(g, c, x, k));
    }
    tn__onnx_give(g, c, 0, y);
}

const tn__onnx_rule tn__onnx_windows[] = {
    {"conv", put_conv, "Conv", conv_fits},
    {"conv_transpose", put_conv_transpose, "ConvTranspose", conv_transpose_fits},
    {"max_pool", put_max_pool, "MaxPool", max_pool_fits},
    {"avg_pool", put_avg_pool, "AveragePool", is_regular},
    {"resample", put_resample, "Add", NULL},
    {0},
};
