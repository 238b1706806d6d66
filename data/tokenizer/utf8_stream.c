/* UTF-8 that arrives in parts: whole characters as soon as they are complete, U+FFFD for invalid
 * bytes.
 *
 * In invalid bytes, the longest beginning of a character becomes one U+FFFD, and decoding starts
 * again after it (the Unicode Standard, chapter 3.9, "maximal subparts"). */
#include "tern/tokenizer.h"
#include "text/utf8.h"

#include <string.h>

/* Whether these bytes, fewer than it needs, begin a character. */
static bool is_beginning(const char *text, int count) {
    unsigned char first = (unsigned char)text[0], second = count > 1 ? (unsigned char)text[1] : 0;
    int needs = first >= 0xf0 && first <= 0xf4   ? 4
                : first >= 0xe0 && first <= 0xef ? 3
                : first >= 0xc2 && first <= 0xdf ? 2
                                                 : 0;
    if (count >= needs) { return false; }
    if (count > 1) { /* no overlong form, no surrogate, nothing beyond U+10FFFF */
        unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        if (second < least || second > most) { return false; }
    }
    return count < 3 || ((unsigned char)text[2] & 0xc0) == 0x80;
}

static char *put_replacement(char *to) {
    memcpy(to, "\xef\xbf\xbd", 3);
    return to + 3;
}

/* One more byte after those that are held. */
static char *put_byte(tn_utf8_stream *s, char byte, char *to) {
    int32_t code;
    s->held[s->count++] = byte;
    if (tn__utf8_decode(s->held, (size_t)s->count, &code)) {
        memcpy(to, s->held, (size_t)s->count);
        to += s->count;
        s->count = 0;
        return to;
    }
    if (is_beginning(s->held, s->count)) { return to; }
    bool alone = s->count == 1;
    s->count = 0;
    to = put_replacement(to);
    return alone ? to : put_byte(s, byte, to);
}

size_t tn_utf8_put(tn_utf8_stream *s, const char *from, size_t bytes, char *out) {
    char *to = out;
    for (size_t i = 0; i < bytes; i++) {
        to = put_byte(s, from[i], to);
    }
    return (size_t)(to - out);
}

size_t tn_utf8_end(tn_utf8_stream *s, char *out) {
    char *to = s->count ? put_replacement(out) : out;
    s->count = 0;
    return (size_t)(to - out);
}
