/* Images as a PNG file: side by side, or in memory.
 *
 * A file is a signature and chunks: length, name, data, checksum, all numbers big-endian. The rows
 * of pixels, each after a byte that says how it is filtered (0: not), are compressed as one zlib
 * stream.
 */
#include "io/png.h"

#include "core/error.h"
#include "core/memory.h"
#include "tern/io.h"
#include "tern/sys/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* ---- The format ------------------------------------------------------------------------------ */

enum { CHUNK_FRAME = 12, SIGNATURE = 8, HEADER = 13 };

static unsigned char *put_number(unsigned char *to, uint32_t number) {
    for (int i = 0; i < 4; i++) {
        to[i] = (unsigned char)(number >> (24 - 8 * i));
    }
    return to + 4;
}

/* Completes a chunk whose data are at to + 8 already. Returns its end. */
static unsigned char *close_chunk(unsigned char *to, const char *name, size_t bytes) {
    put_number(to, (uint32_t)bytes);
    memcpy(to + 4, name, 4);
    uint32_t sum = (uint32_t)crc32_z(0, to + 4, bytes + 4);
    return put_number(to + 8 + bytes, sum);
}

static unsigned char *write_header(unsigned char *to, int64_t width, int64_t height, int channels) {
    memcpy(to, "\x89PNG\r\n\x1a\n", SIGNATURE);
    to += SIGNATURE;
    unsigned char *data = put_number(put_number(to + 8, (uint32_t)width), (uint32_t)height);
    unsigned char kind = channels == 3 ? 2 : 0; /* 8 bits per channel; deflate, no interlacing */
    memcpy(data, (unsigned char[]){8, kind, 0, 0, 0}, 5);
    return close_chunk(to, "IHDR", HEADER);
}

unsigned char *tn__png_encode(const unsigned char *rows, int64_t width, int64_t height,
                              int channels, size_t *bytes, const char *operation) {
    int64_t most = 1 << 30; /* bytes in total: zlib and the chunk's length have 31 bits */
    if (width < 1 || height < 1 || width > most / 4 || height > most / (3 * width + 1)) {
        tn__raise(TN_EVALUE, operation, "a picture of %lld x %lld pixels", (long long)width,
                  (long long)height);
        return NULL;
    }
    uLong length = (uLong)(height * (width * channels + 1));
    uLongf packed = compressBound(length);
    unsigned char *file = tn__malloc(SIGNATURE + HEADER + 3 * CHUNK_FRAME + packed);
    unsigned char *data = file ? write_header(file, width, height, channels) : NULL;
    if (!file || compress2(data + 8, &packed, rows, length, Z_DEFAULT_COMPRESSION) != Z_OK) {
        tn__raise(TN_ENOMEM, operation, "no memory for a picture");
        free(file);
        return NULL;
    }
    unsigned char *end = close_chunk(close_chunk(data, "IDAT", packed), "IEND", 0);
    *bytes = (size_t)(end - file);
    return file;
}

/* ---- Images ---------------------------------------------------------------------------------- */

enum { GAP = 2 }; /* pixels between images, black */
enum { MOST_NUMBERS = 1 << 28 };

/* A sheet of images: `columns` side by side, in as many rows as needed. */
typedef struct sheet {
    int64_t images, channels, height, width; /* of the tensor */
    int64_t columns, across, down;           /* in pixels, gaps included */
    int64_t row;                             /* bytes: a 0 and `across` pixels */
    unsigned char *rows;                     /* (down, row) */
} sheet;

/* False after raising. */
static bool make_sheet(const tn_tensor *images, int columns, sheet *s) {
    if (!tn__usable(images, "save_image")) { return false; }
    tn_dims d = tn_shape(images);
    if (d.ndim != 4 || (d.size[1] != 1 && d.size[1] != 3) || tn_count(images) == 0) {
        return tn__fail(TN_ESHAPE, "save_image",
                        "the images are %s but must be (images, 1 or 3 channels, height, width)",
                        tn_shape_text(images));
    }
    if (columns < 1 || tn_count(images) > MOST_NUMBERS) {
        return tn__fail(TN_EVALUE, "save_image",
                        "%d images side by side, with %lld numbers in total", columns,
                        (long long)tn_count(images));
    }
    *s = (sheet){d.size[0], d.size[1], d.size[2], d.size[3], columns, 0, 0, 0, NULL};
    s->columns = s->columns < s->images ? s->columns : s->images;
    int64_t rows = (s->images + s->columns - 1) / s->columns;
    s->across = s->columns * (s->width + GAP) + GAP;
    s->down = rows * (s->height + GAP) + GAP;
    s->row = s->across * s->channels + 1;
    s->rows = tn__calloc_for((size_t)s->down, (size_t)s->row, "save_image");
    return s->rows != NULL;
}

/* 0 to 1 as a byte; NaN is 0. */
static unsigned char byte_of(float x) {
    return x > 0.0F ? (unsigned char)lrintf(fminf(x, 1.0F) * 255.0F) : 0;
}

/* values (images, channels, height, width) */
static void fill_sheet(const sheet *s, const float *values) {
    for (int64_t i = 0; i < s->images; i++) {
        int64_t left = GAP + i % s->columns * (s->width + GAP);
        int64_t top = GAP + i / s->columns * (s->height + GAP);
        for (int64_t c = 0; c < s->channels; c++) {
            for (int64_t y = 0; y < s->height; y++) {
                unsigned char *to = s->rows + (top + y) * s->row + 1 + left * s->channels + c;
                for (int64_t x = 0; x < s->width; x++) {
                    to[x * s->channels] = byte_of(*values++);
                }
            }
        }
    }
}

tn_status tn_save_image(tn_tensor *images, const char *path, int columns) {
    sheet s;
    if (!make_sheet(images, columns, &s)) { return tn_error(); }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *values = tn_contiguous(tn_to(tn_cast(images, TN_F32), tn_cpu()));
    size_t bytes;
    unsigned char *file = NULL;
    if (!tn_is_inert(values)) {
        fill_sheet(&s, tn_data(values));
        file = tn__png_encode(s.rows, s.across, s.down, (int)s.channels, &bytes, "save_image");
    }
    free(s.rows);
    tn_status status = file ? tn_write_file(file, bytes, path) : tn_error();
    free(file);
    return status;
}
