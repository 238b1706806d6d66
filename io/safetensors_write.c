/* Writing safetensors: collect, lay out, write once.
 *
 * Laid out as the reference implementation does it: wider dtypes first, then by name, and the
 * header padded with spaces to a multiple of 8, so that every tensor is aligned in the file.
 */
#include "core/alive.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "io/safetensors.h"
#include "tern/sys/tensor.h"
#include "text/utf8.h"

#include <stdio.h>
#include <string.h>

/* In the digest's place while it is computed. */
static const char no_digest[TN__DIGEST_DIGITS + 1] = "00000000000000000000000000000000";

typedef struct item {
    char *name;
    tn_dims dims;
    tn_dtype dtype;
    tn_tensor *tensor; /* one reference; or NULL: `make` returns it when it is written */
    tn__late_tensor *make;
    void *user;
} item;

typedef struct pair {
    char *key, *value;
} pair;

struct tn_safetensors_writer {
    tn__alive alive;
    item *items;
    pair *pairs; /* metadata */
    int items_count, pairs_count;
    int64_t items_capacity, pairs_capacity;
    char refused[64]; /* the first name that could not be added; "": there is none */
};

/* Saving frees one, too. */
TN__ALIVE_LIST(writers, "writer");

tn_safetensors_writer *tn_safetensors_writer_new(void) {
    tn_safetensors_writer *w = tn__calloc_for(1, sizeof(*w), "safetensors");
    if (w) { tn__alive_begin(&writers, w); }
    return w;
}

void tn_safetensors_writer_free(tn_safetensors_writer *w) {
    if (!w || !tn__alive_end(&writers, w, "safetensors_writer_free")) { return; }
    for (int i = 0; i < w->items_count; i++) {
        free(w->items[i].name);
        tn_release(w->items[i].tensor);
    }
    for (int i = 0; i < w->pairs_count; i++) {
        free(w->pairs[i].key);
        free(w->pairs[i].value);
    }
    free(w->items);
    free(w->pairs);
    free(w);
}

/* ---- Collecting ------------------------------------------------------------------------------ */

/* A file without it would look complete: remembered until the writer ends. */
static tn_status note_refused(tn_safetensors_writer *w, const char *name, tn_status status) {
    if (w && status != TN_OK && tn__alive_is(&writers, w, "safetensors_writer_add") &&
        !w->refused[0]) {
        snprintf(w->refused, sizeof(w->refused), "%s", name && *name ? name : "(no name)");
    }
    return status;
}

/* Takes no reference of new->tensor unless it succeeds. */
static tn_status add_item(tn_safetensors_writer *w, const char *name, const item *new) {
    static const char *operation = "safetensors_writer_add";
    if (!w || !name) {
        return tn__raise(TN_EVALUE, operation, "the %s is NULL", w ? "name" : "writer");
    }
    if (!tn__alive_is(&writers, w, operation)) { return tn_error(); }
    if (strcmp(name, "__metadata__") == 0) {
        return tn__raise(TN_EVALUE, operation, "the name \"%s\" is reserved", name);
    }
    if (!tn__is_utf8(name)) {
        return tn__raise(TN_EVALUE, operation, "the name \"%s\" is not UTF-8", name);
    }
    bool fits = tn__grow(&w->items, w->items_count + 1, &w->items_capacity, sizeof(item), NULL);
    char *copy = fits ? tn__strdup(name) : NULL;
    if (!copy) { return tn__raise(TN_ENOMEM, operation, "no memory for \"%s\"", name); }
    item *added = &w->items[w->items_count++];
    *added = *new;
    added->name = copy;
    added->tensor = new->tensor ? tn_keep(new->tensor) : NULL;
    return TN_OK;
}

static tn_status add_tensor(tn_safetensors_writer *w, const char *name, tn_tensor *t) {
    if (w && name && !tn__usable(t, "safetensors_writer_add")) { return tn_error(); }
    item new = {.dims = tn_shape(t), .dtype = tn_dtype_of(t), .tensor = t};
    return add_item(w, name, &new);
}

tn_status tn_safetensors_writer_add(tn_safetensors_writer *w, const char *name, tn_tensor *t) {
    return note_refused(w, name, add_tensor(w, name, t));
}

tn_status tn__safetensors_writer_add_late(tn_safetensors_writer *w, const char *name, tn_dims dims,
                                          tn_dtype dtype, tn__late_tensor *make, void *user) {
    item new = {.dims = dims, .dtype = dtype, .make = make, .user = user};
    return note_refused(w, name, add_item(w, name, &new));
}

static tn_status add_metadata(tn_safetensors_writer *w, const char *key, const char *value) {
    static const char *operation = "safetensors_writer_add_metadata";
    if (!w || !key || !value) {
        return tn__raise(TN_EVALUE, operation, "the %s is NULL",
                         !w     ? "writer"
                         : !key ? "key"
                                : "value");
    }
    if (!tn__alive_is(&writers, w, operation)) { return tn_error(); }
    for (int i = 0; i < w->pairs_count; i++) {
        if (strcmp(w->pairs[i].key, key) == 0) {
            return tn__raise(TN_EVALUE, operation, "the key \"%s\" is used twice", key);
        }
    }
    if (!tn__is_utf8(key) || !tn__is_utf8(value)) {
        return tn__raise(TN_EVALUE, operation, "key or value of \"%s\" is not UTF-8", key);
    }
    bool fits = tn__grow(&w->pairs, w->pairs_count + 1, &w->pairs_capacity, sizeof(pair), NULL);
    pair copy = {.key = fits ? tn__strdup(key) : NULL, .value = fits ? tn__strdup(value) : NULL};
    if (!copy.key || !copy.value) {
        free(copy.key);
        free(copy.value);
        return tn__raise(TN_ENOMEM, operation, "no memory for \"%s\"", key);
    }
    w->pairs[w->pairs_count++] = copy;
    return TN_OK;
}

tn_status tn_safetensors_writer_add_metadata(tn_safetensors_writer *w, const char *key,
                                             const char *value) {
    return note_refused(w, key, add_metadata(w, key, value));
}

/* ---- Layout ---------------------------------------------------------------------------------- */

static int compare_items(const void *a, const void *b) {
    const item *x = a, *y = b;
    int order = tn__safetensors_place(x->dtype) - tn__safetensors_place(y->dtype);
    return order ? order : strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const item *)a)->name, ((const item *)b)->name);
}

/* Sorts the items as they are in a file. False after raising: two have the same name. */
static bool sort_items(tn_safetensors_writer *w, const char *operation) {
    size_t count = (size_t)w->items_count;
    if (count == 0) { return true; }
    qsort(w->items, count, sizeof(item), compare_names);
    for (size_t i = 1; i < count; i++) {
        if (compare_names(&w->items[i - 1], &w->items[i]) == 0) {
            return tn__fail(TN_EVALUE, operation, "the name \"%s\" is used twice",
                            w->items[i].name);
        }
    }
    qsort(w->items, count, sizeof(item), compare_items);
    return true;
}

static size_t bytes_of(const item *i) {
    return (size_t)tn_dims_count(i->dims) * tn_dtype_size(i->dtype);
}

static void put_metadata(tn__buffer *h, const tn_safetensors_writer *w, bool digest) {
    const char *comma = "";
    tn__buffer_text(h, "\"__metadata__\":{");
    if (digest) {
        tn__buffer_format(h, "\"digest\":\"%s\"", no_digest);
        comma = ",";
    }
    for (int i = 0; i < w->pairs_count; i++, comma = ",") {
        tn__buffer_format(h, "%s", comma);
        tn__json_put_string(h, w->pairs[i].key);
        tn__buffer_text(h, ":");
        tn__json_put_string(h, w->pairs[i].value);
    }
    tn__buffer_text(h, "}");
}

static void put_tensor(tn__buffer *h, const item *i, size_t begin) {
    tn__json_put_string(h, i->name);
    tn__buffer_format(h, ":{\"dtype\":\"%s\",\"shape\":", tn__safetensors_dtype_name(i->dtype));
    tn__json_put_list(h, i->dims.size, i->dims.ndim);
    tn__buffer_format(h, ",\"data_offsets\":[%zu,%zu]}", begin, begin + bytes_of(i));
}

static void put_header(tn__buffer *h, const tn_safetensors_writer *w, bool digest) {
    const char *comma = "";
    size_t at = 0;
    tn__buffer_text(h, "{");
    if (digest || w->pairs_count) {
        put_metadata(h, w, digest);
        comma = ",";
    }
    for (int i = 0; i < w->items_count; i++, comma = ",") {
        tn__buffer_format(h, "%s", comma);
        put_tensor(h, &w->items[i], at);
        at += bytes_of(&w->items[i]);
    }
    tn__buffer_text(h, "}");
}

/* Length, JSON and padding as they are in the file. The caller frees h->at; false after raising. */
static bool make_header(tn__buffer *h, const tn_safetensors_writer *w, bool digest,
                        const char *operation) {
    static const char spaces[] = "        ";
    tn__buffer_add(h, spaces, 8); /* space for the length */
    put_header(h, w, digest);
    tn__buffer_add(h, spaces, -h->bytes % 8);
    if (h->failed || h->bytes - 8 > TN__HEADER_MOST) {
        return tn__fail(h->failed ? TN_ENOMEM : TN_EVALUE, operation, "%s the header of %d tensors",
                        h->failed ? "no memory for" : "more than 16 MiB for", w->items_count);
    }
    for (int i = 0; i < 8; i++) {
        h->at[i] = (char)((h->bytes - 8) >> (8 * i));
    }
    return true;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* The tensor as the header describes it, on the CPU; inert after raising. */
static tn_tensor *item_tensor(const item *i, const char *operation) {
    tn_tensor *t = i->tensor ? i->tensor : i->make(i->name, i->user);
    t = tn_to(tn_contiguous(t), tn_cpu());
    if (!tn_is_inert(t) && (!tn_dims_equal(tn_shape(t), i->dims) || tn_dtype_of(t) != i->dtype)) {
        tn__raise(TN_ESTATE, operation, "\"%s\" has become %s %s", i->name,
                  tn_dtype_name(tn_dtype_of(t)), tn_shape_text(t));
        return tn_inert();
    }
    return t;
}

static bool put_data(const tn_safetensors_writer *w, tn__file *file) {
    TN_NO_GRAD;
    for (int i = 0; i < w->items_count && !file->doing; i++) {
        TN_SCOPE;
        tn_tensor *t = item_tensor(&w->items[i], file->operation);
        if (!tn__usable(t, file->operation)) { return false; }
        tn__file_put(file, tn_data(t), bytes_of(&w->items[i]));
    }
    return true;
}

/* Header, data, digest. False: an error is pending. */
static bool put_all(const tn_safetensors_writer *w, tn__file *file, bool with_digest) {
    char digits[TN__DIGEST_DIGITS + 1];
    tn__buffer header = {0};
    bool made = make_header(&header, w, with_digest, file->operation);
    if (made) { tn__file_put(file, header.at, header.bytes); }
    free(header.at);
    if (!made || !put_data(w, file)) { return false; }
    if (with_digest) {
        tn__file_digest(file, digits);
        tn__file_patch(file, TN__DIGEST_AT, no_digest, digits, TN__DIGEST_DIGITS);
    }
    return true;
}

/* False after raising. */
static bool writer_ready(tn_safetensors_writer *w, const char *path, const char *operation) {
    if (tn__pending()) { return false; }
    if (!w) { return tn__fail(TN_EVALUE, operation, "the writer is NULL"); }
    if (!tn__alive_is(&writers, w, operation)) { return false; }
    if (w->refused[0]) {
        return tn__fail(TN_ESTATE, operation, "%s would lack \"%s\", which could not be added",
                        path ? path : "the file", w->refused);
    }
    return sort_items(w, operation);
}

static tn_status write_all(tn_safetensors_writer *w, const char *path, bool with_digest,
                           const char *operation) {
    tn__file file;
    if (!writer_ready(w, path, operation) || !tn__file_begin(&file, path, operation)) {
        return tn_error();
    }
    tn__quiet(1); /* an error handler may exit: not before the temporary file is gone */
    bool done = put_all(w, &file, with_digest);
    tn__quiet(-1);
    if (done) { return tn__file_commit(&file); }
    tn__file_abandon(&file);
    tn_error_record why;
    tn_error_take(&why);
    tn_error_give(&why);
    return tn_error();
}

tn_status tn__safetensors_write(tn_safetensors_writer *w, const char *path, bool digest,
                                const char *operation) {
    tn_status status = write_all(w, path, digest, operation);
    tn_safetensors_writer_free(w);
    return status;
}

tn_status tn_safetensors_writer_save(tn_safetensors_writer *w, const char *path) {
    return tn__safetensors_write(w, path, false, "safetensors_writer_save");
}
