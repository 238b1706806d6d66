/* Folders of Hugging Face, made here by hand and by saving: what is read is right, whoever wrote
 * it, and what is wrong is an error that says where. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/temp.h"

#include "models/weights/hf_read.h"
#include "nn/layout.h"
#include "nn/module.h"
#include "tern/sys/tensor.h"
#include "tern/tern.h"

enum { VOCAB = 7, CONTEXT = 5, WIDTH = 6, HEADS = 2, LAYERS = 2 };

/* ---- A folder of one's own ------------------------------------------------------------------- */

static const char config_start[] = "{\"model_type\":\"gpt2\",\"vocab_size\":7,\"n_positions\":5,"
                                   "\"n_embd\":6,\"n_head\":2,\"n_layer\":2";

typedef struct folder_options {
    const char *prefix; /* of every name but the head's */
    const char *more;   /* members of the config, each with a comma before it */
    const char *drop;   /* a name that is not written */
    tn_dtype dtype;
    bool head;      /* lm_head.weight, as wte.weight … */
    bool head_else; /* … or not */
    bool masks;     /* attn.bias and attn.masked_bias */
    bool surplus;
} folder_options;

static tn_gpt_options small_options(void) {
    return TN_WITH(tn_gpt, .vocab = VOCAB, .context = CONTEXT, .layers = LAYERS, .heads = HEADS,
                   .width = WIDTH, .dtype = TN_F32);
}

static bool draw_entry(const tn_entry *entry, void *user) {
    (void)user;
    tn_normal_(*entry->field, 0.0, 1.0, tn_default_generator());
    return true;
}

/* A model whose every parameter tells. */
static void init_small(tn_gpt *m, tn_gpt_options o) {
    TN_NO_GRAD;
    tn_gpt_init(m, o);
    tn_module_each(m, (tn_walk){0}, draw_entry, NULL);
}

static bool is_conv(const char *path) {
    size_t n = strlen(path);
    return n > 12 && strstr(path, "c_") && strcmp(path + n - 7, ".weight") == 0;
}

typedef struct folder_writer {
    tn_safetensors_writer *w;
    const folder_options *o;
} folder_writer;

static void put(const folder_writer *f, const char *prefix, const char *name, tn_tensor *t) {
    char full[128];
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    if (!f->o->drop || strcmp(f->o->drop, full) != 0) {
        assert_int_equal(tn_safetensors_writer_add(f->w, full, t), TN_OK);
    }
}

static bool put_entry(const tn_entry *entry, void *user) {
    const folder_writer *f = user;
    tn_tensor *t = tn_cast(*entry->field, f->o->dtype);
    put(f, f->o->prefix, entry->path, is_conv(entry->path) ? tn_transpose(t, 0, 1) : t);
    return true;
}

static const char *in_folder(const char *folder, const char *name) {
    static char paths[4][600];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

/* By hand, as others do. */
static void write_folder(const char *folder, tn_gpt *m, folder_options o) {
    TN_SCOPE;
    TN_NO_GRAD;
    char config[1024];
    o.prefix = o.prefix ? o.prefix : "transformer.";
    o.dtype = o.dtype == TN_F32 ? TN_F32 : o.dtype;
    mkdir(folder, 0777);
    int n = snprintf(config, sizeof(config), "%s%s}", config_start, o.more ? o.more : "");
    temp_write(in_folder(folder, "config.json"), config, (size_t)n);
    folder_writer f = {tn_safetensors_writer_new(), &o};
    tn_module_each(m, (tn_walk){0}, put_entry, &f);
    if (o.head) {
        put(&f, "", "lm_head.weight", tn_cast(m->stem.wte.weight, o.dtype));
    } else if (o.head_else) {
        put(&f, "", "lm_head.weight", tn_zeros(TN_DIMS(VOCAB, WIDTH), o.dtype));
    }
    for (int i = 0; i < LAYERS && o.masks; i++) {
        char name[64];
        snprintf(name, sizeof(name), "h.%d.attn.bias", i);
        put(&f, o.prefix, name, tn_ones(TN_DIMS(1, 1, CONTEXT, CONTEXT), TN_U8));
        snprintf(name, sizeof(name), "h.%d.attn.masked_bias", i);
        put(&f, o.prefix, name, tn_full(TN_DIMS(), -1e4, TN_F32));
    }
    for (int i = 0; i < 12 && o.surplus; i++) {
        char name[32];
        snprintf(name, sizeof(name), "score.%02d", i);
        put(&f, "", name, tn_zeros(TN_DIMS(1), TN_F32));
    }
    assert_int_equal(tn_safetensors_writer_save(f.w, in_folder(folder, "model.safetensors")),
                     TN_OK);
}

/* ---- What is the same ------------------------------------------------------------------------ */

typedef struct comparison {
    void *other;
    int count;
} comparison;

static bool compare_entry(const tn_entry *entry, void *user) {
    comparison *c = user;
    TN_SCOPE;
    tn_tensor *a = tn_contiguous(*entry->field);
    tn_tensor *b = tn_contiguous(tn_module_get(c->other, entry->path));
    assert_true(tn_dims_equal(tn_shape(a), tn_shape(b)));
    assert_int_equal(tn_dtype_of(a), tn_dtype_of(b));
    assert_memory_equal(tn_data(a), tn_data(b),
                        (size_t)tn_count(a) * tn_dtype_size(tn_dtype_of(a)));
    c->count++;
    return true;
}

static void assert_same_model(void *a, void *b) {
    comparison c = {.other = b};
    tn_module_each(a, (tn_walk){0}, compare_entry, &c);
    assert_true(c.count > 0);
}

static tn_tensor *logits_of(void *m) {
    TN_NO_GRAD;
    return tn_call(m, TN_FROM(((int64_t[]){1, 2, 3, 0, 6}), TN_DIMS(1, 5), TN_I64));
}

static void assert_same_logits(void *a, void *b) {
    TN_SCOPE;
    assert_memory_equal(tn_data(logits_of(a)), tn_data(logits_of(b)), 5 * VOCAB * sizeof(float));
}

/* Loads it and compares. */
static void assert_folder(const char *folder, tn_gpt *m) {
    tn_gpt got;
    assert_int_equal(tn_gpt_load_hf(&got, folder, tn_lm_load_defaults()), TN_OK);
    assert_same_model(m, &got);
    tn_module_finish(&got);
}

static void assert_refused(const char *folder, tn_status status, const char *part) {
    tn_gpt got;
    assert_int_equal(tn_gpt_load_hf(&got, folder, tn_lm_load_defaults()), status);
    assert_error(status, part);
    tn_module_finish(&got);
    assert_null(tn_lm_load(folder, tn_lm_load_defaults()));
    assert_error(status, part);
}

/* ---- Folders of others ----------------------------------------------------------------------- */

static void every_form_of_names(void **state) {
    (void)state;
    tn_gpt m;
    init_small(&m, small_options());
    const folder_options forms[] = {
        {.prefix = "transformer."},
        {.prefix = ""},
        {.prefix = "transformer.", .head = true},
        {.prefix = "", .head = true, .masks = true},
        {.prefix = "transformer.", .masks = true},
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        write_folder(temp_path("form"), &m, forms[i]);
        assert_folder(temp_path("form"), &m);
    }
    tn_module_finish(&m);
}

static void names_that_do_not_fit(void **state) {
    (void)state;
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("names");
    write_folder(folder, &m, (folder_options){.drop = "transformer.h.1.ln_1.bias"});
    assert_refused(folder, TN_EMISMATCH, "has no \"transformer.h.1.ln_1.bias\"");
    write_folder(folder, &m, (folder_options){.surplus = true});
    assert_refused(folder, TN_EMISMATCH, "\"score.07\" and 4 more, which the model does not have");
    write_folder(folder, &m, (folder_options){.surplus = true, .drop = "transformer.ln_f.weight"});
    assert_refused(folder, TN_EMISMATCH,
                   "has no \"transformer.ln_f.weight\", and has \"score.00\"");
    write_folder(folder, &m, (folder_options){.prefix = "model."});
    assert_refused(folder, TN_EMISMATCH, "\"wte.weight\" is missing");
    write_folder(folder, &m, (folder_options){.head_else = true});
    assert_refused(folder, TN_EMISMATCH, "\"lm_head.weight\" differs from");
    tn_module_finish(&m);
}

static void shapes_that_do_not_fit(void **state) {
    (void)state;
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("shapes");
    write_folder(folder, &m, (folder_options){.more = ",\"n_inner\":24"});
    assert_folder(folder, &m);
    tn_gpt_options wider = small_options();
    wider.vocab = 8;
    tn_gpt other;
    init_small(&other, wider);
    write_folder(folder, &other, (folder_options){0});
    assert_refused(folder, TN_ESHAPE,
                   "\"transformer.wte.weight\" is [8, 6] but the model's is [7, 6]");
    tn_module_finish(&other);
    tn_module_finish(&m);
}

static void dtypes(void **state) {
    (void)state;
    TN_NO_GRAD;
    tn_gpt m, got;
    const tn_dtype in[] = {TN_BF16, TN_F16, TN_F32, TN_F64};
    init_small(&m, small_options());
    for (size_t i = 0; i < 4; i++) {
        const char *folder = temp_path("dtypes");
        write_folder(folder, &m, (folder_options){.dtype = in[i]});
        tn_lm_load_options o = tn_lm_load_defaults();
        assert_int_equal(tn_gpt_load_hf(&got, folder, o), TN_OK);
        assert_int_equal(tn_dtype_of(got.top.ln_f.weight), in[i]);
        tn_module_finish(&got);
        o.as_stored = false;
        o.dtype = TN_F32;
        assert_int_equal(tn_gpt_load_hf(&got, folder, o), TN_OK);
        tn_tensor *want = tn_cast(tn_cast(m.h[1].mlp.c_fc.weight, in[i]), TN_F32);
        assert_memory_equal(tn_data(want), tn_data(got.h[1].mlp.c_fc.weight),
                            4 * WIDTH * WIDTH * sizeof(float));
        tn_module_finish(&got);
    }
    tn_module_finish(&m);
}

/* ---- config.json ----------------------------------------------------------------------------- */

static void config_values(void **state) {
    (void)state;
    static const struct {
        const char *more, *error;
    } wrong[] = {
        {",\"activation_function\":\"tanh\"", "\"activation_function\" is \"tanh\""},
        {",\"activation_function\":3", "\"activation_function\" is 3 but must be a text"},
        {",\"layer_norm_epsilon\":\"small\"", "\"layer_norm_epsilon\" is \"small\""},
        {",\"scale_attn_weights\":false", "\"scale_attn_weights\" is false"},
        {",\"scale_attn_weights\":1", "\"scale_attn_weights\" is 1"},
        {",\"scale_attn_by_inverse_layer_idx\":true",
         "\"scale_attn_by_inverse_layer_idx\" is true"},
        {",\"reorder_and_upcast_attn\":true", "\"reorder_and_upcast_attn\" is true"},
        {",\"add_cross_attention\":true", "\"add_cross_attention\" is true"},
        {",\"tie_word_embeddings\":false", "\"tie_word_embeddings\" is false"},
        {",\"n_inner\":25", "\"n_inner\" is 25"},
        {",\"num_attention_heads\":3", "\"num_attention_heads\" is 3 but must be what \"n_head\""},
        {",\"is_causal\":false", "\"is_causal\" is false"},
        {",\"per_layer_config\":{\"0\":{}}", "\"per_layer_config\" is an object of 1"},
        {",\"n_head\":2", "\"n_head\" is there twice"},
        {",\"quantization_config\":{\"bits\":4}", "\"quantization_config\" is an object of 1"},
    };
    tn_gpt m;
    init_small(&m, small_options());
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_folder(temp_path("config"), &m, (folder_options){.more = wrong[i].more});
        assert_refused(temp_path("config"), TN_EFORMAT, wrong[i].error);
        assert_refused(temp_path("config"), TN_EFORMAT, "config.json");
    }
    tn_module_finish(&m);
}

static void write_config(const char *folder, const char *text) {
    temp_write(in_folder(folder, "config.json"), text, strlen(text));
}

static void configs_that_are_none(void **state) {
    (void)state;
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("none");
    assert_refused(folder, TN_EIO, "none/config.json");
    write_folder(folder, &m, (folder_options){0});
    write_config(folder, "{\"model_type\":\"gpt2\"");
    assert_refused(folder, TN_EFORMAT, "config.json: byte 20");
    write_config(folder, "[]");
    assert_refused(folder, TN_EFORMAT, "is not a JSON object");
    write_config(folder, "{}");
    assert_refused(folder, TN_EFORMAT, "\"model_type\" is missing but must be gpt2");
    write_config(folder, "{\"model_type\":\"bert\\u001b\"}");
    assert_refused(folder, TN_EFORMAT, "\"model_type\" is \"bert?\"");
    write_config(folder, "{\"model_type\":\"gpt2\",\"n_layer\":0}");
    assert_refused(folder, TN_EFORMAT, "\"n_layer\" is 0 but must be a whole number from 1");
    write_config(folder, "{\"model_type\":\"gpt2\",\"n_layer\":2000000000}");
    assert_refused(folder, TN_EFORMAT, "\"n_layer\" is 2000000000 but must be less: the weights");
    write_config(folder, "{\"model_type\":\"gpt2\",\"n_embd\":7,\"n_head\":2}");
    assert_refused(folder, TN_EFORMAT, "\"n_embd\" is 7 but must be a multiple of n_head");
    unlink(in_folder(folder, "model.safetensors"));
    assert_refused(folder, TN_EIO, "has neither model.safetensors nor");
    tn_module_finish(&m);
}

static void options_are_honoured(void **state) {
    (void)state;
    tn_gpt m, got;
    init_small(&m, small_options());
    const char *folder = temp_path("honoured");
    write_folder(folder, &m,
                 (folder_options){.more = ",\"activation_function\":\"relu\","
                                          "\"layer_norm_epsilon\":0.25,\"resid_pdrop\":0.5"});
    assert_int_equal(tn_gpt_load_hf(&got, folder, tn_lm_load_defaults()), TN_OK);
    assert_int_equal(got.options.activation, TN_ACT_RELU);
    assert_true(got.top.ln_f.eps == 0.25 && got.h[1].ln_2.eps == 0.25 &&
                got.options.dropout == 0.0);
    assert_int_equal(tn_gpt_save_hf(&got, folder), TN_OK);
    tn_module_finish(&got);
    assert_int_equal(tn_gpt_load_hf(&got, folder, tn_lm_load_defaults()), TN_OK);
    assert_int_equal(got.options.activation, TN_ACT_RELU);
    assert_true(got.h[0].ln_1.eps == 0.25);
    got.h[0].ln_1.eps = 0.5;
    assert_int_equal(tn_gpt_save_hf(&got, folder), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "\"layer_norm_epsilon\" is one number");
    tn_module_finish(&got);
    tn_module_finish(&m);
}

/* transformers takes the names that other models have, too; and others' numbers may begin with -0.
 */
static void other_names_of_options(void **state) {
    (void)state;
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("names");
    write_folder(folder, &m, (folder_options){0});
    write_config(folder, "{\"model_type\":\"gpt2\",\"vocab_size\":7,\"num_attention_heads\":2,"
                         "\"max_position_embeddings\":5,\"hidden_size\":6,"
                         "\"num_hidden_layers\":2,\"of_training\":-0.5}");
    assert_folder(folder, &m);
    tn_module_finish(&m);
}

/* ---- Positions of a llama -------------------------------------------------------------------- */

#define ROPE "\"factor\":4,\"low_freq_factor\":1,\"high_freq_factor\":4,\"rope_type\":\"llama3\","
#define ORIGIN "\"original_max_position_embeddings\":16"

static void write_llama(const char *folder, const char *more) {
    char text[512];
    snprintf(text, sizeof(text),
             "{\"model_type\":\"llama\",\"vocab_size\":7,\"hidden_size\":8,"
             "\"intermediate_size\":9,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
             "\"max_position_embeddings\":64%s}",
             more);
    write_config(folder, text);
}

static void save_llama(const char *folder) {
    tn_llama m;
    tn_llama_options o = TN_WITH(tn_llama, .vocab = 7, .context = 64, .layers = 1, .heads = 2,
                                 .width = 8, .hidden = 9, .rotary = tn_rotary_defaults(),
                                 .eps = 1e-5, .dtype = TN_F32, .tied = false, .kv_heads = 0);
    tn_llama_init(&m, o);
    assert_int_equal(tn_llama_save_hf(&m, folder), TN_OK);
    tn_module_finish(&m);
}

static void llamas_with_several_options(void **state) {
    (void)state;
    tn_llama m;
    tn_llama_options o = tn_llama_defaults();
    o.vocab = 7;
    o.context = 8;
    o.layers = 2;
    o.heads = o.kv_heads = 2;
    o.width = 8;
    o.hidden = 9;
    tn_llama_init(&m, o);
    m.top.norm.eps = 0.5;
    assert_int_equal(tn_llama_save_hf(&m, temp_path("several")), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "\"norm\" differs from the model's options");
    m.top.norm.eps = o.eps;
    m.layers[1].self_attn.rotary.theta = 3.0;
    assert_int_equal(tn_llama_save_hf(&m, temp_path("several")), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "\"layers.1.self_attn\" differs");
    m.layers[1].self_attn.rotary = o.rotary;
    assert_int_equal(tn_llama_save_hf(&m, temp_path("several")), TN_OK);
    tn_module_finish(&m);
}

static void positions_of_a_llama(void **state) {
    (void)state;
    static const struct {
        const char *more;
        double theta, factor;
    } right[] = {
        {"", 10000.0, 1.0},
        {",\"rope_theta\":50", 50.0, 1.0},
        {",\"rope_parameters\":{\"rope_theta\":50},\"rope_theta\":60", 50.0, 1.0},
        {",\"rope_parameters\":{" ROPE ORIGIN "}", 10000.0, 4.0},
        {",\"rope_scaling\":{" ROPE ORIGIN "},\"rope_theta\":50", 50.0, 4.0},
        {",\"rope_scaling\":{},\"rope_parameters\":{" ROPE ORIGIN "}", 10000.0, 4.0},
        {",\"rope_parameters\":{" ROPE ORIGIN "}," ORIGIN, 10000.0, 4.0},
    };
    const char *folder = temp_path("positions");
    save_llama(folder);
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        tn_llama m;
        write_llama(folder, right[i].more);
        assert_int_equal(tn_llama_load_hf(&m, folder, tn_lm_load_defaults()), TN_OK);
        tn_rotary_options rotary = m.options.rotary;
        assert_true(rotary.theta == right[i].theta && rotary.factor == right[i].factor);
        assert_true(rotary.factor == 1.0 || rotary.original_context == 16);
        tn_module_finish(&m);
    }
}

static void positions_that_no_llama_has(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", "\"type\" is \"linear\""},
        {"\"rope_parameters\":{\"rope_type\":\"yarn\"}", "\"rope_type\" is \"yarn\""},
        {"\"rope_parameters\":{\"partial_rotary_factor\":0.5}", "\"partial_rotary_factor\" is 0.5"},
        {"\"rope_parameters\":{" ROPE "\"a\":1}",
         "\"original_max_position_embeddings\" is missing"},
        {"\"rope_parameters\":{" ROPE ORIGIN "},\"original_max_position_embeddings\":17",
         "\"original_max_position_embeddings\" is 17 but must be the same in both places"},
        {"\"attention_bias\":true", "\"attention_bias\" is true"},
        {"\"mlp_bias\":true", "\"mlp_bias\" is true"},
        {"\"hidden_act\":\"gelu\"", "\"hidden_act\" is \"gelu\""},
        {"\"is_causal\":false", "\"is_causal\" is false"},
    };
    const char *folder = temp_path("no-positions");
    save_llama(folder);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char more[256];
        snprintf(more, sizeof(more), ",%s", wrong[i][0]);
        write_llama(folder, more);
        assert_null(tn_lm_load(folder, tn_lm_load_defaults()));
        assert_error(TN_EFORMAT, wrong[i][1]);
    }
}

/* ---- Saving ---------------------------------------------------------------------------------- */

static void saved_and_loaded(void **state) {
    (void)state;
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("saved");
    tn_lm_save_options parts = tn_lm_save_defaults(), plain = tn_lm_save_defaults();
    parts.max_part_bytes = 700;
    plain.plain = true;
    const tn_lm_save_options ways[] = {
        tn_lm_save_defaults(), parts, tn_lm_save_defaults(), plain, parts, plain,
        tn_lm_save_defaults()};
    mkdir(folder, 0777);
    temp_write(in_folder(folder, "tokenizer.json"), "{}", 2);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        assert_int_equal(tn_lm_save_with(&m, folder, ways[i]), TN_OK);
        assert_folder(folder, &m);
        bool one = access(in_folder(folder, "model.safetensors"), F_OK) == 0;
        bool index = access(in_folder(folder, "model.safetensors.index.json"), F_OK) == 0;
        bool own = access(in_folder(folder, "tern.safetensors"), F_OK) == 0;
        assert_int_equal(one, !ways[i].plain && ways[i].max_part_bytes > 700);
        assert_int_equal(index, ways[i].max_part_bytes == 700);
        assert_int_equal(own, ways[i].plain);
        assert_int_equal(access(in_folder(folder, "tokenizer.json"), F_OK), 0);
        assert_int_not_equal(access(in_folder(folder, "weights.tmp"), F_OK), 0);
    }
    tn_module_finish(&m);
}

static void without_biases(void **state) {
    (void)state;
    tn_gpt m, got;
    tn_gpt_options o = small_options();
    o.bias = false;
    init_small(&m, o);
    const char *folder = temp_path("biases");
    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    assert_int_equal(tn_gpt_load_hf(&got, folder, tn_lm_load_defaults()), TN_OK);
    assert_true(got.options.bias);
    assert_same_logits(&m, &got);
    tn_module_finish(&got);
    tn_lm_save_options plain = tn_lm_save_defaults();
    plain.plain = true;
    assert_int_equal(tn_lm_save_with(&m, folder, plain), TN_OK);
    assert_folder(folder, &m);
    tn_module_finish(&m);
}

/* As transformers reads it: (in, out), with the prefix, and who wrote it. */
static void what_is_written(void **state) {
    (void)state;
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("written");
    assert_int_equal(tn_gpt_save_hf(&m, folder), TN_OK);
    tn_safetensors *f = tn_safetensors_open(in_folder(folder, "model.safetensors"));
    assert_non_null(f);
    assert_string_equal(tn_safetensors_metadata(f, "format"), "pt");
    assert_int_equal(tn_safetensors_count(f), 2 + 12 * LAYERS + 2);
    TN_NO_GRAD;
    tn_tensor *c_fc = tn_safetensors_get(f, "transformer.h.1.mlp.c_fc.weight");
    assert_int_equal(tn_size(c_fc, 0), WIDTH);
    tn_tensor *back = tn_contiguous(tn_transpose(c_fc, 0, 1));
    assert_memory_equal(tn_data(back), tn_data(m.h[1].mlp.c_fc.weight),
                        4 * WIDTH * WIDTH * sizeof(float));
    tn_safetensors_close(f);
    tn_module_finish(&m);
}

/* ---- Indexes --------------------------------------------------------------------------------- */

static void write_index(const char *folder, const char *map) {
    char text[512];
    int n = snprintf(text, sizeof(text), "{\"metadata\":{},\"weight_map\":%s}", map);
    temp_write(in_folder(folder, "model.safetensors.index.json"), text, (size_t)n);
}

static void indexes_that_lie(void **state) {
    (void)state;
    static const struct {
        const char *map, *error;
        tn_status status;
    } wrong[] = {
        {"{\"a\":\"../a.safetensors\"}", "is in a file that is not beside the index", TN_EFORMAT},
        {"{\"a\":\"/etc/passwd\"}", "is in a file that is not beside the index", TN_EFORMAT},
        {"{\"a\":\"\"}", "is in a file that is not beside the index", TN_EFORMAT},
        {"{\"a\":\".\"}", "is in a file that is not beside the index", TN_EFORMAT},
        {"{\"a\":\"b.safetensors\"}", "b.safetensors: No such file", TN_EIO},
        {"{\"a\":\"model.safetensors.index.json\"}", "index.json", TN_EFORMAT},
        {"{\"a\":\"one\",\"a\":\"one\"}", "\"a\" is a duplicate", TN_EFORMAT},
        {"{\"a\":3}", "\"a\" is not a text", TN_EFORMAT},
        {"{}", "\"weight_map\" is not an object with names", TN_EFORMAT},
        {"[]", "\"weight_map\" is not an object with names", TN_EFORMAT},
        {"{\"x\":\"one\",\"z\":\"one\"}", "\"z\" is not in one", TN_EFORMAT},
        {"{\"x\":\"one\"}", "has \"y\", which", TN_EFORMAT},
        {"{\"x\":\"one\",\"y\":\"two\"}", "has \"y\", which", TN_EFORMAT},
    };
    const char *folder = temp_path("lies");
    mkdir(folder, 0777);
    write_config(folder, "{\"model_type\":\"gpt2\"}");
    const char *const files[][3] = {{"one", "x", "y"}, {"two", "u", "v"}};
    for (int i = 0; i < 2; i++) {
        tn_safetensors_writer *w = tn_safetensors_writer_new();
        tn_safetensors_writer_add(w, files[i][1], tn_zeros(TN_DIMS(1), TN_F32));
        tn_safetensors_writer_add(w, files[i][2], tn_zeros(TN_DIMS(1), TN_F32));
        assert_int_equal(tn_safetensors_writer_save(w, in_folder(folder, files[i][0])), TN_OK);
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_index(folder, wrong[i].map);
        assert_refused(folder, wrong[i].status, wrong[i].error);
    }
}

/* ---- Into a model that is there -------------------------------------------------------------- */

static void into_a_model(void **state) {
    (void)state;
    tn_gpt m, other, copy;
    init_small(&m, small_options());
    init_small(&other, small_options());
    const char *folder = temp_path("into");
    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    assert_int_equal(tn_lm_load_weights(&other, folder), TN_OK);
    assert_same_model(&m, &other);
    tn_module_finish(&other);

    tn_gpt_options o = small_options();
    o.heads = 3;
    init_small(&other, o);
    assert_int_equal(tn_lm_load_weights(&other, folder), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "heads was 2 but is 3");
    tn_module_finish(&other);

    tn_linear linear;
    tn_linear_init(&linear, 2, 2, tn_linear_defaults());
    assert_int_equal(tn_lm_load_weights(&linear, folder), TN_EVALUE);
    assert_error(TN_EVALUE, "is not a complete language model");
    tn_module_finish(&linear);

    /* what fails changes nothing */
    tn_seed(5);
    init_small(&other, small_options());
    tn_seed(5);
    init_small(&copy, small_options());
    write_folder(folder, &m, (folder_options){.drop = "transformer.wpe.weight"});
    assert_int_equal(tn_lm_load_weights(&other, folder), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "\"transformer.wpe.weight\"");
    assert_same_model(&copy, &other);
    tn_module_finish(&copy);
    tn_module_finish(&other);

    /* without elements until they come from the files */
    write_folder(folder, &m, (folder_options){0});
    {
        TN_DEFER_INIT;
        tn_gpt_init(&other, small_options());
    }
    assert_int_equal(tn_lm_load_weights(&other, folder), TN_OK);
    assert_same_model(&m, &other);
    tn_module_finish(&other);
    tn_module_finish(&m);
}

/* ---- A stage of a pipeline ------------------------------------------------------------------- */

static const char *stage_paths[16];
static int stage_count;

static bool list_last(const tn_entry *entry, void *user) {
    (void)user;
    if (strncmp(entry->path, "h.1.", 4) == 0) {
        stage_paths[stage_count++] = strdup(entry->path);
    }
    return true;
}

/* What is absent is neither read nor missed; a folder of what is here would be less than a model.
 */
static void folders_and_absent_ones(void **state) {
    (void)state;
    tn_gpt m, stage;
    init_small(&m, small_options());
    init_small(&stage, small_options());
    const char *folder = temp_path("stage");
    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    tn_module_each(&stage, (tn_walk){0}, list_last, NULL);
    assert_int_equal(stage_count, 12);
    for (int i = 0; i < stage_count; i++) {
        assert_int_equal(tn__module_set_absent(&stage.base, stage_paths[i]), TN_OK);
        free((char *)stage_paths[i]);
    }
    assert_int_equal(tn_lm_load_weights(&stage, folder), TN_OK);
    assert_true(tn_equal(stage.h[0].mlp.c_fc.weight, m.h[0].mlp.c_fc.weight));
    assert_true(tn_equal(stage.stem.wte.weight, m.stem.wte.weight));
    assert_true(tn_storage_is_empty(stage.h[1].mlp.c_fc.weight));
    assert_int_equal(tn_lm_save(&stage, folder), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "\"h.1.ln_1.weight\" is sharded: this rank has 0");
    tn_module_finish(&stage);

    tn_llama llama, first; /* whose head is apart: the first stage has the embedding alone */
    tn_llama_options o = TN_WITH(tn_llama, .vocab = VOCAB, .layers = 1, .heads = 2, .kv_heads = 1,
                                 .width = 8, .hidden = 8, .tied = false);
    tn_llama_init(&llama, o);
    tn_llama_init(&first, o);
    assert_int_equal(tn_lm_save(&llama, folder), TN_OK);
    assert_int_equal(tn__module_set_absent(&first.base, "lm_head.weight"), TN_OK);
    assert_int_equal(tn_lm_load_weights(&first, folder), TN_OK);
    assert_true(tn_equal(first.stem.embed_tokens.weight, llama.stem.embed_tokens.weight));
    tn_module_finish(&llama);
    tn_module_finish(&first);
    tn_module_finish(&m);
}

/* ---- Elements of one rank -------------------------------------------------------------------- */

static uint64_t random_state = 7;

static int64_t draw_below(int64_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)below);
}

static tn_layout draw_layout(tn_dims whole) {
    tn_layout l = tn__layout_whole(whole);
    if (draw_below(3)) {
        l.dim = (int)draw_below(2);
        int64_t size = whole.size[l.dim], cuts[] = {1, 2, 3, 4, 6};
        do {
            l.pieces = (int)cuts[draw_below(5)];
            l.slices = (int)cuts[draw_below(5)] + (l.pieces == 1 ? (int)draw_below(2) : 0);
        } while (l.pieces > 1 && size % (l.pieces * l.slices) != 0);
        l.slice = (int)draw_below(l.slices);
    }
    int64_t block = tn_dims_count(tn__layout_block(&l));
    l.start = draw_below(block + 1);
    l.length = draw_below(block - l.start + 1);
    return l;
}

static void elements_of_a_rank(void **state) {
    (void)state;
    const char *path = temp_path("ranks.safetensors");
    tn_dims whole = TN_DIMS(24, 12);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_tensor *t = tn_reshape(tn_arange(0, 24 * 12, 1, TN_F32), whole);
    const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F64};
    tn_tensor *all[3];
    for (int d = 0; d < 3; d++) {
        char name[32];
        all[d] = tn_cast(t, dtypes[d]);
        snprintf(name, sizeof(name), "straight%d", d);
        tn_safetensors_writer_add(w, name, all[d]);
        snprintf(name, sizeof(name), "turned%d", d);
        tn_safetensors_writer_add(w, name, tn_transpose(all[d], 0, 1));
    }
    assert_int_equal(tn_safetensors_writer_save(w, path), TN_OK);
    tn_safetensors *f = tn_safetensors_open(path);
    char *got = malloc(24 * 12 * 8 + 8);
    for (int i = 0; i < 3000; i++) {
        tn_layout l = draw_layout(whole);
        int d = i % 3;
        bool turned = i & 1;
        char name[32];
        snprintf(name, sizeof(name), "%s%d", turned ? "turned" : "straight", d);
        size_t size = tn_dtype_size(dtypes[d]);
        const char *want = tn_data(all[d]);
        memset(got, 0x5a, 24 * 12 * 8 + 8);
        assert_true(tn__hf_read(f, name, &l, turned, got));
        for (int64_t here = 0; here < l.length;) {
            tn__layout_span run = tn__layout_run(&l, here);
            assert_memory_equal(got + (size_t)here * size, want + (size_t)run.whole * size,
                                (size_t)run.length * size);
            here += run.length;
        }
        assert_int_equal(got[(size_t)l.length * size], 0x5a);
    }
    free(got);
    tn_safetensors_close(f);
}

/* ---- Mapped ---------------------------------------------------------------------------------- */

static int views;

static bool count_view(const tn_entry *entry, void *user) {
    (void)user;
    views += (*entry->field)->storage->release != NULL;
    return true;
}

static int count_views(void *m) {
    views = 0;
    tn_module_each(m, (tn_walk){0}, count_view, NULL);
    return views;
}

static void mapped_weights(void **state) {
    (void)state;
    tn_gpt m, got;
    init_small(&m, small_options());
    const char *folder = temp_path("mapped");
    tn_lm_load_options o = tn_lm_load_defaults();
    tn_lm_save_options plain = tn_lm_save_defaults();
    o.mmap = plain.plain = true;
    int all = 4 + 12 * LAYERS;

    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    assert_int_equal(tn_gpt_load_hf(&got, folder, o), TN_OK);
    assert_int_equal(count_views(&got), all - 4 * LAYERS); /* the others are turned */
    assert_same_model(&m, &got);
    tn_module_finish(&got);

    assert_int_equal(tn_lm_save_with(&m, folder, plain), TN_OK);
    assert_int_equal(tn_gpt_load_hf(&got, folder, o), TN_OK);
    assert_int_equal(count_views(&got), all);
    assert_same_logits(&m, &got);
    {
        TN_NO_GRAD; /* what is written to is this process's own */
        tn_fill_(got.stem.wte.weight, 3.0);
    }
    assert_folder(folder, &m);
    tn_module_finish(&got);

    o.as_stored = false;
    o.dtype = TN_BF16; /* another dtype: nothing can be mapped */
    assert_int_equal(tn_gpt_load_hf(&got, folder, o), TN_OK);
    assert_int_equal(count_views(&got), 0);
    tn_module_finish(&got);
    tn_module_finish(&m);
}

static void weights_of_bytes(void **state) {
    (void)state;
    const tn_dtype dtypes[] = {TN_F32, TN_BF16};
    for (int i = 0; i < 2; i++) {
        tn_gpt m, got;
        tn_gpt_options options = small_options();
        options.dtype = dtypes[i];
        init_small(&m, options);
        assert_int_equal(tn_quantize(&m), TN_OK);
        const char *folder = temp_path("bytes");
        tn_lm_load_options o = tn_lm_load_defaults();
        tn_lm_save_options plain = tn_lm_save_defaults();
        o.mmap = plain.plain = true;
        assert_int_equal(tn_lm_save_with(&m, folder, plain), TN_OK);
        assert_int_equal(tn_gpt_load_hf(&got, folder, o), TN_OK);
        assert_same_model(&m, &got);
        assert_int_equal(count_views(&got), 4 + 12 * LAYERS);
        TN_NO_GRAD;
        tn_tensor *want = logits_of(&m), *has = logits_of(&got);
        assert_int_equal(tn_dtype_of(want), dtypes[i]);
        assert_int_equal(tn_dtype_of(has), dtypes[i]);
        assert_memory_equal(tn_data(want), tn_data(has), 5 * VOCAB * tn_dtype_size(dtypes[i]));
        tn_module_finish(&got);
        assert_int_equal(tn_lm_save(&m, folder), TN_EUNSUPPORTED);
        assert_error(TN_EUNSUPPORTED, "is i8, which Hugging Face's files");
        tn_module_finish(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_form_of_names),    TEST(names_that_do_not_fit),
        TEST(shapes_that_do_not_fit), TEST(dtypes),
        TEST(config_values),          TEST(configs_that_are_none),
        TEST(other_names_of_options), TEST(llamas_with_several_options),
        TEST(positions_of_a_llama),   TEST(positions_that_no_llama_has),
        TEST(options_are_honoured),   TEST(saved_and_loaded),
        TEST(without_biases),         TEST(what_is_written),
        TEST(indexes_that_lie),       TEST(into_a_model),
        TEST(elements_of_a_rank),     TEST(mapped_weights),
        TEST(weights_of_bytes),       TEST(folders_and_absent_ones),
    };
    return cmocka_run_group_tests(tests, NULL, temp_clean);
}
