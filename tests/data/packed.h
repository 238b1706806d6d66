/* Compressed files for tests. */
#ifndef TERN_TESTS_DATA_PACKED_H
#define TERN_TESTS_DATA_PACKED_H

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "tests/support/temp.h"

typedef struct packed {
    size_t bytes;
    unsigned char *at;
} packed;

static inline packed pack_gzip(const void *data, size_t bytes) {
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)data, .avail_in = (unsigned)bytes};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    packed p = {.bytes = deflateBound(&z, bytes) + 64};
    p.at = malloc(p.bytes);
    assert_non_null(p.at);
    z.next_out = p.at;
    z.avail_out = (unsigned)p.bytes;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    p.bytes -= z.avail_out;
    deflateEnd(&z);
    return p;
}

static inline packed pack_zstd(const void *data, size_t bytes) {
    packed p = {.bytes = ZSTD_compressBound(bytes)};
    p.at = malloc(p.bytes);
    assert_non_null(p.at);
    p.bytes = ZSTD_compress(p.at, p.bytes, data, bytes, 3);
    assert_false(ZSTD_isError(p.bytes));
    return p;
}

/* Writes its first `bytes` bytes `times` times in a row. Frees it. */
static inline void packed_write(const char *path, packed p, size_t bytes, int times) {
    unsigned char *all = malloc(bytes * (size_t)times + 1);
    assert_non_null(all);
    for (int i = 0; i < times; i++) {
        memcpy(all + (size_t)i * bytes, p.at, bytes);
    }
    temp_write(path, all, bytes * (size_t)times);
    free(all);
    free(p.at);
}

#endif
