/* Handwritten digits from the files of the MNIST distribution.
 *
 * An idx file: the bytes 0 0 8 (unsigned bytes follow) and the number of dimensions, each dimension
 * as a big-endian 32-bit number, then the elements; the file may be compressed
 * (data/corpus/stream.h). The header is not trusted: memory grows only as bytes arrive, and the
 * file has to end where the header says.
 */
#include "core/error.h"
#include "core/memory.h"
#include "data/corpus/stream.h"
#include "data/identity.h"
#include "tern/data.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, MOST_EXAMPLES = 1000000, CHUNK = 1 << 20 };

typedef struct mnist {
    tn_dataset base;
    uint8_t *pixels; /* (size, 28, 28) */
    uint8_t *labels; /* (size) */
    tn_digest pixels_digest, labels_digest;
} mnist;

/* ---- One idx file ---------------------------------------------------------------------------- */

typedef struct idx {
    tn__stream stream;
    char path[PATH_MAX];
} idx;

/* Reads exactly so many bytes. False after raising; `what` is what they are. */
static bool idx_get(idx *f, void *to, size_t bytes, const char *what) {
    int64_t got = tn__stream_read(&f->stream, to, bytes);
    if (got >= 0 && (size_t)got < bytes) {
        tn__raise(TN_EFORMAT, "mnist", "%s ends in the middle of its %s", f->path, what);
    }
    return got >= 0 && (size_t)got == bytes;
}

/* `name` in `folder`, or its .gz. */
static bool idx_find(idx *f, const char *folder, const char *name) {
    static const char *const endings[] = {"", ".gz"};
    for (int i = 0; i < 2; i++) {
        int length = snprintf(f->path, sizeof(f->path), "%s/%s%s", folder, name, endings[i]);
        if (length < 0 || (size_t)length >= sizeof(f->path)) {
            tn__raise(TN_EIO, "mnist", "the path of the folder is too long");
            return false;
        }
        if (access(f->path, F_OK) == 0 || errno != ENOENT) { return true; }
    }
    tn__raise(TN_EIO, "mnist", "%s/%s[.gz]: %s", folder, name, strerror(ENOENT));
    return false;
}

static uint32_t big_endian(const uint8_t *b) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Reads the header; the dimensions after the first must be `rest`. Returns the first, or -1. */
static int64_t idx_count(idx *f, int ndim, const uint32_t *rest) {
    uint8_t head[16];
    int bytes = 4 + 4 * ndim;
    if (!idx_get(f, head, (size_t)bytes, "header")) { return -1; }
    if (head[0] != 0 || head[1] != 0 || head[2] != 8 || head[3] != ndim) {
        tn__raise(TN_EFORMAT, "mnist",
                  "%s begins with %02x %02x %02x %02x, not 00 00 08 %02x (bytes, %d dimensions)",
                  f->path, head[0], head[1], head[2], head[3], ndim, ndim);
        return -1;
    }
    for (int i = 1; i < ndim; i++) {
        uint32_t size = big_endian(head + 4 + 4 * i);
        if (size != rest[i - 1]) {
            tn__raise(TN_EFORMAT, "mnist", "%s: dimension %d is %u, not %u", f->path, i, size,
                      rest[i - 1]);
            return -1;
        }
    }
    uint32_t count = big_endian(head + 4);
    if (count > MOST_EXAMPLES) {
        tn__raise(TN_EFORMAT, "mnist",
                  "%s says that it has %u examples; this reader takes %d at most", f->path, count,
                  MOST_EXAMPLES);
        return -1;
    }
    return count;
}

/* Exactly `bytes` elements, after which the file (and a .gz's checksum) must end. NULL after
 * raising. */
static uint8_t *idx_elements(idx *f, size_t bytes) {
    uint8_t *data = NULL;
    size_t capacity = 0, length = 0;
    while (length < bytes || !data) {
        capacity = capacity ? capacity * 2 : CHUNK;
        capacity = capacity < bytes ? capacity : bytes;
        uint8_t *larger = tn__realloc(data, capacity);
        if (!larger) {
            tn__raise(TN_ENOMEM, "mnist", "no memory for the %zu bytes of %s", bytes, f->path);
            free(data);
            return NULL;
        }
        data = larger;
        if (!idx_get(f, data + length, capacity - length, "elements")) {
            free(data);
            return NULL;
        }
        length = capacity;
    }
    uint8_t extra;
    int64_t got = tn__stream_read(&f->stream, &extra, 1);
    if (got == 0) { return data; }
    if (got > 0) {
        tn__raise(TN_EFORMAT, "mnist", "%s is longer than its header says (%zu elements)", f->path,
                  bytes);
    }
    free(data);
    return NULL;
}

/* Reads folder/name: (count, rest…) bytes. NULL after raising. */
static uint8_t *idx_read(const char *folder, const char *name, int ndim, const uint32_t *rest,
                         int64_t *count) {
    idx f;
    if (!idx_find(&f, folder, name) || !tn__stream_open(&f.stream, f.path, "mnist")) {
        return NULL;
    }
    uint8_t *data = NULL;
    *count = idx_count(&f, ndim, rest);
    if (*count >= 0) {
        size_t bytes = (size_t)*count;
        for (int i = 1; i < ndim; i++) {
            bytes *= rest[i - 1];
        }
        data = idx_elements(&f, bytes);
    }
    tn__stream_close(&f.stream);
    return data;
}

/* ---- The dataset ----------------------------------------------------------------------------- */

static tn_status mnist_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const mnist *d = (const mnist *)self;
    const uint8_t *from = d->pixels + e.index * PIXELS;
    float *image = x;
    for (int p = 0; p < PIXELS; p++) {
        image[p] = (float)from[p] / 255.0f;
    }
    *(int64_t *)y = d->labels[e.index];
    return TN_OK;
}

static const tn_field mnist_fields[] = {
    TN_FIELD_AS("digest of images", mnist, pixels_digest),
    TN_FIELD_AS("digest of labels", mnist, labels_digest),
    {0},
};

static void mnist_free(tn_dataset *self) {
    mnist *d = (mnist *)self;
    free(d->pixels);
    free(d->labels);
    free(d);
}

static bool mnist_read(mnist *d, const char *folder, bool train) {
    static const uint32_t image_dims[] = {SIDE, SIDE};
    int64_t images = 0, labels = 0;
    d->pixels = idx_read(folder, train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte", 3,
                         image_dims, &images);
    if (!d->pixels) { return false; }
    d->labels = idx_read(folder, train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte", 1,
                         NULL, &labels);
    if (!d->labels) { return false; }
    if (images != labels) {
        tn__raise(TN_EFORMAT, "mnist", "%s has %lld images but %lld labels", folder,
                  (long long)images, (long long)labels);
        return false;
    }
    for (int64_t i = 0; i < labels; i++) {
        if (d->labels[i] > 9) {
            tn__raise(TN_EFORMAT, "mnist", "%s: label %lld is %d, not a digit", folder,
                      (long long)i, d->labels[i]);
            return false;
        }
    }
    d->base.size = images;
    d->pixels_digest = tn__digest_over(d->pixels, (size_t)images * PIXELS);
    d->labels_digest = tn__digest_over(d->labels, (size_t)images);
    return true;
}

tn_dataset *tn_mnist(const char *folder, bool train) {
    mnist *d = folder ? tn__calloc(1, sizeof(*d)) : NULL;
    if (!d) {
        tn__raise(folder ? TN_ENOMEM : TN_EVALUE, "mnist", "%s",
                  folder ? "no memory" : "the folder is NULL");
        return NULL;
    }
    d->base = (tn_dataset){.kind = "mnist",
                           .x_dims = TN_DIMS(1, SIDE, SIDE),
                           .y_dims = TN_DIMS(),
                           .x_dtype = TN_F32,
                           .y_dtype = TN_I64,
                           .get = mnist_get,
                           .fields = mnist_fields,
                           .free = mnist_free};
    if (!mnist_read(d, folder, train)) {
        mnist_free(&d->base);
        return NULL;
    }
    return &d->base;
}
