/* The first byte says what the rest is: tokenizer.json, merges.txt for a valid vocabulary, or
 * vocab.json for valid merges. It is refused with a reason that names the file; or
 * else texts, including the input, are encoded, and decoding restores them.
 */
#include "tests/fuzz/folder.h"

#include "data/tokenizer/tokenizer.h"

#include <string.h>

static const char fuzz_vocab[] =
    "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\xc4\xa0\":5,\"\xc4\xa0"
    "a\":6,\"<|end|>\":7}";
static const char fuzz_merges[] = "#version: 0.2\na b\nab c\n\xc4\xa0 a\n";
static const char *tokenizer_folder;

static void make_tokenizer_folder(void) {
    tokenizer_folder = fuzz_folder_new();
}

/* Returns its path. */
static const char *write_fuzz_file(const char *name, const void *data, size_t bytes) {
    static char path[128];
    fuzz_folder_write(tokenizer_folder, name, data, bytes);
    snprintf(path, sizeof(path), "%s/%s", tokenizer_folder, name);
    return path;
}

static tn_tokenizer *load_fuzz_input(uint8_t kind, const void *data, size_t bytes) {
    switch (kind % 3) {
    case 0:
        return tn_tokenizer_load(write_fuzz_file("tokenizer.json", data, bytes));
    case 1:
        write_fuzz_file("vocab.json", fuzz_vocab, sizeof(fuzz_vocab) - 1);
        return tn_tokenizer_load(write_fuzz_file("merges.txt", data, bytes));
    default:
        write_fuzz_file("merges.txt", fuzz_merges, sizeof(fuzz_merges) - 1);
        return tn_tokenizer_load(write_fuzz_file("vocab.json", data, bytes));
    }
}

static void encode_there_and_back(const tn_tokenizer *t, const char *text, size_t bytes) {
    tn_ids ids = {0};
    if (tn_tokenizer_encode(t, text, bytes, true, &ids) == TN_OK) {
        size_t count;
        char *again = tn_tokenizer_decode(t, ids.ids, ids.count, &count);
        must_hold(again != NULL, "ids that cannot be decoded");
        must_hold(t->prefix_space || (count == bytes && memcmp(again, text, bytes) == 0),
                  "another text");
        tn_text_free(again);
    } else {
        must_hold(tn_error() == TN_EVALUE || tn_error() == TN_EFORMAT, "another error");
        must_hold(ids.count == 0, "ids of half a text");
        tn_error_clear();
    }
    tn_ids_free(&ids);
}

FUZZ(tokenizer, make_tokenizer_folder) {
    static const char *const texts[] = {
        "", "abcabc ab <|end|>x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\xff\xc3\xa4 1234 \n\n  x"};
    if (bytes == 0) { return; }
    tn_tokenizer *t = load_fuzz_input(data[0], data + 1, bytes - 1);
    must_hold((t != NULL) == (tn_error() == TN_OK), "loaded with an error, or neither");
    must_hold(t || strstr(tn_error_message(), tokenizer_folder), "an error without the file");
    tn_error_clear();
    if (t) {
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
            encode_there_and_back(t, texts[i], strlen(texts[i]));
        }
        encode_there_and_back(t, (const char *)data, bytes);
    }
    tn_tokenizer_free(t);
}
