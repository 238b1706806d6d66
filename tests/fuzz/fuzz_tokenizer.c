/* The first byte says what the rest is: tokenizer.json, merges.txt for a valid vocabulary, or
 * vocab.json for valid merges. It is refused with a reason that names the file; or
 * else texts, including the input, are encoded, and decoding restores them.
 */
#define _GNU_SOURCE
#include "tests/fuzz/bytes.h"

#include "data/tokenizer/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char fuzz_vocab[] =
    "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\xc4\xa0\":5,\"\xc4\xa0"
    "a\":6,\"<|end|>\":7}";
static const char fuzz_merges[] = "#version: 0.2\na b\nab c\n\xc4\xa0 a\n";
static char fuzz_folder[64];

static void remove_fuzz_folder(void) {
    static const char *const names[] = {"tokenizer.json", "merges.txt", "vocab.json"};
    char path[128];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", fuzz_folder, names[i]);
        unlink(path);
    }
    rmdir(fuzz_folder);
}

/* Into path[128]. */
static void write_fuzz_file(char *path, const char *name, const void *data, size_t bytes) {
    if (!*fuzz_folder) {
        strcpy(fuzz_folder, "/tmp/tern_fuzz_XXXXXX");
        must_hold(mkdtemp(fuzz_folder) != NULL, "no folder");
        atexit(remove_fuzz_folder);
    }
    snprintf(path, 128, "%s/%s", fuzz_folder, name);
    FILE *f = fopen(path, "wb");
    must_hold(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0, "cannot write");
}

static tn_tokenizer *load_fuzz_input(uint8_t kind, const void *data, size_t bytes, char *path) {
    switch (kind % 3) {
    case 0:
        write_fuzz_file(path, "tokenizer.json", data, bytes);
        return tn_tokenizer_load(path);
    case 1:
        write_fuzz_file(path, "vocab.json", fuzz_vocab, sizeof(fuzz_vocab) - 1);
        write_fuzz_file(path, "merges.txt", data, bytes);
        return tn_tokenizer_load(path);
    default:
        write_fuzz_file(path, "merges.txt", fuzz_merges, sizeof(fuzz_merges) - 1);
        write_fuzz_file(path, "vocab.json", data, bytes);
        return tn_tokenizer_load(path);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const texts[] = {
        "", "abcabc ab <|end|>x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\xff\xc3\xa4 1234 \n\n  x"};
    char path[128] = "";
    if (bytes == 0) { return 0; }
    tn_tokenizer *t = load_fuzz_input(data[0], data + 1, bytes - 1, path);
    if (t) {
        must_hold(tn_error() == TN_OK, "loaded, with an error");
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
            encode_there_and_back(t, texts[i], strlen(texts[i]));
        }
        encode_there_and_back(t, (const char *)data, bytes);
    } else {
        must_hold(tn_error() != TN_OK && strstr(tn_error_message(), fuzz_folder),
                  "refused without a reason that names the file");
    }
    tn_tokenizer_free(t);
    tn_error_clear();
    return 0;
}
