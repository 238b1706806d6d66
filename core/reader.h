/* Reading files.
 *
 * A path may name something other than a file: opening a FIFO hangs, a device has no end. And
 * others may write a file while it is read. So: regular files only, nothing blocks, a file that
 * grows is read up to the size it had when it was opened, and one that was truncated is an error.
 * For the last of these nothing is mapped unless the program asks (tn_safetensors_map,
 * tn_lm_load_options): touching a mapped page after the new end of a truncated file is a SIGBUS, at
 * any later time.
 *
 *     tn__reader r;
 *     if (!tn__reader_open(&r, path, "load")) { return tn_error(); }
 *     bool done = tn__reader_get(&r, 0, head, sizeof(head));
 *     tn__reader_close(&r);
 */
#ifndef TERN_CORE_READER_H
#define TERN_CORE_READER_H

#include "core/digest.h"
#include "tern/core.h"

typedef struct tn__reader {
    int fd;                /* -1: not open */
    size_t bytes;          /* in the file when it was opened */
    const char *path;      /* the caller's, for messages */
    const char *operation; /* static text */
} tn__reader;

/* False after raising TN_EVALUE (the path is NULL) or TN_EIO, which says what is there instead. */
TN_API bool tn__reader_open(tn__reader *r, const char *path, const char *operation);

/* Exactly `bytes` from `at` on. False after raising TN_EIO. Any number of threads at once.
 */
TN_API bool tn__reader_get(const tn__reader *r, size_t at, void *to, size_t bytes);

/* Adds `pages` pages of 4096 bytes to a digest, of the `bytes` from `at` on: the first, the last
 * and evenly spaced ones between them; everything, if there are no more. False after raising
 * TN_EIO. */
TN_API bool tn__reader_digest(const tn__reader *r, size_t at, size_t bytes, size_t pages,
                              tn__digest *d);

TN_API void tn__reader_close(tn__reader *r); /* even if it is not open */

/* A whole file, and a 0 after it; the caller frees. NULL after raising, TN_ENOMEM too. A file
 * without a size, like those in /proc, is read to its end, which must come within 64 MiB. */
TN_API char *tn__read_whole(const char *path, size_t *bytes, const char *operation);

#endif
