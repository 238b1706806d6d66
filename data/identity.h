/* The digest by which a dataset knows its data again: made once, when somebody asks.
 *
 * Several threads may ask at once, where each has a loader of its own over one dataset. Then each
 * of them makes it, and the first notes it.
 */
#ifndef TERN_DATA_IDENTITY_H
#define TERN_DATA_IDENTITY_H

#include "core/digest.h"

#include <stdbool.h>

typedef struct tn__digits {
    char at[TN__DIGEST_DIGITS + 1];
} tn__digits;

typedef enum tn__identity_state {
    TN__IDENTITY_UNKNOWN, /* nobody has asked yet */
    TN__IDENTITY_COMING,  /* somebody notes it now */
    TN__IDENTITY_KNOWN
} tn__identity_state;

/* Zeros to begin with. */
typedef struct tn__identity {
    tn__digits digits;
    int state; /* atomic */
} tn__identity;

/* False, and nothing in *digits, when it is not known yet. */
static inline bool tn__identity_known(const tn__identity *id, tn__digits *digits) {
    bool known = __atomic_load_n(&id->state, __ATOMIC_ACQUIRE) == TN__IDENTITY_KNOWN;
    if (known) {
        *digits = id->digits;
    }
    return known;
}

static inline void tn__identity_note(tn__identity *id, const tn__digits *digits) {
    int unknown = TN__IDENTITY_UNKNOWN;
    if (__atomic_compare_exchange_n(&id->state, &unknown, TN__IDENTITY_COMING, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        id->digits = *digits;
        __atomic_store_n(&id->state, TN__IDENTITY_KNOWN, __ATOMIC_RELEASE);
    }
}

static inline tn__digits tn__identity_of(tn__identity *id, const void *data, size_t bytes) {
    tn__digits digits;
    if (!tn__identity_known(id, &digits)) {
        tn__digest_of(data, bytes, digits.at);
        tn__identity_note(id, &digits);
    }
    return digits;
}

#endif
