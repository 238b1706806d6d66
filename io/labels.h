/* The strings of a JSON object, by key: a file's metadata. They point into the JSON and live as
 * long. */
#ifndef TERN_IO_LABELS_H
#define TERN_IO_LABELS_H

#include "tern/core.h"
#include "text/json.h"

typedef struct tn__labels {
    const tn__json **at; /* [count], by key */
    int count;
} tn__labels;

/* From an object whose members are strings with distinct keys. TN_ENOMEM, or TN_EFORMAT with the
 * key and what is wrong with it (*wrong is static); raises nothing. Call tn__labels_free in any
 * case. */
tn_status tn__labels_read(tn__labels *t, const tn__json *object, const char **key,
                          const char **wrong);
void tn__labels_free(tn__labels *t);

/* NULL if there is none. */
const char *tn__labels_get(const tn__labels *t, const char *key);

#endif
