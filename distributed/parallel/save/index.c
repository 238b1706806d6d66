/* Reading the index of a checkpoint in parts, and what it tells of (index.h). */
#include "distributed/parallel/save/index.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "nn/layout.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MOST = 100000, CHUNK = 1 << 20 };

void tn__index_file(int rank, char *text, size_t room) {
    snprintf(text, room, "rank-%05d.safetensors", rank);
}

/* ---- Layouts as JSON ------------------------------------------------------------------------- */

void tn__layout_put(tn__json_text *j, const tn_layout *l) {
    tn__json_put(j, "\"dim\":%d,\"pieces\":%d,\"slice\":%d,\"slices\":%d", l->dim, l->pieces,
                 l->slice, l->slices);
    tn__json_put(j, ",\"start\":%" PRId64 ",\"length\":%" PRId64, l->start, l->length);
}

bool tn__whole_get(const tn__json *object, const char *key, int64_t least, int64_t most,
                   int64_t *number) {
    const tn__json *value = tn__json_get(object, key);
    if (!value || value->kind != TN__JSON_WHOLE || value->whole < least || value->whole > most) {
        return false;
    }
    *number = value->whole;
    return true;
}

const char *tn__text_get(const tn__json *object, const char *key) {
    const tn__json *value = tn__json_get(object, key);
    return value && value->kind == TN__JSON_TEXT ? value->text : NULL;
}

bool tn__dims_get(const tn__json *list, tn_dims *dims) {
    if (!list || list->kind != TN__JSON_LIST || list->count > TN_MAX_DIMS) {
        return false;
    }
    *dims = (tn_dims){.ndim = (int)list->count};
    const tn__json *size = tn__json_first(list);
    for (uint32_t i = 0; i < list->count; i++, size = tn__json_next(size)) {
        if (size->kind != TN__JSON_WHOLE) {
            return false;
        }
        dims->size[i] = size->whole;
    }
    return true;
}

bool tn__layout_get(const tn__json *object, const tn_dims *whole, tn_layout *l) {
    int64_t dim, pieces, slice, slices, start, length;
    if (!tn__whole_get(object, "dim", -1, TN_MAX_DIMS, &dim) ||
        !tn__whole_get(object, "pieces", 1, INT32_MAX, &pieces) ||
        !tn__whole_get(object, "slice", 0, INT32_MAX, &slice) ||
        !tn__whole_get(object, "slices", 1, INT32_MAX, &slices) ||
        !tn__whole_get(object, "start", 0, INT64_MAX, &start) ||
        !tn__whole_get(object, "length", 0, INT64_MAX, &length)) {
        return false;
    }
    *l = (tn_layout){.whole = *whole,
                     .dim = (int)dim,
                     .pieces = (int)pieces,
                     .slice = (int)slice,
                     .slices = (int)slices,
                     .start = start,
                     .length = length};
    return tn__layout_sound(l);
}

/* ---- Reading an index ------------------------------------------------------------------------ */

typedef struct reader {
    tn__index *index;
    const char *folder, *operation;
    int pieces;
} reader;

static bool index_bad(const reader *r, const char *format, ...) TN_PRINTF(2, 3);
static bool index_bad(const reader *r, const char *format, ...) {
    char text[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    tn__raise(TN_EFORMAT, r->operation, "%s: %s", r->index->path, text);
    return false;
}

static bool no_memory(const reader *r) {
    tn__raise(TN_ENOMEM, r->operation, "%s: no memory", r->index->path);
    return false;
}

static bool check_digest(const reader *r, const char *text, size_t bytes) {
    static const char zeros[TN__DIGEST_DIGITS + 1] = "00000000000000000000000000000000";
    const size_t at = TN__INDEX_DIGEST_AT, after = at + TN__DIGEST_DIGITS;
    char digits[TN__DIGEST_DIGITS + 1];
    if (bytes <= after || memcmp(text, TN__INDEX_BEFORE, at) != 0) {
        return index_bad(r, "does not begin with a digest: it is no index of a checkpoint");
    }
    tn__digest *d = tn__digest_new();
    if (!d) {
        return no_memory(r);
    }
    tn__digest_add(d, text, at);
    tn__digest_add(d, zeros, TN__DIGEST_DIGITS);
    tn__digest_add(d, text + after, bytes - after);
    tn__digest_text(d, digits);
    tn__digest_free(d);
    return memcmp(digits, text + at, TN__DIGEST_DIGITS) == 0 ||
           index_bad(r, "is damaged: its digest is %.32s but should be %s", text + at, digits);
}

static bool read_labels(reader *r, const tn__json *metadata) {
    const char *key, *wrong;
    if (!metadata || metadata->kind != TN__JSON_OBJECT) {
        return index_bad(r, "has no metadata");
    }
    tn_status status = tn__labels_read(&r->index->own_labels, metadata, &key, &wrong);
    if (status == TN_EFORMAT) {
        return index_bad(r, "\"%.60s\" %s", key, wrong);
    }
    return status == TN_OK || no_memory(r);
}

static bool read_files(reader *r, const tn__json *list) {
    tn__index *ix = r->index;
    if (!list || list->kind != TN__JSON_LIST || list->count == 0 || list->count > FILES_MOST) {
        return index_bad(r, "has no list of 1 to %d files", FILES_MOST);
    }
    ix->files = tn__calloc(list->count, sizeof(*ix->files));
    if (!ix->files) {
        return no_memory(r);
    }
    const tn__json *file = tn__json_first(list);
    for (uint32_t i = 0; i < list->count; i++, file = tn__json_next(file)) {
        char expected[64];
        tn__index_file((int)i, expected, sizeof(expected));
        const char *name = tn__text_get(file, "name");
        if (!name || strcmp(name, expected) != 0 ||
            !tn__whole_get(file, "bytes", 0, INT64_MAX, &ix->files[i].bytes)) {
            return index_bad(r, "file %u is not %s with its number of bytes", i, expected);
        }
        ix->files[i].path = tn__folder_path(r->folder, expected, r->operation);
        ix->file_count++;
        if (!ix->files[i].path) {
            return false;
        }
    }
    return true;
}

static bool read_piece(reader *r, const tn__index_tensor *t, const tn__json *value) {
    tn__piece *piece = &r->index->pieces[r->pieces];
    int64_t file;
    piece->digest = tn__text_get(value, "digest");
    if (!tn__whole_get(value, "file", 0, r->index->file_count - 1, &file) || !piece->digest ||
        strlen(piece->digest) != TN__DIGEST_DIGITS ||
        !tn__layout_get(value, &t->whole, &piece->layout)) {
        return index_bad(r, "a piece of \"%.80s\" is none", t->name);
    }
    piece->file = (int)file;
    r->pieces++;
    return true;
}

static bool read_tensor(reader *r, const tn__json *value) {
    tn__index_tensor *t = &r->index->tensors[r->index->count];
    t->name = value->key;
    const char *dtype = tn__text_get(value, "dtype");
    const tn__json *pieces = tn__json_get(value, "pieces");
    if (!dtype || !tn__safetensors_find_dtype(dtype, &t->dtype) ||
        !tn__dims_get(tn__json_get(value, "whole"), &t->whole) || !pieces ||
        pieces->kind != TN__JSON_LIST) {
        return index_bad(r, "\"%.80s\" has not just dtype, whole and pieces", t->name);
    }
    tn_layout all = {.whole = t->whole, .dim = -1};
    if (!tn__layout_sound(&all)) {
        return index_bad(r, "\"%.80s\" has a shape that is none", t->name);
    }
    t->pieces = &r->index->pieces[r->pieces];
    t->count = (int)pieces->count;
    const tn__json *piece = tn__json_first(pieces);
    for (uint32_t i = 0; i < pieces->count; i++, piece = tn__json_next(piece)) {
        if (!read_piece(r, t, piece)) {
            return false;
        }
    }
    r->index->count++;
    return true;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const tn__index_tensor *)a)->name, ((const tn__index_tensor *)b)->name);
}

static bool sort_names(const reader *r) {
    tn__index *ix = r->index;
    if (ix->count) {
        qsort(ix->tensors, (size_t)ix->count, sizeof(*ix->tensors), compare_names);
    }
    for (int i = 1; i < ix->count; i++) {
        if (strcmp(ix->tensors[i - 1].name, ix->tensors[i].name) == 0) {
            return index_bad(r, "\"%.80s\" is a duplicate", ix->tensors[i].name);
        }
    }
    return true;
}

static size_t count_pieces(const tn__json *tensors) {
    size_t count = 0;
    const tn__json *value = tn__json_first(tensors);
    for (uint32_t i = 0; i < tensors->count; i++, value = tn__json_next(value)) {
        const tn__json *pieces = tn__json_get(value, "pieces");
        count += pieces ? pieces->count : 0;
    }
    return count;
}

static bool read_tensors(reader *r, const tn__json *tensors) {
    tn__index *ix = r->index;
    if (!tensors || tensors->kind != TN__JSON_OBJECT) {
        return index_bad(r, "has no tensors");
    }
    ix->tensors = tn__calloc(tensors->count, sizeof(*ix->tensors));
    ix->pieces = tn__calloc(count_pieces(tensors), sizeof(*ix->pieces));
    if (!ix->tensors || !ix->pieces) {
        return no_memory(r);
    }
    const tn__json *value = tn__json_first(tensors);
    for (uint32_t i = 0; i < tensors->count; i++, value = tn__json_next(value)) {
        if (!read_tensor(r, value)) {
            return false;
        }
    }
    return sort_names(r);
}

static bool read_all(reader *r, const char *text, size_t bytes) {
    tn__index *ix = r->index;
    if (!check_digest(r, text, bytes)) {
        return false;
    }
    if (!tn__json_read(&ix->json, text, bytes)) {
        return ix->json.wrong ? index_bad(r, "byte %zu: %s", ix->json.at, ix->json.wrong)
                              : no_memory(r);
    }
    const tn__json *all = ix->json.values;
    const char *format = tn__text_get(all, "format");
    if (!format || strcmp(format, TN__INDEX_FORMAT) != 0) {
        return index_bad(r, "its format is \"%.40s\", and %s is read", format ? format : "missing",
                         TN__INDEX_FORMAT);
    }
    ix->digest = tn__text_get(all, "digest");
    return read_labels(r, tn__json_get(all, "metadata")) &&
           read_files(r, tn__json_get(all, "files")) &&
           read_tensors(r, tn__json_get(all, "tensors"));
}

/* Takes `path`, which may be NULL; NULL after raising. */
static tn__index *index_new(char *path, const char *operation) {
    tn__index *ix = path ? tn__calloc(1, sizeof(*ix)) : NULL;
    if (!ix) {
        free(path);
        tn__raise(TN_ENOMEM, operation, "no memory");
        return NULL;
    }
    ix->path = path;
    ix->labels = &ix->own_labels;
    return ix;
}

/* Its size is looked at first: it may be anything. */
char *tn__index_text(const char *folder, size_t *bytes, const char *operation) {
    struct stat about;
    char *path = tn__folder_path(folder, TN__INDEX_NAME, operation), *text = NULL;
    if (!path) {
        return NULL;
    }
    if (stat(path, &about) == 0 && about.st_size > TN__INDEX_MOST) {
        tn__raise(TN_EFORMAT, operation, "%s has %lld bytes; an index has at most %d", path,
                  (long long)about.st_size, TN__INDEX_MOST);
    } else {
        text = tn__read_whole(path, bytes, operation);
    }
    free(path);
    return text;
}

tn__index *tn__index_read(const char *folder, const char *text, size_t bytes,
                          const char *operation) {
    reader r = {.index = index_new(tn__folder_path(folder, TN__INDEX_NAME, operation), operation),
                .folder = folder,
                .operation = operation};
    if (r.index && !read_all(&r, text, bytes)) {
        tn__index_free(r.index);
        return NULL;
    }
    return r.index;
}

/* ---- One file -------------------------------------------------------------------------------- */

static bool list_whole(reader *r, const tn_safetensors *f) {
    tn__index *ix = r->index;
    int count = tn_safetensors_count(f);
    ix->tensors = tn__calloc((size_t)count, sizeof(*ix->tensors));
    ix->pieces = tn__calloc((size_t)count, sizeof(*ix->pieces));
    ix->files = tn__calloc(1, sizeof(*ix->files));
    if (!ix->tensors || !ix->pieces || !ix->files) {
        return no_memory(r);
    }
    for (int i = 0; i < count; i++) {
        tn__index_tensor *t = &ix->tensors[ix->count++];
        t->name = tn_safetensors_name(f, i);
        t->whole = tn_safetensors_shape(f, t->name);
        if (!tn__safetensors_find_dtype(tn_safetensors_dtype(f, t->name), &t->dtype)) {
            return index_bad(r, "\"%.80s\" has a dtype that no checkpoint has", t->name);
        }
        ix->pieces[i].layout = tn__layout_whole(t->whole);
        t->pieces = &ix->pieces[i];
        t->count = 1;
    }
    return sort_names(r);
}

tn__index *tn__index_of_file(const char *path, const char *operation) {
    tn_safetensors *f = tn_safetensors_open(path);
    reader r = {.index = f ? index_new(tn__strdup(path), operation) : NULL, .operation = operation};
    if (!r.index || tn__safetensors_check_digest(f, operation) != TN_OK || !list_whole(&r, f)) {
        tn__index_free(r.index);
        tn_safetensors_close(f);
        return NULL;
    }
    r.index->single = true;
    r.index->files[0].open = f;
    r.index->file_count = 1;
    r.index->labels = tn__safetensors_labels(f);
    r.index->digest = tn__safetensors_digest(f);
    return r.index;
}

void tn__index_free(tn__index *ix) {
    if (!ix) {
        return;
    }
    for (int i = 0; i < ix->file_count; i++) {
        tn_safetensors_close(ix->files[i].open);
        free(ix->files[i].path);
    }
    tn__labels_free(&ix->own_labels);
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
    return ix->count ? bsearch(&key, ix->tensors, (size_t)ix->count, sizeof(key), compare_names)
                     : NULL;
}

/* ---- Reading pieces -------------------------------------------------------------------------- */

/* What one piece gives to a tensor, a run at a time. */
typedef struct share {
    const tn__piece *piece;
    tn__common common; /* a: in the piece, b: in the tensor */
} share;

/* All that the pieces of one tensor give. */
typedef struct shares {
    share *at;
    size_t count, room;
} shares;

static bool add_share(shares *s, const tn__piece *piece, const tn__common *c) {
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 16;
        share *larger = tn__realloc(s->at, room * sizeof(*larger));
        if (!larger) {
            return false;
        }
        s->at = larger;
        s->room = room;
    }
    s->at[s->count++] = (share){piece, *c};
    return true;
}

static int compare_places(const void *a, const void *b) {
    int64_t x = ((const share *)a)->common.b, y = ((const share *)b)->common.b;
    return x < y ? -1 : x > y;
}

/* Whether the shares are every element of `mine`, each once. */
static bool shares_cover(const shares *s, const tn_layout *mine) {
    share *sorted = tn__malloc(s->count * sizeof(*sorted));
    int64_t at = 0;
    bool cover = sorted != NULL;
    if (cover && s->count) {
        memcpy(sorted, s->at, s->count * sizeof(*sorted));
        qsort(sorted, s->count, sizeof(*sorted), compare_places);
    }
    for (size_t i = 0; cover && i < s->count; i++) {
        cover = sorted[i].common.b == at;
        at += sorted[i].common.length;
    }
    free(sorted);
    return cover && at == mine->length;
}

/* The file of a piece, which has it; NULL after raising. */
static const tn_safetensors *piece_file(const reader *r, const tn__index_tensor *t,
                                        const tn__piece *piece) {
    tn__index *ix = r->index;
    if (!ix->files[piece->file].open) {
        ix->files[piece->file].open = tn_safetensors_open(ix->files[piece->file].path);
    }
    const tn_safetensors *f = ix->files[piece->file].open;
    if (!f || ix->single) {
        return f;
    }
    tn_dtype dtype;
    tn_dims dims = TN_DIMS(piece->layout.length);
    if (tn__safetensors_bytes(f) != ix->files[piece->file].bytes ||
        !tn_safetensors_has(f, t->name) ||
        !tn__safetensors_find_dtype(tn_safetensors_dtype(f, t->name), &dtype) ||
        dtype != t->dtype || !tn_dims_equal(tn_safetensors_shape(f, t->name), dims)) {
        tn__raise(TN_EFORMAT, r->operation,
                  "%s has not the piece of \"%.80s\" that " TN__INDEX_NAME " tells of, or another "
                  "size",
                  ix->files[piece->file].path, t->name);
        return NULL;
    }
    return f;
}

/* The shares of all pieces, piece by piece, of files that have them. More than `mine` has need not
 * be listed: then they overlap. */
static bool find_shares(const reader *r, shares *s, const tn__index_tensor *t,
                        const tn_layout *mine) {
    int64_t found = 0;
    for (int i = 0; i < t->count && found <= mine->length; i++) {
        const tn__piece *piece = &t->pieces[i];
        for (tn__common c = {0}; tn__layouts_next(&piece->layout, mine, &c);) {
            if (!piece_file(r, t, piece)) {
                return false;
            }
            if (!add_share(s, piece, &c)) {
                return no_memory(r);
            }
            found += c.length;
        }
    }
    return true;
}

/* Shares of one piece in ascending order, and the elements they are taken from. */
typedef struct taking {
    const share *shares;
    size_t count;
    size_t size; /* of an element */
    char *to;
} taking;

/* Takes what lies in elements [at, at + n) of the piece, which `chunk` has. */
static void take_chunk(taking *k, const char *chunk, int64_t at, int64_t n) {
    while (k->count && k->shares->common.a < at + n) {
        tn__common c = k->shares->common;
        int64_t begin = c.a > at ? c.a : at,
                end = c.a + c.length < at + n ? c.a + c.length : at + n;
        memcpy(k->to + (size_t)(c.b + begin - c.a) * k->size,
               chunk + (size_t)(begin - at) * k->size, (size_t)(end - begin) * k->size);
        if (end < c.a + c.length) {
            return; /* the rest is in the next chunk */
        }
        k->shares++;
        k->count--;
    }
}

/* A piece with a digest: all of it is read, once. */
static bool take_piece(const reader *r, const tn_safetensors *f, const tn__index_tensor *t,
                       const tn__piece *piece, taking *k) {
    char digits[TN__DIGEST_DIGITS + 1];
    int64_t step = (int64_t)(CHUNK / k->size);
    tn__digest *d = tn__digest_new();
    bool read = d != NULL || no_memory(r);
    for (int64_t at = 0; read && at < piece->layout.length; at += step) {
        int64_t left = piece->layout.length - at, n = left < step ? left : step;
        read = tn__safetensors_read(f, t->name, (size_t)at * k->size, r->index->chunk,
                                    (size_t)n * k->size);
        if (read) {
            tn__digest_add(d, r->index->chunk, (size_t)n * k->size);
            take_chunk(k, r->index->chunk, at, n);
        }
    }
    if (read) {
        tn__digest_text(d, digits);
    }
    tn__digest_free(d);
    if (read && strcmp(digits, piece->digest) != 0) {
        tn__raise(TN_EFORMAT, r->operation,
                  "%s: \"%.80s\" is damaged: its digest is %s but should be %s",
                  r->index->files[piece->file].path, t->name, digits, piece->digest);
    }
    return read && !tn__pending();
}

/* One of a file whose digest was found right: only what is wanted is read. */
static bool take_ranges(const tn_safetensors *f, const tn__index_tensor *t, const taking *k) {
    bool read = true;
    for (size_t i = 0; read && i < k->count; i++) {
        tn__common c = k->shares[i].common;
        read = tn__safetensors_read(f, t->name, (size_t)c.a * k->size,
                                    k->to + (size_t)c.b * k->size, (size_t)c.length * k->size);
    }
    return read;
}

static bool take_shares(const reader *r, const tn__index_tensor *t, const shares *s, char *to) {
    bool taken = true;
    for (size_t i = 0, next; taken && i < s->count; i = next) {
        const tn__piece *piece = s->at[i].piece;
        for (next = i; next < s->count && s->at[next].piece == piece; next++) {
        }
        taking k = {&s->at[i], next - i, tn_dtype_size(t->dtype), to};
        const tn_safetensors *f = r->index->files[piece->file].open;
        taken = piece->digest ? take_piece(r, f, t, piece, &k) : take_ranges(f, t, &k);
    }
    return taken;
}

bool tn__index_fetch(tn__index *ix, const tn__index_tensor *t, const tn_layout *mine, void *to,
                     const char *operation) {
    const reader r = {.index = ix, .operation = operation};
    shares s = {0};
    ix->chunk = ix->chunk ? ix->chunk : tn__malloc(CHUNK);
    bool fetched = ix->chunk ? find_shares(&r, &s, t, mine) : no_memory(&r);
    if (fetched && !shares_cover(&s, mine)) {
        fetched = index_bad(&r, "the pieces of \"%.80s\" overlap or leave gaps", t->name);
    }
    fetched = fetched && take_shares(&r, t, &s, to);
    free(s.at);
    return fetched;
}
