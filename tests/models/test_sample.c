/* The next token from logits: which are possible and how likely, against a slow twin that sorts, in
 * double; and draws, against the sums of the weights. */
#include "tests/support/test.h"

#include "models/generate/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 5000 };

static float logits[MOST];
static tn__candidates got;

static int begin_tests(void **state) {
    return tn__candidates_init(&got, MOST) == TN_OK ? 0 : -1;
}

static int end_tests(void **state) {
    tn__candidates_finish(&got);
    return 0;
}

/* ---- The twin -------------------------------------------------------------------------------- */

typedef struct twin {
    int token;
    double logit, weight;
} twin;

static int by_logit(const void *a, const void *b) {
    const twin *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit)
                                : x->token - y->token;
}

static int by_token(const void *a, const void *b) {
    return ((const twin *)a)->token - ((const twin *)b)->token;
}

/* Writes candidates into c[n] in the order of tokens; returns how many. `close`: top_p is within a
 * rounding of a sum, so that either set is right. */
static int slow_candidates(int n, tn__sampling how, twin *c, bool *close) {
    for (int i = 0; i < n; i++) {
        c[i] = (twin){i, (double)logits[i], 0.0};
    }
    qsort(c, (size_t)n, sizeof(*c), by_logit);
    int k = n;
    if (how.top_k > 0 && how.top_k < n) {
        for (k = (int)how.top_k; k < n && c[k].logit == c[k - 1].logit;) {
            k++;
        }
    }
    double sum = 0.0, before = 0.0;
    for (int i = 0; i < k; i++) {
        c[i].weight = exp((c[i].logit - c[0].logit) / how.temperature);
        sum += c[i].weight;
    }
    *close = false;
    int kept = k;
    for (int i = 0; i < k && how.top_p < 1.0; i++) {
        *close = *close || (i > 0 && fabs(before / sum - how.top_p) < 1e-5);
        if (i > 0 && before >= how.top_p * sum) {
            kept = i;
            break;
        }
        before += c[i].weight;
    }
    qsort(c, (size_t)kept, sizeof(*c), by_token);
    return kept;
}

static void expect_twin(int n, tn__sampling how) {
    static twin want[MOST];
    bool close;
    int count = slow_candidates(n, how, want, &close);
    tn__sample_candidates(logits, n, how, &got);
    if (close) { return; }
    assert_int_equal(got.count, count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(got.tokens[i], want[i].token);
        assert_true(fabs((double)got.weights[i] - want[i].weight) <=
                    1e-37 + 1e-5 * want[i].weight * (1.0 - log(want[i].weight + 1e-300)));
    }
}

/* ---- Candidates ------------------------------------------------------------------------------ */

/* Kinds of logits: spread, nearly flat, many equal ones, all equal, one certain, excluded tokens,
 * large, tiny, zeros, and one large in each block. */
static void fill_logits(int n, int kind, tn_generator *g) {
    for (int i = 0; i < n; i++) {
        double u = 2.0 * tn_random_uniform(g) - 1.0, bell = u * fabs(u) * 12.0;
        double forms[] = {bell - 30.0,
                          u * 1e-3,
                          floor(bell),
                          -2.5,
                          -u * u,
                          i % 3 == 1 ? -INFINITY : bell,
                          bell * 1e30,
                          u * 1e-40,
                          u < 0 ? -0.0 : 0.0,
                          i % 16 ? u : 9.0 + u};
        logits[i] = (float)forms[kind];
    }
    if (kind == 4) { logits[n / 2] = 40.0f; }
}

TEST(candidates_are_the_twins) {
    const int sizes[] = {1, 2, 15, 16, 17, 100, 1000, MOST};
    const int64_t ks[] = {0, 1, 2, 3, 40, 313, 320, 999, MOST - 1, MOST, INT64_MAX};
    const double ps[] = {1.0, 0.9999, 0.95, 0.5, 0.1, 1e-9, 0.0};
    const double ts[] = {1.0, 0.7, 3.0, 0.01, 1e6};
    tn_generator g = {.seed = 3};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        for (int kind = 0; kind < 10; kind++) {
            fill_logits(sizes[s], kind, &g);
            for (size_t k = 0; k < sizeof(ks) / sizeof(*ks); k++) {
                for (size_t p = 0; p < sizeof(ps) / sizeof(*ps); p++) {
                    double t = ts[(k + p) % 5];
                    expect_twin(sizes[s], (tn__sampling){t, ks[k], ps[p]});
                }
            }
        }
    }
}

/* The largest logits alone give the same tokens and weights, to the bit. */
TEST(the_largest_suffice) {
    enum { N = 1000, PICKED = 400 };
    const double ps[] = {1.0, 0.9, 0.3, 0.0}, ts[] = {1.0, 0.01, 1e6, 1e-200};
    tn_generator g = {.seed = 5};
    static twin sorted[N];
    static tn__candidates want;
    assert_int_equal(tn__candidates_init(&want, N), TN_OK);
    for (int k = 0; k < 10 * 4 * 4; k++) {
        int64_t tokens[PICKED];
        float picked[PICKED];
        tn__sampling how = {ts[k % 4], 1 + 13 * (k % 3), ps[k / 4 % 4]};
        fill_logits(N, k / 16, &g);
        for (int i = 0; i < N; i++) {
            sorted[i] = (twin){i, (double)logits[i], 0.0};
        }
        qsort(sorted, N, sizeof(*sorted), by_logit);
        for (int i = 0; i < PICKED; i++) {
            tokens[i] = sorted[i].token;
            picked[i] = (float)sorted[i].logit;
        }
        if (picked[PICKED - 1] == picked[how.top_k - 1]) {
            continue; /* there may be more that equal the last of top_k */
        }
        tn__sample_candidates(logits, N, how, &want);
        tn__sample_picked(picked, tokens, PICKED, how, &got);
        assert_int_equal(got.count, want.count);
        size_t bytes = (size_t)want.count * sizeof(float);
        assert_memory_equal(got.tokens, want.tokens, bytes);
        assert_memory_equal(got.weights, want.weights, bytes);
    }
    tn__candidates_finish(&want);
}

TEST(temperatures_at_the_ends) {
    tn_generator g = {.seed = 4};
    fill_logits(100, 0, &g);
    int64_t best = tn__sample_best(logits, 100);
    const double cold[] = {0.0, 1e-300, 1e-31};
    for (int i = 0; i < 3; i++) {
        tn__sample_candidates(logits, 100, (tn__sampling){cold[i], 0, 1.0}, &got);
        assert_int_equal(got.count, 1);
        assert_int_equal(tn__sample_draw(&got, 0.7), best);
    }
    tn__sample_candidates(logits, 100, (tn__sampling){1e-29, 0, 1.0}, &got); /* just above */
    for (int i = 0; i < 10; i++) {
        assert_int_equal(tn__sample_draw(&got, i / 10.0), best);
    }
    tn__sample_candidates(logits, 100, (tn__sampling){1e300, 0, 1.0}, &got); /* all are equal */
    for (int i = 0; i < 100; i++) {
        assert_true(got.weights[i] == 1.0f);
        assert_int_equal(tn__sample_draw(&got, (i + 0.5) / 100.0), i);
    }
}

TEST(the_most_likely) {
    for (int n = 1; n < 70; n++) {
        for (int at = 0; at < n; at++) {
            for (int i = 0; i < n; i++) {
                logits[i] = i < at ? -3.0f : i == at ? 2.0f : i % 2 ? 2.0f : -INFINITY;
            }
            assert_int_equal(tn__sample_best(logits, n), at); /* the first of equal ones */
            const float odd[] = {NAN, -NAN, INFINITY};
            for (int k = 0; k < 3; k++) {
                float was = logits[at];
                logits[at] = odd[k];
                assert_int_equal(tn__sample_best(logits, n), -1);
                logits[at] = was;
            }
        }
        for (int i = 0; i < n; i++) {
            logits[i] = -INFINITY;
        }
        assert_int_equal(tn__sample_best(logits, n), -1);
    }
}

TEST(penalties_scale_logits) {
    float x[] = {3.0f, -3.0f, 0.0f, -INFINITY, 5.0f};
    tn__sample_penalize(x, (bool[]){true, true, true, true, false}, 5, 1.5);
    const float want[] = {2.0f, -4.5f, 0.0f, -INFINITY, 5.0f};
    assert_memory_equal(x, want, sizeof(x));
    tn__sample_penalize(x, (bool[]){false, false, false, false, true}, 5, 0.5); /* a reward */
    assert_true(x[4] == 10.0f);
}

/* ---- Draws ----------------------------------------------------------------------------------- */

/* Over evenly spaced u each token is drawn as often as its weight says, within one draw; nothing is
 * random. */
TEST(draws_follow_the_weights) {
    enum { DRAWS = 20011 };
    static int seen[MOST];
    const tn__sampling hows[] = {{1.0, 0, 1.0}, {0.8, 50, 1.0}, {1.2, 0, 0.9}, {2.0, 300, 0.7}};
    const int sizes[] = {1, 3, 16, 50, 1000};
    tn_generator g = {.seed = 6};
    for (int s = 0; s < 5; s++) {
        for (int h = 0; h < 4; h++) {
            fill_logits(sizes[s], h % 2 ? 0 : 5, &g);
            tn__sample_candidates(logits, sizes[s], hows[h], &got);
            memset(seen, 0, sizeof(seen));
            for (int i = 0; i < DRAWS; i++) {
                seen[tn__sample_draw(&got, i / (double)DRAWS)]++;
            }
            double sum = 0.0;
            for (int64_t i = 0; i < got.count; i++) {
                sum += (double)got.weights[i];
            }
            int total = 0;
            for (int64_t i = 0; i < got.count; i++) {
                double want = (double)got.weights[i] / sum * DRAWS;
                assert_true(fabs(seen[got.tokens[i]] - want) < 1.001);
                total += seen[got.tokens[i]];
            }
            assert_int_equal(total, DRAWS); /* and nothing but candidates */
        }
    }
}

/* u just below 1 draws the last possible token, not one of weight 0 after it. */
TEST(the_last_draw) {
    for (int n = 2; n < 50; n++) {
        for (int i = 0; i < n; i++) {
            logits[i] = i < n / 2 ? (float)i / 7.0f : -INFINITY;
        }
        tn__sample_candidates(logits, n, (tn__sampling){1.0, 0, 1.0}, &got);
        assert_int_equal(tn__sample_draw(&got, nextafter(1.0, 0.0)), n / 2 - 1);
        assert_int_equal(tn__sample_draw(&got, 1.0), n / 2 - 1);
        assert_int_equal(tn__sample_draw(&got, 0.0), 0);
    }
}

int main(void) {
    return tests_run(begin_tests, end_tests);
}
