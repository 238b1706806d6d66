/* For test_pypi_onnx.py: exports random networks, with what Tern computes from their inputs.
 *
 *   dump_onnx_random FOLDER COUNT SEED
 *
 * A network is a sequence of steps: functions of table `steps`, which draw their numbers and apply
 * operations. Whether a step fits shows when it is tried, so the first run of a network tries steps
 * and keeps the numbers of those that fit; later runs draw the same values again, since they depend
 * only on the network's seed and the step's number. Besides the files of onnx_case.h there is
 * FOLDER/NAME.txt, which names the steps.
 *
 * Rounding decides what some networks compute, a norm over equal elements for example. If f32 is
 * further from f64 than SOUND in Tern itself, comparing says nothing: the network is left out and
 * counted in FOLDER/random.left_out. Every second network has a batch of any size, and steps that
 * leave dimension 0 alone.
 */
#include <math.h>
#include <string.h>

#include "tests/io/onnx_case.h"
#include "tests/io/random_network.h"

static const double SOUND = 2e-6;

/* ---- Windows --------------------------------------------------------------------------------- */

static int spatial_of(tn_tensor *x) {
    int spatial = tn_ndim(x) - 2;
    return spatial >= 1 && spatial <= 3 ? spatial : 0;
}

static int64_t some_groups(network *n, int64_t channels) {
    int64_t groups = pick_integer(n, 1, channels);
    return channels % groups == 0 ? groups : toss_coin(n) ? channels : 1;
}

typedef tn_tensor *(*conv_function)(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                    tn_conv_options options);

static tn_tensor *apply_convolution(network *n, tn_tensor *x) {
    static const conv_function functions[] = {tn_conv1d_op, tn_conv2d_op, tn_conv3d_op};
    int spatial = spatial_of(x);
    if (spatial == 0) {
        return NULL;
    }
    tn_conv_options o = tn_conv_defaults();
    o.same = pick_integer(n, 0, 2) == 0;
    o.groups = some_groups(n, tn_size(x, 1));
    o.stride.ndim = o.padding.ndim = o.dilation.ndim = spatial;
    tn_dims w = TN_DIMS(o.groups * pick_integer(n, 1, 3), tn_size(x, 1) / o.groups);
    for (int i = 0; i < spatial; i++) {
        int64_t kernel = pick_integer(n, 1, 5), most = tn_size(x, 2 + i);
        o.dilation.size[i] = pick_integer(n, 1, 3);
        o.stride.size[i] = o.same ? 1 : pick_integer(n, 1, 3);
        o.padding.size[i] = pick_integer(n, 0, 3);
        most += o.same ? kernel * 3 : 2 * o.padding.size[i];
        w.size[w.ndim++] = o.dilation.size[i] * (kernel - 1) + 1 > most ? 1 : kernel;
    }
    tn_tensor *weights = next_weight(n, x, w);
    return functions[spatial - 1](x, weights, optional_weight(n, x, TN_DIMS(w.size[0])), o);
}

static tn_tensor *transposed_convolution(network *n, tn_tensor *x) {
    static const conv_function functions[] = {tn_conv_transpose1d_op, tn_conv_transpose2d_op,
                                              tn_conv_transpose3d_op};
    int spatial = spatial_of(x);
    if (spatial == 0) {
        return NULL;
    }
    tn_conv_options o = tn_conv_defaults();
    o.groups = some_groups(n, tn_size(x, 1));
    o.stride.ndim = o.padding.ndim = o.dilation.ndim = o.output_padding.ndim = spatial;
    tn_dims w = TN_DIMS(tn_size(x, 1), pick_integer(n, 1, 3));
    for (int i = 0; i < spatial; i++) {
        int64_t kernel = pick_integer(n, 1, 4), stride = pick_integer(n, 1, 3),
                dilation = pick_integer(n, 1, 3);
        int64_t reach = (tn_size(x, 2 + i) - 1) * stride + dilation * (kernel - 1);
        o.stride.size[i] = stride;
        o.dilation.size[i] = dilation;
        o.padding.size[i] = pick_integer(n, 0, reach / 2 < 2 ? reach / 2 : 2);
        o.output_padding.size[i] = pick_integer(n, 0, (stride > dilation ? stride : dilation) - 1);
        w.size[w.ndim++] = kernel;
    }
    tn_tensor *weights = next_weight(n, x, w);
    return functions[spatial - 1](x, weights, optional_weight(n, x, TN_DIMS(w.size[1] * o.groups)),
                                  o);
}

static tn_tensor *apply_pooling(network *n, tn_tensor *x) {
    static tn_tensor *(*const functions[2][3])(tn_tensor *, tn_dims, tn_pool_options) = {
        {tn_max_pool1d_op, tn_max_pool2d_op, tn_max_pool3d_op},
        {tn_avg_pool1d_op, tn_avg_pool2d_op, tn_avg_pool3d_op}};
    int spatial = spatial_of(x);
    if (spatial == 0) {
        return NULL;
    }
    bool mean = toss_coin(n);
    tn_pool_options o = tn_pool_defaults();
    tn_dims kernel = {.ndim = spatial};
    o.stride.ndim = toss_coin(n) ? spatial : 0;
    o.padding.ndim = o.dilation.ndim = spatial;
    o.ceil_mode = toss_coin(n);
    o.count_include_pad = toss_coin(n);
    o.divisor_override = pick_integer(n, 0, 3) == 0 ? pick_integer(n, 1, 5) : 0;
    for (int i = 0; i < spatial; i++) {
        int64_t k = pick_integer(n, 1, 4);
        o.dilation.size[i] = mean ? 1 : pick_integer(n, 1, 3);
        o.padding.size[i] = pick_integer(n, 0, k / 2);
        o.stride.size[i] = pick_integer(n, 1, 3);
        int64_t padded = tn_size(x, 2 + i) + 2 * o.padding.size[i];
        if (o.dilation.size[i] * (k - 1) + 1 > padded) {
            k = 1;
            o.padding.size[i] = 0;
        }
        kernel.size[i] = k;
    }
    return functions[mean][spatial - 1](x, kernel, o);
}

static tn_tensor *adaptive_pooling(network *n, tn_tensor *x) {
    static tn_tensor *(*const functions[2][3])(tn_tensor *, tn_dims) = {
        {tn_adaptive_max_pool1d_op, tn_adaptive_max_pool2d_op, tn_adaptive_max_pool3d_op},
        {tn_adaptive_avg_pool1d_op, tn_adaptive_avg_pool2d_op, tn_adaptive_avg_pool3d_op}};
    int spatial = spatial_of(x);
    tn_dims size = {.ndim = spatial};
    for (int i = 0; i < spatial; i++) {
        size.size[i] = pick_integer(n, 1, 6);
    }
    return spatial ? functions[toss_coin(n)][spatial - 1](x, size) : NULL;
}

static tn_tensor *apply_interpolation(network *n, tn_tensor *x) {
    int spatial = spatial_of(x);
    tn_interpolate_options o = tn_interpolate_defaults();
    o.mode = (tn_interpolation)pick_integer(n, 0, 4);
    o.align_corners =
        toss_coin(n) && (o.mode == TN_INTERPOLATE_LINEAR || o.mode == TN_INTERPOLATE_CUBIC);
    if (spatial == 0 || (o.mode == TN_INTERPOLATE_CUBIC && spatial != 2)) {
        return NULL;
    }
    if (toss_coin(n)) {
        o.scale_factor = pick_real(n, 1.0, 2.5);
    } else {
        o.size.ndim = spatial;
        for (int i = 0; i < spatial; i++) {
            o.size.size[i] = pick_integer(n, 1, 9);
        }
    }
    return tn_interpolate(x, o);
}

/* Patches, or half of the time the image that they add up to. */
static tn_tensor *unfold_patches(network *n, tn_tensor *x) {
    if (tn_ndim(x) != 4) {
        return NULL;
    }
    tn_unfold_options o = tn_unfold_defaults();
    tn_dims kernel = TN_DIMS(1, 1), size = TN_DIMS(tn_size(x, 2), tn_size(x, 3));
    o.stride.ndim = o.padding.ndim = o.dilation.ndim = 2;
    for (int i = 0; i < 2; i++) {
        int64_t k = pick_integer(n, 1, 3);
        o.dilation.size[i] = pick_integer(n, 1, 2);
        o.padding.size[i] = pick_integer(n, 0, 2);
        o.stride.size[i] = pick_integer(n, 1, 3);
        if (o.dilation.size[i] * (k - 1) + 1 <= size.size[i] + 2 * o.padding.size[i]) {
            kernel.size[i] = k;
        }
    }
    tn_tensor *y = tn_unfold(x, kernel, o);
    return toss_coin(n) ? y : tn_fold(y, size, kernel, o);
}

static tn_tensor *apply_padding(network *n, tn_tensor *x) {
    tn_pad_mode mode = (tn_pad_mode)pick_integer(n, 0, 3);
    int spatial = spatial_of(x), dims = mode == TN_PAD_CONSTANT ? tn_ndim(x) - n->batched : spatial;
    dims = dims > 4 ? 4 : dims;
    if (dims < 1) {
        return NULL;
    }
    tn_dims pads = {.ndim = 2 * (int)pick_integer(n, 1, dims)};
    for (int i = 0; i < pads.ndim; i++) {
        int64_t size = tn_size(x, -1 - i / 2), most = mode == TN_PAD_REFLECT ? size - 1 : size;
        pads.size[i] =
            pick_integer(n, mode == TN_PAD_CONSTANT && size > 2 ? -1 : 0, most < 3 ? most : 3);
    }
    return tn_pad(x, pads, mode, mode == TN_PAD_CONSTANT ? pick_real(n, -1, 1) : 0);
}

/* ---- Norms, products ------------------------------------------------------------------------- */

static tn_tensor *apply_norm(network *n, tn_tensor *x) {
    int kind = (int)pick_integer(n, 0, 4), ndim = tn_ndim(x);
    double eps = toss_coin(n) ? 1e-5 : 1e-2;
    if (ndim < (kind < 2 ? 1 + n->batched : kind == 4 ? 3 : 2)) {
        return NULL;
    }
    tn_dims width = TN_DIMS(tn_size(x, kind < 2 ? -1 : 1));
    tn_tensor *w = optional_weight(n, x, width), *b = optional_weight(n, x, width);
    switch (kind) {
    case 0:
        return tn_layer_norm_op(x, w, b, eps);
    case 1:
        return w ? tn_rms_norm_op(x, w, eps) : NULL;
    case 2: {
        tn_tensor *mean = next_weight(n, x, width), *var = positive_weight(n, x, width);
        return tn_batch_norm(x, mean, var, w, b, false, 0.1, eps);
    }
    case 3:
        return tn_count(x) / tn_size(x, 0) > width.size[0]
                   ? tn_group_norm_op(x, some_groups(n, width.size[0]), w, b, eps)
                   : NULL;
    default:
        return tn_count(x) / tn_size(x, 0) > width.size[0] ? tn_instance_norm(x, w, b, eps) : NULL;
    }
}

static tn_tensor *apply_linear(network *n, tn_tensor *x) {
    int64_t out = pick_integer(n, 1, 8);
    if (tn_ndim(x) < 1 + n->batched) {
        return NULL;
    }
    tn_tensor *w = next_weight(n, x, TN_DIMS(out, tn_size(x, -1)));
    tn_tensor *b = optional_weight(n, x, TN_DIMS(out));
    return pick_integer(n, 0, 3) == 0 && b ? tn_linear_gelu(x, w, b) : tn_linear_op(x, w, b);
}

static tn_tensor *apply_matmul(network *n, tn_tensor *x) {
    int ndim = tn_ndim(x);
    if (ndim < 1 + n->batched) {
        return NULL;
    }
    tn_dims b = {.ndim = 1, .size = {tn_size(x, -1)}};
    if (toss_coin(n)) { /* of matrices, with x's leading dimensions or without */
        bool all = ndim > 2 && toss_coin(n);
        b = all ? tn_shape(x) : TN_DIMS(0, 0);
        b.size[0] = all && n->batched ? 1 : b.size[0];
        b.size[b.ndim - 2] = tn_size(x, -1);
        b.size[b.ndim - 1] = pick_integer(n, 1, 6);
    }
    return tn_matmul(x, next_weight(n, x, b));
}

static tn_tensor *apply_einsum(network *n, tn_tensor *x) {
    static const char *const equations[] = {"...i,ij->...j", "...i,ij->j...", "...i,ij->...ij"};
    const char *equation = equations[pick_integer(n, 0, n->batched ? 0 : 2)];
    if (tn_ndim(x) < 1 + n->batched || tn_ndim(x) > 4) {
        return NULL;
    }
    tn_tensor *operands[] = {x, next_weight(n, x, TN_DIMS(tn_size(x, -1), pick_integer(n, 1, 5)))};
    return tn_einsum(equation, operands, 2);
}

static tn_tensor *self_attention(network *n, tn_tensor *x) {
    if (tn_ndim(x) != 4) {
        return NULL;
    }
    tn_attention_options o = tn_attention_defaults();
    o.causal = toss_coin(n);
    o.scale = toss_coin(n) ? 0 : pick_real(n, 0.1, 1);
    tn_tensor *k = tn_mul(x, next_weight(n, x, TN_DIMS(tn_size(x, -1)))), *v = tn_tanh(x),
              *mask = NULL;
    if (toss_coin(n)) { /* each position sees itself */
        mask = tn_gt(tn_triu(tn_ones(TN_DIMS(tn_size(x, 2), tn_size(x, 2)), TN_F32), 0),
                     tn_scalar(0, TN_F32));
    }
    return tn_attention(x, k, v, mask, o);
}

static tn_rnn *make_recurrent(int kind, int64_t in, int64_t hidden, tn_rnn_options o) {
    return kind == 0   ? tn_lstm_new_with(in, hidden, o)
           : kind == 1 ? tn_gru_new_with(in, hidden, o)
                       : tn_rnn_new_with(in, hidden, o);
}

/* From the module at `user`. */
static bool copy_parameter(const tn_entry *entry, void *user) {
    tn_copy_(*entry->field, tn_module_get(user, entry->path));
    return true;
}

static tn_tensor *apply_recurrent(network *n, tn_tensor *x) {
    if (tn_ndim(x) != 3) {
        return NULL;
    }
    tn_rnn_options o = tn_rnn_defaults();
    o.layers = (int)pick_integer(n, 1, 2);
    o.bias = toss_coin(n);
    o.batch_first = n->batched || toss_coin(n);
    o.bidirectional = toss_coin(n);
    int kind = (int)pick_integer(n, 0, 3), i = next_part(n);
    int64_t hidden = pick_integer(n, 1, 6);
    o.relu = kind == 3;
    if (!n->parts[i].layer) {
        n->parts[i].layer = make_recurrent(kind, tn_size(x, -1), hidden, o);
        o.dtype = TN_F64;
        n->parts[i].exact = make_recurrent(kind, tn_size(x, -1), hidden, o);
        tn_module_append(n, n->parts[i].layer);
    }
    if (tn_dtype_of(x) == TN_F64) {
        tn_module_each(n->parts[i].exact, (tn_walk){0}, copy_parameter, n->parts[i].layer);
        return tn_call(n->parts[i].exact, x);
    }
    return tn_call(n->parts[i].layer, x);
}

/* ---- Element by element ---------------------------------------------------------------------- */

static tn_tensor *apply_activation(network *n, tn_tensor *x) {
    double a = pick_real(n, 0.1, 2);
    switch (pick_integer(n, 0, 15)) {
    case 0:
        return tn_relu(x);
    case 1:
        return tn_gelu(x);
    case 2:
        return tn_gelu_tanh(x);
    case 3:
        return tn_silu(x);
    case 4:
        return tn_sigmoid(x);
    case 5:
        return tn_tanh(x);
    case 6:
        return tn_elu(x, a);
    case 7:
        return tn_leaky_relu(x, a / 2);
    case 8:
        return tn_softplus(x, a, 20);
    case 9:
        return tn_mish(x);
    case 10:
        return tn_hardswish(x);
    case 11:
        return tn_hardtanh(x, -a, a);
    case 12:
        return tn_hardsigmoid(x);
    case 13:
        return tn_selu(x);
    case 14:
        return tn_logsigmoid(x);
    default:
        return tn_relu6(x);
    }
}

static tn_tensor *one_by_one(network *n, tn_tensor *x) {
    double a = pick_real(n, 0.2, 2);
    tn_tensor *above = tn_add_scalar(tn_square(x), a), *small = tn_tanh(x);
    switch (pick_integer(n, 0, 17)) {
    case 0:
        return tn_exp(small);
    case 1:
        return tn_log(above);
    case 2:
        return tn_sqrt(above);
    case 3:
        return tn_rsqrt(above);
    case 4:
        return tn_reciprocal(above);
    case 5:
        return tn_sin(x);
    case 6:
        return tn_cos(x);
    case 7:
        return tn_erf(x);
    case 8:
        return tn_abs(x);
    case 9:
        return tn_expm1(small);
    case 10:
        return tn_log1p(above);
    case 11:
        return tn_atan(x);
    case 12:
        return tn_sinh(small);
    case 13:
        return tn_pow_scalar(above, a);
    case 14:
        return tn_rsub_scalar(x, a);
    case 15:
        return tn_rdiv_scalar(above, a);
    case 16:
        return tn_clamp(x, -a, toss_coin(n) ? a : (double)INFINITY);
    default:
        return tn_add_scalar(tn_mul_scalar(x, a), -a);
    }
}

/* With a weight that broadcasts, or with the input of an earlier step. */
static tn_tensor *two_by_two(network *n, tn_tensor *x) {
    int kind = (int)pick_integer(n, 0, 7);
    tn_tensor *other = n->before[pick_integer(n, 0, n->before_count - 1)];
    tn_dims both;
    bool fits = tn_dims_broadcast(tn_shape(x), tn_shape(other), &both) &&
                (!n->batched || tn_ndim(other) == tn_ndim(x) || tn_ndim(other) < 1);
    if (toss_coin(n) || !fits) {
        other = next_weight(n, x, broadcastable_dims(n, x));
    }
    tn_tensor *above = tn_add_scalar(tn_square(other), 0.5);
    switch (kind) {
    case 0:
        return tn_add(x, other);
    case 1:
        return tn_sub(other, x);
    case 2:
        return tn_mul(x, other);
    case 3:
        return tn_div(x, above);
    case 4:
        return tn_maximum(x, other);
    case 5:
        return tn_minimum(other, x);
    case 6:
        return tn_pow(above, tn_tanh(x));
    default:
        return tn_where(tn_gt(x, other), x, other);
    }
}

static tn_tensor *fill_masked(network *n, tn_tensor *x) {
    tn_tensor *w = next_weight(n, x, broadcastable_dims(n, x));
    return tn_masked_fill(x, tn_gt(w, tn_scalar(0, tn_dtype_of(x))), pick_real(n, -1, 1));
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* Merges neighbouring dimensions, or splits one in two. */
static tn_tensor *reshape_dims(network *n, tn_tensor *x) {
    int d = any_dim(n, x), ndim = tn_ndim(x), kind = (int)pick_integer(n, 0, 2);
    if (d < 0) {
        return NULL;
    }
    if (kind == 0 && d + 1 < ndim) {
        return tn_flatten(x, d, (int)pick_integer(n, d + 1, ndim - 1));
    }
    tn_dims from = tn_shape(x), to = {.ndim = ndim + 1};
    int64_t part = some_groups(n, from.size[d]);
    for (int i = 0; i < to.ndim; i++) {
        to.size[i] = i < d ? from.size[i] : i == d ? part : from.size[i - 1];
    }
    to.size[d + 1] = from.size[d] / part;
    to.size[0] = n->batched ? -1 : to.size[0];
    return ndim < 5 ? tn_reshape(x, to) : tn_flatten(x, d, -1);
}

static tn_tensor *permute_dims(network *n, tn_tensor *x) {
    tn_dims order = {.ndim = tn_ndim(x)};
    int first = n->batched ? 1 : 0;
    for (int i = 0; i < order.ndim; i++) {
        order.size[i] = i;
    }
    for (int i = order.ndim - 1; i > first; i--) {
        int k = (int)pick_integer(n, first, i);
        int64_t other = order.size[k];
        order.size[k] = order.size[i];
        order.size[i] = other;
    }
    return tn_permute(x, order);
}

static tn_tensor *take_part(network *n, tn_tensor *x) {
    int d = any_dim(n, x);
    if (d < 0) {
        return NULL;
    }
    int64_t size = tn_size(x, d), start = pick_integer(n, 0, size - 1),
            length = pick_integer(n, 1, size - start);
    switch (pick_integer(n, 0, 3)) {
    case 0:
        return tn_narrow(x, d, start, length);
    case 1:
        return tn_slice(x, d, start, start + length, pick_integer(n, 1, 3));
    case 2:
        return tn_select(x, d, start);
    default: {
        tn_tensor *parts[16];
        int count = tn_split(x, length, d, parts, 16);
        return tn_cat((tn_tensor *[]){parts[count / 2], parts[0]}, 2, d);
    }
    }
}

static tn_tensor *rearrange_elements(network *n, tn_tensor *x) {
    int d = any_dim(n, x);
    if (d < 0) {
        return NULL;
    }
    tn_dims times = {.ndim = tn_ndim(x)};
    for (int i = 0; i < times.ndim; i++) {
        times.size[i] = i == d ? pick_integer(n, 1, 3) : 1;
    }
    switch (pick_integer(n, 0, 7)) {
    case 0:
        return tn_flip(x, TN_DIMS(d));
    case 1:
        return tn_roll(x, TN_DIMS(pick_integer(n, -3, 3)), TN_DIMS(d));
    case 2:
        return tn_repeat(x, times);
    case 3:
        return tn_repeat_interleave(x, pick_integer(n, 1, 3), d);
    case 4:
        return tn_ndim(x) < 2 + n->batched ? NULL : tn_tril(x, pick_integer(n, -1, 2));
    case 5:
        return tn_ndim(x) < 2 + n->batched ? NULL : tn_triu(x, pick_integer(n, -2, 1));
    case 6:
        return tn_unsqueeze(x, d);
    default:
        return tn_squeeze(x, d);
    }
}

static tn_tensor *expand_dims(network *n, tn_tensor *x) {
    tn_dims dims = tn_shape(x);
    int first = n->batched ? 1 : 0;
    for (int i = first; i < dims.ndim; i++) {
        dims.size[i] = dims.size[i] == 1 ? pick_integer(n, 1, 4) : dims.size[i];
    }
    return tn_mul(tn_expand(x, dims), next_weight(n, x, TN_DIMS()));
}

static tn_tensor *join_tensors(network *n, tn_tensor *x) {
    int d = any_dim(n, x);
    tn_tensor *other = n->before[pick_integer(n, 0, n->before_count - 1)];
    if (d < 0) {
        return NULL;
    }
    other = tn_dims_equal(tn_shape(other), tn_shape(x)) ? other : tn_neg(x);
    tn_tensor *parts[] = {x, other, tn_tanh(x)};
    int count = (int)pick_integer(n, 1, 3);
    return toss_coin(n) ? tn_cat(parts, count, d) : tn_stack(parts, count, d);
}

static tn_tensor *pick_rows(network *n, tn_tensor *x) {
    int d = any_dim(n, x);
    if (d < 0) {
        return NULL;
    }
    int64_t index[4];
    for (int i = 0; i < 4; i++) {
        index[i] = pick_integer(n, 0, tn_size(x, d) - 1);
    }
    tn_tensor *rows = tn_from_data(index, TN_DIMS(pick_integer(n, 1, 4)), TN_I64);
    return tn_index_select(x, d, rows);
}

/* ---- Along dimensions ------------------------------------------------------------------------ */

static tn_tensor *reduce_dims(network *n, tn_tensor *x) {
    int d = any_dim(n, x), more = any_dim(n, x);
    if (d < 0) {
        return NULL;
    }
    tn_dims dims = more == d || toss_coin(n) ? TN_DIMS(d) : TN_DIMS(d, more - tn_ndim(x));
    dims = !n->batched && pick_integer(n, 0, 4) == 0 ? TN_DIMS() : dims;
    bool keep = toss_coin(n);
    switch (pick_integer(n, 0, 9)) {
    case 0:
        return tn_sum(x, dims, keep);
    case 1:
        return tn_mean(x, dims, keep);
    case 2:
        return tn_max(x, dims, keep);
    case 3:
        return tn_min(x, dims, keep);
    case 4:
        return tn_var(x, dims, (int)pick_integer(n, 0, 1), keep);
    case 5:
        return tn_std(x, dims, (int)pick_integer(n, 0, 1), keep);
    case 6:
        return tn_logsumexp(x, dims, keep);
    case 7:
        return tn_prod(tn_tanh(x), dims, keep);
    case 8:
        return tn_norm(x, (double)pick_integer(n, 1, 3), dims, keep);
    default:
        return tn_norm(x, (double)INFINITY, dims, keep);
    }
}

static tn_tensor *apply_along(network *n, tn_tensor *x) {
    int d = any_dim(n, x);
    if (d < 0) {
        return NULL;
    }
    switch (pick_integer(n, 0, 4)) {
    case 0:
        return tn_softmax(x, toss_coin(n) ? d : d - tn_ndim(x));
    case 1:
        return tn_log_softmax(x, d);
    case 2:
        return tn_cumsum(x, d);
    case 3:
        return tn_sort(x, d, toss_coin(n), NULL);
    default:
        return tn_topk(x, pick_integer(n, 1, tn_size(x, d)), d, toss_coin(n), NULL);
    }
}

/* ---- Networks -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    network_step run;
} steps[] = {
    {"convolution", apply_convolution},
    {"convolution", apply_convolution},
    {"transposed_convolution", transposed_convolution},
    {"pooling", apply_pooling},
    {"adaptive_pooling", adaptive_pooling},
    {"interpolation", apply_interpolation},
    {"patches", unfold_patches},
    {"padding", apply_padding},
    {"norm", apply_norm},
    {"linear", apply_linear},
    {"product", apply_matmul},
    {"subscripts", apply_einsum},
    {"self_attention", self_attention},
    {"recurrence", apply_recurrent},
    {"activation", apply_activation},
    {"one_by_one", one_by_one},
    {"two_by_two", two_by_two},
    {"fill_masked", fill_masked},
    {"reshaping", reshape_dims},
    {"permutation", permute_dims},
    {"part", take_part},
    {"rearranging", rearrange_elements},
    {"expansion", expand_dims},
    {"joining", join_tensors},
    {"picking", pick_rows},
    {"reduction", reduce_dims},
    {"along", apply_along},
};

/* Runs step number `step`; NULL if it does not fit. */
static tn_tensor *run_step(network *n, uint64_t step, tn_tensor *x, const char **name) {
    n->draw = (tn_generator){.seed = n->seed, .stream = step};
    n->step = step;
    n->place = 0;
    int64_t kind = pick_integer(n, 0, (int64_t)(sizeof(steps) / sizeof(*steps)) - 1);
    n->before[n->before_count++] = x;
    *name = steps[kind].name;
    return steps[kind].run(n, x);
}

/* Whether the network can continue with this result. */
static bool is_usable(const network *n, tn_tensor *y) {
    int64_t count = tn_count(y);
    if (count == 0 || count > LARGEST || tn_ndim(y) > 5 || (n->batched && tn_ndim(y) < 1)) {
        return false;
    }
    double top = tn_item(tn_norm(y, (double)INFINITY, TN_DIMS(), false));
    return top > 1e-3 && top < 1e3 && tn_item(tn_all(tn_isfinite(y)));
}

/* The first run: which steps the network has. */
static tn_tensor *find_steps(network *n, tn_tensor *x) {
    int wanted = 1 + (int)tn_random_below(&(tn_generator){.seed = n->seed}, MOST_STEPS);
    for (int i = 1; i <= MOST_TRIES && n->count < wanted; i++) {
        tn_tensor *y = run_step(n, (uint64_t)i, x, &n->names[n->count]);
        if (tn_error()) {
            fprintf(stderr, "seed %llu: %s: %s\n", (unsigned long long)n->seed, n->names[n->count],
                    tn_error_message());
            exit(1);
        }
        if (y && is_usable(n, y)) {
            n->kept[n->count++] = i;
            x = y;
        } else {
            n->before_count--;
        }
    }
    return x;
}

static tn_values network_forward(tn_module *self, tn_values in, void *context) {
    network *n = (network *)self;
    tn_tensor *x = in.v[0];
    n->before_count = 0;
    if (n->first_run) {
        n->first_run = false;
        return TN_VALUES(find_steps(n, x));
    }
    for (int i = 0; i < n->count; i++) {
        x = run_step(n, (uint64_t)n->kept[i], x, &n->names[i]);
    }
    return TN_VALUES(x);
}

/* How far f32 is from f64, relative to the largest number. */
static double distance_from_f64(network *n, tn_tensor *x) {
    TN_SCOPE;
    tn_tensor *y = tn_cast(tn_call(n, x), TN_F64), *exact = tn_call(n, tn_cast(x, TN_F64));
    tn_dims all = TN_DIMS();
    return tn_item(tn_norm(tn_sub(y, exact), (double)INFINITY, all, false)) /
           tn_item(tn_norm(exact, (double)INFINITY, all, false));
}

static void describe_network(const network *n, tn_tensor *x, const char *name) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.txt", folder, name);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%s", tn_shape_text(x));
        for (int i = 0; i < n->count; i++) {
            fprintf(file, " %s", n->names[i]);
        }
        fprintf(file, "\n");
        fclose(file);
    }
}

static tn_values call_network(void *user, tn_values in) {
    return tn_call_values(user, in, NULL);
}

/* The input: 1 to 5 dimensions, most often 4. */
static tn_tensor *draw_input(network *n) {
    n->draw = (tn_generator){.seed = n->seed};
    tn_dims dims = {.ndim = (int)pick_integer(n, 1 + n->batched, 7)};
    dims.ndim = dims.ndim > 5 ? 4 : dims.ndim;
    for (int i = 0; i < dims.ndim; i++) {
        dims.size[i] = pick_integer(n, i == 0 ? 1 : 1 + toss_coin(n), dims.ndim > 4 ? 5 : 8);
    }
    tn_tensor *x = tn_empty(dims, TN_F32);
    return tn_normal_(x, 0, 1, &n->draw);
}

/* False if it was left out. */
static bool dump_network(uint64_t seed, bool batched) {
    TN_SCOPE;
    TN_NO_GRAD;
    char name[64];
    tn_seed(seed);
    network *n = tn_module_new_values(sizeof(*n), "network", network_forward);
    n->seed = seed;
    n->batched = batched;
    n->first_run = true;
    tn_tensor *x = draw_input(n);
    tn_module_train(n, false);
    tn_call(n, x);
    tn_module_train(n, false); /* and the layers that it made */
    bool sound = distance_from_f64(n, x) < SOUND;
    if (sound) {
        snprintf(name, sizeof(name), "random.%s.%llu", batched ? "batches" : "networks",
                 (unsigned long long)seed);
        describe_network(n, x, name);
        tn_tensor *twice[] = {x, tn_neg(x)};
        tn_tensor *run = batched ? tn_cat(twice, 2, 0) : x;
        dump_case_as(name, call_network, n, n, TN_VALUES(run), TN_VALUES(x), batched);
    }
    for (int i = 0; i < n->part_count; i++) {
        tn_module_free(n->parts[i].exact);
    }
    tn_module_free(n);
    return sound;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: dump_onnx_random FOLDER COUNT SEED\n");
        return 2;
    }
    if (!cases_begin(argv[1])) {
        return 1;
    }
    uint64_t seed = strtoull(argv[3], NULL, 10);
    int count = atoi(argv[2]), left_out = 0;
    for (int i = 0; i < count; i++) {
        left_out += !dump_network(seed + (uint64_t)i, i % 2 == 1);
    }
    char path[4096];
    snprintf(path, sizeof(path), "%s/random.left_out", folder);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%d\n", left_out) < 0 || fclose(file) != 0) {
        perror(path);
        return 1;
    }
    return !cases_end();
}
