/* The digest by which a dataset knows its data again: made once, when somebody asks. */
#ifndef TERN_DATA_IDENTITY_H
#define TERN_DATA_IDENTITY_H

#include "core/digest.h"

typedef struct tn__identity {
    char digits[TN__DIGEST_DIGITS + 1]; /* "": not yet */
} tn__identity;

static inline const char *tn__identity_of(tn__identity *id, const void *data, size_t bytes) {
    if (!id->digits[0]) {
        tn__digest_of(data, bytes, id->digits);
    }
    return id->digits;
}

#endif
