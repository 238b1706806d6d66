/* Reading the index of a checkpoint in parts, and the files that it lists (parts.h). */
#include "io/checkpoint/parts.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "nn/layout.h"
#include "tern/sys/tensor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MOST = 100000, CHUNK = 1 << 20 };

void tn__index_file(int rank, char *text, size_t size) {
    snprintf(text, size, "rank-%05d.safetensors", rank);
}

/* ---- Members of JSON ------------------------------------------------------------------------- */

static bool get_whole(const tn__json *object, const char *key, int64_t least, int64_t most,
                      int64_t *number) {
    const tn__json *value = tn__json_get(object, key);
    bool good =
        value && value->kind == TN__JSON_WHOLE && value->whole >= least && value->whole <= most;
    *number = good ? value->whole : 0;
    return good;
}

static bool get_dims(const tn__json *list, tn_dims *dims) {
    if (!list || list->kind != TN__JSON_LIST || list->count > TN_MAX_DIMS) { return false; }
    *dims = (tn_dims){.ndim = (int)list->count};
    const tn__json *size = tn__json_first(list);
    for (uint32_t i = 0; i < list->count; i++, size = tn__json_next(size)) {
        if (size->kind != TN__JSON_WHOLE) { return false; }
        dims->size[i] = size->whole;
    }
    return true;
}

/* False: not a layout of `whole`. */
static bool get_layout(const tn__json *object, const tn_dims *whole, tn_layout *l) {
    static const char *const keys[] = {"dim", "pieces", "slice", "slices", "start", "length"};
    int64_t number[6];
    for (int i = 0; i < 6; i++) {
        if (!get_whole(object, keys[i], -1, i < 4 ? INT32_MAX : INT64_MAX, &number[i])) {
            return false;
        }
    }
    *l = (tn_layout){.whole = *whole,
                     .dim = (int)number[0],
                     .pieces = (int)number[1],
                     .slice = (int)number[2],
                     .slices = (int)number[3],
                     .start = number[4],
                     .length = number[5]};
    return tn__layout_sound(l);
}

/* ---- Reading an index ------------------------------------------------------------------------ */

TN_PRINTF(2, 3)
static bool index_bad(const tn__index *ix, const char *format, ...) {
    char text[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return tn__fail(TN_EFORMAT, ix->operation, "%s: %s", ix->path, text);
}

/* Leaves the text unchanged. */
static bool check_digest(const tn__index *ix, char *text, size_t bytes) {
    char *at = text + TN__INDEX_DIGEST_AT, told[TN__DIGEST_DIGITS + 1] = "", digits[sizeof(told)];
    if (bytes <= TN__INDEX_DIGEST_AT + TN__DIGEST_DIGITS ||
        memcmp(text, TN__INDEX_BEFORE, TN__INDEX_DIGEST_AT) != 0) {
        return index_bad(ix, "does not begin with a digest: it is not an index of a checkpoint");
    }
    memcpy(told, at, TN__DIGEST_DIGITS);
    memset(at, '0', TN__DIGEST_DIGITS);
    tn__digest_of(text, bytes, digits);
    memcpy(at, told, TN__DIGEST_DIGITS);
    return strcmp(digits, told) == 0 ||
           index_bad(ix, "is damaged: its digest is %s but should be %s", told, digits);
}

static bool read_files(tn__index *ix, const tn__json *list, const char *folder) {
    if (!list || list->kind != TN__JSON_LIST || list->count == 0 || list->count > FILES_MOST) {
        return index_bad(ix, "has no list of 1 to %d files", FILES_MOST);
    }
    ix->files = tn__calloc_for(list->count, sizeof(*ix->files), ix->operation);
    const tn__json *file = tn__json_first(list);
    for (uint32_t i = 0; ix->files && i < list->count; i++, file = tn__json_next(file)) {
        char expected[64];
        tn__index_file((int)i, expected, sizeof(expected));
        const char *name = tn__json_text(file, "name");
        if (!name || strcmp(name, expected) != 0 ||
            !get_whole(file, "bytes", 0, INT64_MAX, &ix->files[i].bytes)) {
            return index_bad(ix, "file %u is not %s with its number of bytes", i, expected);
        }
        ix->file_count++;
        ix->files[i].path = tn__folder_path(folder, expected, ix->operation);
        if (!ix->files[i].path) { return false; }
    }
    return ix->files != NULL;
}

static bool read_piece(tn__index *ix, const tn__index_tensor *t, const tn__json *value) {
    tn__piece *piece = &ix->pieces[ix->piece_count++];
    int64_t file;
    piece->digest = tn__json_text(value, "digest");
    bool good = get_whole(value, "file", 0, ix->file_count - 1, &file) && piece->digest &&
                strlen(piece->digest) == TN__DIGEST_DIGITS &&
                get_layout(value, &t->whole, &piece->layout);
    piece->file = (int)file;
    return good || index_bad(ix, "a piece of \"%.80s\" is malformed", t->name);
}

static bool read_tensor(tn__index *ix, const tn__json *value) {
    const char *dtype = tn__json_text(value, "dtype");
    const tn__json *pieces = tn__json_get(value, "pieces");
    tn__index_tensor *t = &ix->tensors[ix->count++];
    *t =
        (tn__index_tensor){.index = ix, .name = value->key, .pieces = &ix->pieces[ix->piece_count]};
    if (!dtype || !tn__safetensors_find_dtype(dtype, &t->dtype) ||
        !get_dims(tn__json_get(value, "whole"), &t->whole) || !pieces ||
        pieces->kind != TN__JSON_LIST) {
        return index_bad(ix, "\"%.80s\" needs dtype, whole and pieces", t->name);
    }
    tn_layout all = {.whole = t->whole, .dim = -1};
    if (!tn__layout_sound(&all)) {
        return index_bad(ix, "\"%.80s\" has an invalid shape", t->name);
    }
    const tn__json *piece = tn__json_first(pieces);
    for (; t->count < (int)pieces->count; t->count++, piece = tn__json_next(piece)) {
        if (!read_piece(ix, t, piece)) { return false; }
    }
    return true;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const tn__index_tensor *)a)->name, ((const tn__index_tensor *)b)->name);
}

static bool read_tensors(tn__index *ix, const tn__json *tensors) {
    if (!tensors || tensors->kind != TN__JSON_OBJECT) { return index_bad(ix, "has no tensors"); }
    size_t most = tensors->values / 9 + 1; /* a piece has 9 values; an invalid one ends the loop */
    ix->tensors = tn__calloc_for(tensors->count, sizeof(*ix->tensors), ix->operation);
    ix->pieces = tn__calloc_for(most, sizeof(*ix->pieces), ix->operation);
    if (!ix->tensors || !ix->pieces) { return false; }
    const tn__json *value = tn__json_first(tensors);
    for (uint32_t i = 0; i < tensors->count; i++, value = tn__json_next(value)) {
        if (!read_tensor(ix, value)) { return false; }
    }
    qsort(ix->tensors, (size_t)ix->count, sizeof(*ix->tensors), compare_names);
    for (int i = 1; i < ix->count; i++) {
        if (strcmp(ix->tensors[i - 1].name, ix->tensors[i].name) == 0) {
            return index_bad(ix, "\"%.80s\" is a duplicate", ix->tensors[i].name);
        }
    }
    return true;
}

static bool read_all(tn__index *ix, const char *folder, char *text, size_t bytes) {
    if (!check_digest(ix, text, bytes)) { return false; }
    if (!tn__json_read(&ix->json, text, bytes)) {
        return ix->json.wrong ? index_bad(ix, "byte %zu: %s", ix->json.at, ix->json.wrong)
                              : tn__fail(TN_ENOMEM, ix->operation, "%s: no memory", ix->path);
    }
    const tn__json *all = ix->json.values;
    const char *format = tn__json_text(all, "format");
    if (!format || strcmp(format, TN__INDEX_FORMAT) != 0) {
        return index_bad(ix, "its format is \"%.40s\", but only %s is read",
                         format ? format : "missing", TN__INDEX_FORMAT);
    }
    ix->digest = tn__json_text(all, "digest");
    ix->metadata = tn__json_get(all, "metadata");
    if (!ix->metadata || ix->metadata->kind != TN__JSON_OBJECT) {
        return index_bad(ix, "has no metadata");
    }
    const tn__json *value = tn__json_first(ix->metadata);
    for (uint32_t i = 0; i < ix->metadata->count; i++, value = tn__json_next(value)) {
        if (value->kind != TN__JSON_TEXT) {
            return index_bad(ix, "its metadata's \"%.60s\" is not a string", value->key);
        }
    }
    return read_files(ix, tn__json_get(all, "files"), folder) &&
           read_tensors(ix, tn__json_get(all, "tensors"));
}

tn__index *tn__index_read(const char *folder, char *text, size_t bytes, const char *operation) {
    tn__index *ix = tn__calloc_for(1, sizeof(*ix), operation);
    if (ix) {
        ix->operation = operation;
        ix->path = tn__folder_path(folder, TN__INDEX_NAME, operation);
    }
    if (!ix || !ix->path || !read_all(ix, folder, text, bytes)) {
        tn__index_free(ix);
        return NULL;
    }
    return ix;
}

/* Checks the size first: it may be anything. */
char *tn__index_text(const char *folder, size_t *bytes, const char *operation) {
    struct stat about;
    char *path = tn__folder_path(folder, TN__INDEX_NAME, operation), *text = NULL;
    if (path && stat(path, &about) == 0 && about.st_size > TN__INDEX_MOST) {
        tn__raise(TN_EFORMAT, operation, "%s has %lld bytes; an index has at most %d", path,
                  (long long)about.st_size, TN__INDEX_MOST);
    } else if (path) {
        text = tn__read_whole(path, bytes, operation);
    }
    free(path);
    return text;
}

void tn__index_free(tn__index *ix) {
    if (!ix) { return; }
    for (int i = 0; i < ix->file_count; i++) {
        tn_safetensors_close(ix->files[i].open);
        free(ix->files[i].path);
    }
    tn__json_free(&ix->json);
    free(ix->files);
    free(ix->tensors);
    free(ix->pieces);
    free(ix->chunk);
    free(ix->path);
    free(ix);
}

const tn__index_tensor *tn__index_find(const tn__index *ix, const char *name) {
    const tn__index_tensor key = {.name = name};
    return bsearch(&key, ix->tensors, (size_t)ix->count, sizeof(key), compare_names);
}

/* ---- Reading pieces -------------------------------------------------------------------------- */

/* A piece's contribution to a tensor, a run at a time. */
typedef struct share {
    const tn__piece *piece;
    tn__common common; /* a: in the piece, b: in the tensor */
} share;

/* The contributions of all pieces to a tensor. */
typedef struct shares {
    share *at;
    int64_t count, capacity;
} shares;

static int compare_places(const void *a, const void *b) {
    int64_t x = ((const share *)a)->common.b, y = ((const share *)b)->common.b;
    return x < y ? -1 : x > y;
}

/* Whether the shares have every element of `mine` exactly once. */
static bool shares_cover(const shares *s, const tn_layout *mine, const char *operation) {
    int64_t at = 0;
    size_t count = (size_t)s->count;
    share *sorted = tn__malloc_for(count * sizeof(*sorted), operation);
    bool cover = sorted != NULL;
    if (cover && count) {
        memcpy(sorted, s->at, count * sizeof(*sorted));
        qsort(sorted, count, sizeof(*sorted), compare_places);
    }
    for (size_t i = 0; cover && i < count; i++) {
        cover = sorted[i].common.b == at;
        at += sorted[i].common.length;
    }
    free(sorted);
    return cover && at == mine->length;
}

/* Notes, after raising, which file is to blame. */
static bool blame_file(const tn__index *ix, const tn__piece *piece) {
    if (ix->damaged) { *ix->damaged = piece->file; }
    return false;
}

/* Opens a piece's file, which must contain it. False after raising. */
static bool open_piece(const tn__index_tensor *t, const tn__piece *piece) {
    tn__index *ix = t->index;
    const char *path = ix->files[piece->file].path;
    tn_safetensors **open = &ix->files[piece->file].open;
    *open = *open ? *open : tn_safetensors_open(path);
    if (!*open) { return false; }
    tn_dtype dtype;
    if (tn__safetensors_bytes(*open) != ix->files[piece->file].bytes ||
        !tn_safetensors_has(*open, t->name) ||
        !tn__safetensors_find_dtype(tn_safetensors_dtype(*open, t->name), &dtype) ||
        dtype != t->dtype ||
        !tn_dims_equal(tn_safetensors_shape(*open, t->name), TN_DIMS(piece->layout.length))) {
        return tn__fail(TN_EFORMAT, ix->operation,
                        "%s does not have the piece of \"%.80s\" that " TN__INDEX_NAME
                        " lists, or the piece has another dtype or size",
                        path, t->name);
    }
    return true;
}

/* Lists the shares of all pieces, piece by piece, checking that their files have them. It may stop
 * when there are more than `mine` has elements: then they overlap. */
static bool find_shares(shares *s, const tn__index_tensor *t, const tn_layout *mine) {
    int64_t found = 0;
    for (int i = 0; i < t->count && found <= mine->length; i++) {
        const tn__piece *piece = &t->pieces[i];
        for (tn__common c = {0}; tn__layouts_next(&piece->layout, mine, &c);) {
            if (!open_piece(t, piece)) { return blame_file(t->index, piece); }
            if (!tn__grow(&s->at, s->count + 1, &s->capacity, sizeof(*s->at),
                          t->index->operation)) {
                return false;
            }
            s->at[s->count++] = (share){piece, c};
            found += c.length;
        }
    }
    return shares_cover(s, mine, t->index->operation) ||
           index_bad(t->index, "the pieces of \"%.80s\" overlap or leave gaps", t->name);
}

/* Reads a whole piece, for its digest, and copies what its n shares take, in ascending order. */
static bool take_piece(const tn__index_tensor *t, const share *s, int64_t n, char *to) {
    const tn__piece *piece = s->piece;
    tn__index *ix = t->index;
    char digits[TN__DIGEST_DIGITS + 1] = "";
    size_t size = tn_dtype_size(t->dtype);
    tn__digest *d = tn__digest_new(ix->operation);
    bool read = d != NULL;
    for (int64_t at = 0, next; read && at < piece->layout.length; at = next) {
        int64_t left = piece->layout.length - at, most = (int64_t)(CHUNK / size);
        next = at + (left < most ? left : most);
        size_t bytes = (size_t)(next - at) * size;
        read = tn__safetensors_read(ix->files[piece->file].open, t->name, (size_t)at * size,
                                    ix->chunk, bytes);
        if (read) { tn__digest_add(d, ix->chunk, bytes); }
        for (; read && n && s->common.a < next; s++, n--) {
            const tn__common c = s->common;
            int64_t from = c.a > at ? c.a : at, end = c.a + c.length < next ? c.a + c.length : next;
            memcpy(to + (size_t)(c.b + from - c.a) * size, ix->chunk + (size_t)(from - at) * size,
                   (size_t)(end - from) * size);
            if (c.a + c.length > next) { break; /* the rest is in the next chunk */ }
        }
    }
    if (read) { tn__digest_text(d, digits); }
    tn__digest_free(d);
    if (read && strcmp(digits, piece->digest) != 0) {
        return tn__fail(TN_EFORMAT, ix->operation,
                        "%s: \"%.80s\" is damaged: its digest is %s but should be %s",
                        ix->files[piece->file].path, t->name, digits, piece->digest);
    }
    return read;
}

bool tn__index_fetch(const tn__index_tensor *t, const tn_layout *mine, void *to) {
    shares s = {0};
    tn__index *ix = t->index;
    ix->chunk = ix->chunk ? ix->chunk : tn__malloc_for(CHUNK, ix->operation);
    bool fetched = ix->chunk && find_shares(&s, t, mine);
    for (int64_t i = 0, n; fetched && i < s.count; i += n) {
        for (n = 1; i + n < s.count && s.at[i + n].piece == s.at[i].piece; n++) {}
        fetched = take_piece(t, &s.at[i], n, to) || blame_file(ix, s.at[i].piece);
    }
    free(s.at);
    return fetched;
}

/* ---- As a source ----------------------------------------------------------------------------- */

static const char *name_in_index(int i, void *user) {
    return ((const tn__index *)user)->tensors[i].name;
}

static bool find_in_index(const char *name, tn_dims *whole, tn_dtype *dtype, void *user) {
    const tn__index_tensor *t = tn__index_find(user, name);
    if (t) {
        *whole = t->whole;
        *dtype = t->dtype;
    }
    return t != NULL;
}

static tn_tensor *get_from_index(const tn__state_item *item, void *user) {
    const tn__index_tensor *t = tn__index_find(user, item->name);
    tn_tensor *read = tn_empty_on(tn_cpu(), tn_shape(item->tensor), t->dtype);
    bool got = !tn_is_inert(read) &&
               (!item->layout.length || tn__index_fetch(t, &item->layout, tn_data_mut(read)));
    return got ? read : tn_inert();
}

tn__source tn__index_source(tn__index *ix) {
    return (tn__source){.path = ix->path,
                        .metadata = ix->metadata,
                        .digest = ix->digest,
                        .count = ix->count,
                        .name = name_in_index,
                        .find = find_in_index,
                        .get = get_from_index,
                        .user = ix};
}
