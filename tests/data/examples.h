/* What tests of readers share: reading the examples of a dataset here, and with a loader's
 * threads. */
#ifndef TERN_TESTS_DATA_EXAMPLES_H
#define TERN_TESTS_DATA_EXAMPLES_H

#include "tern/data.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/dataset_text.h"
#include "tests/support/test.h"

static inline size_t example_bytes(tn_dims dims, tn_dtype dtype) {
    return dims.ndim < 0 ? 0 : (size_t)tn_dims_count(dims) * tn_dtype_size(dtype);
}

/* Example i, in memory that the next call reuses. */
static inline const void *example_x(tn_dataset *d, int64_t i, void *y) {
    static char x[1 << 16];
    char other[64];
    assert_true(example_bytes(d->x_dims, d->x_dtype) <= sizeof(x));
    assert_int_equal(tn_dataset_get(d, i, x, d->y_dims.ndim < 0 ? NULL : y ? y : other), TN_OK);
    return x;
}

/* Threads of a loader read the examples as this thread does, in whatever order. Takes d. */
static inline void check_threads(tn_dataset *d) {
    size_t x_bytes = example_bytes(d->x_dims, d->x_dtype);
    tn_loader_options o = TN_WITH(tn_loader, .batch = 3, .epochs = 4, .threads = 4, .prefetch = 4);
    tn_sampler order = tn_random_sampler(7);
    tn_loader *l = tn_loader_new(d, order, o);
    assert_non_null(l);
    int64_t seen = 0;
    for (tn_batch b; tn_loader_next(l, &b);) {
        for (int64_t i = 0; i < tn_size(b.x, 0); i++, seen++) {
            int64_t at = tn_sampler_at(&order, d->size, b.epoch, b.index * o.batch + i);
            assert_memory_equal((const char *)tn_data(b.x) + (size_t)i * x_bytes,
                                example_x(d, at, NULL), x_bytes);
        }
    }
    assert_int_equal(tn_error(), TN_OK);
    assert_int_equal(seen, 4 * d->size);
    tn_loader_free(l);
}

typedef struct identity {
    char text[DATASET_TEXT];
} identity;

/* What identifies the dataset, whenever it is asked. Takes d. */
static inline identity identify_and_free(tn_dataset *d) {
    identity first, again;
    assert_non_null(d);
    assert_true(dataset_text(d, first.text) && dataset_text(d, again.text));
    assert_string_equal(first.text, again.text);
    tn_dataset_free(d);
    return first;
}

#endif
