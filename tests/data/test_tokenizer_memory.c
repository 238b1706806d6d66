/* Memory runs out at every place of a tokenizer's life, in Tern or in a library: an error that says
 * so, nothing leaked, and existing files stay. */
#include "tern/tokenizer.h"

#include <stdint.h>

#include "tests/data/small_tokenizer.h"
#include "tests/support/fail_malloc.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

static const char cut_json[] =
    ",\"merges\":[\"h e\",\"l l\"]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+|\\\\s+\"},\"behavior\":\"Isolated\"},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
    "\"added_tokens\":[{\"id\":262,\"content\":\"<|endoftext|>\",\"special\":true}]}";

static void write_files(void) {
    small_write(SMALL_MERGES);
    FILE *f = fopen(temp_path("tokenizer.json"), "wb");
    assert_non_null(f);
    fputs("{\"model\":{\"vocab\":", f);
    small_vocab(f);
    fputs(cut_json, f);
    assert_int_equal(fclose(f), 0);
}

/* It works without the JIT, too. */
static void free_made(tn_tokenizer *t) {
    assert_true(t || tn_error() != TN_OK);
    tn_tokenizer_free(t);
}

static void load_json(void) {
    free_made(tn_tokenizer_load(temp_path("tokenizer.json")));
}

static void load_merges(void) {
    free_made(tn_tokenizer_load(temp_path("merges.txt")));
}

static void train_small(void) {
    const char *texts[] = {"abab abc", "\xff\xff ab<|endoftext|>"};
    size_t bytes[] = {8, 18};
    free_made(tn_tokenizer_train(texts, bytes, 2, TN_WITH(tn_tokenizer_train, .vocab = 270)));
}

TEST(making_without_memory) {
    write_files();
    every_malloc(load_json, 1, NULL);
    every_malloc(load_merges, 1, NULL);
    every_malloc(train_small, 1, NULL);
}

static tn_tokenizer *small;

/* A special token, short pieces, a piece for the heap; and what that is decoded to. */
static void use_small(void) {
    char text[300] = "hello<|endoftext|> \xff hello ";
    memset(text + strlen(text), 'l', 200);
    tn_ids ids = {0};
    if (tn_tokenizer_encode(small, text, strlen(text), true, &ids) == TN_OK) {
        char *decoded = tn_tokenizer_decode(small, ids.ids, ids.count, NULL);
        assert_true(decoded || tn_error() != TN_OK);
        tn_text_free(decoded);
    } else {
        assert_int_equal(ids.count, 0);
    }
    tn_ids_free(&ids);
}

TEST(encoding_without_memory) {
    small = small_tokenizer();
    every_malloc(use_small, 1, NULL);
    tn_tokenizer_free(small);
}

static tn_status saved;

static void save_small(void) {
    saved = tn_tokenizer_save(small, temp_path("saved"));
}

/* What was saved is whole. */
static void load_saved(void) {
    if (saved == TN_OK) {
        tn_tokenizer *t = tn_tokenizer_load(temp_path("saved"));
        assert_non_null(t);
        EXPECT_IDS(t, "hello hello", false, HELLO, SPACE_HELLO);
        tn_tokenizer_free(t);
    }
    temp_remove(temp_path("saved"));
}

TEST(saving_without_memory) {
    small = small_tokenizer();
    every_malloc(save_small, 1, load_saved);
    tn_tokenizer_free(small);
}
