/* Files of one array, and archives of several: ZIP (PKWARE's APPNOTE.TXT), as NumPy writes it.
 *
 * The contents of an archive are listed at its end, and only that list is used: of the header
 * before an array only the length is read. Archives of 4 GiB and more (ZIP64) are refused.
 */
#include "tern/npy.h"

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
    tn_tensor *t = tn_inert();
    if (text) {
        TN_SCOPE;
        TN_NO_GRAD;
        t = tn_return(tn__npy_read((const unsigned char *)text, bytes, path, "npy_load"));
    }
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

/* ---- Archives: reading ----------------------------------------------------------------------- */

enum { LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50 };
enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22 };
enum { STORED = 0, DEFLATED = 8, LONGEST_NAME = 1024 };
enum { FLAG_UTF8 = 1 << 11 }; /* of an entry: its name is UTF-8, not code page 437 */

typedef struct npz_entry {
    char *name;
    unsigned flags, method;
    uint32_t check;
    uint64_t packed, bytes, at; /* at: of the header before it */
} npz_entry;

struct tn_npz {
    tn__reader reader;
    char *path;
    npz_entry *entries;
    int count;
};

static uint64_t read_little(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | at[i];
    }
    return value;
}

static bool archive_fails(const tn_npz *f, const char *what) {
    tn__raise(TN_EFORMAT, f->reader.operation, "%s: %s", f->path, what);
    return false;
}

/* The bytes from `at` on; false after raising, e.g. if the file ends first. */
static bool read_part(const tn_npz *f, uint64_t at, void *to, size_t bytes) {
    if (at > f->reader.bytes || bytes > f->reader.bytes - at) {
        return archive_fails(f, "it refers to bytes beyond its end");
    }
    return tn__reader_get(&f->reader, (size_t)at, to, bytes);
}

/* The position and length of the list of contents. */
typedef struct contents {
    uint64_t at, bytes, count;
} contents;

/* Larger numbers are in other records. */
static bool refuse_wide(const tn_npz *f) {
    tn__raise(TN_EUNSUPPORTED, f->reader.operation,
              "%s: ZIP64 archives, of 4 GiB or 65535 arrays and more, are not read (a file of one "
              "array may be larger)",
              f->path);
    return false;
}

/* The end record is last in a file, but for a comment of up to 64 KiB. */
static bool find_contents(const tn_npz *f, contents *c) {
    size_t tail = f->reader.bytes < END_BYTES + 65535 ? f->reader.bytes : END_BYTES + 65535;
    unsigned char *text = tn__malloc_for(tail, f->reader.operation);
    if (!text) { return false; }
    size_t from = f->reader.bytes - tail, at = tail;
    bool found = false;
    if (read_part(f, from, text, tail)) {
        for (at = tail >= END_BYTES ? tail - END_BYTES + 1 : 0; at > 0 && !found;) {
            found = read_little(text + --at, 4) == END;
        }
    }
    if (found) {
        *c = (contents){.count = read_little(text + at + 10, 2),
                        .bytes = read_little(text + at + 12, 4),
                        .at = read_little(text + at + 16, 4)};
        found = (c->count < 0xffff && c->at < 0xffffffff) || refuse_wide(f);
    } else if (!tn__pending()) {
        archive_fails(f, "it is not a ZIP archive");
    }
    free(text);
    return found && !tn__pending();
}

/* Reads one of the contents, at `text`; returns its length, or 0 after raising. */
static size_t read_entry(tn_npz *f, const unsigned char *text, size_t left) {
    size_t name = left >= CENTRAL_BYTES ? read_little(text + 28, 2) : 0;
    size_t extra = left >= CENTRAL_BYTES ? read_little(text + 30, 2) : 0;
    size_t all =
        CENTRAL_BYTES + name + extra + (left >= CENTRAL_BYTES ? read_little(text + 32, 2) : 0);
    if (left < all || read_little(text, 4) != CENTRAL || name > LONGEST_NAME) {
        archive_fails(f, "its list of contents is damaged");
        return 0;
    }
    npz_entry *e = &f->entries[f->count];
    *e = (npz_entry){.flags = (unsigned)read_little(text + 8, 2),
                     .method = (unsigned)read_little(text + 10, 2),
                     .check = (uint32_t)read_little(text + 16, 4),
                     .packed = read_little(text + 20, 4),
                     .bytes = read_little(text + 24, 4),
                     .at = read_little(text + 42, 4)};
    size_t stem =
        name > 4 && memcmp(text + CENTRAL_BYTES + name - 4, ".npy", 4) == 0 ? name - 4 : name;
    e->name = tn__malloc_for(stem + 1, f->reader.operation);
    if (!e->name) { return 0; }
    memcpy(e->name, text + CENTRAL_BYTES, stem);
    e->name[stem] = 0;
    f->count++;
    bool wide = e->packed == 0xffffffff || e->bytes == 0xffffffff || e->at == 0xffffffff;
    return !wide || refuse_wide(f) ? all : 0;
}

static bool read_contents(tn_npz *f) {
    contents c;
    if (!find_contents(f, &c)) { return false; }
    if (c.bytes > f->reader.bytes || c.count > c.bytes / CENTRAL_BYTES) {
        return archive_fails(f, "its list of contents is damaged");
    }
    unsigned char *text = tn__malloc((size_t)c.bytes);
    f->entries = tn__calloc((size_t)c.count, sizeof(*f->entries));
    if (!text || !f->entries) {
        tn__raise(TN_ENOMEM, f->reader.operation, "%s: no memory", f->path);
    } else if (read_part(f, c.at, text, (size_t)c.bytes)) {
        size_t at = 0;
        for (uint64_t i = 0; i < c.count && !tn__pending(); i++) {
            at += read_entry(f, text + at, (size_t)c.bytes - at);
        }
    }
    free(text);
    return !tn__pending();
}

tn_npz *tn_npz_open(const char *path) {
    tn_npz *f = tn__pending() ? NULL : tn__calloc(1, sizeof(*f));
    if (!f) {
        tn__raise(TN_ENOMEM, "npz_open", "no memory");
        return NULL;
    }
    f->reader.fd = -1;
    f->path = path ? tn__strdup(path) : NULL;
    if (path && !f->path) { tn__raise(TN_ENOMEM, "npz_open", "no memory"); }
    if (tn__pending() || !tn__reader_open(&f->reader, f->path, "npz_open") || !read_contents(f)) {
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

/* Z_STREAM_END if exactly e->bytes were unpacked, else zlib's error, or Z_DATA_ERROR.
 */
static int inflate_entry(const npz_entry *e, const unsigned char *packed, unsigned char *to) {
    z_stream z = {0};
    size_t in = 0, out = 0;
    int status = inflateInit2(&z, -MAX_WBITS);
    if (status != Z_OK) { return status; }
    while (status == Z_OK) { /* counts of 32 bits */
        size_t more = (size_t)e->packed - in, space = (size_t)e->bytes - out, most = 1u << 30;
        z.next_in = (unsigned char *)packed + in;
        z.next_out = to + out;
        z.avail_in = (uInt)(more < most ? more : most);
        z.avail_out = (uInt)(space < most ? space : most);
        size_t given = z.avail_in, free_before = z.avail_out;
        status = inflate(&z, Z_NO_FLUSH);
        in += given - z.avail_in;
        out += free_before - z.avail_out;
        if (given == z.avail_in && free_before == z.avail_out) { break; }
    }
    inflateEnd(&z);
    bool whole = status == Z_STREAM_END && out == e->bytes && in == e->packed;
    return whole || status == Z_MEM_ERROR ? status : Z_DATA_ERROR;
}

/* Reads and checks. Deflate's ratio is bounded, and so is the memory that is allocated. */
static unsigned char *read_packed(const tn_npz *f, const npz_entry *e, const char *what) {
    unsigned char local[LOCAL_BYTES];
    bool known = (e->method == STORED && e->packed == e->bytes) || e->method == DEFLATED;
    if (e->flags & 1 || !known) {
        tn__raise(TN_EUNSUPPORTED, "npz_get", "%s is neither stored nor deflated", what);
        return NULL;
    }
    if (e->packed > f->reader.bytes || e->bytes / 1100 > e->packed) {
        archive_fails(f, "it has impossible sizes");
        return NULL;
    }
    if (!read_part(f, e->at, local, sizeof(local))) { return NULL; }
    uint64_t from = e->at + LOCAL_BYTES + read_little(local + 26, 2) + read_little(local + 28, 2);
    unsigned char *packed = tn__malloc((size_t)e->packed);
    unsigned char *whole = e->method == STORED ? packed : tn__malloc((size_t)e->bytes);
    if (!packed || !whole) {
        tn__raise(TN_ENOMEM, "npz_get", "%s: no memory", what);
    } else if (read_little(local, 4) != LOCAL) {
        archive_fails(f, "an array is not where its list of contents says");
    } else if (read_part(f, from, packed, (size_t)e->packed)) {
        int status = whole == packed ? Z_STREAM_END : inflate_entry(e, packed, whole);
        if (status == Z_MEM_ERROR) {
            tn__raise(TN_ENOMEM, "npz_get", "%s: no memory", what);
        } else if (status != Z_STREAM_END || crc32_z(0, whole, (size_t)e->bytes) != e->check) {
            tn__raise(TN_EFORMAT, "npz_get", "%s is damaged", what);
        }
    }
    if (whole != packed) { free(packed); }
    if (tn__pending()) {
        free(whole);
        whole = NULL;
    }
    return whole;
}

tn_tensor *tn_npz_get(const tn_npz *f, const char *name) {
    const npz_entry *e = NULL;
    if (tn__pending()) { return tn_inert(); }
    for (int i = 0; f && name && i < f->count;
         i++) { /* of several with a name, the last, as in NumPy */
        e = strcmp(f->entries[i].name, name) == 0 ? &f->entries[i] : e;
    }
    if (!e) {
        tn__raise(TN_EVALUE, "npz_get", "there is no array \"%.200s\"", name ? name : "(NULL)");
        return tn_inert();
    }
    char what[512];
    snprintf(what, sizeof(what), "%.300s: %.200s", f->path, e->name);
    unsigned char *bytes = read_packed(f, e, what);
    tn_tensor *t = tn_inert();
    if (bytes) {
        TN_SCOPE;
        TN_NO_GRAD;
        t = tn_return(tn__npy_read(bytes, (size_t)e->bytes, what, "npz_get"));
    }
    free(bytes);
    return t;
}

/* ---- Archives: writing ----------------------------------------------------------------------- */

typedef struct npz_writer {
    tn__file file;
    unsigned char *list; /* of contents */
    size_t list_bytes;
    uint64_t at; /* bytes so far */
    bool compressed;
} npz_writer;

static unsigned char *put_little(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        *to++ = (unsigned char)value;
        value >>= 8;
    }
    return to;
}

static void put_file(npz_writer *w, const void *data, size_t bytes) {
    tn__file_put(&w->file, data, bytes);
    w->at += bytes;
}

/* As in Python, an ASCII name has no flag. Nor has one that is not UTF-8, whose bytes are written
 * unchanged. */
static unsigned name_flags(const char *name) {
    unsigned flags = 0;
    int32_t code;
    for (size_t at = 0, bytes = strlen(name); at < bytes;) {
        int used = tn__utf8_decode(name + at, bytes - at, &code);
        if (used == 0) { return 0; }
        flags |= used > 1 ? FLAG_UTF8 : 0;
        at += (size_t)used;
    }
    return flags;
}

/* The fields that local header and list share, from the version on. 1980-01-01, as in NumPy. */
static unsigned char *put_common(unsigned char *to, unsigned method, uint32_t check, size_t packed,
                                 size_t bytes, const char *name) {
    to = put_little(to, 20, 2); /* the version that can read it */
    to = put_little(to, name_flags(name), 2);
    to = put_little(to, method, 2);
    to = put_little(to, 0, 2);
    to = put_little(to, 0x21, 2);
    to = put_little(to, check, 4);
    to = put_little(to, packed, 4);
    to = put_little(to, bytes, 4);
    to = put_little(to, strlen(name) + 4, 2); /* and ".npy" */
    return put_little(to, 0, 2);
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

/* A local header, the array, and its line of the list. False after raising. */
static bool put_array(npz_writer *w, const char *name, const tn_tensor *t) {
    unsigned char head[TN__NPY_HEAD], local[LOCAL_BYTES + LONGEST_NAME];
    size_t length = tn__npy_head(t, head, name, "npz_save"), bytes = array_bytes(t);
    if (length == 0) { return false; }
    size_t stem = strlen(name), all = length + bytes, packed = all;
    if (w->at + all + (all >> 12) + 65536 + w->list_bytes >= 0xffffffff) {
        tn__raise(TN_EUNSUPPORTED, "npz_save", "%s: archives of 4 GiB and more are not written",
                  w->file.path);
        return false;
    }
    uint32_t check = (uint32_t)crc32_z(crc32_z(0, head, length), tn_data(t), bytes);
    unsigned char *squeezed =
        w->compressed ? deflate_array(head, length, tn_data(t), bytes, &packed) : NULL;
    if (w->compressed && !squeezed) {
        tn__raise(TN_ENOMEM, "npz_save", "no memory to compress %s", name);
        return false;
    }
    unsigned char *line = w->list + w->list_bytes;
    line = put_little(line, CENTRAL, 4);
    line = put_little(line, 20, 2);
    line = put_common(line, w->compressed ? DEFLATED : STORED, check, packed, all, name);
    line = put_little(line, 0, 10); /* no comment, disk 0, no attributes */
    line = put_little(line, w->at, 4);
    memcpy(line, name, stem);
    memcpy(line + stem, ".npy", 4);
    w->list_bytes += CENTRAL_BYTES + stem + 4;
    unsigned char *to = put_little(local, LOCAL, 4);
    to = put_common(to, w->compressed ? DEFLATED : STORED, check, packed, all, name);
    memcpy(to, name, stem);
    memcpy(to + stem, ".npy", 4);
    put_file(w, local, LOCAL_BYTES + stem + 4);
    if (squeezed) {
        put_file(w, squeezed, packed);
    } else {
        put_file(w, head, length);
        put_file(w, tn_data(t), bytes);
    }
    free(squeezed);
    return true;
}

static void put_end(npz_writer *w, int n) {
    unsigned char end[END_BYTES], *to = put_little(end, END, 4);
    uint64_t list_at = w->at;
    put_file(w, w->list, w->list_bytes);
    to = put_little(to, 0, 4);
    to = put_little(to, (uint64_t)n, 2);
    to = put_little(to, (uint64_t)n, 2);
    to = put_little(to, w->list_bytes, 4);
    to = put_little(to, list_at, 4);
    put_little(to, 0, 2);
    put_file(w, end, sizeof(end));
}

/* The length of the list to write; 0 after raising. */
static size_t check_names(const char *const *names, tn_tensor *const *tensors, int n) {
    size_t list_bytes = 1;
    if (n < 0 || n >= 0xffff || (n > 0 && (!names || !tensors))) {
        tn__raise(TN_EVALUE, "npz_save", "%d arrays, or their names or tensors are NULL", n);
        return 0;
    }
    for (int i = 0; i < n; i++) {
        size_t length = names[i] ? strlen(names[i]) : 0;
        bool bad = length == 0 || length > LONGEST_NAME - 4;
        for (int k = 0; k < i && !bad; k++) {
            bad = strcmp(names[i], names[k]) == 0;
        }
        if (bad) {
            tn__raise(TN_EVALUE, "npz_save", "name %d is empty, too long, or that of another array",
                      i);
            return 0;
        }
        list_bytes += CENTRAL_BYTES + length + 4;
    }
    return list_bytes;
}

tn_status tn_npz_save(const char *const *names, tn_tensor *const *tensors, int n, const char *path,
                      bool compressed) {
    size_t list_bytes = tn__pending() ? 0 : check_names(names, tensors, n);
    npz_writer w = {.compressed = compressed};
    if (list_bytes == 0) { return tn_error(); }
    w.list = tn__malloc_for(list_bytes, "npz_save");
    if (!w.list) { return TN_ENOMEM; }
    if (!tn__file_begin(&w.file, path, "npz_save")) {
        free(w.list);
        return tn_error();
    }
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *here = host_array(tensors[i]);
        ok = !tn_is_inert(here) && put_array(&w, names[i], here);
    }
    if (ok) { put_end(&w, n); }
    free(w.list);
    if (!ok) {
        tn__file_abandon(&w.file);
        return tn_error();
    }
    return tn__file_commit(&w.file);
}
