/* Corpora: files of every kind, documents and pieces of them, and files that are wrong. */
#include "tern/tokenizer.h"

#include <sys/stat.h>

#include "tests/data/packed.h"
#include "tests/data/said.h"
#include "tests/data/small_tokenizer.h"
#include "tests/support/fail_malloc.h"
#include "tests/support/temp.h"

static tn_corpus *open_one(const char *path) {
    return tn_corpus_open(&path, 1, tn_corpus_defaults());
}

static void write_text(const char *name, const char *text) {
    temp_write(temp_path(name), text, strlen(text));
}

static void expect_text(const char *name, const char *text, const char *expected) {
    write_text(name, text);
    expect_said(read_all(open_one(temp_path(name))), expected);
}

/* This content is refused with this error. */
static void expect_wrong(const char *name, const void *data, size_t bytes, const char *part) {
    temp_write(temp_path(name), data, bytes);
    said s = read_all(open_one(temp_path(name)));
    assert_error(TN_EFORMAT, part);
    free(s.text);
}

static void expect_wrong_text(const char *name, const char *text, const char *part) {
    expect_wrong(name, text, strlen(text), part);
}

/* ---- Kinds of files -------------------------------------------------------------------------- */

TEST_WITH(test_plain_text, NULL, temp_clean) {
    expect_text("a.txt", "It was the best\nof times", "[It was the best\nof times]");
    expect_text("a",
                "\xef\xbb\xbf"
                "a mark",
                "[a mark]");
    expect_text("a", "\xef\xbb", "[\xef\xbb]"); /* bytes are kept, whatever they are */
    expect_text("a", "Latin \xe9", "[Latin \xe9]");
    expect_text("a.txt", "", "");
    expect_text("a.txt", "{\"text\": 1}\n", "[{\"text\": 1}\n]");
}

TEST_WITH(test_json_lines, NULL, temp_clean) {
    expect_text("a.jsonl",
                "{\"text\": \"one\"}\n{\"id\": -0.5, \"text\": \"t\\u00e9 \\ud83d\\ude00\\n\"}",
                "[one][t\xc3\xa9 \xf0\x9f\x98\x80\n]");
    expect_text("a.jsonl", "\xef\xbb\xbf\n  \r\n{\"text\":\"\"}\r\n\n{\"text\":\"x\"}\n\n",
                "[][x]");
    expect_text("a.ndjson", "{\"a\":[[[{}]]],\"text\":\"x\"}", "[x]");
    expect_text("a.json", "{\"text\":\"x\"}", "[x]");
    expect_text("a.jsonl", "", "");
    expect_text("a.jsonl", "\n\n", "");
    write_text("a.jsonl", "{\"text\":\"a\\u0000b\"}");
    said s = read_all(open_one(temp_path("a.jsonl")));
    assert_int_equal(s.bytes, 5);
    assert_memory_equal(s.text, "[a\0b]", 5);
    free(s.text);
}

TEST_WITH(test_options, NULL, temp_clean) {
    write_text("a.jsonl", "{\"text\":\"no\",\"content\":\"yes\"}\n");
    const char *path = temp_path("a.jsonl");
    tn_corpus_options o = TN_WITH(tn_corpus, .key = "content");
    expect_said(read_all(tn_corpus_open(&path, 1, o)), "[yes]");
    write_text("b.txt",
               "{\"prompt\":\"p\",\"completion\":\" c\"}\n{\"completion\":\"\",\"prompt\":\"\"}");
    path = temp_path("b.txt");
    o.pairs = true;
    expect_said(read_all(tn_corpus_open(&path, 1, o)), "[p| c][|]");
    write_text("b.txt", "{\"messages\":[]}");
    said s = read_all(tn_corpus_open(&path, 1, o));
    assert_error(TN_EFORMAT,
                 "line 1: there is no \"prompt\" in it, but \"messages\" (chats are not");
    free(s.text);
    o.key = NULL;
    assert_none(tn_corpus_open(&path, 1, o), TN_EVALUE, "key is NULL");
    assert_none(tn_corpus_open(&path, 0, tn_corpus_defaults()), TN_EVALUE, "no file");
}

TEST_WITH(test_split, NULL, temp_clean) {
    tn_corpus_options o = TN_WITH(tn_corpus, .split = "<|endoftext|>");
    const char *path = temp_path("a.txt");
    write_text(
        "a.txt",
        "<|endoftext|>\none \n<|endoftext|>\n<|endoftext|> two<|endoftext|>\n three <|endoftext");
    expect_said(read_all(tn_corpus_open(&path, 1, o)), "[one][two][three <|endoftext]");
    write_text("a.txt", " \n<|endoftext|> ");
    expect_said(read_all(tn_corpus_open(&path, 1, o)), "");
    o.split = "\n\n";
    write_text("a.txt", "one\ntwo\n\n\nthree\n\n");
    expect_said(read_all(tn_corpus_open(&path, 1, o)), "[one\ntwo][three]");
    o.split = "";
    assert_none(tn_corpus_open(&path, 1, o), TN_EVALUE, "1 to 1024 bytes");
}

/* Compressed, in one part and in several after one another. */
TEST_WITH(test_packed, NULL, temp_clean) {
    static const char one[] = "{\"text\":\"x\"}\n";
    for (int times = 1; times <= 3; times++) {
        const char *expected = times == 1 ? "[x]" : times == 2 ? "[x][x]" : "[x][x][x]";
        packed g = pack_gzip(one, strlen(one)), z = pack_zstd(one, strlen(one));
        packed_write(temp_path("a.jsonl.gz"), g, g.bytes, times);
        expect_said(read_all(open_one(temp_path("a.jsonl.gz"))), expected);
        packed_write(temp_path("a.jsonl.zst"), z, z.bytes, times);
        expect_said(read_all(open_one(temp_path("a.jsonl.zst"))), expected);
    }
    packed g = pack_gzip("text", 4);
    packed_write(temp_path("named_otherwise"), g, g.bytes, 1);
    expect_said(read_all(open_one(temp_path("named_otherwise"))), "[text]");
    g = pack_gzip("", 0);
    packed_write(temp_path("nothing.gz"), g, g.bytes, 1);
    expect_said(read_all(open_one(temp_path("nothing.gz"))), "");
}

/* Cut at every byte, with something behind it, and with a wrong checksum. */
TEST_WITH(test_damaged, NULL, temp_clean) {
    static const char line[] = "{\"text\":\"to be cut\"}\n";
    for (int kind = 0; kind < 2; kind++) {
        const char *name = kind ? "a.jsonl.zst" : "a.jsonl.gz";
        packed whole = kind ? pack_zstd(line, strlen(line)) : pack_gzip(line, strlen(line));
        for (size_t bytes = 0; bytes < whole.bytes; bytes++) {
            expect_wrong(name, whole.at, bytes, name);
        }
        unsigned char *more = calloc(whole.bytes + 9, 1);
        assert_non_null(more);
        memcpy(more, whole.at, whole.bytes);
        expect_wrong(name, memcpy(more + whole.bytes, "and more", 8) ? more : NULL, whole.bytes + 8,
                     "but something else follows them");
        memcpy(more + whole.bytes, whole.at, 8);
        expect_wrong(name, more, whole.bytes + 8, "was cut short");
        free(more);
        free(whole.at);
    }
    packed g = pack_gzip(line, strlen(line));
    g.at[g.bytes - 6] ^= 1; /* of the checksum */
    expect_wrong("a.jsonl.gz", g.at, g.bytes, "a.jsonl.gz is damaged: incorrect data check");
    packed twice = pack_zstd(g.at, g.bytes);
    expect_wrong("a.zst", twice.at, twice.bytes, "compressed twice");
    free(twice.at);
    free(g.at);
    expect_wrong_text("a.gz", "text", "a.gz is not a gzip file, despite its name: it is text");
}

TEST_WITH(test_folders, NULL, temp_clean) {
    assert_int_equal(mkdir(temp_path("in"), 0700) | mkdir(temp_path("in/b"), 0700) |
                         mkdir(temp_path("in/.git"), 0700),
                     0);
    write_text("in/c.txt", "3");
    write_text("in/a.jsonl", "{\"text\":\"1\"}");
    write_text("in/b/x", "2");
    write_text("in/.hidden", "no");
    write_text("in/.git/x", "no");
    const char *paths[] = {temp_path("in"), temp_path("in/c.txt")};
    tn_corpus *c = tn_corpus_open(paths, 2, tn_corpus_defaults());
    assert_int_equal(tn_corpus_where(c).files, 4);
    assert_int_equal(tn_corpus_where(c).bytes, 15);
    expect_said(read_all(c), "[1][2][3][3]");
    assert_none(open_one(temp_path("in/nothing")), TN_EIO, "in/nothing: No such file");
    assert_int_equal(mkdir(temp_path("in/e"), 0700), 0);
    assert_none(open_one(temp_path("in/e")), TN_EIO, "there is no file in this folder");
    assert_int_equal(symlink("..", temp_path("in/e/up")), 0);
    assert_none(open_one(temp_path("in/e")), TN_EVALUE, "a link to itself?");
}

/* ---- Files that are wrong -------------------------------------------------------------------- */

TEST_WITH(test_wrong_lines, NULL, temp_clean) {
    expect_wrong_text("a.jsonl", "{\"text\":\"x\"}\n\n{\"text\":\"x\"",
                      "a.jsonl: line 3: ',' or the closing bracket");
    expect_wrong_text("a.jsonl", "{\"text\":\"\xff\"}", "line 1: not UTF-8, at byte 10");
    expect_wrong_text("a.jsonl", "{\"text\":\"\\ud800\"}", "line 1: half a surrogate pair");
    expect_wrong_text("a.jsonl", "{\"text\":\"x\"} x", "nothing more should follow");
    expect_wrong_text("a.jsonl", "\"x\"", "it is not an object");
    expect_wrong_text("a.jsonl", "[{\"text\":\"x\"}]", "this is a JSON list");
    expect_wrong_text("a.json", "[\n {\"text\":\"x\"}\n]", "--key '.[].text' reads a list");
    expect_wrong_text("a.jsonl", "{\"text\":1}", "\"text\" is not a text");
    expect_wrong_text("a.jsonl", "{\"text\":\"x\",\"text\":\"y\"}", "\"text\" is there twice");
    expect_wrong_text("a.jsonl", "{\"a\\u001b[2J\":0,\"b\":1}",
                      "no \"text\" in it, but \"a\", \"b\" (--key chooses another key");
    expect_wrong_text("a.jsonl", "{}", "no \"text\" in it, but nothing");
    expect_wrong_text("a.jsonl", "not JSON at all", "line 1: a value should begin here");
}

TEST_WITH(test_other_kinds, NULL, temp_clean) {
    static const unsigned char head[1024] = {0x88, 0xd8, 0x34, 0x01, 1}; /* 20240520 */
    expect_wrong("a.bin", head, sizeof(head), "a.bin is a shard of 16-bit tokens; expected text");
    static const struct {
        const char *bytes, *is;
    } others[] = {{"\x93NUMPY\x01\0v", "a NumPy array"},
                  {"PK\x03\x04\x14\0\0\0", "a zip archive"},
                  {"PAR1\x15\0\0\0", "a Parquet file"},
                  {"\x02\0\0\0\0\0\0\0{}", "a safetensors file"},
                  {"\0\0\x08\x01\0\0\0\x02\x01\x02", "an idx file"},
                  {"a\0b\0c\0d\0", "binary (it has zero bytes)"},
                  {"\xff\xfe"
                   "a\0b\0\0\0",
                   "text in UTF-16"},
                  {"GGUF\x03\0\0\0", "a GGUF file"}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        size_t bytes = others[i].bytes[0] == 2 || others[i].bytes[2] == 8 ? 10 : 8;
        expect_wrong("a.txt", others[i].bytes, bytes, others[i].is);
        expect_wrong("a.jsonl", others[i].bytes, bytes, others[i].is);
        packed z = pack_zstd(others[i].bytes, bytes);
        expect_wrong("a.txt.zst", z.at, z.bytes, "a.txt.zst, decompressed, is ");
        free(z.at);
    }
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    said s = read_all(open_one(temp_path("fifo")));
    assert_error(TN_EIO, "is a FIFO, not a regular file");
    free(s.text);
}

/* ---- Long texts ------------------------------------------------------------------------------ */

enum { LONG = 3 << 20, LIMIT = 64 << 20 };

/* A text of words, lines and paragraphs, with multi-byte characters. */
static char *make_long(size_t bytes) {
    static const char *const words[] = {
        "a", "\xe6\x96\x87\xe3\x80\x80", "Word", "caf\xc3\xa9,", "\xff", "1234", "'s"};
    static const char *const gaps[] = {" ", " ", "\n", "  ", "\n\n", "", "\r\n", "\n\xe3\x80\x80"};
    char *text = malloc(bytes + 16);
    assert_non_null(text);
    uint32_t state = 1;
    for (size_t at = 0; at < bytes;) {
        state = state * 1664525 + 1013904223;
        const char *word = words[(state >> 16) % 7], *gap = gaps[(state >> 20) % 8];
        at += (size_t)sprintf(text + at, "%s%s", word, gap);
        text[bytes] = 0;
    }
    return text;
}

/* A byte that can be part of whitespace, or the 0 at the end. */
static bool is_spacing(const char *at) {
    return strchr(" \r\n", *at) != NULL;
}

/* The pieces together are the text, and each cut is at an allowed place. */
TEST_WITH(test_pieces, NULL, temp_clean) {
    char *text = make_long(LONG);
    temp_write(temp_path("a.txt"), text, LONG);
    packed z = pack_zstd(text, LONG);
    packed_write(temp_path("b.txt.zst"), z, z.bytes, 1);
    for (int kind = 0; kind < 2; kind++) {
        tn_corpus *c = open_one(temp_path(kind ? "b.txt.zst" : "a.txt"));
        tn_document d;
        size_t at = 0;
        int pieces = 0;
        for (; tn_corpus_next(c, &d); pieces++) {
            assert_memory_equal(text + at, d.text, d.bytes);
            assert_true(d.bytes <= 1 << 18);
            assert_int_equal(d.begins, at == 0);
            bool space = at > 0 && text[at] == ' ' && !is_spacing(text + at - 1);
            bool line = at > 1 && text[at - 1] == '\n' && !is_spacing(text + at - 2) &&
                        !is_spacing(text + at);
            assert_true(at == 0 || space || line);
            at += d.bytes;
            assert_true(tn_corpus_where(c).read <= tn_corpus_where(c).bytes);
        }
        assert_int_equal(at, LONG);
        assert_true(pieces >= 64);
        tn_corpus_free(c);
    }
    free(text);
}

/* A separator is found wherever pieces are cut. */
TEST_WITH(test_split_of_a_long_text, NULL, temp_clean) {
    tn_corpus_options o = TN_WITH(tn_corpus, .split = "\n--\n");
    for (size_t offset = 0; offset < 12; offset++) {
        enum { SIZE = 4000 };
        char text[SIZE + 1];
        memset(text, 'x', SIZE);
        text[SIZE] = 0;
        for (size_t at = 10; at < SIZE; at += 10) {
            text[at] = ' ';
        }
        memcpy(text + 1020 + offset, "\n--\n", 4);
        write_text("a.txt", text);
        const char *path = temp_path("a.txt");
        said s = read_all(tn_corpus_open(&path, 1, o));
        assert_int_equal(s.documents, 2);
        assert_null(strstr(s.text, "--"));
        free(s.text);
    }
}

TEST_WITH(test_limits, NULL, temp_clean) {
    char *text = malloc(LIMIT + 100);
    assert_non_null(text);
    memset(text, 'x', LIMIT + 100);
    expect_wrong("a.txt", text, LIMIT + 100, "64 MiB without a space");
    memcpy(text, "{}\n", 3);
    expect_wrong("a.jsonl", text, LIMIT + 100, "a.jsonl: line 1: there is no");
    memcpy(text, "\n\n\n", 3);
    expect_wrong("a.jsonl", text, LIMIT + 100, "a.jsonl: line 4 has more than 67108864 bytes");
    free(text);
}

/* Every allocation fails once, those of zlib and zstd too; all is read, or an error says why. */
static void read_documents(void) {
    int documents = 0;
    tn_document d;
    tn_corpus *c = open_one(temp_path("in"));
    while (tn_corpus_next(c, &d)) {
        documents++;
    }
    tn_corpus_free(c);
    assert_true(tn_error() != TN_OK || documents == 3);
}

TEST_WITH(test_no_memory, NULL, temp_clean) {
    static const char line[] = "{\"text\":\"x\"}\n";
    packed g = pack_gzip(line, strlen(line)), z = pack_zstd(line, strlen(line));
    assert_int_equal(mkdir(temp_path("in"), 0700), 0);
    packed_write(temp_path("in/a.jsonl.gz"), g, g.bytes, 1);
    packed_write(temp_path("in/b.jsonl.zst"), z, z.bytes, 1);
    write_text("in/c.txt", "c");
    every_malloc(read_documents, 1, NULL);
}

/* The same for tokenizing them: an error and an unfinished set, or everything. */
static tn_tokenizer *small;
static bool again; /* over what was there */

static void make_tokens(void) {
    static int number;
    char name[32];
    snprintf(name, sizeof(name), "out%d", again ? 0 : number++);
    const char *path = temp_path("a.txt");
    tn_tokens_options o = TN_WITH(tn_tokens, .val = 0.5, .overwrite = again);
    tn_status status = tn_tokens_make(small, &path, 1, temp_path(name), o, NULL);
    assert_int_equal(status, tn_error());
}

TEST_WITH(test_no_memory_for_tokens, NULL, temp_clean) {
    small = small_tokenizer();
    write_text("a.txt", "hello hello");
    for (int i = 0; i < 2; i++) {
        again = i == 1;
        every_malloc(make_tokens, 1, NULL);
    }
    tn_tokenizer_free(small);
}
