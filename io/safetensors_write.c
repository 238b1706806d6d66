/* Writing safetensors: collect, lay out, write once.
 *
 * Laid out as the reference implementation does it: wider dtypes first, then by name, and the
 * header padded with spaces to a multiple of 8, so that every tensor is aligned in the file.
 */
#include "core/error.h"
#include "core/memory.h"
#include "data/utf8.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "tern/sys/tensor.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

typedef struct item {
    char *name;
    tn_tensor *tensor; /* one reference */
} item;

struct tn_safetensors_writer {
    item *items;
    int count, room;
    json_t *names;    /* a set, to find names used twice */
    json_t *metadata; /* texts */
    char refused[64]; /* the first name that could not be added; "": there is none */
};

tn_safetensors_writer *tn_safetensors_writer_new(void) {
    tn_safetensors_writer *w = tn__calloc(1, sizeof(*w));
    if (w) {
        w->names = json_object();
        w->metadata = json_object();
    }
    if (!w || !w->names || !w->metadata) {
        tn__raise(TN_ENOMEM, "safetensors", "no memory");
        tn_safetensors_writer_free(w);
        return NULL;
    }
    return w;
}

void tn_safetensors_writer_free(tn_safetensors_writer *w) {
    if (!w) {
        return;
    }
    for (int i = 0; i < w->count; i++) {
        free(w->items[i].name);
        tn_release(w->items[i].tensor);
    }
    free(w->items);
    json_decref(w->names);
    json_decref(w->metadata);
    free(w);
}

/* ---- Collecting ------------------------------------------------------------------------------ */

static bool is_utf8(const char *text) {
    size_t bytes = strlen(text), at = 0;
    int32_t code;
    int used = 1;
    while (at < bytes && used) {
        used = tn__utf8_decode(text + at, bytes - at, &code);
        at += (size_t)used;
    }
    return used != 0;
}

static bool reserve_item(tn_safetensors_writer *w) {
    if (w->count < w->room) {
        return true;
    }
    int room = w->room ? w->room * 2 : 16;
    item *larger = tn__realloc(w->items, (size_t)room * sizeof(item));
    if (larger) {
        w->items = larger;
        w->room = room;
    }
    return larger != NULL;
}

/* A file without it would look whole: remembered until the writer ends. */
static tn_status note_refused(tn_safetensors_writer *w, const char *name, tn_status status) {
    if (w && status != TN_OK && !w->refused[0]) {
        snprintf(w->refused, sizeof(w->refused), "%s", name && *name ? name : "(no name)");
    }
    return status;
}

static tn_status add_tensor(tn_safetensors_writer *w, const char *name, tn_tensor *t) {
    static const char *operation = "safetensors_writer_add";
    if (!w || !name) {
        return tn__raise(TN_EVALUE, operation, "the %s is NULL", w ? "name" : "writer");
    }
    if (!tn__usable(t, operation)) {
        return tn_error();
    }
    if (strcmp(name, "__metadata__") == 0 || json_object_get(w->names, name)) {
        return tn__raise(TN_EVALUE, operation, "the name \"%s\" is %s", name,
                         name[0] == '_' ? "the format's own, or used twice" : "used twice");
    }
    if (!is_utf8(name)) {
        return tn__raise(TN_EVALUE, operation, "the name \"%s\" is not UTF-8", name);
    }
    char *copy = reserve_item(w) ? tn__strdup(name) : NULL;
    if (!copy || json_object_set_new(w->names, name, json_true()) != 0) {
        free(copy);
        return tn__raise(TN_ENOMEM, operation, "no memory for \"%s\"", name);
    }
    w->items[w->count++] = (item){.name = copy, .tensor = tn_keep(t)};
    return TN_OK;
}

tn_status tn_safetensors_writer_add(tn_safetensors_writer *w, const char *name, tn_tensor *t) {
    return note_refused(w, name, add_tensor(w, name, t));
}

static tn_status add_metadata(tn_safetensors_writer *w, const char *key, const char *value) {
    static const char *operation = "safetensors_writer_add_metadata";
    if (!w || !key || !value) {
        return tn__raise(TN_EVALUE, operation, "the %s is NULL",
                         !w     ? "writer"
                         : !key ? "key"
                                : "value");
    }
    if (json_object_get(w->metadata, key)) {
        return tn__raise(TN_EVALUE, operation, "the key \"%s\" is used twice", key);
    }
    if (!is_utf8(key) || !is_utf8(value)) {
        return tn__raise(TN_EVALUE, operation, "key or value of \"%s\" is not UTF-8", key);
    }
    if (json_object_set_new(w->metadata, key, json_string(value)) != 0) {
        return tn__raise(TN_ENOMEM, operation, "no memory for \"%s\"", key);
    }
    return TN_OK;
}

tn_status tn_safetensors_writer_add_metadata(tn_safetensors_writer *w, const char *key,
                                             const char *value) {
    return note_refused(w, key, add_metadata(w, key, value));
}

/* ---- Layout ---------------------------------------------------------------------------------- */

/* The reference implementation's order of dtypes, backwards. */
static int place_of_dtype(tn_dtype dtype) {
    static const int place[TN_DTYPES] = {
        [TN_I64] = 0,  [TN_F64] = 1, [TN_F32] = 2, [TN_I32] = 3,
        [TN_BF16] = 4, [TN_F16] = 5, [TN_U8] = 6,  [TN_BOOL] = 7,
    };
    return place[dtype];
}

static int compare_items(const void *a, const void *b) {
    const item *x = a, *y = b;
    int order = place_of_dtype(tn_dtype_of(x->tensor)) - place_of_dtype(tn_dtype_of(y->tensor));
    return order ? order : strcmp(x->name, y->name);
}

static size_t bytes_of(const tn_tensor *t) {
    return (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
}

static json_t *describe_tensor(const tn_tensor *t, size_t *at) {
    json_t *shape = json_array();
    for (int i = 0; i < tn_ndim(t); i++) {
        if (json_array_append_new(shape, json_integer(tn_size(t, i))) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    size_t begin = *at;
    *at += bytes_of(t);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tn__safetensors_dtype_name(tn_dtype_of(t)),
                     "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)*at);
}

/* The metadata as they are written, the digest first; NULL: no memory. */
static json_t *metadata_of(const tn_safetensors_writer *w, bool digest) {
    json_t *all = json_object();
    char zeros[TN__DIGEST_DIGITS + 1];
    memset(zeros, '0', TN__DIGEST_DIGITS);
    zeros[TN__DIGEST_DIGITS] = 0;
    if (!all || (digest && json_object_set_new(all, "digest", json_string(zeros)) != 0) ||
        json_object_update(all, w->metadata) != 0) {
        json_decref(all);
        return NULL;
    }
    return all;
}

/* The header's JSON; NULL: no memory. */
static json_t *header_of(const tn_safetensors_writer *w, bool digest) {
    json_t *header = json_object();
    size_t at = 0;
    bool done = header != NULL;
    if (done && (digest || json_object_size(w->metadata))) {
        done = json_object_set_new(header, "__metadata__", metadata_of(w, digest)) == 0;
    }
    for (int i = 0; done && i < w->count; i++) {
        done = json_object_set_new(header, w->items[i].name,
                                   describe_tensor(w->items[i].tensor, &at)) == 0;
    }
    if (!done) {
        json_decref(header);
        return NULL;
    }
    return header;
}

/* Length, JSON and padding as they stand in the file. The caller frees; NULL after raising. */
static char *header_bytes(const tn_safetensors_writer *w, bool digest, size_t *bytes,
                          const char *operation) {
    json_t *header = header_of(w, digest);
    char *text = header ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    size_t length = text ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
    char *all = text ? tn__malloc(8 + padded) : NULL;
    if (!all || padded > TN__HEADER_MOST) {
        tn__raise(all ? TN_EVALUE : TN_ENOMEM, operation, "%s the header of %d tensors",
                  all ? "more than 16 MiB for" : "no memory for", w->count);
        free(text);
        free(all);
        return NULL;
    }
    for (int i = 0; i < 8; i++) {
        all[i] = (char)(padded >> (8 * i));
    }
    memcpy(all + 8, text, length);
    memset(all + 8 + length, ' ', padded - length);
    free(text);
    *bytes = 8 + padded;
    return all;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_bytes(tn__file *file, tn__digest *digest, const void *data, size_t bytes) {
    tn__file_put(file, data, bytes);
    if (digest && bytes) {
        tn__digest_add(digest, data, bytes);
    }
}

static bool put_tensors(const tn_safetensors_writer *w, tn__file *file, tn__digest *digest) {
    TN_NO_GRAD;
    for (int i = 0; i < w->count && !file->failed; i++) {
        TN_SCOPE;
        tn_tensor *t = tn_to(tn_contiguous(w->items[i].tensor), tn_cpu());
        if (!tn__usable(t, file->operation)) {
            return false;
        }
        put_bytes(file, digest, tn_data(t), bytes_of(t));
    }
    return !file->failed;
}

static tn_status write_all(tn_safetensors_writer *w, const char *path, tn__digest *digest,
                           const char *operation) {
    if (!w) {
        return tn__raise(TN_EVALUE, operation, "the writer is NULL");
    }
    if (w->refused[0]) {
        tn__raise(TN_ESTATE, operation, "%s would lack \"%s\", which could not be added",
                  path ? path : "the file", w->refused);
        return tn_error();
    }
    if (w->count) {
        qsort(w->items, (size_t)w->count, sizeof(item), compare_items);
    }
    size_t bytes = 0;
    char *header = tn__pending() ? NULL : header_bytes(w, digest != NULL, &bytes, operation);
    tn__file file;
    if (!header || !tn__file_begin(&file, path, operation)) {
        free(header);
        return tn_error();
    }
    put_bytes(&file, digest, header, bytes);
    free(header);
    if (!put_tensors(w, &file, digest)) {
        tn__file_abandon(&file);
        return tn_error();
    }
    if (digest) {
        char digits[TN__DIGEST_DIGITS + 1];
        tn__digest_text(digest, digits);
        tn__file_patch(&file, TN__DIGEST_AT, digits, TN__DIGEST_DIGITS);
    }
    return tn__file_commit(&file);
}

tn_status tn_safetensors_writer_save(tn_safetensors_writer *w, const char *path) {
    tn_status status = write_all(w, path, NULL, "safetensors_writer_save");
    tn_safetensors_writer_free(w);
    return status;
}

tn_status tn__safetensors_write_digest(tn_safetensors_writer *w, const char *path,
                                       const char *operation) {
    tn__digest *digest = tn__digest_new();
    tn_status status = digest
                           ? write_all(w, path, digest, operation)
                           : tn__raise(TN_ENOMEM, operation, "%s: no memory", path ? path : "NULL");
    tn__digest_free(digest);
    tn_safetensors_writer_free(w);
    return status;
}
