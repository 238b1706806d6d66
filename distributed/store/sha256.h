/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104) for the proof that both ends of a connection know the job's
 * token. Short messages only: written to be read, not to be fast. */
#ifndef TERN_DISTRIBUTED_STORE_SHA256_H
#define TERN_DISTRIBUTED_STORE_SHA256_H

#include "tern/core.h"

enum { TN__DIGEST = 32, TN__SHA256_BLOCK = 64 };

typedef struct tn__sha256 {
    uint32_t state[8];
    uint64_t bytes; /* so far */
    uint8_t block[TN__SHA256_BLOCK];
} tn__sha256;

TN_API void tn__sha256_begin(tn__sha256 *s);
TN_API void tn__sha256_add(tn__sha256 *s, const void *data, size_t bytes);
TN_API void tn__sha256_end(tn__sha256 *s, uint8_t digest[TN__DIGEST]);

TN_API void tn__hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                     uint8_t digest[TN__DIGEST]);

#endif
