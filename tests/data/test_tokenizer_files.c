/* The files of a tokenizer: what each contains, and how wrong ones are refused. */
#include "tern/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/data/small_tokenizer.h"
#include "tests/support/test.h"

/* ---- vocab.json and merges.txt --------------------------------------------------------------- */

static void refused_merges(const char *merges, const char *message) {
    small_write(merges);
    assert_none(tn_tokenizer_load(temp_path("merges.txt")), TN_EFORMAT, message);
}

TEST(merges_file) {
    tn_tokenizer *t = small_tokenizer();
    tn_tokenizer_free(t);
    refused_merges("h e\nhe x\n", "merges.txt:2: the vocabulary has no token \"hex\"");
    refused_merges("#version: 0.2\n\nab c\n", "merges.txt:3: the vocabulary has no token \"ab\"");
    refused_merges("h e\nl\n", "merges.txt:2: should be two tokens with a space between them");
    refused_merges("h e l\n", "merges.txt:1: should be two tokens");
    refused_merges(" he\n", "merges.txt:1: the vocabulary has no token \"\"");
    refused_merges("he \n", "merges.txt:1: the vocabulary has no token \"\"");
    refused_merges("h e\nh\x1b[31m e\n", "merges.txt:2: the vocabulary has no token \"h\"");
    small_write("\xef\xbb\xbf#version: 0.2\r\nh e\r\nl l\r\n");
    t = tn_tokenizer_load(temp_path("merges.txt"));
    assert_non_null(t);
    EXPECT_IDS(t, "hello", false, HE, LL, 'o');
    tn_tokenizer_free(t);
}

static void refused_vocab(const char *vocab, const char *message) {
    small_write(SMALL_MERGES);
    temp_write(temp_path("vocab.json"), vocab, strlen(vocab));
    assert_none(tn_tokenizer_load(temp_path("vocab.json")), TN_EFORMAT, message);
}

TEST(vocabulary_file) {
    refused_vocab("", "vocab.json: a value should begin here (at byte 0)");
    refused_vocab("[1]", "vocab.json: the whole should be an object of ids by token");
    refused_vocab("{\"a\":\"b\"}", "vocab.json: \"a\" has the id -1");
    refused_vocab("{\"a\":-5}", "vocab.json: \"a\" has the id -5");
    refused_vocab("{\"a\":1.5}", "vocab.json: \"a\" has the id -1");
    refused_vocab("{\"a\":2147483647}", "vocab.json: \"a\" has the id 2147483647");
    refused_vocab("{\"a\":1,\"a\":2}", "vocab.json: \"a\" occurs twice, as 1 and as 2");
    small_write("");
    temp_write(temp_path("vocab.json"), "{\"a\":1,\"b\":1}", 13);
    assert_none(tn_tokenizer_load(temp_path("vocab.json")), TN_EFORMAT,
                "vocab.json: the id 1 is used twice, by \"a\" and \"b\"");
    temp_write(temp_path("vocab.json"), "{\"a\":2000000000}", 16);
    assert_none(tn_tokenizer_load(temp_path("vocab.json")), TN_EFORMAT,
                "vocab.json: ids up to 2000000000 for 1 tokens");
    small_write(" a\n");
    temp_write(temp_path("vocab.json"), "{\"\":0,\"a\":1}", 12);
    assert_none(tn_tokenizer_load(temp_path("vocab.json")), TN_EFORMAT,
                "merges.txt:1: the vocabulary has no token \"\"");
    small_write("");
    temp_write(temp_path("vocab.json"), "{}", 2);
    assert_none(tn_tokenizer_load(temp_path("vocab.json")), TN_EFORMAT,
                "vocab.json: the vocabulary is empty");
}

/* Ids need not be dense, and a byte may have no token. */
TEST(holes_in_ids) {
    static const char vocab[] = "{\"a\":1,\"b\":7,\"ab\":5,\"<end>\":9}";
    size_t bytes;
    small_write("a b\n");
    temp_write(temp_path("vocab.json"), vocab, strlen(vocab));
    tn_tokenizer *t = tn_tokenizer_load(temp_path("vocab.json"));
    assert_non_null(t);
    assert_int_equal(tn_tokenizer_size(t), 10);
    EXPECT_IDS(t, "aba<end>", true, 5, 1, 9);
    assert_string_equal(tn_tokenizer_bytes(t, 0, &bytes), "");
    assert_int_equal(bytes, 0);
    tn_ids out = {0};
    assert_int_equal(tn_tokenizer_encode(t, "ab", 2, false, &out), TN_OK);
    assert_fails(tn_tokenizer_encode(t, "ab abc", 6, false, &out), TN_EVALUE,
                 "the vocabulary has no token for the byte 0x20");
    assert_int_equal(out.count, 1);
    tn_ids_free(&out);
    tn_tokenizer_free(t);
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}";
static const char small_pairs[] =
    "\"merges\":[[\"h\",\"e\"],[\"l\",\"l\"],\"he ll\",\"hell o\",\"\xc4\xa0 hello\",\"o o\"]";

/* tokenizer.json with these parts: `model` and `rest` are members, `cut` is the pre-tokenizer. */
static tn_tokenizer *load_parts(const char *model, const char *cut, const char *rest) {
    FILE *f = fopen(temp_path("tokenizer.json"), "wb");
    assert_non_null(f);
    fputs("{\"model\":{\"vocab\":", f);
    small_vocab(f);
    fprintf(f, ",%s},\"pre_tokenizer\":%s%s%s}", model, cut, *rest ? "," : "", rest);
    assert_int_equal(fclose(f), 0);
    return tn_tokenizer_load(temp_path("tokenizer.json"));
}

static void refused_parts(const char *model, const char *cut, const char *rest,
                          const char *message) {
    assert_none(load_parts(model, cut, rest), TN_EFORMAT, message);
}

TEST(of_gpt2s_kind) {
    tn_tokenizer *t = load_parts(
        small_pairs, byte_level,
        "\"normalizer\":null,\"added_tokens\":[{\"id\":262,\"content\":\"<|endoftext|>\","
        "\"special\":true},{\"id\":300,\"content\":\"<|end\",\"special\":false}]");
    assert_non_null(t);
    assert_int_equal(tn_tokenizer_size(t), 301);
    EXPECT_IDS(t, "hello hello<|endoftext|>it", true, HELLO, SPACE_HELLO, END_OF_TEXT, 'i', 't');
    EXPECT_IDS(t, "<|endo", false, 300, 'o');
    EXPECT_IDS(t, "oo<|endoftext|>", false, OO, 300, 'o', 'f', 't', 'e', 'x', 't', '|', '>');
    tn_tokenizer_free(t);
}

/* "normalized" tokens are searched for after all others, even if they begin earlier. */
TEST(added_in_two_rounds) {
    tn_tokenizer *t =
        load_parts(small_pairs, byte_level,
                   "\"added_tokens\":[{\"id\":300,\"content\":\"o<|\",\"normalized\":true},"
                   "{\"id\":301,\"content\":\"<|x|>\",\"normalized\":false,\"special\":true},"
                   "{\"id\":302,\"content\":\"|>o\",\"normalized\":true,\"special\":true}]");
    assert_non_null(t);
    for (int again = 0; again < 2; again++) {
        EXPECT_IDS(t, "o<|x|>oo<||>o", true, 'o', 301, 'o', 300, 302);
        EXPECT_IDS(t, "o<|x|>oo<||>o", false, 300, 'x', '|', '>', 'o', 300, '|', '>', 'o');
        assert_int_equal(tn_tokenizer_special(t, "|>o"), 302);
        assert_int_equal(tn_tokenizer_special(t, "<|x|>"), 301);
        assert_int_equal(tn_tokenizer_save(t, temp_path("rounds")), TN_OK);
        tn_tokenizer_free(t);
        t = tn_tokenizer_load(temp_path("rounds"));
        assert_non_null(t);
    }
    tn_tokenizer_free(t);
}

TEST(of_llama3s_kind) {
    tn_tokenizer *t = load_parts(
        "\"type\":\"BPE\",\"dropout\":0.0,\"ignore_merges\":true,\"merges\":[\"h e\",\"l l\"]",
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
        "\"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|\\\\s+\"},\"behavior\":"
        "\"Isolated\","
        "\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]"
        "}",
        "");
    assert_non_null(t);
    EXPECT_IDS(t, "hello hello hellox", false, HELLO, SPACE_HELLO, ' ', HE, LL, 'o', 'x');
    tn_tokenizer_free(t);
}

/* Several pre-tokenizers in sequence; one that splits at a text; a space in front. */
TEST(other_cuts) {
    tn_tokenizer *t =
        load_parts(small_pairs,
                   "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_"
                   "digits\":true},"
                   "{\"type\":\"Split\",\"pattern\":{\"String\":\"l\"},\"behavior\":\"Isolated\"},"
                   "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
                   "");
    assert_non_null(t);
    EXPECT_IDS(t, "hello", false, HE, 'l', 'l', 'o');
    tn_tokenizer_free(t);
    t = load_parts(small_pairs,
                   "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
                   "{\"String\":\"o\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
                   "\"add_prefix_space\":false,\"use_regex\":false}]}",
                   "");
    assert_non_null(t);
    EXPECT_IDS(t, "hello hello", false, HELL, 'o', ' ', HELL, 'o');
    tn_tokenizer_free(t);
    t = load_parts(small_pairs, "{\"type\":\"ByteLevel\"}", "");
    assert_non_null(t);
    EXPECT_IDS(t, " hello", false, SPACE_HELLO);
    tn_ids out = {0};
    assert_int_equal(tn_tokenizer_encode(t, "hello", 5, false, &out), TN_OK);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.ids[0], SPACE_HELLO);
    tn_ids_free(&out);
    tn_tokenizer_free(t);
}

TEST(digits_are_cut) {
    for (int each = 0; each < 2; each++) {
        char text[512];
        snprintf(text, sizeof(text),
                 "{\"model\":{\"vocab\":{\"1\":0,\"2\":1,\"12\":2,\"a\":3},\"merges\":[\"1 2\"]},"
                 "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
                 "\"individual_digits\":%s},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}}",
                 each ? "true" : "false");
        temp_write(temp_path("tokenizer.json"), text, strlen(text));
        tn_tokenizer *t = tn_tokenizer_load(temp_path("tokenizer.json"));
        assert_non_null(t);
        if (each) {
            EXPECT_IDS(t, "a12a", false, 3, 0, 1, 3);
        } else {
            EXPECT_IDS(t, "a12a", false, 3, 2, 3);
        }
        tn_tokenizer_free(t);
    }
}

/* U+180E, which is no space (\s of PCRE2 alone would say so), and '!' are one piece, and a piece
 * that is a token is that token, although no pair makes it. */
TEST(a_mark_that_is_no_space) {
    static const char text[] =
        "{\"model\":{\"ignore_merges\":true,\"merges\":[],\"vocab\":{\"\u00e1\u0142\u0130!\":0}},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}}";
    temp_write(temp_path("tokenizer.json"), text, sizeof(text) - 1);
    tn_tokenizer *t = tn_tokenizer_load(temp_path("tokenizer.json"));
    assert_non_null(t);
    EXPECT_IDS(t, "\xe1\xa0\x8e!", false, 0);
    tn_tokenizer_free(t);
}

#define SPLIT(pattern)                                                                      \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":" \
    "\"" pattern "\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","                  \
    "\"add_prefix_space\":false,\"use_regex\":false}]}"

TEST(what_is_not_understood) {
    static const struct {
        const char *model, *cut, *rest, *message;
    } wrong[] = {
        {"\"type\":\"Unigram\"", byte_level, "", "model.type is Unigram (should be BPE)"},
        {"\"merges\":[],\"dropout\":0.1", byte_level, "", "model.dropout is 0.1 (should be null)"},
        {"\"merges\":[],\"byte_fallback\":true", byte_level, "", "model.byte_fallback is true"},
        {"\"merges\":[],\"ignore_merges\":1", byte_level, "", "model.ignore_merges is 1"},
        {"\"merges\":[],\"end_of_word_suffix\":\"</w>\"", byte_level, "",
         "model.end_of_word_suffix is </w> (should be null)"},
        {"\"x\":1", byte_level, "", "model.merges is missing (should be a list)"},
        {"\"merges\":[\"h e\",\"q q\"]", byte_level, "",
         "model.merges[1]: the vocabulary has no token \"qq\""},
        {"\"merges\":[[\"h\"]]", byte_level, "", "model.merges[0] is a list (should be"},
        {"\"merges\":[[\"h\",\"e\",\"l\"]]", byte_level, "", "model.merges[0] is a list"},
        {"\"merges\":[7]", byte_level, "", "model.merges[0] is 7"},
        {small_pairs, "null", "", "pre_tokenizer is null (should be ByteLevel"},
        {small_pairs, "{\"type\":\"Metaspace\"}", "", "pre_tokenizer.type is Metaspace"},
        {small_pairs, "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "",
         "pre_tokenizer.pretokenizers is a list"},
        {small_pairs, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\"},{}]}",
         "", "pre_tokenizer.pretokenizers[0].type is Punctuation (should be Split or Digits"},
        {small_pairs, SPLIT("(a"), "", "the pattern is not understood: missing"},
        {small_pairs, SPLIT("\\\\w+"), "", "an escape that does not mean the same everywhere"},
        {small_pairs, SPLIT("[a[bc]]"), "", "a class within a class (at byte 2 of it)"},
        {small_pairs, SPLIT("[[:alpha:]]+"), "", "a name for a class"},
        {small_pairs, SPLIT("a{1,3}+"), "", "'+' or '?' after '}'"},
        {small_pairs, SPLIT("a{2}?"), "", "'+' or '?' after '}'"},
        {small_pairs, SPLIT("a(?i)b|c"), "", "an option that does not begin a group"},
        {small_pairs, SPLIT("(?x)a b"), "", "a group that does not mean the same everywhere"},
        {small_pairs, SPLIT("(?#a)b"), "", "a group that does not mean the same everywhere"},
        {small_pairs, SPLIT("(*UTF)b"), "", "a group that does not mean the same everywhere"},
        {small_pairs, SPLIT("(?i)ss"), "", "two letters that are also one"},
        {small_pairs, SPLIT("(?i:f)f(?i:f{2})"), "", "two letters that are also one"},
        {small_pairs, SPLIT("(?i)Ã"), "", "a character that is not ASCII where case"},
        {small_pairs, SPLIT("(?i)\\\\p{Lu}"), "", "a property where case does not matter"},
        {small_pairs, SPLIT("(?i)[\\\\S]"), "", "in a class where case does not matter"},
        {small_pairs, SPLIT("\\\\Qa.\\\\E"), "", "an escape that does not mean the same"},
        {small_pairs, SPLIT("(a)\\\\1"), "", "an escape that does not mean the same"},
        {small_pairs, SPLIT("\\\\xe4"), "", "a byte of a character"},
        {small_pairs, SPLIT("\\\\pL"), "", "a property that is not a plain name in braces"},
        {small_pairs, SPLIT("\\\\p{Xan}"), "", "a property that is not Unicode's"},
        {small_pairs, SPLIT("[a-\\\\d]"), "", "a range that does not end with a character"},
        {small_pairs, SPLIT("[\\\\d-a]"), "", "'-' in a class that is not between"},
        {small_pairs, SPLIT("[]a]"), "", "']' at the beginning of a class"},
        {small_pairs, SPLIT("[a&&b]"), "", "an intersection of classes"},
        {small_pairs, SPLIT("a{,}"), "", "'{' that is not a number of repeats"},
        {small_pairs, SPLIT("a**"), "", "a repeat of a repeat"},
        {small_pairs, SPLIT("^*"), "", "a repeat of nothing"},
        {small_pairs, byte_level, "\"normalizer\":{\"type\":\"NFKC\"}", "normalizer.type is NFKC"},
        {small_pairs, byte_level, "\"added_tokens\":{}", "added_tokens is an object"},
        {small_pairs, byte_level, "\"added_tokens\":[{\"id\":1}]", "added_tokens[0] is an object"},
        {small_pairs, byte_level,
         "\"added_tokens\":[{\"id\":300,\"content\":\"x\",\"lstrip\":true}]",
         "added_tokens[0].lstrip is true (should be false)"},
        {small_pairs, byte_level, "\"added_tokens\":[{\"id\":300,\"content\":\"hello\"}]",
         "\"hello\" occurs twice, as 259 and as 300"},
        {small_pairs, byte_level, "\"added_tokens\":[{\"id\":3,\"content\":\"new\"}]",
         "the id 3 is used twice"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        refused_parts(wrong[i].model, wrong[i].cut, wrong[i].rest, wrong[i].message);
    }
    temp_write(temp_path("tokenizer.json"), "{\"version\":1}", 13);
    assert_none(tn_tokenizer_load(temp_path("tokenizer.json")), TN_EFORMAT,
                "tokenizer.json: the key model is missing");
}

/* Encodes "##" and then runs of 'a', with a '#' between them: an error that names the pattern and
 * the place. */
static void never_ends(const char *cut, size_t bytes, size_t run, const char *message) {
    tn_tokenizer *t = load_parts(small_pairs, cut, "");
    assert_non_null(t);
    char *text = malloc(bytes);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++) {
        text[i] = i < 2 || i % run == 0 ? '#' : 'a';
    }
    tn_ids out = {0};
    assert_fails(tn_tokenizer_encode(t, text, bytes, false, &out), TN_EFORMAT, message);
    assert_int_equal(out.count, 0);
    free(text);
    tn_ids_free(&out);
    tn_tokenizer_free(t);
}

/* Patterns that backtrack without end, at one place or again at each. */
TEST(patterns_without_end) {
    static const char nested[] = SPLIT("(?:(?=[^#]+)[^#]*)*##|[^#]");
    never_ends(nested, 100000, SIZE_MAX,
               "the tokenizer's pattern \"(?:(?=[^#]+)[^#]*)*##|[^#]\" cannot cut byte 2 of a text "
               "of 100000: it takes too many steps");
    never_ends(nested, 100000, 20, "cannot cut byte");
    never_ends(nested, 100000, 12, "cannot cut byte");
    never_ends(SPLIT("(a+a+)+b|."), 100000, SIZE_MAX, "cannot cut byte 2 of a text");
    /* one step to the end from each byte: noticed within the first few hundred */
    never_ends(SPLIT("[^#]*+##|[^#]"), 100000, SIZE_MAX,
               "\"[^#]*+##|[^#]\" cannot cut byte 264 of");
    never_ends(SPLIT("a(?=a*b)|."), 100000, SIZE_MAX, "\"a(?=a*b)|.\" cannot cut byte");
    tn_tokenizer *t = load_parts(small_pairs, SPLIT("x*"), ""); /* matches nothing, everywhere */
    assert_non_null(t);
    EXPECT_IDS(t, "hello\xc3\xa4", false, 'h', 'e', 'l', 'l', 'o', 0xc3, 0xa4);
    tn_tokenizer_free(t);
}

/* Lines of many spaces are ordinary: an expression that tries each of them is no error. */
TEST(lines_of_spaces) {
    enum { LINE = 201, LINES = 4000 };
    tn_tokenizer *t = load_parts(small_pairs, SPLIT("\\\\s+$|."), "");
    assert_non_null(t);
    char *text = malloc(LINE * LINES);
    assert_non_null(text);
    memset(text, ' ', LINE * LINES);
    for (int i = 0; i < LINES; i++) {
        text[i * LINE + LINE - 1] = i < 4 ? '\n' : 'x';
    }
    for (int lines = 4; lines <= LINES; lines += LINES - 4) {
        tn_ids out = {0};
        assert_int_equal(tn_tokenizer_encode(t, text, (size_t)(LINE * lines), false, &out), TN_OK);
        assert_int_equal(out.count, LINE * lines);
        tn_ids_free(&out);
    }
    free(text);
    tn_tokenizer_free(t);
}

/* What Oniguruma means by an expression, for which PCRE2 has another meaning: it says whether "he"
 * is cut, as it is in `tokenizers`. */
TEST(meanings_of_patterns) {
    static const struct {
        const char *cut, *text;
        bool whole;
    } rows[] = {
        {SPLIT("he(?=\\\\p{Han})|."), "he\xe3\x80\x82", false}, /* a script's own characters */
        {SPLIT("he(?=\\\\p{Han})|."), "he\xe4\xb8\xad", true},
        {SPLIT("he(?=\\\\P{Han})|."), "he\xe3\x80\x82", true},
        {SPLIT("he(?=\\\\p{^Han})|."), "he\xe3\x80\x82", true},
        {SPLIT("he(?=\\\\P{^Han})|."), "he\xe3\x80\x82", false},
        {SPLIT("he(?=[\\\\p{katakana}])|."), "he\xe3\x80\x81", false},
        {SPLIT("he(?=[\\\\p{katakana}])|."), "he\xe3\x82\xab", true},
        {SPLIT("he(?m:.)|."), "he\n", true}, /* any character */
        {SPLIT("(?m)he.|."), "he\n", true},
        {SPLIT("he.|."), "he\n", false},
        {SPLIT("h{,2}e|[^e]"), "he", true},    /* 0 to 2 */
        {SPLIT("he[^\\\\v]|."), "he\n", true}, /* one character, not all that are vertical */
        {SPLIT("he[^\\\\v]|."), "he\v", false},
        {SPLIT("(?i)HE|."), "he", true},
        {SPLIT("(?i:H)E|."), "he", false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tn_tokenizer *t = load_parts(small_pairs, rows[i].cut, "");
        assert_non_null(t);
        tn_ids out = {0};
        assert_int_equal(tn_tokenizer_encode(t, rows[i].text, strlen(rows[i].text), false, &out),
                         TN_OK);
        assert_int_equal(out.ids[0], rows[i].whole ? HE : 'h');
        tn_ids_free(&out);
        tn_tokenizer_free(t);
    }
}

/* ---- Around a text --------------------------------------------------------------------------- */

#define ADDED                                                                                      \
    "\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true},{\"id\":301,\"content\":" \
    "\"</s>\",\"special\":true}],\"post_processor\":"
#define TEMPLATE                                                                                  \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":" \
    "0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{"  \
    "\"id\":\"<s>\",\"ids\":[300],\"tokens\":[\"<s>\"]}}}"

/* Frees t. The ids of "he" with what is put around it. */
static void expect_around(tn_tokenizer *t, int count, int first, int last) {
    tn_ids out = {0};
    assert_non_null(t);
    assert_int_equal(tn_tokenizer_encode_framed(t, "he", 2, false, &out), TN_OK);
    assert_int_equal(out.count, count);
    assert_int_equal(out.ids[0], first);
    assert_int_equal(out.ids[count - 1], last);
    tn_ids_free(&out);
    EXPECT_IDS(t, "he", true, HE);
    tn_tokenizer_free(t);
}

TEST(tokens_around_a_text) {
    expect_around(load_parts(small_pairs, byte_level, ADDED "null"), 1, HE, HE);
    expect_around(load_parts(small_pairs, byte_level, ADDED "{\"type\":\"ByteLevel\"}"), 1, HE, HE);
    expect_around(load_parts(small_pairs, byte_level, ADDED TEMPLATE), 2, 300, HE);
    expect_around(load_parts(small_pairs, byte_level,
                             ADDED "{\"type\":\"RobertaProcessing\",\"sep\":[\"</s>\",301],"
                                   "\"cls\":[\"<s>\",300]}"),
                  3, 300, 301);
    tn_tokenizer *t = load_parts(small_pairs, byte_level,
                                 ADDED "{\"type\":\"Sequence\",\"processors\":[{\"type\":"
                                       "\"ByteLevel\"}," TEMPLATE "]}");
    assert_non_null(t);
    assert_int_equal(tn_tokenizer_save(t, temp_path("again")), TN_OK);
    expect_around(t, 2, 300, HE);
    expect_around(tn_tokenizer_load(temp_path("again")), 2, 300, HE);
    refused_parts(small_pairs, byte_level, ADDED "{\"type\":\"Magic\"}", "post_processor.type");
    refused_parts(small_pairs, byte_level, ADDED "{\"type\":\"BertProcessing\"}",
                  "post_processor.cls is missing");
    refused_parts(small_pairs, byte_level,
                  ADDED "{\"type\":\"BertProcessing\",\"cls\":[\"x\",999],\"sep\":[\"y\",1]}",
                  "post_processor puts the token 999 around a text, but there is none");
    refused_parts(small_pairs, byte_level,
                  ADDED "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                        "\"<s>\"}}]}",
                  "post_processor.single[0] is an object");
    refused_parts(small_pairs, byte_level,
                  ADDED "{\"type\":\"TemplateProcessing\",\"single\":[{}]}",
                  "post_processor.single[0] is an object");
    refused_parts(small_pairs, byte_level, ADDED "{\"type\":\"Sequence\",\"processors\":[7]}",
                  "post_processor.processors[0].type is missing");
}

/* Which of a folder's files is read. */
TEST(file_of_a_folder) {
    temp_clean(state);
    assert_none(tn_tokenizer_load(temp_path("")), TN_EIO,
                "has no tokenizer.json, and no vocab.json");
    small_write(SMALL_MERGES);
    tn_tokenizer *t = tn_tokenizer_load(temp_path(""));
    assert_non_null(t);
    EXPECT_IDS(t, "hello", false, HELLO);
    tn_tokenizer_free(t);
    t = load_parts("\"merges\":[]", byte_level, "");
    tn_tokenizer_free(t);
    t = tn_tokenizer_load(temp_path(""));
    assert_non_null(t);
    EXPECT_IDS(t, "he", false, 'h', 'e');
    tn_tokenizer_free(t);
    assert_none(tn_tokenizer_load(temp_path("nowhere.json")), TN_EIO, "nowhere.json");
}
