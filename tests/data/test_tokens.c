/* Texts to shards: their contents, the same bytes for any number of threads, the validation
 * split, and wrong folders. */
#include "tern/tokenizer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/data/packed.h"
#include "tests/data/small_tokenizer.h"

static tn_tokenizer *small;

static int begin_test(void **state) {
    small = small_tokenizer();
    return 0;
}

static int end_test(void **state) {
    tn_tokenizer_free(small);
    assert_int_equal(tn_error(), TN_OK);
    return temp_clean(state);
}

#define MAKES(name) TEST_WITH(name, begin_test, end_test)

/* ---- Making and reading ---------------------------------------------------------------------- */

static void write_text(const char *name, const char *text) {
    temp_write(temp_path(name), text, strlen(text));
}

static tn_status make_tokens(const char *in, const char *out, tn_tokens_options o,
                             tn_tokens_made *made) {
    const char *path = temp_path(in);
    return tn_tokens_make(small, &path, 1, temp_path(out), o, made);
}

/* The tokens of FOLDER/NAME_000000.bin, NAME_000001.bin … together. */
static tn_ids read_split(const char *out, const char *name) {
    tn_ids all = {0};
    for (int i = 0;; i++) {
        char path[64];
        size_t bytes;
        snprintf(path, sizeof(path), "%s/%s_%06d.bin", out, name, i);
        if (access(temp_path(path), F_OK) != 0) { return all; }
        unsigned char *file = temp_read(temp_path(path), &bytes);
        int64_t count = (int64_t)(bytes - 1024) / 2;
        assert_memory_equal(file, "\x88\xd8\x34\x01\1\0\0\0", 8);
        assert_int_equal(file[8] | file[9] << 8 | file[10] << 16, count);
        all.ids = realloc(all.ids, (size_t)(all.count + count + 1) * sizeof(int32_t));
        assert_non_null(all.ids);
        for (int64_t t = 0; t < count; t++) {
            all.ids[all.count + t] = file[1024 + 2 * t] | file[1025 + 2 * t] << 8;
        }
        all.count += count;
        free(file);
    }
}

/* As a text, with '|' where a document begins. */
static char *read_text(const char *out, const char *name) {
    tn_ids ids = read_split(out, name);
    char *text = calloc((size_t)ids.count * 8 + 1, 1);
    assert_non_null(text);
    for (int64_t i = 0; i < ids.count; i++) {
        size_t bytes;
        const char *token = tn_tokenizer_bytes(small, ids.ids[i], &bytes);
        strcat(text, ids.ids[i] == END_OF_TEXT ? "|" : token);
    }
    tn_ids_free(&ids);
    return text;
}

static void expect_text(const char *out, const char *name, const char *expected) {
    char *text = read_text(out, name);
    assert_string_equal(text, expected);
    free(text);
}

/* ---- Contents -------------------------------------------------------------------------------- */

MAKES(test_documents) {
    assert_int_equal(mkdir(temp_path("in"), 0700), 0);
    write_text("in/a.jsonl",
               "{\"text\":\"hello hello\"}\n{\"text\":\"\"}\n{\"text\":\"<|endoftext|>\"}\n");
    write_text("in/b.txt", "to be\n");
    tn_tokens_options o = tn_tokens_defaults();
    tn_tokens_made made;
    o.shard_bytes = 20;
    assert_int_equal(make_tokens("in", "out", o, &made), TN_OK);
    expect_text("out", "train", "|hello hello||<|endoftext|>|to be\n");
    tn_ids ids = read_split("out", "train");
    assert_int_equal(ids.ids[0], END_OF_TEXT);
    assert_int_equal(ids.ids[1], HELLO);
    assert_int_equal(ids.ids[2], SPACE_HELLO);
    assert_int_equal(ids.count, made.train);
    tn_ids_free(&ids);
    assert_int_equal(made.documents, 4);
    assert_int_equal(made.with_end, 1);
    assert_int_equal(made.files, 2);
    assert_int_equal(made.text, 11 + 13 + 6);
    assert_int_equal(made.read, made.bytes);
    assert_int_equal(made.train_shards, 2); /* 11 + 0 + 13, 6 bytes */
    assert_int_equal(made.val, 0);
    size_t bytes;
    char *json = (char *)temp_read(temp_path("out/tokens.json"), &bytes);
    assert_contains(json, "\"finished\": true");
    assert_contains(json, "\"vocab\": 263");
    assert_contains(json, "\"eot\": 262");
    assert_contains(json, "\"documents\": 4");
    free(json);
    tn_dataset *d = tn_token_shards(temp_path("out/train_*.bin"), 4, 263);
    assert_non_null(d);
    tn_dataset_free(d);
    assert_none(tn_token_shards(temp_path("out/train_*.bin"), 4, 256), TN_EFORMAT,
                "has tokens of a vocabulary of 263, but 256 are wanted");
}

/* A document's last piece is nothing but blanks, which are left out: it begins no shard. */
MAKES(test_nothing_left) {
    char text[3001];
    tn_tokens_options o = tn_tokens_defaults();
    tn_tokens_made made;
    for (int i = 0; i < 3000; i++) {
        text[i] = i < 1500 ? "oo "[i % 3] : ' ';
    }
    strcpy(text + 2990, "--he");
    write_text("a.txt", text);
    o.corpus.split = "--";
    o.shard_bytes = 1;
    assert_int_equal(make_tokens("a.txt", "out", o, &made), TN_OK);
    assert_int_equal(made.documents, 2);
    char *all = read_text("out", "train");
    assert_string_equal(all + strlen(all) - 5, "oo|he");
    free(all);
    assert_int_equal(made.text, 1499 + 2);
}

/* Words, spaces, newlines, and bytes that are not text; no spaces if !spaces. */
static char *made_text(size_t bytes, uint32_t seed, bool spaces) {
    static const char *const parts[] = {"hello", " ",    "\n", "oo",     "  ",           "\n\n",
                                        "he",    "\xff", ".",  " hello", "\xe6\x96\x87", "/"};
    char *text = malloc(bytes + 8);
    assert_non_null(text);
    for (size_t at = 0; at < bytes;) {
        seed = seed * 1664525 + 1013904223;
        const char *part = parts[(seed >> 16) % 12];
        at += spaces || !strchr(part, ' ') ? (size_t)sprintf(text + at, "%s", part) : 0;
    }
    text[bytes] = 0;
    return text;
}

/* Its merges are those of such texts: a cut at a wrong place would prevent some. */
static tn_tokenizer *tokenizer_with(const char *pattern) {
    enum { BYTES = 1 << 17 };
    char *text = made_text(BYTES, 2, true);
    const char *texts[] = {text};
    tn_tokenizer *t =
        tn_tokenizer_train(texts, (const size_t[]){BYTES}, 1,
                           TN_WITH(tn_tokenizer_train, .vocab = 400, .pattern = pattern));
    assert_non_null(t);
    free(text);
    return t;
}

static void check_pieces(const tn_tokenizer *t, bool spaces) {
    enum { BYTES = 1 << 20 };
    char *text = made_text(BYTES, 1, spaces);
    temp_write(temp_path("a.txt"), text, BYTES);
    const char *path = temp_path("a.txt");
    tn_tokens_options o = tn_tokens_defaults();
    tn_tokens_made made;
    o.overwrite = true;
    assert_int_equal(tn_tokens_make(t, &path, 1, temp_path("out"), o, &made), TN_OK);
    tn_ids whole = {0}, written = read_split("out", "train");
    assert_int_equal(tn_tokenizer_encode(t, text, BYTES, false, &whole), TN_OK);
    assert_int_equal(written.count, whole.count + 1);
    assert_memory_equal(written.ids + 1, whole.ids, (size_t)whole.count * sizeof(int32_t));
    assert_int_equal(made.documents, 1);
    tn_ids_free(&whole);
    tn_ids_free(&written);
    free(text);
}

/* A long text comes in pieces, and their tokens are those of the whole, whatever the pattern. */
MAKES(test_pieces_are_the_whole) {
    static const char *const patterns[] = {"gpt2", "llama3", "o200k"};
    for (int i = 0; i < 3; i++) {
        tn_tokenizer *t = tokenizer_with(patterns[i]);
        check_pieces(t, true);
        check_pieces(t, false);
        tn_tokenizer_free(t);
    }
}

/* Many documents, short and long ones, in three files. */
static void write_many(const char *folder) {
    char path[64];
    assert_int_equal(mkdir(temp_path(folder), 0700), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%d.jsonl", folder, i);
        FILE *f = fopen(temp_path(path), "wb");
        assert_non_null(f);
        for (int n = 0; n < 3000; n++) {
            fprintf(f, "{\"text\": \"%d hello\\n%.*s\"}\n", n, n % 400, "oo he hello ");
        }
        assert_int_equal(fclose(f), 0);
    }
    char *text = made_text(1 << 20, 7, true);
    packed z = pack_zstd(text, 1 << 20);
    snprintf(path, sizeof(path), "%s/z.txt.zst", folder);
    packed_write(temp_path(path), z, z.bytes, 1);
    free(text);
}

MAKES(test_threads) {
    static const int threads[] = {1, 2, 3, 8};
    write_many("in");
    tn_tokens_options o = TN_WITH(tn_tokens, .val = 0.1, .shard_bytes = 1000000);
    for (int i = 0; i < 4; i++) {
        char out[16];
        tn_tokens_made made;
        snprintf(out, sizeof(out), "out%d", i);
        o.threads = threads[i];
        assert_int_equal(make_tokens("in", out, o, &made), TN_OK);
        assert_int_equal(made.documents, 6001);
        assert_true(made.train_shards >= 2 && made.val_shards == 1);
        temp_same_folders(temp_path("out0"), temp_path(out));
    }
}

/* ---- The validation split -------------------------------------------------------------------- */

/* 1000 documents: the share is nearly exact, spread over all, and differs with the seed. */
MAKES(test_share) {
    enum { DOCUMENTS = 1000 };
    FILE *f = fopen(temp_path("a.jsonl"), "wb");
    assert_non_null(f);
    for (int i = 0; i < DOCUMENTS; i++) {
        fprintf(f, "{\"text\": \"%03d\"}\n", i);
    }
    assert_int_equal(fclose(f), 0);
    static const double shares[] = {0.01, 0.03, 0.1, 1.0 / 3, 0.5, 0.7, 0.999};
    for (int i = 0; i < 7; i++) {
        for (uint64_t seed = 1; seed <= 2; seed++) {
            tn_tokens_options o = tn_tokens_defaults();
            tn_tokens_made made;
            o.val = shares[i];
            o.seed = seed;
            o.overwrite = true;
            assert_int_equal(make_tokens("a.jsonl", seed == 1 ? "out" : "out2", o, &made), TN_OK);
            assert_true(llabs(made.val / 4 - (int64_t)(DOCUMENTS * shares[i])) <= 1);
            assert_int_equal(made.val + made.train, 4 * DOCUMENTS);
        }
        char *one = read_text("out", "val"), *two = read_text("out2", "val");
        char *train = read_text("out", "train");
        assert_true(shares[i] > 0.99 || strcmp(one, two) != 0);
        for (char *c = one; *c; c += 4) { /* none is in both */
            char document[5] = "";
            memcpy(document, c, 4);
            assert_null(strstr(train, document));
        }
        free(one);
        free(two);
        free(train);
    }
    tn_tokens_options o = TN_WITH(tn_tokens, .val_documents = 3, .overwrite = true);
    assert_int_equal(make_tokens("a.jsonl", "out", o, NULL), TN_OK);
    expect_text("out", "val", "|000|001|002");
}

/* From one long text passages are drawn; what follows a drawn passage begins a new document. */
MAKES(test_share_of_one_text) {
    enum { WORDS = 20000 };
    FILE *f = fopen(temp_path("a.txt"), "wb");
    assert_non_null(f);
    for (int i = 0; i < WORDS; i++) {
        fprintf(f, "%05d ", i);
    }
    assert_int_equal(fclose(f), 0);
    tn_tokens_options o = tn_tokens_defaults();
    tn_tokens_made made;
    o.val = 0.1;
    assert_int_equal(make_tokens("a.txt", "out", o, &made), TN_OK);
    assert_int_equal(made.documents, 1);
    assert_true(made.val > made.train / 20 && made.val < made.train / 5);
    char *splits[] = {read_text("out", "train"), read_text("out", "val")};
    int seen = 0;
    for (int s = 0; s < 2; s++) {
        int last = -2;
        for (char *c = splits[s]; *c;) {
            bool begins = *c == '|';
            c += begins;
            c += *c == ' ';
            if (!*c) { break; }
            int word = (int)strtol(c, &c, 10);
            assert_int_equal(begins, word != last + 1);
            last = word;
            seen++;
        }
        free(splits[s]);
    }
    assert_int_equal(seen, WORDS);
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

MAKES(test_pairs) {
    write_text("a.jsonl", "{\"prompt\":\"hello\",\"completion\":\" hello\"}\n"
                          "{\"prompt\":\"\",\"completion\":\"oo\"}\n"
                          "{\"prompt\":\"he\",\"completion\":\"\"}\n");
    tn_tokens_options o = tn_tokens_defaults();
    tn_tokens_made made;
    o.corpus.pairs = true;
    assert_int_equal(make_tokens("a.jsonl", "out", o, &made), TN_OK);
    assert_int_equal(made.documents, 3);
    assert_int_equal(made.longest, 3);
    static const int64_t expected[3][2][3] = {
        {{HELLO, SPACE_HELLO, 0}, {SPACE_HELLO, END_OF_TEXT, -100}},
        {{END_OF_TEXT, OO, 0}, {OO, END_OF_TEXT, -100}},
        {{HE, 0, 0}, {END_OF_TEXT, -100, -100}}};
    tn_dataset *d = tn_token_shards(temp_path("out/train_*.bin"), 3, SMALL_SIZE);
    assert_non_null(d);
    assert_int_equal(d->size, 3);
    for (int64_t i = 0; i < 3; i++) {
        int64_t x[3], y[3];
        assert_int_equal(tn_dataset_get(d, i, x, y), TN_OK);
        assert_memory_equal(x, expected[i][0], sizeof(x));
        assert_memory_equal(y, expected[i][1], sizeof(y));
    }
    tn_dataset_free(d);
}

/* ---- What is wrong --------------------------------------------------------------------------- */

MAKES(test_wrong_texts) {
    tn_tokens_options o = tn_tokens_defaults();
    write_many("in");
    FILE *f = fopen(temp_path("in/1.jsonl"), "ab");
    assert_non_null(f);
    fputs("{\"text\": \n", f);
    assert_int_equal(fclose(f), 0);
    for (o.threads = 1; o.threads <= 3; o.threads++) {
        o.shard_bytes = 20000;
        assert_fails(make_tokens("in", "out", o, NULL), TN_EFORMAT,
                     "in/1.jsonl: line 3001: a value should begin here");
        assert_none(tn_token_shards(temp_path("out/train_*.bin"), 4, 263), TN_EFORMAT,
                    "train_000000.bin is one of an unfinished set");
    }
    write_text("empty.txt", "");
    assert_fails(make_tokens("empty.txt", "other", o, NULL), TN_EFORMAT, "there is no document");
    assert_fails(make_tokens("nothing", "never", o, NULL), TN_EIO, "nothing: No such file");
    assert_int_not_equal(access(temp_path("never"), F_OK), 0);
    o.eot = "<|nothing|>";
    assert_fails(make_tokens("in", "never", o, NULL), TN_EVALUE,
                 "no special token \"<|nothing|>\"");
    o.eot = NULL;
    o.val = 1;
    assert_fails(make_tokens("in", "never", o, NULL), TN_EVALUE, "a validation share of 1");
}

MAKES(test_folders) {
    tn_tokens_options o = tn_tokens_defaults();
    write_text("a.txt", "hello\nhe");
    o.corpus.split = "\n";
    o.shard_bytes = 1;
    assert_int_equal(make_tokens("a.txt", "out", o, NULL), TN_OK);
    assert_int_equal(access(temp_path("out/train_000001.bin"), F_OK), 0);
    assert_fails(make_tokens("a.txt", "out", o, NULL), TN_ESTATE,
                 "out has tokens already (--overwrite replaces them)");
    write_text("out/notes.txt", "mine");
    write_text("out/val_000000.bin.tmp", "left by somebody who was killed");
    o.overwrite = true;
    o.shard_bytes = 10000;
    assert_int_equal(make_tokens("a.txt", "out", o, NULL), TN_OK);
    expect_text("out", "train", "|hello|he");
    assert_int_not_equal(access(temp_path("out/train_000001.bin"), F_OK), 0);
    assert_int_not_equal(access(temp_path("out/val_000000.bin.tmp"), F_OK), 0);
    assert_int_equal(access(temp_path("out/notes.txt"), F_OK), 0);

    assert_int_equal(mkdir(temp_path("theirs"), 0700), 0); /* written by another program */
    write_text("theirs/train_000000.bin", "shard");
    o.overwrite = false;
    assert_fails(make_tokens("a.txt", "theirs", o, NULL), TN_ESTATE,
                 "theirs/train_000000.bin is there, and tokens.json, which would say");
    write_text("theirs/tokens.json", "{\"train\": 1}");
    assert_fails(make_tokens("a.txt", "theirs", o, NULL), TN_EFORMAT,
                 "tokens.json is not what `tern tokens` writes");
    o.overwrite = true;
    assert_int_equal(make_tokens("a.txt", "theirs", o, NULL), TN_OK);

    assert_fails(make_tokens("a.txt", "a.txt", o, NULL), TN_EIO, "Not a directory");
    assert_fails(make_tokens("a.txt", "no/where", o, NULL), TN_EIO, "no/where: No such file");
}

/* While one process writes into a folder, others are refused. */
static tn_status second;

static void make_another(const tn_tokens_made *so_far, void *user) {
    tn_tokens_options o = TN_WITH(tn_tokens, .overwrite = true);
    second = make_tokens("a.txt", "out", o, NULL);
    assert_error(TN_EIO, "another process is writing it");
}

MAKES(test_two_at_once) {
    tn_tokens_options o = tn_tokens_defaults();
    write_text("a.txt", "hello");
    o.progress = make_another;
    assert_int_equal(make_tokens("a.txt", "out", o, NULL), TN_OK);
    assert_int_equal(second, TN_EIO);
    expect_text("out", "train", "|hello");
}

MAKES(test_full_disk) {
    struct rlimit before, limit;
    write_many("in");
    tn_tokens_options o = tn_tokens_defaults();
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    tn_status status = make_tokens("in", "out", o, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, TN_EIO);
    assert_error(TN_EIO, "out/train_000000.bin: writing: File too large");
    assert_int_not_equal(access(temp_path("out/train_000000.bin.tmp"), F_OK), 0);
    /* the next call may write there */
    assert_int_equal(make_tokens("in", "out", o, NULL), TN_OK);
}

/* ---- Going on -------------------------------------------------------------------------------- */

/* From some tokens on, files cannot grow. */
static void fill_disk(const tn_tokens_made *so_far, void *user) {
    struct rlimit *limit = user;
    if (so_far->train > 300000) {
        limit->rlim_cur = 3000;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, limit), 0);
    }
}

static tn_tokens_options small_shards(void) {
    return TN_WITH(tn_tokens, .val = 0.1, .shard_bytes = 50000, .threads = 2);
}

/* A run for which the disk is too small. Returns how many shards it made. */
static int64_t break_off(const char *out) {
    struct rlimit before, limit;
    tn_tokens_options o = small_shards();
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    o.progress = fill_disk;
    o.user = &limit;
    tn_status status = make_tokens("in", out, o, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, TN_EIO);
    assert_error(TN_EIO, "writing: File too large");
    int64_t made = 0;
    for (int i = 0; i < 200; i++) {
        char name[64];
        snprintf(name, sizeof(name), "%s/%s_%06d.bin", out, i % 2 ? "val" : "train", i / 2);
        made += access(temp_path(name), F_OK) == 0;
    }
    assert_true(made >= 4);
    return made;
}

/* Makes the rest. Returns how many shards were kept. */
static int64_t go_on(const char *out, tn_tokens_options o) {
    tn_tokens_made made;
    assert_int_equal(make_tokens("in", out, o, &made), TN_OK);
    return made.kept;
}

static void change_file(const char *name, size_t at) {
    size_t bytes;
    unsigned char *file = temp_read(temp_path(name), &bytes);
    assert_true(at < bytes);
    file[at] ^= 1;
    temp_write(temp_path(name), file, bytes);
    free(file);
}

MAKES(test_goes_on) {
    write_many("in");
    tn_tokens_options o = small_shards();
    assert_int_equal(go_on("whole", o), 0);
    int64_t made = break_off("out");
    assert_int_equal(go_on("out", o), made);
    temp_same_folders(temp_path("whole"), temp_path("out"));

    made = break_off("changed"); /* a shard that is no longer whole is made again */
    assert_int_equal(truncate(temp_path("changed/train_000002.bin"), 2000), 0);
    o.overwrite = true; /* which is no reason to make the others again */
    assert_int_equal(go_on("changed", o), made - 1);
    temp_same_folders(temp_path("whole"), temp_path("changed"));
    assert_int_equal(go_on("changed", o), 0); /* it is, if the set is whole */

    made = break_off("missing");
    assert_int_equal(unlink(temp_path("missing/train_000001.bin")), 0);
    assert_int_equal(go_on("missing", o), made - 1);
    temp_same_folders(temp_path("whole"), temp_path("missing"));
}

/* Shards of other texts or options are not kept. */
MAKES(test_starts_over) {
    write_many("in");
    tn_tokens_options o = small_shards();
    assert_int_equal(go_on("whole", o), 0);
    break_off("out");
    o.seed++;
    assert_int_equal(go_on("out", o), 0);

    o = small_shards();
    int64_t made = break_off("header");
    change_file("header/train_000000.bin", 45); /* of the digest of what it is made from */
    assert_int_equal(go_on("header", o), made - 1);
    temp_same_folders(temp_path("whole"), temp_path("header"));

    break_off("touched");
    change_file("in/0.jsonl", 0);
    change_file("in/0.jsonl", 0); /* the same text, but nobody has looked */
    assert_int_equal(go_on("touched", o), 0);

    break_off("joined");
    tn_tokenizer_free(small);
    small_write("h e\nl l\n"); /* the same vocabulary, with other pairs */
    small = tn_tokenizer_load(temp_path("vocab.json"));
    assert_int_equal(go_on("joined", o), 0);
}
