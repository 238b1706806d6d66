/* tn_quantize: bytes and scales, a model that computes with them, what it refuses, files.
 */
#include "../support/temp.h"
#include "../support/test.h"

#include "tern/tern.h"

#include <math.h>

static tn_gpt_options small_options(void) {
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = 61, .context = 32, .layers = 2, .heads = 4, .width = 32);
    return o;
}

static tn_tensor *some_tokens(void) {
    return tn_randint(0, 61, TN_DIMS(2, 9), TN_I64);
}

static double element_at(const tn_tensor *t, int64_t i, int64_t j) {
    return tn_at(t, TN_DIMS(i, j));
}

/* Rows of different magnitude, one of zeros; halves round away from zero. */
TEST(rows_of_a_linear) {
    tn_linear line;
    tn_linear_init(&line, 3, 4, tn_linear_defaults());
    static const float w[] = {127, -127, 1.5, 0.5, 0.25, -0.125, 0, 0, 0, -1e-3f, 1e-4f, 3e-6f};
    TN_NO_GRAD;
    tn_copy_(line.weight, tn_from_data(w, TN_DIMS(4, 3), TN_F32));
    assert_int_equal(tn_quantize(&line), TN_OK);
    assert_int_equal(tn_dtype_of(line.weight), TN_I8);
    assert_int_equal(tn_dtype_of(line.weight_scale), TN_F32);
    static const int want[4][3] = {{127, -127, 2}, {127, 64, -32}, {0, 0, 0}, {-127, 13, 0}};
    static const double most[] = {127, 0.5, 0, 1e-3};
    for (int j = 0; j < 4; j++) {
        double scale = tn_at(line.weight_scale, TN_DIMS(j));
        assert_true(fabs(scale - most[j] / 127) <= 1e-7 * most[j] + 1e-37);
        for (int i = 0; i < 3; i++) {
            assert_true(element_at(line.weight, j, i) == want[j][i]);
        }
    }
    tn_tensor *bytes = line.weight;
    assert_int_equal(tn_quantize(&line), TN_OK); /* nothing is left to do */
    assert_ptr_equal(line.weight, bytes);
    tn_module_finish(&line);
}

/* The largest difference between an element of w and its byte's value, in units of the row's
 * scale. */
static double worst_step(const tn_tensor *w, tn_tensor *bytes, tn_tensor *scale) {
    tn_tensor *s = tn_unsqueeze(scale, 1);
    tn_tensor *again = tn_mul(tn_cast(bytes, TN_F32), s);
    tn_tensor *off = tn_div(tn_abs(tn_sub(tn_cast((tn_tensor *)w, TN_F32), again)), s);
    return tn_item(tn_max(off, TN_DIMS(), false));
}

/* A whole model: every matrix becomes the nearest bytes; the tied one stays one tensor; the logits
 * are those of a model with the dequantized weights. */
TEST(gpt_computes_with_bytes) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        TN_NO_GRAD;
        tn_gpt_options o = small_options();
        o.dtype = bf16 ? TN_BF16 : TN_F32;
        tn_gpt gpt;
        tn_gpt_init(&gpt, o);
        tn_tensor *tokens = some_tokens(), *before = tn_call(&gpt, tokens);
        tn_tensor *c_fc = tn_copy(gpt.h[1].mlp.c_fc.weight), *wte = tn_copy(gpt.stem.wte.weight);
        assert_int_equal(tn_quantize(&gpt), TN_OK);
        assert_ptr_equal(gpt.top.lm_head.weight, gpt.stem.wte.weight);
        assert_ptr_equal(gpt.top.lm_head.weight_scale, gpt.stem.wte.weight_scale);
        assert_int_equal(tn_dtype_of(gpt.stem.wpe.weight), TN_I8);
        assert_true(worst_step(c_fc, gpt.h[1].mlp.c_fc.weight, gpt.h[1].mlp.c_fc.weight_scale) <
                    0.5001);
        assert_true(worst_step(wte, gpt.stem.wte.weight, gpt.stem.wte.weight_scale) < 0.5001);
        tn_tensor *after = tn_call(&gpt, tokens);
        assert_int_equal(tn_dtype_of(after), o.dtype);
        double norm = tn_item(tn_sqrt(tn_mean_all(tn_square(tn_cast(before, TN_F64))))),
               off = tn_item(tn_sqrt(tn_mean_all(
                   tn_square(tn_sub(tn_cast(before, TN_F64), tn_cast(after, TN_F64))))));
        assert_true(off > 0.0 && off < 0.02 * norm);
        tn_module_finish(&gpt);
    }
}

/* With a cache, token by token: the same as one call with all tokens. */
TEST(cached_as_at_once) {
    TN_NO_GRAD;
    tn_gpt gpt;
    tn_gpt_init(&gpt, small_options());
    tn_tensor *tokens = some_tokens();
    assert_int_equal(tn_quantize(&gpt), TN_OK);
    tn_tensor *whole = tn_call(&gpt, tokens);
    tn_cache_begin(&gpt, (tn_attention_cache_options){2, 32});
    for (int64_t t = 0; t < 9; t++) {
        tn_tensor *one = tn_call(&gpt, tn_narrow(tokens, 1, t, 1));
        assert_true(tn_all_close(one, tn_narrow(whole, 1, t, 1), 1e-4, 1e-5));
    }
    tn_cache_end(&gpt);
    tn_module_finish(&gpt);
}

TEST(files_of_quantized) {
    TN_NO_GRAD;
    const char *path = temp_path("bytes.safetensors");
    tn_gpt a, b, whole;
    tn_gpt_init(&a, small_options());
    tn_gpt_init(&b, small_options());
    tn_gpt_init(&whole, small_options());
    assert_int_equal(tn_quantize(&a), TN_OK);
    assert_int_equal(tn_save(&a, path), TN_OK);
    tn_safetensors *f = tn_safetensors_open(path);
    assert_string_equal(tn_safetensors_dtype(f, "wte.weight"), "I8");
    assert_string_equal(tn_safetensors_dtype(f, "h.0.attn.c_attn.weight_scale"), "F32");
    assert_false(tn_safetensors_has(f, "lm_head.weight")); /* tied */
    tn_safetensors_close(f);
    assert_int_equal(tn_quantize(&b), TN_OK);
    assert_int_equal(tn_load(&b, path), TN_OK);
    tn_tensor *tokens = some_tokens();
    assert_true(tn_equal(tn_call(&a, tokens), tn_call(&b, tokens)));

    assert_int_not_equal(tn_load(&whole, path), TN_OK);
    assert_error(TN_EMISMATCH, "weight_scale");
    assert_int_equal(tn_save(&whole, path), TN_OK);
    assert_int_not_equal(tn_load(&b, path), TN_OK);
    assert_error(TN_EMISMATCH, "weight_scale");
    tn_module_finish(&a);
    tn_module_finish(&b);
    tn_module_finish(&whole);
}

/* ---- What it refuses ------------------------------------------------------------------------- */

TEST(training_is_over) {
    tn_gpt gpt;
    tn_gpt_init(&gpt, small_options());
    tn_optim *opt = tn_adamw(&gpt, tn_adamw_defaults());
    assert_int_equal(tn_quantize(&gpt), TN_ESTATE);
    assert_error(TN_ESTATE, "an optimiser steps \"");
    assert_int_equal(tn_dtype_of(gpt.stem.wte.weight), TN_F32);
    tn_optim_free(opt);
    assert_int_equal(tn_quantize(&gpt), TN_OK);
    tn_tensor *tokens = some_tokens(), *loss = tn_lm_loss(&gpt, tokens, tokens);
    assert_true(isfinite(tn_item(loss)));
    tn_backward(loss);
    assert_error(TN_ESTATE, "grad");
    tn_optim *none = tn_adamw(&gpt, tn_adamw_defaults());
    assert_null(none);
    assert_error(TN_EVALUE, "");
    tn_module_requires_grad(&gpt, true);
    assert_error(TN_EDTYPE, "i8 has no gradient");
    assert_int_equal(tn_unfreeze(&gpt, "*"), -1);
    assert_error(TN_EDTYPE, "is i8, which has no gradient");
    tn_module_finish(&gpt);
}

TEST(odd_weights) {
    tn_linear line;
    tn_linear_init(&line, 3, 4, tn_linear_defaults());
    {
        TN_NO_GRAD;
        tn_fill_(tn_select(line.weight, 0, 2), INFINITY);
    }
    assert_int_equal(tn_quantize(&line), TN_EVALUE);
    assert_error(TN_EVALUE, "\"linear\" holds inf");
    assert_int_equal(tn_dtype_of(line.weight), TN_F32);
    assert_null(line.weight_scale);
    tn_module_finish(&line);
    assert_int_not_equal(tn_quantize(NULL), TN_OK);
    assert_error(TN_EVALUE, "quantize");
}

/* A user's module that holds a linear's weight and does not support bytes. */
typedef struct deaf {
    tn_module base;
    tn_linear line;
    tn_tensor *copy;
} deaf;

static tn_tensor *deaf_forward(tn_module *self, tn_tensor *x) {
    return tn_linear_op(x, ((deaf *)self)->copy, NULL);
}

TEST(shared_with_a_stranger) {
    deaf m = {0};
    tn_module_init(&m, "deaf", deaf_forward);
    tn_linear_init(&m.line, 3, 4, tn_linear_defaults());
    tn_module_add(&m, "line", &m.line);
    tn_module_param(&m, "copy", &m.copy, tn_zeros(TN_DIMS(4, 3), TN_F32));
    assert_int_equal(tn_module_tie(&m, "copy", "line.weight"), TN_OK);
    assert_int_equal(tn_quantize(&m.line), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "\"linear\" is shared with a deaf");
    tn_module_finish(&m);
}
