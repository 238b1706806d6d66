/* Pictures in memory, from PNG and JPEG files. */
#ifndef TERN_DATA_PICTURE_H
#define TERN_DATA_PICTURE_H

#include "tern/tensor.h"

/* Zeros to begin with. */
typedef struct tn__picture {
    int64_t height, width;
    uint8_t *pixels; /* (height, width, 3): red, green, blue */
} tn__picture;

/* The picture in a file, as PIL's Image.open(path).convert("RGB") returns it. False after
 * raising. */
bool tn__picture_read(tn__picture *p, const char *path, const char *operation);
void tn__picture_free(tn__picture *p);

/* Copies the pixels to planes: x is (3, height, width), u8, or f32 in [0, 1]. */
void tn__picture_planes(const tn__picture *p, tn_dtype dtype, void *x);

/* ---- For the decoders ------------------------------------------------------------------------ */

/* A file that is being decoded. */
typedef struct tn__picture_file {
    const unsigned char *bytes;
    size_t count;
    const char *path, *operation;
} tn__picture_file;

/* Both fill p. False after raising. */
bool tn__png_decode(const tn__picture_file *f, tn__picture *p);
bool tn__jpeg_decode(const tn__picture_file *f, tn__picture *p);

/* Allocates the pixels that a header announces, if a file of this length can contain that many at
 * `density` pixels per byte. False after raising. */
bool tn__picture_begin(const tn__picture_file *f, tn__picture *p, int64_t height, int64_t width,
                       size_t density);

#endif
