/* Finds the terminal commands (ECMA-48) in a text, and removes them. */
#include "core/plain_text.h"

#include <string.h>

enum { ESCAPE = 0x1b, BELL = 7, DELETE = 0x7f };

static bool in_range(char c, int least, int most) {
    return (unsigned char)c >= least && (unsigned char)c <= most;
}

/* How many characters from `at` on are in the range. */
static size_t run_of(const char *at, size_t length, int least, int most) {
    size_t n = 0;
    while (n < length && in_range(at[n], least, most)) {
        n++;
    }
    return n;
}

/* How much of a text could be inside a terminal string: what is before the last terminator. Found
 * once, so that unterminated openings cost no search each. */
static size_t strings_reach(const char *text, size_t length) {
    while (length > 0 && text[length - 1] != BELL &&
           !(text[length - 1] == '\\' && length > 1 && text[length - 2] == ESCAPE)) {
        length--;
    }
    return length;
}

/* ESC ] … and the like, up to BEL or ESC \. An unterminated one loses only its opening, so that
 * nothing is hidden. */
static size_t string_length(const char *at, size_t reach) {
    for (size_t n = 2; n < reach; n++) {
        if (at[n] == BELL) { return n + 1; }
        if (at[n] == ESCAPE && n + 1 < reach && at[n + 1] == '\\') { return n + 2; }
    }
    return 2;
}

/* The bytes of the escape sequence at `at`, or of the part of it that is there. 1: an ESC and no
 * more. *colour: it only sets the look of the text that follows. */
static size_t sequence_length(const char *at, size_t length, size_t reach, bool *colour) {
    if (length < 2) { return 1; }
    if (memchr("]PX^_", at[1], 5)) { return string_length(at, reach); }
    size_t n = at[1] == '[' ? 2 : 1;
    size_t inner = at[1] == '[' ? run_of(at + n, length - n, '0', '?') : 0;
    bool numbers = inner == run_of(at + n, inner, '0', ';'); /* digits, ':' and ';' */
    n += inner;
    size_t between = run_of(at + n, length - n, ' ', '/');
    n += between;
    if (n < length && in_range(at[n], at[1] == '[' ? '@' : '0', '~')) {
        *colour = at[1] == '[' && numbers && between == 0 && at[n] == 'm';
        n++;
    }
    return n;
}

/* The bytes of the character at `at`; 1 where it is not UTF-8. */
static size_t character_length(const char *at, size_t length) {
    unsigned char first = (unsigned char)at[0];
    size_t wanted = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    /* The second byte's range excludes overlong forms of other characters. */
    int least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    int most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    bool whole = first >= 0xc2 && first <= 0xf4 && wanted <= length &&
                 in_range(at[1], least, most) &&
                 run_of(at + 2, wanted - 2, 0x80, 0xbf) == wanted - 2;
    return whole ? wanted : 1;
}

/* Whether these bytes are a control character. */
static bool is_control(const char *at, size_t bytes) {
    if (bytes == 2) { return at[0] == '\xc2' && in_range(at[1], 0x80, 0x9f); }
    bool low = in_range(*at, 0, 0x1f) && *at != '\t';
    return bytes == 1 && (low || in_range(*at, DELETE, 0x9f));
}

size_t tn__plain_text(char *to, const char *from, size_t length, bool colours) {
    size_t used = 0, reach = strings_reach(from, length);
    for (size_t at = 0, here; at < length; at += here) {
        const char *c = from + at;
        bool colour = false;
        here = *c == ESCAPE ? sequence_length(c, length - at, reach > at ? reach - at : 0, &colour)
                            : character_length(c, length - at);
        bool sequence = *c == ESCAPE && here > 1;
        bool kept = sequence ? colour && colours : !is_control(c, here);
        if (kept) {
            memmove(to + used, c, here);
            used += here;
        } else if (!sequence && !colours) {
            to[used++] = '?';
        }
    }
    return used;
}

void tn__plain_lines(char *text) {
    char *to = text;
    for (const char *line = text;; line++) {
        size_t length = strcspn(line, "\n");
        bool last = !line[length];
        to += tn__plain_text(to, line, length, false);
        line += length;
        *to = last ? 0 : '\n';
        if (last) { return; }
        to++;
    }
}
