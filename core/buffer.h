/* Bytes, or a string, that grow. After a failure the calls do nothing; check `failed` once, at the
 * end:
 *
 *     tn__buffer b = {.operation = "describe"};
 *     tn__buffer_format(&b, "%s: %d", name, n);
 *     tn__buffer_text(&b, "\n");
 *     return tn__buffer_take(&b); // NULL after raising
 */
#ifndef TERN_CORE_BUFFER_H
#define TERN_CORE_BUFFER_H

#include "tern/core.h"

typedef struct tn__buffer {
    char *at;              /* the bytes and a 0 after them; NULL: none yet */
    size_t bytes;          /* without that 0 */
    int64_t capacity;      /* of the memory at `at` */
    const char *operation; /* for TN_ENOMEM; NULL: not raised */
    bool failed;           /* out of memory: what was appended since is missing */
} tn__buffer;

/* These append; false when the buffer has failed, now or before. */
TN_API bool tn__buffer_add(tn__buffer *b, const void *from, size_t bytes);
TN_API bool tn__buffer_text(tn__buffer *b, const char *text);
TN_API bool tn__buffer_format(tn__buffer *b, const char *format, ...) TN_PRINTF(2, 3);

/* Makes sure that `more` bytes and a 0 can be appended; false as above. */
TN_API bool tn__buffer_hold(tn__buffer *b, size_t more);

/* The string, "" if nothing was added, which the caller frees; NULL when the buffer failed. The
 * buffer is empty afterwards. */
TN_API char *tn__buffer_take(tn__buffer *b);
TN_API void tn__buffer_free(tn__buffer *b); /* and empties it */

/* A new string formatted as by printf, for the caller to free; NULL after raising TN_ENOMEM
 * (nothing is raised where `operation` is NULL). */
TN_API char *tn__asprintf(const char *operation, const char *format, ...) TN_PRINTF(2, 3);

#endif
