/* Samplers: an epoch is a permutation, all permutations are about equally likely,
 * parts divide an epoch; heavier examples come more often, and similar lengths come together. */
#include "tern/data.h"

#include <math.h>
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

PLAIN_TEST(test_permutations) {
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
PLAIN_TEST(test_orders_are_equally_likely) {
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
PLAIN_TEST(test_places_are_equally_likely) {
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

PLAIN_TEST(test_seeds_and_epochs_differ) {
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

PLAIN_TEST(test_replacement) {
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

PLAIN_TEST(test_parts_divide) {
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

PLAIN_TEST(test_huge) {
    tn_sampler s = tn_random_sampler(3);
    for (int64_t i = 0; i < 1000; i++) {
        assert_true(tn_sampler_at(&s, INT64_MAX, 0, INT64_MAX - 1 - i) >= 0);
    }
    assert_int_equal(tn_error(), TN_OK);
}

/* ---- By weights ------------------------------------------------------------------------------ */

TEST(weighted_draws) {
    static const double weights[] = {1, 0, 3, 0.5, 0, 5.5};
    enum { DRAWS = 6000, SIZE = 6 };
    for (int dtype = 0; dtype < 2; dtype++) {
        tn_tensor *w = tn_cast(TN_FROM(weights, TN_DIMS(SIZE), TN_F64), dtype ? TN_F32 : TN_F64);
        tn_sampler s = tn_weighted_sampler(w, DRAWS, 3);
        assert_int_equal(tn_sampler_count(&s, SIZE), DRAWS);
        int count[SIZE] = {0}, again = 0;
        for (int64_t i = 0; i < DRAWS; i++) {
            int64_t at = tn_sampler_at(&s, SIZE, 1, i);
            assert_in_range(at, 0, SIZE - 1);
            count[at]++;
            again += at == tn_sampler_at(&s, SIZE, 2, i);
        }
        double chi = 0; /* 3 degrees of freedom: 99.9 % below 16.3 */
        for (int i = 0; i < SIZE; i++) {
            double expected = DRAWS * weights[i] / 10, off = count[i] - expected;
            assert_true(weights[i] > 0 || count[i] == 0);
            chi += weights[i] > 0 ? off * off / expected : 0;
        }
        assert_true(chi < 16.3);
        assert_true(again < DRAWS / 2); /* another epoch, other draws: 0.405 of them agree */
    }
}

/* The parts of a weighted order are its places in turn, and its length is that of the draws. */
TEST(weighted_parts) {
    tn_sampler s = tn_weighted_sampler(tn_ones(TN_DIMS(4), TN_F32), 7, 1), whole = s;
    s.parts = 3;
    s.part = 2;
    s.rule = TN_PARTS_PAD;
    assert_int_equal(tn_sampler_count(&s, 4), 3);
    for (int64_t i = 0; i < 3; i++) {
        int64_t place = 2 + 3 * i;
        assert_int_equal(tn_sampler_at(&s, 4, 5, i), tn_sampler_at(&whole, 4, 5, place % 7));
        assert_int_equal(tn_sampler_is_real(&s, 4, i), place < 7);
    }
}

TEST(weights_refused) {
    static const double wrong[][2] = {{0, 0}, {1, -1}, {NAN, 1}, {INFINITY, 1}, {5e-324, 0}};
    for (int i = 0; i < 5; i++) {
        tn_sampler s = tn_weighted_sampler(TN_FROM(wrong[i], TN_DIMS(2), TN_F64), 2, 1);
        assert_inert(s.table, TN_EVALUE, "weight");
        assert_int_equal(tn_sampler_count(&s, 2), 0);
        tn_error_clear();
    }
    tn_weighted_sampler(tn_ones(TN_DIMS(2), TN_I64), 2, 1);
    assert_error(TN_EDTYPE, "the weights are i64 (they must be floats)");
    tn_weighted_sampler(tn_ones(TN_DIMS(2, 2), TN_F32), 2, 1);
    assert_error(TN_ESHAPE, "[2, 2] is not one number for each example");
    tn_weighted_sampler(tn_ones(TN_DIMS(2), TN_F32), 0, 1);
    assert_error(TN_EVALUE, "draws is 0 (it must be at least 1)");
    tn_sampler s = tn_weighted_sampler(tn_ones(TN_DIMS(2), TN_F32), 2, 1);
    assert_int_equal(tn_sampler_count(&s, 3), 0);
    assert_error(TN_EVALUE, "by weights of 2 examples, but the dataset has 3");
}

/* ---- By length ------------------------------------------------------------------------------- */

enum { LINES = 503, LINE_BATCH = 8, LINE_STEPS = (LINES + LINE_BATCH - 1) / LINE_BATCH };

static int64_t line_length(int64_t i) {
    return 1 + i * i * 7919 % 97;
}

static tn_tensor *line_lengths(void) {
    int64_t lengths[LINES];
    for (int64_t i = 0; i < LINES; i++) {
        lengths[i] = line_length(i);
    }
    return TN_FROM(lengths, TN_DIMS(LINES), TN_I64);
}

/* The padding of an epoch, relative to its other elements. */
static double padding_of(const tn_sampler *s, int64_t epoch) {
    int64_t padded = 0, all = 0, count = tn_sampler_count(s, LINES);
    for (int64_t first = 0; first < count; first += LINE_BATCH) {
        int64_t longest = 0, sum = 0, n = 0;
        for (; n < LINE_BATCH && first + n < count; n++) {
            int64_t length = line_length(tn_sampler_at(s, LINES, epoch, first + n));
            longest = length > longest ? length : longest;
            sum += length;
        }
        padded += n * longest - sum;
        all += sum;
    }
    return (double)padded / (double)all;
}

TEST(bucketed_batches) {
    tn_sampler by_chance = tn_random_sampler(5), one, four;
    one = tn_bucket_sampler(line_lengths(), LINE_BATCH, 1, 5);
    four = tn_bucket_sampler(line_lengths(), LINE_BATCH, 4, 5);
    int same = 0;
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        check_permutation(one, LINES, epoch);
        check_permutation(four, LINES, epoch);
        assert_true(padding_of(&by_chance, epoch) > 0.6);
        assert_true(padding_of(&one, epoch) < 0.03);
        assert_true(padding_of(&four, epoch) < 0.12);
        for (int64_t i = 0; i < LINES; i++) {
            same += tn_sampler_at(&four, LINES, epoch, i) == tn_sampler_at(&four, LINES, 7, i);
        }
    }
    assert_true(same < LINES / 10);
}

/* The batch of each line in the epoch. */
static void find_batches(const tn_sampler *s, int64_t epoch, int64_t *batch_of) {
    for (int64_t i = 0; i < LINES; i++) {
        batch_of[tn_sampler_at(s, LINES, epoch, i)] = i / LINE_BATCH;
    }
}

/* The fraction of the pairs of lines sharing a batch in the first epoch that do so again. */
static double pairs_again(const tn_sampler *s) {
    int64_t before[LINES], after[LINES], pairs = 0, again = 0;
    find_batches(s, 0, before);
    find_batches(s, 1, after);
    for (int64_t i = 0; i < LINES; i++) {
        for (int64_t j = 0; j < i; j++) {
            pairs += before[i] == before[j];
            again += before[i] == before[j] && after[i] == after[j];
        }
    }
    return (double)again / (double)pairs;
}

TEST(neighbours_change) {
    tn_sampler one = tn_bucket_sampler(line_lengths(), LINE_BATCH, 1, 5);
    tn_sampler four = tn_bucket_sampler(line_lengths(), LINE_BATCH, 4, 5);
    assert_true(pairs_again(&one) > 0.9); /* all but some: the last bucket is short */
    assert_true(pairs_again(&four) < 0.4);
}

/* A batch of short lines is as likely to come first as one of long lines. */
TEST(buckets_are_shuffled) {
    tn_sampler s = tn_bucket_sampler(line_lengths(), LINE_BATCH, 4, 6);
    int rising = 0;
    for (int64_t step = 1; step < LINE_STEPS - 1; step++) {
        int64_t before = line_length(tn_sampler_at(&s, LINES, 0, (step - 1) * LINE_BATCH));
        rising += line_length(tn_sampler_at(&s, LINES, 0, step * LINE_BATCH)) > before;
    }
    assert_in_range(rising, LINE_STEPS / 3, 2 * LINE_STEPS / 3);
}

/* In each step two parts together have what one part has with batches of twice the size. */
TEST(bucketed_parts) {
    tn_sampler one = tn_bucket_sampler(line_lengths(), 2 * LINE_BATCH, 3, 5);
    for (int64_t part = 0; part < 2; part++) {
        tn_sampler s = tn_bucket_sampler(line_lengths(), LINE_BATCH, 3, 5);
        s.part = part;
        s.parts = 2;
        for (int64_t i = 0; i < tn_sampler_count(&s, LINES); i++) {
            assert_int_equal(tn_sampler_at(&s, LINES, 1, i),
                             tn_sampler_at(&one, LINES, 1, 2 * i + part));
        }
        assert_true(padding_of(&s, 1) < 0.15);
    }
}

TEST(lengths_refused) {
    tn_bucket_sampler(tn_ones(TN_DIMS(2), TN_F32), 2, 1, 1);
    assert_error(TN_EDTYPE, "the lengths are f32 (they must be i64)");
    tn_bucket_sampler(line_lengths(), 0, 1, 1);
    assert_error(TN_EVALUE, "batch is 0 (it must be at least 1)");
    tn_bucket_sampler(tn_ones(TN_DIMS(2, 1), TN_I64), 2, 1, 1);
    assert_error(TN_ESHAPE, "not one number for each example");
    tn_sampler s = tn_bucket_sampler(line_lengths(), INT64_MAX, INT64_MAX, 1);
    s.parts = INT64_MAX; /* one bucket of all, without an overflow */
    assert_in_range(tn_sampler_at(&s, LINES, 0, 0), 0, LINES - 1);
    tn_loader_options o = TN_WITH(tn_loader, .batch = 4);
    s = tn_bucket_sampler(line_lengths(), 8, 1, 1);
    assert_none(tn_loader_new(tn_tensor_dataset(line_lengths(), NULL), s, o), TN_EVALUE,
                "batches of 4, but the sampler makes buckets for 8");
}

/* A loader keeps the table, so the scope that made it may end. */
TEST(tables_live_as_long_as_loaders) {
    for (int threads = 0; threads <= 2; threads += 2) {
        tn_loader *l;
        {
            TN_SCOPE;
            tn_loader_options o = TN_WITH(tn_loader, .batch = LINE_BATCH, .threads = threads);
            tn_sampler s = tn_bucket_sampler(line_lengths(), LINE_BATCH, 2, 1);
            l = tn_loader_new(tn_tensor_dataset(line_lengths(), NULL), s, o);
        }
        int64_t n = 0;
        for (tn_batch b; tn_loader_next(l, &b);) {
            n += tn_count(b.x);
        }
        assert_int_equal(n, LINES);
        tn_loader_free(l);
    }
}

PLAIN_TEST(test_errors) {
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
