/* Makes control characters harmless: a terminal takes no command from what is left. */
#include "core/plain_text.h"

#include <string.h>

enum { ESCAPE = 0x1b, DELETE = 0x7f };

static bool in_range(char c, int min, int max) {
    return (unsigned char)c >= min && (unsigned char)c <= max;
}

/* How many characters from `at` on are in the range. */
static size_t run_of(const char *at, size_t length, int min, int max) {
    size_t n = 0;
    while (n < length && in_range(at[n], min, max)) {
        n++;
    }
    return n;
}

/* The bytes of the sequence ESC [ … at `at`, which sets a colour or moves the cursor, or of the
 * part of it that is there. 1: an ESC and no more. */
static size_t sequence_length(const char *at, size_t length) {
    if (length < 2 || at[1] != '[') { return 1; }
    size_t n = 2 + run_of(at + 2, length - 2, ' ', '?');
    return n + (n < length && in_range(at[n], '@', '~'));
}

/* The bytes of the character at `at`; 1 where it is not UTF-8. */
static size_t character_length(const char *at, size_t length) {
    unsigned char first = (unsigned char)at[0];
    size_t wanted = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    /* The second byte's range excludes overlong forms of other characters. */
    int min = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    int max = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    bool whole = first >= 0xc2 && first <= 0xf4 && wanted <= length && in_range(at[1], min, max) &&
                 run_of(at + 2, wanted - 2, 0x80, 0xbf) == wanted - 2;
    return whole ? wanted : 1;
}

/* Whether these bytes are a control character. */
static bool is_control(const char *at, size_t bytes) {
    if (bytes == 2) { return at[0] == '\xc2' && in_range(at[1], 0x80, 0x9f); }
    bool low = in_range(*at, 0, 0x1f) && *at != '\t';
    return bytes == 1 && (low || in_range(*at, DELETE, 0x9f));
}

size_t tn__plain_text(char *to, const char *from, size_t length) {
    size_t used = 0;
    for (size_t at = 0, here; at < length; at += here) {
        const char *c = from + at;
        bool escape = *c == ESCAPE;
        here = escape ? sequence_length(c, length - at) : character_length(c, length - at);
        if (escape && here > 1) { continue; }
        if (is_control(c, here)) {
            to[used++] = '?';
        } else {
            memmove(to + used, c, here);
            used += here;
        }
    }
    return used;
}

tn__quoted tn__quote(const char *text, size_t bytes) {
    tn__quoted q;
    size_t most = sizeof(q.text) - 4, length = bytes < most ? bytes : most;
    length = tn__plain_text(q.text, text, length);
    memcpy(q.text + length, bytes > most ? "..." : "", bytes > most ? 4 : 1);
    return q;
}

tn__quoted tn__show(const char *text) {
    return tn__quote(text, strlen(text));
}

void tn__plain_lines(char *text) {
    char *to = text;
    for (const char *line = text;; line++) {
        size_t length = strcspn(line, "\n");
        bool last = !line[length];
        to += tn__plain_text(to, line, length);
        line += length;
        *to = last ? 0 : '\n';
        if (last) { return; }
        to++;
    }
}
