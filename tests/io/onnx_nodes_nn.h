/* Products, windows, norms, recurrent nets, attention, losses (onnx_node.h). */
#ifndef TERN_TESTS_IO_ONNX_NODES_NN_H
#define TERN_TESTS_IO_ONNX_NODES_NN_H

#include "tests/io/onnx_node.h"

static void matmul_node(node *n) {
    n->out[0] = tn_matmul(n->in[0], n->in[1]);
}

static void gemm_node(node *n) {
    tn_tensor *a = whole_of(n, "transA", 0) ? tn_transpose(n->in[0], 0, 1) : n->in[0];
    tn_tensor *b = whole_of(n, "transB", 0) ? tn_transpose(n->in[1], 0, 1) : n->in[1];
    tn_tensor *y = tn_mul_scalar(tn_matmul(a, b), real_of(n, "alpha", 1.0));
    tn_tensor *c = input_at(n, 2);
    n->out[0] = c ? tn_add(y, tn_mul_scalar(c, real_of(n, "beta", 1.0))) : y;
}

static void einsum_node(node *n) {
    n->out[0] = tn_einsum(text_of(n, "equation", ""), n->in, n->inputs);
}

/* ---- Windows --------------------------------------------------------------------------------- */

typedef struct window {
    int spatial;
    tn_dims kernel, stride, dilation, begin, end;
} window;

static tn_dims list_or(const node *n, const char *name, int spatial, int64_t otherwise) {
    int64_t list[NODE_NUMBERS];
    if (list_of(n, name, list) < 0) {
        for (int i = 0; i < spatial; i++) {
            list[i] = otherwise;
        }
    }
    return tn_dims_from(spatial, list);
}

/* What auto_pad adds so that the output has ceil(in / stride) places. */
static void same_pads(const node *n, window *w, bool upper) {
    for (int i = 0; i < w->spatial; i++) {
        int64_t in = tn_size(n->in[0], i + 2), stride = w->stride.size[i];
        int64_t reach = (w->kernel.size[i] - 1) * w->dilation.size[i] + 1;
        int64_t all = ((in + stride - 1) / stride - 1) * stride + reach - in;
        all = all > 0 ? all : 0;
        w->begin.size[i] = upper ? all / 2 : all - all / 2;
        w->end.size[i] = all - w->begin.size[i];
    }
}

static window window_of(const node *n, tn_dims kernel) {
    window w = {.spatial = tn_ndim(n->in[0]) - 2, .kernel = kernel};
    int64_t pads[NODE_NUMBERS] = {0};
    const char *automatic = text_of(n, "auto_pad", "NOTSET");
    list_of(n, "pads", pads);
    w.stride = list_or(n, "strides", w.spatial, 1);
    w.dilation = list_or(n, "dilations", w.spatial, 1);
    w.begin = tn_dims_from(w.spatial, pads);
    w.end = tn_dims_from(w.spatial, pads + w.spatial);
    if (strncmp(automatic, "SAME", 4) == 0) {
        same_pads(n, &w, strcmp(automatic, "SAME_UPPER") == 0);
    }
    return w;
}

static bool is_even(const window *w) {
    return tn_dims_equal(w->begin, w->end);
}

/* Pads x here if the pads before and after differ; the window then has none. */
static tn_tensor *pad_first(tn_tensor *x, window *w, double value) {
    if (is_even(w)) {
        return x;
    }
    tn_dims pads = {.ndim = 2 * w->spatial};
    for (int i = 0; i < w->spatial; i++) {
        pads.size[2 * (w->spatial - 1 - i)] = w->begin.size[i];
        pads.size[2 * (w->spatial - 1 - i) + 1] = w->end.size[i];
        w->begin.size[i] = w->end.size[i] = 0;
    }
    return tn_pad(x, pads, TN_PAD_CONSTANT, value);
}

static tn_dims kernel_of(const tn_tensor *weight) {
    tn_dims all = tn_shape(weight);
    return tn_dims_from(all.ndim - 2, all.size + 2);
}

static void conv_node(node *n) {
    static tn_tensor *(*const convs[])(tn_tensor *, tn_tensor *, tn_tensor *, tn_conv_options) = {
        tn_conv1d_op, tn_conv2d_op, tn_conv3d_op};
    window w = window_of(n, kernel_of(n->in[1]));
    tn_tensor *x = pad_first(n->in[0], &w, 0.0);
    tn_conv_options o = tn_conv_defaults();
    o.stride = w.stride, o.dilation = w.dilation, o.padding = w.begin;
    o.groups = whole_of(n, "group", 1);
    n->out[0] = convs[w.spatial - 1](x, n->in[1], input_at(n, 2), o);
}

static void conv_transpose_node(node *n) {
    static tn_tensor *(*const convs[])(tn_tensor *, tn_tensor *, tn_tensor *, tn_conv_options) = {
        tn_conv_transpose1d_op, tn_conv_transpose2d_op, tn_conv_transpose3d_op};
    window w = window_of(n, kernel_of(n->in[1]));
    tn_conv_options o = tn_conv_defaults();
    o.stride = w.stride, o.dilation = w.dilation;
    o.padding = is_even(&w) ? w.begin : TN_DIMS(0);
    o.output_padding = list_or(n, "output_padding", w.spatial, 0);
    o.groups = whole_of(n, "group", 1);
    if (text_of(n, "output_shape", NULL) || !attribute_is(n, "auto_pad", "NOTSET", "NOTSET")) {
        note_missing(n, "a size that is given, from which padding follows");
        return;
    }
    tn_tensor *y = convs[w.spatial - 1](n->in[0], n->in[1], input_at(n, 2), o);
    for (int i = 0; i < w.spatial && !is_even(&w); i++) { /* the two ends differ */
        int64_t size = tn_size(y, i + 2) - w.begin.size[i] - w.end.size[i];
        y = tn_narrow(y, i + 2, w.begin.size[i], size);
    }
    n->out[0] = y;
}

typedef tn_tensor *(*pool_function)(tn_tensor *x, tn_dims kernel, tn_pool_options options);

static void run_pool(node *n, const pool_function *pools, bool max) {
    window w = window_of(n, list_or(n, "kernel_shape", tn_ndim(n->in[0]) - 2, 1));
    tn_pool_options o = tn_pool_defaults();
    o.count_include_pad = whole_of(n, "count_include_pad", 0) != 0;
    o.ceil_mode = whole_of(n, "ceil_mode", 0) != 0;
    for (int i = 0; i < w.spatial; i++) {
        if (is_even(&w) && 2 * w.begin.size[i] > w.kernel.size[i]) {
            note_missing(n, "padding of more than half of the window");
            return;
        }
    }
    if (!max && !is_even(&w) && !o.count_include_pad) {
        note_missing(n, "padding that is not the same at both ends");
        return;
    }
    tn_tensor *x = pad_first(n->in[0], &w, max ? -INFINITY : 0.0);
    o.stride = w.stride, o.padding = w.begin, o.dilation = w.dilation;
    n->out[0] = pools[w.spatial - 1](x, w.kernel, o);
}

static void max_pool_node(node *n) {
    static const pool_function pools[] = {tn_max_pool1d_op, tn_max_pool2d_op, tn_max_pool3d_op};
    if (n->outputs > 1) {
        note_missing(n, "the places of the largest");
    } else {
        run_pool(n, pools, true);
    }
}

static void avg_pool_node(node *n) {
    static const pool_function pools[] = {tn_avg_pool1d_op, tn_avg_pool2d_op, tn_avg_pool3d_op};
    int64_t dilations[NODE_NUMBERS] = {1, 1, 1};
    int count = list_of(n, "dilations", dilations);
    for (int i = 0; i < count; i++) {
        if (dilations[i] != 1) {
            note_missing(n, "dilations other than 1");
            return;
        }
    }
    run_pool(n, pools, false);
}

static void global_avg_pool_node(node *n) {
    n->out[0] = tn_adaptive_avg_pool2d_op(n->in[0], TN_DIMS(1));
}

static void global_max_pool_node(node *n) {
    n->out[0] = tn_adaptive_max_pool2d_op(n->in[0], TN_DIMS(1));
}

static void col2im_node(node *n) {
    int64_t size[NODE_NUMBERS], block[NODE_NUMBERS], pads[NODE_NUMBERS] = {0};
    int spatial = numbers_of(n, 1, size);
    numbers_of(n, 2, block);
    list_of(n, "pads", pads);
    tn_unfold_options o = tn_unfold_defaults();
    o.stride = list_or(n, "strides", 2, 1);
    o.dilation = list_or(n, "dilations", 2, 1);
    o.padding = tn_dims_from(2, pads);
    if (spatial != 2 || pads[0] != pads[2] || pads[1] != pads[3]) {
        note_missing(n, "other than two dimensions, or padding that is not the same at both ends");
        return;
    }
    n->out[0] = tn_fold(n->in[0], tn_dims_from(2, size), tn_dims_from(2, block), o);
}

/* ---- Interpolation --------------------------------------------------------------------------- */

/* What Tern lacks; "" if nothing. */
static const char *resize_lacks(const node *n, tn_interpolate_options *o) {
    const char *mode = text_of(n, "mode", "nearest");
    const char *place = text_of(n, "coordinate_transformation_mode", "half_pixel");
    bool half = strcmp(place, "half_pixel") == 0;
    o->align_corners = strcmp(place, "align_corners") == 0;
    if (whole_of(n, "antialias", 0)) {
        return "antialias";
    }
    if (text_of(n, "axes", NULL)) {
        return "axes";
    }
    if (whole_of(n, "exclude_outside", 0) || real_of(n, "cubic_coeff_a", -0.75) != -0.75) {
        return "cubic with other weights";
    }
    if (!attribute_is(n, "keep_aspect_ratio_policy", "stretch", "stretch")) {
        return "keep_aspect_ratio_policy";
    }
    if (strcmp(mode, "nearest") == 0) {
        const char *nearest = text_of(n, "nearest_mode", "round_prefer_floor");
        o->mode = half ? TN_INTERPOLATE_EXACT : TN_INTERPOLATE_NEAREST;
        bool exact = half && strcmp(nearest, "round_prefer_ceil") == 0;
        bool plain = strcmp(place, "asymmetric") == 0 && strcmp(nearest, "floor") == 0;
        return exact || plain ? "" : "nearest with other rounding";
    }
    o->mode = strcmp(mode, "linear") == 0 ? TN_INTERPOLATE_LINEAR : TN_INTERPOLATE_CUBIC;
    return half || o->align_corners ? "" : "coordinates other than half_pixel and align_corners";
}

static void resize_node(node *n) {
    tn_interpolate_options o = tn_interpolate_defaults();
    const char *lacks = resize_lacks(n, &o);
    tn_tensor *x = n->in[0], *scales = input_at(n, 2);
    int64_t sizes[NODE_NUMBERS];
    int count = numbers_of(n, 3, sizes);
    double each[NODE_NUMBERS];
    if (*lacks) {
        note_missing(n, lacks);
        return;
    }
    if (scales && tn_count(scales) > 0) {
        tn_copy_out(tn_contiguous(tn_cast(scales, TN_F64)), each);
        count = (int)tn_count(scales);
        bool alike = true;
        for (int i = 0; i < count; i++) {
            double size = (double)tn_size(x, i) * each[i];
            sizes[i] = (int64_t)size;
            alike = alike && (i < 3 || each[i] == each[2]);
            if (o.align_corners && size != floor(size)) {
                note_missing(n, "align_corners by a factor to which no whole size belongs");
                return;
            }
        }
        o.scale_factor = alike ? each[2] : 0;
    }
    if (count < 3 || sizes[0] != tn_size(x, 0) || sizes[1] != tn_size(x, 1)) {
        note_missing(n, "other than two dimensions in front that stay");
        return;
    }
    if (o.scale_factor == 0) {
        o.size = tn_dims_from(count - 2, sizes + 2);
    }
    n->out[0] = tn_interpolate(x, o);
}

/* ---- Norms ----------------------------------------------------------------------------------- */

static void softmax_node(node *n) {
    n->out[0] = tn_softmax(n->in[0], (int)whole_of(n, "axis", -1));
}

static void log_softmax_node(node *n) {
    n->out[0] = tn_log_softmax(n->in[0], (int)whole_of(n, "axis", -1));
}

static void batch_norm_node(node *n) {
    if (whole_of(n, "training_mode", 0)) {
        note_missing(
            n, "training: ONNX's running variance is of the batch, not of what it is drawn from");
        return;
    }
    n->out[0] = tn_batch_norm(n->in[0], n->in[3], n->in[4], n->in[1], n->in[2], false, 0.1,
                              real_of(n, "epsilon", 1e-5));
}

/* x flattened from `axis` on, and into *each its shape with 1 for those dimensions. */
static tn_tensor *rows_from(const node *n, tn_dims *each) {
    tn_dims x = tn_shape(n->in[0]), rows = {0};
    int axis = (int)whole_of(n, "axis", -1);
    axis += axis < 0 ? x.ndim : 0;
    *each = x;
    for (int i = 0; i < axis; i++) {
        rows.size[rows.ndim++] = x.size[i];
    }
    rows.size[rows.ndim++] = -1;
    for (int i = axis; i < x.ndim; i++) {
        each->size[i] = 1;
    }
    return tn_reshape(n->in[0], rows);
}

static tn_tensor *as_row(tn_tensor *weight, const tn_tensor *x) {
    return weight ? tn_reshape(tn_expand(weight, tn_shape(weight)), TN_DIMS(tn_size(x, -1))) : NULL;
}

static void layer_norm_node(node *n) {
    tn_dims each;
    double eps = real_of(n, "epsilon", 1e-5);
    tn_tensor *x = rows_from(n, &each);
    tn_tensor *y = tn_layer_norm_op(x, as_row(n->in[1], x), as_row(input_at(n, 2), x), eps);
    n->out[0] = tn_reshape(y, tn_shape(n->in[0]));
    n->out[1] = tn_reshape(tn_mean(x, TN_DIMS(-1), true), each);
    tn_tensor *var = tn_var(x, TN_DIMS(-1), 0, true);
    n->out[2] = tn_reshape(tn_rsqrt(tn_add_scalar(var, eps)), each);
}

static void rms_norm_node(node *n) {
    tn_dims each;
    tn_tensor *x = rows_from(n, &each);
    tn_tensor *y = tn_rms_norm_op(x, as_row(n->in[1], x), real_of(n, "epsilon", 1e-5));
    n->out[0] = tn_reshape(y, tn_shape(n->in[0]));
}

static void instance_norm_node(node *n) {
    n->out[0] = tn_instance_norm(n->in[0], n->in[1], n->in[2], real_of(n, "epsilon", 1e-5));
}

static void group_norm_node(node *n) {
    n->out[0] = tn_group_norm_op(n->in[0], whole_of(n, "num_groups", 1), n->in[1], n->in[2],
                                 real_of(n, "epsilon", 1e-5));
}

static void dropout_node(node *n) {
    if (number_of(n, 2, 0) != 0 && number_of(n, 1, real_of(n, "ratio", 0.5)) != 0) {
        note_missing(n, "training: random numbers of another generator");
        return;
    }
    n->out[0] = tn_identity(n->in[0]);
    n->out[1] = tn_full(tn_shape(n->in[0]), 1.0, TN_BOOL);
}

/* ---- Recurrent nets -------------------------------------------------------------------------- */

/* The rows of a weight or bias of one direction, whose gates are in ONNX's order: LSTM i o f c,
 * GRU z r h. */
static tn_tensor *in_order(tn_tensor *all, int direction, const int *gates, int count) {
    tn_tensor *one = tn_select(all, 0, direction), *parts[4];
    int64_t units = tn_size(one, 0) / count;
    for (int i = 0; i < count; i++) {
        parts[i] = tn_narrow(one, 0, gates[i] * units, units);
    }
    return tn_cat(parts, count, 0);
}

static tn_rnn_weights weights_of(const node *n, int direction, const int *gates, int count) {
    tn_rnn_weights w = {in_order(n->in[1], direction, gates, count),
                        in_order(n->in[2], direction, gates, count), NULL, NULL};
    tn_tensor *bias = input_at(n, 3);
    if (bias) {
        int64_t half = tn_size(bias, 1) / 2;
        w.bias_ih = in_order(tn_narrow(bias, 1, 0, half), direction, gates, count);
        w.bias_hh = in_order(tn_narrow(bias, 1, half, half), direction, gates, count);
    }
    return w;
}

/* One direction: y and the last states. */
typedef void (*rnn_direction)(const node *n, tn_tensor *x, int direction, bool reverse,
                              tn_tensor **y, tn_tensor **hn, tn_tensor **cn);

static tn_tensor *state_of(const node *n, int i, int direction, bool batch_first) {
    tn_tensor *all = input_at(n, i);
    all = all && batch_first ? tn_transpose(all, 0, 1) : all;
    return all ? tn_select(all, 0, direction) : NULL;
}

static bool is_batch_first(const node *n) {
    return whole_of(n, "layout", 0) == 1;
}

static void run_rnn(const node *n, tn_tensor *x, int d, bool reverse, tn_tensor **y, tn_tensor **hn,
                    tn_tensor **cn) {
    (void)cn;
    *y = tn_rnn_op(x, state_of(n, 5, d, is_batch_first(n)), weights_of(n, d, (int[]){0}, 1),
                   input_at(n, 4), reverse, false, hn);
}

static void run_gru(const node *n, tn_tensor *x, int d, bool reverse, tn_tensor **y, tn_tensor **hn,
                    tn_tensor **cn) {
    (void)cn;
    *y = tn_gru_op(x, state_of(n, 5, d, is_batch_first(n)), weights_of(n, d, (int[]){1, 0, 2}, 3),
                   input_at(n, 4), reverse, hn);
}

static void run_lstm(const node *n, tn_tensor *x, int d, bool reverse, tn_tensor **y,
                     tn_tensor **hn, tn_tensor **cn) {
    bool first = is_batch_first(n);
    *y = tn_lstm_op(x, state_of(n, 5, d, first), state_of(n, 6, d, first),
                    weights_of(n, d, (int[]){0, 2, 3, 1}, 4), input_at(n, 4), reverse, hn, cn);
}

/* y (T, directions, B, H) and states (directions, B, H), or with layout 1 B first. */
static void run_directions(node *n, rnn_direction run) {
    bool first = is_batch_first(n), both = attribute_is(n, "direction", "forward", "bidirectional");
    tn_tensor *x = first ? tn_transpose(n->in[0], 0, 1) : n->in[0];
    tn_tensor *y[2], *hn[2], *cn[2] = {NULL};
    if (text_of(n, "activations", NULL) || text_of(n, "clip", NULL) || input_at(n, 7)) {
        note_missing(n, "other activations, clipping, peepholes");
        return;
    }
    for (int d = 0; d <= both; d++) {
        run(n, x, d, d == 1 || attribute_is(n, "direction", "forward", "reverse"), &y[d], &hn[d],
            &cn[d]);
    }
    n->out[0] = tn_stack(y, 1 + both, 1);
    n->out[1] = tn_stack(hn, 1 + both, 0);
    n->out[2] = cn[0] ? tn_stack(cn, 1 + both, 0) : NULL;
    if (first) {
        n->out[0] = tn_permute(n->out[0], TN_DIMS(2, 0, 1, 3));
        n->out[1] = tn_transpose(n->out[1], 0, 1);
        n->out[2] = n->out[2] ? tn_transpose(n->out[2], 0, 1) : NULL;
    }
}

static void rnn_node(node *n) {
    run_directions(n, run_rnn);
}

static void gru_node(node *n) {
    if (whole_of(n, "linear_before_reset", 0) != 1) {
        note_missing(n, "linear_before_reset other than 1");
        return;
    }
    run_directions(n, run_gru);
}

static void lstm_node(node *n) {
    run_directions(n, run_lstm);
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* (B, T, H D) as (B, H, T, D) */
static tn_tensor *split_heads(tn_tensor *x, int64_t heads) {
    if (tn_ndim(x) == 4) {
        return x;
    }
    tn_dims d = TN_DIMS(tn_size(x, 0), tn_size(x, 1), heads, tn_size(x, 2) / heads);
    return tn_transpose(tn_reshape(x, d), 1, 2);
}

static const char *attention_lacks(const node *n, tn_tensor *mask) {
    return whole_of(n, "softmax_precision", 0)                 ? "softmax_precision"
           : real_of(n, "softcap", 0) != 0                     ? "softcap"
           : whole_of(n, "left_window_size", -1) >= 0          ? "windows"
           : whole_of(n, "right_window_size", -1) >= 0         ? "windows"
           : n->outputs > 3 && text_of(n, "output_3", NULL)    ? "the scores as a result"
           : input_at(n, 6)                                    ? "lengths of keys"
           : mask && tn_dtype_of(mask) != TN_BOOL              ? "a mask of numbers"
           : mask && tn_size(mask, -1) < tn_size(n->in[1], -2) ? "a short mask"
                                                               : "";
}

static void attention_node(node *n) {
    tn_tensor *q = split_heads(n->in[0], whole_of(n, "q_num_heads", 1));
    tn_tensor *k = split_heads(n->in[1], whole_of(n, "kv_num_heads", 1));
    tn_tensor *v = split_heads(n->in[2], whole_of(n, "kv_num_heads", 1));
    tn_tensor *mask = input_at(n, 3);
    int64_t before = input_at(n, 4) ? tn_size(n->in[4], 2) : 0;
    const char *lacks = attention_lacks(n, mask);
    if (*lacks || tn_size(v, 3) != tn_size(q, 3)) {
        note_missing(n, *lacks ? lacks : "values of another width than keys");
        return;
    }
    if (before > 0) {
        k = tn_cat((tn_tensor *[]){n->in[4], k}, 2, 2);
        v = tn_cat((tn_tensor *[]){n->in[5], v}, 2, 2);
    }
    tn_attention_options o = tn_attention_defaults();
    o.scale = real_of(n, "scale", 0);
    if (whole_of(n, "is_causal", 0)) { /* query i sees keys up to i, and the past ones */
        tn_tensor *ones = tn_full(TN_DIMS(tn_size(q, 2), tn_size(k, 2)), 1, TN_BOOL);
        tn_tensor *past = tn_tril(ones, before);
        mask = mask ? tn_where(mask, past, tn_zeros_like(past)) : past;
    }
    tn_tensor *y = tn_attention(q, k, v, mask, o);
    if (tn_ndim(n->in[0]) == 3) {
        y = tn_flatten(tn_transpose(y, 1, 2), 2, 3);
    }
    n->out[0] = y;
    n->out[1] = k;
    n->out[2] = v;
}

/* ---- Losses ---------------------------------------------------------------------------------- */

static tn_reduction reduction_of(const node *n) {
    return attribute_is(n, "reduction", "mean", "sum")    ? TN_SUM
           : attribute_is(n, "reduction", "mean", "none") ? TN_NONE
                                                          : TN_MEAN;
}

/* (N, C, …) as (N, …, C) */
static tn_tensor *classes_last(tn_tensor *x) {
    tn_dims order = {.ndim = tn_ndim(x)};
    for (int i = 0; i < order.ndim; i++) {
        order.size[i] = i == 0 ? 0 : i == order.ndim - 1 ? 1 : i + 1;
    }
    return tn_permute(x, order);
}

static void nll_node(node *n) {
    tn_nll_options o = tn_nll_defaults();
    o.reduction = reduction_of(n);
    o.ignore_index = whole_of(n, "ignore_index", -100);
    o.weight = input_at(n, 2);
    n->out[0] = tn_nll_with(classes_last(n->in[0]), n->in[1], o);
}

static void cross_entropy_node(node *n) {
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    o.reduction = reduction_of(n);
    o.ignore_index = whole_of(n, "ignore_index", -100);
    o.weight = input_at(n, 2);
    n->out[0] = tn_cross_entropy_with(classes_last(n->in[0]), n->in[1], o);
    n->out[1] = tn_log_softmax(n->in[0], 1);
}

static const node_case nn_nodes[] = {
    {"Attention", attention_node},
    {"AveragePool", avg_pool_node},
    {"BatchNormalization", batch_norm_node},
    {"Col2Im", col2im_node},
    {"Conv", conv_node},
    {"ConvTranspose", conv_transpose_node},
    {"Dropout", dropout_node},
    {"Einsum", einsum_node},
    {"GRU", gru_node},
    {"Gemm", gemm_node},
    {"GlobalAveragePool", global_avg_pool_node},
    {"GlobalMaxPool", global_max_pool_node},
    {"GroupNormalization", group_norm_node},
    {"InstanceNormalization", instance_norm_node},
    {"LSTM", lstm_node},
    {"LayerNormalization", layer_norm_node},
    {"LogSoftmax", log_softmax_node},
    {"MatMul", matmul_node},
    {"MaxPool", max_pool_node},
    {"NegativeLogLikelihoodLoss", nll_node},
    {"RMSNormalization", rms_norm_node},
    {"RNN", rnn_node},
    {"Resize", resize_node},
    {"Softmax", softmax_node},
    {"SoftmaxCrossEntropyLoss", cross_entropy_node},
    {0},
};

#endif
