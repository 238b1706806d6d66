/* Datasets made of others, and sequences of different lengths in one batch. */
#include "tern/data.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "tests/support/dataset_text.h"
#include "tests/support/test.h"

/* Rows 10 first, 10 (first + 1), …; y is the number of the row. */
static tn_dataset *rows_from(int64_t first, int64_t n) {
    tn_tensor *y = tn_arange((double)first, (double)(first + n), 1, TN_I64);
    return tn_tensor_dataset(tn_mul_scalar(tn_cast(tn_unsqueeze(y, 1), TN_F32), 10), y);
}

static int64_t label_of(tn_dataset *d, int64_t i) {
    float x = NAN;
    int64_t y = -1;
    assert_int_equal(tn_dataset_get(d, i, &x, &y), TN_OK);
    assert_true(x == 10 * (float)y);
    return y;
}

static int64_t epoch_of(tn_dataset *d, int64_t *labels, int threads) {
    tn_loader_options o = TN_WITH(tn_loader, .threads = threads);
    tn_loader *l = tn_loader_new(d, tn_sequential_sampler(), o);
    int64_t n = 0;
    for (tn_batch b; tn_loader_next(l, &b); n++) {
        tn_copy_out(b.y, &labels[n]);
    }
    tn_loader_free(l);
    return n;
}

/* ---- One after the other, and some of one --------------------------------------------------- */

TEST(concatenation_joins) {
    tn_dataset *all = tn_concat_dataset(
        (tn_dataset *[]){rows_from(0, 3), rows_from(100, 0), rows_from(3, 1), rows_from(4, 5)}, 4);
    assert_int_equal(all->size, 9);
    int64_t labels[9];
    for (int64_t i = 0; i < 9; i++) {
        assert_int_equal(label_of(all, i), i);
    }
    assert_fails(tn_dataset_get(all, 9, NULL, NULL), TN_EINDEX,
                 "example 9 of 9 of the dataset \"concatenation\"");
    assert_int_equal(epoch_of(all, labels, 2), 9);
    for (int64_t i = 0; i < 9; i++) {
        assert_int_equal(labels[i], i);
    }
}

TEST(classes_stay) {
    static const char *const names[] = {"cat", "dog", NULL};
    tn_dataset *d = rows_from(0, 4), *pieces[1];
    d->classes = names;
    d = tn_subset(tn_concat_dataset(&d, 1), (int64_t[]){0, 1}, 2);
    tn_random_split(d, (double[]){1}, 1, 1, pieces);
    assert_ptr_equal(pieces[0]->classes, names);
    tn_dataset_free(pieces[0]);
}

/* All datasets have the same names of classes in the same order, or the result has none. */
TEST(classes_of_a_concatenation) {
    static const char *const names[][4] = {
        {"cat", "dog"}, {"cat", "dog"}, {"dog", "cat"}, {"cat"}, {"cat", "dog", "owl"}};
    for (int i = 1; i <= 5; i++) {
        tn_dataset *parts[] = {rows_from(0, 4), rows_from(4, 4)};
        parts[0]->classes = names[0];
        parts[1]->classes = i < 5 ? names[i] : NULL;
        tn_dataset *all = tn_concat_dataset(parts, 2);
        assert_true(i == 1 ? all->classes == names[0] : all->classes == NULL);
        tn_dataset_free(all);
    }
}

TEST(concatenation_refuses) {
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32), *y = tn_arange(0, 2, 1, TN_I64);
    tn_tensor *sequence = tn_zeros(TN_DIMS(5), TN_F32), *label = tn_scalar(1, TN_I64);
    tn_dataset *pairs[][2] = {{tn_sequence_dataset(&sequence, &label, 1), tn_tensor_dataset(x, y)},
                              {tn_tensor_dataset(x, y), tn_tensor_dataset(x, NULL)},
                              {tn_tensor_dataset(x, y), tn_tensor_dataset(tn_unsqueeze(x, 2), y)},
                              {tn_tensor_dataset(x, y), tn_tensor_dataset(tn_cast(x, TN_F64), y)}};
    const tn_status wanted[] = {TN_ESHAPE, TN_ESHAPE, TN_ESHAPE, TN_EDTYPE};
    for (int i = 0; i < 4; i++) {
        assert_none(tn_concat_dataset(pairs[i], 2), wanted[i], "dataset 1, \"tensors\"");
    }
    assert_none(tn_concat_dataset(NULL, 0), TN_EVALUE, "0 datasets (1 at least)");
    assert_none(tn_concat_dataset((tn_dataset *[]){tn_tensor_dataset(x, y), NULL}, 2), TN_EVALUE,
                "dataset 1 of 2 is NULL");
}

TEST(subsets_of_indices) {
    tn_dataset *all = rows_from(0, 6);
    tn_dataset *one = tn_subset(tn_dataset_keep(all), (int64_t[]){5, 0, 5}, 3);
    tn_dataset *two = tn_subset(all, (int64_t[]){2}, 1), *none;
    assert_int_equal(one->size, 3);
    assert_int_equal(label_of(one, 0), 5);
    assert_int_equal(label_of(one, 1), 0);
    assert_int_equal(label_of(one, 2), 5);
    tn_dataset_free(one); /* the other still has it */
    assert_int_equal(label_of(two, 0), 2);
    none = tn_subset(tn_subset(two, (int64_t[]){0, 0}, 2), NULL, 0);
    assert_int_equal(none->size, 0);
    tn_dataset_free(none);
    assert_none(tn_subset(rows_from(0, 6), (int64_t[]){1, 6}, 2), TN_EINDEX,
                "index 1 is 6, but there are 6 examples");
    assert_none(tn_subset(rows_from(0, 6), NULL, 2), TN_EVALUE, "NULL instead of indices");
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Each label of [0, n) is in one of the pieces, once; frees them. */
static void check_pieces(tn_dataset **pieces, int count, int64_t n) {
    char *seen = calloc((size_t)n, 1);
    int64_t total = 0;
    for (int k = 0; k < count; k++) {
        for (int64_t i = 0; i < pieces[k]->size; i++) {
            seen[label_of(pieces[k], i)]++;
        }
        total += pieces[k]->size;
        tn_dataset_free(pieces[k]);
    }
    assert_int_equal(total, n);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(seen[i], 1);
    }
    free(seen);
}

TEST(random_split) {
    tn_dataset *p[3];
    assert_int_equal(tn_random_split(rows_from(0, 10), (double[]){0.3, 0.3, 0.4}, 3, 1, p), TN_OK);
    assert_true(p[0]->size == 3 && p[1]->size == 3 && p[2]->size == 4);
    check_pieces(p, 3, 10);
    /* floor(11 / 3) = 3 each; the remaining two go to the first two */
    const double third = 1.0 / 3;
    assert_int_equal(tn_random_split(rows_from(0, 11), (double[]){third, third, third}, 3, 1, p),
                     TN_OK);
    assert_true(p[0]->size == 4 && p[1]->size == 4 && p[2]->size == 3);
    check_pieces(p, 3, 11);
    assert_int_equal(tn_random_split(rows_from(0, 1000), (double[]){900, 0, 100}, 3, 7, p), TN_OK);
    assert_true(p[0]->size == 900 && p[1]->size == 0 && p[2]->size == 100);
    int64_t low = 0; /* in the small piece: 50 of 100 below 500 are expected */
    for (int64_t i = 0; i < 100; i++) {
        low += label_of(p[2], i) < 500;
    }
    assert_in_range(low, 25, 75);
    check_pieces(p, 3, 1000);
}

TEST(random_split_is_a_rule) {
    tn_dataset *a[2], *b[2], *c[2];
    const double halves[] = {0.5, 0.5};
    tn_dataset *all = rows_from(0, 40);
    tn_random_split(tn_dataset_keep(all), halves, 2, 3, a);
    tn_random_split(tn_dataset_keep(all), halves, 2, 3, b);
    tn_random_split(all, halves, 2, 4, c);
    int same = 0;
    for (int64_t i = 0; i < 20; i++) {
        assert_int_equal(label_of(a[0], i), label_of(b[0], i));
        same += label_of(a[0], i) == label_of(c[0], i);
    }
    assert_in_range(same, 0, 5);
    check_pieces(a, 2, 40);
    check_pieces(b, 2, 40);
    check_pieces(c, 2, 40);
}

TEST(random_split_refuses) {
    static const double wrong[][2] = {{5, 4},     {5, 6},        {0.5, 0.4}, {-1, 11},
                                      {2.5, 7.5}, {INFINITY, 0}, {NAN, 1}};
    tn_dataset *p[2];
    assert_fails(tn_random_split(rows_from(0, 10), (double[]){0.9, 0.0999999}, 2, 1, p), TN_EVALUE,
                 "whose sum is 0.9999999, of 10 examples");
    for (int i = 0; i < 7; i++) {
        p[0] = (tn_dataset *)&p;
        assert_fails(tn_random_split(rows_from(0, 10), wrong[i], 2, 1, p), TN_EVALUE,
                     "of 10 examples");
        assert_true(p[0] == NULL && p[1] == NULL);
    }
}

/* ---- How they describe themselves ------------------------------------------------------------ */

static void described_as(tn_dataset *d, const char *wanted) {
    char text[DATASET_TEXT];
    assert_true(dataset_text(d, text));
    if (wanted) { assert_contains(text, wanted); }
    tn_dataset_free(d);
}

static void expect_different(tn_dataset *a, tn_dataset *b) {
    char one[DATASET_TEXT], two[DATASET_TEXT];
    dataset_text(a, one);
    dataset_text(b, two);
    assert_string_not_equal(one, two);
    tn_dataset_free(a);
    tn_dataset_free(b);
}

TEST(descriptions_differ) {
    tn_dataset *p[2];
    expect_different(tn_subset(rows_from(0, 6), (int64_t[]){1, 2}, 2),
                     tn_subset(rows_from(0, 6), (int64_t[]){2, 1}, 2));
    expect_different(tn_subset(rows_from(0, 6), (int64_t[]){1}, 1),
                     tn_subset(rows_from(1, 6), (int64_t[]){1}, 1));
    expect_different(tn_concat_dataset((tn_dataset *[]){rows_from(0, 2), rows_from(2, 3)}, 2),
                     tn_concat_dataset((tn_dataset *[]){rows_from(2, 3), rows_from(0, 2)}, 2));
    described_as(tn_subset(rows_from(0, 6), (int64_t[]){1}, 1), ",\"digest of indices\":\"");
    described_as(tn_concat_dataset((tn_dataset *[]){rows_from(0, 2)}, 1), "{\"digest of all\":\"");
    tn_random_split(rows_from(0, 6), (double[]){2, 4}, 2, 9, p);
    described_as(p[0], ",\"split\":\"9:0\"}");
    described_as(p[1], ",\"split\":\"9:2\"}");
}

typedef struct asker {
    pthread_t thread;
    tn_dataset *d;
    char text[DATASET_TEXT];
} asker;

static void *ask_dataset(void *user) {
    asker *a = user;
    dataset_text(a->d, a->text);
    return NULL;
}

/* As when ranks are threads whose loaders share a dataset; for the thread sanitizer. */
TEST(threads_ask_at_once) {
    static const int32_t tokens[64] = {1, 2, 3};
    tn_tensor *x = tn_ones(TN_DIMS(4), TN_F32);
    tn_dataset *all[] = {rows_from(0, 50), tn_token_dataset(tokens, 64, 8),
                         tn_sequence_dataset(&x, NULL, 1),
                         tn_subset(rows_from(0, 9), (int64_t[]){1, 2}, 2)};
    for (int i = 0; i < 4; i++) {
        asker askers[3];
        for (int k = 0; k < 3; k++) {
            askers[k].d = all[i];
            assert_int_equal(pthread_create(&askers[k].thread, NULL, ask_dataset, &askers[k]), 0);
        }
        for (int k = 0; k < 3; k++) {
            pthread_join(askers[k].thread, NULL);
            assert_string_equal(askers[k].text, askers[0].text);
        }
        described_as(all[i], askers[0].text);
    }
}

/* ---- Different lengths ----------------------------------------------------------------------- */

enum { SEQUENCES = 7, WIDTH = 2 };
static const int64_t x_lengths[SEQUENCES] = {3, 1, 4, 1, 0, 5, 2};
static const int64_t y_lengths[SEQUENCES] = {1, 2, 0, 3, 1, 1, 2};

/* x[i] (T, 2) and y[i] (S): element k is 100 i + k. */
static tn_dataset *make_sequences(void) {
    tn_tensor *x[SEQUENCES], *y[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++) {
        double first = 100 * i, end = first + (double)(x_lengths[i] * WIDTH);
        x[i] = tn_reshape(tn_arange(first, end, 1, TN_F32), TN_DIMS(x_lengths[i], WIDTH));
        y[i] = tn_arange(first, first + (double)y_lengths[i], 1, TN_I64);
    }
    return tn_sequence_dataset(x, y, SEQUENCES);
}

/* A row of a batch has the elements of example i, then padding. */
static void check_row(const tn_batch *b, int64_t row, int64_t i) {
    int64_t T = tn_size(b->x, 1), S = tn_size(b->y, 1);
    assert_int_equal((int64_t)tn_at(b->lengths, TN_DIMS(row)), x_lengths[i]);
    assert_int_equal((int64_t)tn_at(b->y_lengths, TN_DIMS(row)), y_lengths[i]);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t w = 0; w < WIDTH; w++) {
            double wanted = t < x_lengths[i] ? (double)(100 * i + t * WIDTH + w) : -0.5;
            assert_true(tn_at(b->x, TN_DIMS(row, t, w)) == wanted);
        }
    }
    for (int64_t t = 0; t < S; t++) {
        double wanted = t < y_lengths[i] ? (double)(100 * i + t) : -100;
        assert_true(tn_at(b->y, TN_DIMS(row, t)) == wanted);
    }
}

static void check_padded(const tn_batch *b, tn_sampler s, int64_t batch) {
    int64_t count = tn_size(b->x, 0), longest = 0, y_longest = 0;
    for (int64_t r = 0; r < count; r++) {
        int64_t i = tn_sampler_at(&s, SEQUENCES, b->epoch, b->index * batch + r);
        longest = x_lengths[i] > longest ? x_lengths[i] : longest;
        y_longest = y_lengths[i] > y_longest ? y_lengths[i] : y_longest;
        check_row(b, r, i);
    }
    assert_int_equal(tn_size(b->x, 1), longest);
    assert_int_equal(tn_size(b->y, 1), y_longest);
}

TEST(padded_batches) {
    for (int threads = 0; threads <= 3; threads += 3) {
        tn_sampler s = tn_random_sampler(2);
        tn_loader_options o = TN_WITH(tn_loader, .batch = 3, .epochs = 4, .threads = threads,
                                      .x_pad = -0.5, .y_pad = -100);
        tn_loader *l = tn_loader_new(make_sequences(), s, o);
        int batches = 0;
        for (tn_batch b; tn_loader_next(l, &b); batches++) {
            TN_SCOPE;
            check_padded(&b, s, 3);
        }
        assert_int_equal(batches, 12);
        tn_loader_free(l);
    }
}

/* Examples of equal shape have no lengths; neither do scalar targets. */
TEST(what_is_alike_has_no_lengths) {
    tn_tensor *x[2] = {tn_zeros(TN_DIMS(3), TN_F32), tn_ones(TN_DIMS(3), TN_F32)};
    tn_tensor *more = tn_ones(TN_DIMS(4), TN_F32);
    tn_tensor *y[2] = {tn_scalar(0, TN_I64), tn_scalar(1, TN_I64)};
    tn_dataset *d = tn_sequence_dataset(x, y, 2);
    assert_true(d->x_dims.size[0] == 3 && d->y_dims.ndim == 0);
    d = tn_concat_dataset((tn_dataset *[]){d, tn_sequence_dataset(&more, y, 1)}, 2);
    assert_int_equal(d->x_dims.size[0], -1);
    assert_memory_equal(tn_data(tn_dataset_lengths(d)), ((int64_t[]){3, 3, 4}),
                        3 * sizeof(int64_t)); /* on the CPU */
    d = tn_subset(d, (int64_t[]){2, 0}, 2);
    tn_loader_options o = TN_WITH(tn_loader, .batch = 2);
    tn_loader *l = tn_loader_new(d, tn_sequential_sampler(), o);
    tn_batch b;
    assert_true(tn_loader_next(l, &b));
    assert_null(b.y_lengths);
    assert_true(tn_equal(b.lengths, TN_FROM(((int64_t[]){4, 3}), TN_DIMS(2), TN_I64)));
    tn_loader_free(l);
}

TEST(sequences_refuse) {
    tn_tensor *f = tn_zeros(TN_DIMS(3, 2), TN_F32);
    tn_tensor *wide[] = {f, tn_zeros(TN_DIMS(3, 4), TN_F32)};
    tn_tensor *other[] = {f, tn_zeros(TN_DIMS(3, 2), TN_F64)};
    assert_none(tn_sequence_dataset(wide, NULL, 2), TN_ESHAPE, "x[1] is [3, 4] but x[0] is [3, 2]");
    assert_none(tn_sequence_dataset(&f, wide, 0), TN_EVALUE, "n is 0 (it must be at least 1)");
    assert_none(tn_sequence_dataset(other, NULL, 2), TN_EDTYPE, "x[1] is f64 but x[0] is f32");
}

/* A wrong length is an error of the batch that needs it. */
static int64_t broken_length(tn_dataset *self, int64_t i, bool of_y) {
    return i == 4 ? -7 : 1;
}

static tn_status broken_get(tn_dataset *self, tn_example e, void *x, void *y) {
    *(float *)x = (float)e.index;
    return TN_OK;
}

TEST(wrong_lengths) {
    static tn_dataset broken = {.kind = "broken",
                                .size = 8,
                                .x_dims = {.ndim = 1, .size = {-1}},
                                .y_dims = {.ndim = -1},
                                .get = broken_get};
    for (int threads = 0; threads < 3; threads++) {
        tn_loader_options o = TN_WITH(tn_loader, .batch = 2, .threads = threads);
        broken.length = NULL;
        assert_none(tn_loader_new(&broken, tn_sequential_sampler(), o), TN_EVALUE,
                    "invalid dimensions");
        broken.length = broken_length;
        tn_loader *l = tn_loader_new(&broken, tn_sequential_sampler(), o);
        tn_batch b;
        assert_true(tn_loader_next(l, &b) && tn_loader_next(l, &b));
        assert_false(tn_loader_next(l, &b));
        assert_error(TN_EVALUE, "the length of example 4 of the dataset \"broken\" is -7");
        assert_true(tn_loader_next(l, &b));
        assert_int_equal(b.index, 3);
        tn_loader_free(l);
    }
}
