/* The bytes of a file from its beginning to its end, in bounded memory: as they are, or
 * decompressed from gzip (also of several members, and zeros behind each) or zstd (also of several
 * frames). The file's first bytes say which; a file named .gz or .zst that is not compressed is an
 * error, and so are truncated compressed data and anything else behind them. */
#ifndef TERN_DATA_CORPUS_STREAM_H
#define TERN_DATA_CORPUS_STREAM_H

#include "core/reader.h"
#include "data/corpus/kind.h"

typedef struct tn__stream {
    tn__reader file;
    tn__kind kind;                 /* of the decompressed bytes */
    size_t at;                     /* bytes of the file read so far */
    struct tn__unpacker *unpacker; /* NULL: the file is not compressed */
} tn__stream;

/* False after raising. */
bool tn__stream_open(tn__stream *s, const char *path, const char *operation);

/* Up to `size` bytes; fewer only at the end. Returns how many, or -1 after raising. */
int64_t tn__stream_read(tn__stream *s, void *to, size_t size);

void tn__stream_close(tn__stream *s); /* also one that is not open */

#endif
