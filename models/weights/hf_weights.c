/* Which file of a folder has which tensor (hf_weights.h). */
#include "models/weights/hf_weights.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/plain_text.h"
#include "models/weights/hf_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_MOST = 64 << 20 }; /* bytes: for 100000 tensors it is about 8 MiB */

/* ---- Files ----------------------------------------------------------------------------------- */

static bool index_bad(const tn__hf_weights *w, const char *name, const char *what) {
    return tn__fail(TN_EFORMAT, w->operation, "%s: \"%s\" %s", w->path, tn__show(name).text, what);
}

/* Opens a file of the folder; NULL after raising. */
static tn_safetensors *open_file(tn__hf_weights *w, const char *path) {
    if (!tn__grow(&w->files, w->file_count + 1, &w->file_capacity, sizeof(*w->files),
                  w->operation)) {
        return NULL;
    }
    tn_safetensors *f = w->mapped ? tn_safetensors_map(path) : tn_safetensors_open(path);
    if (f) { w->files[w->file_count++] = f; }
    return f;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const tn__hf_tensor *)a)->name, ((const tn__hf_tensor *)b)->name);
}

/* All tensors of all files, by name. */
static bool list_tensors(tn__hf_weights *w) {
    size_t count = 0;
    for (int i = 0; i < w->file_count; i++) {
        count += (size_t)tn_safetensors_count(w->files[i]);
    }
    w->tensors = tn__calloc_for(count + 1, sizeof(*w->tensors), w->operation);
    if (!w->tensors) { return false; }
    for (int i = 0; i < w->file_count; i++) {
        for (int k = 0; k < tn_safetensors_count(w->files[i]); k++) {
            w->tensors[w->count++] =
                (tn__hf_tensor){tn_safetensors_name(w->files[i], k), w->files[i]};
        }
    }
    qsort(w->tensors, count, sizeof(*w->tensors), compare_names);
    for (int i = 1; i < w->count; i++) {
        if (compare_names(&w->tensors[i - 1], &w->tensors[i]) == 0) {
            return index_bad(w, w->tensors[i].name, "is in two files");
        }
    }
    return true;
}

const tn_safetensors *tn__hf_weights_find(const tn__hf_weights *w, const char *name) {
    const tn__hf_tensor key = {.name = name}, *found = NULL;
    if (w->count) {
        found = bsearch(&key, w->tensors, (size_t)w->count, sizeof(key), compare_names);
    }
    return found ? found->file : NULL;
}

/* ---- The index ------------------------------------------------------------------------------- */

/* The part of this name, which is opened if it is not yet; NULL after raising. */
static const tn_safetensors *part_named(tn__hf_weights *w, const char *folder, const char *file) {
    char *path = tn__folder_path(folder, file, w->operation);
    const tn_safetensors *f = NULL;
    for (int i = 0; path && !f && i < w->file_count; i++) {
        f = strcmp(tn__safetensors_path(w->files[i]), path) == 0 ? w->files[i] : NULL;
    }
    f = f || !path ? f : open_file(w, path);
    free(path);
    return f;
}

/* Opens the file in which a name is; it must have it. */
static bool open_part(tn__hf_weights *w, const char *folder, const tn__json *name) {
    if (name->kind != TN__JSON_TEXT) { return index_bad(w, name->key, "is not a string"); }
    const char *file = name->text;
    if (!*file || *file == '.' || strchr(file, '/')) {
        return index_bad(w, name->key, "is in a file that is not beside the index");
    }
    const tn_safetensors *f = part_named(w, folder, file);
    if (f && !tn_safetensors_has(f, name->key)) {
        tn__raise(TN_EFORMAT, w->operation, "%s: \"%s\" is not in %s", w->path,
                  tn__show(name->key).text, tn__show(file).text);
    }
    return !tn__pending();
}

static bool open_parts(tn__hf_weights *w, const char *folder, const tn__json *map) {
    if (!map || map->kind != TN__JSON_OBJECT || map->count == 0) {
        return index_bad(w, "weight_map", "is not an object with names");
    }
    const tn__json *name = tn__json_first(map);
    bool opened = true;
    for (uint32_t i = 0; opened && i < map->count; i++, name = tn__json_next(name)) {
        opened = open_part(w, folder, name);
    }
    return opened;
}

static bool read_index(tn__hf_weights *w, const char *folder) {
    tn__json_file json;
    bool read = tn__json_open(&json, w->path, INDEX_MOST, w->operation);
    bool opened = read && open_parts(w, folder, tn__json_get(json.values, "weight_map"));
    if (read) { tn__json_free(&json); }
    return opened;
}

/* ---- The folder ------------------------------------------------------------------------------ */

/* Sets w->path if the folder has this file. */
static bool has_file(tn__hf_weights *w, const char *folder, const char *name) {
    if (tn__folder_has(folder, name)) { w->path = tn__folder_path(folder, name, w->operation); }
    return w->path != NULL;
}

static bool open_any(tn__hf_weights *w, const char *folder) {
    bool one = has_file(w, folder, TN__HF_FILE);
    if (!one && has_file(w, folder, TN__HF_INDEX)) {
        return read_index(w, folder) && list_tensors(w);
    }
    w->plain = !one && has_file(w, folder, TN__HF_PLAIN);
    if (!one && !w->plain) {
        if (!tn__pending()) {
            bool torch = tn__folder_has(folder, "pytorch_model.bin") ||
                         tn__folder_has(folder, "pytorch_model.bin.index.json");
            tn__raise(TN_EIO, w->operation,
                      "%s has neither " TN__HF_FILE " nor " TN__HF_INDEX " nor " TN__HF_PLAIN "%s",
                      folder,
                      torch ? "; pytorch_model.bin is not read (save_pretrained of transformers "
                              "writes it as safetensors)"
                            : "");
        }
        return false;
    }
    return open_file(w, w->path) && list_tensors(w);
}

bool tn__hf_weights_open(tn__hf_weights *w, const char *folder, bool mapped,
                         const char *operation) {
    *w = (tn__hf_weights){.operation = operation, .mapped = mapped};
    if (tn__pending() || !open_any(w, folder)) {
        tn__hf_weights_free(w);
        return false;
    }
    return true;
}

void tn__hf_weights_free(tn__hf_weights *w) {
    for (int i = 0; i < w->file_count; i++) {
        tn_safetensors_close(w->files[i]);
    }
    free(w->files);
    free(w->tensors);
    free(w->path);
    *w = (tn__hf_weights){0};
}
