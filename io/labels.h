/* The texts of a JSON object, by key: the metadata of a file. They are in the memory of the JSON,
 * and live as long. */
#ifndef TERN_IO_LABELS_H
#define TERN_IO_LABELS_H

#include "tern/core.h"
#include "text/json.h"

typedef struct tn__labels {
    const tn__json **at; /* [count], by key */
    int count;
} tn__labels;

/* From an object whose members are texts, of as many keys. TN_ENOMEM, or TN_EFORMAT with what is
 * wrong with which key (*wrong is static text); raises nothing. tn__labels_free in any case. */
tn_status tn__labels_read(tn__labels *t, const tn__json *object, const char **key,
                          const char **wrong);
void tn__labels_free(tn__labels *t);

/* NULL: there is none. */
const char *tn__labels_get(const tn__labels *t, const char *key);

#endif
