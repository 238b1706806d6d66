/* NumPy arrays as datasets: rows of .npy files, read on demand, and of arrays in an archive, which
 * are in memory.
 *
 * Nothing is mapped (core/reader.h says why): a row is one read, which the system answers from its
 * cache, and a file that is truncated later is an error instead of a signal.
 */
#include "core/digest.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "data/identity.h"
#include "io/npy/array.h"
#include "tern/npy.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST_HEADER = 1 << 20 };

/* One file. */
typedef struct array {
    char *path;
    tn__reader reader;
    tn__npy_about about;
    int64_t rows;
    size_t elements; /* of a row */
} array;

typedef struct npy {
    tn_dataset base;
    array x, y; /* no y if it has no path */
    int files;
    tn_digest digest;
} npy;

/* ---- One file -------------------------------------------------------------------------------- */

static void close_array(array *a) {
    if (a->path) {
        tn__reader_close(&a->reader);
        free(a->path);
    }
}

/* Reads the header before the elements into a->about. */
static bool read_about(array *a) {
    const tn__reader *r = &a->reader;
    unsigned char first[TN__NPY_FIRST] = {0};
    size_t bytes = r->bytes < sizeof(first) ? r->bytes : sizeof(first);
    if (!tn__reader_get(r, 0, first, bytes)) { return false; }
    size_t before = tn__npy_before(first, r->bytes, a->path, r->operation);
    if (before > LONGEST_HEADER) {
        tn__raise(TN_EFORMAT, r->operation, "%s: its header has %zu bytes (at most %d)", a->path,
                  before, LONGEST_HEADER);
    }
    unsigned char *head = tn__pending() ? NULL : tn__malloc_for(before, r->operation);
    if (!head) { return false; }
    bool done = tn__reader_get(r, 0, head, before) &&
                tn__npy_look(head, before, r->bytes, &a->about, a->path, r->operation);
    free(head);
    return done;
}

static bool check_shape(array *a) {
    tn_dims dims = a->about.dims;
    if (dims.ndim == 0 || (a->about.fortran && dims.ndim > 1)) {
        return tn__fail(dims.ndim ? TN_EUNSUPPORTED : TN_ESHAPE, a->reader.operation, "%s %s",
                        a->path,
                        dims.ndim ? "is stored column by column (fortran_order): its rows are not "
                                    "contiguous; numpy.ascontiguousarray makes them so"
                                  : "has no dimensions: the first should count the examples");
    }
    a->rows = dims.size[0];
    a->elements = (size_t)tn_dims_count(tn_dims_from(dims.ndim - 1, dims.size + 1));
    return true;
}

static bool open_array(array *a, const char *path) {
    a->path = tn__strdup_for(path ? path : "", "npy_dataset");
    if (!a->path) { return false; }
    return tn__reader_open(&a->reader, path ? a->path : NULL, "npy_dataset") && read_about(a) &&
           check_shape(a);
}

/* Reads row i in our dtype. */
static bool read_row(const array *a, int64_t i, void *to) {
    const tn__npy_about *about = &a->about;
    size_t bytes = a->elements * about->each;
    size_t at = about->begin + (size_t)i * bytes;
    if (bytes == a->elements * tn_dtype_size(about->dtype)) { /* converted in place */
        bool done = tn__reader_get(&a->reader, at, to, bytes);
        if (done && (about->big || about->dtype == TN_BOOL)) {
            tn__npy_convert(about, to, a->elements, to);
        }
        return done;
    }
    unsigned char *row = tn__malloc_for(bytes, "npy_dataset");
    if (!row) { return false; }
    bool done = tn__reader_get(&a->reader, at, row, bytes);
    if (done) { tn__npy_convert(about, row, a->elements, to); }
    free(row);
    return done;
}

/* ---- The dataset ----------------------------------------------------------------------------- */

static tn_status npy_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const npy *d = (const npy *)self;
    bool done = read_row(&d->x, e.index, x) && (!y || read_row(&d->y, e.index, y));
    return done ? TN_OK : tn_error();
}

static bool digest_array(tn__digest *digest, const array *a) {
    enum { PAGES = 64 };
    tn__digest_add(digest, &a->reader.bytes, sizeof(a->reader.bytes));
    return tn__reader_digest(&a->reader, 0, a->reader.bytes, PAGES, digest);
}

static tn_status npy_digest(tn_dataset *self, char text[33]) {
    const npy *d = (const npy *)self;
    tn__digest *digest = tn__digest_new("npy_dataset");
    if (!digest) { return TN_ENOMEM; }
    if (digest_array(digest, &d->x) && (!d->y.path || digest_array(digest, &d->y))) {
        tn__digest_text(digest, text);
    }
    tn__digest_free(digest);
    return tn_error();
}

static const tn_field npy_fields[] = {
    TN_FIELD(npy, files),
    TN_FIELD(npy, digest),
    {0},
};

static void npy_free(tn_dataset *self) {
    npy *d = (npy *)self;
    close_array(&d->x);
    close_array(&d->y);
    free(d);
}

static tn_dims row_dims(const array *a) {
    return tn_dims_from(a->about.dims.ndim - 1, a->about.dims.size + 1);
}

static bool open_arrays(npy *d, const char *x_path, const char *y_path) {
    if (!open_array(&d->x, x_path) || (y_path && !open_array(&d->y, y_path))) { return false; }
    if (y_path && d->x.rows != d->y.rows) {
        return tn__fail(TN_ESHAPE, "npy_dataset", "%s has %lld rows but %s has %lld", d->x.path,
                        (long long)d->x.rows, d->y.path, (long long)d->y.rows);
    }
    return true;
}

tn_dataset *tn_npy_dataset(const char *x_path, const char *y_path) {
    npy *d = tn__pending() ? NULL : tn__calloc_for(1, sizeof(*d), "npy_dataset");
    if (!d) { return NULL; }
    if (!open_arrays(d, x_path, y_path)) {
        npy_free(&d->base);
        return NULL;
    }
    d->base = (tn_dataset){.kind = "npy",
                           .size = d->x.rows,
                           .x_dims = row_dims(&d->x),
                           .x_dtype = d->x.about.dtype,
                           .y_dims = {.ndim = -1},
                           .get = npy_get,
                           .fields = npy_fields,
                           .digest = npy_digest,
                           .free = npy_free};
    d->files = 1 + (y_path != NULL);
    if (y_path) {
        d->base.y_dims = row_dims(&d->y);
        d->base.y_dtype = d->y.about.dtype;
    }
    return &d->base;
}

tn_dataset *tn_npz_dataset(const char *path, const char *x, const char *y) {
    TN_SCOPE;
    tn_npz *f = tn_npz_open(path);
    tn_tensor *arrays[2] = {0};
    if (f) {
        arrays[0] = tn_npz_get(f, x);
        arrays[1] = y ? tn_npz_get(f, y) : NULL;
    }
    tn_npz_close(f);
    return tn__pending() ? NULL : tn_tensor_dataset(arrays[0], arrays[1]);
}
