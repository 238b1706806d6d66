/* Pictures as PNG (ISO/IEC 15948), in memory. */
#ifndef TERN_IO_PNG_H
#define TERN_IO_PNG_H

#include "tern/core.h"

/* rows: `height` of them, each a 0 (not filtered) and then `width` pixels of `channels` bytes, 1
 * (grey) or 3 (red, green, blue). Returns the file, of *bytes; the caller frees it. NULL after
 * TN_ENOMEM, or TN_EVALUE for sizes that the format cannot hold. */
unsigned char *tn__png_encode(const unsigned char *rows, int64_t width, int64_t height,
                              int channels, size_t *bytes, const char *operation);

#endif
