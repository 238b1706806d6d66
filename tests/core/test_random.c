/* Philox against the known answers that its authors publish with Random123 (kat_vectors, philox4x32
 * with 10 rounds), and the draws made from it. */
#include "core/philox.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "tests/support/test.h"

static uint64_t join_words(uint32_t low, uint32_t high) {
    return (uint64_t)high << 32 | low;
}

static void assert_words(tn_random4 r, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    assert_int_equal(r.word[0], a);
    assert_int_equal(r.word[1], b);
    assert_int_equal(r.word[2], c);
    assert_int_equal(r.word[3], d);
}

PLAIN_TEST(test_known_answers) {
    assert_words(tn__philox_raw(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
    assert_words(tn__philox_raw(~0ull, ~0ull, ~0ull), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
                 0x6d5451fd);
    assert_words(tn__philox_raw(join_words(0xa4093822, 0x299f31d0),
                                join_words(0x243f6a88, 0x85a308d3),
                                join_words(0x13198a2e, 0x03707344)),
                 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

/* The layout that core/philox.h promises: stream 0 is the plain generator. */
PLAIN_TEST(test_layout) {
    tn_random4 r =
        tn_philox(join_words(0xa4093822, 0x299f31d0), 0, join_words(0x13198a2e, 0x03707344),
                  join_words(0x243f6a88, 0x85a308d3));
    assert_words(r, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
    assert_int_equal(tn__philox_key(5, 0), 5);
    for (uint64_t s = 1; s < 1000; s++) {
        assert_true(tn__philox_key(5, s) != tn__philox_key(5, s - 1));
    }
    tn_random4 a = tn_philox(1, 2, 3, 4), b = tn_philox(1, 2, 3, 4);
    assert_memory_equal(&a, &b, sizeof(a));
}

PLAIN_TEST(test_generator) {
    tn_seed(42);
    tn_generator *g = tn_default_generator();
    assert_true(g->seed == 42 && g->stream == 0 && g->call == 0);
    double first = tn_random_uniform(g), second = tn_random_uniform(g);
    assert_true(g->call == 2 && first != second);
    g->call = 0;
    assert_true(tn_random_uniform(g) == first);
    tn_random4 r = tn_philox(42, 0, 0, 0);
    assert_true(first == (double)(join_words(r.word[0], r.word[1]) >> 11) * 0x1p-53);

    double sum = 0, squares = 0;
    for (int i = 0; i < 100000; i++) {
        double u = tn_random_uniform(g);
        assert_true(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 0.005); /* 5 standard errors */
    assert_true(fabs(squares / 100000 - 1.0 / 3) < 0.005);
}

PLAIN_TEST(test_below) {
    tn_generator g = {.seed = 7};
    int count[10] = {0};
    for (int i = 0; i < 100000; i++) {
        int64_t k = tn_random_below(&g, 10);
        assert_in_range(k, 0, 9);
        count[k]++;
    }
    assert_int_equal(g.call, 100000);
    for (int i = 0; i < 10; i++) {
        assert_in_range(count[i], 9500, 10500); /* 5 standard deviations */
    }
    assert_int_equal(tn_random_below(&g, 1), 0);
    /* For n = 3/4 of 2^63 many draws are rejected; otherwise the lower half would come up too
     * often. */
    int64_t n = 3ll << 61, low = 0;
    for (int i = 0; i < 20000; i++) {
        int64_t k = tn_random_below(&g, n);
        assert_true(k >= 0 && k < n);
        low += k < n / 2;
    }
    assert_in_range(low, 9600, 10400);
}

PLAIN_TEST(test_normal) {
    tn_generator g = {.seed = 7};
    double sum = 0, squares = 0;
    for (int i = 0; i < 100000; i++) {
        double z = tn_random_normal(&g);
        sum += z;
        squares += z * z;
    }
    assert_int_equal(g.call, 100000);
    assert_true(fabs(sum / 100000) < 0.016); /* 5 standard errors */
    assert_true(fabs(squares / 100000 - 1) < 0.023);
}

PLAIN_TEST(test_bad_arguments) {
    tn_generator g = {.seed = 7};
    assert_true(isnan(tn_random_normal(NULL)));
    assert_error(TN_EVALUE, "random_normal: the generator is NULL");
    assert_int_equal(tn_random_below(&g, 0), 0);
    assert_int_equal(tn_error(), TN_EVALUE);
    assert_non_null(strstr(tn_error_message(), "random_below: n is 0"));
    assert_int_equal(g.call, 0);
    tn_error_clear();
    assert_int_equal(tn_random_below(NULL, 5), 0);
    assert_int_equal(tn_error(), TN_EVALUE);
    tn_error_clear();
    assert_true(isnan(tn_random_uniform(NULL)));
    assert_int_equal(tn_error(), TN_EVALUE);
    tn_error_clear();
}

static void *other_thread(void *unused) {
    tn_seed(1);
    tn_random_uniform(tn_default_generator());
    return NULL;
}

PLAIN_TEST(test_threads_have_their_own) {
    tn_seed(9);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    assert_true(tn_default_generator()->seed == 9 && tn_default_generator()->call == 0);
}
