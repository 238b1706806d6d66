#include "tools/error_words.h"

#include "tools/verbs.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* After "file.c:12: ", "tern+0x1f: " or "tern+0x1f (in module.path): ". Errors of the library's
 * threads have no place. */
static const char *skip_place(const char *text) {
    const char *name = text + strcspn(text, " :+"), *end = name;
    if (strncmp(end, "+0x", 3) == 0) {
        end += 3 + strspn(end + 3, "0123456789abcdef");
    } else if (name - text > 2 && strncmp(name - 2, ".c:", 3) == 0) {
        end += 1 + strspn(end + 1, "0123456789");
    }
    const char *inside = strncmp(end, " (in ", 5) == 0 ? strstr(end, "): ") : NULL;
    end = inside ? inside + 1 : end;
    return end > name && strncmp(end, ": ", 2) == 0 ? end + 2 : text;
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
    return error_why_of(tn_error_message());
}

const char *error_why_of(const char *message) {
    for (const char *after; (after = skip_place(message)) != message;) {
        message = after;
    }
    return skip_operation(message);
}

void train_error_exit(tn_status status, const char *message) {
    char text[sizeof("tern train: ") + sizeof(((tn_error_record *)0)->message)];
    (void)status; /* its name is for programmers */
    snprintf(text, sizeof(text), "tern train: %s", error_why());
    tn_error_exit(TN_OK, text);
}
