#include "data/corpus/cut.h"

#include "text/utf8.h"

#include <stdbool.h>

/* Unicode's White_Space, which is \s in patterns. */
static bool is_space(int32_t code) {
    return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* Whether the character that ends before `at` is not white space. */
static bool is_word_before(const char *text, size_t at) {
    for (size_t back = 1; back <= 4 && back <= at; back++) {
        int32_t code = 0;
        if (((unsigned char)text[at - back] & 0xc0) != 0x80) {
            return tn__utf8_decode(text + at - back, back, &code) == (int)back && !is_space(code);
        }
    }
    return false;
}

static bool is_word_after(const char *text, size_t bytes, size_t at) {
    int32_t code = 0;
    return tn__utf8_decode(text + at, bytes - at, &code) > 0 && !is_space(code);
}

/* Whether a word ends before at, 0 < at < bytes, and a space follows: it begins the next token in
 * all patterns, whatever follows it. */
static bool ends_word(const char *text, size_t at) {
    return text[at] == ' ' && is_word_before(text, at);
}

/* Whether a line begins at `at`, after a single newline between two words: a token ends there,
 * unless a '/' follows. (With two newlines, some patterns join the second to what follows and
 * others do not.) */
static bool begins_line(const char *text, size_t bytes, size_t at) {
    return text[at - 1] == '\n' && text[at] != '/' && is_word_before(text, at - 1) &&
           is_word_after(text, bytes, at);
}

size_t tn__last_cut(const char *text, size_t bytes, size_t most) {
    size_t last = most < bytes ? most : bytes - 1, at = last;
    while (at > 0 && !ends_word(text, at)) {
        at--;
    }
    if (at == 0) {
        at = last;
        while (at > 0 && !begins_line(text, bytes, at)) {
            at--;
        }
    }
    return at;
}
