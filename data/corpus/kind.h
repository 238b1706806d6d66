/* What a file is, by its first bytes: how to read it, or what to call it when it is wrong. */
#ifndef TERN_DATA_CORPUS_KIND_H
#define TERN_DATA_CORPUS_KIND_H

#include "tern/core.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TN__KIND_BYTES = 4096 }; /* of the beginning; more would not help */

typedef enum tn__form {
    TN__FORM_TEXT,   /* nothing speaks against it */
    TN__FORM_GZIP,   /* RFC 1952 */
    TN__FORM_ZSTD,   /* RFC 8878 */
    TN__FORM_TOKENS, /* a shard with a head (shards.h) */
    TN__FORM_OTHER,  /* known, and neither text nor tokens */
    TN__FORM_BINARY, /* with zero bytes, which text does not have; tokens without a head, too */
} tn__form;

typedef struct tn__kind {
    tn__form form;
    const char *is; /* "a NumPy array": what follows "FILE is" */
} tn__kind;

/* Of a file of `size` bytes that begins with these. */
TN_API tn__kind tn__kind_of(const void *start, size_t bytes, uint64_t size);

/* Whether there is no byte that text does not have. Tokens are below 8192 most of the time, so that
 * the upper byte of a pair is a control character; 256 bytes of random tokens look like text once
 * in 10^13. */
bool tn__looks_like_text(const void *start, size_t bytes);

#endif
