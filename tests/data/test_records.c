/* Documents in nested JSON: paths, lists within lists, texts of several parts, and what is wrong
 * with a path or a file. */
#include "tests/data/said.h"
#include "tests/support/fail_malloc.h"
#include "tests/support/temp.h"

/* The shape of SQuAD's files: articles with paragraphs, these with questions, and these with
 * answers. */
static const char squad[] =
    "{\"version\": \"1.1\", \"data\": [\n"
    "  {\"title\": \"Rivers\", \"paragraphs\": [\n"
    "    {\"context\": \"The Oder is long.\", \"qas\": [\n"
    "      {\"id\": \"1\", \"question\": \"Which?\", \"answers\": [{\"text\": \"Oder\"}]},\n"
    "      {\"id\": \"2\", \"question\": \"How?\", \"answers\": [{\"text\": \"long\"},\n"
    "        {\"text\": \"is long\"}]}]},\n"
    "    {\"context\": \"No question.\", \"qas\": []}]},\n"
    "  {\"title\": \"Empty\", \"paragraphs\": []},\n"
    "  {\"title\": \"Hills\", \"paragraphs\": [\n"
    "    {\"context\": \"A hill.\", \"qas\": [\n"
    "      {\"id\": \"3\", \"question\": \"None?\", \"answers\": []}]}]}]}\n";

static const char context[] = "data[].paragraphs[].context";
static const char question[] = ".data[].paragraphs[].qas[].question";
static const char answer[] = ".data[].paragraphs[].qas[].answers[].text";
static const char first_answer[] = ".data[].paragraphs[].qas[].answers[0].text";

/* ---- What comes out -------------------------------------------------------------------------- */

static tn_corpus *open_text(const char *name, const char *text, tn_corpus_options o) {
    const char *path = temp_path(name);
    temp_write(path, text, strlen(text));
    return tn_corpus_open(&path, 1, o);
}

static void expect_pairs(const char *name, const char *text, const char *prompt,
                         const char *completion, const char *expected) {
    tn_corpus_options o =
        TN_WITH(tn_corpus, .pairs = true, .prompt = prompt, .completion = completion);
    expect_said(read_all(open_text(name, text, o)), expected);
}

static void expect_texts(const char *name, const char *text, const char *key,
                         const char *expected) {
    expect_said(read_all(open_text(name, text, TN_WITH(tn_corpus, .key = key))), expected);
}

/* What follows the documents `expected` is wrong. */
static void expect_wrong(const char *text, const char *key, const char *expected, const char *why) {
    said s = read_all(open_text("a.json", text, TN_WITH(tn_corpus, .key = key)));
    assert_error(TN_EFORMAT, why);
    assert_string_equal(s.text, expected);
    free(s.text);
}

/* ---- Paths ----------------------------------------------------------------------------------- */

TEST_WITH(test_paths, NULL, temp_clean) {
    expect_texts("a.json", squad, context, "[The Oder is long.][No question.][A hill.]");
    expect_texts("a.json", squad, question, "[Which?][How?][None?]");
    expect_texts("a.json", squad, answer, "[Oder][long][is long]");
    expect_texts("a.json", squad, first_answer, "[Oder][long]");
    expect_texts("a.json", squad, ".data[2].title", "[Hills]");
    expect_texts("a.json", squad, ".data[3].title", "");
    expect_texts("a.json", squad, "data[].title", "[Rivers][Empty][Hills]");
    expect_texts("a.json", "[\"a\", \"b\"]", ".[]", "[a][b]");
    expect_texts("a.json", "[[\"a\"], [], [\"b\", \"c\"]]", "[][]", "[a][b][c]");
    expect_texts("a.json", " \"a\"\n", ".", "[a]");
    expect_texts("a.json", "{\"a.b\": \"x\"}", "a.b", "[x]"); /* a name */
    expect_texts("a.json", "{\"a\": {\"b\": \"x\"}}", ".a.b", "[x]");
    expect_texts("a.json", "{\"a b\": {\"\\\"-\": \"x\"}}", ".a b.\"-", "[x]");
}

/* A .json file is one value, .jsonl is lines in any case. */
TEST_WITH(test_values, NULL, temp_clean) {
    expect_texts("a.json", " {\n\"a\":\n[\"}\\\"]\",\"z\"]}\n", ".a[]", "[}\"]][z]");
    expect_texts("a.jsonl", "{\"a\":[\"x\"]}\n\n{\"a\":[\"y\"]}", ".a[]", "[x][y]");
    expect_texts("a.json", "", ".a[]", "");
    expect_texts("a.json", " \n ", ".a[]", "");
    expect_wrong(
        "{\"a\":[\"x\"]}\n{\"a\":[\"y\"]}", ".a[]", "",
        "a.json: line 2: nothing more should follow, at byte 1 (with a path a .json file is "
        "one value: JSON lines should be in a .jsonl file)");
    tn_corpus *c = open_text("a.jsonl", "{\"a\":\n[\"x\"]}\n", TN_WITH(tn_corpus, .key = ".a[]"));
    free(read_all(c).text);
    assert_error(TN_EFORMAT, "a.jsonl: line 1: a value should begin here, at byte 6");
}

/* A paragraph's context comes with each of its questions, and a question with each answer. */
TEST_WITH(test_pairs, NULL, temp_clean) {
    expect_pairs("a.json", squad, context, question,
                 "[The Oder is long.|Which?][The Oder is long.|How?][A hill.|None?]");
    expect_pairs("a.json", squad, question, answer, "[Which?|Oder][How?|long][How?|is long]");
    expect_pairs("a.json", squad, question, first_answer, "[Which?|Oder][How?|long]");
    expect_pairs("a.json", squad, answer, ".version", "[Oder|1.1][long|1.1][is long|1.1]");
    expect_pairs("a.json", squad,
                 "{data[].paragraphs[].context}\\n{.data[].paragraphs[].qas[].question}\\n", answer,
                 "[The Oder is long.\nWhich?\n|Oder][The Oder is long.\nHow?\n|long]"
                 "[The Oder is long.\nHow?\n|is long]");
    expect_pairs("a.jsonl", "{\"q\":\"1\",\"a\":\"2\"}", "q", "{{\\\\}} {a}{q}", "[1|{\\} 21]");
}

TEST_WITH(test_templates, NULL, temp_clean) {
    expect_texts("a.jsonl", "{\"t\":\"1\",\"b\":[\"2\"]}", "<{t}>\\t{.b[0]}", "[<1>\t2]");
    expect_texts("a.json", squad, "{.data[].title}: {.data[].paragraphs[].context}",
                 "[Rivers: The Oder is long.][Rivers: No question.][Hills: A hill.]");
}

/* ---- Wrong paths ----------------------------------------------------------------------------- */

static void expect_refused(const char *key, const char *why) {
    const char *path = temp_path("a.json");
    assert_none(tn_corpus_open(&path, 1, TN_WITH(tn_corpus, .key = key)), TN_EVALUE, why);
}

TEST_WITH(test_wrong_paths, NULL, temp_clean) {
    temp_write(temp_path("a.json"), squad, strlen(squad));
    expect_refused(".a[", "\".a[\": .name, [] or [number] should be here, at byte 3");
    expect_refused(".a[1", "should be here, at byte 3");
    expect_refused(".a[-1]", "should be here, at byte 3");
    expect_refused(".a[]b", "should be here, at byte 5");
    expect_refused("..a", "should be here, at byte 1");
    expect_refused(".a.", "should be here, at byte 3");
    expect_refused(".a]", "should be here, at byte 3");
    expect_refused("", "should be here, at byte 1");
    expect_refused("{}", "should be here, at byte 2");
    expect_refused(".a[99999999999]", "should be here, at byte 3");
    expect_refused("[][][][][][][][][][][][][][][][][]", "too many []");
    expect_refused("{a", "a { or } alone, at byte 1");
    expect_refused("a}", "a { or } alone, at byte 2");
    expect_refused("{{a}}", "there is no {path} in it");
    expect_refused("{.a[].b}{.c[].d}", "the paths go through different lists");
    expect_refused("{.a[][].b}{.a[].c[].d}", "the paths go through different lists");
    expect_refused("{.a[0][].b}{.a[1][].b}", "the paths go through different lists");
}

/* ---- Wrong files ----------------------------------------------------------------------------- */

TEST_WITH(test_wrong_values, NULL, temp_clean) {
    expect_wrong("{\"a\":[{\"b\":\"x\"},\n{\"c\":1,\"d\":2}]}", ".a[].b", "[x]",
                 "a.json: line 1: there is no \"b\" in a[1], but \"c\", \"d\"");
    expect_wrong("{\"a\":[{\"b\":\"x\"},{\"b\":\"y\",\"b\":\"z\"}]}", ".a[].b", "[x]",
                 "line 1: a[1].b is there twice");
    expect_wrong("\n{\"a\":[\"x\",1]}", ".a[]", "[x]", "line 1: a[1] is not a text");
    expect_wrong("{\"a\":[[\"x\"],{}]}", ".a[][]", "[x]", "line 1: a[1] is not a list");
    expect_wrong("{\"a\":[\"x\",\"y\"]}", ".a[].b", "", "line 1: a[0] is not an object");
    expect_wrong("{\"a\":{}}", ".a[0]", "", "line 1: a is not a list");
    expect_wrong("{\"a\":null}", ".a[]", "", "line 1: a is not a list");
    expect_wrong("{\"b\":1}", ".a[]", "", "line 1: there is no \"a\" in it, but \"b\"");
    expect_wrong("[{}]", "text", "", "(--key '.[].text' reads a list");
    /* The line and the byte in it are those of what is not JSON. */
    expect_wrong("\n{\n\"a\": [,]}", ".a[]", "",
                 "a.json: line 3: a value should begin here, at byte 7");
    expect_wrong("{\"a\":[\"x\"]}}", ".a[]", "", "line 1: nothing more should follow");
    expect_wrong("{\"a\":[\"x\"", ".a[]", "", "line 1: ',' or the closing bracket is missing");
    expect_wrong("{\"a\":[\"\xff\"]}", ".a[]", "", "line 1: not UTF-8, at byte 8");
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void read_records(void) {
    static const char key[] = "{.data[].title}\\n{.data[].paragraphs[].qas[].answers[0].text}";
    const char *path = temp_path("a.json");
    tn_document d;
    int documents = 0;
    tn_corpus *c = tn_corpus_open(&path, 1, TN_WITH(tn_corpus, .key = key));
    for (; c && tn_corpus_next(c, &d); documents++) {}
    tn_corpus_free(c);
    assert_true(tn_error() != TN_OK || documents == 2);
}

TEST_WITH(test_no_memory, NULL, temp_clean) {
    temp_write(temp_path("a.json"), squad, strlen(squad));
    every_malloc(read_records, 1, NULL);
}
