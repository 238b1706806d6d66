/* Sliding windows as ONNX nodes: convolutions, pooling, interpolation. */
#include "io/onnx/graph.h"

#include "core/error.h"
#include "ops/pool/avg_pool.h"
#include "ops/pool/resample.h"
#include "tern/ops.h"

#include <math.h>
#include <string.h>

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
    tn_dims stride = last_numbers(c, "kernel.stride"),
            dilation = last_numbers(c, "kernel.dilation"),
            padding = last_numbers(c, "kernel.padding");
    int64_t pads[2 * TN_MAX_DIMS];
    for (int i = 0; i < padding.ndim; i++) {
        pads[i] = padding.size[i];
        pads[padding.ndim + i] = after.size[i];
    }
    tn__onnx_ints(g, "strides", stride.size, stride.ndim);
    tn__onnx_ints(g, "dilations", dilation.size, dilation.ndim);
    tn__onnx_ints(g, "pads", pads, 2 * padding.ndim);
    tn__onnx_int(g, "group", tn__arg_whole(c, "kernel.groups"));
    return y;
}

/* A convolution's padding at the ends: the same as at the beginnings, unless a given size needs
 * another, as PyTorch's padding="same" does for an even kernel. */
static tn_dims padding_after(const tn_op_call *c) {
    tn_dims stride = last_numbers(c, "kernel.stride"),
            dilation = last_numbers(c, "kernel.dilation"),
            after = last_numbers(c, "kernel.padding");
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

/* How much larger the result is than the other numbers give: the gradient of a convolution may be
 * smaller, or of any size. */
static tn_dims output_padding(const tn_op_call *c) {
    tn_dims stride = last_numbers(c, "kernel.stride"),
            dilation = last_numbers(c, "kernel.dilation"), more = last_numbers(c, "kernel.padding");
    for (int i = 0; i < more.ndim; i++) {
        int64_t in = tn_size(c->in[0], 2 + i), kernel = tn_size(c->in[1], 2 + i);
        int64_t least =
            (in - 1) * stride.size[i] - 2 * more.size[i] + dilation.size[i] * (kernel - 1) + 1;
        more.size[i] = tn_size(c->out[0], 2 + i) - least;
    }
    return more;
}

/* A result that is larger at an end has less padding cut off there, then zeros after x, and the
 * rest is output_padding, which some runtimes require below the stride. */
static void put_conv_transpose(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn_dims more = output_padding(c), after = last_numbers(c, "kernel.padding"),
            stride = last_numbers(c, "kernel.stride");
    int64_t zeros[2 * TN_MAX_DIMS] = {0};
    int ndim = tn_ndim(c->in[0]), x = tn__onnx_in(g, c, 0);
    bool longer = false;
    for (int i = 0; i < more.ndim; i++) {
        int64_t less = more.size[i] < after.size[i] ? more.size[i] : after.size[i];
        after.size[i] -= less;
        zeros[ndim + 2 + i] = (more.size[i] - less) / stride.size[i];
        more.size[i] = (more.size[i] - less) % stride.size[i];
        longer = longer || zeros[ndim + 2 + i] > 0;
    }
    if (longer) { x = TN__NODE(g, "Pad", x, tn__onnx_wholes(g, zeros, 2 * ndim)); }
    int y = conv_node(g, c, type, x, after);
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

static bool is_regular(const tn__pool_args *a) {
    for (int i = 0; i < POOL_SPATIAL && a->adaptive; i++) {
        if (a->in[i] % a->out[i] != 0) { return false; }
    }
    return true;
}

static bool has_places(const tn_op_call *c) {
    return tn_count(c->out[0]) > 0;
}

/* Adaptive windows of several widths as lists: for each window (out) its elements, padded to the
 * widest by repeating the last, and the weight of each in a mean. */
static void list_windows(const tn__pool_args *a, int k, int64_t widest, tn_tensor *places,
                         tn_tensor *shares) {
    int64_t *place = tn_data_mut(places);
    double *share = tn_data_mut(shares);
    for (int64_t i = 0; i < a->out[k] * widest && !tn__pending(); i++) {
        tn__window w = tn__window_at(a, k, i / widest);
        int64_t j = i % widest;
        place[i] = w.first + (j < w.count ? j : w.count - 1);
        share[i] = j < w.count ? 1.0 / (double)w.count : 0.0;
    }
}

/* Pools one dimension by such windows: their elements become a new dimension, which is reduced.
 * sizes: x's, and then the result's. */
static int adapt_dim(tn__onnx *g, const tn_op_call *c, int x, tn_dims *sizes, int k, bool max) {
    const tn__pool_args *a = c->args;
    int dim = sizes->ndim - POOL_SPATIAL + k;
    int64_t widest = a->in[k] / a->out[k] + 2, axis = dim + 1;
    tn_dims wide = {.ndim = sizes->ndim + 1}, along = {.ndim = wide.ndim - dim};
    for (int i = 0; i < wide.ndim; i++) {
        wide.size[i] = i < dim     ? sizes->size[i]
                       : i == dim  ? a->out[k]
                       : i == axis ? widest
                                   : sizes->size[i - 1];
        if (i >= dim) { along.size[i - dim] = i <= axis ? wide.size[i] : 1; }
    }
    sizes->size[dim] = a->out[k];
    tn_tensor *places = tn_empty_on(tn_cpu(), TN_DIMS(a->out[k] * widest), TN_I64);
    tn_tensor *shares = tn_empty_on(tn_cpu(), along, TN_F64);
    list_windows(a, k, widest, places, shares);
    int y = TN__NODE(g, "Gather", x, tn__onnx_constant(g, places));
    tn__onnx_int(g, "axis", dim);
    y = tn__onnx_reshape(g, y, wide);
    if (!max) {
        tn_tensor *share = tn_cast(shares, tn_dtype_of(c->in[0]));
        y = TN__NODE(g, "Mul", y, tn__onnx_constant(g, share));
    }
    y = TN__NODE(g, max ? "ReduceMax" : "ReduceSum", y, tn__onnx_wholes(g, &axis, 1));
    tn__onnx_int(g, "keepdims", 0);
    return y;
}

static void put_adaptive(tn__onnx *g, const tn_op_call *c, bool max) {
    int spatial = ((const tn__pool_args *)c->args)->spatial, y = tn__onnx_in(g, c, 0);
    tn_dims sizes = tn_shape(c->in[0]);
    for (int k = POOL_SPATIAL - spatial; k < POOL_SPATIAL; k++) {
        y = adapt_dim(g, c, y, &sizes, k, max);
    }
    tn__onnx_give(g, c, 0, y);
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

/* Runtimes only take padding smaller than the kernel, but a dilated window may have more: then x
 * gets -inf around it, and no padding. */
static int pad_widely(tn__onnx *g, const tn_op_call *c, const tn__pool_args *a, int64_t *pads) {
    int n = a->spatial, ndim = 2 + n, x = tn__onnx_in(g, c, 0);
    int64_t all[2 * TN_MAX_DIMS] = {0};
    bool wide = false;
    for (int i = 0; i < n; i++) {
        wide = wide || pads[n + i] >= a->kernel[POOL_SPATIAL - n + i];
        all[2 + i] = pads[i];
        all[ndim + 2 + i] = pads[n + i];
    }
    if (wide) {
        int amounts = tn__onnx_wholes(g, all, 2 * ndim);
        int least = tn__onnx_number(g, -(double)INFINITY, tn_dtype_of(c->in[0]));
        x = TN__NODE(g, "Pad", x, amounts, least);
        memset(pads, 0, 2 * (size_t)n * sizeof(*pads));
    }
    return x;
}

static void put_max_pool(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__pool_args a = window_of(c);
    if (!is_regular(&a)) {
        put_adaptive(g, c, true);
        return;
    }
    int64_t pads[2 * POOL_SPATIAL];
    pool_pads(&a, pads);
    int x = pad_widely(g, c, &a, pads), y = pool_node(g, type, x, &a, pads);
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
    if (!is_regular(&a)) {
        put_adaptive(g, c, false);
        return;
    }
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
static int pick_taps(tn__onnx *g, const tn_op_call *c, int x, const tn__taps *taps, int k) {
    const tn__resample_args *a = c->args;
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
        place[i] = taps->place[i][k];
        weight[i] = taps->weight[i][k];
    }
    int y = TN__NODE(g, "Gather", x, tn__onnx_constant(g, places));
    tn__onnx_int(g, "axis", dim);
    if (taps->count > 1) {
        tn_tensor *share = tn_cast(weights, tn_dtype_of(c->in[0]));
        y = TN__NODE(g, "Mul", y, tn__onnx_constant(g, share));
    }
    return y;
}

/* One dimension, as in the operation: each result is a weighted sum of elements. Resize would do,
 * but it finds the elements from a factor that it rounds to f32. */
static void put_resample(tn__onnx *g, const tn_op_call *c, const char *type) {
    tn__taps taps;
    if (!tn__taps_make(&taps, c->args, tn_dtype_of(c->in[0]))) {
        tn_op_fail(c, TN_ENOMEM, "no memory for the places");
        return;
    }
    int x = tn__onnx_in(g, c, 0), y = pick_taps(g, c, x, &taps, 0);
    for (int k = 1; k < taps.count; k++) {
        y = TN__NODE(g, type, y, pick_taps(g, c, x, &taps, k));
    }
    tn__taps_free(&taps);
    tn__onnx_give(g, c, 0, y);
}

/* ---- Patches --------------------------------------------------------------------------------- */

/* The positions of all patches' elements in a padded plane: (kernel, positions), flat. */
static tn_tensor *patch_places(const tn__pool_args *a) {
    int64_t width = a->in[2] + 2 * a->padding[2], n = a->kernel[1] * a->kernel[2];
    int64_t places = a->out[1] * a->out[2];
    tn_tensor *t = tn_empty_on(tn_cpu(), TN_DIMS(n * places), TN_I64);
    int64_t *to = tn_data_mut(t);
    for (int64_t i = 0; i < n * places && !tn_is_inert(t); i++) {
        int64_t k = i / places, p = i % places;
        int64_t row = p / a->out[2] * a->stride[1] + k / a->kernel[2] * a->dilation[1];
        int64_t column = p % a->out[2] * a->stride[2] + k % a->kernel[2] * a->dilation[2];
        to[i] = row * width + column;
    }
    return t;
}

static void put_unfold(tn__onnx *g, const tn_op_call *c, const char *type) {
    const tn__pool_args *a = c->args;
    tn_dims x = tn_shape(c->in[0]);
    int64_t h = a->in[1] + 2 * a->padding[1], w = a->in[2] + 2 * a->padding[2];
    int64_t pads[] = {0, 0, a->padding[1], a->padding[2], 0, 0, a->padding[1], a->padding[2]};
    int padded = TN__NODE(g, "Pad", tn__onnx_in(g, c, 0), tn__onnx_wholes(g, pads, 8));
    int planes = tn__onnx_reshape(g, padded, TN_DIMS(x.size[0], x.size[1], h * w));
    int y = TN__NODE(g, type, planes, tn__onnx_constant(g, patch_places(a)));
    tn__onnx_int(g, "axis", 2);
    tn__onnx_give(g, c, 0, tn__onnx_reshape(g, y, tn_shape(c->out[0])));
}

static void put_fold(tn__onnx *g, const tn_op_call *c, const char *type) {
    const tn__pool_args *a = c->args;
    int64_t pads[] = {a->padding[1], a->padding[2], a->padding[1], a->padding[2]};
    int x = tn__onnx_in(g, c, 0), picture = tn__onnx_wholes(g, a->in + 1, 2),
        block = tn__onnx_wholes(g, a->kernel + 1, 2), y = TN__NODE(g, type, x, picture, block);
    tn__onnx_ints(g, "dilations", a->dilation + 1, 2);
    tn__onnx_ints(g, "pads", pads, 4);
    tn__onnx_ints(g, "strides", a->stride + 1, 2);
    tn__onnx_give(g, c, 0, y);
}

const tn__onnx_rule tn__onnx_windows[] = {
    {"conv", put_conv, "Conv", conv_fits},
    {"conv_transpose", put_conv_transpose, "ConvTranspose", NULL},
    {"max_pool", put_max_pool, "MaxPool", has_places},
    {"avg_pool", put_avg_pool, "AveragePool", has_places},
    {"resample", put_resample, "Add", NULL},
    {"unfold", put_unfold, "Gather", NULL},
    {"fold", put_fold, "Col2Im", NULL},
    {0},
};
