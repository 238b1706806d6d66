#include "text/json_write.h"

#include <inttypes.h>
#include <string.h>

void tn__json_put_string(tn__buffer *j, const char *text) {
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    tn__buffer_text(j, "\"");
    for (; *text; text++) {
        const char *found = strchr(plain, *text);
        if (found) {
            tn__buffer_format(j, "\\%c", letters[found - plain]);
        } else if ((unsigned char)*text < 0x20) {
            tn__buffer_format(j, "\\u%04X", (unsigned)*text);
        } else {
            tn__buffer_add(j, text, 1);
        }
    }
    tn__buffer_text(j, "\"");
}

void tn__json_put_list(tn__buffer *j, const int64_t *numbers, int n) {
    tn__buffer_text(j, "[");
    for (int i = 0; i < n; i++) {
        tn__buffer_format(j, "%s%" PRId64, i ? "," : "", numbers[i]);
    }
    tn__buffer_text(j, "]");
}
