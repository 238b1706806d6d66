/* What each family promises: names of parameters, its description in files, what it refuses; and
 * tied classifiers. */
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

enum { VOCAB = 11, CONTEXT = 8, WIDTH = 8, HIDDEN = 12 };

static void small_gpt(tn_gpt *m) {
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .width = WIDTH,
                .bias = true, .dropout = 0.5, .activation = TN_ACT_GELU);
    tn_gpt_init(m, o);
}

static tn_llama_options small_llama(void) {
    tn_llama_options o = TN_WITH(tn_llama, .vocab = VOCAB, .context = CONTEXT, .layers = 2,
                                 .heads = 2, .kv_heads = 1, .width = WIDTH, .hidden = HIDDEN);
    return o;
}

/* ---- Names ----------------------------------------------------------------------------------- */

static bool next_name(const tn_entry *entry, void *user) {
    const char *const **name = user;
    assert_string_equal(entry->path, *(*name)++);
    return true;
}

/* The names of m's parameters and buffers, NULL at the end. */
static void expect_names(void *m, tn_walk walk, const char *const *names) {
    const char *const *next = names;
    walk.buffers = true;
    tn_module_each(m, walk, next_name, &next);
    assert_null(*next);
}

TEST(gpt_names) {
    tn_gpt m;
    small_gpt(&m);
    static const char *const names[] = {"wte.weight", "wpe.weight",
#define BLOCK(h)                                                                          \
    h ".ln_1.weight", h ".ln_1.bias", h ".attn.c_attn.weight", h ".attn.c_attn.bias",     \
        h ".attn.c_proj.weight", h ".attn.c_proj.bias", h ".ln_2.weight", h ".ln_2.bias", \
        h ".mlp.c_fc.weight", h ".mlp.c_fc.bias", h ".mlp.c_proj.weight", h ".mlp.c_proj.bias"
                                        BLOCK("h.0"), BLOCK("h.1"), "ln_f.weight",
                                        "ln_f.bias",  NULL};
    expect_names(&m, (tn_walk){0}, names);
    assert_int_equal(tn_module_count(&m), (VOCAB + CONTEXT) * 8 + 2 * (12 * 64 + 13 * 8) + 2 * 8);
    assert_ptr_equal(tn_module_get(&m, "lm_head.weight"), tn_module_get(&m, "wte.weight"));
    tn_module_finish(&m);
    assert_null(m.h);

    tn_gpt_init(&m, TN_WITH(tn_gpt, .vocab = 5, .context = 4, .layers = 1, .heads = 1, .width = 4,
                            .bias = false, .activation = TN_ACT_GELU));
    assert_int_equal(tn_module_count(&m), 9 * 4 + 12 * 16 + 3 * 4); /* no biases */
    tn_module_finish(&m);
}

#define LAYER(h)                                                                              \
    h ".self_attn.q_proj.weight", h ".self_attn.k_proj.weight", h ".self_attn.v_proj.weight", \
        h ".self_attn.o_proj.weight", h ".mlp.gate_proj.weight", h ".mlp.up_proj.weight",     \
        h ".mlp.down_proj.weight", h ".input_layernorm.weight",                               \
        h ".post_attention_layernorm.weight"

TEST(llama_names) {
    static const char *const names[] = {"embed_tokens.weight", LAYER("layers.0"), LAYER("layers.1"),
                                        "norm.weight",         "lm_head.weight",  NULL};
    static const char *const tied_names[] = {"embed_tokens.weight", LAYER("layers.0"),
                                             LAYER("layers.1"), "norm.weight", NULL};
    tn_llama m;
    tn_llama_options o = small_llama();
    int64_t layer = (2 * WIDTH * WIDTH + WIDTH * WIDTH) + 3 * WIDTH * HIDDEN + 2 * WIDTH;
    tn_llama_init(&m, o); /* tied, as by default */
    expect_names(&m, (tn_walk){0}, tied_names);
    expect_names(&m, (tn_walk){.with_shared = true}, names);
    assert_ptr_equal(m.top.lm_head.weight, m.stem.embed_tokens.weight);
    assert_int_equal(tn_module_count(&m), VOCAB * WIDTH + 2 * layer + WIDTH);
    tn_module_finish(&m);
    assert_null(m.layers);
    o.tied = false;
    tn_llama_init(&m, o);
    expect_names(&m, (tn_walk){0}, names);
    assert_int_equal(tn_module_count(&m), 2 * VOCAB * WIDTH + 2 * layer + WIDTH);
    tn_module_finish(&m);
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* Compared when files are loaded, so it is the same in all versions. */
TEST(llama_description) {
    tn_llama llama;
    tn_llama_options o = small_llama();
    o.layers = 1;
    tn_llama_init(&llama, o);
    const char *path = temp_path("described.safetensors");
    assert_int_equal(tn_save(&llama, path), TN_OK);
    tn_safetensors *f = tn_safetensors_open(path);
    assert_string_equal(
        tn_safetensors_metadata(f, "model"),
        "{\".\":{\"kind\":\"llama\",\"options\":{\"vocab\":11,\"layers\":1,\"heads\":2,"
        "\"kv_heads\":1,\"width\":8,\"hidden\":12,\"tied\":true},"
        "\"training\":{\"context\":8}},"
        "\"embed_tokens\":{\"kind\":\"embedding\"},"
        "\"layers.0\":{\"kind\":\"llama_block\"},"
        "\"layers.0.self_attn\":{\"kind\":\"grouped_attention\",\"options\":{\"head_widt"
        "h\":4,\"causal\":true,\"theta\":5e+05,\"factor\":32,\"low_freq_factor\":1,\"high"
        "_freq_factor\":4,\"original_context\":8192}},"
        "\"layers.0.self_attn.q_proj\":{\"kind\":\"linear\"},"
        "\"layers.0.self_attn.k_proj\":{\"kind\":\"linear\"},"
        "\"layers.0.self_attn.v_proj\":{\"kind\":\"linear\"},"
        "\"layers.0.self_attn.o_proj\":{\"kind\":\"linear\"},"
        "\"layers.0.mlp\":{\"kind\":\"gated_mlp\"},"
        "\"layers.0.mlp.gate_proj\":{\"kind\":\"linear\"},"
        "\"layers.0.mlp.up_proj\":{\"kind\":\"linear\"},"
        "\"layers.0.mlp.down_proj\":{\"kind\":\"linear\"},"
        "\"layers.0.input_layernorm\":{\"kind\":\"rms_norm\",\"options\":{\"eps\":1e-05}}"
        ","
        "\"layers.0.post_attention_layernorm\":{\"kind\":\"rms_norm\",\"options\":{\"eps"
        "\":1e-05}},"
        "\"norm\":{\"kind\":\"rms_norm\",\"options\":{\"eps\":1e-05}},"
        "\"lm_head\":{\"kind\":\"linear\"}}");
    tn_safetensors_close(f);
    tn_module_finish(&llama);
}

/* ---- Tied classifiers ------------------------------------------------------------------------ */

typedef struct lent {
    tn_tensor **embedding, **classifier;
    int seen;
} lent;

static tn_values look_at_both(tn_module *m, tn_values in, void *user) {
    lent *l = user;
    assert_ptr_equal(*l->embedding, *l->classifier);
    assert_int_equal(tn_dtype_of(*l->classifier), TN_BF16);
    l->seen++;
    return in;
}

/* Embedding and classifier share one low-precision copy, and their gradients add up in one
 * parameter. */
static void expect_one_copy(void *m, lent l) {
    TN_SCOPE;
    tn_module *parts[4];
    assert_int_equal(tn_lm_parts(m, parts, 4), 4);
    tn_module_set_precision(m, tn_precision_defaults());
    tn_module_hook(parts[3], (tn_module_hooks){.before = look_at_both, .user = &l});
    tn_tensor *tokens = tn_zeros(TN_DIMS(1, 3), TN_I64);
    tn_backward(tn_lm_loss(m, tokens, tokens));
    assert_int_equal(l.seen, 1);
    tn_tensor *grad = tn_grad_of(*l.embedding);
    assert_int_equal(tn_dtype_of(grad), TN_F32);
    /* the row of a token that is not in the input, from the classifier alone */
    assert_false(tn_item(tn_sum_all(tn_abs(tn_narrow(grad, 0, 5, 1)))) == 0.0);
}

TEST(tied_classifiers) {
    tn_gpt gpt;
    small_gpt(&gpt);
    expect_one_copy(&gpt, (lent){&gpt.stem.wte.weight, &gpt.top.lm_head.weight, 0});
    tn_module_finish(&gpt);
    tn_llama llama;
    tn_llama_init(&llama, small_llama());
    expect_one_copy(&llama, (lent){&llama.stem.embed_tokens.weight, &llama.top.lm_head.weight, 0});
    tn_module_finish(&llama);
}

/* ---- Built without elements ------------------------------------------------------------------ */

static bool same_in(const tn_entry *entry, void *user) {
    assert_true(tn_equal(*entry->field, tn_module_get(user, entry->path)));
    return true;
}

/* Elements made later are the same as those made at once, and random numbers continue at the same
 * place; a tied classifier stays the embedding's tensor. */
TEST(llama_built_later) {
    for (int tied = 0; tied < 2; tied++) {
        TN_SCOPE;
        tn_llama once, later;
        tn_llama_options o = small_llama();
        o.tied = tied;
        tn_seed(8);
        tn_llama_init(&once, o);
        double next = tn_item(tn_rand(TN_DIMS(), TN_F64));
        tn_seed(8);
        {
            TN_DEFER_INIT;
            tn_llama_init(&later, o);
        }
        assert_true(tn_item(tn_rand(TN_DIMS(), TN_F64)) == next);
        tn_tensor *tokens = tn_zeros(TN_DIMS(1, 3), TN_I64);
        assert_inert(tn_call(&later, tokens), TN_ESTATE, "embed_tokens");
        assert_int_equal(tn_module_materialize(&later), TN_OK);
        tn_module_each(&once, (tn_walk){.with_shared = true}, same_in, &later);
        assert_true((later.top.lm_head.weight == later.stem.embed_tokens.weight) == tied);
        assert_true(tn_equal(tn_call(&once, tokens), tn_call(&later, tokens)));
        tn_module_finish(&once);
        tn_module_finish(&later);
    }
}

/* ---- What is refused ------------------------------------------------------------------------- */

TEST(refused_gpts) {
    tn_gpt m;
    tn_gpt_init(&m, TN_WITH(tn_gpt, .context = 4, .layers = 1, .heads = 1, .width = 4,
                            .bias = false, .activation = TN_ACT_GELU, .vocab = 0));
    assert_error(TN_EVALUE, "gpt: vocab is 0 (it must be at least 1)");
    assert_inert(tn_call(&m, tn_ones(TN_DIMS(1, 2), TN_I64)), TN_ESTATE, "not complete");
    tn_module_finish(&m);
    small_gpt(&m);
    tn_call(&m, tn_full(TN_DIMS(1, 2), VOCAB, TN_I64));
    assert_error(TN_EINDEX, "(in gpt.wte)");
    tn_lm_loss(&m, tn_zeros(TN_DIMS(1, 2), TN_I64), tn_full(TN_DIMS(1, 2), VOCAB, TN_I64));
    assert_error(TN_EINDEX, "cross_entropy");
    tn_lm_loss(&m, tn_zeros(TN_DIMS(1, 2), TN_I64), tn_zeros(TN_DIMS(1, 3), TN_I64));
    assert_error(TN_ESHAPE, "[1, 3]");
    tn_module_finish(&m);
}

static void expect_refused_llama(tn_llama_options o, const char *part) {
    tn_llama m;
    tn_llama_init(&m, o);
    assert_error(TN_EVALUE, part);
    TN_SCOPE;
    assert_inert(tn_call(&m, tn_ones(TN_DIMS(1, 2), TN_I64)), TN_ESTATE, "not complete");
    tn_module_finish(&m);
}

TEST(refused_llamas) {
    tn_llama_options o = small_llama();
    o.layers = 0;
    expect_refused_llama(o, "llama: layers is 0 (it must be 1 to 10000)");
    o = small_llama();
    o.kv_heads = 3;
    expect_refused_llama(o, "grouped_attention: heads is 2 but kv_heads is 3");
    o = small_llama();
    o.head_width = 3;
    expect_refused_llama(o, "head_width is 3 (it must be even");
    o = small_llama();
    o.width = 9;
    expect_refused_llama(o, "width is 9 but heads is 2");
    o = small_llama();
    o.hidden = 0;
    expect_refused_llama(o, "gated_mlp: hidden is 0 (it must be at least 1)");
    o = small_llama();
    o.eps = -1.0;
    expect_refused_llama(o, "rms_norm: eps is -1 (it must be at least 0)");
    TN_SCOPE;
    tn_llama m;
    o = small_llama();
    o.rotary.theta = 0.0;
    tn_llama_init(&m, o);
    assert_inert(tn_call(&m, tn_zeros(TN_DIMS(1, 2), TN_I64)), TN_EVALUE,
                 "(in llama.layers.0.self_attn)");
    tn_module_finish(&m);
}
