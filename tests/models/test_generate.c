/* Generating, for each family of language models: against a slow twin that calls the model on the
 * whole window every time, batches against single sequences, stopping, and what is refused. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include <tern/tern.h>

enum { VOCAB = 13, CONTEXT = 12, LAYERS = 2, NEW = 20, MOST = 8 };

/* ---- Families -------------------------------------------------------------------------------- */

typedef union any_model {
    tn_module base;
    tn_gpt gpt;
    tn_llama llama;
} any_model;

static void init_gpt(any_model *m, int64_t vocab) {
    tn_gpt_options o = TN_WITH(tn_gpt, .vocab = vocab, .context = CONTEXT, .layers = LAYERS,
                               .heads = 2, .width = 16);
    o.dtype = TN_F64; /* so that no token depends on how a batch of another size rounds */
    tn_gpt_init(&m->gpt, o);
}

static void init_llama(any_model *m, int64_t vocab) {
    tn_llama_options o =
        TN_WITH(tn_llama, .vocab = vocab, .context = CONTEXT, .layers = LAYERS, .heads = 4,
                .kv_heads = 2, .width = 16, .hidden = 24, .dtype = TN_F64);
    tn_llama_init(&m->llama, o);
}

typedef void (*init_model)(any_model *m, int64_t vocab);
static const init_model families[] = {init_gpt, init_llama};
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

/* Large weights, so that a token depends on all tokens before it. */
static bool widen_entry(const tn_entry *entry, void *user) {
    if (tn_ndim(*entry->field) == 2) { tn_mul_scalar_(*entry->field, 20.0); }
    return true;
}

static void open_model(any_model *m, int family, int64_t vocab) {
    TN_NO_GRAD;
    tn_seed(7);
    families[family](m, vocab);
    tn_module_each(m, (tn_walk){0}, widen_entry, NULL);
}

/* Begin and end of a test for each family. */
#define EACH_FAMILY(m)                                                                    \
    for (int family_ = 0; family_ < FAMILIES && (open_model(&(m), family_, VOCAB), true); \
         tn_module_finish(&(m)), family_++)

static bool count_caches(tn_module *m, const char *path, void *user) {
    const tn_kv_cache *cache =
        strcmp(m->kind, "self_attention") == 0 ? &((const tn_self_attention *)m)->cache : NULL;
    *(int *)user += cache && (cache->k || cache->v || cache->length);
    return true;
}

static void expect_no_caches(any_model *m) {
    int count = 0;
    tn_module_each_module(m, count_caches, &count);
    assert_int_equal(count, 0);
}

/* ---- Prompts --------------------------------------------------------------------------------- */

/* n prompts of 1, 2, 3 … or `length` tokens. */
typedef struct prompts {
    tn_prompt of[MOST];
    int32_t ids[MOST][3 * CONTEXT];
} prompts;

static const tn_prompt *make_prompts(prompts *p, const int *lengths, int n) {
    tn_generator g = {.seed = 11};
    for (int i = 0; i < n; i++) {
        p->of[i] = (tn_prompt){p->ids[i], lengths[i]};
        for (int k = 0; k < lengths[i]; k++) {
            p->ids[i][k] = (int32_t)tn_random_below(&g, VOCAB);
        }
    }
    return p->of;
}

static tn_generate_options greedy_options(int64_t count) {
    tn_generate_options o = TN_WITH(tn_generate, .max_new = count, .temperature = 0.0);
    return o;
}

static void expect_same(const tn_generated *a, const tn_generated *b) {
    assert_int_equal(a->tokens.count, b->tokens.count);
    assert_memory_equal(a->tokens.ids, b->tokens.ids, (size_t)a->tokens.count * sizeof(int32_t));
    assert_int_equal(a->end, b->end);
}

/* ---- The twin -------------------------------------------------------------------------------- */

/* The most likely tokens, with the whole window again for each, and Hugging Face's penalty. */
static void generate_slowly(any_model *m, tn_prompt prompt, double penalty, int32_t *out) {
    TN_NO_GRAD;
    int32_t all[3 * CONTEXT + NEW], window[CONTEXT];
    int64_t n = prompt.count, begin = n > CONTEXT ? n - CONTEXT : 0;
    memcpy(all, prompt.ids, (size_t)n * sizeof(*all));
    for (int i = 0; i < NEW; i++, n++) {
        TN_SCOPE;
        if (n - begin > CONTEXT) { begin = n - CONTEXT / 2 - 1; }
        memcpy(window, all + begin, (size_t)(n - begin) * sizeof(*all));
        tn_tensor *y = tn_call(m, tn_from_data(window, TN_DIMS(1, n - begin), TN_I32));
        float logits[VOCAB];
        tn_copy_out(tn_cast(tn_select(tn_select(y, 0, 0), 0, n - begin - 1), TN_F32), logits);
        int best = 0;
        for (int t = 0; t < VOCAB; t++) {
            for (int64_t k = 0; k < n; k++) {
                if (all[k] == t) {
                    logits[t] *= logits[t] < 0 ? (float)penalty : 1 / (float)penalty;
                    break;
                }
            }
            best = logits[t] > logits[best] ? t : best;
        }
        out[i] = all[n] = best;
    }
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

TEST(greedy_is_the_twins) {
    any_model m;
    prompts p;
    const int lengths[] = {1, 3, CONTEXT - 1, CONTEXT, CONTEXT + 1, 3 * CONTEXT};
    make_prompts(&p, lengths, 6);
    EACH_FAMILY(m) {
        for (int i = 0; i < 6; i++) {
            int32_t want[NEW];
            for (int k = 0; k < 3; k++) {
                tn_generate_options o = greedy_options(NEW);
                o.repetition_penalty = k == 0 ? 1.0 : k == 1 ? 1.5 : 0.7;
                generate_slowly(&m, p.of[i], o.repetition_penalty, want);
                tn_generated got;
                assert_int_equal(tn_generate(&m, &p.of[i], 1, o, &got), TN_OK);
                assert_int_equal(got.tokens.count, NEW); /* the context fills up more than once */
                assert_memory_equal(got.tokens.ids, want, sizeof(want));
                assert_int_equal(got.end, TN_ENDED_BY_COUNT);
                assert_null(got.text);
                tn_generated_free(&got, 1);
                assert_null(got.tokens.ids);
            }
        }
        expect_no_caches(&m);
    }
}

/* Options that cut all but the most likely token. */
TEST(cuts_to_the_most_likely) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){3}, 1);
    EACH_FAMILY(m) {
        tn_generated want, got;
        tn_generate(&m, p.of, 1, greedy_options(NEW), &want);
        for (int i = 0; i < 4; i++) {
            tn_generate_options o = greedy_options(NEW);
            o.temperature = i < 2 ? 5.0 : i == 2 ? 1e-200 : 1e-20;
            o.top_k = i == 0;
            o.top_p = i == 1 ? 0.0 : 1.0;
            assert_int_equal(tn_generate(&m, p.of, 1, o, &got), TN_OK);
            expect_same(&got, &want);
            tn_generated_free(&got, 1);
        }
        tn_generate_options o = tn_generate_defaults(), wide = o;
        wide.top_k = INT64_MAX; /* more than there are */
        tn_generated all;
        tn_generate(&m, p.of, 1, o, &got);
        tn_generate(&m, p.of, 1, wide, &all);
        expect_same(&got, &all);
        tn_generated_free(&all, 1);
        tn_generated_free(&got, 1);
        tn_generated_free(&want, 1);
    }
}

/* ---- Batches --------------------------------------------------------------------------------- */

/* The logits of each call, in the order of its rows. */
typedef struct record {
    float logits[NEW][MOST][VOCAB];
    int calls;
} record;

static tn_values record_logits(tn_module *m, tn_values in, tn_values out, void *user) {
    record *r = user;
    tn_copy_out(tn_cast(out.v[0], TN_F32), r->logits[r->calls++]);
    return out;
}

enum { ROWS = 7 };

/* Sequences generated in a batch are as alone. With `compared` the logits are, too, if rows stay in
 * place. */
static void expect_alone(any_model *m, const tn_prompt *of, tn_generate_options o, bool compared) {
    static record all, one;
    tn_generated got[ROWS], alone;
    all.calls = 0;
    tn_hook hook = tn_module_hook(m, (tn_module_hooks){.after = record_logits, .user = &all});
    assert_int_equal(tn_generate(m, of, ROWS, o, got), TN_OK);
    tn_module_unhook(m, hook);
    int ends = 0;
    for (int i = 0; i < ROWS; i++) {
        one.calls = 0;
        hook = tn_module_hook(m, (tn_module_hooks){.after = record_logits, .user = &one});
        o.first = (uint64_t)i;
        assert_int_equal(tn_generate(m, &of[i], 1, o, &alone), TN_OK);
        tn_module_unhook(m, hook);
        expect_same(&got[i], &alone);
        for (int c = 0; compared && c < NEW; c++) {
            for (int t = 0; t < VOCAB; t++) {
                float x = one.logits[c][0][t], y = all.logits[c][i][t];
                assert_true(fabsf(x - y) <= 1e-5f * (1.0f + fabsf(x)));
            }
        }
        ends += got[i].end == TN_ENDED_BY_TOKEN;
        tn_generated_free(&alone, 1);
    }
    assert_true(compared ? ends == 0 : ends > 1);
    tn_generated_free(got, ROWS);
}

/* Although each fills the context at another time and some end early: long prompts often restart
 * the context together, short ones continue for some tokens while others end. */
TEST(batches_are_sequences_alone) {
    any_model m;
    prompts p;
    const int lengths[2][ROWS] = {{4, 1, 9, 4, CONTEXT, CONTEXT + 2, 7}, {2, 4, 1, 3, 1, 2, 3}};
    const int32_t stops[] = {2, 5, 8};
    EACH_FAMILY(m) {
        for (int k = 0; k < 10; k++) {
            make_prompts(&p, lengths[k % 2], ROWS);
            tn_generate_options o = TN_WITH(
                tn_generate, .max_new = NEW, .seed = (uint64_t)k, .temperature = k < 2 ? 0.0 : 6.0,
                .top_k = k == 4 ? 5 : 0, .repetition_penalty = k == 4 || k == 5 ? 1.3 : 1.0,
                .stop_tokens = stops, .stop_token_count = k < 6 ? 0 : 3);
            expect_alone(&m, p.of, o, k < 6);
        }
        expect_no_caches(&m);
    }
}

TEST(any_number_of_threads) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){4, 1, 9}, 3);
    int before = tn_threads();
    EACH_FAMILY(m) {
        tn_generated first[3], got[3];
        for (int threads = 1; threads <= 3; threads++) {
            tn_set_threads(threads);
            tn_generate_options o =
                TN_WITH(tn_generate, .max_new = NEW, .seed = 21, .temperature = 4.0);
            tn_generate(&m, p.of, 3, o, threads == 1 ? first : got);
            for (int i = 0; threads > 1 && i < 3; i++) {
                expect_same(&got[i], &first[i]);
            }
            if (threads > 1) { tn_generated_free(got, 3); }
        }
        tn_generated_free(first, 3);
    }
    tn_set_threads(before);
}

/* A draw depends on its position: continuing from a generated text gives the same tokens as
 * generating it all at once. */
TEST(going_on) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){2}, 1);
    EACH_FAMILY(m) {
        tn_generate_options o = TN_WITH(tn_generate, .max_new = 8, .temperature = 6.0, .seed = 5);
        tn_generated whole, half;
        tn_generate(&m, p.of, 1, o, &whole);
        memcpy(p.ids[0] + 2, whole.tokens.ids, 4 * sizeof(int32_t));
        o.max_new = 4;
        tn_generate(&m, &(tn_prompt){p.ids[0], 6}, 1, o, &half);
        assert_memory_equal(half.tokens.ids, whole.tokens.ids + 4, 4 * sizeof(int32_t));
        tn_generated_free(&half, 1);
        o.seed = 6;
        tn_generate(&m, &(tn_prompt){p.ids[0], 6}, 1, o, &half);
        assert_memory_not_equal(half.tokens.ids, whole.tokens.ids + 4, 4 * sizeof(int32_t));
        tn_generated_free(&half, 1);
        tn_generated_free(&whole, 1);
    }
}

/* Tokens are as frequent as softmax says; with top_k only k of them appear. */
TEST(frequencies_follow_softmax) {
    any_model m;
    enum { DRAWS = 4000, AT_ONCE = 400 };
    int32_t ids[] = {4, 9};
    static tn_prompt same[AT_ONCE];
    static tn_generated got[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        same[i] = (tn_prompt){ids, 2};
    }
    EACH_FAMILY(m) {
        double p[VOCAB];
        {
            TN_SCOPE;
            TN_NO_GRAD;
            tn_tensor *logits =
                tn_select(tn_select(tn_call(&m, TN_FROM(ids, TN_DIMS(1, 2), TN_I32)), 0, 0), 0, 1);
            tn_copy_out(tn_softmax(tn_mul_scalar(logits, 1 / 50.0), 0), p);
        }
        for (int k = 0; k < 2; k++) {
            int seen[VOCAB] = {0}, kinds = 0;
            tn_generate_options o = TN_WITH(tn_generate, .max_new = 1);
            o.temperature = 50.0; /* flattens the distribution */
            o.top_k = k ? 3 : 0;
            for (int i = 0; i < DRAWS; i += AT_ONCE) {
                o.first = (uint64_t)i;
                assert_int_equal(tn_generate(&m, same, AT_ONCE, o, got), TN_OK);
                for (int j = 0; j < AT_ONCE; j++) {
                    kinds += seen[got[j].tokens.ids[0]]++ == 0;
                }
                tn_generated_free(got, AT_ONCE);
            }
            for (int t = 0; t < VOCAB && k == 0; t++) {
                double error = (seen[t] / (double)DRAWS - p[t]) / sqrt(p[t] * (1 - p[t]) / DRAWS);
                assert_true(fabs(error) < 4.5);
            }
            assert_int_equal(kinds, k ? 3 : VOCAB);
        }
    }
}

/* ---- Ends ------------------------------------------------------------------------------------ */

TEST(stop_tokens) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){3}, 1);
    EACH_FAMILY(m) {
        tn_generated want, got;
        tn_generate(&m, p.of, 1, greedy_options(NEW), &want);
        int64_t at = 0; /* the first that did not appear before */
        const int32_t *ids = want.tokens.ids;
        for (int64_t i = 1; at == 0; i++) {
            at = i;
            for (int64_t k = 0; k < i; k++) {
                at = ids[k] == ids[i] ? 0 : at;
            }
        }
        int32_t stops[] = {ids[at], VOCAB - 1};
        tn_generate_options o = greedy_options(NEW);
        o.stop_tokens = stops;
        o.stop_token_count = 1;
        tn_generate(&m, p.of, 1, o, &got);
        assert_int_equal(got.end, TN_ENDED_BY_TOKEN);
        assert_int_equal(got.tokens.count, at + 1);
        assert_memory_equal(got.tokens.ids, ids, (size_t)(at + 1) * sizeof(int32_t));
        tn_generated_free(&got, 1);
        o.min_new = at; /* allowed right after that many tokens */
        tn_generate(&m, p.of, 1, o, &got);
        assert_int_equal(got.tokens.count, at + 1);
        tn_generated_free(&got, 1);
        o.min_new = NEW - 1; /* excluded: another token takes its place */
        tn_generate(&m, p.of, 1, o, &got);
        assert_in_range(got.tokens.count, NEW - 1, NEW);
        for (int64_t i = 0; i < NEW - 1; i++) {
            assert_int_not_equal(got.tokens.ids[i], stops[0]);
        }
        tn_generated_free(&got, 1);
        tn_generated_free(&want, 1);
    }
}

/* ---- Callbacks ------------------------------------------------------------------------------- */

typedef struct listener {
    int32_t tokens[MOST][NEW];
    int64_t counts[MOST];
    int last_sequence, lasts;
    int64_t stop_after; /* sequence 1 */
    bool raises;
} listener;

static bool listen_to(const tn_generated_token *token, void *user) {
    listener *l = user;
    int64_t *count = &l->counts[token->sequence];
    l->tokens[token->sequence][(*count)++] = token->token;
    assert_int_equal(token->count, *count);
    assert_null(token->text);
    l->lasts += token->last;
    if (l->raises && *count == 3) { tn_raise(TN_EVALUE, "enough"); }
    return token->sequence != 1 || *count != l->stop_after;
}

TEST(callbacks_hear_every_token) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){4, 1, 9}, 3);
    EACH_FAMILY(m) {
        tn_generated want[3], got[3];
        tn_generate(&m, p.of, 3, greedy_options(NEW), want);
        listener l = {.stop_after = 5};
        tn_generate_options o = greedy_options(NEW);
        o.on_token = listen_to;
        o.user = &l;
        assert_int_equal(tn_generate(&m, p.of, 3, o, got), TN_OK);
        assert_int_equal(l.lasts, 2);
        assert_int_equal(got[1].end, TN_ENDED_BY_CALLER);
        assert_int_equal(got[1].tokens.count, 5);
        for (int i = 0; i < 3; i++) {
            size_t bytes = (size_t)got[i].tokens.count * sizeof(int32_t);
            assert_int_equal(l.counts[i], got[i].tokens.count);
            assert_memory_equal(l.tokens[i], got[i].tokens.ids, bytes);
            assert_memory_equal(want[i].tokens.ids, got[i].tokens.ids, bytes);
        }
        tn_generated_free(got, 3);
        tn_generated_free(want, 3);
        l = (listener){.raises = true};
        assert_fails(tn_generate(&m, p.of, 3, o, got), TN_EVALUE, "enough");
        assert_null(got[0].tokens.ids);
        expect_no_caches(&m);
    }
}

/* Bytes and number of tensors: from the second token on neither grows. */
typedef struct memory_of {
    int64_t bytes, tensors;
    bool grew;
} memory_of;

static bool look_at_memory(const tn_generated_token *token, void *user) {
    memory_of *at = user;
    int64_t bytes = tn_memory().allocated, tensors = tn_live_tensors();
    if (token->count == 2) { *at = (memory_of){bytes, tensors, false}; }
    at->grew = at->grew || (token->count > 2 && (bytes > at->bytes || tensors > at->tensors));
    return true;
}

TEST(memory_stays) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){2, 1}, 2);
    EACH_FAMILY(m) {
        memory_of at = {0};
        tn_generate_options o = greedy_options(10 * CONTEXT);
        o.on_token = look_at_memory;
        o.user = &at;
        tn_generated got[2];
        int64_t before = tn_memory().allocated;
        assert_int_equal(tn_generate(&m, p.of, 2, o, got), TN_OK);
        assert_false(at.grew);
        assert_int_equal(tn_memory().allocated, before);
        tn_generated_free(got, 2);
    }
}

/* ---- What is refused ------------------------------------------------------------------------- */

static tn_values widen_logits(tn_module *m, tn_values in, tn_values out, void *user) {
    return tn_values_of(tn_zeros(TN_DIMS(1, 1, 500), TN_F32), NULL);
}

/* With hooks a module may return what generation cannot use. */
TEST(odd_logits) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){2}, 1);
    EACH_FAMILY(m) {
        tn_module_hook(&m, (tn_module_hooks){.after = widen_logits});
        tn_generated got;
        tn_generate(&m, p.of, 1, greedy_options(2), &got);
        assert_error(TN_ESHAPE, "the logits are [1, 1, 500]");
        expect_no_caches(&m);
    }
}

static tn_values spoil_logits(tn_module *m, tn_values in, tn_values out, void *user) {
    const double *values = user;
    double logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = i == 7 ? values[0] : values[1];
    }
    return tn_values_of(TN_FROM(logits, TN_DIMS(1, 1, VOCAB), TN_F64), NULL);
}

TEST(logits_that_are_no_numbers) {
    any_model m;
    int32_t ids[] = {1, 2};
    const struct {
        double values[2];
        const char *says;
    } cases[] = {{{NAN, 0.0}, "the logit of token 7 is"},
                 {{INFINITY, 0.0}, "the logit of token 7 is inf (sequence 0, after 2 tokens)"},
                 {{-INFINITY, -INFINITY}, "no token is possible in sequence 0"}};
    EACH_FAMILY(m) {
        for (int i = 0; i < 3; i++) {
            tn_hook hook = tn_module_hook(
                &m, (tn_module_hooks){.after = spoil_logits, .user = (void *)cases[i].values});
            tn_generated got;
            for (int k = 0; k < 2; k++) {
                tn_generate_options o = greedy_options(2);
                o.temperature = k;
                tn_generate(&m, &(tn_prompt){ids, 2}, 1, o, &got);
                assert_error(TN_EVALUE, cases[i].says);
            }
            tn_module_unhook(&m, hook);
        }
        expect_no_caches(&m);
    }
}

/* One call with one thing wrong in it. */
#define REFUSES(status, part, change)                              \
    do {                                                           \
        tn_generate_options o = tn_generate_defaults();            \
        tn_prompt q = p.of[0];                                     \
        change;                                                    \
        got.end = (tn_generated_end)77;                            \
        assert_int_equal(tn_generate(&m, &q, 1, o, &got), status); \
        assert_error(status, part);                                \
        assert_int_equal(got.end, 0);                              \
        assert_null(got.tokens.ids);                               \
    } while (0)

TEST(refused_arguments) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){3}, 1);
    const char *empty[] = {""};
    int32_t outside[] = {1, VOCAB};
    EACH_FAMILY(m) {
        tn_generated got;
        REFUSES(TN_EVALUE, "max_new is -1", o.max_new = -1);
        REFUSES(TN_EVALUE, "min_new is -1", o.min_new = -1);
        REFUSES(TN_EVALUE, "top_k is -3", o.top_k = -3);
        REFUSES(TN_EVALUE, "temperature is -1", o.temperature = -1.0);
        REFUSES(TN_EVALUE, "temperature is", o.temperature = NAN);
        REFUSES(TN_EVALUE, "temperature is inf", o.temperature = INFINITY);
        REFUSES(TN_EVALUE, "top_p is 1.5", o.top_p = 1.5);
        REFUSES(TN_EVALUE, "top_p is", o.top_p = NAN);
        REFUSES(TN_EVALUE, "repetition_penalty is 0", o.repetition_penalty = 0.0);
        REFUSES(TN_EVALUE, "repetition_penalty is", o.repetition_penalty = NAN);
        REFUSES(TN_EVALUE, "-1 stop tokens", o.stop_token_count = -1);
        REFUSES(TN_EVALUE, "1 stop tokens at", o.stop_token_count = 1);
        REFUSES(TN_EVALUE, "need a tokenizer", o.stop_text_count = 1; o.stop_texts = empty);
        REFUSES(TN_EINDEX, "stop_tokens: token 1 is 13 but the vocabulary is 13",
                o.stop_token_count = 2;
                o.stop_tokens = outside);
        REFUSES(TN_EVALUE, "prompt 0 has no tokens", q.count = 0);
        REFUSES(TN_EVALUE, "prompt 0 has no tokens", q.ids = NULL);
        REFUSES(TN_EINDEX, "prompt 0: token 1 is 13", q.ids = outside; q.count = 2);
        tn_generate_options o = tn_generate_defaults();
        assert_fails(tn_generate(&m, p.of, -1, o, &got), TN_EVALUE, "-1 prompts");
        assert_fails(tn_generate(&m, p.of, 1, o, NULL), TN_EVALUE, "results at");
        assert_fails(tn_generate(NULL, p.of, 1, o, &got), TN_EVALUE, "NULL");
        expect_no_caches(&m);
    }
    tn_linear linear;
    tn_linear_init(&linear, 2, 2, tn_linear_defaults());
    tn_generated got;
    tn_generate(&linear, p.of, 1, tn_generate_defaults(), &got);
    assert_error(TN_EVALUE, "the module (linear) is not a complete language model");
    tn_module_finish(&linear);
}

/* Nothing to do, a vocabulary of one, the hottest temperature. */
TEST(corner_cases) {
    any_model m;
    prompts p;
    make_prompts(&p, (int[]){3, 1}, 2);
    EACH_FAMILY(m) {
        tn_generated got[2];
        assert_int_equal(tn_generate(&m, p.of, 2, greedy_options(0), got), TN_OK);
        assert_int_equal(got[1].tokens.count, 0);
        assert_int_equal(got[1].end, TN_ENDED_BY_COUNT);
        assert_int_equal(tn_generate(&m, NULL, 0, greedy_options(5), NULL), TN_OK);
        tn_generate_options o = TN_WITH(tn_generate, .temperature = 1e300);
        assert_int_equal(tn_generate(&m, p.of, 2, o, got), TN_OK);
        tn_generated_free(got, 2);
        any_model small;
        open_model(&small, family_, 1);
        int32_t zero = 0;
        o.min_new = 3;
        assert_int_equal(tn_generate(&small, &(tn_prompt){&zero, 1}, 1, o, got), TN_OK);
        assert_int_equal(got[0].tokens.count, 100);
        assert_int_equal(got[0].tokens.ids[99], 0);
        tn_generated_free(got, 1);
        o.stop_tokens = &zero; /* the only token, and it is excluded */
        o.stop_token_count = 1;
        tn_generate(&small, &(tn_prompt){&zero, 1}, 1, o, got);
        assert_error(TN_EVALUE, "no token is possible");
        tn_module_finish(&small);
    }
    tn_generated_free(NULL, 3);
}
