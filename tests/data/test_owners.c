/* Who frees a dataset: a second owner and a second free are errors, and nothing is freed twice. */
#include "tern/data.h"
#include "tern/transforms.h"

#include <string.h>

#include "tests/support/test.h"

/* Example i is i. Its memory stays after a free, so that the test can look at it; `inner` is a
 * dataset that it owns, or NULL. */
typedef struct counted {
    tn_dataset base;
    tn_dataset *inner;
    int freed;
} counted;

static tn_status counted_get(tn_dataset *self, tn_example e, void *x, void *y) {
    *(float *)x = (float)e.index;
    return TN_OK;
}

static void counted_free(tn_dataset *self) {
    counted *d = (counted *)self;
    d->freed++;
    tn_dataset_free(d->inner);
}

static tn_dataset *counted_init(counted *d, tn_dataset *inner) {
    *d = (counted){.base = {.kind = "counted",
                            .size = 4,
                            .x_dims = TN_DIMS(1),
                            .y_dims = {.ndim = -1},
                            .x_dtype = TN_F32,
                            .get = counted_get,
                            .free = counted_free},
                   .inner = inner};
    return &d->base;
}

static tn_loader *open_loader(tn_dataset *d, int threads) {
    tn_loader_options o = TN_WITH(tn_loader, .threads = threads);
    return tn_loader_new(d, tn_sequential_sampler(), o);
}

static void assert_gives(tn_loader *l, int64_t batches) {
    tn_batch b;
    for (int64_t i = 0; i < batches; i++) {
        assert_true(tn_loader_next(l, &b));
    }
    assert_false(tn_loader_next(l, &b));
    assert_int_equal(tn_error(), TN_OK);
}

TEST(two_loaders) {
    for (int threads = 0; threads <= 2; threads += 2) {
        counted one;
        tn_dataset *d = counted_init(&one, NULL);
        tn_loader *first = open_loader(d, threads);
        assert_none(open_loader(d, threads), TN_ESTATE,
                    "loader: the dataset \"counted\" belongs to a loader");
        assert_none(open_loader(d, threads), TN_ESTATE, "tn_dataset_keep(d)");
        assert_gives(first, 4);
        tn_loader_free(first);
        assert_int_equal(one.freed, 1);

        d = counted_init(&one, NULL);
        first = open_loader(tn_dataset_keep(d), threads);
        tn_loader *second = open_loader(d, threads);
        assert_none(open_loader(d, threads), TN_ESTATE, "tn_dataset_keep(d)");
        tn_loader_free(first);
        assert_int_equal(one.freed, 0);
        assert_gives(second, 4);
        tn_loader_free(second);
        assert_int_equal(one.freed, 1);
    }
}

static tn_dataset *subset_of(tn_dataset *d) {
    return tn_subset(d, (int64_t[]){1, 2}, 2);
}
static tn_dataset *transformed_of(tn_dataset *d) {
    return tn_transformed(d, NULL, 0, 1);
}
static tn_dataset *concatenation_of(tn_dataset *d) {
    tn_tensor *x = tn_zeros(TN_DIMS(1, 1), TN_F32);
    return tn_concat_dataset((tn_dataset *[]){tn_tensor_dataset(x, NULL), d}, 2);
}
static tn_dataset *piece_of(tn_dataset *d) {
    tn_dataset *pieces[2];
    tn_random_split(d, (double[]){0.5, 0.5}, 2, 1, pieces);
    tn_dataset_free(pieces[1]);
    return pieces[0];
}

/* Whatever takes a dataset owns it, and is refused one that has an owner. */
TEST(all_takers) {
    static tn_dataset *(*const takers[])(tn_dataset * d) = {subset_of, transformed_of,
                                                            concatenation_of, piece_of};
    for (int first = 0; first < 4; first++) {
        for (int second = 0; second < 4; second++) {
            counted one;
            tn_dataset *d = counted_init(&one, NULL), *owner = takers[first](d);
            assert_non_null(owner);
            assert_none(takers[second](d), TN_ESTATE,
                        "the dataset \"counted\" belongs to a loader or another");
            float x;
            assert_int_equal(tn_dataset_get(owner, 0, &x, NULL), TN_OK);
            tn_dataset_free(owner);
            assert_int_equal(one.freed, 1);

            d = counted_init(&one, NULL);
            owner = takers[first](tn_dataset_keep(d));
            tn_dataset_free(takers[second](d));
            assert_int_equal(one.freed, 0);
            tn_dataset_free(owner);
            assert_int_equal(one.freed, 1);
        }
    }
    counted one;
    tn_dataset *d = counted_init(&one, NULL);
    assert_none(tn_concat_dataset((tn_dataset *[]){d, d}, 2), TN_ESTATE,
                "concat_dataset: the dataset \"counted\" belongs to");
    assert_int_equal(one.freed, 1);
}

/* The program frees what it no longer owns, or never owned. */
TEST(freed_beside_its_loader) {
    counted one, outer;
    tn_dataset *d = counted_init(&one, NULL);
    tn_loader *l = open_loader(d, 0);
    tn_dataset_free(d);
    assert_error(TN_ESTATE, "dataset_free: the dataset \"counted\" belongs to a loader");
    assert_gives(l, 4);
    tn_loader_free(l);
    assert_int_equal(one.freed, 1);

    d = counted_init(&one, NULL); /* freed by another dataset, which the program owns */
    tn_dataset *both = counted_init(&outer, d);
    l = open_loader(d, 0);
    tn_dataset_free(both);
    assert_error(TN_ESTATE, "dataset_free: the dataset \"counted\" belongs to a loader");
    assert_gives(l, 4);
    tn_loader_free(l);
    assert_int_equal(one.freed, 1);

    d = counted_init(&one, NULL);
    l = open_loader(tn_dataset_keep(d), 0);
    tn_dataset_free(d);
    assert_gives(l, 4);
    tn_dataset_free(d);
    assert_error(TN_ESTATE, "belongs to a loader");
    tn_loader_free(l);
    assert_int_equal(one.freed, 1);
}

TEST(used_after_its_loader) {
    counted one;
    tn_dataset *d = counted_init(&one, NULL);
    tn_loader_free(open_loader(d, 0));
    assert_int_equal(one.freed, 1);
    tn_dataset_free(d);
    assert_error(TN_ESTATE, "dataset_free: the dataset was freed (a loader, ");
    assert_none(tn_dataset_keep(d), TN_ESTATE, "dataset_keep: the dataset was freed");
    assert_none(open_loader(d, 0), TN_ESTATE, "loader: the dataset was freed");
    assert_int_equal(one.freed, 1);
    tn_dataset_free(counted_init(&one, NULL)); /* another dataset in its place */
    assert_int_equal(one.freed, 1);
}

/* A dataset that a call refuses for another reason is freed once. */
TEST(freed_when_it_fails) {
    counted one;
    tn_loader_options o = TN_WITH(tn_loader, .batch = 0);
    assert_none(tn_loader_new(counted_init(&one, NULL), tn_sequential_sampler(), o), TN_EVALUE,
                "batch is 0");
    assert_int_equal(one.freed, 1);
    assert_none(tn_subset(counted_init(&one, NULL), (int64_t[]){9}, 1), TN_EINDEX, "index 0 is 9");
    assert_int_equal(one.freed, 1);
    tn_dataset *pieces[2];
    tn_random_split(counted_init(&one, NULL), (double[]){3, 3}, 2, 1, pieces);
    assert_error(TN_EVALUE, "lengths whose sum is 6");
    assert_int_equal(one.freed, 1);
    assert_none(tn_transformed(counted_init(&one, NULL), NULL, 1, 1), TN_EVALUE, "transforms");
    assert_int_equal(one.freed, 1);
}

/* A dataset without a free function may have any number of owners. */
TEST(without_free) {
    counted one;
    tn_dataset *d = counted_init(&one, NULL);
    d->free = NULL;
    tn_loader *first = open_loader(d, 0), *second = open_loader(d, 2);
    assert_gives(first, 4);
    tn_dataset_free(d);
    tn_loader_free(first);
    assert_gives(second, 4);
    tn_loader_free(second);
    tn_loader *third = open_loader(d, 0);
    assert_gives(third, 4);
    tn_loader_free(third);
}
