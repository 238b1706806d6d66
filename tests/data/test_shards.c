/* Token shards: both kinds of files, windows at the edges of shards, and files that are wrong. */
#include "tern/data.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/data/examples.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { HEAD = 1024, MOST = 64 };

static void put_word(unsigned char *at, int32_t value) {
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)((uint32_t)value >> (8 * i));
    }
}

/* A shard whose tokens are first, first + 1, …; magic 0: without a header. */
static void write_shard(const char *name, int32_t magic, int32_t version, int32_t said, int count,
                        int first) {
    unsigned char file[HEAD + 2 * MOST] = {0};
    size_t head = magic ? HEAD : 0;
    put_word(file, magic);
    put_word(file + 4, version);
    put_word(file + 8, said);
    for (int i = 0; i < count; i++) {
        file[head + 2 * (size_t)i] = (unsigned char)(first + i);
        file[head + 2 * (size_t)i + 1] = (unsigned char)((first + i) >> 8);
    }
    temp_write(temp_path(name), file, head + 2 * (size_t)count);
}

static void write_llmc(const char *name, int count, int first) {
    write_shard(name, 20240520, 1, count, count, first);
}

static void expect_window(tn_dataset *d, int64_t i, int64_t first) {
    int64_t x[4], y[4];
    assert_int_equal(tn_dataset_get(d, i, x, y), TN_OK);
    for (int t = 0; t < 4; t++) {
        assert_int_equal(x[t], first + t);
        assert_int_equal(y[t], first + t + 1);
    }
}

/* 13 tokens are 3 windows of 4 (the last target is token 12), 12 are 2, 4 are none. */
TEST_WITH(test_windows, NULL, temp_clean) {
    write_llmc("a_0.bin", 13, 0);
    write_shard("a_1.bin", 0, 0, 0, 4, 900);
    write_shard("a_2.bin", 0, 0, 0, 12, 50000);
    tn_dataset *d = tn_token_shards(temp_path("a_*.bin"), 4, 50257);
    assert_non_null(d);
    assert_int_equal(d->size, 5);
    expect_window(d, 0, 0);
    expect_window(d, 2, 8);
    expect_window(d, 3, 50000);
    expect_window(d, 4, 50004);
    tn_dataset_free(d);
}

/* The tokens of a file are first, first + 1, …: each but the first is a target once, with at least
 * length - stride + 1 tokens of context, or all before it. */
static void expect_sliding(const char *pattern, int64_t length, int64_t stride, int files,
                           int count) {
    tn_dataset *d = tn_sliding_shards(pattern, length, stride, 60000);
    assert_non_null(d);
    char seen[2 * MOST] = {0};
    int64_t x[MOST], y[MOST];
    for (int64_t i = 0; i < d->size; i++) {
        assert_int_equal(tn_dataset_get(d, i, x, y), TN_OK);
        for (int64_t t = 0; t < length; t++) {
            if (y[t] != -100) {
                int64_t token = y[t] % 1000; /* a_0 begins at 0, a_1 at 1000 */
                assert_int_equal(y[t], x[t] + 1);
                assert_true(t >= length - stride || token == t + 1);
                assert_int_equal(seen[MOST * (y[t] / 1000) + token]++, 0);
            }
        }
    }
    for (int i = 0; i < 2 * MOST; i++) {
        assert_int_equal(seen[i], i / MOST < files && i % MOST > 0 && i % MOST < count);
    }
    tn_dataset_free(d);
}

TEST_WITH(test_sliding, NULL, temp_clean) {
    for (int count = 2; count < 20; count++) {
        write_llmc("a_0.bin", count, 0);
        write_shard("a_1.bin", 0, 0, 0, count, 1000);
        for (int64_t length = 1; length <= 8; length++) {
            for (int64_t stride = 1; stride <= length; stride++) {
                expect_sliding(temp_path("a_*.bin"), length, stride, 2, count);
            }
        }
    }
    expect_sliding(temp_path("a_0.bin"), MOST, MOST, 1, 19);
}

TEST_WITH(test_sliding_refused, NULL, temp_clean) {
    write_llmc("a_0.bin", 1, 0);
    assert_none(tn_sliding_shards(temp_path("a_0.bin"), 4, 4, 100), TN_EFORMAT,
                "no file has the 2 tokens that a window of 4 takes (the longest has 1)");
    write_llmc("a_0.bin", 10, 95);
    assert_none(tn_sliding_shards(temp_path("a_0.bin"), 4, 5, 100), TN_EVALUE,
                "the stride is 5, not in [1, 4]");
    assert_none(tn_sliding_shards(temp_path("a_0.bin"), 4, 0, 100), TN_EVALUE, "the stride is 0");
    tn_dataset *d = tn_sliding_shards(temp_path("a_0.bin"), 4, 2, 100);
    int64_t x[4], y[4];
    assert_int_equal(tn_dataset_get(d, 0, x, y), TN_OK);
    assert_fails(tn_dataset_get(d, 1, x, y), TN_EFORMAT,
                 "token 5 is 100 but the vocabulary has 100");
    tn_dataset_free(d);
}

TEST_WITH(test_through_a_loader, NULL, temp_clean) {
    write_llmc("a_0.bin", 13, 0);
    tn_loader_options o = TN_WITH(tn_loader, .batch = 3);
    tn_loader *loader =
        tn_loader_new(tn_token_shards(temp_path("a_0.bin"), 4, 13), tn_sequential_sampler(), o);
    tn_batch b;
    assert_true(tn_loader_next(loader, &b));
    assert_int_equal((int)tn_at(b.y, TN_DIMS(2, 3)), 12);
    assert_false(tn_loader_next(loader, &b));
    tn_loader_free(loader);
}

TEST_WITH(test_token_outside, NULL, temp_clean) {
    write_llmc("a_0.bin", 13, 0);
    tn_dataset *d = tn_token_shards(temp_path("a_0.bin"), 4, 12);
    int64_t x[4], y[4];
    assert_int_equal(tn_dataset_get(d, 1, x, y), TN_OK);
    assert_fails(tn_dataset_get(d, 2, x, y), TN_EFORMAT,
                 "token 12 is 12 but the vocabulary has 12");
    tn_dataset_free(d);
}

TEST_WITH(test_wrong_files, NULL, temp_clean) {
    const char *path = temp_path("a_0.bin");
    assert_none(tn_token_shards(path, 4, 100), TN_EIO, "no such file");
    write_shard("a_0.bin", 20240520, 2, 13, 13, 0);
    assert_none(tn_token_shards(path, 4, 100), TN_EFORMAT, "version 2");
    write_shard("a_0.bin", 20240520, 1, 14, 13, 0);
    assert_none(tn_token_shards(path, 4, 100), TN_EFORMAT, "says 14 tokens but 13 follow");
    write_llmc("a_0.bin", 4, 0);
    assert_none(tn_token_shards(path, 4, 100), TN_EFORMAT,
                "no file has the 5 tokens that a window of 4 takes (the longest has 4)");
    temp_write(path, "abc", 3);
    assert_none(tn_token_shards(path, 1, 100), TN_EFORMAT, "not a whole number");
    temp_write(path, "", 0);
    assert_none(tn_token_shards(path, 1, 100), TN_EFORMAT, "empty");
    assert_none(tn_token_shards(path, 0, 100), TN_EVALUE,
                "the window is 0 (it must be at least 1)");
}

/* Files of other kinds, whose bytes could all be tokens. */
TEST_WITH(test_other_kinds, NULL, temp_clean) {
    const char *path = temp_path("a_0.bin");
    static const char *const texts[] = {"It was the best of times,\n", "C'\xc3\xa9tait le temps\n",
                                        "C'\xe9tait en Latin 1\r\n"};
    char text[6000];
    for (int i = 0; i < 3; i++) {
        for (size_t at = 0; at < sizeof(text); at++) {
            text[at] = texts[i][at % strlen(texts[i])];
        }
        temp_write(path, text, sizeof(text));
        assert_none(tn_token_shards(path, 4, 65536), TN_EFORMAT,
                    "a_0.bin is text, not tokens: `tern tokens /");
    }
    text[3000] = 1; /* one token that cannot be in text */
    temp_write(path, text, sizeof(text));
    tn_dataset *d = tn_token_shards(path, 4, 65536);
    assert_non_null(d);
    tn_dataset_free(d);
    memcpy(text, "\x93NUMPY\x01\x00", 8);
    temp_write(path, text, sizeof(text));
    assert_none(tn_token_shards(path, 4, 65536), TN_EFORMAT, "a NumPy array");
    static const struct {
        const char *bytes, *is;
    } others[] = {
        {"\x1f\x8b\x08\0\0\0\0\0\0\0", "is compressed (gzip), not tokens: if it has text in it"},
        {"\x28\xb5\x2f\xfd\0\0\0\0\0\0", "is compressed (zstd)"},
        {"\x02\0\0\0\0\0\0\0{}", "is a safetensors file"},
        {"\xc6\xd7\x34\x01\3\0\0\0\0\0", "is an llm.c checkpoint"},
        {"\0\0\x08\x01\0\0\0\x02\x01\x02", "is an idx file, as MNIST's are"},
        {"PK\x03\x04\0\0\0\0\0\0", "is a zip archive"},
        {"PAR1\0\0\0\0\0\0", "is a Parquet file"}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        temp_write(path, others[i].bytes, 10);
        assert_none(tn_token_shards(path, 4, 65536), TN_EFORMAT, others[i].is);
    }
    temp_write(temp_path("a.jsonl"), "{\"text\": \"x\"}\n",
               14); /* short, but not named as tokens */
    assert_none(tn_token_shards(temp_path("a.jsonl"), 4, 65536), TN_EFORMAT,
                "a.jsonl is text, not tokens");
}

/* ---- What the writer writes ------------------------------------------------------------------ */

/* first, first + 1, … in shards of 10. */
static void write_tokens(const char *prefix, int64_t vocab, int count, int32_t first) {
    tn_shards_options o = TN_WITH(tn_shards, .vocab = vocab, .shard_tokens = 10);
    tn_shards_writer *w = tn_shards_writer_new(temp_path(prefix), o);
    for (int32_t i = 0; i < count; i++) {
        int32_t token = first + i;
        assert_int_equal(tn_shards_writer_add(w, &token, 1), TN_OK);
    }
    assert_int_equal(tn_shards_writer_finish(w), TN_OK);
    assert_int_equal(tn_shards_writer_tokens(w), count);
    assert_int_equal(tn_shards_writer_shards(w), (count + 9) / 10);
    tn_shards_writer_free(w);
}

TEST_WITH(test_written, NULL, temp_clean) {
    write_tokens("w", 50257, 23, 40000);
    write_llmc("same.bin", 10, 40010);
    temp_same(temp_path("w_000001.bin"), temp_path("same.bin"));
    tn_dataset *d = tn_token_shards(temp_path("w_*.bin"), 4, 50257);
    assert_int_equal(d->size, 4); /* 2, 2 and none */
    expect_window(d, 3, 40014);
    tn_dataset_free(d);
}

/* 32 bits: the same windows, for training and sliding. */
TEST_WITH(test_wide, NULL, temp_clean) {
    write_tokens("w", 128256, 20, 100000);
    size_t bytes;
    unsigned char *file = temp_read(temp_path("w_000000.bin"), &bytes);
    assert_int_equal(bytes, HEAD + 40);
    assert_memory_equal(file, "\xa1\xd9\x34\x01\x07\0\0\0\x0a\0\0\0\0", 13);
    free(file);
    tn_dataset *d = tn_token_shards(temp_path("w_*.bin"), 4, 128256);
    assert_int_equal(d->size, 4);
    expect_window(d, 0, 100000);
    expect_window(d, 3, 100014);
    tn_dataset_free(d);
    int64_t x[4], y[4];
    d = tn_token_shards(temp_path("w_*.bin"), 4, 100015);
    assert_fails(tn_dataset_get(d, 3, x, y), TN_EFORMAT,
                 "w_000001.bin: token 5 is 100015 but the vocabulary has 100015");
    tn_dataset_free(d);
    d = tn_sliding_shards(temp_path("w_000001.bin"), 4, 4, 128256);
    assert_int_equal(d->size, 3);
    assert_int_equal(tn_dataset_get(d, 2, x, y), TN_OK);
    assert_int_equal(x[0], 100018);
    assert_int_equal(y[0], 100019);
    assert_int_equal(y[1], -100);
    tn_dataset_free(d);
    assert_int_equal(truncate(temp_path("w_000000.bin"), HEAD + 38), 0);
    assert_none(tn_token_shards(temp_path("w_*.bin"), 4, 128256), TN_EFORMAT,
                "38 bytes of tokens, which is not a whole number of 32-bit tokens");
}

TEST_WITH(test_writer_refuses, NULL, temp_clean) {
    tn_shards_options o = TN_WITH(tn_shards, .vocab = 10);
    tn_shards_writer *w = tn_shards_writer_new(temp_path("w"), o);
    int32_t tokens[] = {9, 10, -1};
    assert_fails(tn_shards_writer_add(w, tokens, 2), TN_EINDEX,
                 "a token is 10 but the vocabulary has 10");
    assert_fails(tn_shards_writer_add(w, tokens + 2, 1), TN_EINDEX, "a token is -1");
    assert_fails(tn_shards_writer_add_pair(w, tokens, 1, 0), TN_ESTATE,
                 "this writer does not take pairs");
    assert_int_equal(tn_shards_writer_add(w, tokens, 1), TN_OK);
    tn_shards_writer_free(w); /* and nothing of it is left */
    assert_int_equal(temp_count(), 0);
    o.pairs = true;
    w = tn_shards_writer_new(temp_path("w"), o);
    assert_fails(tn_shards_writer_add(w, tokens, 1), TN_ESTATE, "this writer takes only pairs");
    assert_fails(tn_shards_writer_add_pair(w, tokens, 1, 2), TN_EVALUE,
                 "1 tokens, 2 of them the prompt");
    tn_shards_writer_free(w);
    o.vocab = 0;
    assert_none(tn_shards_writer_new(temp_path("w"), o), TN_EVALUE, "vocabulary 0");
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

/* Lengths of prompt and whole; tokens are 100 i, 100 i + 1, … */
static const int64_t pairs[][2] = {{2, 4}, {1, 2}, {0, 3}, {5, 9}, {3, 3}, {1, 8}};
enum { PAIRS = 6 };

static void write_pairs(const char *prefix) {
    tn_shards_options o = TN_WITH(tn_shards, .shard_tokens = 8, .pairs = true);
    tn_shards_writer *w = tn_shards_writer_new(temp_path(prefix), o);
    for (int32_t i = 0; i < PAIRS; i++) {
        int32_t tokens[16];
        for (int32_t t = 0; t < 16; t++) {
            tokens[t] = 100 * i + t;
        }
        assert_int_equal(tn_shards_writer_add_pair(w, tokens, pairs[i][1], pairs[i][0]), TN_OK);
    }
    assert_int_equal(tn_shards_writer_finish(w), TN_OK);
    assert_int_equal(tn_shards_writer_shards(w), 5); /* 4 + 2, 3, 9, 3, 8 */
    tn_shards_writer_free(w);
}

/* Each window is a pair; only tokens of the completion are targets. A pair that is too long loses
 * its beginning. */
static void expect_pairs(tn_dataset *d) {
    enum { LENGTH = 6 };
    assert_int_equal(d->size, PAIRS);
    for (int64_t i = 0; i < PAIRS; i++) {
        int64_t x[LENGTH], y[LENGTH], all = pairs[i][1];
        int64_t gone = all > LENGTH + 1 ? all - (LENGTH + 1) : 0; /* tokens lost at the beginning */
        assert_int_equal(tn_dataset_get(d, i, x, y), TN_OK);
        for (int64_t t = 0; t < LENGTH; t++) {
            int64_t place = gone + t;
            bool there = place + 1 < all, learned = there && place + 1 >= pairs[i][0];
            assert_int_equal(x[t], there ? 100 * i + place : 0);
            assert_int_equal(y[t], learned ? 100 * i + place + 1 : -100);
        }
    }
    tn_dataset_free(d);
}

TEST_WITH(test_pairs, NULL, temp_clean) {
    write_pairs("w");
    expect_pairs(tn_token_shards(temp_path("w_*.bin"), 6, 50257));
    expect_pairs(tn_sliding_shards(temp_path("w_*.bin"), 6, 3, 50257));
    tn_dataset *d = tn_token_shards(temp_path("w_*.bin"), 6, 503);
    int64_t x[6], y[6];
    assert_fails(tn_dataset_get(d, 5, x, y), TN_EFORMAT,
                 "w_000004.bin: token 3 is 503 but the vocabulary has 503");
    tn_dataset_free(d);
}

/* Wrong shards of pairs: numbers that do not fit, and pairs with wrong places. */
TEST_WITH(test_wrong_pairs, NULL, temp_clean) {
    static const struct {
        off_t at; /* from the end if negative */
        unsigned char is;
        const char *part;
    } wrong[] = {{8, 5, "its header says 5 tokens and 2 pairs, but 40 bytes follow"},
                 {12, 3, "its header says 6 tokens and 3 pairs"},
                 {4, 9, "version 9"},
                 {-16, 7, "pair 0 should be between tokens 0 and 7 of 6"},
                 {-16, 0, "pair 0 should be between tokens 0 and 0"},
                 {-9, 0xff, "pair 0 should be"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_pairs("w");
        const char *path = temp_path("w_000000.bin");
        int file = open(path, O_RDWR);
        off_t at = wrong[i].at < 0 ? HEAD + 24 + 16 + wrong[i].at : wrong[i].at;
        assert_int_equal(pwrite(file, &wrong[i].is, 1, at), 1);
        close(file);
        tn_dataset *d = tn_token_shards(path, 6, 50257);
        int64_t x[6], y[6];
        if (d) { tn_dataset_get(d, 0, x, y); }
        assert_error(TN_EFORMAT, wrong[i].part);
        tn_dataset_free(d);
    }
}

/* ---- tokens.json ----------------------------------------------------------------------------- */

static void write_beside(const char *text) {
    temp_write(temp_path("tokens.json"), text, strlen(text));
}

TEST_WITH(test_tokens_json, NULL, temp_clean) {
    write_tokens("train", 50257, 20, 0);
    write_tokens("other", 50257, 20, 0);
    write_beside("{\"format\":\"tern-tokens-1\",\"finished\":true,\"vocab\":50257}");
    assert_int_equal(tn_token_shards_vocab(temp_path("*.bin")), 50257);
    assert_int_equal(tn_token_shards_vocab(temp_path("other_*.bin")), 0);
    tn_dataset_free(tn_token_shards(temp_path("train_*.bin"), 4, 50304));
    assert_none(tn_token_shards(temp_path("train_*.bin"), 4, 256), TN_EFORMAT,
                "train_000000.bin has tokens of a vocabulary of 50257, but 256 are wanted");
    tn_dataset_free(tn_token_shards(temp_path("other_*.bin"), 4, 256)); /* not one of its files */
    write_beside("{\"format\":\"tern-tokens-1\",\"finished\":false}");
    assert_none(tn_token_shards(temp_path("train_*.bin"), 4, 50304), TN_EFORMAT,
                "train_000000.bin is one of an unfinished set");
    static const char *const broken[] = {"", "{", "[]", "{\"format\":1}",
                                         "{\"format\":\"tern-tokens-1\",\"finished\":true}"};
    for (int i = 0; i < 5; i++) {
        write_beside(broken[i]);
        assert_none(tn_token_shards(temp_path("train_*.bin"), 4, 50304), TN_EFORMAT, "tokens.json");
    }
}

/* ---- Files that change while they are in use ------------------------------------------------- */

/* `count` zeros. */
static void write_zeros(const char *name, size_t count) {
    unsigned char *zeros = calloc(count, 2);
    assert_non_null(zeros);
    temp_write(temp_path(name), zeros, 2 * count);
    free(zeros);
}

/* Batches until there are no more. */
static int drain_loader(tn_loader *loader) {
    int batches = 0;
    for (tn_batch b; tn_loader_next(loader, &b);) {
        batches++;
    }
    return batches;
}

TEST_WITH(test_cut_short, NULL, temp_clean) {
    for (int threads = 0; threads <= 2; threads += 2) {
        write_zeros("a_0.bin", 1 << 20);
        tn_loader_options o = TN_WITH(tn_loader, .batch = 3, .threads = threads);
        tn_loader *loader = tn_loader_new(tn_token_shards(temp_path("a_0.bin"), 1024, 100),
                                          tn_sequential_sampler(), o);
        tn_batch b;
        assert_true(tn_loader_next(loader, &b));
        assert_int_equal(truncate(temp_path("a_0.bin"), 100000), 0);
        assert_true(drain_loader(loader) < (1 << 10) / 3);
        assert_error(TN_EIO, "a_0.bin was cut short while it was read: it had 2097152 bytes");
        tn_loader_free(loader);
    }
}

/* More shards than are kept open, and those after the first are opened for each example. */
TEST_WITH(test_many_shards, NULL, temp_clean) {
    enum { SHARDS = 300 };
    char name[16];
    for (int i = 0; i < SHARDS; i++) {
        snprintf(name, sizeof(name), "a_%03d.bin", i);
        write_llmc(name, 9, 100 * i);
    }
    struct rlimit before, few = {0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few.rlim_cur = 64;
    few.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    tn_dataset *same = tn_token_shards(temp_path("a_*.bin"), 4, 65536);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_non_null(same);
    expect_window(same, 2 * SHARDS - 1, 100 * (SHARDS - 1) + 4);
    tn_dataset_free(same);
    tn_dataset *d = tn_token_shards(temp_path("a_*.bin"), 4, 65536);
    assert_non_null(d);
    assert_int_equal(d->size, 2 * SHARDS);
    for (int i = 0; i < SHARDS; i++) {
        expect_window(d, 2 * i, 100 * i);
        expect_window(d, 2 * i + 1, 100 * i + 4);
    }
    int64_t x[4], y[4];
    write_llmc("another", 9, 0);
    assert_int_equal(rename(temp_path("another"), temp_path("a_299.bin")), 0);
    assert_fails(tn_dataset_get(d, 2 * SHARDS - 1, x, y), TN_EIO,
                 "a_299.bin is no longer the same file");
    assert_int_equal(unlink(temp_path("a_298.bin")), 0);
    assert_fails(tn_dataset_get(d, 2 * SHARDS - 3, x, y), TN_EIO, "a_298.bin: No such file");
    tn_dataset_free(d);
}

/* ---- Recognising a corpus -------------------------------------------------------------------- */

static identity description_of(const char *pattern) {
    return identify_and_free(tn_token_shards(temp_path(pattern), 4, 50257));
}

TEST_WITH(test_other_tokens_are_noticed, NULL, temp_clean) {
    write_llmc("one_0.bin", 40, 0);
    write_llmc("one_1.bin", 30, 900);
    identity one = description_of("one_*.bin");
    assert_contains(one.text, "{\"files\":2,\"digest\":\"");
    write_llmc("two_0.bin", 40, 0); /* another name, with or without a header */
    write_shard("two_1.bin", 0, 0, 0, 30, 900);
    assert_string_equal(description_of("two_*.bin").text, one.text);
    write_llmc("two_1.bin", 30, 901);
    assert_string_not_equal(description_of("two_*.bin").text, one.text);
    write_llmc("two_0.bin", 41, 0); /* the same tokens, cut at another place */
    assert_string_not_equal(description_of("two_*.bin").text, one.text);
    write_llmc("six_0.bin", 30, 900);
    write_llmc("six_1.bin", 40, 0);
    assert_string_not_equal(description_of("six_*.bin").text, one.text);
}

enum { LARGE = 64 << 20, PAGE = 4096 };

/* A large file is recognised by some of its pages, including the first and the last. */
TEST_WITH(test_a_large_file_is_sampled, NULL, temp_clean) {
    const char *path = temp_path("large.bin");
    unsigned char one = 1;
    temp_write(path, &one, 1);
    assert_int_equal(truncate(path, LARGE), 0);
    identity before = description_of("large.bin");

    int file = open(path, O_RDWR);
    assert_int_equal(pwrite(file, "\7", 1, PAGE + 1000), 1); /* between two of them */
    assert_string_equal(description_of("large.bin").text, before.text);
    static const off_t seen[] = {0, LARGE - 2};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pwrite(file, "\7", 1, seen[i]), 1);
        identity after = description_of("large.bin");
        assert_string_not_equal(after.text, before.text);
        before = after;
    }
    close(file);
    assert_int_equal(truncate(path, LARGE - 2), 0);
    assert_string_not_equal(description_of("large.bin").text, before.text);
}
