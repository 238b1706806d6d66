/* Encoding and decoding with a vocabulary that can be followed by hand; bytes outside UTF-8. */
#include "tern/tokenizer.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/data/small_tokenizer.h"
#include "tests/support/test.h"

TEST(joins_the_best_pair_first) {
    tn_tokenizer *t = small_tokenizer();
    assert_int_equal(tn_tokenizer_size(t), SMALL_SIZE);
    EXPECT_IDS(t, "hello", false, HELLO);
    EXPECT_IDS(t, "hello hello", false, HELLO, SPACE_HELLO);
    EXPECT_IDS(t, "hellll", false, HELL, LL);
    EXPECT_IDS(t, "lll", false, LL, 'l');
    EXPECT_IDS(t, "helloo", false, HELLO, 'o');
    EXPECT_IDS(t, "  hello\n", false, ' ', SPACE_HELLO, '\n');
    EXPECT_IDS(t, "it's 12a", false, 'i', 't', '\'', 's', ' ', '1', '2', 'a');
    tn_tokenizer_free(t);
}

/* Nothing is merged across the boundary of a piece. */
TEST(pieces_stay_apart) {
    tn_tokenizer *t = small_tokenizer();
    EXPECT_IDS(t, "h\xce\xb1", false, 'h', 0xce, 0xb1);
    EXPECT_IDS(t, "h1e", false, 'h', '1', 'e');
    EXPECT_IDS(t, "l'll", false, 'l', '\'', LL);
    tn_tokenizer_free(t);
}

TEST(special_tokens_only_when_asked) {
    tn_tokenizer *t = small_tokenizer();
    assert_int_equal(tn_tokenizer_special(t, "<|endoftext|>"), END_OF_TEXT);
    assert_int_equal(tn_tokenizer_special(t, "<|endoftext|"), -1);
    assert_int_equal(tn_tokenizer_special(t, "hello"), -1);
    EXPECT_IDS(t, "oo<|endoftext|>hello", true, OO, END_OF_TEXT, HELLO);
    EXPECT_IDS(t, "<|endoftext|>", true, END_OF_TEXT);
    EXPECT_IDS(t, "<|", true, '<', '|');
    tn_ids out = {0};
    assert_int_equal(tn_tokenizer_encode(t, "<|endoftext|>", 13, false, &out), TN_OK);
    assert_int_equal(out.count, 13);
    tn_ids_free(&out);
    tn_tokenizer_free(t);
}

/* Bytes that are not characters are a piece of their own, whatever is next to them. */
TEST(any_bytes) {
    tn_tokenizer *t = small_tokenizer();
    EXPECT_IDS(t, "hello\xff hello", false, HELLO, 0xff, SPACE_HELLO);
    EXPECT_IDS(t, "\xc3", false, 0xc3);
    EXPECT_IDS(t, "a\0b", false, 'a', 0, 'b');
    tn_ids out = {0};
    uint64_t random = 1;
    for (int length = 0; length < 400; length++) {
        char bytes[400];
        for (int i = 0; i < length; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (char)(random >> 56);
        }
        out.count = 0;
        size_t again;
        assert_int_equal(tn_tokenizer_encode(t, bytes, (size_t)length, true, &out), TN_OK);
        char *text = tn_tokenizer_decode(t, out.ids, out.count, &again);
        assert_int_equal(again, length);
        assert_memory_equal(text, bytes, length);
        tn_text_free(text);
    }
    tn_ids_free(&out);
    tn_tokenizer_free(t);
}

/* Long pieces, merged with a heap, come out as short ones, merged with a simple loop. */
TEST(long_pieces) {
    enum { BYTES = 1000000 };
    tn_tokenizer *t = small_tokenizer();
    char *text = malloc(BYTES);
    assert_non_null(text);
    memset(text, 'l', BYTES);
    tn_ids out = {0};
    for (int bytes = 1; bytes <= BYTES; bytes = bytes < 200 ? bytes + 1 : bytes * 10) {
        out.count = 0;
        assert_int_equal(tn_tokenizer_encode(t, text, (size_t)bytes, false, &out), TN_OK);
        assert_int_equal(out.count, (bytes + 1) / 2);
        assert_int_equal(out.ids[out.count - 1], bytes % 2 ? 'l' : LL);
    }
    free(text);
    tn_ids_free(&out);
    tn_tokenizer_free(t);
}

/* Patterns that backtrack over a whole run stay below the limit of steps. */
static void expect_bytes(const char *pattern, const char *run, size_t bytes) {
    static const char *const special[] = {"<|end|>"};
    tn_tokenizer_train_options o = TN_WITH(tn_tokenizer_train, .vocab = 257, .pattern = pattern,
                                           .special = special, .special_count = 1);
    tn_tokenizer *t = tn_tokenizer_train(NULL, NULL, 0, o);
    size_t length = strlen(run);
    char *text = malloc(bytes);
    assert_non_null(t);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++) {
        text[i] = i + length < bytes ? run[i % length] : 'x';
    }
    tn_ids out = {0};
    if (tn_tokenizer_encode(t, text, bytes, false, &out) != TN_OK) {
        fail_msg("%s, %s: %s", pattern, run, tn_error_message());
    }
    assert_int_equal(out.count, bytes);
    free(text);
    tn_ids_free(&out);
    tn_tokenizer_free(t);
}

TEST(long_runs) {
    static const char *const patterns[] = {"gpt2", "llama3", "o200k"};
    static const char *const runs[] = {
        "a",    "A", " ",      "\n",       "\r\n",         "\t",   "1",
        "!",    "'", "'s ",    " \n",      "\xe4\xb8\xad", "aB",   "x ",
        "\xff", "/", "don't ", "\xc2\xa0", "\xe2\x80\xa8", "A1 \n"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        for (size_t k = 0; k < sizeof(runs) / sizeof(runs[0]); k++) {
            expect_bytes(patterns[i], runs[k], 1000000);
        }
    }
    expect_bytes("o200k", " ", 20000000);
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *encode_often(void *tokenizer) {
    static const char text[] = "hello hellll lo hellooo <|endoftext|> it's \xff\xfe 12 llllllllll"
                               "llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll";
    tn_ids first = {0}, again = {0};
    bool same = tn_tokenizer_encode(tokenizer, text, sizeof(text) - 1, true, &first) == TN_OK;
    for (int i = 0; i < 300; i++) {
        again.count = 0;
        same = same &&
               tn_tokenizer_encode(tokenizer, text, sizeof(text) - 1, true, &again) == TN_OK &&
               again.count == first.count &&
               memcmp(again.ids, first.ids, (size_t)first.count * sizeof(int32_t)) == 0;
    }
    tn_ids_free(&first);
    tn_ids_free(&again);
    return same ? tokenizer : NULL;
}

TEST(several_threads) {
    pthread_t threads[4];
    tn_tokenizer *t = small_tokenizer();
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, t), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *same;
        assert_int_equal(pthread_join(threads[i], &same), 0);
        assert_ptr_equal(same, t);
    }
    tn_tokenizer_free(t);
}

TEST(ids_outside) {
    tn_tokenizer *t = small_tokenizer();
    size_t bytes;
    assert_string_equal(tn_tokenizer_bytes(t, SPACE_HELLO, &bytes), " hello");
    assert_int_equal(bytes, 6);
    assert_none(tn_tokenizer_bytes(t, SMALL_SIZE, &bytes), TN_EINDEX, "id 263, but there are 263");
    assert_none(tn_tokenizer_decode(t, (const int32_t[]){1, -1}, 2, &bytes), TN_EINDEX, "id -1");
    tn_tokenizer_free(t);
}

/* ---- Streams of UTF-8 ------------------------------------------------------------------------ */

/* The output is the same whether the bytes arrive one by one or at once. */
static void expect_stream(const char *bytes, const char *expected) {
    size_t count = strlen(bytes);
    for (size_t step = 1; step <= count + 1; step++) {
        char out[256];
        size_t all = 0;
        tn_utf8_stream s = {.count = 0};
        for (size_t at = 0; at < count; at += step) {
            size_t some = at + step < count ? step : count - at;
            size_t more = tn_utf8_put(&s, bytes + at, some, out + all);
            assert_true(more <= TN_UTF8_BOUND(some));
            all += more;
        }
        all += tn_utf8_end(&s, out + all);
        out[all] = 0;
        assert_string_equal(out, expected);
    }
}

#define REPLACED "\xef\xbf\xbd"

TEST(streams_are_utf8) {
    expect_stream("", "");
    expect_stream("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z",
                  "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z");
    expect_stream("\xe2\x82", REPLACED);
    expect_stream("\xe2\x82z", REPLACED "z");
    expect_stream("\xf0\x9f\x98\xf0\x9f\x98\x80", REPLACED "\xf0\x9f\x98\x80");
    expect_stream("\xc0\xaf", REPLACED REPLACED);
    expect_stream("\xed\xa0\x80", REPLACED REPLACED REPLACED);
    expect_stream("\xf4\x90\x80", REPLACED REPLACED REPLACED);
    expect_stream("\xff\xc3\xc3\xa4", REPLACED REPLACED "\xc3\xa4");
}

/* Rows of a batch: padded to the longest, cut at a length, with their lengths. */
TEST(texts_as_rows) {
    tn_tokenizer *t = small_tokenizer();
    const char *const texts[] = {"hello hello", "", "hellll oo"};
    tn_tensor *lengths;
    tn_tensor *rows = tn_tokenizer_encode_rows(t, texts, 3, tn_rows_defaults(), &lengths);
    static const int64_t all[] = {HELLO,       SPACE_HELLO, END_OF_TEXT, END_OF_TEXT,
                                  END_OF_TEXT, END_OF_TEXT, END_OF_TEXT, END_OF_TEXT,
                                  HELL,        LL,          ' ',         OO};
    static const int64_t counts[] = {2, 0, 4}, cut[] = {HELLO, 0, HELL};
    assert_int_equal(tn_size(rows, 0), 3);
    assert_int_equal(tn_size(rows, 1), 4);
    assert_memory_equal(tn_data(rows), all, sizeof(all));
    assert_memory_equal(tn_data(lengths), counts, sizeof(counts));
    rows = tn_tokenizer_encode_rows(t, texts, 3, TN_WITH(tn_rows, .max_length = 1, .pad = 0), NULL);
    assert_int_equal(tn_size(rows, 1), 1);
    assert_memory_equal(tn_data(rows), cut, sizeof(cut));
    /* 4 ids at most, or 1: 6 and 3 places, as a row that 3 ranks share needs; lengths stay */
    rows = tn_tokenizer_encode_rows(t, texts, 3, TN_WITH(tn_rows, .multiple = 3), &lengths);
    assert_int_equal(tn_size(rows, 1), 6);
    for (int64_t i = 0; i < 18; i++) {
        int64_t want = i % 6 < 4 ? all[i / 6 * 4 + i % 6] : END_OF_TEXT;
        assert_true(tn_at(rows, TN_DIMS(i / 6, i % 6)) == (double)want);
    }
    assert_memory_equal(tn_data(lengths), counts, sizeof(counts));
    rows = tn_tokenizer_encode_rows(t, texts, 3, TN_WITH(tn_rows, .max_length = 1, .multiple = 3),
                                    &lengths);
    assert_int_equal(tn_size(rows, 1), 3);
    static const int64_t cut_counts[] = {1, 0, 1};
    assert_memory_equal(tn_data(lengths), cut_counts, sizeof(cut_counts));
    rows = tn_tokenizer_encode_rows(t, texts, 3, TN_WITH(tn_rows, .multiple = 2), NULL);
    assert_int_equal(tn_size(rows, 1), 4);
    assert_inert(tn_tokenizer_encode_rows(t, texts, 3, TN_WITH(tn_rows, .multiple = 0), NULL),
                 TN_EVALUE, "multiple is 0 (it must be at least 1)");
    assert_inert(
        tn_tokenizer_encode_rows(t, texts, 3, TN_WITH(tn_rows, .multiple = INT64_MAX), NULL),
        TN_ENOMEM, "");
    const char *const special[] = {"oo<|endoftext|>"};
    rows = tn_tokenizer_encode_rows(t, special, 1, TN_WITH(tn_rows, .special = true), NULL);
    assert_int_equal(tn_size(rows, 1), 2);
    const char *const missing[] = {"a", NULL};
    assert_true(tn_is_inert(tn_tokenizer_encode_rows(t, missing, 2, tn_rows_defaults(), &lengths)));
    assert_error(TN_EVALUE, "text 1 is NULL");
    assert_true(tn_is_inert(lengths));
    tn_tokenizer_free(t);
}
