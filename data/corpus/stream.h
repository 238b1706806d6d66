/* The bytes of a file from its beginning to its end, in bounded memory: as they are, or taken out
 * of gzip (also several members one after the other) or zstd (several frames). The file's first
 * bytes say which; a name that ends with .gz or .zst and something else in it is an error, and so
 * is truncated compressed data. */
#ifndef TERN_DATA_CORPUS_STREAM_H
#define TERN_DATA_CORPUS_STREAM_H

#include "core/reader.h"
#include "data/corpus/kind.h"

typedef struct tn__stream {
    tn__reader file;
    tn__kind kind;                 /* of the bytes that come out */
    size_t at;                     /* read of the file so far */
    struct tn__unpacker *unpacker; /* NULL: bytes come as they are */
} tn__stream;

/* False after raising. */
bool tn__stream_open(tn__stream *s, const char *path, const char *operation);

/* Up to `size` bytes; fewer only at the end. How many, or -1 after raising. */
int64_t tn__stream_read(tn__stream *s, void *to, size_t size);

void tn__stream_close(tn__stream *s); /* one that is not open, too */

#endif
