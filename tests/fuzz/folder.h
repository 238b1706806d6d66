/* Hugging Face folders for fuzz targets: a small gpt and a small llama, as saved, in folders that
 * are removed when the program ends. */
#ifndef TERN_TESTS_FUZZ_FOLDER_H
#define TERN_TESTS_FUZZ_FOLDER_H

#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

#include <dirent.h>
#include <string.h>

/* Makes a new folder from the template `path`, which ends with XXXXXX. */
static inline void fuzz_folder_make(char *path) {
    must_hold(mkdtemp(path) != NULL, "no folder");
}

static inline void fuzz_folder_write(const char *folder, const char *name, const void *data,
                                     size_t bytes) {
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    must_hold(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, "no file");
}

static inline void fuzz_folder_remove(const char *folder) {
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char path[400];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (list) { closedir(list); }
    rmdir(folder);
}

/* Vocab 5, context 4, width 4, 2 heads, 1 layer. */
static inline void fuzz_folder_gpt(const char *folder, tn_lm_save_options options) {
    tn_gpt m;
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = 5, .context = 4, .layers = 1, .heads = 2, .width = 4, .bias = true,
                .activation = TN_ACT_GELU_TANH, .dtype = TN_F32);
    tn_gpt_init(&m, o);
    must_hold(tn_lm_save_with(&m, folder, options) == TN_OK, "no folder of a gpt");
    tn_module_finish(&m);
}

static inline void fuzz_folder_llama(const char *folder) {
    tn_llama m;
    tn_llama_options o = TN_WITH(tn_llama, .vocab = 5, .context = 4, .layers = 1, .heads = 2,
                                 .kv_heads = 1, .width = 4, .head_width = 2, .hidden = 3);
    tn_llama_init(&m, o);
    must_hold(tn_lm_save(&m, folder) == TN_OK, "no folder of a llama");
    tn_module_finish(&m);
}

/* Loads it: a model that can be called, or an error that names a file. */
static inline void fuzz_folder_load(const char *folder) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_module *m = tn_lm_load(folder, tn_lm_load_defaults());
    must_hold((m == NULL) == (tn_error() != TN_OK), "no model and no error, or both");
    must_hold(tn_error() == TN_OK || strstr(tn_error_message(), "/tmp/tern_fuzz") != NULL ||
                  tn_error() == TN_EVALUE || tn_error() == TN_ENOMEM,
              "an error that names no file");
    tn_error_clear();
    tn_lm_shape shape = {0};
    if (m && tn_lm_shape_of(m, &shape) == TN_OK) {
        tn_tensor *logits = tn_call(m, tn_zeros(TN_DIMS(1, 2), TN_I64));
        must_hold(tn_error() != TN_OK || tn_size(logits, 2) == shape.vocab, "other logits");
        tn_error_clear();
    }
    tn_module_free(m);
}

#endif
