/* The digest of bytes: XXH3, 128 bits. It finds damage and tells contents apart; it is not a
 * signature. */
#ifndef TERN_CORE_DIGEST_H
#define TERN_CORE_DIGEST_H

#include <stddef.h>

enum { TN__DIGEST_DIGITS = 32 };

/* Writes the digest of one block to digits[TN__DIGEST_DIGITS + 1]. Cannot fail. */
void tn__digest_of(const void *data, size_t bytes, char *digits);

/* Of bytes that arrive in pieces. */
typedef struct tn__digest tn__digest;              /* XXH3_state_t */
tn__digest *tn__digest_new(const char *operation); /* NULL after raising TN_ENOMEM */
void tn__digest_reset(tn__digest *d);
void tn__digest_add(tn__digest *d, const void *data, size_t bytes);
void tn__digest_text(const tn__digest *d, char *digits); /* [TN__DIGEST_DIGITS + 1] */
void tn__digest_free(tn__digest *d);

#endif
