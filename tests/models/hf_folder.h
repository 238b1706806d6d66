/* A small GPT and Hugging Face folders, for tests: written by hand as other programs do, loaded,
 * and compared. */
#ifndef TERN_TESTS_MODELS_HF_FOLDER_H
#define TERN_TESTS_MODELS_HF_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tern/tern.h"
#include "tests/support/temp.h"

enum { VOCAB = 7, CONTEXT = 5, WIDTH = 6, HEADS = 2, LAYERS = 2 };

/* ---- Writing a folder ------------------------------------------------------------------------ */

static const char config_start[] = "{\"model_type\":\"gpt2\",\"vocab_size\":7,\"n_positions\":5,"
                                   "\"n_embd\":6,\"n_head\":2,\"n_layer\":2";

typedef struct folder_options {
    const char *prefix; /* of every name except the head's */
    const char *more;   /* members of the config, each with a comma before it */
    const char *drop;   /* a name that is not written */
    tn_dtype dtype;
    bool head;      /* has lm_head.weight, equal to wte.weight */
    bool head_else; /* has another lm_head.weight */
    bool masks;     /* attn.bias and attn.masked_bias */
    bool surplus;
} folder_options;

static inline tn_gpt_options small_options(void) {
    return TN_WITH(tn_gpt, .vocab = VOCAB, .context = CONTEXT, .layers = LAYERS, .heads = HEADS,
                   .width = WIDTH, .dtype = TN_F32);
}

static inline bool draw_entry(const tn_entry *entry, void *user) {
    tn_normal_(*entry->field, 0.0, 1.0, tn_default_generator());
    return true;
}

/* A model with random values in every parameter, biases and norms included. */
static inline void init_small(tn_gpt *m, tn_gpt_options o) {
    TN_NO_GRAD;
    tn_gpt_init(m, o);
    tn_module_each(m, (tn_walk){0}, draw_entry, NULL);
}

static inline bool is_conv(const char *path) {
    size_t n = strlen(path);
    return n > 12 && strstr(path, "c_") && strcmp(path + n - 7, ".weight") == 0;
}

typedef struct folder_writer {
    tn_safetensors_writer *w;
    const folder_options *o;
} folder_writer;

static inline void put_tensor(const folder_writer *f, const char *prefix, const char *name,
                              tn_tensor *t) {
    char full[128];
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    if (!f->o->drop || strcmp(f->o->drop, full) != 0) {
        assert_int_equal(tn_safetensors_writer_add(f->w, full, t), TN_OK);
    }
}

static inline bool put_entry(const tn_entry *entry, void *user) {
    const folder_writer *f = user;
    tn_tensor *t = tn_cast(*entry->field, f->o->dtype);
    put_tensor(f, f->o->prefix, entry->path, is_conv(entry->path) ? tn_transpose(t, 0, 1) : t);
    return true;
}

static inline const char *in_folder(const char *folder, const char *name) {
    static char paths[4][600];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static inline void write_config(const char *folder, const char *text) {
    temp_write(in_folder(folder, "config.json"), text, strlen(text));
}

/* Writes a folder by hand, as other programs do. */
static inline void write_folder(const char *folder, tn_gpt *m, folder_options o) {
    TN_SCOPE;
    TN_NO_GRAD;
    char config[1024];
    o.prefix = o.prefix ? o.prefix : "transformer.";
    mkdir(folder, 0777);
    int n = snprintf(config, sizeof(config), "%s%s}", config_start, o.more ? o.more : "");
    temp_write(in_folder(folder, "config.json"), config, (size_t)n);
    folder_writer f = {tn_safetensors_writer_new(), &o};
    tn_module_each(m, (tn_walk){0}, put_entry, &f);
    if (o.head) {
        put_tensor(&f, "", "lm_head.weight", tn_cast(m->stem.wte.weight, o.dtype));
    } else if (o.head_else) {
        put_tensor(&f, "", "lm_head.weight", tn_zeros(TN_DIMS(VOCAB, WIDTH), o.dtype));
    }
    for (int i = 0; i < LAYERS && o.masks; i++) {
        char name[64];
        snprintf(name, sizeof(name), "h.%d.attn.bias", i);
        put_tensor(&f, o.prefix, name, tn_ones(TN_DIMS(1, 1, CONTEXT, CONTEXT), TN_U8));
        snprintf(name, sizeof(name), "h.%d.attn.masked_bias", i);
        put_tensor(&f, o.prefix, name, tn_full(TN_DIMS(), -1e4, TN_F32));
    }
    for (int i = 0; i < 12 && o.surplus; i++) {
        char name[32];
        snprintf(name, sizeof(name), "score.%02d", i);
        put_tensor(&f, "", name, tn_zeros(TN_DIMS(1), TN_F32));
    }
    assert_int_equal(tn_safetensors_writer_save(f.w, in_folder(folder, "model.safetensors")),
                     TN_OK);
}

/* ---- Comparing ------------------------------------------------------------------------------- */

typedef struct comparison {
    void *other;
    int count;
} comparison;

static inline bool compare_entry(const tn_entry *entry, void *user) {
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

static inline void assert_same_model(void *a, void *b) {
    comparison c = {.other = b};
    tn_module_each(a, (tn_walk){0}, compare_entry, &c);
    assert_true(c.count > 0);
}

static inline tn_tensor *logits_of(void *m) {
    TN_NO_GRAD;
    return tn_call(m, TN_FROM(((int64_t[]){1, 2, 3, 0, 6}), TN_DIMS(1, 5), TN_I64));
}

static inline void assert_same_logits(void *a, void *b) {
    TN_SCOPE;
    assert_memory_equal(tn_data(logits_of(a)), tn_data(logits_of(b)), 5 * VOCAB * sizeof(float));
}

/* Loads the folder and compares the model with m. */
static inline void assert_folder(const char *folder, tn_gpt *m) {
    tn_module *got = tn_lm_load(folder, tn_lm_load_defaults());
    assert_same_model(m, got);
    tn_module_free(got);
}

static inline void assert_refused(const char *folder, tn_status status, const char *part) {
    assert_none(tn_lm_load(folder, tn_lm_load_defaults()), status, part);
}

#endif
