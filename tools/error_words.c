#include "tools/error_words.h"

#include <ctype.h>
#include <string.h>
#include <tern/core.h>

/* After "file.c:12: " or "tern+0x1f: ". Errors of the library's threads have no place. */
static const char *skip_place(const char *text) {
    const char *end = strstr(text, ": "), *line = strstr(text, ".c:"),
               *offset = strstr(text, "+0x");
    return end && ((line && line < end) || (offset && offset < end)) ? end + 2 : text;
}

/* After "token_shards: ". */
static const char *skip_operation(const char *text) {
    size_t length = 0;
    while (islower((unsigned char)text[length]) || text[length] == '_') {
        length++;
    }
    return length > 0 && strncmp(text + length, ": ", 2) == 0 ? text + length + 2 : text;
}

const char *error_why(void) {
    return skip_operation(skip_place(tn_error_message()));
}
