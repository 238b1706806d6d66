/* A vocabulary that is small enough to follow by hand: the 256 bytes, a few merges, a special
 * token.
 */
#ifndef TERN_TESTS_DATA_SMALL_TOKENIZER_H
#define TERN_TESTS_DATA_SMALL_TOKENIZER_H

#include "data/tokenizer/byte_alphabet.h"
#include "tern/tokenizer.h"

#include "tests/support/temp.h"
#include "text/utf8.h"

/* Ids of the merges: 256 and on. U+0120 is a space. */
#define SMALL_MERGES "h e\nl l\nhe ll\nhell o\n\xc4\xa0 hello\no o\n"
enum { HE = 256, LL, HELL, HELLO, SPACE_HELLO, OO, END_OF_TEXT, SMALL_SIZE };

/* Into text[8]: the character for a byte, escaped for JSON. */
static inline const char *small_letter(int byte, char *text) {
    const tn__byte_alphabet a = tn__byte_alphabet_make();
    char *to = text;
    if (byte == '"' || byte == '\\') { *to++ = '\\'; }
    to[tn__utf8_encode(a.character[byte], to)] = 0;
    return text;
}

/* The object of ids by token. The id of a byte is the byte. */
static inline void small_vocab(FILE *f) {
    static const char *const made[] = {"he", "ll",           "hell", "hello", "\xc4\xa0hello",
                                       "oo", "<|endoftext|>"};
    char letter[8];
    for (int i = 0; i < SMALL_SIZE; i++) {
        fprintf(f, "%s\"%s\":%d", i ? "," : "{", i < 256 ? small_letter(i, letter) : made[i - 256],
                i);
    }
    fputs("}", f);
}

/* Into the folder of tests: vocab.json, merges.txt. */
static inline void small_write(const char *merges) {
    FILE *f = fopen(temp_path("vocab.json"), "wb");
    assert_non_null(f);
    small_vocab(f);
    assert_int_equal(fclose(f), 0);
    temp_write(temp_path("merges.txt"), merges, strlen(merges));
}

static inline tn_tokenizer *small_tokenizer(void) {
    small_write("#version: 0.2\n" SMALL_MERGES);
    tn_tokenizer *t = tn_tokenizer_load(temp_path("vocab.json"));
    assert_non_null(t);
    return t;
}

/* The ids of a text are these. */
#define EXPECT_IDS(t, text, special, ...)                                          \
    expect_ids(t, text, sizeof(text) - 1, special, (const int32_t[]){__VA_ARGS__}, \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))
static inline void expect_ids(const tn_tokenizer *t, const char *text, size_t bytes, bool special,
                              const int32_t *ids, size_t count) {
    tn_ids out = {0};
    assert_int_equal(tn_tokenizer_encode(t, text, bytes, special, &out), TN_OK);
    assert_int_equal(out.count, count);
    assert_memory_equal(out.ids, ids, count * sizeof(int32_t));
    size_t again_bytes;
    char *again = tn_tokenizer_decode(t, out.ids, out.count, &again_bytes);
    assert_non_null(again);
    assert_int_equal(again_bytes, bytes);
    assert_memory_equal(again, text, bytes);
    tn_text_free(again);
    tn_ids_free(&out);
}

#endif
