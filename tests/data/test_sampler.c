/* Samplers: an epoch is a permutation, all permutations are about equally likely,
 * parts divide an epoch. */
#include "tern/data.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

static void check_permutation(tn_sampler s, int64_t size, int64_t epoch) {
    char *seen = calloc((size_t)size, 1);
    for (int64_t i = 0; i < size; i++) {
        int64_t at = tn_sampler_at(&s, size, epoch, i);
        assert_in_range(at, 0, size - 1);
        assert_false(seen[at]);
        seen[at] = 1;
    }
    free(seen);
}

static void test_permutations(void **state) {
    (void)state;
    for (int64_t size = 1; size < 140; size++) {
        check_permutation(tn_random_sampler((uint64_t)size), size, size % 5);
        check_permutation(tn_sequential_sampler(), size, 0);
    }
    static const int64_t sizes[] = {4096, 4097, 9999, 10000, 10001, 65537};
    for (int i = 0; i < 6; i++) {
        check_permutation(tn_random_sampler(7), sizes[i], 3);
    }
}

/* Chi-square over the 24 orders of 4 elements: 23 degrees of freedom, 99.9 % below 49.7. */
static void test_orders_are_equally_likely(void **state) {
    (void)state;
    enum { EPOCHS = 4800 };
    int count[256] = {0};
    tn_sampler s = tn_random_sampler(2);
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        int order = 0;
        for (int64_t i = 0; i < 4; i++) {
            order = order * 4 + (int)tn_sampler_at(&s, 4, epoch, i);
        }
        count[order]++;
    }
    double chi = 0, expected = EPOCHS / 24.0;
    int orders = 0;
    for (int i = 0; i < 256; i++) {
        orders += count[i] > 0;
        chi += count[i] ? (count[i] - expected) * (count[i] - expected) / expected : 0;
    }
    assert_int_equal(orders, 24);
    assert_true(chi < 49.7);
}

/* Each place of an epoch of 100 is about as likely to hold each example: 9801 degrees of
 * freedom. */
static void test_places_are_equally_likely(void **state) {
    (void)state;
    enum { SIZE = 100, EPOCHS = 2000 };
    static int count[SIZE][SIZE];
    memset(count, 0, sizeof(count));
    tn_sampler s = tn_random_sampler(11);
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        for (int64_t i = 0; i < SIZE; i++) {
            count[i][tn_sampler_at(&s, SIZE, epoch, i)]++;
        }
    }
    double chi = 0, expected = (double)EPOCHS / SIZE;
    for (int i = 0; i < SIZE * SIZE; i++) {
        double off = count[i / SIZE][i % SIZE] - expected;
        chi += off * off / expected;
    }
    assert_true(chi > 9801 - 5 * 140 && chi < 9801 + 5 * 140);
}

static void test_seeds_and_epochs_differ(void **state) {
    (void)state;
    tn_sampler a = tn_random_sampler(1), b = tn_random_sampler(2);
    int same_seed = 0, same_epoch = 0;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t at = tn_sampler_at(&a, 1000, 0, i);
        same_seed += at == tn_sampler_at(&b, 1000, 0, i);
        same_epoch += at == tn_sampler_at(&a, 1000, 1, i);
        assert_int_equal(at, tn_sampler_at(&a, 1000, 0, i));
    }
    assert_true(same_seed < 10 && same_epoch < 10);
}

static void test_replacement(void **state) {
    (void)state;
    enum { SIZE = 1000 };
    int count[SIZE] = {0}, missing = 0;
    tn_sampler s = tn_replacement_sampler(5);
    for (int64_t i = 0; i < SIZE; i++) {
        int64_t at = tn_sampler_at(&s, SIZE, 0, i);
        assert_in_range(at, 0, SIZE - 1);
        count[at]++;
    }
    for (int i = 0; i < SIZE; i++) {
        missing += count[i] == 0;
    }
    assert_in_range(missing, 320, 420); /* 1000 / e, give or take five deviations */
}

static void test_parts_divide(void **state) {
    (void)state;
    enum { SIZE = 23, PARTS = 4 };
    char seen[SIZE] = {0};
    int64_t total = 0;
    for (int64_t part = 0; part < PARTS; part++) {
        tn_sampler s = tn_random_sampler(9);
        s.part = part;
        s.parts = PARTS;
        int64_t count = tn_sampler_count(&s, SIZE);
        assert_in_range(count, SIZE / PARTS, SIZE / PARTS + 1);
        for (int64_t i = 0; i < count; i++) {
            seen[tn_sampler_at(&s, SIZE, 2, i)]++;
        }
        total += count;
    }
    assert_int_equal(total, SIZE);
    for (int i = 0; i < SIZE; i++) {
        assert_int_equal(seen[i], 1);
    }
}

static void test_huge(void **state) {
    (void)state;
    tn_sampler s = tn_random_sampler(3);
    for (int64_t i = 0; i < 1000; i++) {
        assert_true(tn_sampler_at(&s, INT64_MAX, 0, INT64_MAX - 1 - i) >= 0);
    }
    assert_int_equal(tn_error(), TN_OK);
}

static void test_errors(void **state) {
    (void)state;
    tn_sampler s = tn_random_sampler(3);
    assert_int_equal(tn_sampler_at(&s, 10, 0, 10), -1);
    assert_int_equal(tn_error(), TN_EINDEX);
    tn_error_clear();
    assert_int_equal(tn_sampler_at(&s, 10, -1, 0), -1);
    tn_error_clear();
    assert_int_equal(tn_sampler_at(&s, 0, 0, 0), -1);
    tn_error_clear();
    s.part = 2;
    s.parts = 2;
    assert_int_equal(tn_sampler_count(&s, 10), 0);
    assert_int_equal(tn_error(), TN_EVALUE);
    tn_error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_orders_are_equally_likely),
        cmocka_unit_test(test_places_are_equally_likely),
        cmocka_unit_test(test_seeds_and_epochs_differ),
        cmocka_unit_test(test_replacement),
        cmocka_unit_test(test_parts_divide),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
