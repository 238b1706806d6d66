/* Each allocation fails once while a model is built, trained for a step, and generates text with
 * caches. */
#include "tests/support/no_memory.h"

static void use_model(void *m) {
    int64_t ids[] = {1, 2, 3, 4};
    tn_tensor *tokens = TN_FROM(ids, TN_DIMS(2, 2), TN_I64);
    tn_backward(tn_lm_loss(m, tokens, tokens));
    TN_NO_GRAD;
    tn_cache_begin(m, (tn_attention_cache_options){.batch = 2, .length = 4});
    tn_call(m, tokens);
    tn_call(m, tokens);
    tn_cache_end(m);
    int32_t prompt[] = {1, 2, 3};
    tn_prompt prompts[] = {{prompt, 3}, {prompt, 1}}; /* with a mask, and through a full context */
    tn_generate_options o =
        TN_WITH(tn_generate, .max_new = 4, .top_k = 2, .repetition_penalty = 1.2);
    tn_generated out[2];
    tn_generate(m, prompts, 2, o, out);
    tn_generated_free(out, 2);
}

static void use_gpt(void) {
    TN_SCOPE;
    tn_gpt m;
    tn_gpt_init(&m, TN_WITH(tn_gpt, .vocab = 5, .context = 4, .layers = 2, .heads = 1, .width = 4,
                            .bias = false, .activation = TN_ACT_GELU));
    use_model(&m);
    tn_module_finish(&m);
}

static void init_llama(tn_llama *m, bool tied) {
    tn_llama_options o = TN_WITH(tn_llama, .vocab = 5, .context = 4, .layers = 2, .heads = 2,
                                 .kv_heads = 1, .width = 4, .hidden = 6, .tied = tied);
    tn_llama_init(m, o);
}

static void use_llama(void) {
    TN_SCOPE;
    tn_llama m;
    init_llama(&m, false);
    use_model(&m);
    tn_module_finish(&m);
}

static void use_tied_llama(void) {
    TN_SCOPE;
    tn_llama m;
    init_llama(&m, true);
    use_model(&m);
    tn_module_finish(&m);
}

PLAIN_TEST(gpt_without_memory) {
    every_allocation(use_gpt);
}

PLAIN_TEST(llama_without_memory) {
    every_allocation(use_llama);
}

PLAIN_TEST(tied_llama) {
    every_allocation(use_tied_llama);
}
