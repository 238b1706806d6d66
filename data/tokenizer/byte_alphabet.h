/* GPT-2's alphabet: a printable character for each byte, so that a token of any bytes is a text
 * without spaces. The 188 printable characters of Latin-1 represent themselves; the other 68 bytes
 * are represented, in order, by the characters from U+0100 on: a space is U+0120. */
#ifndef TERN_DATA_TOKENIZER_BYTE_ALPHABET_H
#define TERN_DATA_TOKENIZER_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tn__byte_alphabet {
    uint16_t character[256];
    int16_t byte[256 + 68]; /* of a character; -1: none */
} tn__byte_alphabet;

static inline tn__byte_alphabet tn__byte_alphabet_make(void) {
    tn__byte_alphabet a;
    uint16_t next = 256;
    for (int i = 0; i < 256 + 68; i++) {
        a.byte[i] = -1;
    }
    for (int i = 0; i < 256; i++) {
        bool printable = (i > 0x20 && i < 0x7f) || (i > 0xa0 && i != 0xad);
        a.character[i] = printable ? (uint16_t)i : next++;
        a.byte[a.character[i]] = (int16_t)i;
    }
    return a;
}

#endif
