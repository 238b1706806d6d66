/* What the operations of nn/, pool/, conv/ and rnn/ refuse; a part of test_errors.c. */
#ifndef TERN_TESTS_OPS_ERRORS_LAYERS_H
#define TERN_TESTS_OPS_ERRORS_LAYERS_H

#include <math.h>

#include "backends/rotary.h"
#include "tests/ops/errors.h"

TEST(layer_errors) {
    refused(tn_softmax(I(2), 0));
    refused(tn_softmax(F(2), 1));
    refused(tn_log_softmax(I(2), 0));
    refused(tn_log_softmax(F(2), -2));
    refused(tn_softmax(F(), -2));
    refused(tn_layer_norm_op(I(2), NULL, NULL, 1e-5));
    refused(tn_layer_norm_op(F(2), D(2), NULL, 1e-5));
    refused(tn_layer_norm_op(F(), NULL, NULL, 1e-5));
    refused(tn_layer_norm_op(F(2, 3), F(2), NULL, 1e-5));
    refused(tn_layer_norm_op(F(2, 3), NULL, F(1, 3), 1e-5));
    refused(tn_add_layer_norm(F(2, 3), F(3), NULL, NULL, 1e-5, NULL));
    refused(tn_add_layer_norm(F(2, 3), F(2, 3), F(2), NULL, 1e-5, NULL));
    refused(tn_layer_norm_op(F(2), NULL, NULL, -1.0));
    refused(tn_add_layer_norm(F(2), F(2), NULL, NULL, NAN, NULL));
    refused(tn_rms_norm_op(F(2), NULL, NAN));
    refused(tn_group_norm_op(F(2, 4), 2, NULL, NULL, -1e-5));
    for (int training = 0; training < 2; training++) {
        refused(tn_batch_norm(F(3, 2), F(2), F(2), NULL, NULL, training, 0.1, -1.0));
    }
    refused(tn_rms_norm_op(I(2), NULL, 1e-5));
    refused(tn_rms_norm_op(F(2), D(2), 1e-5));
    refused(tn_rms_norm_op(F(), NULL, 1e-5));
    refused(tn_rms_norm_op(F(2, 3), F(2), 1e-5));
    refused(tn_add_rms_norm(F(2, 3), F(3), NULL, 1e-5, NULL));
    refused(tn_add_rms_norm(F(2, 3), F(2, 3), F(2), 1e-5, NULL));
    refused(tn_dropout_op(F(2), 1.5));
    refused(tn_dropout_op(F(2), NAN));
    refused(tn_dropout_op(I(2), 0.5));
}

static tn_tensor *batch_norm(tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return tn_batch_norm(x, NULL, NULL, weight, bias, true, 0.1, 1e-5);
}

TEST(batch_norms) {
    tn_tensor *x = F(4, 3), *v = F(3);
    refused(batch_norm(I(4, 3), NULL, NULL));
    refused(batch_norm(x, D(3), NULL));
    refused(batch_norm(F(3), NULL, NULL));
    refused(batch_norm(x, F(4), NULL));
    refused(batch_norm(x, NULL, F(3, 1)));
    refused(batch_norm(F(1, 3), NULL, NULL));
    refused(tn_batch_norm(x, F(4), v, NULL, NULL, true, 0.1, 1e-5));
    refused(tn_batch_norm(x, F(4), v, NULL, NULL, false, 0.1, 1e-5));
    refused(tn_batch_norm(x, v, D(3), NULL, NULL, false, 0.1, 1e-5));
}

typedef struct args_of_first {
    tn_op_samples samples; /* must be the first member */
    size_t bytes;          /* of args; 0: known */
    _Alignas(max_align_t) char args[256];
} args_of_first;

static void first_args(tn_op_samples *s, const tn_sample *sample) {
    args_of_first *first = (args_of_first *)s;
    memcpy(first->args, sample->args, first->bytes);
    first->bytes = 0;
}

/* With the arguments of the operation's first sample: public functions cannot reach every
 * refusal. */
static tn_tensor *apply_as_first(const char *name, tn_tensor *x) {
    args_of_first first = {.samples = {.add = first_args}, .bytes = tn_op_named(name)->args_size};
    assert_true(first.bytes <= sizeof first.args);
    tn_op_list_samples(tn_op_named(name), &first.samples);
    return tn_apply1(tn_op_named(name), first.args, x);
}

TEST(window_errors) {
    tn_tensor *x = F(1, 1, 4, 4), *whole = I(1, 1, 4, 4);
    tn_pool_options o = tn_pool_defaults();
    refused(tn_max_pool2d_op(whole, TN_DIMS(2), o));
    refused(tn_avg_pool2d_op(whole, TN_DIMS(2), o));
    refused(apply_as_first("max_pool", F(2, 3)));
    refused(apply_as_first("avg_pool", F(2, 3)));
    refused(apply_as_first("avg_unpool", I(2, 3)));
    refused(apply_as_first("avg_unpool", F(2, 3)));
    refused(tn_max_pool1d_op(x, TN_DIMS(2), o));
    refused(tn_max_pool2d_op(x, TN_DIMS(5), o));
    refused(tn_max_pool2d_op(x, TN_DIMS(2, 2, 2), o));
    refused(tn_avg_pool2d_op(x, TN_DIMS(0), o));
    refused(tn_adaptive_avg_pool2d_op(x, TN_DIMS(-1)));
    o.padding = TN_DIMS(2);
    refused(tn_max_pool2d_op(x, TN_DIMS(2), o));
    o.dilation = TN_DIMS(2);
    refused(tn_avg_pool2d_op(x, TN_DIMS(2), o));
    o = tn_pool_defaults();
    o.divisor_override = -1;
    refused(tn_avg_pool2d_op(x, TN_DIMS(2), o));
    tn_unfold_options u = tn_unfold_defaults();
    refused(tn_unfold(whole, TN_DIMS(2), u));
    refused(tn_unfold(F(4, 4), TN_DIMS(2), u));
    refused(tn_unfold(x, TN_DIMS(5), u));
    refused(apply_as_first("unfold", F(2, 3)));
    refused(tn_fold(I(1, 4, 9), TN_DIMS(4), TN_DIMS(2), u));
    refused(tn_fold(F(1, 4, 8), TN_DIMS(4), TN_DIMS(2), u));
    u.padding = TN_DIMS(5);
    refused(tn_fold(F(1, 4, 9), TN_DIMS(-1), TN_DIMS(2), u));
    tn_interpolate_options r = tn_interpolate_defaults();
    refused(tn_interpolate(x, r));
    r.scale_factor = NAN;
    refused(tn_interpolate(x, r));
    r.scale_factor = 0.1;
    refused(tn_interpolate(x, r));
    r.scale_factor = 2.0;
    refused(tn_interpolate(whole, r));
    r.align_corners = true;
    refused(tn_interpolate(x, r));
    refused(apply_as_first("resample", F(2)));
    refused(apply_as_first("resample_grad", I(2)));
    refused(apply_as_first("resample_grad", F(2)));
}

TEST(rotary_errors) {
    tn_rotary_options o = tn_rotary_defaults();
    refused(tn_rotary(I(1, 1, 3, 2), I(3), o));
    refused(tn_rotary(F(1, 1, 3, 2), F(3), o));
    refused(tn_rotary(F(1, 3, 2), I(3), o));
    refused(tn_rotary(F(1, 1, 3, 5), I(3), o));
    refused(tn_rotary(F(2, 1, 3, 2), I(4), o));
    refused(tn_rotary(F(2, 1, 3, 2), I(3, 3), o));
    const tn_op *qkv = tn_op_named("rotary_qkv");
    tn_rotary_args args = {.theta = 10.0, .factor = 1.0};
    tn_tensor *in[4] = {F(1, 4, 3, 2), D(1, 2, 3, 2), F(1, 2, 3, 2), I(3)};
    refused(tn_apply(qkv, &args, in, 4));
    in[1] = F(1, 2, 3, 4);
    refused(tn_apply(qkv, &args, in, 4));
    in[3] = I(4);
    refused(tn_apply(qkv, &args, in, 4));
    refused(tn_rotary(F(2, 1, 3, 2), I(), o));
    o.theta = 0.0;
    refused(tn_rotary(F(1, 1, 3, 2), I(3), o));
    o = tn_rotary_defaults();
    o.factor = 2.0;
    o.high_freq_factor = 1.0;
    refused(tn_rotary(F(1, 1, 3, 2), I(3), o));
}

TEST(attention_errors) {
    tn_attention_options o = tn_attention_defaults();
    tn_tensor *q = F(1, 4, 3, 2), *k = F(1, 2, 5, 2);
    refused(tn_attention(I(1, 1, 1, 1), k, k, NULL, o));
    refused(tn_attention(q, D(1, 2, 5, 2), k, NULL, o));
    refused(tn_attention(q, k, F(2, 5, 2), NULL, o));
    refused(tn_attention(q, k, F(1, 2, 4, 2), NULL, o));
    refused(tn_attention(q, F(2, 2, 5, 2), F(2, 2, 5, 2), NULL, o));
    refused(tn_attention(q, F(1, 2, 5, 3), F(1, 2, 5, 3), NULL, o));
    refused(tn_attention(q, F(1, 3, 5, 2), F(1, 3, 5, 2), NULL, o));
    refused(tn_attention(q, NULL, k, NULL, o));
    refused(tn_attention(q, k, k, F(3, 5), o));
    refused(tn_attention(q, k, k, B(3, 4), o));
    refused(tn_attention_qkv(I(1, 2, 6), 1, NULL, o));
    refused(tn_attention_qkv(F(2, 6), 1, NULL, o));
    refused(tn_attention_qkv(F(1, 2, 6), 4, NULL, o));
    refused(tn_attention_qkv(F(1, 2, 6), 0, NULL, o));
    refused(tn_attention_qkv(F(1, 2, 6), 2, F(2, 2), o));
    refused(tn_attention_qkv(F(3, 3, 12), 4, B(2, 3, 3), o));
}

TEST(convolution_errors) {
    tn_conv_options o = tn_conv_defaults();
    refused(tn_conv2d_op(I(1, 1, 3, 3), I(1, 1, 2, 2), NULL, o));
    refused(tn_conv2d_op(F(1, 1, 3, 3), D(1, 1, 2, 2), NULL, o));
    refused(tn_conv1d_op(F(1, 1, 3, 3), F(1, 1, 2), NULL, o));
    refused(tn_conv3d_op(F(1, 1, 3, 3, 3), F(1, 1, 2, 2), NULL, o));
    refused(tn_conv2d_op(F(2, 4, 8, 8), F(6, 3, 3, 3), NULL, o));
    refused(tn_conv2d_op(F(1, 1, 2, 5), F(1, 1, 3, 3), NULL, o));
    refused(tn_conv2d_op(F(1, 1, 2, 5), F(1, 1, 0, 3), NULL, o));
    refused(tn_conv2d_op(F(1, 1, 3, 3), F(4, 1, 2, 2), F(3), o));
    refused(tn_conv_transpose2d_op(F(2, 4, 8, 8), F(3, 6, 3, 3), NULL, o));
    refused(tn_conv_transpose1d_op(F(2, 4), F(3, 6), NULL, o));
    refused(tn_conv_transpose1d_op(F(1, 1, 2), F(1, 1, 2), NULL, tn_conv_strided(1, 2)));
    o.groups = 2;
    refused(tn_conv2d_op(F(2, 4, 8, 8), F(3, 2, 3, 3), NULL, o));
    o.groups = 0;
    refused(tn_conv2d_op(F(2, 4, 8, 8), F(3, 2, 3, 3), NULL, o));
    refused(tn_conv3d_op(F(), F(), NULL, tn_conv_strided(0, 0)));
    refused(tn_conv1d_op(F(), F(), NULL, tn_conv_strided(1, -1)));
    o = tn_conv_defaults();
    o.dilation = TN_DIMS(1, 1);
    refused(tn_conv1d_op(F(), F(), NULL, o));
    o = tn_conv_strided(2, 0);
    o.output_padding = TN_DIMS(2);
    refused(tn_conv_transpose1d_op(F(), F(), NULL, o));
    o.same = true;
    refused(tn_conv1d_op(F(1, 1, 4), F(1, 1, 3), NULL, o));
    struct { /* the arguments of conv_weight_grad, which has no public function */
        tn_conv_args kernel;
        int spatial;
        tn_dims size;
    } call = {{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}, 1, TN_DIMS(2)};
    const tn_op *gradient = tn_op_named("conv_weight_grad");
    assert_int_equal(gradient->args_size, sizeof call);
    refused(tn_apply2(gradient, &call, F(1, 2, 3), F(2, 2, 4)));
}

TEST(recurrent_errors) {
    tn_tensor *x = F(2, 1, 2);
    tn_rnn_weights w = {.weight_ih = F(3, 2), .weight_hh = F(3, 3)};
    refused(tn_rnn_op(F(2, 2), NULL, w, NULL, false, false, NULL));
    refused(tn_rnn_op(I(2, 1, 2), NULL, w, NULL, false, false, NULL));
    refused(tn_rnn_op(x, D(1, 3), w, NULL, false, false, NULL));
    refused(tn_rnn_op(x, F(2, 3), w, NULL, false, false, NULL));
    refused(tn_gru_op(x, NULL, w, NULL, false, NULL));
    w.weight_hh = F(12, 3);
    refused(tn_lstm_op(x, NULL, NULL, w, NULL, false, NULL, NULL));
    w.weight_ih = F(12, 2);
    refused(tn_lstm_op(x, NULL, F(1, 2), w, NULL, false, NULL, NULL));
    refused(tn_lstm_op(x, NULL, NULL, w, F(1), false, NULL, NULL));
}

#endif
