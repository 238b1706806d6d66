/* Handwritten digits from the files of the MNIST distribution.
 *
 * An idx file: the bytes 0 0 8 (unsigned bytes follow) and the number of dimensions, each dimension
 * as a big-endian 32-bit number, then the elements; the file may be compressed
 * (data/corpus/stream.h). The header is not trusted: memory grows only as bytes arrive, and the
 * file has to end where the header says.
 */
#include "core/buffer.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/corpus/stream.h"
#include "data/rows.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, MOST_EXAMPLES = 1000000, CHUNK = 1 << 20 };

typedef struct idx {
    uint8_t *data; /* of the file: a header and so many examples */
    int64_t count;
} idx;

/* ---- One idx file ---------------------------------------------------------------------------- */

typedef struct idx_kind {
    const char *names[2]; /* of tests and of training */
    const char *what;
    uint8_t head[16]; /* bytes 4 to 7 are the number of examples */
    size_t head_bytes, each;
} idx_kind;

static const idx_kind of_images = {
    .names = {"t10k-images-idx3-ubyte", "train-images-idx3-ubyte"},
    .what = "images of 28 x 28 bytes",
    .head = {0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, SIDE, 0, 0, 0, SIDE},
    .head_bytes = 16,
    .each = PIXELS,
};
static const idx_kind of_labels = {
    .names = {"t10k-labels-idx1-ubyte", "train-labels-idx1-ubyte"},
    .what = "labels of a byte",
    .head = {0, 0, 8, 1},
    .head_bytes = 8,
    .each = 1,
};

/* `name` in `folder`, or its .gz. The caller frees. NULL after raising. */
static char *idx_find(const char *folder, const char *name) {
    for (int i = 0; i < 2; i++) {
        char *path = tn__asprintf("mnist", "%s/%s%s", folder, name, i ? ".gz" : "");
        if (!path || access(path, F_OK) == 0 || errno != ENOENT) { return path; }
        free(path);
    }
    tn__raise(TN_EIO, "mnist", "%s/%s[.gz]: %s", folder, name, strerror(ENOENT));
    return NULL;
}

/* Reads the file to its end. False after raising. */
static bool idx_get(idx *f, tn__stream *s, size_t most, size_t *bytes) {
    int64_t capacity = 0, got = 0;
    do {
        if (!tn__grow(&f->data, (int64_t)*bytes + CHUNK, &capacity, 1, "mnist")) { return false; }
        got = tn__stream_read(s, f->data + *bytes, (size_t)capacity - *bytes);
        *bytes += got > 0 ? (size_t)got : 0;
        if (*bytes > most) {
            return tn__fail(TN_EFORMAT, "mnist", "%s has more than %d examples", s->file.path,
                            MOST_EXAMPLES);
        }
    } while (got >= 0 && *bytes == (size_t)capacity);
    return got >= 0;
}

static bool idx_check(idx *f, const char *path, size_t bytes, const idx_kind *k) {
    uint32_t count;
    if (bytes < k->head_bytes || memcmp(f->data, k->head, 4) != 0 ||
        memcmp(f->data + 8, k->head + 8, k->head_bytes - 8) != 0) {
        return tn__fail(TN_EFORMAT, "mnist", "%s is not an idx file of %s", path, k->what);
    }
    memcpy(&count, f->data + 4, sizeof(count));
    f->count = be32toh(count);
    if (bytes != k->head_bytes + (size_t)f->count * k->each) {
        return tn__fail(TN_EFORMAT, "mnist", "%s: its header says %lld %s, but %zu bytes follow",
                        path, (long long)f->count, k->what, bytes - k->head_bytes);
    }
    return true;
}

static bool idx_read(idx *f, const char *folder, const idx_kind *k, bool train) {
    tn__stream s;
    size_t bytes = 0, most = k->head_bytes + MOST_EXAMPLES * k->each;
    char *path = idx_find(folder, k->names[train]);
    bool open = path && tn__stream_open(&s, path, "mnist");
    bool done = open && idx_get(f, &s, most, &bytes) && idx_check(f, path, bytes, k);
    if (open) { tn__stream_close(&s); }
    free(path);
    return done;
}

/* ---- The dataset ----------------------------------------------------------------------------- */

static bool check_examples(const idx *images, const idx *labels, const char *folder) {
    const uint8_t *label = labels->data + of_labels.head_bytes;
    if (images->count != labels->count) {
        return tn__fail(TN_EFORMAT, "mnist", "%s has %lld images but %lld labels", folder,
                        (long long)images->count, (long long)labels->count);
    }
    for (int64_t i = 0; i < labels->count; i++) {
        if (label[i] > 9) {
            return tn__fail(TN_EFORMAT, "mnist", "%s: label %lld is %d, not a digit", folder,
                            (long long)i, label[i]);
        }
    }
    return true;
}

/* What follows the header. */
static tn_tensor *idx_elements(idx *f, const idx_kind *k, tn_dims dims) {
    int64_t head = (int64_t)k->head_bytes, bytes = f->count * (int64_t)k->each;
    tn_tensor *all = tn__rows_adopt(&f->data, TN_DIMS(head + bytes), TN_U8);
    return tn_reshape(tn_narrow(all, 0, head, bytes), dims);
}

static tn_dataset *make_dataset(idx *images, idx *labels) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = idx_elements(images, &of_images, TN_DIMS(images->count, 1, SIDE, SIDE));
    return tn__rows_dataset("mnist", x, idx_elements(labels, &of_labels, TN_DIMS(labels->count)),
                            NULL);
}

tn_dataset *tn_mnist(const char *folder, bool train) {
    idx images = {0}, labels = {0};
    if (!folder) {
        tn__raise(TN_EVALUE, "mnist", "the folder is NULL");
        return NULL;
    }
    bool done = idx_read(&images, folder, &of_images, train) &&
                idx_read(&labels, folder, &of_labels, train) &&
                check_examples(&images, &labels, folder);
    tn_dataset *d = done ? make_dataset(&images, &labels) : NULL;
    free(images.data);
    free(labels.data);
    return d;
}
