/* What a file is, by its first bytes: how to read it, or what to call it when it is wrong. */
#ifndef TERN_DATA_CORPUS_KIND_H
#define TERN_DATA_CORPUS_KIND_H

#include "tern/core.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TN__KIND_BYTES = 4096 }; /* of the beginning; more would not help */

typedef enum tn__form {
    TN__FORM_TEXT,   /* nothing suggests anything else */
    TN__FORM_GZIP,   /* RFC 1952 */
    TN__FORM_ZSTD,   /* RFC 8878 */
    TN__FORM_TOKENS, /* a shard with a header (shards.h) */
    TN__FORM_OTHER,  /* known, but neither text nor tokens */
    TN__FORM_BINARY, /* has zero bytes, unlike text; also tokens without a header */
} tn__form;

typedef struct tn__kind {
    tn__form form;
    const char *is; /* "a NumPy array": what follows "FILE is" */
} tn__kind;

/* The kind of a file of `size` bytes that begins with these. */
TN_API tn__kind tn__kind_of(const void *start, size_t bytes, uint64_t size);

/* Whether every byte is one that text may have. Most 16-bit tokens are below 8192, so their upper
 * byte is a control character; 256 bytes of random tokens look like text once in 10^13. */
bool tn__looks_like_text(const void *start, size_t bytes);

#endif
