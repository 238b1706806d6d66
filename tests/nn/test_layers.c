/* Layers: options, names, the attention cache. (tests/api calls every function with inert and NULL
 * arguments.) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* ---- Options --------------------------------------------------------------------------------- */

/* A layer whose init failed says so when it is called, and can be finished. */
static void expect_refused(void *m, tn_status status, const char *part) {
    TN_SCOPE;
    assert_error(status, part);
    assert_inert(tn_call(m, tn_ones(TN_DIMS(1, 2), TN_F32)), TN_ESTATE, "not complete");
    tn_module_finish(m);
}

TEST(refused_options) {
    tn_linear linear;
    tn_linear_init(&linear, 0, 3, tn_linear_defaults());
    expect_refused(&linear, TN_EVALUE, "linear: in is 0 (it must be at least 1)");
    tn_linear_init(&linear, 2, 3, TN_WITH(tn_linear, .dtype = TN_I64, .bias = false));
    expect_refused(&linear, TN_EDTYPE, "i64");
    tn_linear_init(&linear, INT64_MAX / 2, 8, tn_linear_defaults());
    assert_int_not_equal(tn_error(), TN_OK);
    tn_error_clear();
    tn_module_finish(&linear);
    tn_embedding embedding;
    tn_embedding_init(&embedding, 3, -1, tn_embedding_defaults());
    expect_refused(&embedding, TN_EVALUE, "embedding: width is -1 (it must be at least 1)");
    tn_norm_options norm = tn_norm_defaults();
    tn_layer_norm layer_norm;
    tn_layer_norm_init(&layer_norm, 0, norm);
    expect_refused(&layer_norm, TN_EVALUE, "layer_norm: width is 0");
    norm.eps = -1.0;
    tn_rms_norm rms_norm;
    tn_rms_norm_init(&rms_norm, 4, norm);
    expect_refused(&rms_norm, TN_EVALUE, "rms_norm: eps is -1 (it must be at least 0)");
    tn_dropout dropout;
    tn_dropout_init(&dropout, 1.5);
    expect_refused(&dropout, TN_EVALUE, "dropout: p is 1.5");
    tn_function function;
    tn_function_init(&function, "f", NULL);
    expect_refused(&function, TN_EVALUE, "f: the function is NULL");
    tn_self_attention attention;
    tn_self_attention_options three = TN_WITH(tn_self_attention, .heads = 3);
    tn_self_attention_init(&attention, 8, three);
    expect_refused(&attention, TN_EVALUE, "width is 8 but heads is 3 (width must be a multiple)");
    tn_mlp mlp;
    tn_mlp_options options = TN_WITH(tn_mlp, .activation = (tn_activation)9);
    tn_mlp_init(&mlp, 8, options);
    expect_refused(&mlp, TN_EVALUE, "mlp: activation is 9 (it must be 0 to 3)");
    tn_block block;
    tn_block_options no_heads = TN_WITH(tn_block, .heads = 0);
    tn_block_init(&block, 8, no_heads);
    assert_error(TN_EVALUE, "heads is 0 (it must be at least 1)");
    tn_module_finish(&block);
}

/* While an error is pending nothing is made; afterwards the layers say that they are not
 * complete. */
TEST(pending_errors) {
    tn_raise(TN_EVALUE, "an earlier error");
    tn_linear linear;
    tn_linear_init(&linear, 2, 3, tn_linear_defaults());
    assert_true(tn_is_inert(linear.weight));
    tn_gpt gpt;
    tn_gpt_init(&gpt, TN_WITH(tn_gpt, .vocab = 5, .context = 4, .layers = 1, .heads = 1, .width = 4,
                              .bias = false, .activation = TN_ACT_GELU));
    expect_refused(&linear, TN_EVALUE, "an earlier error");
    TN_SCOPE;
    tn_lm_loss(&gpt, tn_zeros(TN_DIMS(1, 2), TN_I64), tn_zeros(TN_DIMS(1, 2), TN_I64));
    assert_error(TN_ESTATE, "not complete");
    tn_module_finish(&gpt);
}

TEST(initial_values) {
    tn_init_xavier_uniform(tn_ones(TN_DIMS(3), TN_F32), 1.0);
    assert_error(TN_ESHAPE, "init_xavier_uniform: the weight is [3]");
    tn_init_kaiming_normal(tn_ones(TN_DIMS(), TN_F32), 1.0);
    assert_error(TN_ESHAPE, "init_kaiming_normal");
    tn_init_kaiming_normal_with(tn_ones(TN_DIMS(2, 2), TN_F32),
                                TN_WITH(tn_kaiming, .mode = (tn_fan)9));
    assert_error(TN_EVALUE, "init_kaiming_normal: mode is 9");
    tn_tensor *p = tn_set_requires_grad(tn_ones(TN_DIMS(2, 2), TN_F32), true);
    tn_init_constant(p, 3.0); /* a leaf that requires a gradient: not recorded */
    assert_true(tn_is_leaf(p) && tn_at(p, TN_DIMS(1, 1)) == 3.0);
    tn_init_eye(tn_ones(TN_DIMS(2, 2, 2), TN_F32));
    assert_error(TN_ESHAPE, "init_eye: the tensor is [2, 2, 2] but needs 2 to 2 dimensions");
    tn_init_trunc_normal(p, 0.0, -1.0, -2.0, 2.0);
    assert_error(TN_EVALUE, "init_trunc_normal: mean is 0, std -1");
    tn_init_orthogonal(tn_empty(TN_DIMS(0, 3), TN_F32), 1.0);
    tn_init_orthogonal(tn_empty(TN_DIMS(3, 0), TN_F32), 1.0);
    tn_tensor *deferred;
    {
        TN_DEFER_INIT;
        deferred = tn_empty(TN_DIMS(4, 4), TN_BF16);
        tn_init_orthogonal(deferred, 1.0); /* makes the elements now */
    }
    tn_tensor *q = tn_cast(deferred, TN_F32), *eye = tn_empty(TN_DIMS(4, 4), TN_F32);
    tn_init_eye(eye);
    assert_true(tn_all_close(tn_matmul(q, tn_t(q)), eye, 0.0, 0.02)); /* bf16: 2^-8 */
    tn_linear a, b;
    tn_seed(4);
    tn_linear_init(&a, 3, 3, tn_linear_defaults());
    tn_seed(4);
    tn_linear_init(&b, 3, 3, tn_linear_defaults());
    assert_true(tn_equal(a.weight, b.weight) && tn_equal(a.bias, b.bias));
    tn_module_finish(&a);
    tn_module_finish(&b);
}

TEST(training_and_evaluation) {
    tn_dropout drop;
    tn_dropout_init(&drop, 0.5);
    tn_tensor *x = tn_ones(TN_DIMS(1000), TN_F32), *y = tn_call(&drop, x);
    assert_false(tn_equal(x, y));
    tn_module_train(&drop, false);
    assert_ptr_equal(tn_call(&drop, x), x);
    tn_module_finish(&drop);
}

/* Each channel is dropped as a whole, or kept and scaled. */
TEST(whole_channels) {
    enum { CHANNELS = 400, EACH = 8 };
    const struct {
        tn_dropout *m;
        tn_dims dims;
    } all[] = {
        {tn_dropout1d_new(0.5), TN_DIMS(2, 200, 8)},
        {tn_dropout1d_new(0.5), TN_DIMS(400, 8)},
        {tn_dropout2d_new(0.5), TN_DIMS(2, 200, 4, 2)},
        {tn_dropout2d_new(0.5), TN_DIMS(400, 4, 2)},
        {tn_dropout3d_new(0.5), TN_DIMS(2, 200, 2, 2, 2)},
        {tn_dropout3d_new(0.5), TN_DIMS(400, 2, 2, 2)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tn_tensor *x = tn_ones(all[i].dims, TN_F32), *y = tn_call(all[i].m, x);
        const float *at = tn_data(tn_to(y, tn_cpu()));
        int left_out = 0;
        for (int k = 0; k < CHANNELS * EACH; k++) {
            left_out += at[k] == 0;
            assert_true(at[k] == at[k / EACH * EACH] && (at[k] == 0 || at[k] == 2));
        }
        assert_in_range(left_out, CHANNELS * EACH / 4, CHANNELS * EACH * 3 / 4);
        assert_inert(tn_call(all[i].m, tn_ones(TN_DIMS(3), TN_F32)), TN_ESHAPE, "x is [3]");
        tn_module_train(all[i].m, false);
        assert_ptr_equal(tn_call(all[i].m, x), x);
        tn_module_free(all[i].m);
    }
}

TEST(sequential_names) {
    tn_linear in, out;
    tn_function relu;
    tn_sequential net;
    tn_linear_init(&in, 2, 5, tn_linear_defaults());
    tn_function_init(&relu, "relu", tn_relu);
    tn_linear_init(&out, 5, 1, tn_linear_defaults());
    tn_sequential_init(&net);
    tn_tensor *x = tn_randn(TN_DIMS(3, 2), TN_F32);
    assert_ptr_equal(tn_call(&net, x), x); /* empty */
    tn_sequential_add(&net, &in);
    tn_sequential_add(&net, &relu);
    tn_sequential_add(&net, &out);
    assert_ptr_equal(tn_module_get(&net, "2.weight"), out.weight);
    tn_tensor *want =
        tn_linear_op(tn_relu(tn_linear_op(x, in.weight, in.bias)), out.weight, out.bias);
    assert_true(tn_equal(tn_call(&net, x), want));
    tn_module_finish(&net);
}

/* ---- The cache of attention ------------------------------------------------------------------ */

TEST(cached_attention) {
    enum { B = 2, T = 7, C = 12 };
    tn_self_attention m;
    tn_self_attention_options options = TN_WITH(tn_self_attention, .heads = 3, .dtype = TN_F64);
    tn_self_attention_init(&m, C, options);
    tn_tensor *x = tn_randn(TN_DIMS(B, T, C), TN_F64), *whole = tn_call(&m, x);
    assert_int_equal(tn_cache_begin(&m, (tn_attention_cache_options){B, T}), TN_OK);
    tn_call(&m, x); /* recorded: does not use the cache */
    assert_int_equal(m.cache.filled, 0);
    tn_module_set_recompute(&m, true);
    assert_true(tn_all_close(tn_call(&m, x), whole, 1e-12, 1e-12)); /* recorded later */
    assert_int_equal(m.cache.filled, 0);
    tn_module_set_recompute(&m, false);
    TN_NO_GRAD;
    int64_t starts[] = {0, 3, 4, 6, 7};
    for (int i = 0; i < 4; i++) {
        tn_tensor *part = tn_narrow(x, 1, starts[i], starts[i + 1] - starts[i]);
        tn_tensor *want = tn_narrow(whole, 1, starts[i], starts[i + 1] - starts[i]);
        assert_true(tn_all_close(tn_call(&m, part), want, 1e-12, 1e-12));
        assert_int_equal(m.cache.filled, starts[i + 1]);
    }
    tn_call(&m, tn_narrow(x, 1, 0, 1));
    assert_error(TN_EVALUE, "0 of its 7 positions are free");
    assert_int_equal(tn_cache_rewind(&m, 4), TN_OK);
    tn_tensor *again = tn_call(&m, tn_narrow(x, 1, 4, 3));
    assert_true(tn_all_close(again, tn_narrow(whole, 1, 4, 3), 1e-12, 1e-12));
    tn_cache_rewind(&m, 8);
    assert_error(TN_EVALUE, "8 positions but the cache of self_attention holds 7");
    tn_cache_rewind(&m, -1);
    assert_error(TN_EVALUE, "-1 positions");
    assert_int_equal(m.cache.filled, 7);
    tn_cache_begin(&m, (tn_attention_cache_options){B, T}); /* a fresh one */
    assert_int_equal(m.cache.filled, 0);
    tn_call(&m, tn_narrow(x, 0, 0, 1));
    assert_error(TN_EVALUE, "x has 1 sequences");
    tn_cache_end(&m);
    tn_cache_end(NULL);
    assert_null(m.cache.k);
    assert_true(tn_all_close(tn_call(&m, x), whole, 1e-12, 1e-12));
    tn_cache_begin(&m, (tn_attention_cache_options){0, 4});
    assert_error(TN_EVALUE, "batch is 0");
    tn_cache_begin(&m, (tn_attention_cache_options){4, 0});
    assert_error(TN_EVALUE, "cache_begin: length is 0 (it must be at least 1)");
    tn_cache_begin(&m.c_attn, (tn_attention_cache_options){1, 1});
    assert_error(TN_EVALUE, "linear has no attention");
    tn_call(&m, tn_ones(TN_DIMS(3, C), TN_F64));
    assert_error(TN_ESHAPE, "x is [3, 12] but must be");
    tn_module_finish(&m);
}

/* The same with rotary positions, which continue where the cache ends. */
TEST(cached_grouped_attention) {
    enum { B = 2, T = 7, C = 12 };
    tn_grouped_attention m;
    tn_grouped_attention_init(
        &m, C,
        TN_WITH(tn_grouped_attention, .heads = 4, .kv_heads = 2, .head_width = 6, .dtype = TN_F64));
    tn_tensor *x = tn_mul_scalar(tn_randn(TN_DIMS(B, T, C), TN_F64), 5.0), *whole = tn_call(&m, x);
    tn_tensor *places = tn_add_scalar(tn_arange(0, T, 1, TN_I64), 3); /* only distances matter */
    tn_values shifted = tn_call_values(&m, (tn_values){3, {x, NULL, places}}, NULL);
    assert_true(tn_all_close(shifted.v[0], whole, 1e-10, 1e-10));
    TN_NO_GRAD;
    tn_cache_begin(&m, (tn_attention_cache_options){B, T});
    int64_t starts[] = {0, 3, 4, 7};
    for (int i = 0; i < 3; i++) {
        int64_t n = starts[i + 1] - starts[i];
        tn_tensor *y = tn_call(&m, tn_narrow(x, 1, starts[i], n));
        assert_true(tn_all_close(y, tn_narrow(whole, 1, starts[i], n), 1e-10, 1e-10));
    }
    assert_int_equal(tn_size(m.cache.k, 1), 2);
    assert_inert(tn_call(&m, tn_ones(TN_DIMS(3, C), TN_F64)), TN_ESHAPE,
                 "grouped_attention: x is [3, 12] but must be");
    tn_module_finish(&m);
}

/* A module whose init failed has no heads to make a cache for. */
TEST(cache_of_a_broken_module) {
    tn_self_attention m;
    tn_self_attention_options options = TN_WITH(tn_self_attention, .heads = 0);
    tn_self_attention_init(&m, 8, options);
    assert_error(TN_EVALUE, "heads is 0 (it must be at least 1)");
    tn_cache_begin(&m, (tn_attention_cache_options){1, 4});
    assert_error(TN_ESTATE, "not complete");
    tn_module_finish(&m);
}

/* ---- Attention with a query of its own ------------------------------------------------------- */

/* Training with dropout computes the weights explicitly: the same numbers if almost nothing is
 * dropped. */
TEST(weights_that_are_dropped) {
    enum { B = 2, T = 3, S = 5, C = 8 };
    tn_multi_head_attention_options o = tn_multi_head_attention_defaults();
    o.dtype = TN_F64;
    o.dropout = 1e-15;
    tn_tensor *x = tn_randn(TN_DIMS(B, T, C), TN_F64), *memory = tn_randn(TN_DIMS(B, S, C), TN_F64);
    tn_tensor *mask = tn_lt(tn_rand(TN_DIMS(T, S), TN_F64), tn_scalar(0.4, TN_F64));
    tn_fill_(tn_select(mask, 0, 1), 1); /* query 1 sees nothing */
    for (int causal = 0; causal < 2; causal++) {
        o.causal = causal;
        tn_multi_head_attention *m = tn_multi_head_attention_new_with(C, 2, o);
        tn_tensor *made = TN_CALL(m, x, memory, memory, NULL, mask), *self = tn_call(m, x);
        tn_module_train(m, false);
        tn_tensor *passed = TN_CALL(m, x, memory, memory, NULL, mask);
        assert_true(tn_all_close(made, passed, 1e-12, 1e-12));
        assert_true(tn_all_close(self, tn_call(m, x), 1e-12, 1e-12));
        tn_tensor *blind = tn_select(passed, 1, 1); /* out_proj of zeros: its bias, which is 0 */
        assert_true(tn_equal(blind, tn_zeros_like(blind)));
        tn_module_free(m);
    }
    o.dropout = 0.5;
    tn_multi_head_attention *m = tn_multi_head_attention_new_with(C, 2, o);
    assert_false(tn_equal(tn_call(m, x), tn_call(m, x)));
    tn_module_free(m);
}

TEST(attention_inputs) {
    tn_multi_head_attention *m = tn_multi_head_attention_new(8, 2);
    tn_tensor *x = tn_ones(TN_DIMS(2, 3, 8), TN_F32), *flat = tn_ones(TN_DIMS(3, 8), TN_F32);
    assert_inert(TN_CALL(m, x, x, flat), TN_ESHAPE, "the value is [3, 8] but must be");
    assert_inert(TN_CALL(m, x, NULL, x), TN_EVALUE, "the inputs are query, key, value");
    assert_inert(TN_CALL(m, x, x, x, x), TN_EDTYPE, "the key padding mask is f32 but must be bool");
    tn_tensor *row = tn_zeros(TN_DIMS(3), TN_BOOL);
    assert_inert(TN_CALL(m, x, x, x, row), TN_ESHAPE, "the key padding mask is [3] but must be");
    assert_inert(TN_CALL(m, x, x, x, NULL, tn_zeros(TN_DIMS(5, 3), TN_BOOL)), TN_ESHAPE, "mask");
    tn_module_free(m);
    tn_transformer *t = tn_transformer_new(8, 2, 1, 1);
    assert_inert(tn_call(t, x), TN_EVALUE, "transformer: the inputs are src, tgt");
    assert_inert(TN_CALL(t->decoder, x, NULL), TN_EVALUE, "the first 2 are required");
    assert_inert(tn_call(t, x), TN_EVALUE, "(1 given)");
    tn_module_free(t);
    m = tn_multi_head_attention_new(8, 3);
    assert_error(TN_EVALUE, "multi_head_attention: width is 8 but heads is 3");
    tn_module_free(m);
    tn_transformer_options o = TN_WITH(tn_transformer, .activation = (tn_activation)9);
    t = tn_transformer_new_with(8, 2, 1, 1, o);
    assert_error(TN_EVALUE, "transformer_encoder_layer: there is no activation 9");
    tn_module_free(t);
    tn_tensor *table = tn_sinusoids(50, 6, TN_F64);
    assert_float_equal(tn_at(table, TN_DIMS(7, 2)), sin(7.0 / pow(10000.0, 2.0 / 6.0)), 1e-12);
    assert_float_equal(tn_at(table, TN_DIMS(49, 5)), cos(49.0 / pow(10000.0, 4.0 / 6.0)), 1e-12);
}
