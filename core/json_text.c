#include "core/json_text.h"

#include "core/memory.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool make_room(tn__json_text *j, size_t bytes) {
    if (!j->failed && bytes > j->room - j->bytes) {
        size_t room = 2 * (j->bytes + bytes);
        char *larger = tn__realloc(j->at, room);
        j->failed = larger == NULL;
        j->at = larger ? larger : j->at;
        j->room = larger ? room : j->room;
    }
    return !j->failed;
}

void tn__json_put_bytes(tn__json_text *j, const void *from, size_t bytes) {
    if (bytes && make_room(j, bytes)) {
        memcpy(j->at + j->bytes, from, bytes);
        j->bytes += bytes;
    }
}

void tn__json_put(tn__json_text *j, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    tn__json_put_bytes(j, text, strlen(text));
}

void tn__json_put_string(tn__json_text *j, const char *text) {
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    tn__json_put(j, "\"");
    for (; *text; text++) {
        const char *found = strchr(plain, *text);
        if (found) {
            tn__json_put(j, "\\%c", letters[found - plain]);
        } else if ((unsigned char)*text < 0x20) {
            tn__json_put(j, "\\u%04X", (unsigned)*text);
        } else {
            tn__json_put_bytes(j, text, 1);
        }
    }
    tn__json_put(j, "\"");
}

void tn__json_put_list(tn__json_text *j, const int64_t *numbers, int n) {
    tn__json_put(j, "[");
    for (int i = 0; i < n; i++) {
        tn__json_put(j, "%s%" PRId64, i ? "," : "", numbers[i]);
    }
    tn__json_put(j, "]");
}
