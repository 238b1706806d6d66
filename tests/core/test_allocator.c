/* Tensor memory: statistics, the limit, reuse, injected failures. Under the address sanitizer
 * nothing is cached, and the tests of the cache are skipped. */
#include "core/allocator.h"
#include "core/sanitize.h"
#include "tern/sys/tensor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

static int reset_memory(void **state) {
    tn_error_clear();
    tn_memory_set_limit(0);
    tn__alloc_fail_at(-1);
    tn_memory_trim();
    tn_memory_reset_peak();
    return 0;
}

static tn_tensor *make_bytes(int64_t n) {
    return tn_empty(TN_DIMS(n), TN_U8);
}

TEST_WITH(test_statistics, reset_memory, NULL) {
    tn_memory_stats before = tn_memory();
    assert_int_equal(before.peak, before.allocated);
    {
        TN_SCOPE;
        make_bytes(1000);
        make_bytes(3000000);
        make_bytes(0);
        tn_memory_stats now = tn_memory();
        assert_int_equal(now.allocated, before.allocated + 3001000);
        assert_int_equal(now.peak, now.allocated);
        assert_int_equal(now.allocations, before.allocations + 2);
        assert_true(now.reserved >= before.reserved + 3001000);
    }
    tn_memory_stats after = tn_memory();
    assert_int_equal(after.allocated, before.allocated);
    assert_int_equal(after.peak, before.allocated + 3001000);
    tn_memory_reset_peak();
    assert_int_equal(tn_memory().peak, before.allocated);
    tn_memory_trim();
    assert_int_equal(tn_memory().reserved, before.reserved);
}

TEST_WITH(test_reuse, reset_memory, NULL) {
    if (TN__ASAN) { skip(); }
    static const int64_t sizes[] = {1, 64, 65, 512, 513, 65536, 65537, 1 << 20, 100000000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        TN_SCOPE;
        tn_tensor *a = make_bytes(sizes[i]);
        const void *address = tn_data(a);
        tn_drop(a);
        tn_memory_stats before = tn_memory();
        tn_tensor *b = make_bytes(sizes[i]);
        assert_ptr_equal(tn_data(b), address);
        assert_int_equal(tn_memory().from_cache, before.from_cache + 1);
        assert_int_equal(tn_memory().reserved, before.reserved);
    }
}

/* Every size: aligned, its own memory (a pattern survives), and little waste. */
TEST_WITH(test_sizes, reset_memory, NULL) {
    for (int64_t n = 1; n < 40000000; n += n / 3 + 1) {
        TN_SCOPE;
        tn_memory_trim();
        int64_t reserved = tn_memory().reserved;
        tn_tensor *a = make_bytes(n), *b = make_bytes(n);
        memset(tn_data_mut(a), 0x11, (size_t)n);
        memset(tn_data_mut(b), 0x22, (size_t)n);
        assert_int_equal((uintptr_t)tn_data(a) % 64, 0);
        assert_int_equal((uintptr_t)tn_data(b) % 64, 0);
        const uint8_t *at = tn_data(a);
        assert_true(at[0] == 0x11 && at[n - 1] == 0x11);
        int64_t taken = tn_memory().reserved - reserved;
        assert_true(taken >= (TN__ASAN ? 2 * n : 0));
        if (n <= 65536) { assert_true(taken <= 2 * (n + n / 8 + 64)); }
    }
}

/* Live blocks of random sizes against a model: no two overlap, and all memory comes back. */
TEST_WITH(test_random_blocks, reset_memory, NULL) {
    enum { LIVE = 60 };
    tn_tensor *live[LIVE] = {0};
    uint32_t seed = 1;
    int64_t before = tn_memory().reserved;
    for (int i = 0; i < 4000; i++) {
        seed = seed * 1664525u + 1013904223u;
        int at = (int)(seed >> 8) % LIVE;
        if (live[at]) {
            int64_t n = tn_count(live[at]);
            const uint8_t *data = tn_data(live[at]);
            uint8_t mark = (uint8_t)(at + 1);
            assert_true(data[0] == mark && data[n / 2] == mark && data[n - 1] == mark);
            tn_release(live[at]);
            live[at] = NULL;
            continue;
        }
        seed = seed * 1664525u + 1013904223u;
        int64_t n = 1 + (int64_t)((seed >> 4) % (1u << (6 + (seed >> 28))));
        TN_SCOPE;
        live[at] = tn_keep(make_bytes(n));
        memset(tn_data_mut(live[at]), at + 1, (size_t)n);
    }
    for (int i = 0; i < LIVE; i++) {
        tn_release(live[i]);
    }
    tn_memory_trim();
    assert_int_equal(tn_memory().reserved, before);
}

/* A free large block is split for smaller ones and joined again: the total does not grow with every
 * new shape. */
TEST_WITH(test_large_blocks_are_shared, reset_memory, NULL) {
    if (TN__ASAN) { skip(); }
    int64_t base = tn_memory().reserved;
    for (int i = 0; i < 20; i++) {
        TN_SCOPE;
        for (int k = 0; k < 8; k++) {
            make_bytes((4 << 20) + i * 300000 + k * 70000);
        }
    }
    /* the last round needs 8 x 10.2 MB = 82 MB */
    assert_in_range(tn_memory().reserved - base, 1, 82000000 * 5 / 4);
    tn_memory_trim();
    assert_int_equal(tn_memory().reserved, base);
}

TEST_WITH(test_limit, reset_memory, NULL) {
    int64_t before = tn_live_tensors();
    {
        TN_SCOPE;
        tn_memory_set_limit(tn_memory().allocated + 1000);
        assert_false(tn_is_inert(make_bytes(600)));
        tn_tensor *t = make_bytes(401);
        assert_inert(t, TN_ENOMEM, "empty: no memory for 401 bytes");
        assert_false(tn_is_inert(make_bytes(400)));
        tn_memory_set_limit(0);
        assert_false(tn_is_inert(make_bytes(5000)));
    }
    assert_int_equal(tn_live_tensors(), before);
}

TEST_WITH(test_more_than_there_is, reset_memory, NULL) {
    if (TN__ASAN) { skip(); /* ASan ends the process instead */ }
    TN_SCOPE;
    tn_memory_stats before = tn_memory();
    assert_true(tn_is_inert(tn_empty(TN_DIMS(1ll << 45), TN_F64)));
    assert_int_equal(tn_error(), TN_ENOMEM);
    tn_error_clear();
    assert_true(tn_is_inert(tn_empty(TN_DIMS(1ll << 40, 1ll << 40), TN_F32)));
    assert_int_equal(tn_error(), TN_ENOMEM);
    assert_int_equal(tn_memory().allocated, before.allocated);
    assert_int_equal(tn_memory().allocations, before.allocations);
}

TEST_WITH(test_fail_at, reset_memory, NULL) {
    TN_SCOPE;
    make_bytes(1);
    int64_t count = tn__alloc_count();
    make_bytes(1);
    int64_t needed = tn__alloc_count() - count; /* the tensor, the storage, the byte */
    assert_int_equal(needed, 3);
    int64_t live = tn_live_tensors(), allocated = tn_memory().allocated;
    for (int n = 0; n <= needed; n++) {
        tn__alloc_fail_at(n);
        tn_tensor *t = make_bytes(100);
        assert_int_equal(tn__alloc_fail_armed(), n == needed);
        assert_int_equal(tn_error(), n < needed ? TN_ENOMEM : TN_OK);
        assert_int_equal(tn_is_inert(t), n < needed);
        tn__alloc_fail_at(-1);
        tn_error_clear();
        tn_drop(t);
        assert_int_equal(tn_live_tensors(), live);
        assert_int_equal(tn_memory().allocated, allocated);
    }
}

static void *churn_tensors(void *from) {
    uint32_t seed = (uint32_t)(uintptr_t)from;
    for (int round = 0; round < 200; round++) {
        TN_SCOPE;
        for (int i = 0; i < 20; i++) {
            seed = seed * 1664525u + 1013904223u;
            tn_tensor *t = make_bytes(1 + (seed >> 12) % 200000);
            memset(tn_data_mut(t), 1, (size_t)tn_count(t));
        }
    }
    return NULL;
}

TEST_WITH(test_threads, reset_memory, NULL) {
    tn_memory_stats before = tn_memory();
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, churn_tensors, (void *)i), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    tn_memory_stats after = tn_memory();
    assert_int_equal(after.allocated, before.allocated);
    assert_int_equal(after.allocations, before.allocations + 4 * 200 * 20);
    tn_memory_trim(); /* the process got what the threads had cached when they ended */
    assert_int_equal(tn_memory().reserved, before.reserved);
}

/* Made in one thread, freed in another: nothing is lost, and the statistics hold. */
static void *release_all(void *tensors) {
    for (tn_tensor **t = tensors; *t; t++) {
        tn_release(*t);
    }
    return NULL;
}

TEST_WITH(test_freed_elsewhere, reset_memory, NULL) {
    tn_memory_stats before = tn_memory();
    tn_tensor *made[101] = {0};
    {
        TN_SCOPE;
        for (int i = 0; i < 100; i++) {
            made[i] = tn_keep(make_bytes(1 + i * 1000));
        }
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, release_all, made), 0);
    pthread_join(thread, NULL);
    assert_int_equal(tn_memory().allocated, before.allocated);
    tn_memory_trim();
    assert_int_equal(tn_memory().reserved, before.reserved);
}

#ifdef TN_DEBUG_TENSORS
TEST_WITH(test_new_memory_is_nan, reset_memory, NULL) {
    for (int i = 0; i < 2; i++) {
        TN_SCOPE;
        tn_tensor *t = tn_empty(TN_DIMS(100), TN_F32);
        const float *x = tn_data(t);
        for (int k = 0; k < 100; k++) {
            assert_true(x[k] != x[k]);
        }
        memset(tn_data_mut(t), 0, 400);
    }
}
#endif
