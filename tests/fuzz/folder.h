/* Folders for fuzz targets, and in them a small gpt and a small llama as saved for Hugging Face. */
#ifndef TERN_TESTS_FUZZ_FOLDER_H
#define TERN_TESTS_FUZZ_FOLDER_H

#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

#include <dirent.h>
#include <string.h>

static char fuzz_folders[4][32];
static int fuzz_folder_count;

static inline void fuzz_folders_remove(void) {
    for (int i = 0; i < fuzz_folder_count; i++) {
        DIR *list = opendir(fuzz_folders[i]);
        for (struct dirent *entry; list && (entry = readdir(list));) {
            char path[400];
            snprintf(path, sizeof(path), "%s/%s", fuzz_folders[i], entry->d_name);
            unlink(path);
        }
        if (list) { closedir(list); }
        rmdir(fuzz_folders[i]);
    }
}

/* A new folder, which is removed when the program ends. */
static inline const char *fuzz_folder_new(void) {
    must_hold(fuzz_folder_count < 4, "too many folders");
    char *path = strcpy(fuzz_folders[fuzz_folder_count++], "/tmp/tern_fuzz_XXXXXX");
    must_hold(mkdtemp(path) != NULL, "no folder");
    if (fuzz_folder_count == 1) { atexit(fuzz_folders_remove); }
    return path;
}

static inline void fuzz_folder_write(const char *folder, const char *name, const void *data,
                                     size_t bytes) {
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    must_hold(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, "no file");
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
    must_hold(tn_error() == TN_OK || strstr(tn_error_message(), folder) ||
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
