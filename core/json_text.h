/* JSON that is written, as a text that grows. After a failure the calls do nothing; whoever needs
 * the text looks at `failed` once, at the end:
 *
 *     tn__json_text j = {0};
 *     tn__json_put(&j, "{\"step\":%d,\"note\":", step);
 *     tn__json_put_string(&j, note);
 *     tn__json_put(&j, "}");
 *     ... j.failed ? no memory : j.at, j.bytes ...
 *     free(j.at);
 */
#ifndef TERN_CORE_JSON_TEXT_H
#define TERN_CORE_JSON_TEXT_H

#include "tern/core.h"

typedef struct tn__json_text {
    char *at; /* malloc'ed, without a 0 */
    size_t bytes, room;
    bool failed; /* no memory */
} tn__json_text;

TN_API void tn__json_put_bytes(tn__json_text *j, const void *from, size_t bytes);

/* As printf, less than 256 bytes at a time. */
TN_API void tn__json_put(tn__json_text *j, const char *format, ...) TN_PRINTF(2, 3);

/* A string with its quotes, and what JSON escapes. */
TN_API void tn__json_put_string(tn__json_text *j, const char *text);

/* "[3,4]" */
void tn__json_put_list(tn__json_text *j, const int64_t *numbers, int n);

#endif
