#include "core/digest.h"

#include "core/error.h"

#include <stdio.h>
#include <xxhash.h>

static void write_digits(XXH128_hash_t hash, char *digits) {
    snprintf(digits, TN__DIGEST_DIGITS + 1, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

void tn__digest_of(const void *data, size_t bytes, char *digits) {
    write_digits(XXH3_128bits(data, bytes), digits);
}

tn__digest *tn__digest_new(const char *operation) {
    XXH3_state_t *state = XXH3_createState();
    if (state) {
        XXH3_128bits_reset(state);
    } else {
        tn__raise(TN_ENOMEM, operation, "no memory for a digest");
    }
    return (tn__digest *)state;
}

void tn__digest_reset(tn__digest *d) {
    XXH3_128bits_reset((XXH3_state_t *)d);
}

void tn__digest_add(tn__digest *d, const void *data, size_t bytes) {
    XXH3_128bits_update((XXH3_state_t *)d, data, bytes);
}

void tn__digest_text(const tn__digest *d, char *digits) {
    write_digits(XXH3_128bits_digest((const XXH3_state_t *)d), digits);
}

void tn__digest_free(tn__digest *d) {
    XXH3_freeState((XXH3_state_t *)d);
}
