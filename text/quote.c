/* Command lines as a person types them (quote.h). */
#include "text/quote.h"

#include "core/memory.h"

#include <string.h>

static bool word_is_plain(const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789_@%+=:,./-";
    return *word && word[strspn(word, plain)] == 0;
}

/* Between quotes everything but the quote is literal: 'it'\''s'. Returns the end. */
static char *put_quoted(char *to, const char *word) {
    *to++ = '\'';
    for (; *word; word++) {
        if (*word == '\'') {
            memcpy(to, "'\\'", 3);
            to += 3;
        }
        *to++ = *word;
    }
    *to++ = '\'';
    return to;
}

char *tn__shell_line(char *const *words, int count) {
    size_t size = 1;
    for (int i = 0; i < count; i++) {
        size += 4 * strlen(words[i]) + 3;
    }
    char *line = tn__malloc(size), *to = line;
    for (int i = 0; line && i < count; i++) {
        if (i > 0) { *to++ = ' '; }
        to = word_is_plain(words[i]) ? stpcpy(to, words[i]) : put_quoted(to, words[i]);
    }
    if (line) { *to = 0; }
    return line;
}
