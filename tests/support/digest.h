/* Gives a checkpoint that a test has changed its new digest. */
#ifndef TERN_TESTS_SUPPORT_DIGEST_H
#define TERN_TESTS_SUPPORT_DIGEST_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* io/safetensors.h defines the digest; this is a second implementation of it. */
static inline void put_digest(uint8_t *file, size_t bytes) {
    static const char before[] = "{\"__metadata__\":{\"digest\":\"";
    size_t at = 8 + sizeof(before) - 1;
    if (bytes < at + 32 || memcmp(file + 8, before, sizeof(before) - 1) != 0) { return; }
    memset(file + at, '0', 32);
    XXH128_hash_t hash = XXH3_128bits(file, bytes);
    char digits[33];
    snprintf(digits, sizeof(digits), "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    memcpy(file + at, digits, 32);
}

#endif
