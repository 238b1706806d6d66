/* Multiple choice: scores by hand, prompts that are cut, files that are wrong, any number of ranks.
 */
#include "tern/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/allocator.h"
#include "tern/models.h"
#include "tests/support/byte_vocab.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { CONTEXT = 24 };

static tn_tokenizer *tokenizer;

static int group_setup(void **state) {
    char folder[512];
    snprintf(folder, sizeof(folder), "%s", temp_path("bytes"));
    assert_int_equal(mkdir(folder, 0777), 0);
    tokenizer = byte_vocab_load(folder);
    assert_non_null(tokenizer);
    return 0;
}

static int group_end(void **state) {
    tn_tokenizer_free(tokenizer);
    return 0;
}

static void make_model(tn_gpt *gpt) {
    tn_gpt_options o = TN_WITH(tn_gpt, .vocab = BYTE_VOCAB, .context = CONTEXT, .layers = 2,
                               .heads = 2, .width = 16);
    tn_seed(7);
    tn_gpt_init(gpt, o);
    TN_NO_GRAD;
    tn_mul_scalar_(tn_module_get(gpt, "wte.weight"), 20);
}

static const char *write_lines(const char *text) {
    const char *path = temp_path("choices.jsonl");
    temp_write(path, text, strlen(text));
    return path;
}

static tn_status scores_of(void *m, const char *text, tn_choice_scores *out) {
    return tn_evaluate_choices(m, write_lines(text), tokenizer, CONTEXT, tn_evaluate_defaults(),
                               out);
}

/* ---- By hand --------------------------------------------------------------------------------- */

typedef struct question {
    const char *prompt, *endings[4];
    int label;
} question;

/* Endings of different lengths and of none (a space is added unless there is one), one beyond
 * ASCII, prompts that are longer than the context. */
static const question questions[] = {
    {"The sun", {"rises.", "sets in the east", "is cold", "x"}, 0},
    {"He takes the ball and", {"throws", " runs away", "eats \xc3\xa9t\xc3\xa9", "sleeps"}, 2},
    {"A prompt that is much longer than the context of the model", {"ends", "goes on"}, 1},
    {"a", {"an ending as a context.", "b", "c"}, 1},
    {"She", {"sings a song", "sang", "sung songs", "song"}, 3},
    {"It was", {"the best", "of times", "and the worst"}, 2},
    {"Two and two", {"are four", "are five"}, 0},
};
enum { QUESTIONS = sizeof(questions) / sizeof(questions[0]) };

static const char *questions_as_lines(void) {
    static char text[4096];
    size_t at = 0;
    for (int i = 0; i < QUESTIONS; i++) {
        const question *q = &questions[i];
        at += (size_t)snprintf(text + at, sizeof(text) - at,
                               "{\"ind\":%d,\"ctx\":\"%s\",\"endings\":[", i, q->prompt);
        for (int e = 0; e < 4 && q->endings[e]; e++) {
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s\"%s\"", e ? ", " : "",
                                   q->endings[e]);
        }
        at += (size_t)snprintf(text + at, sizeof(text) - at,
                               i % 2 ? "],\"label\":\"%d\"}\r\n\n" : "],\"label\":%d}\n", q->label);
    }
    return text;
}

/* -log p of an ending's bytes after a prompt, one after the other. */
static double nats_by_hand(void *m, const char *prompt, const char *ending) {
    TN_NO_GRAD;
    char text[256];
    snprintf(text, sizeof(text), "%s%s%s", prompt, *ending == ' ' ? "" : " ", ending);
    size_t all = strlen(text), first = strlen(prompt);
    size_t cut = all > CONTEXT + 1 ? all - CONTEXT - 1 : 0;
    double sum = 0;
    for (size_t i = first; i < all; i++) {
        TN_SCOPE;
        int64_t x[CONTEXT], T = 0;
        for (size_t t = cut; t < i; t++) {
            x[T++] = (unsigned char)text[t];
        }
        tn_tensor *p = tn_log_softmax(tn_call(m, tn_from_data(x, TN_DIMS(1, T), TN_I64)), 2);
        sum -= tn_at(p, TN_DIMS(0, T - 1, (unsigned char)text[i]));
    }
    return sum;
}

static double characters_in(const char *text) {
    double count = 0;
    for (; *text; text++) {
        count += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return count;
}

/* Which ending costs least in total, per character, per token (a byte here). */
static void choose_by_hand(void *m, const question *q, int *chosen) {
    double best[3] = {INFINITY, INFINITY, INFINITY};
    for (int e = 0; e < 4 && q->endings[e]; e++) {
        const char *ending = q->endings[e];
        double nats = nats_by_hand(m, q->prompt, ending);
        double tokens = (double)strlen(ending) + (*ending != ' ');
        double costs[3] = {nats, nats / characters_in(ending), nats / tokens};
        for (int s = 0; s < 3; s++) {
            if (costs[s] < best[s]) {
                best[s] = costs[s];
                chosen[s] = e;
            }
        }
    }
}

TEST(test_by_hand) {
    tn_gpt gpt;
    make_model(&gpt);
    double right[3] = {0};
    for (int i = 0; i < QUESTIONS; i++) {
        int chosen[3];
        choose_by_hand(&gpt, &questions[i], chosen);
        for (int s = 0; s < 3; s++) {
            right[s] += chosen[s] == questions[i].label;
        }
    }
    tn_choice_scores c;
    tn_evaluate_options o = tn_evaluate_defaults();
    for (o.batch = 1; o.batch <= 32; o.batch += 3) {
        assert_int_equal(
            tn_evaluate_choices(&gpt, write_lines(questions_as_lines()), tokenizer, CONTEXT, o, &c),
            TN_OK);
        assert_int_equal(c.questions, QUESTIONS);
        assert_int_equal(c.endings, 22);
        assert_true(c.acc == right[0] / QUESTIONS);
        assert_true(c.acc_norm == right[1] / QUESTIONS);
        assert_true(c.acc_norm_per_token == right[2] / QUESTIONS);
    }
    tn_module_finish(&gpt);
}

/* Of many endings exactly the one that costs least by hand is chosen. The prompts are
 * cut, or not, and endings differ by little. */
TEST(test_chosen_by_hand) {
    tn_gpt gpt;
    make_model(&gpt);
    for (int i = 0; i < 25; i++) {
        char prompt[64] = {0}, endings[4][16] = {{0}};
        question q = {.prompt = prompt};
        for (int c = 0; c < 2 + 2 * i; c++) {
            prompt[c] = (char)('a' + (c * c + 5 * c + i) % 26);
        }
        for (int e = 0; e < 4; e++) {
            q.endings[e] = endings[e];
            for (int c = 0; c < 2 + (i + e) % 3; c++) {
                endings[e][c] = (char)('a' + (7 * c + 3 * e + i) % 26);
            }
            endings[e][0] = e == 2 ? ' ' : endings[e][0];
        }
        int chosen[3];
        choose_by_hand(&gpt, &q, chosen);
        for (q.label = 0; q.label < 4; q.label++) {
            char line[512];
            snprintf(line, sizeof(line),
                     "{\"ctx\":\"%s\",\"endings\":[\"%s\",\"%s\",\"%s\",\"%s\"],\"label\":%d}",
                     prompt, endings[0], endings[1], endings[2], endings[3], q.label);
            tn_choice_scores c;
            assert_int_equal(scores_of(&gpt, line, &c), TN_OK);
            assert_true(c.acc == (chosen[0] == q.label));
            assert_true(c.acc_norm == (chosen[1] == q.label));
            assert_true(c.acc_norm_per_token == (chosen[2] == q.label));
        }
    }
    tn_module_finish(&gpt);
}

/* A table of next-letter scores, so that answers can be predicted: nearly always the next letter of
 * the alphabet follows. */
static void make_alphabet(tn_embedding *m) {
    static float table[BYTE_VOCAB][BYTE_VOCAB];
    for (int c = 0; c < 256; c++) {
        table[c][c + 1] = 8;
    }
    tn_embedding_init(m, BYTE_VOCAB, BYTE_VOCAB, tn_embedding_defaults());
    TN_NO_GRAD;
    tn_copy_(m->weight, TN_FROM(table, TN_DIMS(BYTE_VOCAB, BYTE_VOCAB), TN_F32));
}

/* The long ending has more letters, and better ones: more cost in total, less per letter. */
TEST(test_each_score) {
    tn_embedding m;
    tn_choice_scores c;
    make_alphabet(&m);
    static const char one[] =
        "{\"ctx\":\"ab\",\"endings\":[\"x\",\"cdefghijklmnop\"],\"label\":%d}";
    char text[sizeof(one) + 8];
    for (int label = 0; label < 2; label++) {
        snprintf(text, sizeof(text), one, label);
        assert_int_equal(scores_of(&m, text, &c), TN_OK);
        assert_true(c.acc == !label && c.acc_norm == label && c.acc_norm_per_token == label);
    }
    /* misses: 5 in 4 characters of 7 bytes; 8 in 7 of 8 */
    assert_int_equal(
        scores_of(&m, "{\"ctx\":\"a\",\"endings\":[\"abc\xe2\x82\xac\",\"xaxaxax\"],\"label\":0}",
                  &c),
        TN_OK);
    assert_true(c.acc == 1 && c.acc_norm == 0 && c.acc_norm_per_token == 1);
    /* equal scores: the first */
    assert_int_equal(scores_of(&m, "{\"ctx\":\"a\",\"endings\":[\"x\",\"x\"],\"label\":0}", &c),
                     TN_OK);
    assert_true(c.acc == 1 && c.acc_norm == 1 && c.acc_norm_per_token == 1);
    tn_module_finish(&m);
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

typedef struct share {
    const char *path;
    tn_choice_scores scores[8];
} share;

static void evaluate_rank(tn_group *world, void *user) {
    share *s = user;
    tn_gpt gpt;
    make_model(&gpt);
    tn_evaluate_choices(&gpt, s->path, tokenizer, CONTEXT, TN_WITH(tn_evaluate, .group = world),
                        &s->scores[tn_group_rank(world)]);
    tn_module_finish(&gpt);
}

TEST(test_ranks) {
    share s = {.path = write_lines(questions_as_lines())};
    tn_choice_scores one = {0};
    for (int ranks = 1; ranks <= 8; ranks++) {
        assert_int_equal(tn_local_run(ranks, evaluate_rank, &s), TN_OK);
        one = ranks == 1 ? s.scores[0] : one;
        assert_int_equal(one.questions, QUESTIONS);
        for (int r = 0; r < ranks; r++) {
            assert_memory_equal(&s.scores[r], &one, sizeof(one));
        }
    }
}

/* ---- Files that are wrong -------------------------------------------------------------------- */

TEST(test_wrong_lines) {
    static const struct {
        const char *line, *wrong;
    } lines[] = {
        {"{", "choices.jsonl:2: byte "},
        {"[1]", "choices.jsonl:2: a line must be an object"},
        {"{\"endings\":[\"a\",\"b\"],\"label\":0}", "choices.jsonl:2: there is no string \"ctx\""},
        {"{\"ctx\":1,\"endings\":[\"a\",\"b\"],\"label\":0}", ":2: there is no string \"ctx\""},
        {"{\"ctx\":\"\",\"endings\":[\"a\",\"b\"],\"label\":0}", ":2: \"ctx\" has no tokens"},
        {"{\"ctx\":\"a\",\"label\":0}", ":2: there is no list \"endings\""},
        {"{\"ctx\":\"a\",\"endings\":[\"a\"],\"label\":0}", ":2: there is no list \"endings\""},
        {"{\"ctx\":\"a\",\"endings\":\"ab\",\"label\":0}", ":2: there is no list \"endings\""},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",7],\"label\":0}", ":2: an ending is not a string"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",[\"b\"]],\"label\":0}",
         ":2: an ending is not a string"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"\"],\"label\":0}", ":2: an ending is not a string"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"b\"]}", ":2: \"label\" must be"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"b\"],\"label\":2}", ":2: \"label\" must be"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"b\"],\"label\":-1}", ":2: \"label\" must be"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"b\"],\"label\":0.5}", ":2: \"label\" must be"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"b\"],\"label\":\"\"}", ":2: \"label\" must be"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"b\"],\"label\":\"1x\"}", ":2: \"label\" must be"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"b\"],\"label\":\"99999999999999999999\"}",
         ":2: \"label\" must be"},
        {"{\"ctx\":\"a\",\"endings\":[\"a\",\"12345678901234567890123456\"],\"label\":0}",
         ":2: an ending has 27 tokens but must have from 1 to the context, 24"},
    };
    tn_gpt gpt;
    tn_choice_scores c;
    make_model(&gpt);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "{\"ctx\":\"a\",\"endings\":[\"a\",\"b\"],\"label\":1}\n%s",
                 lines[i].line);
        assert_fails(scores_of(&gpt, text, &c), TN_EFORMAT, lines[i].wrong);
        assert_int_equal(c.questions, 0);
    }
    assert_fails(scores_of(&gpt, "\n \n", &c), TN_EFORMAT, "choices.jsonl: no questions in it");
    assert_fails(tn_evaluate_choices(&gpt, temp_path("nowhere"), tokenizer, CONTEXT,
                                     tn_evaluate_defaults(), &c),
                 TN_EIO, "nowhere: No such file");
    tn_module_finish(&gpt);
}

TEST(test_no_memory) {
    tn_embedding m;
    make_alphabet(&m);
    const char *path = write_lines(questions_as_lines());
    tn_choice_scores c;
    assert_int_equal(tn_evaluate_choices(&m, path, tokenizer, 64, tn_evaluate_defaults(), &c),
                     TN_OK);
    int64_t live = tn_live_tensors(), n = 0;
    for (bool reached = true; reached; n++) {
        tn__alloc_fail_at(n);
        tn_status status = tn_evaluate_choices(&m, path, tokenizer, 64, tn_evaluate_defaults(), &c);
        reached = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_int_equal(tn_live_tensors(), live);
        assert_int_equal(status, reached ? TN_ENOMEM : TN_OK);
        assert_int_equal(c.questions, reached ? 0 : QUESTIONS);
        tn_error_clear();
    }
    assert_true(n > 20);
    tn_module_finish(&m);
}

/* ---- Bits per byte --------------------------------------------------------------------------- */

/* With a token for each byte: the loss in bits, without what special tokens cost. */
TEST(test_bits_per_byte) {
    tn_gpt gpt;
    make_model(&gpt);
    int64_t x[2][6] = {{256, 'a', 'b', 0, 'd', 'e'}, {1, 2, 3, 4, 5, 6}};
    int64_t y[2][6] = {{'a', 'b', 0, 'd', 'e', 'f'}, {2, 3, 4, 5, 256, -100}};
    tn_perplexity p, without;
    tn_dataset *d =
        tn_tensor_dataset(TN_FROM(x, TN_DIMS(2, 6), TN_I64), TN_FROM(y, TN_DIMS(2, 6), TN_I64));
    tn_evaluate_options o = tn_evaluate_defaults();
    assert_int_equal(tn_evaluate_perplexity(&gpt, d, tokenizer, o, &p), TN_OK);
    tn_dataset_free(d);
    y[1][4] = -100;
    d = tn_tensor_dataset(TN_FROM(x, TN_DIMS(2, 6), TN_I64), TN_FROM(y, TN_DIMS(2, 6), TN_I64));
    assert_int_equal(tn_evaluate_perplexity(&gpt, d, NULL, o, &without), TN_OK);
    tn_dataset_free(d);
    assert_int_equal(p.tokens, 11);
    assert_int_equal(p.bytes, 10);
    assert_true(fabs(p.bits_per_byte - without.loss / log(2)) < 1e-12);
    tn_module_finish(&gpt);
}

TEST(test_no_token_of_the_tokenizer) {
    tn_embedding m;
    tn_perplexity p;
    tn_embedding_init(&m, BYTE_VOCAB + 9, BYTE_VOCAB + 9, tn_embedding_defaults());
    int64_t x[1] = {1}, y[1] = {BYTE_VOCAB};
    tn_dataset *d =
        tn_tensor_dataset(TN_FROM(x, TN_DIMS(1, 1), TN_I64), TN_FROM(y, TN_DIMS(1, 1), TN_I64));
    assert_fails(tn_evaluate_perplexity(&m, d, tokenizer, tn_evaluate_defaults(), &p), TN_EVALUE,
                 "target 257 is not a token of the tokenizer, which has 257");
    tn_dataset_free(d);
    tn_module_finish(&m);
}

int main(void) {
    return tests_run(group_setup, group_end);
}
