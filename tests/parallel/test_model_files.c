/* Language models from checkpoints of one process and of two ranks, and what is refused. Folders of
 * Hugging Face are in test_tensor_files.c. Ranks are threads. */
#include "tests/support/test.h"

#include "tests/support/temp.h"

#include "distributed/parallel/save/convert.h"
#include "tern/tern.h"

enum { RANKS = 2, VOCAB = 37, CONTEXT = 12 };

typedef union any_model {
    tn_module base;
    tn_gpt gpt;
    tn_llama llama;
} any_model;

/* Sizes that do not divide evenly between two ranks. */
static void init_model(any_model *m, int kind, uint64_t seed) {
    tn_seed(seed);
    if (kind == 0) {
        tn_gpt_options o = TN_WITH(tn_gpt, .vocab = VOCAB, .context = CONTEXT, .layers = 3,
                                   .heads = 3, .width = 15);
        tn_gpt_init(&m->gpt, o);
    } else {
        tn_llama_options o =
            TN_WITH(tn_llama, .vocab = VOCAB, .context = CONTEXT, .layers = 3, .heads = 4,
                    .kv_heads = 2, .width = 13, .head_width = 2, .hidden = 9, .tied = kind == 1);
        tn_llama_init(&m->llama, o);
    }
}
enum { KINDS = 3 };

static bool compare_entry(const tn_entry *entry, void *user) {
    tn_tensor *other = tn_module_get(user, entry->path);
    size_t bytes = (size_t)tn_count(other) * tn_dtype_size(tn_dtype_of(other));
    if (!tn_dims_equal(tn_shape(*entry->field), tn_shape(other)) ||
        memcmp(tn_data(*entry->field), tn_data(other), bytes) != 0) {
        tn_raise(TN_EVALUE, "%s has changed", entry->path);
    }
    return tn_error() == TN_OK;
}

static void compare_models(void *a, void *b) {
    tn_module_each(a, (tn_walk){0}, compare_entry, b);
}

typedef struct job {
    int kind;
    const char *to;
} job;

static void save_step(tn_group *g, void *user) {
    any_model m;
    const job *j = user;
    init_model(&m, j->kind, 3);
    tn_fsdp(&m, g, NULL, tn_fsdp_defaults());
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_saver *saver = tn_saver_new(g, j->to, tn_saver_defaults());
    tn_checkpoint c = {.model = &m, .optim = opt, .step = 4};
    tn_status status = tn_saver_save(saver, &c);
    (void)status; /* tn_local_run raises it */
    tn_saver_free(saver);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

static void assert_model(const char *path, any_model *m) {
    tn_module *got = tn__saver_model(path, tn_lm_load_defaults());
    if (!got) { fail_msg("%s", tn_error_message()); }
    compare_models(m, got);
    assert_int_equal(tn_error(), TN_OK);
    tn_module_free(got);
    got = tn__saver_model(path, TN_WITH(tn_lm_load, .dtype = TN_BF16, .as_stored = false));
    tn_lm_shape shape;
    assert_int_equal(tn_lm_shape_of(got, &shape), TN_OK);
    assert_int_equal(shape.vocab, VOCAB);
    tn_module_free(got);
}

TEST(from_checkpoints) {
    for (int kind = 0; kind < KINDS; kind++) {
        any_model m;
        char folder[512];
        init_model(&m, kind, 3);
        tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
        tn_checkpoint c = {.model = &m, .optim = opt, .step = 1};
        assert_int_equal(tn_checkpoint_save(&c, temp_path("one")), TN_OK);
        assert_model(temp_path("one"), &m);
        assert_int_equal(tn_save(&m, temp_path("weights")), TN_OK);
        assert_model(temp_path("weights"), &m);
        snprintf(folder, sizeof(folder), "%s%d", temp_path("parts"), kind);
        job j = {.kind = kind, .to = folder};
        assert_int_equal(tn_local_run(RANKS, save_step, &j), TN_OK);
        assert_model(folder, &m);
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
}

TEST(checkpoints_that_are_of_no_language_model) {
    tn_linear m;
    tn_linear_init(&m, 3, 2, tn_linear_defaults());
    assert_int_equal(tn_save(&m, temp_path("linear")), TN_OK);
    assert_none(tn__saver_model(temp_path("linear"), tn_lm_load_defaults()), TN_EUNSUPPORTED,
                "is of a \"linear\", which is not a language model");
    tn_module_finish(&m);
    static const struct {
        const char *text, *error;
    } wrong[] = {
        {"{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":5}}}",
         "wrong: its description does not say what context of the model is"},
        {"{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":0,\"context\":4}}}",
         "vocab of the model is \"0\" in its description (1 to "},
        {"{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":5000000000}}}",
         "vocab of the model is \"5000000000\" in its description"},
        {"{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":[5]}}}",
         "vocab of the model is \"{}\" in its description (1 to "},
        {"{\".\":{\"kind\":\"gpt\",\"options\":[5]}}", "does not say what vocab of the model is"},
        {"{\".\":{\"kind\":\"gpt\"", "wrong: byte 18 of its description: "},
        {"{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":\"x\",\"context\":4}}}",
         "vocab of the model is \"x\" in its description (1 to 2147483647)"},
        {"{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":5,\"context\":4,\"layers\":100,\"heads\":"
         "1,\"width\":2,\"bias\":0,\"activation\":\"relu\"},\"training\":{\"dropout\":0}}}",
         "its description has 100 layers, which is more than its 1 tensors"},
        {"{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":5,\"context\":4,\"layers\":1,\"heads\":1,"
         "\"width\":2,\"bias\":0,\"activation\":\"tanh\"},\"training\":{\"dropout\":0}}}",
         "activation of the model is \"tanh\" in its description (one of gelu, "},
        {"{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":5,\"context\":4,\"layers\":1,\"heads\":1,"
         "\"width\":2,\"bias\":0,\"activation\":\"relu\"},\"training\":{\"dropout\":0}}}",
         "does not say what eps of ln_f is"},
        {"{\".\":{\"kind\":\"llama\",\"options\":{\"vocab\":5,\"layers\":1,\"heads\":1,"
         "\"kv_heads\":1,\"width\":2,\"hidden\":2,\"tied\":1},\"training\":{\"context\":4}}}",
         "does not say what head_width of layers.0.self_attn is"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tn_safetensors_writer *w = tn_safetensors_writer_new();
        tn_safetensors_writer_add(w, "a", tn_zeros(TN_DIMS(1), TN_F32));
        tn_safetensors_writer_add_metadata(w, "model", wrong[i].text);
        assert_int_equal(tn_safetensors_writer_save(w, temp_path("wrong")), TN_OK);
        assert_none(tn__saver_model(temp_path("wrong"), tn_lm_load_defaults()), TN_EFORMAT,
                    wrong[i].error);
    }
}
