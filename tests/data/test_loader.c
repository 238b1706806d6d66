/* The loader: the same batches for any number of threads, pass after pass, errors of workers,
 * places, and freeing at any moment. */
#include "tern/data.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fork.h"

/* Example i is x = (i, 10 i), y = -i. Reading `bad` fails; reading any takes `microseconds`. */
typedef struct numbers {
    tn_dataset base;
    int64_t bad;
    int microseconds;
} numbers;

static int freed;

static tn_status numbers_get(tn_dataset *self, tn_example e, void *x, void *y) {
    numbers *d = (numbers *)self;
    if (d->microseconds) { usleep((useconds_t)(d->microseconds * (1 + e.index % 3))); }
    if (e.index == d->bad) { return tn_raise(TN_EIO, "example %d cannot be read", (int)e.index); }
    ((int64_t *)x)[0] = e.index;
    ((int64_t *)x)[1] = 10 * e.index;
    *(float *)y = (float)-e.index;
    return TN_OK;
}

static void numbers_free(tn_dataset *self) {
    freed++;
    free(self);
}

static tn_dataset *make_numbers(int64_t size, int64_t bad, int microseconds) {
    numbers *d = calloc(1, sizeof(*d));
    d->base = (tn_dataset){.kind = "numbers",
                           .size = size,
                           .x_dims = TN_DIMS(2),
                           .y_dims = TN_DIMS(),
                           .x_dtype = TN_I64,
                           .y_dtype = TN_F32,
                           .get = numbers_get,
                           .free = numbers_free};
    d->bad = bad;
    d->microseconds = microseconds;
    return &d->base;
}

static tn_loader_options loader_options(int64_t batch, int64_t epochs, int threads) {
    tn_loader_options o = TN_WITH(tn_loader, .batch = batch, .epochs = epochs, .threads = threads);
    return o;
}

/* Checks one batch against the sampler, which is the specification. */
static void check_batch(const tn_batch *b, tn_sampler s, int64_t size, int64_t batch) {
    int64_t left = tn_sampler_count(&s, size) - b->index * batch,
            count = left < batch ? left : batch;
    assert_int_equal(tn_size(b->x, 0), count);
    assert_int_equal(tn_size(b->x, 1), 2);
    assert_int_equal(tn_count(b->y), count);
    int64_t x[64];
    float y[32];
    assert_in_range(count, 1, 32);
    assert_int_equal(tn_copy_out(b->x, x), TN_OK);
    assert_int_equal(tn_copy_out(b->y, y), TN_OK);
    for (int64_t i = 0; i < count; i++) {
        int64_t wanted = tn_sampler_at(&s, size, b->epoch, b->index * batch + i);
        assert_int_equal(x[2 * i], wanted);
        assert_int_equal(x[2 * i + 1], 10 * wanted);
        assert_true(y[i] == (float)-wanted);
    }
}

TEST(test_same_batches_for_any_threads) {
    for (int threads = 0; threads <= 4; threads++) {
        for (int prefetch = 1; prefetch <= 5; prefetch += 2) {
            tn_sampler s = tn_random_sampler(4);
            tn_loader_options o = loader_options(5, 3, threads);
            o.prefetch = prefetch;
            tn_loader *l = tn_loader_new(make_numbers(23, -1, threads * 20), s, o);
            assert_int_equal(tn_loader_batches(l), 5);
            tn_batch b;
            int64_t n = 0;
            for (; tn_loader_next(l, &b); n++) {
                TN_SCOPE;
                assert_int_equal(b.epoch, n / 5);
                assert_int_equal(b.index, n % 5);
                check_batch(&b, s, 23, 5);
            }
            assert_int_equal(n, 15);
            assert_int_equal(tn_loader_where(l).epoch, 3);
            tn_loader_free(l);
        }
    }
}

static void assert_place(const tn_loader *l, int64_t epoch, int64_t index) {
    tn_loader_place place = tn_loader_where(l);
    assert_int_equal(place.epoch, epoch);
    assert_int_equal(place.index, index);
}

/* Successive loops see what one loop over more epochs would. */
TEST(test_passes) {
    tn_sampler s = tn_random_sampler(4);
    for (int threads = 0; threads <= 4; threads++) {
        for (int epochs = 1; epochs <= 2; epochs++) {
            tn_loader *l =
                tn_loader_new(make_numbers(23, -1, 0), s, loader_options(5, epochs, threads));
            int64_t n = 0;
            for (int pass = 0; pass < 5; pass++) {
                tn_batch b;
                assert_place(l, (int64_t)pass * epochs, 0);
                while (tn_loader_next(l, &b)) {
                    TN_SCOPE;
                    assert_int_equal(b.epoch * 5 + b.index, n++);
                    check_batch(&b, s, 23, 5);
                    bool last = n == (pass + 1) * epochs * 5;
                    assert_place(l, last ? b.epoch : n / 5, last ? 5 : n % 5);
                }
                assert_null(b.x);
                assert_int_equal(n, (pass + 1) * epochs * 5);
            }
            tn_loader_free(l);
        }
    }
}

/* Workers read nothing of a pass that has not begun. */
static int reads; /* atomic */

static tn_status counted_get(tn_dataset *self, tn_example e, void *x, void *y) {
    __atomic_fetch_add(&reads, 1, __ATOMIC_RELAXED);
    return numbers_get(self, e, x, y);
}

TEST(test_passes_begin_when_they_are_asked_for) {
    tn_dataset *d = make_numbers(6, -1, 0);
    d->get = counted_get;
    tn_loader *l = tn_loader_new(d, tn_random_sampler(1), loader_options(2, 1, 2));
    tn_batch b;
    for (int pass = 1; pass <= 3; pass++) {
        while (tn_loader_next(l, &b)) {}
        usleep(2000); /* time for a worker to read on */
        assert_int_equal(__atomic_load_n(&reads, __ATOMIC_RELAXED), 6 * pass);
    }
    tn_loader_free(l);
}

/* False after an error is not the end of the pass: the loop over all batches still has to end. */
TEST(test_an_error_ends_no_pass) {
    for (int threads = 0; threads <= 3; threads += 3) {
        tn_loader *l = tn_loader_new(make_numbers(6, 5, 0), tn_sequential_sampler(),
                                     loader_options(2, 1, threads));
        tn_batch b;
        assert_true(tn_loader_next(l, &b) && tn_loader_next(l, &b));
        assert_false(tn_loader_next(l, &b)); /* the last batch cannot be read */
        assert_int_equal(tn_error(), TN_EIO);
        for (int i = 0; i < 3; i++) {
            assert_false(tn_loader_next(l, &b));
        }
        assert_place(l, 0, 3);
        tn_error_clear();
        assert_false(tn_loader_next(l, &b));
        assert_int_equal(tn_error(), TN_OK);
        assert_place(l, 1, 0);
        tn_raise(TN_EIO, "elsewhere");
        assert_false(tn_loader_next(l, &b));
        tn_error_clear();
        assert_place(l, 1, 0);
        assert_true(tn_loader_next(l, &b) && b.epoch == 1 && b.index == 0);
        tn_loader_free(l);
    }
}

PLAIN_TEST(test_drop_last_and_parts) {
    for (int threads = 0; threads <= 2; threads += 2) {
        tn_sampler s = tn_random_sampler(4);
        s.part = 1;
        s.parts = 2;
        tn_loader_options o = loader_options(4, 1, threads);
        o.drop_last = true;
        tn_loader *l = tn_loader_new(make_numbers(23, -1, 0), s, o);
        assert_int_equal(tn_loader_batches(l), 2); /* 11 examples */
        tn_batch b;
        int n = 0;
        while (tn_loader_next(l, &b)) {
            check_batch(&b, s, 23, 4);
            n++;
        }
        assert_int_equal(n, 2);
        tn_loader_free(l);
    }
}

PLAIN_TEST(test_seek_and_where) {
    for (int threads = 0; threads <= 3; threads++) {
        tn_sampler s = tn_random_sampler(8);
        tn_loader *l = tn_loader_new(make_numbers(40, -1, 30), s, loader_options(4, 0, threads));
        tn_batch b;
        for (int i = 0; i < 13; i++) {
            assert_true(tn_loader_next(l, &b));
        }
        tn_loader_place place = tn_loader_where(l);
        assert_int_equal(place.epoch, 1);
        assert_int_equal(place.index, 3);
        static const tn_loader_place places[] = {{0, 0}, {7, 9}, {1, 3}, {1, 3}, {0, 1}};
        for (int i = 0; i < 5; i++) {
            assert_int_equal(tn_loader_seek(l, places[i]), TN_OK);
            for (int k = 0; k < 3; k++) {
                int64_t number = places[i].epoch * 10 + places[i].index + k;
                assert_true(tn_loader_next(l, &b));
                assert_int_equal(b.epoch, number / 10);
                assert_int_equal(b.index, number % 10);
                check_batch(&b, s, 40, 4);
            }
        }
        tn_loader_free(l);
    }
}

PLAIN_TEST(test_seek_outside) {
    tn_loader *l =
        tn_loader_new(make_numbers(40, -1, 0), tn_sequential_sampler(), loader_options(4, 2, 0));
    static const tn_loader_place outside[] = {
        {-1, 0}, {0, -1}, {0, 10}, {1, 11}, {INT64_MAX / 10, 0}, {INT64_MAX, 0}, {0, INT64_MAX}};
    for (int i = 0; i < 7; i++) {
        assert_false(tn_loader_has(l, outside[i]));
        assert_fails(tn_loader_seek(l, outside[i]), TN_EINDEX, "");
    }
    tn_loader_free(l);
    l = tn_loader_new(make_numbers(40, -1, 0), tn_sequential_sampler(), loader_options(4, 0, 0));
    assert_int_equal(tn_loader_seek(l, (tn_loader_place){1, 10}), TN_EINDEX); /* no last pass */
    assert_error(TN_EINDEX, "batch 10 of epoch 1, but an epoch has 10 batches");
    tn_loader_free(l);
}

/* Each epoch belongs to one pass, wherever the loader was before. */
TEST(test_seek_among_passes) {
    static const struct {
        tn_loader_place place;
        int64_t batches; /* to the end of the pass */
    } places[] = {{{1, 9}, 1}, {{2, 0}, 20}, {{1, 10}, 0}, {{0, 3}, 17}, {{7, 9}, 1}, {{8, 0}, 20}};
    for (int threads = 0; threads <= 3; threads += 3) {
        tn_sampler s = tn_random_sampler(8);
        tn_loader *l = tn_loader_new(make_numbers(40, -1, 0), s, loader_options(4, 2, threads));
        for (int i = 0; i < 6; i++) {
            int64_t number = places[i].place.epoch * 10 + places[i].place.index, n = 0;
            assert_int_equal(tn_loader_seek(l, places[i].place), TN_OK);
            assert_place(l, places[i].place.epoch, places[i].place.index);
            tn_batch b;
            for (; tn_loader_next(l, &b); n++, number++) {
                assert_int_equal(b.epoch * 10 + b.index, number);
                check_batch(&b, s, 40, 4);
            }
            assert_int_equal(n, places[i].batches);
            assert_true(tn_loader_next(l, &b)); /* the next pass */
            assert_int_equal(b.epoch * 10 + b.index, number);
        }
        tn_loader_free(l);
    }
}

static int handled;

static void count_handled(tn_status status, const char *message) {
    handled++;
}

PLAIN_TEST(test_error_comes_with_its_batch) {
    tn_on_error(count_handled);
    for (int threads = 0; threads <= 3; threads++) {
        int64_t live = tn_live_tensors();
        handled = 0;
        tn_loader *l = tn_loader_new(make_numbers(20, 9, 0), tn_sequential_sampler(),
                                     loader_options(2, 1, threads));
        tn_batch b;
        for (int i = 0; i < 4; i++) {
            assert_true(tn_loader_next(l, &b)); /* a worker has met the bad example already */
            usleep(2000);
            assert_int_equal(tn_error(), TN_OK);
            assert_int_equal(handled, 0);
        }
        assert_false(tn_loader_next(l, &b));
        assert_null(b.x);
        assert_int_equal(tn_error(), TN_EIO);
        assert_non_null(strstr(tn_error_message(), "example 9 cannot be read"));
        assert_int_equal(handled, 1);
        assert_false(tn_loader_next(l, &b)); /* while an error is pending nothing moves */
        assert_int_equal(tn_loader_where(l).index, 5);
        tn_error_clear();
        assert_true(tn_loader_next(l, &b));
        assert_int_equal((int64_t)tn_at(b.x, TN_DIMS(0, 0)), 10);
        tn_loader_free(l);
        assert_int_equal(tn_live_tensors(), live);
    }
    tn_on_error(NULL);
}

/* Freed at every stage: while workers wait, read, or have met an error. */
TEST(test_free_at_any_moment) {
    freed = 0;
    for (int i = 0; i < 150; i++) {
        tn_loader *l = tn_loader_new(make_numbers(50, i % 7 ? -1 : 3, i % 3 * 50),
                                     tn_sequential_sampler(), loader_options(3, 0, 1 + i % 4));
        tn_batch b;
        for (int k = 0; k < i % 5; k++) {
            tn_loader_next(l, &b);
        }
        usleep((useconds_t)(i % 11 * 20));
        tn_loader_free(l);
        tn_error_clear();
    }
    assert_int_equal(freed, 150);
}

PLAIN_TEST(test_batches_are_lent) {
    tn_loader *l =
        tn_loader_new(make_numbers(8, -1, 0), tn_sequential_sampler(), loader_options(2, 1, 1));
    tn_batch b;
    assert_true(tn_loader_next(l, &b));
    tn_tensor *kept = tn_keep(b.x);
    assert_true(tn_loader_next(l, &b));
    tn_tensor *lent = b.x;
    while (tn_loader_next(l, &b)) {}
    tn_loader_free(l);
    tn_item(lent);
    assert_error(TN_ESTATE, "item: the tensor was released by the loader's next call");
    assert_int_equal((int64_t)tn_at(kept, TN_DIMS(1, 0)), 1);
    tn_release(kept);
}

PLAIN_TEST(test_bad_arguments) {
    freed = 0;
    tn_sampler s = tn_sequential_sampler(), parts = s;
    parts.parts = 0;
    assert_none(tn_loader_new(make_numbers(8, -1, 0), s, loader_options(0, 1, 0)), TN_EVALUE,
                "batch is 0");
    assert_none(tn_loader_new(make_numbers(8, -1, 0), s, loader_options(1, -1, 0)), TN_EVALUE,
                "epochs is -1");
    /* would never end and never return a batch */
    assert_none(tn_loader_new(make_numbers(0, -1, 0), s, loader_options(1, 0, 0)), TN_EVALUE,
                "no batch of 1 in an epoch of 0 examples");
    assert_none(tn_loader_new(make_numbers(8, -1, 0), parts, loader_options(1, 1, 0)), TN_EVALUE,
                "part 0 of 0");
    assert_none(tn_loader_new(make_numbers(8, -1, 0), s, loader_options(1, 1, -2)), TN_EVALUE,
                "threads is -2");
    assert_int_equal(freed, 5);
    assert_none(tn_loader_new(NULL, s, loader_options(1, 1, 0)), TN_EVALUE, "dataset is NULL");
    tn_batch b;
    assert_false(tn_loader_next(NULL, &b));
}

/* ---- Who uses it ----------------------------------------------------------------------------- */

enum { SHARED = 300 };

typedef struct eater {
    tn_loader *loader;
    int given[SHARED]; /* how often this thread received each batch of the first pass */
    int refused;
    bool wrong; /* another error than TN_ESTATE */
    pthread_t thread;
} eater;

static void *eat_batches(void *user) {
    eater *e = user;
    tn_batch b;
    for (;;) {
        if (tn_loader_next(e->loader, &b)) {
            if (b.epoch > 0) { return NULL; /* another thread saw the end of the pass */ }
            e->given[b.index]++;
        } else if (tn_error() == TN_OK) {
            return NULL;
        } else {
            e->refused++;
            e->wrong |= tn_error() != TN_ESTATE;
            tn_error_clear();
        }
    }
}

/* Every batch is given to one thread once, and no thread waits forever. */
PLAIN_TEST(test_three_threads_at_once) {
    for (int workers = 0; workers <= 2; workers += 2) {
        static eater eaters[3];
        tn_loader *l = tn_loader_new(make_numbers(SHARED, -1, 0), tn_random_sampler(1),
                                     loader_options(1, 1, workers));
        for (int i = 0; i < 3; i++) {
            eaters[i] = (eater){.loader = l};
            assert_int_equal(pthread_create(&eaters[i].thread, NULL, eat_batches, &eaters[i]), 0);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(eaters[i].thread, NULL);
            assert_false(eaters[i].wrong);
        }
        for (int b = 0; b < SHARED; b++) {
            assert_int_equal(eaters[0].given[b] + eaters[1].given[b] + eaters[2].given[b], 1);
        }
        tn_loader_free(l);
    }
}

/* One thread after the other is fine. */
PLAIN_TEST(test_a_loader_changes_hands) {
    static eater second;
    tn_loader *l =
        tn_loader_new(make_numbers(4, -1, 0), tn_sequential_sampler(), loader_options(1, 1, 1));
    tn_batch b;
    assert_true(tn_loader_next(l, &b));
    second = (eater){.loader = l};
    assert_int_equal(pthread_create(&second.thread, NULL, eat_batches, &second), 0);
    pthread_join(second.thread, NULL);
    assert_int_equal(second.refused, 0);
    assert_int_equal(second.given[0], 0);
    assert_int_equal(second.given[1] + second.given[2] + second.given[3], 3);
    tn_loader_free(l);
}

/* A dataset that uses the loader that reads it. */
static tn_loader *reader; /* atomic */
static enum { NEXT, NEXT_ELSEWHERE, SEEK, FREE } turn;

static void *next_elsewhere(void *record) {
    tn_batch b;
    tn_loader_next(reader, &b);
    tn_error_take(record);
    return NULL;
}

static tn_status turning_get(tn_dataset *self, tn_example e, void *x, void *y) {
    memset(x, 0, 2 * sizeof(int64_t));
    *(float *)y = 0;
    while (!__atomic_load_n(&reader, __ATOMIC_ACQUIRE)) { /* tn_loader_new has not returned yet */
        usleep(1000);
    }
    tn_batch b;
    tn_error_record record = {0};
    pthread_t thread;
    switch (turn) {
    case NEXT:
        tn_loader_next(reader, &b);
        break;
    case NEXT_ELSEWHERE:
        pthread_create(&thread, NULL, next_elsewhere, &record);
        pthread_join(thread, NULL);
        tn_error_give(&record);
        break;
    case SEEK:
        tn_loader_seek(reader, (tn_loader_place){0, 0});
        break;
    case FREE:
        tn_loader_free(reader);
        break;
    }
    return tn_error();
}

PLAIN_TEST(test_a_loader_within_itself) {
    for (turn = NEXT; turn <= FREE; turn++) {
        for (int workers = 0; workers < 2; workers++) {
            if (workers && turn == NEXT_ELSEWHERE) { continue; /* the loader is not in use then */ }
            tn_dataset *d = make_numbers(1, -1, 0);
            d->get = turning_get;
            reader = NULL;
            tn_loader *l = tn_loader_new(d, tn_sequential_sampler(), loader_options(1, 1, workers));
            __atomic_store_n(&reader, l, __ATOMIC_RELEASE);
            tn_batch b;
            assert_false(tn_loader_next(l, &b));
            assert_error(TN_ESTATE, "the loader is in use");
            tn_loader_free(l);
        }
    }
}

/* ---- In a child of fork ---------------------------------------------------------------------- */

static void loader_refuses(void *user) {
    tn_loader *l = user;
    tn_batch b;
    child_assert(!tn_loader_next(l, &b) && b.x == NULL);
    child_error(TN_ESTATE, "loader_next: a loader with threads belongs to the parent");
    child_assert(tn_loader_seek(l, (tn_loader_place){0, 0}) == TN_ESTATE);
    child_error(TN_ESTATE, "loader_seek: a loader with threads belongs to the parent");
    tn_loader_free(l);
}

/* The child makes the same batches itself; on a device it cannot. */
static void loader_goes_on(void *user) {
    tn_loader *l = user;
    tn_batch b;
    tn_loader_place place = tn_loader_where(l);
    if (tn_default_device().kind != TN_CPU) {
        child_assert(!tn_loader_next(l, &b));
        child_error(tn_error(), "forked");
        return;
    }
    child_assert(tn_loader_next(l, &b) && b.epoch == place.epoch && b.index == place.index);
    tn_loader_free(l);
}

TEST(test_in_a_child) {
    tn_sampler order = tn_random_sampler(3);
    for (int threads = 0; threads <= 3; threads += 3) {
        tn_loader *l = tn_loader_new(make_numbers(40, -1, 0), order, loader_options(4, 2, threads));
        tn_batch b;
        int seen = 0;
        for (; seen < 19 && tn_loader_next(l, &b); seen++) {
            check_batch(&b, order, 40, 4);
            assert_child(threads ? loader_refuses : loader_goes_on, l);
        }
        assert_int_equal(seen, 19);
        tn_loader_free(l);
    }
}
