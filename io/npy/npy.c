/* Files of one array, and archives of several: ZIP (PKWARE's APPNOTE.TXT), as NumPy writes it.
 *
 * The contents of an archive are listed at its end, and only that list is used: of the header
 * before an array only the length is read. Archives of 4 GiB and more (ZIP64) are refused.
 */
#include "tern/npy.h"

#include "core/buffer.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/reader.h"
#include "io/npy/array.h"
#include "tern/ops.h"
#include "tern/sys/tensor.h"
#include "text/utf8.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

/* ---- One array ------------------------------------------------------------------------------- */

tn_tensor *tn_npy_load(const char *path) {
    size_t bytes;
    char *text = tn__pending() ? NULL : tn__read_whole(path, &bytes, "npy_load");
    tn_tensor *t =
        text ? tn__npy_read((const unsigned char *)text, bytes, path, "npy_load") : tn_inert();
    free(text);
    return t;
}

/* Its elements on the host, row by row; inert after raising. */
static tn_tensor *host_array(const tn_tensor *t) {
    return tn_contiguous(tn_to(tn_detach(t), tn_cpu()));
}

static size_t array_bytes(const tn_tensor *t) {
    return (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
}

tn_status tn_npy_save(const tn_tensor *t, const char *path) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *here = host_array(t);
    unsigned char head[TN__NPY_HEAD];
    size_t length = tn_is_inert(here) ? 0 : tn__npy_head(here, head, "the tensor", "npy_save");
    tn__file file;
    if (length == 0 || !tn__file_begin(&file, path, "npy_save")) { return tn_error(); }
    tn__file_put(&file, head, length);
    tn__file_put(&file, tn_data(here), array_bytes(here));
    return tn__file_commit(&file);
}

/* ---- Archives -------------------------------------------------------------------------------- */

enum { LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50 };
enum { STORED = 0, DEFLATED = 8, LONGEST_NAME = 1024, LONGEST_COMMENT = 65535 };
enum { FLAG_ENCRYPTED = 1, FLAG_UTF8 = 1 << 11 }; /* UTF8: the name is not code page 437 */

#define PACKED __attribute__((packed)) /* as in the file, little-endian */

typedef struct PACKED facts {
    uint16_t version, flags, method, time, date;
    uint32_t check, packed, bytes;
    uint16_t name, extra; /* lengths of what follows */
} facts;

/* Before an array; its name and `extra` follow. */
typedef struct PACKED local_header {
    uint32_t signature;
    facts of;
} local_header;

/* One of the contents; its name, `extra` and a comment follow. */
typedef struct PACKED contents_line {
    uint32_t signature;
    uint16_t maker;
    facts of;
    uint16_t comment, disk, inner;
    uint32_t outer, at; /* at: of the local header */
} contents_line;

/* Last in a file, but for a comment. */
typedef struct PACKED end_record {
    uint32_t signature;
    uint16_t disk, first_disk, here, count;
    uint32_t bytes, at; /* of the contents */
    uint16_t comment;
} end_record;

/* ---- Archives: reading ----------------------------------------------------------------------- */

typedef struct npz_entry {
    char *name;
    facts of;
    uint32_t at;
} npz_entry;

struct tn_npz {
    tn__reader reader;
    char *path;
    npz_entry *entries;
    int count;
};

static bool archive_fails(const tn_npz *f, const char *what) {
    return tn__fail(TN_EFORMAT, f->reader.operation, "%s: %s", f->path, what);
}

/* Larger numbers are in other records. */
static bool refuse_wide(const tn_npz *f) {
    return tn__fail(TN_EUNSUPPORTED, f->reader.operation,
                    "%s: ZIP64 archives, of 4 GiB or 65535 arrays and more, are not read (a file "
                    "of one array may be larger)",
                    f->path);
}

/* The bytes from `at` on; false after raising, e.g. if the file ends first. */
static bool read_part(const tn_npz *f, uint64_t at, void *to, size_t bytes) {
    if (at > f->reader.bytes || bytes > f->reader.bytes - at) {
        return archive_fails(f, "it refers to bytes beyond its end");
    }
    return tn__reader_get(&f->reader, (size_t)at, to, bytes);
}

static bool find_end(const tn_npz *f, end_record *end) {
    size_t most = sizeof(*end) + LONGEST_COMMENT, all = f->reader.bytes;
    size_t tail = all < most ? all : most;
    char *text = tn__malloc_for(tail, f->reader.operation);
    bool read = text && read_part(f, all - tail, text, tail), found = false;
    for (size_t left = sizeof(*end); read && !found && left <= tail; left++) {
        memcpy(end, text + tail - left, sizeof(*end));
        found = end->signature == END;
    }
    free(text);
    if (!found) { return read && archive_fails(f, "it is not a ZIP archive"); }
    return (end->count < UINT16_MAX && end->at < UINT32_MAX) || refuse_wide(f);
}

/* Reads one of the contents, at `text`; returns its length, or 0 after raising. */
static size_t read_line(tn_npz *f, const char *text, size_t left) {
    contents_line line = {0};
    memcpy(&line, text, left < sizeof(line) ? left : sizeof(line));
    size_t all = sizeof(line) + line.of.name + line.of.extra + line.comment, name = line.of.name;
    if (left < all || line.signature != CENTRAL || name > LONGEST_NAME) {
        archive_fails(f, "its list of contents is damaged");
        return 0;
    }
    text += sizeof(line);
    size_t stem = name > 4 && memcmp(text + name - 4, ".npy", 4) == 0 ? name - 4 : name;
    npz_entry *e = &f->entries[f->count];
    *e = (npz_entry){tn__asprintf(f->reader.operation, "%.*s", (int)stem, text), line.of, line.at};
    if (!e->name) { return 0; }
    f->count++;
    bool wide = e->of.packed == UINT32_MAX || e->of.bytes == UINT32_MAX || e->at == UINT32_MAX;
    return !wide || refuse_wide(f) ? all : 0;
}

static bool read_contents(tn_npz *f) {
    end_record end;
    if (!find_end(f, &end)) { return false; }
    if (end.bytes > f->reader.bytes || end.count > end.bytes / sizeof(contents_line)) {
        return archive_fails(f, "its list of contents is damaged");
    }
    char *text = tn__malloc_for(end.bytes, f->reader.operation);
    f->entries = tn__calloc_for(end.count, sizeof(*f->entries), f->reader.operation);
    if (text && f->entries && read_part(f, end.at, text, end.bytes)) {
        size_t at = 0;
        for (int i = 0; i < end.count && !tn__pending(); i++) {
            at += read_line(f, text + at, end.bytes - at);
        }
    }
    free(text);
    return !tn__pending();
}

tn_npz *tn_npz_open(const char *path) {
    static const char operation[] = "npz_open";
    tn_npz *f = tn__pending() ? NULL : tn__calloc_for(1, sizeof(*f), operation);
    if (!f) { return NULL; }
    bool opened = tn__reader_open(&f->reader, path, operation);
    f->path = opened ? tn__strdup_for(path, operation) : NULL;
    f->reader.path = f->path;
    if (!f->path || !read_contents(f)) {
        tn_npz_close(f);
        return NULL;
    }
    return f;
}

void tn_npz_close(tn_npz *f) {
    if (f) {
        tn__reader_close(&f->reader);
        for (int i = 0; i < f->count; i++) {
            free(f->entries[i].name);
        }
        free(f->entries);
        free(f->path);
        free(f);
    }
}

int tn_npz_count(const tn_npz *f) {
    return f ? f->count : 0;
}

const char *tn_npz_name(const tn_npz *f, int i) {
    return f && i >= 0 && i < f->count ? f->entries[i].name : NULL;
}

/* Z_STREAM_END if exactly all bytes were unpacked, else zlib's error, or Z_DATA_ERROR. */
static int inflate_entry(const facts *of, unsigned char *packed, unsigned char *to) {
    z_stream z = {
        .next_in = packed, .avail_in = of->packed, .next_out = to, .avail_out = of->bytes};
    int status = inflateInit2(&z, -MAX_WBITS);
    if (status != Z_OK) { return status; }
    status = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    bool whole = status == Z_STREAM_END && z.avail_in == 0 && z.avail_out == 0;
    return whole || status == Z_MEM_ERROR ? status : Z_DATA_ERROR;
}

/* The array's bytes, checked; the caller frees. Deflate's ratio is bounded, and so is the memory
 * that is allocated. NULL after raising. */
static unsigned char *read_entry(const tn_npz *f, const npz_entry *e, const char *what) {
    const facts *of = &e->of;
    local_header local;
    bool stored = of->method == STORED && of->packed == of->bytes;
    if (of->flags & FLAG_ENCRYPTED || !(stored || of->method == DEFLATED)) {
        tn__raise(TN_EUNSUPPORTED, "npz_get", "%s is neither stored nor deflated", what);
        return NULL;
    }
    if (of->packed > f->reader.bytes || of->bytes / 1100 > of->packed) {
        archive_fails(f, "it has impossible sizes");
        return NULL;
    }
    if (!read_part(f, e->at, &local, sizeof(local))) { return NULL; }
    if (local.signature != LOCAL) {
        archive_fails(f, "an array is not where its list of contents says");
        return NULL;
    }
    uint64_t from = (uint64_t)e->at + sizeof(local) + local.of.name + local.of.extra;
    unsigned char *whole = tn__malloc_for(of->bytes, "npz_get"), *packed = whole;
    if (whole && !stored) { packed = tn__malloc_for(of->packed, "npz_get"); }
    bool read = packed && read_part(f, from, packed, of->packed);
    int status = !read ? Z_ERRNO : stored ? Z_STREAM_END : inflate_entry(of, packed, whole);
    if (!stored) { free(packed); }
    if (status == Z_STREAM_END && crc32_z(0, whole, of->bytes) == of->check) { return whole; }
    if (read) {
        bool memory = status == Z_MEM_ERROR;
        tn__raise(memory ? TN_ENOMEM : TN_EFORMAT, "npz_get", "%s%s", what,
                  memory ? ": no memory" : " is damaged");
    }
    free(whole);
    return NULL;
}

tn_tensor *tn_npz_get(const tn_npz *f, const char *name) {
    const npz_entry *e = NULL;
    if (tn__pending()) { return tn_inert(); }
    for (int i = 0; f && name && i < f->count; i++) { /* of several, the last, as in NumPy */
        e = strcmp(f->entries[i].name, name) == 0 ? &f->entries[i] : e;
    }
    if (!e) {
        tn__raise(TN_EVALUE, "npz_get", "there is no array \"%.200s\"", name ? name : "(NULL)");
        return tn_inert();
    }
    char what[512];
    snprintf(what, sizeof(what), "%.300s: %.200s", f->path, e->name);
    unsigned char *bytes = read_entry(f, e, what);
    tn_tensor *t = bytes ? tn__npy_read(bytes, e->of.bytes, what, "npz_get") : tn_inert();
    free(bytes);
    return t;
}

/* ---- Archives: writing ----------------------------------------------------------------------- */

typedef struct npz_writer {
    tn__file file;
    tn__buffer list; /* of contents */
    bool compressed;
} npz_writer;

/* As in Python, an ASCII name has no flag. Nor has one that is not UTF-8, whose bytes are written
 * unchanged. */
static uint16_t name_flags(const char *name) {
    bool ascii = true;
    for (const char *c = name; *c; c++) {
        ascii = ascii && (unsigned char)*c < 0x80;
    }
    return ascii || !tn__is_utf8(name) ? 0 : FLAG_UTF8;
}

/* head and elements as one deflate stream; NULL: no memory. */
static unsigned char *deflate_array(const void *head, size_t length, const void *data, size_t bytes,
                                    size_t *packed) {
    z_stream z = {0};
    if (deflateInit2(&z, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) { return NULL; }
    size_t bound = deflateBound(&z, length + bytes) + 64;
    unsigned char *to = tn__malloc(bound);
    z.next_out = to;
    z.avail_out = (uInt)bound;
    z.next_in = (unsigned char *)head;
    z.avail_in = (uInt)length;
    bool ok = to && deflate(&z, Z_NO_FLUSH) == Z_OK;
    z.next_in = (unsigned char *)data;
    z.avail_in = (uInt)bytes;
    ok = ok && deflate(&z, Z_FINISH) == Z_STREAM_END;
    *packed = bound - z.avail_out;
    deflateEnd(&z);
    if (!ok) {
        free(to);
        to = NULL;
    }
    return to;
}

/* The array's header and its line of the list. 1980-01-01, as in NumPy. */
static void put_headers(npz_writer *w, const char *name, const facts *of) {
    local_header local = {LOCAL, *of};
    contents_line line = {
        .signature = CENTRAL, .maker = of->version, .of = *of, .at = (uint32_t)w->file.bytes};
    tn__buffer_add(&w->list, &line, sizeof(line));
    tn__buffer_format(&w->list, "%s.npy", name);
    tn__file_put(&w->file, &local, sizeof(local));
    tn__file_put(&w->file, name, strlen(name));
    tn__file_put(&w->file, ".npy", 4);
}

/* False after raising. */
static bool put_array(npz_writer *w, const char *name, const tn_tensor *t) {
    unsigned char head[TN__NPY_HEAD], *squeezed = NULL;
    size_t length = tn__npy_head(t, head, name, "npz_save"), bytes = array_bytes(t);
    size_t all = length + bytes, packed = all;
    if (length == 0) { return false; }
    if (w->file.bytes + all + (all >> 11) + 65536 + w->list.bytes >= UINT32_MAX) {
        return tn__fail(TN_EUNSUPPORTED, "npz_save",
                        "%s: archives of 4 GiB and more are not written", w->file.path);
    }
    if (w->compressed) {
        squeezed = deflate_array(head, length, tn_data(t), bytes, &packed);
        if (!squeezed) { return tn__fail(TN_ENOMEM, "npz_save", "no memory to compress %s", name); }
    }
    put_headers(w, name,
                &(facts){.version = 20, /* that can read it */
                         .flags = name_flags(name),
                         .method = w->compressed ? DEFLATED : STORED,
                         .date = 0x21,
                         .check = (uint32_t)crc32_z(crc32_z(0, head, length), tn_data(t), bytes),
                         .packed = (uint32_t)packed,
                         .bytes = (uint32_t)all,
                         .name = (uint16_t)(strlen(name) + 4)});
    tn__file_put(&w->file, squeezed ? squeezed : head, squeezed ? packed : length);
    if (!squeezed) { tn__file_put(&w->file, tn_data(t), bytes); }
    free(squeezed);
    return true;
}

static void put_end(npz_writer *w, int n) {
    end_record end = {.signature = END,
                      .here = (uint16_t)n,
                      .count = (uint16_t)n,
                      .bytes = (uint32_t)w->list.bytes,
                      .at = (uint32_t)w->file.bytes};
    tn__file_put(&w->file, w->list.at, w->list.bytes);
    tn__file_put(&w->file, &end, sizeof(end));
}

/* False after raising. */
static bool check_names(const char *const *names, tn_tensor *const *tensors, int n) {
    if (n < 0 || n >= UINT16_MAX || (n > 0 && (!names || !tensors))) {
        return tn__fail(TN_EVALUE, "npz_save", "%d arrays, or their names or tensors are NULL", n);
    }
    for (int i = 0; i < n; i++) {
        size_t length = names[i] ? strlen(names[i]) : 0;
        bool bad = length == 0 || length > LONGEST_NAME - 4;
        for (int k = 0; k < i && !bad; k++) {
            bad = strcmp(names[i], names[k]) == 0;
        }
        if (bad) {
            return tn__fail(TN_EVALUE, "npz_save",
                            "name %d is empty, too long, or that of another array", i);
        }
    }
    return true;
}

tn_status tn_npz_save(const char *const *names, tn_tensor *const *tensors, int n, const char *path,
                      bool compressed) {
    npz_writer w = {.compressed = compressed, .list.operation = "npz_save"};
    if (tn__pending() || !check_names(names, tensors, n) ||
        !tn__file_begin(&w.file, path, "npz_save")) {
        return tn_error();
    }
    for (int i = 0; i < n && !tn__pending(); i++) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *here = host_array(tensors[i]);
        if (!tn_is_inert(here)) { put_array(&w, names[i], here); }
    }
    put_end(&w, n);
    tn__buffer_free(&w.list);
    if (tn__pending()) {
        tn__file_abandon(&w.file);
        return tn_error();
    }
    return tn__file_commit(&w.file);
}
