/* Transforms: the same bits for any number of threads and ranks and after a resume, but others in
 * each epoch; what they refuse; and mixup's numbers. */
#include "tern/transforms.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/dataset_text.h"
#include "tests/support/test.h"

enum { IMAGES = 41, C = 3, SIDE = 6, PIXELS = C * SIDE * SIDE, BATCH = 4 };

/* Random images; y is the number of each. */
static tn_dataset *random_images(void) {
    tn_tensor *x = tn_rand(TN_DIMS(IMAGES, C, SIDE, SIDE), TN_F32);
    return tn_tensor_dataset(x, tn_arange(0, IMAGES, 1, TN_I64));
}

static tn_dataset *augmented_images(uint64_t seed) {
    static const double mean[] = {0.4, 0.5, 0.6}, std[] = {0.2, 0.25, 0.3};
    tn_seed(1);
    return TN_TRANSFORMED(random_images(), seed, tn_random_crop(SIDE, SIDE, 2),
                          tn_random_horizontal_flip(0.5), tn_color_jitter(0.3, 0.3, 0.3),
                          tn_image_normalize(C, mean, std));
}

/* ---- The same bits --------------------------------------------------------------------------- */

/* Transforms and weights; the next has padding and buckets. */
static tn_loader *weighted_loader(int threads, int64_t part, int64_t parts) {
    double weights[IMAGES];
    for (int i = 0; i < IMAGES; i++) {
        weights[i] = 1 + i % 5;
    }
    tn_sampler s = tn_weighted_sampler(TN_FROM(weights, TN_DIMS(IMAGES), TN_F64), 60, 9);
    s.part = part;
    s.parts = parts;
    tn_loader_options o =
        TN_WITH(tn_loader, .batch = BATCH / parts, .epochs = 3, .threads = threads);
    return tn_loader_new(augmented_images(7), s, o);
}

static tn_loader *bucketed_loader(int threads, int64_t part, int64_t parts) {
    tn_tensor *x[IMAGES];
    tn_seed(2);
    for (int i = 0; i < IMAGES; i++) {
        x[i] = tn_rand(TN_DIMS(1 + i * 7 % 11, 2), TN_F32);
    }
    tn_dataset *d = tn_sequence_dataset(x, NULL, IMAGES);
    tn_sampler s = tn_bucket_sampler(tn_dataset_lengths(d), BATCH / parts, 3, 9);
    s.part = part;
    s.parts = parts;
    tn_loader_options o =
        TN_WITH(tn_loader, .batch = BATCH / parts, .epochs = 3, .threads = threads, .x_pad = -1);
    return tn_loader_new(d, s, o);
}

/* The next batches, copied into tensors of this scope. */
typedef struct batch_list {
    tn_tensor *x[64], *lengths[64];
    int count;
} batch_list;

static batch_list read_all(tn_loader *l, int64_t most) {
    batch_list all = {.count = 0};
    for (tn_batch b; all.count < most && tn_loader_next(l, &b); all.count++) {
        assert_in_range(all.count, 0, 63);
        all.x[all.count] = tn_copy(b.x);
        all.lengths[all.count] = b.lengths ? tn_copy(b.lengths) : NULL;
    }
    return all;
}

/* The same bits, from batch `from` of a on. */
static void same_batches(const batch_list *a, int from, const batch_list *b) {
    assert_int_equal(a->count - from, b->count);
    for (int i = 0; i < b->count; i++) {
        assert_true(tn_equal(a->x[from + i], b->x[i]));
        assert_true(!b->lengths[i] || tn_equal(a->lengths[from + i], b->lengths[i]));
    }
}

static void same_for_any_threads(tn_loader *(*make)(int, int64_t, int64_t)) {
    static const int threads[] = {0, 1, 3, 7};
    tn_loader *alone = make(0, 0, 1);
    int64_t each = tn_loader_batches(alone);
    batch_list wanted = read_all(alone, 64);
    assert_int_equal(wanted.count, 3 * each);
    tn_loader_free(alone);
    for (int t = 0; t < 4; t++) {
        tn_loader *l = make(threads[t], 0, 1);
        batch_list got = read_all(l, 64);
        same_batches(&wanted, 0, &got);
        tn_loader_seek(l, (tn_loader_place){1, each / 2}); /* in the middle of an epoch */
        got = read_all(l, 64);
        same_batches(&wanted, (int)(each + each / 2), &got);
        tn_loader_free(l);
    }
}

/* Row i of a batch without parts is row i / 2 of part i % 2, except for padding. */
static void same_for_two_parts(tn_loader *(*make)(int, int64_t, int64_t), int64_t batches) {
    tn_loader *one = make(0, 0, 1), *part[2] = {make(1, 0, 2), make(2, 1, 2)};
    batch_list whole = read_all(one, batches), half[2];
    for (int p = 0; p < 2; p++) {
        half[p] = read_all(part[p], batches);
        assert_int_equal(half[p].count, whole.count);
        tn_loader_free(part[p]);
    }
    tn_loader_free(one);
    for (int b = 0; b < whole.count; b++) {
        for (int64_t i = 0; i < BATCH; i++) {
            tn_tensor *row = tn_select(whole.x[b], 0, i);
            tn_tensor *other = tn_select(half[i % 2].x[b], 0, i / 2);
            int64_t length = tn_size(other, 0);
            assert_true(tn_equal(tn_narrow(row, 0, 0, length), other));
        }
    }
}

TEST(threads_and_resuming) {
    same_for_any_threads(weighted_loader);
    same_for_any_threads(bucketed_loader);
}

TEST(same_for_ranks) {
    same_for_two_parts(weighted_loader, 15);
    same_for_two_parts(bucketed_loader, IMAGES / BATCH);
}

/* One image differs from epoch to epoch, from place to place and from seed to seed, but not when it
 * is read again. */
TEST(readings_differ) {
    float first[PIXELS], other[PIXELS];
    int64_t y;
    tn_dataset *d = augmented_images(7), *another = augmented_images(8);
    const tn_example at = {.index = 5, .epoch = 2, .place = 3}, next = {5, 3, 3}, twice = {5, 2, 4};
    assert_int_equal(d->get(d, at, first, &y), TN_OK);
    assert_int_equal(y, 5);
    d->get(d, at, other, &y);
    assert_memory_equal(first, other, sizeof(first));
    d->get(d, next, other, &y);
    assert_memory_not_equal(first, other, sizeof(first));
    d->get(d, twice, other, &y);
    assert_memory_not_equal(first, other, sizeof(first));
    another->get(another, at, other, &y);
    assert_memory_not_equal(first, other, sizeof(first));
    tn_dataset_free(d);
    tn_dataset_free(another);
}

/* The loader passes epochs and places to the dataset, through datasets in between. */
TEST(epochs_differ) {
    for (int wrapped = 0; wrapped < 3; wrapped++) {
        tn_dataset *d = augmented_images(7);
        d = wrapped == 1 ? tn_subset(d, (int64_t[]){5, 5}, 2) : d;
        d = wrapped == 2 ? tn_concat_dataset(&d, 1) : d;
        tn_loader_options o = TN_WITH(tn_loader, .batch = 2, .epochs = 2);
        tn_loader *l = tn_loader_new(d, tn_sequential_sampler(), o);
        tn_batch b;
        assert_true(tn_loader_next(l, &b));
        tn_tensor *first = tn_copy(b.x);
        if (wrapped == 1) { /* one example twice */
            assert_false(tn_equal(tn_select(first, 0, 0), tn_select(first, 0, 1)));
        }
        tn_loader_seek(l, (tn_loader_place){1, 0});
        assert_true(tn_loader_next(l, &b));
        assert_false(tn_equal(first, b.x));
        tn_loader_free(l);
    }
}

/* Two flips by the same numbers would always cancel. */
TEST(transforms_draw_their_own) {
    tn_tensor *x = tn_rand(TN_DIMS(30, 1, 1, 2), TN_F32);
    const tn_transform flip = tn_random_horizontal_flip(0.5);
    tn_dataset *d = TN_TRANSFORMED(tn_tensor_dataset(x, NULL), 1, flip, flip);
    int flipped = 0;
    for (int64_t i = 0; i < 30; i++) {
        float out[2];
        tn_dataset_get(d, i, out, NULL);
        flipped += out[0] != (float)tn_at(x, TN_DIMS(i, 0, 0, 0));
    }
    assert_in_range(flipped, 5, 25);
    tn_dataset_free(d);
}

/* ---- A transform of your own, and errors ----------------------------------------------------- */

static tn_status halves_shape(const tn_transform *t, tn_dims *dims) {
    if (dims->ndim < 1 || dims->size[0] % 2) {
        return tn_raise(TN_ESHAPE, "%s of an odd size", t->kind);
    }
    dims->size[0] /= 2;
    return TN_OK;
}

/* The first half of x plus a number; fails if x begins with the number at `user`. */
static tn_status halves_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                              tn_generator *random) {
    int64_t n = tn_dims_count(dims) / 2;
    if (t->user && x[0] == *(const float *)t->user) {
        return tn_raise(TN_EIO, "%g cannot be halved", (double)x[0]);
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = x[i] + (float)t->value[0];
    }
    return TN_OK;
}

static const tn_transform halves = {
    .kind = "halves", .shape = halves_shape, .apply = halves_apply, .value = {0.5}, .values = 1};

TEST(of_ones_own) {
    tn_tensor *x = tn_reshape(tn_arange(0, 24, 1, TN_F32), TN_DIMS(3, 8));
    tn_dataset *d = TN_TRANSFORMED(tn_tensor_dataset(x, NULL), 1, halves, halves);
    float out[2];
    assert_true(tn_dims_equal(d->x_dims, TN_DIMS(2)));
    assert_int_equal(tn_dataset_get(d, 1, out, NULL), TN_OK);
    assert_true(out[0] == 9 && out[1] == 10);
    char text[DATASET_TEXT];
    assert_true(dataset_text(d, text));
    assert_contains(text, ",\"seed of transforms\":1,\"halves\":\"0.5\",\"halves 2\":\"0.5\"}");
    tn_dataset_free(d);
    d = tn_transformed(tn_tensor_dataset(x, NULL), NULL, 0, 1);
    float row[8];
    assert_int_equal(tn_dataset_get(d, 2, row, NULL), TN_OK);
    assert_true(row[7] == 23);
    tn_dataset_free(d);
}

TEST(errors_travel) {
    static float bad = 10;
    for (int threads = 0; threads <= 7; threads++) {
        tn_tensor *x = tn_reshape(tn_arange(0, 20, 1, TN_F32), TN_DIMS(10, 2));
        tn_transform t = halves;
        t.user = &bad;
        tn_loader_options o = TN_WITH(tn_loader, .batch = 2, .threads = threads);
        tn_dataset *d = TN_TRANSFORMED(tn_tensor_dataset(x, NULL), 1, t);
        tn_loader *l = tn_loader_new(d, tn_sequential_sampler(), o);
        tn_batch b;
        assert_true(tn_loader_next(l, &b) && tn_loader_next(l, &b));
        assert_false(tn_loader_next(l, &b));
        assert_error(TN_EIO, "10 cannot be halved");
        assert_true(tn_loader_next(l, &b) && b.index == 3);
        tn_loader_free(l);
    }
}

TEST(transforms_refuse) {
    static const double mean[] = {0, 0, 0}, std[] = {1, 0, 1};
    const struct {
        tn_transform transform;
        tn_status status;
        const char *says;
    } cases[] = {
        {tn_random_crop(SIDE + 3, SIDE, 1), TN_ESHAPE, "a window of 9 x 6 does not fit"},
        {tn_random_crop(0, SIDE, 1), TN_EVALUE, "to 0 x 6"},
        {tn_random_crop(SIDE, SIDE, -1), TN_ESHAPE, "-1 pixels around"},
        {tn_center_crop(-2, 1), TN_EVALUE, "to -2 x 1"},
        {tn_image_resize(3, 0), TN_EVALUE, "to 3 x 0"},
        {tn_random_resized_crop(3, 3, 0), TN_EVALUE, "of 0 of the image"},
        {tn_random_resized_crop(0, 3, 1), TN_EVALUE, "to 0 x 3"},
        {tn_random_horizontal_flip(1.5), TN_EVALUE, "probability 1.5"},
        {tn_color_jitter(0, -1, 0), TN_EVALUE, "by -1"},
        {tn_color_jitter(0, 0, NAN), TN_EVALUE, "by nan"},
        {tn_image_normalize(2, mean, std), TN_ESHAPE, "3 channels, but there are means for 2"},
        {tn_image_normalize(3, mean, std), TN_EVALUE, "std 0 of channel 1"},
        {tn_image_normalize(9, mean, std), TN_EVALUE,
         "expected means and deviations for 1 to 8 channels"},
        {tn_image_normalize(3, NULL, std), TN_EVALUE, "neither of them NULL"},
        {(tn_transform){.kind = "empty"}, TN_EVALUE, "transform 0 has no kind, no apply"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_none(tn_transformed(random_images(), &cases[i].transform, 1, 1), cases[i].status,
                    cases[i].says);
    }
    tn_dataset *counts = tn_tensor_dataset(tn_arange(0, 3, 1, TN_I64), NULL);
    assert_none(TN_TRANSFORMED(counts, 1, halves), TN_EDTYPE,
                "x of the dataset \"tensors\" is i64");
    assert_none(TN_TRANSFORMED(tn_tensor_dataset(tn_ones(TN_DIMS(3), TN_F32), NULL), 1,
                               tn_random_horizontal_flip(0.5)),
                TN_ESHAPE, "it should be (C, H, W)");
}

/* ---- mixup ----------------------------------------------------------------------------------- */

/* The lambda of a batch, from its effect on x = (1, 0). */
static double lambda_of(int64_t index, double alpha, uint64_t seed) {
    TN_SCOPE;
    tn_batch b = {.x = TN_FROM(((double[]){1, 0}), TN_DIMS(2, 1), TN_F64),
                  .y = tn_arange(0, 2, 1, TN_I64),
                  .epoch = 3,
                  .index = index};
    b = tn_mixup(b, 3, alpha, seed);
    double lambda = tn_at(b.x, TN_DIMS(0, 0));
    assert_true(fabs(tn_at(b.x, TN_DIMS(1, 0)) - (1 - lambda)) < 1e-12);
    assert_true(fabs(tn_at(b.y, TN_DIMS(0, 0)) - lambda) < 1e-12);
    assert_true(fabs(tn_at(b.y, TN_DIMS(0, 1)) - (1 - lambda)) < 1e-12);
    assert_true(tn_at(b.y, TN_DIMS(1, 2)) == 0);
    return lambda;
}

/* Mean 1/2 and variance 1 / (4 (2 alpha + 1)) of Beta(alpha, alpha), up to five deviations. */
TEST(mixup_draws) {
    static const double alphas[] = {0.01, 0.2, 1, 3};
    enum { DRAWS = 500 };
    for (int a = 0; a < 4; a++) {
        double sum = 0, squares = 0, variance = 1 / (4 * (2 * alphas[a] + 1));
        for (int64_t i = 0; i < DRAWS; i++) {
            double lambda = lambda_of(i, alphas[a], 4);
            assert_true(lambda >= 0 && lambda <= 1);
            sum += lambda - 0.5;
            squares += (lambda - 0.5) * (lambda - 0.5);
        }
        assert_true(fabs(sum / DRAWS) < 5 * sqrt(variance / DRAWS));
        assert_true(fabs(squares / DRAWS - variance) < 5 * 0.125 / sqrt(DRAWS));
    }
    assert_true(lambda_of(2, 1, 4) == lambda_of(2, 1, 4));
    assert_true(lambda_of(2, 1, 4) != lambda_of(2, 1, 5));
}

TEST(mixup_refuses) {
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32), *y = tn_arange(0, 2, 1, TN_I64);
    assert_inert(tn_mixup((tn_batch){.x = x}, 2, 1, 1).x, TN_EVALUE, "NULL");
    assert_inert(tn_mixup((tn_batch){.x = x, .y = y}, 2, 0, 1).y, TN_EVALUE,
                 "alpha is 0 (it must be above 0, and finite)");
    assert_inert(tn_mixup((tn_batch){.x = y, .y = y}, 2, 1, 1).x, TN_EDTYPE, "x is i64");
    assert_inert(tn_mixup((tn_batch){.x = x, .y = x}, 2, 1, 1).x, TN_ESHAPE, "one class per row");
    tn_batch wrong = tn_mixup((tn_batch){.x = x, .y = y}, 1, 1, 1);
    assert_true(tn_is_inert(wrong.x));
    assert_inert(wrong.y, TN_EINDEX, "one_hot");
}
