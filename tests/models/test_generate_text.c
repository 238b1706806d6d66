/* Texts of generated tokens: stop texts that span tokens, what a callback receives and when. A hook
 * replaces the model's logits, so that each test chooses the tokens. */
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <string.h>

#include <tern/tern.h>

enum { VOCAB = 10, LONGEST = 16 };

/* Tokens 4 and 5 are the two bytes of é; 7 ends documents; only the model has 8 and 9. */
static const char vocabulary[] = "{\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"\xc3\x83\": 4, "
                                 "\"\xc2\xa9\": 5, \"\xc4\xa0\": 6, \"<|endoftext|>\": 7}";
static const char merges[] = "#version: 0.2\na b\n";
enum { A, B, C, AB, E_HEAD, E_TAIL, BLANK, END };

static tn_tokenizer *tokenizer;
static tn_gpt gpt;

static int begin_tests(void **state) {
    temp_write(temp_path("vocab.json"), vocabulary, sizeof(vocabulary) - 1);
    temp_write(temp_path("merges.txt"), merges, sizeof(merges) - 1);
    tokenizer = tn_tokenizer_load(temp_path(""));
    tn_gpt_options o = TN_WITH(tn_gpt, .vocab = VOCAB, .context = 2 * LONGEST);
    o.layers = o.heads = 1;
    o.width = 4;
    tn_gpt_init(&gpt, o);
    return tokenizer && !tn_error() ? 0 : -1;
}

static int end_tests(void **state) {
    tn_tokenizer_free(tokenizer);
    tn_module_finish(&gpt);
    return 0;
}

/* ---- What the model says --------------------------------------------------------------------- */

typedef struct script {
    int tokens[LONGEST];
    int count;
} script;

static int next_word;

static tn_values say_next(tn_module *m, tn_values in, tn_values out, void *user) {
    const script *s = user;
    float logits[VOCAB] = {0};
    logits[s->tokens[next_word++ % s->count]] = 9.0f;
    return tn_values_of(TN_FROM(logits, TN_DIMS(1, 1, VOCAB), TN_F32), NULL);
}

typedef struct heard {
    char text[8 * LONGEST], at[LONGEST][8 * LONGEST]; /* after each token */
    size_t bytes;
    int calls;
} heard;

static bool hear_token(const tn_generated_token *token, void *user) {
    heard *h = user;
    memcpy(h->text + h->bytes, token->text, token->bytes);
    h->bytes += token->bytes;
    h->text[h->bytes] = 0;
    strcpy(h->at[h->calls++], h->text);
    return true;
}

/* Generates the tokens of `s`; the caller frees. */
static tn_generated hear_script(script s, tn_generate_options o, heard *h) {
    *h = (heard){.calls = 0};
    next_word = 0;
    o.temperature = 0.0;
    o.tokenizer = tokenizer;
    o.on_token = hear_token;
    o.user = h;
    tn_hook hook = tn_module_hook(&gpt, (tn_module_hooks){.after = say_next, .user = &s});
    tn_generated got;
    assert_int_equal(tn_generate(&gpt, &(tn_prompt){(int32_t[]){A}, 1}, 1, o, &got), TN_OK);
    tn_module_unhook(&gpt, hook);
    assert_string_equal(got.text, h->text); /* at the end the callback received all of it */
    assert_int_equal(got.bytes, h->bytes);
    assert_int_equal(got.tokens.count, h->calls);
    return got;
}

static tn_generate_options stopped_by(const char *const *stops, int count, int64_t most) {
    tn_generate_options o =
        TN_WITH(tn_generate, .max_new = most, .stop_texts = stops, .stop_text_count = count);
    return o;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

TEST(stop_texts) {
    const struct {
        script says;
        const char *stops[3];
        int64_t most;
        const char *text;
        tn_generated_end end;
        int tokens;
        const char *told; /* before the last token */
    } cases[] = {
        {{{A, B, C, A}, 4}, {"bc"}, 8, "a", TN_ENDED_BY_TEXT, 3, "a"},
        {{{A, AB, C, A}, 4}, {"bc"}, 8, "aa", TN_ENDED_BY_TEXT, 3, "aa"}, /* within a token */
        {{{AB, AB, A, C}, 4}, {"babac"}, 8, "a", TN_ENDED_BY_TEXT, 4, "a"},
        {{{AB, AB, AB, C}, 4}, {"babc"}, 8, "aba", TN_ENDED_BY_TEXT, 4, "aba"},
        {{{B, B, A, B}, 4}, {"bac"}, 4, "bbab", TN_ENDED_BY_COUNT, 4, "b"}, /* it never occurred */
        {{{C, AB, C}, 3}, {"abc", "b"}, 8, "ca", TN_ENDED_BY_TEXT, 2, "c"},
        {{{C, AB}, 2}, {"b", "ab"}, 8, "c", TN_ENDED_BY_TEXT, 2, "c"}, /* the first in the text */
        {{{C, A, A}, 3}, {"aaaaaaaaaaaaaaaaaaaaaaa"}, 3, "caa", TN_ENDED_BY_COUNT, 3, "c"},
        {{{AB}, 1}, {"ab"}, 8, "", TN_ENDED_BY_TEXT, 1, ""},
        {{{E_HEAD, E_TAIL, A}, 3}, {"\xc3\xa9"}, 8, "", TN_ENDED_BY_TEXT, 2, ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int count = 1 + (cases[i].stops[1] != NULL);
        heard h;
        tn_generated got =
            hear_script(cases[i].says, stopped_by(cases[i].stops, count, cases[i].most), &h);
        assert_string_equal(got.text, cases[i].text);
        assert_int_equal(got.end, cases[i].end);
        assert_int_equal(got.tokens.count, cases[i].tokens);
        if (h.calls > 1) { assert_string_equal(h.at[h.calls - 2], cases[i].told); }
        tn_generated_free(&got, 1);
    }
}

/* Text that may begin a stop text is held back; once it cannot, the callback receives it. */
TEST(held_back) {
    heard h;
    tn_generated got = hear_script((script){{C, A, B, A, C, E_HEAD, BLANK}, 7},
                                   stopped_by((const char *[]){"abc", "c c"}, 2, 7), &h);
    const char *told[] = {"", "c", "c", "cab", "caba", "cabac\xc3", "cabac\xc3 "};
    for (int i = 0; i < 7; i++) {
        assert_string_equal(h.at[i], told[i]);
    }
    tn_generated_free(&got, 1);
}

TEST(stop_texts_come_late) {
    heard h;
    tn_generate_options o = stopped_by((const char *[]){"b"}, 1, 8);
    o.min_new = 3;
    tn_generated got = hear_script((script){{A, B, A, A, C, B}, 6}, o, &h);
    assert_string_equal(got.text, "abaac");
    assert_int_equal(got.end, TN_ENDED_BY_TEXT);
    tn_generated_free(&got, 1);
}

/* A stop token is the last token but not part of the text; if it is not a stop token, it is
 * text. */
TEST(stop_tokens_and_text) {
    heard h;
    tn_generate_options o = TN_WITH(tn_generate, .max_new = 4);
    script says = {{A, END, C, C}, 4};
    tn_generated got = hear_script(says, o, &h);
    assert_string_equal(got.text, "a<|endoftext|>cc");
    tn_generated_free(&got, 1);
    o.stop_tokens = (int32_t[]){END};
    o.stop_token_count = 1;
    got = hear_script(says, o, &h);
    assert_string_equal(got.text, "a");
    assert_int_equal(got.tokens.count, 2);
    assert_int_equal(got.tokens.ids[1], END);
    assert_int_equal(got.end, TN_ENDED_BY_TOKEN);
    tn_generated_free(&got, 1);
}

/* A model's vocabulary may be rounded up: tokens that the tokenizer lacks are never generated. */
TEST(tokens_of_the_model_alone) {
    heard h;
    tn_generate_options o = TN_WITH(tn_generate, .max_new = 2);
    tn_generated got = hear_script((script){{VOCAB - 1, C}, 2}, o, &h);
    assert_string_equal(got.text, "ac");
    tn_generated_free(&got, 1);
}

TEST(nothing_to_say) {
    heard h;
    tn_generate_options o = TN_WITH(tn_generate, .max_new = 0);
    tn_generated got = hear_script((script){{A}, 1}, o, &h);
    assert_string_equal(got.text, "");
    tn_generated_free(&got, 1);
    o.tokenizer = tokenizer;
    o.stop_texts = (const char *[]){"a", ""};
    o.stop_text_count = 2;
    tn_generate(&gpt, &(tn_prompt){(int32_t[]){A}, 1}, 1, o, &got);
    assert_error(TN_EVALUE, "stop text 1 is empty");
}

int main(void) {
    return tests_run(begin_tests, end_tests);
}
