/* JSON that is written into a buffer (core/buffer.h), which does nothing after a failure:
 *
 *     tn__buffer j = {.operation = "save"};
 *     tn__buffer_format(&j, "{\"step\":%d,\"note\":", step);
 *     tn__json_put_string(&j, note);
 *     tn__buffer_text(&j, "}");
 */
#ifndef TERN_TEXT_JSON_WRITE_H
#define TERN_TEXT_JSON_WRITE_H

#include "core/buffer.h"

/* A string in quotes, escaped as JSON requires. */
TN_API void tn__json_put_string(tn__buffer *j, const char *text);

/* "[3,4]" */
void tn__json_put_list(tn__buffer *j, const int64_t *numbers, int n);

#endif
