/* What identifies a dataset in checkpoints: its fields, and those of the datasets below it. */
#ifndef TERN_DATA_IDENTITY_H
#define TERN_DATA_IDENTITY_H

#include "tensor/fields.h"
#include "tern/data.h"

/* A digest of memory that does not change. */
static inline tn_digest tn__digest_over(const void *data, size_t bytes) {
    return (tn_digest){.data = data ? data : "", .bytes = bytes};
}

/* Writes what identifies d. False after raising. */
TN_API bool tn__dataset_put(tn__members *m, tn_dataset *d, const char *operation);

#endif
