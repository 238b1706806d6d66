/* Struct members listed in tables of fields (tern/field.h), written as text and read back.
 *
 *     tn__buffer j = {.operation = operation};
 *     tn__members m = tn__members_begin(&j);           {
 *     tn__fields_put(&m, fields, &options, false);     {"heads":4,"causal":true
 *     tn__members_end(&m);                             {"heads":4,"causal":true}
 *
 * Floating-point numbers get the shortest text that reads back; the caller ensures a '.'
 * (text/plain_numbers.h).
 */
#ifndef TERN_TENSOR_FIELDS_H
#define TERN_TENSOR_FIELDS_H

#include "tern/field.h"
#include "text/json_write.h"

typedef struct tn__members {
    tn__buffer *to;
    size_t from; /* where the object begins */
} tn__members;

TN_API tn__members tn__members_begin(tn__buffer *to);
TN_API void tn__members_end(tn__members *m);

/* One member. A name that is already there gets a number: "crop 2". The value is a number or a word
 * as written in JSON, or any string, which loses all but printable ASCII. */
TN_API void tn__member_put(tn__members *m, const char *name, const char *value, bool text);

/* The name of a member that occurs once; the caller puts its value. */
TN_API void tn__member_name(tn__members *m, const char *name);

/* The members of `at` that matter only for training, or the others. */
TN_API void tn__fields_put(tn__members *m, const tn_field *fields, const void *at, bool training);

/* "0.5 3 0": only the values, separated by spaces; and back, where a name is a word of printable
 * ASCII. NULL, and *text is what comes after the last word; or the field whose word, at *text, does
 * not fit. */
TN_API void tn__fields_put_words(tn__buffer *to, const tn_field *fields, const void *at);
TN_API const tn_field *tn__fields_read_words(const tn_field *fields, void *at, const char **text);

/* The value of a member that is one integer or bool, and the sizes of one that has several. False:
 * it is neither. */
bool tn__field_whole(const tn_field *f, const void *from, int64_t *number);
tn_dims tn__field_sizes(const tn_field *f, const void *from);

/* A digest is known when its text is set. Several threads may set it; the first one does. */
bool tn__digest_known(const tn_digest *d);
void tn__digest_note(tn_digest *d, const char *text);

/* Whether all numbers are in their ranges; otherwise text says which is not: "eps is -1 (at least
 * 0)". */
TN_API bool tn__fields_fit(const tn_field *fields, const void *at, char *text, size_t size);
/* What the field may be: "0 to below 1", "one of gelu, relu". */
TN_API void tn__field_range(const tn_field *f, char *text, size_t size);

/* Reads a value's text into the member of `at`: a number or a bool. False: it
 * is neither, or out of range; *at may have changed. */
TN_API bool tn__field_read(const tn_field *f, void *at, const char *text);

#endif
