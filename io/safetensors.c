/* Reading safetensors: a file's header is read and checked completely, a tensor's data on demand.
 *
 * Checked: the header's length against the file and the cap; strict JSON without duplicate names;
 * shapes whose bytes match data_offsets; data without holes, overlaps or bytes that belong to no
 * tensor. A dtype that we do not have, or too many dimensions, only excludes the tensor, not the
 * file: its size is checked if the format defines its width. Nothing is mapped (core/reader.h says
 * why) except on request: tn_safetensors_map.
 */
#include "io/safetensors.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/plain_text.h"
#include "core/reader.h"
#include "data/corpus/kind.h"
#include "nn/layout.h"
#include "tern/sys/tensor.h"
#include "text/json.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef struct entry {
    const char *name;        /* the header's */
    const char *format_name; /* of the dtype; the header's */
    int dtype;               /* a tn_dtype; -1: we do not have it */
    int bits;                /* of one element; 0: not known */
    size_t ndim, count;      /* of dimensions, and of elements */
    tn_dims dims;            /* empty if there are too many: only this tensor cannot be read */
    size_t begin, end;       /* in the data */
} entry;

/* A file in memory, until nothing refers to it. */
typedef struct mapping {
    int32_t refs; /* atomic */
    void *data;
    size_t bytes;
} mapping;

struct tn_safetensors {
    tn__reader file;  /* not open if bytes are lent */
    char *lent;       /* the whole file in a caller's memory; or NULL */
    mapping *mapping; /* the memory of `lent`, if mapped: one reference */
    size_t bytes;     /* of the file */
    char *path;
    tn__json_file header;
    size_t data;              /* where the data begin in the file */
    const tn__json *metadata; /* of the header; NULL: none */
    int count;
    entry *entries;  /* [count], in the order of the data */
    entry **by_name; /* [count] */
};

static const char metadata_key[] = "__metadata__";
static const tn__reader not_open = {.fd = -1};

/* The format's dtypes: first those that we have, in the order that their tensors have in a file. */
static const struct {
    const char *name;
    int bits, dtype; /* dtype: a tn_dtype; -1: we do not have it */
} dtypes[] = {
    {"I64", 64, TN_I64},    {"F64", 64, TN_F64}, {"F32", 32, TN_F32}, {"I32", 32, TN_I32},
    {"BF16", 16, TN_BF16},  {"F16", 16, TN_F16}, {"I8", 8, TN_I8},    {"U8", 8, TN_U8},
    {"BOOL", 8, TN_BOOL},   {"F4", 4, -1},       {"F6_E2M3", 6, -1},  {"F6_E3M2", 6, -1},
    {"F8_E4M3", 8, -1},     {"F8_E5M2", 8, -1},  {"F8_E8M0", 8, -1},  {"F8_E4M3FNUZ", 8, -1},
    {"F8_E5M2FNUZ", 8, -1}, {"I16", 16, -1},     {"U16", 16, -1},     {"U32", 32, -1},
    {"U64", 64, -1},        {"C64", 64, -1},
};
enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

int tn__safetensors_place(tn_dtype dtype) {
    int i = 0;
    while (dtypes[i].dtype != (int)dtype) {
        i++;
    }
    return i;
}

const char *tn__safetensors_dtype_name(tn_dtype dtype) {
    return dtypes[tn__safetensors_place(dtype)].name;
}

static void find_dtype(const char *name, int *dtype, int *bits) {
    int i = 0;
    while (i < DTYPES && strcmp(name, dtypes[i].name) != 0) {
        i++;
    }
    *dtype = i < DTYPES ? dtypes[i].dtype : -1;
    *bits = i < DTYPES ? dtypes[i].bits : 0;
}

/* Bytes of the file. False after raising. */
static bool read_bytes(const tn_safetensors *f, size_t at, void *to, size_t bytes) {
    if (f->lent) {
        memcpy(to, f->lent + at, bytes);
        return true;
    }
    return tn__reader_get(&f->file, at, to, bytes);
}

/* ---- The header ------------------------------------------------------------------------------ */

/* Raises what is wrong with one tensor. */
TN_PRINTF(3, 4)
static bool entry_bad(const tn_safetensors *f, const char *name, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return tn__fail(TN_EFORMAT, "safetensors", "%s: \"%s\": %s", f->path, tn__show(name).text,
                    text);
}

/* The product of the nonzero sizes has to fit too: strides are made from it. */
static bool read_shape(const tn_safetensors *f, entry *e, const tn__json *value) {
    if (value->kind != TN__JSON_LIST) {
        return entry_bad(f, e->name, "shape is not a list of sizes");
    }
    e->ndim = value->count;
    e->count = 1;
    e->dims.ndim = e->ndim > TN_MAX_DIMS ? 0 : (int)e->ndim;
    int64_t product = (e->bits + 7) / 8;
    product = product ? product : 1;
    const tn__json *size = tn__json_first(value);
    for (size_t i = 0; i < e->ndim; i++, size = tn__json_next(size)) {
        if (size->kind != TN__JSON_WHOLE || size->whole < 0) {
            return entry_bad(f, e->name, "size %zu of its shape is not a whole number >= 0", i);
        }
        if (size->whole && __builtin_mul_overflow(product, size->whole, &product)) {
            return entry_bad(f, e->name, "its shape has more bytes than 2^63");
        }
        e->count *= (size_t)size->whole;
        if (e->ndim <= TN_MAX_DIMS) { e->dims.size[i] = size->whole; }
    }
    return true;
}

static bool read_offsets(const tn_safetensors *f, entry *e, const tn__json *value) {
    const tn__json *begin = tn__json_at(value, 0), *end = tn__json_at(value, 1);
    if (value->count != 2 || !begin || !end || begin->kind != TN__JSON_WHOLE ||
        end->kind != TN__JSON_WHOLE) {
        return entry_bad(f, e->name, "data_offsets are not two numbers");
    }
    int64_t from = begin->whole, to = end->whole;
    size_t bytes = f->bytes - f->data;
    if (from < 0 || to < from || (uint64_t)to > bytes) {
        return entry_bad(f, e->name,
                         "data_offsets %lld to %lld, but the file has %zu bytes of data",
                         (long long)from, (long long)to, bytes);
    }
    e->begin = (size_t)from;
    e->end = (size_t)to;
    size_t bits = (size_t)e->bits, rest = e->count % 8 * bits; /* eight elements are whole bytes */
    size_t wanted = e->count / 8 * bits + rest / 8;            /* read_shape found this to fit */
    if (rest % 8) {
        return entry_bad(f, e->name, "%zu elements of %d bits are not whole bytes", e->count,
                         e->bits);
    }
    if (e->bits && e->end - e->begin != wanted) {
        return entry_bad(f, e->name, "data_offsets hold %zu bytes but the shape takes %zu",
                         e->end - e->begin, wanted);
    }
    return true;
}

/* Other keys mean nothing to this reader, as to the reference implementation. */
static bool read_entry(const tn_safetensors *f, entry *e, const tn__json *value) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    const tn__json *found[3] = {0};
    const tn__json *member = tn__json_first(value);
    uint32_t count = value->kind == TN__JSON_OBJECT ? value->count : 0;
    for (uint32_t i = 0; i < count; i++, member = tn__json_next(member)) {
        for (int k = 0; k < 3; k++) {
            if (strcmp(member->key, keys[k]) == 0) {
                if (found[k]) { return entry_bad(f, e->name, "its %s is a duplicate", keys[k]); }
                found[k] = member;
            }
        }
    }
    if (!found[0] || !found[1] || !found[2]) {
        return entry_bad(f, e->name, "must have dtype, shape and data_offsets");
    }
    if (found[0]->kind != TN__JSON_TEXT) {
        return entry_bad(f, e->name, "its dtype is not a string");
    }
    e->format_name = found[0]->text;
    find_dtype(e->format_name, &e->dtype, &e->bits);
    return read_shape(f, e, found[1]) && read_offsets(f, e, found[2]);
}

/* NULL, or null in the file: there is no metadata. */
static bool read_metadata(tn_safetensors *f, const tn__json *value) {
    bool null = value && value->kind == TN__JSON_WORD && strcmp(value->text, "null") == 0;
    if (!value || null) { return true; }
    if (value->kind != TN__JSON_OBJECT) { return entry_bad(f, metadata_key, "is not an object"); }
    const tn__json *text = tn__json_first(value);
    for (uint32_t i = 0; i < value->count; i++, text = tn__json_next(text)) {
        if (text->kind != TN__JSON_TEXT) {
            return entry_bad(f, metadata_key, "\"%s\" is not a string", tn__show(text->key).text);
        }
    }
    f->metadata = value;
    return true;
}

static int compare_data(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) { return x->begin < y->begin ? -1 : 1; }
    return x->end < y->end ? -1 : x->end > y->end;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(entry *const *)a)->name, (*(entry *const *)b)->name);
}

/* Every byte of the data belongs to exactly one tensor. */
static bool check_layout(const tn_safetensors *f) {
    size_t at = 0, bytes = f->bytes - f->data;
    for (int i = 0; i < f->count; i++) {
        const entry *e = &f->entries[i];
        if (e->begin != at) {
            return entry_bad(f, e->name, "begins at byte %zu of the data, but %s at %zu", e->begin,
                             i ? "the tensor before it ends" : "the data begin", at);
        }
        at = e->end;
    }
    if (at != bytes) {
        return tn__fail(TN_EFORMAT, "safetensors",
                        "%s: the tensors have %zu bytes, but the file has %zu bytes of data",
                        f->path, at, bytes);
    }
    return true;
}

/* Everything in the header but the metadata. */
static bool read_tensors(tn_safetensors *f, const tn__json *header) {
    const tn__json *value = tn__json_first(header);
    for (uint32_t i = 0; i < header->count; i++, value = tn__json_next(value)) {
        if (strcmp(value->key, metadata_key) == 0) { continue; }
        entry *e = &f->entries[f->count];
        e->name = value->key;
        if (!read_entry(f, e, value)) { return false; }
        f->count++;
    }
    return true;
}

static bool check_names(const tn_safetensors *f, const tn__json *header) {
    for (int i = 1; i < f->count; i++) {
        if (compare_names(&f->by_name[i - 1], &f->by_name[i]) == 0) {
            return entry_bad(f, f->by_name[i]->name, "is a duplicate");
        }
    }
    int others = (int)header->count - f->count; /* all of them metadata */
    return others <= 1 || entry_bad(f, metadata_key, "is a duplicate");
}

static bool read_entries(tn_safetensors *f) {
    const tn__json *header = f->header.values;
    f->entries = tn__calloc_for(header->count, sizeof(entry), "safetensors");
    f->by_name = tn__calloc_for(header->count, sizeof(entry *), "safetensors");
    if (!f->entries || !f->by_name) { return false; }
    if (!read_metadata(f, tn__json_get(header, metadata_key)) || !read_tensors(f, header)) {
        return false;
    }
    qsort(f->entries, (size_t)f->count, sizeof(entry), compare_data);
    for (int i = 0; i < f->count; i++) {
        f->by_name[i] = &f->entries[i];
    }
    qsort(f->by_name, (size_t)f->count, sizeof(entry *), compare_names);
    return check_names(f, header) && check_layout(f);
}

/* Raises what is wrong with a header of this length, with or without the right beginning, or what
 * the file is instead. */
static void raise_header(const tn_safetensors *f, uint64_t length, bool begins) {
    unsigned char start[TN__KIND_BYTES];
    size_t bytes = f->bytes < sizeof(start) ? f->bytes : sizeof(start), rest = f->bytes - 8;
    if (!read_bytes(f, 0, start, bytes)) { return; }
    tn__kind kind = tn__kind_of(start, bytes, f->bytes);
    if (begins && (length <= rest || kind.form == TN__FORM_BINARY)) {
        tn__raise(TN_EFORMAT, "safetensors",
                  "%s: its header should have %llu bytes (%zu bytes follow; %zu are read at most)",
                  f->path, (unsigned long long)length, rest, TN__HEADER_MOST);
    } else if (kind.form == TN__FORM_BINARY) {
        tn__raise(TN_EFORMAT, "safetensors",
                  "%s is not a safetensors file: after 8 bytes its header should begin with '{'",
                  f->path);
    } else {
        tn__raise(TN_EFORMAT, "safetensors", "%s is not a safetensors file; it is %s", f->path,
                  kind.is);
    }
}

/* The length of the header, which is within the file and the cap; 0 after raising. */
static size_t read_length(const tn_safetensors *f) {
    unsigned char head[9] = {0};
    uint64_t length;
    if (f->bytes < 8) {
        tn__raise(TN_EFORMAT, "safetensors",
                  "%s has %zu bytes; the length of the header alone takes 8", f->path, f->bytes);
        return 0;
    }
    if (!read_bytes(f, 0, head, f->bytes < 9 ? f->bytes : 9)) { return 0; }
    memcpy(&length, head, sizeof(length));
    length = le64toh(length);
    size_t rest = f->bytes - 8;
    if (length > rest || length > TN__HEADER_MOST || length < 2 || head[8] != '{') {
        raise_header(f, length, head[8] == '{');
        return 0;
    }
    return (size_t)length;
}

static bool read_header(tn_safetensors *f) {
    size_t length = read_length(f);
    char *text = length ? tn__malloc_for(length, "safetensors") : NULL;
    bool read = text && read_bytes(f, 8, text, length);
    f->data = 8 + length;
    if (read && !tn__json_read(&f->header, text, length)) {
        read = tn__fail(f->header.wrong ? TN_EFORMAT : TN_ENOMEM, "safetensors",
                        "%s: header, byte %zu: %s", f->path, f->header.at,
                        f->header.wrong ? f->header.wrong : "no memory");
    }
    free(text);
    return read && read_entries(f);
}

/* ---- Mapped files ---------------------------------------------------------------------------- */

static void mapping_release(mapping *m) {
    if (m && __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        munmap(m->data, m->bytes);
        free(m);
    }
}

static void release_view(void *data, void *user) {
    mapping_release(user);
}

/* Copy-on-write pages, without reserving memory for them. NULL after raising. */
static mapping *mapping_new(const tn__reader *file) {
    mapping *m = tn__malloc_for(sizeof(*m), "safetensors");
    if (!m) { return NULL; }
    *m = (mapping){.refs = 1, .bytes = file->bytes};
    m->data =
        mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file->fd, 0);
    if (m->data == MAP_FAILED) {
        tn__raise(errno == ENOMEM ? TN_ENOMEM : TN_EIO, "safetensors", "%s: mapping it: %s",
                  file->path, strerror(errno));
        free(m);
        return NULL;
    }
    return m;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

/* The file is read with `file`, or is `bytes` in memory. What it gets is released, also after
 * raising: then NULL. */
static tn_safetensors *file_begin(const char *path, tn__reader file, void *lent, size_t bytes,
                                  mapping *m) {
    tn_safetensors *f = tn__pending() ? NULL : tn__calloc_for(1, sizeof(*f), "safetensors");
    if (!f) {
        tn__reader_close(&file);
        mapping_release(m);
        return NULL;
    }
    f->file = file;
    f->lent = lent;
    f->bytes = bytes;
    f->mapping = m;
    f->path = tn__strdup_for(path, "safetensors");
    f->file.path = f->path;
    if (!f->path || !read_header(f)) {
        tn_safetensors_close(f);
        return NULL;
    }
    return f;
}

tn_safetensors *tn_safetensors_open(const char *path) {
    tn__reader file;
    if (tn__pending() || !tn__reader_open(&file, path, "safetensors")) { return NULL; }
    return file_begin(path, file, NULL, file.bytes, NULL);
}

tn_safetensors *tn_safetensors_map(const char *path) {
    tn__reader file;
    if (tn__pending() || !tn__reader_open(&file, path, "safetensors")) { return NULL; }
    mapping *m = file.bytes ? mapping_new(&file) : NULL; /* an empty file cannot be mapped */
    tn__reader_close(&file);
    return file_begin(path, not_open, m ? m->data : NULL, m ? m->bytes : 0, m);
}

tn_safetensors *tn__safetensors_over(const char *path, void *data, size_t bytes) {
    return file_begin(path, not_open, data, bytes, NULL);
}

void tn_safetensors_close(tn_safetensors *f) {
    if (f) {
        tn__reader_close(&f->file);
        mapping_release(f->mapping);
        tn__json_free(&f->header);
        free(f->entries);
        free(f->by_name);
        free(f->path);
        free(f);
    }
}

/* ---- What is in it --------------------------------------------------------------------------- */

int tn_safetensors_count(const tn_safetensors *f) {
    return f ? f->count : 0;
}

const char *tn_safetensors_name(const tn_safetensors *f, int i) {
    return f && i >= 0 && i < f->count ? f->entries[i].name : NULL;
}

static const entry *entry_find(const tn_safetensors *f, const char *name) {
    if (!f || !name) { return NULL; }
    entry key = {.name = name}, *wanted = &key;
    entry **found = bsearch(&wanted, f->by_name, (size_t)f->count, sizeof(entry *), compare_names);
    return found ? *found : NULL;
}

bool tn_safetensors_has(const tn_safetensors *f, const char *name) {
    return entry_find(f, name) != NULL;
}

const char *tn_safetensors_metadata(const tn_safetensors *f, const char *key) {
    return f ? tn__json_text(f->metadata, key) : NULL;
}

int64_t tn__safetensors_bytes(const tn_safetensors *f) {
    return (int64_t)f->bytes;
}

const tn__json *tn__safetensors_metadata(const tn_safetensors *f) {
    return f->metadata;
}

const char *tn__safetensors_path(const tn_safetensors *f) {
    return f->path;
}

const char *tn__safetensors_digest(const tn_safetensors *f) {
    return tn_safetensors_metadata(f, "digest");
}

size_t tn__safetensors_tensor_bytes(const tn_safetensors *f, const char *name) {
    const entry *e = entry_find(f, name);
    return e->end - e->begin;
}

/* The tensor with this name; NULL after raising. */
static const entry *entry_wanted(const tn_safetensors *f, const char *name, const char *operation) {
    const entry *e = entry_find(f, name);
    if (!e) {
        tn__raise(TN_EVALUE, operation, "%s has no tensor \"%s\"",
                  f ? f->path : "a file that is not open", name ? tn__show(name).text : "NULL");
    }
    return e;
}

/* Whether a tensor of Tern can have the entry's shape. False after raising. */
static bool shape_fits(const tn_safetensors *f, const entry *e, const char *operation) {
    return e->ndim <= TN_MAX_DIMS ||
           tn__fail(TN_EUNSUPPORTED, operation,
                    "%s: \"%s\" has %zu dimensions, but Tern has at most %d", f->path,
                    tn__show(e->name).text, e->ndim, TN_MAX_DIMS);
}

tn_dims tn_safetensors_shape(const tn_safetensors *f, const char *name) {
    static const char operation[] = "safetensors_shape";
    const entry *e = entry_wanted(f, name, operation);
    return e && shape_fits(f, e, operation) ? e->dims : (tn_dims){.ndim = 0};
}

const char *tn_safetensors_dtype(const tn_safetensors *f, const char *name) {
    const entry *e = entry_wanted(f, name, "safetensors_dtype");
    return e ? e->format_name : NULL;
}

/* A byte other than 0 and 1 is not a bool, and reading it as one has no meaning in C. */
static bool check_bools(const tn_safetensors *f, const entry *e, size_t first, const char *data,
                        size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (data[i] != 0 && data[i] != 1) {
            return entry_bad(f, e->name, "element %zu is %d, but a BOOL is 0 or 1", first + i,
                             data[i]);
        }
    }
    return true;
}

static tn_tensor *read_tensor(const tn_safetensors *f, const entry *e) {
    tn_tensor *t = tn_empty_on(tn_cpu(), e->dims, (tn_dtype)e->dtype);
    size_t bytes = e->end - e->begin;
    if (bytes && !tn_is_inert(t) && !read_bytes(f, f->data + e->begin, tn_data_mut(t), bytes)) {
        tn_drop(t);
        return tn_inert();
    }
    return t;
}

/* A tensor over lent bytes, where they are aligned. */
static tn_tensor *view_lent(const tn_safetensors *f, const entry *e) {
    char *data = f->lent + f->data + e->begin;
    bool aligned = (uintptr_t)data % tn_dtype_size((tn_dtype)e->dtype) == 0;
    if (!aligned || e->end == e->begin) { return read_tensor(f, e); }
    tn_tensor *t = tn_from_memory(data, e->dims, (tn_dtype)e->dtype,
                                  f->mapping ? release_view : NULL, f->mapping);
    if (f->mapping && !tn_is_inert(t)) {
        __atomic_fetch_add(&f->mapping->refs, 1, __ATOMIC_RELAXED);
    }
    return t;
}

tn_tensor *tn_safetensors_get(const tn_safetensors *f, const char *name) {
    const entry *e = entry_wanted(f, name, "safetensors_get");
    if (!e) { return tn_inert(); }
    if (e->dtype < 0) {
        tn__raise(TN_EUNSUPPORTED, "safetensors_get",
                  "%s: \"%s\" is %s, but Tern has F32 F64 BF16 F16 I64 I32 I8 U8 BOOL", f->path,
                  tn__show(name).text, tn__show(e->format_name).text);
        return tn_inert();
    }
    if (!shape_fits(f, e, "safetensors_get")) { return tn_inert(); }
    tn_tensor *t = f->lent ? view_lent(f, e) : read_tensor(f, e);
    if (e->dtype == TN_BOOL && !tn_is_inert(t) &&
        !check_bools(f, e, 0, tn_data(t), e->end - e->begin)) {
        tn_drop(t);
        return tn_inert();
    }
    return t;
}

bool tn__safetensors_find_dtype(const char *name, tn_dtype *dtype) {
    int found, bits;
    find_dtype(name, &found, &bits);
    *dtype = found < 0 ? TN_F32 : (tn_dtype)found;
    return found >= 0;
}

bool tn__safetensors_read(const tn_safetensors *f, const char *name, size_t at, void *to,
                          size_t bytes) {
    const entry *e = entry_find(f, name);
    return read_bytes(f, f->data + e->begin + at, to, bytes) &&
           (e->dtype != TN_BOOL || check_bools(f, e, at, to, bytes));
}

bool tn__safetensors_read_layout(const tn_safetensors *f, const char *name, const tn_layout *l,
                                 void *to) {
    size_t size = tn_dtype_size((tn_dtype)entry_find(f, name)->dtype);
    bool read = true;
    for (int64_t here = 0; read && here < l->length;) {
        tn__layout_span run = tn__layout_run(l, here);
        read = tn__safetensors_read(f, name, (size_t)run.whole * size,
                                    (char *)to + (size_t)here * size, (size_t)run.length * size);
        here += run.length;
    }
    return read;
}

/* ---- The digest ------------------------------------------------------------------------------ */

/* Adds the whole file to d, with '0' in the digest's place. False after raising. */
static bool digest_file(const tn_safetensors *f, tn__digest *d) {
    char chunk[1 << 15];
    for (size_t at = 0, bytes; at < f->bytes; at += bytes) {
        bytes = f->bytes - at < sizeof(chunk) ? f->bytes - at : sizeof(chunk);
        if (!read_bytes(f, at, chunk, bytes)) { return false; }
        if (at == 0) { memset(chunk + TN__DIGEST_AT, '0', TN__DIGEST_DIGITS); }
        tn__digest_add(d, chunk, bytes);
    }
    return true;
}

/* Whether the header begins with a digest, at its fixed position. */
static bool has_digest(const tn_safetensors *f) {
    char head[sizeof(TN__DIGEST_BEFORE) - 1];
    const char *digest = tn__safetensors_digest(f);
    return digest && strlen(digest) == TN__DIGEST_DIGITS &&
           f->bytes > TN__DIGEST_AT + TN__DIGEST_DIGITS && read_bytes(f, 8, head, sizeof(head)) &&
           memcmp(head, TN__DIGEST_BEFORE, sizeof(head)) == 0;
}

bool tn__safetensors_check_digest(const tn_safetensors *f, const char *operation) {
    char digits[TN__DIGEST_DIGITS + 1] = "";
    if (!has_digest(f)) {
        return tn__fail(TN_EFORMAT, operation, "%s has no digest: it is not a checkpoint", f->path);
    }
    tn__digest *d = tn__digest_new(operation);
    bool read = d && digest_file(f, d);
    if (read) { tn__digest_text(d, digits); }
    tn__digest_free(d);
    const char *told = tn__safetensors_digest(f);
    return read &&
           (strcmp(digits, told) == 0 ||
            tn__fail(TN_EFORMAT, operation, "%s is damaged: its digest is %.32s but should be %s",
                     f->path, told, digits));
}
