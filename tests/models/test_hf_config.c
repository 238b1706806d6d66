/* config.json of a Hugging Face folder: the model gets what it says, and whatever is wrong or not
 * supported is an error that says where. */
#include "tests/models/hf_folder.h"

/* ---- config.json ----------------------------------------------------------------------------- */

TEST(config_values) {
    static const struct {
        const char *more, *error;
    } wrong[] = {
        {",\"activation_function\":\"tanh\"", "\"activation_function\" is \"tanh\""},
        {",\"activation_function\":3", "\"activation_function\" is 3 but must be a string"},
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
        {",\"n_head\":2", "\"n_head\" occurs twice"},
        {",\"layer_norm_epsilon\":NaN", "\"layer_norm_epsilon\" is NaN but must be a number"},
        {",\"n_inner\":Infinity", "\"n_inner\" is Infinity but must be"},
        {",\"scale_attn_weights\":-Infinity", "\"scale_attn_weights\" is -Infinity"},
        {",\"unused\":-NaN", "byte"},
        {",\"unused\":nan", "a value should begin here"},
        {",\"quantization_config\":{\"bits\":4}", "\"quantization_config\" is an object of 1"},
    };
    tn_gpt m;
    init_small(&m, small_options());
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_folder(temp_path("config"), &m, (folder_options){.more = wrong[i].more});
        assert_refused(temp_path("config"), TN_EFORMAT, wrong[i].error);
        assert_refused(temp_path("config"), TN_EFORMAT, "config.json");
    }
    /* as Python writes them, where nothing reads them */
    folder_options more = {.more = ",\"unused\":{\"best\":[NaN,Infinity,-Infinity]}"};
    write_folder(temp_path("config"), &m, more);
    assert_folder(temp_path("config"), &m);
    tn_module_finish(&m);
}

TEST(configs_that_are_none) {
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
    assert_refused(folder, TN_EFORMAT, "\"n_layer\" is 2000000000 but must be fewer: the weights");
    write_config(folder, "{\"model_type\":\"gpt2\",\"n_embd\":7,\"n_head\":2}");
    assert_refused(folder, TN_EFORMAT, "\"n_embd\" is 7 but must be a multiple of n_head");
    unlink(in_folder(folder, "model.safetensors"));
    assert_refused(folder, TN_EIO, "has neither model.safetensors nor");
    tn_module_finish(&m);
}

TEST(options_are_honoured) {
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("honoured");
    write_folder(folder, &m,
                 (folder_options){.more = ",\"activation_function\":\"relu\","
                                          "\"layer_norm_epsilon\":0.25,\"resid_pdrop\":0.5"});
    tn_gpt *got = (tn_gpt *)tn_lm_load(folder, tn_lm_load_defaults());
    assert_int_equal(got->options.activation, TN_ACT_RELU);
    assert_true(got->top.ln_f.eps == 0.25 && got->h[1].ln_2.eps == 0.25 &&
                got->options.dropout == 0.0);
    assert_int_equal(tn_lm_save(got, folder), TN_OK);
    tn_module_free(got);
    got = (tn_gpt *)tn_lm_load(folder, tn_lm_load_defaults());
    assert_int_equal(got->options.activation, TN_ACT_RELU);
    assert_true(got->h[0].ln_1.eps == 0.25);
    got->h[0].ln_1.eps = 0.5;
    assert_fails(tn_lm_save(got, folder), TN_EUNSUPPORTED, "\"layer_norm_epsilon\" is one number");
    tn_module_free(got);
    tn_module_finish(&m);
}

/* transformers also accepts other models' names of options; and numbers may begin with -0. */
TEST(other_names_of_options) {
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
    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    tn_module_free(tn_lm_load(folder, tn_lm_load_defaults())); /* as many kv_heads as heads */
    assert_int_equal(tn_error(), TN_OK);
    tn_module_finish(&m);
}

TEST(llamas_with_several_options) {
    tn_llama m;
    tn_llama_options o = TN_WITH(tn_llama, .vocab = 7, .context = 8, .layers = 2);
    o.heads = o.kv_heads = 2;
    o.width = 8;
    o.hidden = 9;
    tn_llama_init(&m, o);
    m.top.norm.eps = 0.5;
    assert_fails(tn_lm_save(&m, temp_path("several")), TN_EUNSUPPORTED,
                 "\"norm\" differs from the model's options");
    m.top.norm.eps = o.eps;
    m.layers[1].self_attn.rotary.theta = 3.0;
    assert_fails(tn_lm_save(&m, temp_path("several")), TN_EUNSUPPORTED,
                 "\"layers.1.self_attn\" differs");
    m.layers[1].self_attn.rotary = o.rotary;
    assert_int_equal(tn_lm_save(&m, temp_path("several")), TN_OK);
    tn_module_finish(&m);
}

TEST(positions_of_a_llama) {
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
        write_llama(folder, right[i].more);
        tn_llama *m = (tn_llama *)tn_lm_load(folder, tn_lm_load_defaults());
        tn_rotary_options rotary = m->options.rotary;
        assert_true(rotary.theta == right[i].theta && rotary.factor == right[i].factor);
        assert_true(rotary.factor == 1.0 || rotary.original_context == 16);
        tn_module_free(m);
    }
}

TEST(positions_that_no_llama_has) {
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
        assert_none(tn_lm_load(folder, tn_lm_load_defaults()), TN_EFORMAT, wrong[i][1]);
    }
}
