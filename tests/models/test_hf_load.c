/* Weights from Hugging Face folders, written by hand and by saving: they are read correctly,
 * whichever program wrote them, and errors say where. */
#include "models/weights/hf.h"
#include "nn/layout.h"
#include "nn/module.h"
#include "tern/sys/tensor.h"
#include "tests/models/hf_folder.h"

#include <math.h>

/* ---- Folders of other programs --------------------------------------------------------------- */

TEST(every_form_of_names) {
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

TEST(names_that_do_not_fit) {
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

TEST(shapes_that_do_not_fit) {
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

TEST(dtypes_of_weights) {
    TN_NO_GRAD;
    tn_gpt m;
    const tn_dtype in[] = {TN_BF16, TN_F16, TN_F32, TN_F64};
    init_small(&m, small_options());
    for (size_t i = 0; i < 4; i++) {
        const char *folder = temp_path("dtypes");
        write_folder(folder, &m, (folder_options){.dtype = in[i]});
        tn_lm_load_options o = tn_lm_load_defaults();
        tn_gpt *got = (tn_gpt *)tn_lm_load(folder, o);
        assert_int_equal(tn_dtype_of(got->top.ln_f.weight), in[i]);
        tn_module_free(got);
        o.as_stored = false;
        o.dtype = TN_F32;
        got = (tn_gpt *)tn_lm_load(folder, o);
        tn_tensor *want = tn_cast(tn_cast(m.h[1].mlp.c_fc.weight, in[i]), TN_F32);
        assert_memory_equal(tn_data(want), tn_data(got->h[1].mlp.c_fc.weight),
                            4 * WIDTH * WIDTH * sizeof(float));
        tn_module_free(got);
    }
    tn_module_finish(&m);
}

/* An infinity that the file does not have would make every logit NaN. */
TEST(numbers_too_large) {
    TN_NO_GRAD;
    static const struct {
        tn_dtype in, to;
        double value;      /* the model has `sign` of it */
        const char *shown; /* NULL: it fits */
    } cases[] = {
        {TN_BF16, TN_F16, 1e5, "99840"},
        {TN_F32, TN_F16, -1e5, "100000"},
        {TN_F64, TN_F16, 65520, "65520"},
        {TN_F32, TN_F16, 65519, NULL},
        {TN_F32, TN_F16, INFINITY, NULL},
        {TN_F32, TN_F16, NAN, NULL},
        {TN_F32, TN_BF16, 3.4e38, "3.39999995e+38"},
        {TN_F32, TN_BF16, 3.38e38, NULL},
        {TN_F64, TN_F32, 1e300, "1e+300"},
        {TN_F16, TN_F32, 65504, NULL},
    };
    const char *folder = temp_path("large"), *path = temp_path("large.safetensors");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tn_gpt m, got;
        tn_gpt_options o = small_options();
        o.dtype = cases[i].in;
        init_small(&m, o);
        tn_fill_(tn_narrow(tn_reshape(tn_detach(m.h[1].mlp.c_fc.bias), TN_DIMS(-1)), 0, 3, 1),
                 cases[i].value);
        write_folder(folder, &m, (folder_options){.dtype = cases[i].in});
        assert_int_equal(tn_save(&m, path), TN_OK);
        tn_lm_load_options load = TN_WITH(tn_lm_load, .as_stored = false, .dtype = cases[i].to);
        tn_status wanted = cases[i].shown ? TN_EVALUE : TN_OK;
        tn_module_free(tn_lm_load(folder, load));
        assert_int_equal(tn_error(), wanted);
        char part[96];
        if (cases[i].shown) {
            snprintf(part, sizeof(part), "h.1.mlp.c_fc.bias\" has a number of size %s",
                     cases[i].shown);
            assert_error(TN_EVALUE, part);
        }
        o.dtype = cases[i].to;
        tn_gpt_init(&got, o);
        assert_int_equal(tn_load(&got, path), wanted); /* into a module of another dtype */
        if (cases[i].shown) { assert_error(TN_EVALUE, part); }
        tn_module_finish(&got);
        tn_module_finish(&m);
    }
}

/* ---- Indexes --------------------------------------------------------------------------------- */

static void write_index(const char *folder, const char *map) {
    char text[512];
    int n = snprintf(text, sizeof(text),
                     "{\"metadata\":{\"loss\":[NaN,Infinity,-Infinity]},\"weight_map\":%s}", map);
    temp_write(in_folder(folder, "model.safetensors.index.json"), text, (size_t)n);
}

TEST(indexes_that_lie) {
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
        {"{\"a\":3}", "\"a\" is not a string", TN_EFORMAT},
        {"{}", "\"weight_map\" is not an object with names", TN_EFORMAT},
        {"[]", "\"weight_map\" is not an object with names", TN_EFORMAT},
        {"{\"x\":\"one\",\"z\":\"one\"}", "\"z\" is not in one", TN_EFORMAT},
        {"{\"x\":\"one\",\"y\":\"two\"}", "\"y\" is not in two", TN_EFORMAT},
        {"{\"x\":\"one\",\"u\":\"two\"}", "\"x\" is in two files", TN_EFORMAT},
    };
    const char *folder = temp_path("lies");
    mkdir(folder, 0777);
    write_config(folder, "{\"model_type\":\"gpt2\"}");
    const char *const files[][3] = {{"one", "x", "y"}, {"two", "u", "x"}};
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

/* ---- Into an existing model ------------------------------------------------------------------ */

TEST(into_a_model) {
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
    assert_fails(tn_lm_load_weights(&other, folder), TN_EMISMATCH, "heads was 2 but is 3");
    tn_module_finish(&other);

    tn_linear linear;
    tn_linear_init(&linear, 2, 2, tn_linear_defaults());
    assert_fails(tn_lm_load_weights(&linear, folder), TN_EVALUE,
                 "is not a complete language model");
    tn_module_finish(&linear);

    /* a load that fails changes nothing */
    tn_seed(5);
    init_small(&other, small_options());
    tn_seed(5);
    init_small(&copy, small_options());
    write_folder(folder, &m, (folder_options){.drop = "transformer.wpe.weight"});
    assert_fails(tn_lm_load_weights(&other, folder), TN_EMISMATCH, "\"transformer.wpe.weight\"");
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
    {
        TN_DEFER_INIT;
        tn_gpt_init(&other, small_options());
        assert_int_equal(tn_lm_load_weights(&other, folder), TN_OK);
    }
    assert_same_model(&m, &other);
    tn_module_finish(&other);
    tn_module_finish(&m);
}

/* ---- A stage of a pipeline ------------------------------------------------------------------- */

static const char *stage_paths[16];
static int stage_count;

static bool list_last(const tn_entry *entry, void *user) {
    if (strncmp(entry->path, "h.1.", 4) == 0) { stage_paths[stage_count++] = strdup(entry->path); }
    return true;
}

/* Absent parameters are neither read nor missed; saving a stage is refused, since it is not a whole
 * model. */
TEST(folders_and_absent_ones) {
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
    assert_fails(tn_lm_save(&stage, folder), TN_EUNSUPPORTED,
                 "\"h.1.ln_1.weight\" is sharded: this rank has 0");
    tn_module_finish(&stage);

    tn_llama llama, first; /* untied: the first stage has only the embedding */
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

TEST(elements_of_a_rank) {
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
    views += (*entry->field)->storage->release != NULL;
    return true;
}

static int count_views(void *m) {
    views = 0;
    tn_module_each(m, (tn_walk){0}, count_view, NULL);
    return views;
}

TEST(mapped_weights) {
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("mapped");
    tn_lm_load_options o = tn_lm_load_defaults();
    tn_lm_save_options plain = tn_lm_save_defaults();
    o.mmap = plain.plain = true;
    int all = 4 + 12 * LAYERS;

    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    tn_gpt *got = (tn_gpt *)tn_lm_load(folder, o);
    assert_int_equal(count_views(got), all - 4 * LAYERS); /* the others are stored transposed */
    assert_same_model(&m, got);
    tn_module_free(got);

    assert_int_equal(tn_lm_save_with(&m, folder, plain), TN_OK);
    got = (tn_gpt *)tn_lm_load(folder, o);
    assert_int_equal(count_views(got), all);
    assert_same_logits(&m, got);
    {
        TN_NO_GRAD; /* writing changes only this process's memory */
        tn_fill_(got->stem.wte.weight, 3.0);
    }
    assert_folder(folder, &m);
    tn_module_free(got);

    o.as_stored = false;
    o.dtype = TN_BF16; /* another dtype: nothing can be mapped */
    got = (tn_gpt *)tn_lm_load(folder, o);
    assert_int_equal(count_views(got), 0);
    tn_module_free(got);
    tn_module_finish(&m);
}

TEST(weights_of_bytes) {
    const tn_dtype dtypes[] = {TN_F32, TN_BF16};
    for (int i = 0; i < 2; i++) {
        tn_gpt m;
        tn_gpt_options options = small_options();
        options.dtype = dtypes[i];
        init_small(&m, options);
        assert_int_equal(tn_quantize(&m), TN_OK);
        const char *folder = temp_path("bytes");
        tn_lm_load_options o = tn_lm_load_defaults();
        tn_lm_save_options plain = tn_lm_save_defaults();
        o.mmap = plain.plain = true;
        assert_int_equal(tn_lm_save_with(&m, folder, plain), TN_OK);
        tn_gpt *got = (tn_gpt *)tn_lm_load(folder, o);
        assert_same_model(&m, got);
        assert_int_equal(count_views(got), 4 + 12 * LAYERS);
        TN_NO_GRAD;
        tn_tensor *want = logits_of(&m), *has = logits_of(got);
        assert_int_equal(tn_dtype_of(want), dtypes[i]);
        assert_int_equal(tn_dtype_of(has), dtypes[i]);
        assert_memory_equal(tn_data(want), tn_data(has), 5 * VOCAB * tn_dtype_size(dtypes[i]));
        tn_module_free(got);
        assert_fails(tn_lm_save(&m, folder), TN_EUNSUPPORTED, "is i8, which Hugging Face's files");
        tn_module_finish(&m);
    }
}
