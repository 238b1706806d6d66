/* UTF-8, strictly by RFC 3629. */
#ifndef TERN_TEXT_UTF8_H
#define TERN_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The code point at text[0 … bytes) into *code; returns how many bytes it takes, or 0 if there is
 * no character: a stray or missing byte, an overlong form, a surrogate, a number above 0x10FFFF. */
static inline int tn__utf8_decode(const char *text, size_t bytes, int32_t *code) {
    static const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    if (bytes == 0) { return 0; }
    if (s[0] < 0x80) {
        *code = s[0];
        return 1;
    }
    int length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;
    if (length == 0 || s[0] >= 0xf8 || bytes < (size_t)length) { return 0; }
    int32_t value = s[0] & (0xff >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) { return 0; }
        value = value << 6 | (s[i] & 0x3f);
    }
    if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        return 0;
    }
    *code = value;
    return length;
}

/* Whether all of a text is UTF-8. */
static inline bool tn__is_utf8(const char *text) {
    int32_t code;
    int used = 1;
    for (size_t left = strlen(text); left > 0 && used > 0; left -= (size_t)used, text += used) {
        used = tn__utf8_decode(text, left, &code);
    }
    return used > 0;
}

/* The bytes of a valid code point into text[4]; returns how many. */
static inline int tn__utf8_encode(uint32_t code, char *text) {
    if (code < 0x80) {
        text[0] = (char)code;
        return 1;
    }
    int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--) {
        text[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    text[0] = (char)((0xf00 >> length & 0xff) | code);
    return length;
}

#endif
