/* Decoding on the default device gives the CPU's tokens, whatever of the logits is read back, and
 * refuses what the CPU refuses; a step with its calls put together is one with each on its own. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include <tern/tern.h>

enum { VOCAB = 300, NEW = 12, PROMPTS = 3 };

static bool widen_entry(const tn_entry *entry, void *user) {
    if (tn_ndim(*entry->field) == 2) { tn_mul_scalar_(*entry->field, *(double *)user); }
    return true;
}

/* With factor 0 all logits are equal. */
static void open_llama(tn_llama *m, tn_device device, tn_dtype dtype, double factor) {
    TN_NO_GRAD;
    tn_seed(3);
    tn_device before = tn_default_device();
    tn_set_default_device(tn_cpu());
    tn_llama_init(m,
                  TN_WITH(tn_llama, .vocab = VOCAB, .context = 40, .layers = 2, .heads = 4,
                          .kv_heads = 2, .width = 32, .hidden = 48, .tied = false, .dtype = dtype));
    tn_module_each(m, (tn_walk){0}, widen_entry, &factor);
    tn_set_default_device(before);
    tn_module_to(m, device);
}

static void make_prompts(tn_prompt *of, int32_t ids[PROMPTS][8]) {
    tn_generator g = {.seed = 11};
    for (int i = 0; i < PROMPTS; i++) {
        of[i] = (tn_prompt){ids[i], 2 + 3 * i};
        for (int k = 0; k < 8; k++) {
            ids[i][k] = (int32_t)tn_random_below(&g, VOCAB);
        }
    }
}

TEST(tokens_are_the_cpus) {
    static const int32_t stops[] = {7, 100, 201};
    const tn_generate_options usual = TN_WITH(tn_generate, .max_new = NEW, .temperature = 0);
    tn_generate_options cases[] = {usual, usual, usual, usual, usual, usual};
    cases[1].repetition_penalty = 1.3;
    cases[2].stop_tokens = stops;
    cases[2].stop_token_count = 3;
    cases[2].min_new = 5;
    for (int i = 3; i < 6; i++) {
        cases[i].temperature = 3.0;
        cases[i].top_k = i == 5 ? 0 : 6;
        cases[i].top_p = i == 4 ? 0.8 : 1.0;
    }
    tn_prompt prompts[PROMPTS];
    int32_t ids[PROMPTS][8];
    make_prompts(prompts, ids);
    for (int equal = 0; equal < 2; equal++) {
        TN_SCOPE;
        tn_llama here, there;
        open_llama(&here, tn_cpu(), TN_F32, equal ? 0.0 : 20.0);
        open_llama(&there, tn_default_device(), TN_F32, equal ? 0.0 : 20.0);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            tn_generated want[PROMPTS], got[PROMPTS];
            assert_int_equal(tn_generate(&here, prompts, PROMPTS, cases[i], want), TN_OK);
            assert_int_equal(tn_generate(&there, prompts, PROMPTS, cases[i], got), TN_OK);
            for (int k = 0; k < PROMPTS; k++) {
                assert_int_equal(got[k].tokens.count, want[k].tokens.count);
                assert_memory_equal(got[k].tokens.ids, want[k].tokens.ids,
                                    (size_t)want[k].tokens.count * sizeof(int32_t));
            }
            tn_generated_free(want, PROMPTS);
            tn_generated_free(got, PROMPTS);
        }
        tn_module_finish(&here);
        tn_module_finish(&there);
    }
}

TEST(refuses_what_the_cpu_refuses) {
    static const double odd[] = {NAN, INFINITY};
    tn_prompt prompts[PROMPTS];
    int32_t ids[PROMPTS][8];
    make_prompts(prompts, ids);
    for (int i = 0; i < 4; i++) {
        TN_SCOPE;
        tn_llama m;
        open_llama(&m, tn_default_device(), TN_F32, 1.0);
        {
            TN_NO_GRAD;
            tn_fill_(tn_narrow(m.top.lm_head.weight, 0, 37, 1), odd[i % 2]);
        }
        tn_generated got;
        tn_generate_options o =
            TN_WITH(tn_generate, .max_new = NEW, .temperature = i < 2 ? 0.0 : 1.0, .top_k = 5);
        tn_generate(&m, prompts, 1, o, &got);
        assert_error(TN_EVALUE, i % 2 ? "" : "the logit of token 37 is nan");
        tn_module_finish(&m);
    }
}

/* ---- A step ---------------------------------------------------------------------------------- */

static tn_values count_call(tn_module *m, tn_values in, void *user) {
    (*(int *)user)++;
    return in;
}

/* Logits of a prompt of two sequences and of 3 tokens after it. */
static tn_tensor *decode_steps(tn_llama *m) {
    TN_NO_GRAD;
    tn_tensor *out[4];
    int32_t ids[2 * 6] = {5, 9, 250, 3, 77, 120, 1, 2, 3, 4, 5, 6};
    assert_int_equal(tn_cache_begin(m, (tn_attention_cache_options){.batch = 2, .length = 20}),
                     TN_OK);
    for (int i = 0; i < 4; i++) {
        int64_t T = i == 0 ? 6 : 1;
        tn_tensor *tokens = tn_from_data(ids + i, TN_DIMS(2, T), TN_I32);
        tn_tensor *y = tn_call(m, tn_to(tokens, tn_default_device()));
        out[i] = tn_cast(tn_to(tn_narrow(y, 1, T - 1, 1), tn_cpu()), TN_F64);
    }
    tn_cache_end(m);
    return tn_cat(out, 4, 1);
}

TEST(a_step_is_its_parts) {
    static const struct {
        tn_dtype dtype;
        bool bytes;
        double relative; /* a bf16 intermediate is rounded in different places */
    } cases[] = {{TN_F32, false, 2e-6},
                 {TN_F32, true, 2e-6},
                 {TN_BF16, false, 2e-2},
                 {TN_F16, false, 3e-3},
                 {TN_BF16, true, 2e-2}};
    bool device = tn_default_device().kind != TN_CPU;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TN_SCOPE;
        tn_llama m;
        open_llama(&m, tn_default_device(), cases[i].dtype, 4.0);
        if (cases[i].bytes) { assert_int_equal(tn_quantize(&m), TN_OK); }
        tn_tensor *together = decode_steps(&m);
        int calls = 0;
        for (int k = 0; k < 2; k++) {
            void *parts[] = {&m.layers[k].self_attn.k_proj, &m.layers[k].mlp.up_proj,
                             &m.layers[k].mlp.down_proj, &m.layers[k].post_attention_layernorm,
                             &m.layers[k].mlp};
            for (int p = 0; p < 5; p++) {
                tn_module_hook(parts[p], (tn_module_hooks){.before = count_call, .user = &calls});
            }
        }
        tn_tensor *apart = decode_steps(&m);
        assert_int_equal(calls, 2 * 5 * 4);
        double most = tn_item(tn_max(tn_reshape(tn_abs(apart), TN_DIMS(-1)), TN_DIMS(0), false));
        assert_true(most > 0.1);
        assert_true(tn_all_close(together, apart, 0, device ? cases[i].relative * most : 0));
        tn_module_finish(&m);
    }
}
