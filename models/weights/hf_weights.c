/* Which file of a folder has which tensor (hf_weights.h). */
#include "models/weights/hf_weights.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "io/shown.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_MOST = 64 << 20 }; /* bytes: for 100000 tensors it is about 8 MiB */

/* ---- Files ----------------------------------------------------------------------------------- */

static bool no_memory(const tn__hf_weights *w, const char *what) {
    return tn__fail(TN_ENOMEM, w->operation, "%s: no memory for %s", w->path, what);
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
    w->tensors = tn__calloc(count + 1, sizeof(*w->tensors));
    if (!w->tensors) { return no_memory(w, "its names"); }
    for (int i = 0; i < w->file_count; i++) {
        for (int k = 0; k < tn_safetensors_count(w->files[i]); k++) {
            w->tensors[w->count++] =
                (tn__hf_tensor){tn_safetensors_name(w->files[i], k), w->files[i]};
        }
    }
    qsort(w->tensors, count, sizeof(*w->tensors), compare_names);
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

/* An index's weight_map, inverted: the names in each file. */
typedef struct index_reader {
    tn__hf_weights *weights;
    const char *folder;
    tn__json_file json;
    tn__labels map;           /* name -> file */
    const tn__json **by_file; /* [map.count] */
} index_reader;

static bool index_bad(const index_reader *r, const char *name, const char *what) {
    return tn__fail(TN_EFORMAT, r->weights->operation, "%s: \"%s\" %s", r->weights->path,
                    tn__show(name).text, what);
}

static bool parse_index(index_reader *r, const char *text, size_t bytes) {
    tn__hf_weights *w = r->weights;
    if (bytes > INDEX_MOST) {
        return tn__fail(TN_EFORMAT, w->operation, "%s has %zu bytes (at most %d)", w->path, bytes,
                        INDEX_MOST);
    }
    if (!tn__json_read_any(&r->json, text, bytes)) {
        return tn__fail(r->json.wrong ? TN_EFORMAT : TN_ENOMEM, w->operation, "%s: byte %zu: %s",
                        w->path, r->json.at, r->json.wrong ? r->json.wrong : "no memory");
    }
    const tn__json *whole = r->json.values, *map = NULL;
    if (whole->kind == TN__JSON_OBJECT) { map = tn__json_get(whole, "weight_map"); }
    if (!map || map->kind != TN__JSON_OBJECT || map->count == 0) {
        return index_bad(r, "weight_map", "is not an object with names");
    }
    const char *key, *wrong;
    tn_status status = tn__labels_read(&r->map, map, &key, &wrong);
    return status == TN_OK ||
           (status == TN_ENOMEM ? no_memory(w, "its names") : index_bad(r, key, wrong));
}

static int compare_files(const void *a, const void *b) {
    const tn__json *x = *(const tn__json *const *)a, *y = *(const tn__json *const *)b;
    return strcmp(x->text, y->text);
}

static bool sort_files(index_reader *r) {
    size_t count = (size_t)r->map.count;
    r->by_file = tn__malloc(count * sizeof(*r->by_file));
    if (!r->by_file) { return no_memory(r->weights, "its names"); }
    memcpy(r->by_file, r->map.at, count * sizeof(*r->by_file));
    qsort(r->by_file, count, sizeof(*r->by_file), compare_files);
    return true;
}

/* Opens a file, named by the first of `count` names, that must have exactly these names. */
static bool open_part(index_reader *r, const tn__json *const *names, int count) {
    const char *file = names[0]->text;
    if (!*file || *file == '.' || strchr(file, '/')) {
        return index_bad(r, names[0]->key, "is in a file that is not beside the index");
    }
    char *path = tn__folder_path(r->folder, file, r->weights->operation);
    const tn_safetensors *f = path ? open_file(r->weights, path) : NULL;
    free(path);
    for (int i = 0; f && i < count; i++) {
        if (!tn_safetensors_has(f, names[i]->key)) {
            return tn__fail(TN_EFORMAT, r->weights->operation, "%s: \"%s\" is not in %s",
                            r->weights->path, tn__show(names[i]->key).text, tn__show(file).text);
        }
    }
    for (int i = 0; f && i < tn_safetensors_count(f); i++) {
        const char *name = tn_safetensors_name(f, i), *told = tn__labels_get(&r->map, name);
        if (!told || strcmp(told, file) != 0) {
            return tn__fail(TN_EFORMAT, r->weights->operation,
                            "%s has \"%s\", which according to %s is not in it",
                            tn__safetensors_path(f), tn__show(name).text, r->weights->path);
        }
    }
    return f != NULL;
}

static bool open_parts(index_reader *r) {
    bool opened = sort_files(r);
    for (int i = 0, next; opened && i < r->map.count; i = next) {
        for (next = i; next < r->map.count && compare_files(&r->by_file[i], &r->by_file[next]) == 0;
             next++) {}
        opened = open_part(r, &r->by_file[i], next - i);
    }
    return opened;
}

static bool read_index(tn__hf_weights *w, const char *folder) {
    index_reader r = {.weights = w, .folder = folder};
    size_t bytes;
    char *text = tn__read_whole(w->path, &bytes, w->operation);
    bool read = text && parse_index(&r, text, bytes) && open_parts(&r);
    free(text);
    free(r.by_file);
    tn__labels_free(&r.map);
    tn__json_free(&r.json);
    return read;
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
