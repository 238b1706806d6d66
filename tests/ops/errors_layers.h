/* What the operations of nn/, pool/, conv/ and rnn/ refuse; a part of test_errors.c. */
#ifndef TERN_TESTS_OPS_ERRORS_LAYERS_H
#define TERN_TESTS_OPS_ERRORS_LAYERS_H

#include <math.h>

#include "backends/rotary.h"
#include "tests/ops/errors.h"

PLAIN_TEST(layer_errors) {
    TN_SCOPE;
    refused_with(tn_softmax(I(2), 0), TN_EDTYPE, "softmax: the dtype of x is i64");
    refused_with(tn_softmax(F(2), 1), TN_EINDEX, "softmax: dimension 1 of a tensor with 1");
    refused_with(tn_log_softmax(I(2), 0), TN_EDTYPE, "log_softmax: the dtype of x is i64");
    refused_with(tn_log_softmax(F(2), -2), TN_EINDEX,
                 "log_softmax: dimension -2 of a tensor with 1");
    refused_with(tn_layer_norm_op(I(2), NULL, NULL, 1e-5), TN_EDTYPE,
                 "layer_norm: the dtype of x is i64");
    refused_with(tn_layer_norm_op(F(2), D(2), NULL, 1e-5), TN_EDTYPE,
                 "layer_norm: x is f32 but weight is f64");
    refused_with(tn_layer_norm_op(F(), NULL, NULL, 1e-5), TN_ESHAPE, "layer_norm: x is []");
    refused_with(tn_layer_norm_op(F(2, 3), F(2), NULL, 1e-5), TN_ESHAPE,
                 "layer_norm: x is [2, 3] but weight is [2]");
    refused_with(tn_layer_norm_op(F(2, 3), NULL, F(1, 3), 1e-5), TN_ESHAPE,
                 "layer_norm: x is [2, 3] but bias is [1, 3]");
    refused_with(tn_add_layer_norm(F(2, 3), F(3), NULL, NULL, 1e-5, NULL), TN_ESHAPE,
                 "add_layer_norm: a is [2, 3] and b is [3]");
    refused_with(tn_add_layer_norm(F(2, 3), F(2, 3), F(2), NULL, 1e-5, NULL), TN_ESHAPE,
                 "add_layer_norm: a is [2, 3] but weight is [2]");
    refused_with(tn_layer_norm_op(F(2), NULL, NULL, -1.0), TN_EVALUE, "layer_norm: eps is -1");
    refused_with(tn_add_layer_norm(F(2), F(2), NULL, NULL, NAN, NULL), TN_EVALUE, "eps is nan");
    refused_with(tn_rms_norm_op(F(2), NULL, NAN), TN_EVALUE, "rms_norm: eps is nan");
    refused_with(tn_group_norm_op(F(2, 4), 2, NULL, NULL, -1e-5), TN_EVALUE, "eps is -1e-05");
    for (int training = 0; training < 2; training++) {
        refused_with(tn_batch_norm(F(3, 2), F(2), F(2), NULL, NULL, training, 0.1, -1.0), TN_EVALUE,
                     "eps is -1");
    }
    refused_with(tn_rms_norm_op(I(2), NULL, 1e-5), TN_EDTYPE, "rms_norm: the dtype of x is i64");
    refused_with(tn_rms_norm_op(F(2), D(2), 1e-5), TN_EDTYPE,
                 "rms_norm: x is f32 but weight is f64");
    refused_with(tn_rms_norm_op(F(), NULL, 1e-5), TN_ESHAPE, "rms_norm: x is []");
    refused_with(tn_rms_norm_op(F(2, 3), F(2), 1e-5), TN_ESHAPE,
                 "rms_norm: x is [2, 3] but weight is [2]");
    refused_with(tn_add_rms_norm(F(2, 3), F(3), NULL, 1e-5, NULL), TN_ESHAPE,
                 "add_rms_norm: a is [2, 3] and b is [3]");
    refused_with(tn_add_rms_norm(F(2, 3), F(2, 3), F(2), 1e-5, NULL), TN_ESHAPE,
                 "add_rms_norm: a is [2, 3] but weight is [2]");
    refused_with(tn_dropout_op(F(2), 1.5), TN_EVALUE, "dropout: p is 1.5");
    refused_with(tn_dropout_op(F(2), NAN), TN_EVALUE, "dropout: p is nan");
    refused_with(tn_dropout_op(I(2), 0.5), TN_EDTYPE, "dropout: x is i64");
}

static tn_tensor *batch_norm(tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return tn_batch_norm(x, NULL, NULL, weight, bias, true, 0.1, 1e-5);
}

PLAIN_TEST(batch_norms) {
    TN_SCOPE;
    tn_tensor *x = F(4, 3), *v = F(3);
    refused_with(batch_norm(I(4, 3), NULL, NULL), TN_EDTYPE, "batch_norm: the dtype of x is i64");
    refused_with(batch_norm(x, D(3), NULL), TN_EDTYPE, "batch_norm: x is f32 but weight is f64");
    refused_with(batch_norm(F(3), NULL, NULL), TN_ESHAPE, "batch_norm: x is [3] (it needs a batch");
    refused_with(batch_norm(x, F(4), NULL), TN_ESHAPE, "batch_norm: x is [4, 3] but weight is [4]");
    refused_with(batch_norm(x, NULL, F(3, 1)), TN_ESHAPE,
                 "batch_norm: x is [4, 3] but bias is [3, 1]");
    refused_with(batch_norm(F(1, 3), NULL, NULL), TN_EVALUE,
                 "batch_norm: x is [1, 3] (training needs");
    refused_with(tn_batch_norm(x, F(4), v, NULL, NULL, true, 0.1, 1e-5), TN_ESHAPE,
                 "batch_norm: x is f32 [4, 3] but running_mean is f32 [4]");
    refused_with(tn_batch_norm(x, F(4), v, NULL, NULL, false, 0.1, 1e-5), TN_ESHAPE,
                 "batch_norm_given: x is [4, 3] but mean is [4]");
    refused_with(tn_batch_norm(x, v, D(3), NULL, NULL, false, 0.1, 1e-5), TN_EDTYPE,
                 "batch_norm_given: x is f32 but var is f64");
}

typedef struct args_of_first {
    tn_op_samples samples; /* must be the first member */
    const void *args;
} args_of_first;

static void first_args(tn_op_samples *s, const tn_sample *sample) {
    args_of_first *first = (args_of_first *)s;
    first->args = first->args ? first->args : sample->args;
}

/* With the arguments of the operation's first sample: public functions cannot reach every
 * refusal. */
static tn_tensor *apply_as_first(const char *name, tn_tensor *x) {
    args_of_first first = {.samples = {.add = first_args}};
    tn_op_named(name)->samples(&first.samples);
    return tn_apply1(tn_op_named(name), first.args, x);
}

PLAIN_TEST(window_errors) {
    TN_SCOPE;
    tn_tensor *x = F(1, 1, 4, 4), *whole = I(1, 1, 4, 4);
    tn_pool_options o = tn_pool_defaults();
    refused_with(tn_max_pool2d_op(whole, TN_DIMS(2), o), TN_EDTYPE,
                 "max_pool: the dtype of x is i64");
    refused_with(tn_avg_pool2d_op(whole, TN_DIMS(2), o), TN_EDTYPE,
                 "avg_pool: the dtype of x is i64");
    refused_with(apply_as_first("max_pool", F(2, 3)), TN_ESHAPE,
                 "max_pool: x is [2, 3] but the sizes after (N, C) must be [");
    refused_with(apply_as_first("avg_pool", F(2, 3)), TN_ESHAPE, "avg_pool: x is [2, 3] but");
    refused_with(apply_as_first("avg_unpool", I(2, 3)), TN_EDTYPE,
                 "avg_unpool: the dtype of x is i64");
    refused_with(apply_as_first("avg_unpool", F(2, 3)), TN_ESHAPE, "avg_unpool: x is [2, 3] but");
    refused_with(tn_max_pool1d_op(x, TN_DIMS(2), o), TN_ESHAPE, "max_pool1d: x is [1, 1, 4, 4]");
    refused_with(tn_max_pool2d_op(x, TN_DIMS(5), o), TN_ESHAPE,
                 "max_pool2d: the window spans 5 elements, but there are 4 with the padding");
    refused_with(tn_avg_pool2d_op(x, TN_DIMS(0), o), TN_EVALUE, "avg_pool2d: the kernel is 0");
    refused_with(tn_adaptive_avg_pool2d_op(x, TN_DIMS(-1)), TN_EVALUE,
                 "adaptive_avg_pool2d: size is -1");
    o.padding = TN_DIMS(2);
    refused_with(tn_max_pool2d_op(x, TN_DIMS(2), o), TN_EVALUE,
                 "max_pool2d: padding is 2 but the kernel 2 (at most half of that is possible)");
    o = tn_pool_defaults();
    o.divisor_override = -1;
    refused_with(tn_avg_pool2d_op(x, TN_DIMS(2), o), TN_EVALUE, "avg_pool2d: divisor is -1");
    tn_unfold_options u = tn_unfold_defaults();
    refused_with(tn_unfold(whole, TN_DIMS(2), u), TN_EDTYPE, "unfold: the dtype of x is i64");
    refused_with(tn_unfold(F(4, 4), TN_DIMS(2), u), TN_ESHAPE,
                 "unfold: x is [4, 4] (it needs (N, C, ");
    refused_with(tn_unfold(x, TN_DIMS(5), u), TN_ESHAPE, "unfold: the window spans 5 elements");
    refused_with(apply_as_first("unfold", F(2, 3)), TN_ESHAPE, "unfold: x is [2, 3] but the sizes");
    refused_with(tn_fold(I(1, 4, 9), TN_DIMS(4), TN_DIMS(2), u), TN_EDTYPE,
                 "fold: the dtype of x is i64");
    refused_with(tn_fold(F(1, 4, 8), TN_DIMS(4), TN_DIMS(2), u), TN_ESHAPE,
                 "fold: x is [1, 4, 8] (it needs (N, C 4, 9) for this kernel and this size)");
    u.padding = TN_DIMS(5);
    refused_with(tn_fold(F(1, 4, 9), TN_DIMS(-1), TN_DIMS(2), u), TN_EVALUE, "fold: size is -1");
    tn_interpolate_options r = tn_interpolate_defaults();
    refused_with(tn_interpolate(x, r), TN_EVALUE, "interpolate: 0 sizes, scale_factor 0");
    r.scale_factor = NAN;
    refused_with(tn_interpolate(x, r), TN_EVALUE, "interpolate: 4 elements would become nan");
    r.scale_factor = 2.0;
    refused_with(tn_interpolate(whole, r), TN_EDTYPE, "resample: the dtype of x is i64");
    refused_with(apply_as_first("resample", F(2)), TN_ESHAPE, "resample: x is [2] but dimension ");
    refused_with(apply_as_first("resample_grad", I(2)), TN_EDTYPE, "resample_grad: the dtype of x");
    refused_with(apply_as_first("resample_grad", F(2)), TN_ESHAPE,
                 "resample_grad: x is [2] but dimension ");
}

PLAIN_TEST(rotary_errors) {
    TN_SCOPE;
    tn_rotary_options o = tn_rotary_defaults();
    refused_with(tn_rotary(I(1, 1, 3, 2), I(3), o), TN_EDTYPE, "rotary: the dtype of x is i64");
    refused_with(tn_rotary(F(1, 1, 3, 2), F(3), o), TN_EDTYPE,
                 "rotary: the dtype of positions is f32");
    refused_with(tn_rotary(F(1, 3, 2), I(3), o), TN_ESHAPE, "rotary: x is [1, 3, 2] but needs 4");
    refused_with(tn_rotary(F(1, 1, 3, 5), I(3), o), TN_ESHAPE, "rotary: x is [1, 1, 3, 5]");
    refused_with(tn_rotary(F(2, 1, 3, 2), I(4), o), TN_ESHAPE,
                 "positions are [4] (they must be [3] or [2, 3])");
    refused_with(tn_rotary(F(2, 1, 3, 2), I(3, 3), o), TN_ESHAPE, "positions are [3, 3]");
    const tn_op *qkv = tn_op_named("rotary_qkv");
    tn_rotary_args args = {.theta = 10.0, .factor = 1.0};
    tn_tensor *in[4] = {F(1, 4, 3, 2), D(1, 2, 3, 2), F(1, 2, 3, 2), I(3)};
    refused_with(tn_apply(qkv, &args, in, 4), TN_EDTYPE, "rotary_qkv: q is f32 but k is f64");
    in[1] = F(1, 2, 3, 4);
    refused_with(tn_apply(qkv, &args, in, 4), TN_ESHAPE,
                 "rotary_qkv: q is [1, 4, 3, 2], k [1, 2, 3, 4] and v [1, 2, 3, 2]");
    in[3] = I(4);
    refused_with(tn_apply(qkv, &args, in, 4), TN_ESHAPE,
                 "rotary_qkv: q is [1, 4, 3, 2] but positions are [4]");
    refused_with(tn_rotary(F(2, 1, 3, 2), I(), o), TN_ESHAPE, "positions are []");
    o.theta = 0.0;
    refused_with(tn_rotary(F(1, 1, 3, 2), I(3), o), TN_EVALUE, "rotary: theta is 0 and factor 1");
    o = tn_rotary_defaults();
    o.factor = 2.0;
    o.high_freq_factor = 1.0;
    refused_with(tn_rotary(F(1, 1, 3, 2), I(3), o), TN_EVALUE, "high_freq_factor 1");
}

PLAIN_TEST(attention_errors) {
    TN_SCOPE;
    tn_attention_options o = tn_attention_defaults();
    tn_tensor *q = F(1, 4, 3, 2), *k = F(1, 2, 5, 2);
    refused_with(tn_attention(I(1, 1, 1, 1), k, k, NULL, o), TN_EDTYPE,
                 "attention: the dtype of q is i64");
    refused_with(tn_attention(q, D(1, 2, 5, 2), k, NULL, o), TN_EDTYPE,
                 "attention: q is f32 but k is f64");
    refused_with(tn_attention(q, k, F(2, 5, 2), NULL, o), TN_ESHAPE, "attention: v is [2, 5, 2]");
    refused_with(tn_attention(q, k, F(1, 2, 4, 2), NULL, o), TN_ESHAPE,
                 "attention: k is [1, 2, 5, 2] but v is [1, 2, 4, 2]");
    refused_with(tn_attention(q, F(2, 2, 5, 2), F(2, 2, 5, 2), NULL, o), TN_ESHAPE,
                 "attention: q is [1, 4, 3, 2] but k is [2, 2, 5, 2]");
    refused_with(tn_attention(q, F(1, 2, 5, 3), F(1, 2, 5, 3), NULL, o), TN_ESHAPE,
                 "attention: q is [1, 4, 3, 2] but k is [1, 2, 5, 3]");
    refused_with(tn_attention(q, F(1, 3, 5, 2), F(1, 3, 5, 2), NULL, o), TN_ESHAPE,
                 "attention: q is [1, 4, 3, 2] but k is [1, 3, 5, 2]");
    refused_with(tn_attention(q, k, k, F(3, 5), o), TN_EDTYPE, "attention: mask is f32");
    refused_with(
        tn_attention(q, k, k, B(3, 4), o), TN_ESHAPE,
        "attention: mask is [3, 4] but must broadcast to (batch, heads, queries, keys) = [1, "
        "4, 3, 5]");
    refused_with(tn_attention_qkv(I(1, 2, 6), 1, NULL, o), TN_EDTYPE,
                 "attention_qkv: the dtype of qkv is i64");
    refused_with(tn_attention_qkv(F(2, 6), 1, NULL, o), TN_ESHAPE, "attention_qkv: qkv is [2, 6]");
    refused_with(tn_attention_qkv(F(1, 2, 6), 4, NULL, o), TN_ESHAPE,
                 "attention_qkv: qkv is [1, 2, 6] but heads is 4");
    refused_with(tn_attention_qkv(F(1, 2, 6), 0, NULL, o), TN_ESHAPE,
                 "attention_qkv: qkv is [1, 2, 6] but heads is 0");
    refused_with(tn_attention_qkv(F(1, 2, 6), 2, F(2, 2), o), TN_EDTYPE,
                 "attention_qkv: mask is f32");
}

PLAIN_TEST(convolution_errors) {
    TN_SCOPE;
    tn_conv_options o = tn_conv_defaults();
    refused_with(tn_conv2d_op(I(1, 1, 3, 3), I(1, 1, 2, 2), NULL, o), TN_EDTYPE,
                 "conv: the dtype of x is i64");
    refused_with(tn_conv2d_op(F(1, 1, 3, 3), D(1, 1, 2, 2), NULL, o), TN_EDTYPE,
                 "conv: x is f32 but weight is f64");
    refused_with(
        tn_conv1d_op(F(1, 1, 3, 3), F(1, 1, 2), NULL, o), TN_ESHAPE,
        "conv: x is [1, 1, 3, 3] but needs 3 dimensions: batch, channels and 1 of the kernel");
    refused_with(tn_conv3d_op(F(1, 1, 3, 3, 3), F(1, 1, 2, 2), NULL, o), TN_ESHAPE,
                 "conv: weight is [1, 1, 2, 2] but needs 5 dimensions");
    refused_with(
        tn_conv2d_op(F(2, 4, 8, 8), F(6, 3, 3, 3), NULL, o), TN_ESHAPE,
        "conv: x is [2, 4, 8, 8] but weight is [6, 3, 3, 3] with 1 groups (x needs 3 channels");
    refused_with(tn_conv2d_op(F(1, 1, 2, 5), F(1, 1, 3, 3), NULL, o), TN_ESHAPE,
                 "conv: weight is [1, 1, 3, 3], which with dilation 1 spans 3 elements, but x is "
                 "[1, 1, 2, 5], which with padding 0 has 2 there (dimension 2)");
    refused_with(tn_conv2d_op(F(1, 1, 2, 5), F(1, 1, 0, 3), NULL, o), TN_ESHAPE,
                 "spans 0 elements");
    refused_with(tn_conv2d_op(F(1, 1, 3, 3), F(4, 1, 2, 2), F(3), o), TN_ESHAPE,
                 "conv: weight is [4, 1, 2, 2], which makes 4 channels, but bias is [3]");
    refused_with(tn_conv_transpose2d_op(F(2, 4, 8, 8), F(3, 6, 3, 3), NULL, o), TN_ESHAPE,
                 "conv_transpose: x is [2, 4, 8, 8] but weight is [3, 6, 3, 3] with 1 groups");
    refused_with(tn_conv_transpose1d_op(F(2, 4), F(3, 6), NULL, o), TN_ESHAPE,
                 "conv_transpose: weight is [3, 6] but needs 3 dimensions: channels in");
    refused_with(tn_conv_transpose1d_op(F(1, 1, 2), F(1, 1, 2), NULL, tn_conv_strided(1, 2)),
                 TN_ESHAPE, "the result would have size -1 in dimension 2");
    o.groups = 2;
    refused_with(tn_conv2d_op(F(2, 4, 8, 8), F(3, 2, 3, 3), NULL, o), TN_ESHAPE, "with 2 groups");
    o.groups = 0;
    refused_with(tn_conv2d_op(F(2, 4, 8, 8), F(3, 2, 3, 3), NULL, o), TN_EVALUE,
                 "conv2d: groups is 0 (it must be at least 1)");
    refused_with(tn_conv3d_op(F(), F(), NULL, tn_conv_strided(0, 0)), TN_EVALUE,
                 "conv3d: stride is 0");
    refused_with(tn_conv1d_op(F(), F(), NULL, tn_conv_strided(1, -1)), TN_EVALUE,
                 "conv1d: padding is -1");
    o = tn_conv_defaults();
    o.dilation = TN_DIMS(1, 1);
    refused_with(tn_conv1d_op(F(), F(), NULL, o), TN_EVALUE,
                 "conv1d: dilation has 2 numbers (1 or 1 are needed)");
    o = tn_conv_strided(2, 0);
    o.output_padding = TN_DIMS(2);
    refused_with(tn_conv_transpose1d_op(F(), F(), NULL, o), TN_EVALUE,
                 "conv_transpose1d: output_padding is 2 but stride is 2 and dilation 1");
    o.same = true;
    refused_with(tn_conv1d_op(F(1, 1, 4), F(1, 1, 3), NULL, o), TN_EVALUE,
                 "conv1d: padding is to keep x's sizes, but stride is 2");
    struct { /* the arguments of conv_weight_grad, which has no public function */
        tn_conv_args kernel;
        int spatial;
        tn_dims size;
    } call = {{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}, 1, TN_DIMS(2)};
    const tn_op *gradient = tn_op_named("conv_weight_grad");
    assert_int_equal(gradient->args_size, sizeof call);
    refused_with(tn_apply2(gradient, &call, F(1, 2, 3), F(2, 2, 4)), TN_ESHAPE,
                 "conv_weight_grad: dy is [1, 2, 3] but x is [2, 2, 4]");
}

PLAIN_TEST(recurrent_errors) {
    TN_SCOPE;
    tn_tensor *x = F(2, 1, 2);
    tn_rnn_weights w = {.weight_ih = F(3, 2), .weight_hh = F(3, 3)};
    refused_with(tn_rnn_op(F(2, 2), NULL, w, NULL, false, false, NULL), TN_ESHAPE,
                 "rnn: x is [2, 2] but must be (times, batch, in)");
    refused_with(tn_rnn_op(I(2, 1, 2), NULL, w, NULL, false, false, NULL), TN_EDTYPE,
                 "rnn: the dtype of x is i64");
    refused_with(tn_rnn_op(x, D(1, 3), w, NULL, false, false, NULL), TN_EDTYPE,
                 "rnn: x is f32 but h0 is f64");
    refused_with(tn_rnn_op(x, F(2, 3), w, NULL, false, false, NULL), TN_ESHAPE,
                 "rnn: h0 is [2, 3] but must be [1, 3] (batch, units)");
    refused_with(tn_gru_op(x, NULL, w, NULL, false, NULL), TN_ESHAPE,
                 "gru: weight_hh is [3, 3] but must be (3 units, units)");
    w.weight_hh = F(12, 3);
    refused_with(tn_lstm_op(x, NULL, NULL, w, NULL, false, NULL, NULL), TN_ESHAPE,
                 "lstm: weight_ih is [3, 2] but must be [12, 2]");
    w.weight_ih = F(12, 2);
    refused_with(tn_lstm_op(x, NULL, F(1, 2), w, NULL, false, NULL, NULL), TN_ESHAPE,
                 "lstm: c0 is [1, 2] but must be [1, 3]");
    refused_with(tn_lstm_op(x, NULL, NULL, w, F(1), false, NULL, NULL), TN_EDTYPE,
                 "lstm: the dtype of lengths is f32");
}

#endif
