/* The device allocator over host memory: random calls against a model, splitting and joining, an
 * exhausted source, statistics, guards, wrong frees, threads. */
#include "backends/cuda/allocator.c"

#include <pthread.h>
#include <stdlib.h>

#include "tests/support/test.h"

/* ---- A source over host memory --------------------------------------------------------------- */

typedef struct host {
    int64_t bytes, most; /* given out now; how much there is (0: unlimited) */
    int segments, asked; /* given out now; calls */
} host;

static void *host_alloc(void *user, size_t bytes) {
    host *h = user;
    h->asked++;
    if (h->most && h->bytes + (int64_t)bytes > h->most) { return NULL; }
    size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    void *memory = aligned_alloc(ALIGN, whole); /* not touched: huge sizes cost nothing */
    if (memory) {
        h->bytes += (int64_t)bytes;
        h->segments++;
    }
    return memory;
}

static void host_free(void *user, void *memory, size_t bytes) {
    host *h = user;
    h->bytes -= (int64_t)bytes;
    h->segments--;
    free(memory);
}

static bool host_read(void *user, void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return true;
}

static bool host_fill(void *user, void *to, int byte, size_t bytes) {
    memset(to, byte, bytes);
    return true;
}

static tn__cuda_pool *pool_over(host *h, tn__cuda_pool_kind kind) {
    tn__cuda_source source = {h, host_alloc, host_free, host_read, host_fill};
    tn__cuda_pool *pool = tn__cuda_pool_new(&source, kind);
    assert_non_null(pool);
    return pool;
}

static void give_well(tn__cuda_pool *pool, void *memory, size_t bytes) {
    char why[256] = "";
    if (!tn__cuda_pool_give(pool, memory, bytes, why, sizeof(why))) { fail_msg("%s", why); }
}

/* Everything was given back: one free block per segment, and nothing is left after a trim. */
static void expect_returned(tn__cuda_pool *pool, host *h) {
    tn__cuda_pool_shape shape = tn__cuda_pool_inspect(pool);
    assert_int_equal(shape.used_blocks, 0);
    assert_int_equal(shape.free_blocks, shape.segments);
    assert_int_equal(shape.segments, h->segments);
    assert_int_equal(shape.free_bytes, h->bytes);
    tn_memory_stats stats = tn__cuda_pool_stats(pool);
    assert_int_equal(stats.allocated, 0);
    assert_int_equal(stats.reserved, h->bytes);
    tn__cuda_pool_trim(pool);
    assert_int_equal(h->bytes, 0);
    assert_int_equal(h->segments, 0);
    assert_int_equal(tn__cuda_pool_stats(pool).reserved, 0);
    tn__cuda_pool_free(pool);
}

/* ---- What must hold inside ------------------------------------------------------------------- */

/* The nodes of a tree, in order, each heavier than those below it. Returns how many. */
static int check_tree(const tree *t, const block *b, const block **last, bool used) {
    if (!b) { return 0; }
    int n = check_tree(t, b->left, last, used);
    assert_true(!*last || tree_precedes(t, *last, b));
    assert_int_equal(b->used, used);
    assert_true(!b->left || b->left->priority <= b->priority);
    assert_true(!b->right || b->right->priority <= b->priority);
    *last = b;
    return n + 1 + check_tree(t, b->right, last, used);
}

static void check_inside(tn__cuda_pool *pool) {
    int used = 0, unused = 0;
    for (segment *s = pool->segments; s; s = s->next) {
        size_t bytes = 0;
        for (block *b = s->first; b; b = b->after) {
            assert_ptr_equal(b->address, s->first->address + bytes);
            assert_ptr_equal(b->home, s);
            assert_true(!b->after || b->after->before == b);
            assert_false(b->after && !b->used && !b->after->used); /* should have been joined */
            bytes += b->bytes;
            used += b->used;
            unused += !b->used;
        }
        assert_int_equal(bytes, s->bytes);
    }
    const block *last[3] = {NULL};
    assert_int_equal(check_tree(&pool->used, pool->used.root, &last[0], true), used);
    assert_int_equal(check_tree(&pool->free[0], pool->free[0].root, &last[1], false) +
                         check_tree(&pool->free[1], pool->free[1].root, &last[2], false),
                     unused);
}

/* The block that best fit must take, found the slow way: the smallest one that is large enough,
 * then the lowest address. */
static const char *best_slowly(const tn__cuda_pool *pool, size_t bytes) {
    size_t wanted = round_up(bytes, ALIGN);
    const block *best = NULL;
    for (const segment *s = pool->segments; s; s = s->next) {
        for (const block *b = s->first; b && s->large == (wanted > SMALL); b = b->after) {
            bool fits = !b->used && b->bytes >= wanted;
            bool better = !best || b->bytes < best->bytes ||
                          (b->bytes == best->bytes && b->address < best->address);
            best = fits && better ? b : best;
        }
    }
    return best ? best->address : NULL;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

enum { LIVE = 200 };

typedef struct model {
    char *memory[LIVE];
    size_t bytes[LIVE];
    int n;
} model;

static uint64_t draw_below(uint64_t *state, uint64_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

/* Small, medium and large sizes, odd ones among them. */
static size_t draw_bytes(uint64_t *state) {
    static const size_t most[] = {1000, 64 * KIB, SMALL + 3 * KIB, 4 * MIB, 30 * MIB};
    return 1 + draw_below(state, most[draw_below(state, 5)]);
}

static void check_apart(const model *m, const char *memory, size_t bytes) {
    for (int i = 0; i < m->n; i++) {
        assert_true(memory + bytes <= m->memory[i] || m->memory[i] + m->bytes[i] <= memory);
    }
}

static void run_storm(uint64_t seed, tn__cuda_pool_kind kind) {
    host h = {.most = 512 * (int64_t)MIB};
    tn__cuda_pool *pool = pool_over(&h, kind);
    model m = {.n = 0};
    int64_t allocated = 0, peak = 0;
    for (int step = 0; step < 3000; step++) {
        bool grow = draw_below(&seed, 100) < (step / 500 % 2 ? 35 : 65);
        if (grow && m.n < LIVE) {
            size_t bytes = draw_bytes(&seed);
            const char *expected = kind == TN__CUDA_CACHING ? best_slowly(pool, bytes) : NULL;
            char *memory = tn__cuda_pool_take(pool, bytes, step % 2 ? "odd" : "even");
            if (memory) {
                assert_int_equal((uintptr_t)memory % ALIGN, 0);
                assert_true(!expected || memory == expected);
                check_apart(&m, memory, bytes);
                m.memory[m.n] = memory;
                m.bytes[m.n++] = bytes;
                allocated += (int64_t)bytes;
                peak = allocated > peak ? allocated : peak;
            }
        } else if (m.n > 0) {
            int i = (int)draw_below(&seed, (uint64_t)m.n);
            give_well(pool, m.memory[i], m.bytes[i]);
            allocated -= (int64_t)m.bytes[i];
            m.memory[i] = m.memory[--m.n];
            m.bytes[i] = m.bytes[m.n];
        }
        if (step % 700 == 699) { tn__cuda_pool_trim(pool); }
        if (step % 10 == 0) { check_inside(pool); }
        tn_memory_stats stats = tn__cuda_pool_stats(pool);
        assert_int_equal(stats.allocated, allocated);
        assert_int_equal(stats.peak, peak);
        assert_int_equal(stats.reserved, h.bytes);
    }
    while (m.n > 0) {
        m.n--;
        give_well(pool, m.memory[m.n], m.bytes[m.n]);
    }
    check_inside(pool);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_random_life) {
    for (uint64_t seed = 1; seed <= 8; seed++) {
        run_storm(seed, TN__CUDA_CACHING);
    }
}

PLAIN_TEST(test_segments_by_size) {
    static const size_t sizes[][2] = {
        {1, 2 * MIB},           {MIB, 2 * MIB},
        {MIB + 1, 20 * MIB},    {10 * MIB - 512, 20 * MIB},
        {10 * MIB, 10 * MIB},   {10 * MIB + 1, 12 * MIB},
        {100 * MIB, 100 * MIB},
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        host h = {0};
        tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
        void *memory = tn__cuda_pool_take(pool, sizes[i][0], "tensors");
        assert_non_null(memory);
        assert_int_equal(h.bytes, sizes[i][1]);
        give_well(pool, memory, sizes[i][0]);
        expect_returned(pool, &h);
    }
}

PLAIN_TEST(test_split_and_join) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    char *a = tn__cuda_pool_take(pool, 512, "tensors");
    char *b = tn__cuda_pool_take(pool, 1, "tensors");
    char *c = tn__cuda_pool_take(pool, 1000, "tensors");
    char *d = tn__cuda_pool_take(pool, 512, "tensors");
    assert_ptr_equal(b, a + 512);
    assert_ptr_equal(c, b + 512);
    assert_ptr_equal(d, c + 1024);
    assert_int_equal(h.segments, 1);

    give_well(pool, a, 512); /* 512 free, b, c, d, the rest free */
    give_well(pool, c, 1000);
    tn__cuda_pool_shape shape = tn__cuda_pool_inspect(pool);
    assert_int_equal(shape.used_blocks, 2);
    assert_int_equal(shape.free_blocks, 3);
    assert_int_equal(shape.free_bytes, 2 * MIB - 1024);
    assert_int_equal(shape.largest_free, 2 * MIB - 5 * 512);
    assert_true(shape.fragmentation > 0 && shape.fragmentation < 0.001);
    assert_ptr_equal(tn__cuda_pool_take(pool, 600, "tensors"), c); /* not a, not the rest */
    give_well(pool, c, 600);
    assert_ptr_equal(tn__cuda_pool_take(pool, 10, "tensors"), a);
    give_well(pool, a, 10);

    give_well(pool, b, 1); /* joins a and c */
    shape = tn__cuda_pool_inspect(pool);
    assert_int_equal(shape.free_blocks, 2);
    assert_ptr_equal(tn__cuda_pool_take(pool, 2048, "tensors"), a);
    give_well(pool, a, 2048);
    give_well(pool, d, 512);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_smallest_rest) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    char *a = tn__cuda_pool_take(pool, 1024, "tensors");
    char *b = tn__cuda_pool_take(pool, 512, "tensors");
    give_well(pool, a, 1024);
    assert_ptr_equal(tn__cuda_pool_take(pool, 512, "tensors"), a);
    /* the rest of a's block */
    assert_ptr_equal(tn__cuda_pool_take(pool, 512, "tensors"), a + 512);
    give_well(pool, a, 512);
    give_well(pool, a + 512, 512);
    give_well(pool, b, 512);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_large_rests_stay) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    char *a = tn__cuda_pool_take(pool, 19 * MIB, "tensors"); /* 20 MiB: the rest is not split off */
    assert_int_equal(h.bytes, 20 * MIB);
    assert_int_equal(tn__cuda_pool_inspect(pool).free_blocks, 0);
    char *b = tn__cuda_pool_take(pool, 5 * MIB, "tensors");
    assert_int_equal(h.bytes, 40 * MIB);
    assert_int_equal(tn__cuda_pool_inspect(pool).largest_free, 15 * MIB);
    char *c = tn__cuda_pool_take(pool, 100, "tensors"); /* small: not from the large segment */
    assert_int_equal(h.bytes, 42 * MIB);
    give_well(pool, a, 19 * MIB);
    give_well(pool, b, 5 * MIB);
    give_well(pool, c, 100);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_cache_serves_again) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    for (int i = 0; i < 10; i++) {
        void *memory = tn__cuda_pool_take(pool, 3 * MIB, "tensors");
        give_well(pool, memory, 3 * MIB);
    }
    assert_int_equal(h.asked, 1);
    tn_memory_stats stats = tn__cuda_pool_stats(pool);
    assert_int_equal(stats.allocations, 10);
    assert_int_equal(stats.from_cache, 9);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_exhausted_and_back) {
    host h = {.most = 64 * (int64_t)MIB};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    char *a = tn__cuda_pool_take(pool, 30 * MIB, "tensors");
    char *b = tn__cuda_pool_take(pool, 20 * MIB, "tensors");
    assert_non_null(b);
    tn_memory_stats before = tn__cuda_pool_stats(pool);
    assert_null(tn__cuda_pool_take(pool, 15 * MIB, "tensors"));
    tn_memory_stats after = tn__cuda_pool_stats(pool);
    assert_memory_equal(&before, &after, sizeof(before));
    check_inside(pool);

    /* 14 MiB are left: a segment of 20 is too much, one of the block's own size is not. */
    char *c = tn__cuda_pool_take(pool, 2 * MIB, "tensors");
    assert_non_null(c);
    assert_int_equal(h.bytes, 52 * MIB);

    /* What is cached is given back first. */
    give_well(pool, a, 30 * MIB);
    assert_int_equal(h.bytes, 52 * MIB);
    char *d = tn__cuda_pool_take(pool, 40 * MIB, "tensors");
    assert_non_null(d);
    assert_int_equal(h.bytes, 62 * MIB);

    /* No segment for a small block: the free part of a large one will do. */
    char *e = tn__cuda_pool_take(pool, 512, "tensors"), *f = NULL;
    assert_int_equal(h.bytes, 64 * MIB);
    give_well(pool, b, 20 * MIB);
    char *g = tn__cuda_pool_take(pool, 10 * MIB, "tensors");
    assert_int_equal(h.bytes, 64 * MIB);
    char *whole = tn__cuda_pool_take(pool, MIB, "tensors"), *half = NULL;
    assert_non_null(half = tn__cuda_pool_take(pool, MIB - 512, "tensors"));
    assert_non_null(f = tn__cuda_pool_take(pool, 1000, "tensors"));
    assert_int_equal(h.bytes, 64 * MIB);
    check_inside(pool);

    give_well(pool, c, 2 * MIB);
    give_well(pool, d, 40 * MIB);
    give_well(pool, e, 512);
    give_well(pool, f, 1000);
    give_well(pool, g, 10 * MIB);
    give_well(pool, whole, MIB);
    give_well(pool, half, MIB - 512);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_trim_keeps_what_is_used) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    char *a = tn__cuda_pool_take(pool, 100, "tensors");
    char *b = tn__cuda_pool_take(pool, 50 * MIB, "tensors");
    char *c = tn__cuda_pool_take(pool, 2 * MIB, "tensors");
    memset(a, 1, 100);
    give_well(pool, b, 50 * MIB);
    assert_int_equal(h.bytes, 72 * MIB);
    tn__cuda_pool_trim(pool);
    assert_int_equal(h.bytes, 22 * MIB);
    assert_int_equal(a[99], 1);
    give_well(pool, c, 2 * MIB);
    tn__cuda_pool_trim(pool);
    assert_int_equal(h.bytes, 2 * MIB);
    give_well(pool, a, 100);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_statistics_by_tag) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    int64_t now, peak;
    char scratch[] = "scratch"; /* tags are told apart by their text */
    char *a = tn__cuda_pool_take(pool, 700, "tensors");
    char *b = tn__cuda_pool_take(pool, 3 * MIB, "scratch");
    char *c = tn__cuda_pool_take(pool, 300, scratch);
    tn__cuda_pool_tag(pool, "scratch", &now, &peak);
    assert_int_equal(now, 3 * MIB + 300);
    give_well(pool, b, 3 * MIB);
    tn__cuda_pool_tag(pool, "scratch", &now, &peak);
    assert_int_equal(now, 300);
    assert_int_equal(peak, 3 * MIB + 300);
    tn__cuda_pool_tag(pool, "tensors", &now, &peak);
    assert_int_equal(now, 700);
    tn__cuda_pool_tag(pool, "nobody", &now, &peak);
    assert_int_equal(now, 0);

    char text[600], part[20];
    int length = tn__cuda_pool_text(pool, text, sizeof(text));
    assert_int_equal(length, strlen(text));
    assert_string_equal(text,
                        "1000 bytes in use, peak 3.0 MiB; 22.0 MiB reserved; 22.0 MiB of it "
                        "free in 2 blocks, the largest 20.0 MiB; tensors 700 bytes, scratch 300 "
                        "bytes");
    assert_int_equal(tn__cuda_pool_text(pool, part, sizeof(part)), length);
    assert_memory_equal(part, text, sizeof(part) - 1);
    assert_int_equal(part[sizeof(part) - 1], 0);
    assert_int_equal(tn__cuda_pool_text(pool, NULL, 0), length);

    tn__cuda_pool_reset_peak(pool);
    tn__cuda_pool_tag(pool, "scratch", &now, &peak);
    assert_int_equal(peak, 300);
    assert_int_equal(tn__cuda_pool_stats(pool).peak, 1000);
    give_well(pool, a, 700);
    give_well(pool, c, 300);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_more_tags_than_places) {
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    void *memory[10];
    for (int i = 0; i < 10; i++) {
        memory[i] = tn__cuda_pool_take(pool, 100, names[i]);
    }
    int64_t now, peak;
    tn__cuda_pool_tag(pool, "g", &now, &peak);
    assert_int_equal(now, 100);
    tn__cuda_pool_tag(pool, "other", &now, &peak);
    assert_int_equal(now, 300);
    for (int i = 0; i < 10; i++) {
        give_well(pool, memory[i], 100);
    }
    expect_returned(pool, &h);
}

PLAIN_TEST(test_nothing_and_too_much) {
    host h = {.most = 100 * (int64_t)MIB};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    static const size_t huge[] = {SIZE_MAX,          SIZE_MAX - 511,        SIZE_MAX / 2,
                                  (size_t)INT64_MAX, (size_t)INT64_MAX / 2, (size_t)1 << 60,
                                  101 * MIB};
    assert_null(tn__cuda_pool_take(pool, 0, "tensors"));
    for (size_t i = 0; i < sizeof(huge) / sizeof(*huge); i++) {
        assert_null(tn__cuda_pool_take(pool, huge[i], "tensors"));
    }
    give_well(pool, NULL, 0);
    assert_int_equal(tn__cuda_pool_stats(pool).allocations, 0);
    expect_returned(pool, &h);
    tn__cuda_pool_free(NULL);
}

PLAIN_TEST(test_wrong_frees) {
    host h = {0};
    char why[256];
    for (int kind = TN__CUDA_CACHING; kind <= TN__CUDA_GUARDED; kind++) {
        tn__cuda_pool *pool = pool_over(&h, kind);
        char *a = tn__cuda_pool_take(pool, 5000, "tensors");
        char *b = tn__cuda_pool_take(pool, 5000, "tensors");
        give_well(pool, a, 5000);
        assert_false(tn__cuda_pool_give(pool, a, 5000, why, sizeof(why)));
        assert_non_null(strstr(why, "freed before"));
        assert_false(tn__cuda_pool_give(pool, b + 512, 100, why, sizeof(why)));
        assert_non_null(strstr(why, "inside a block"));
        assert_false(tn__cuda_pool_give(pool, why, 100, why, sizeof(why)));
        assert_non_null(strstr(why, "is not from this device's memory"));
        assert_int_equal(tn__cuda_pool_stats(pool).allocated, 5000);
        check_inside(pool);
        assert_false(tn__cuda_pool_give(pool, b, 4999, why, sizeof(why)));
        assert_non_null(strstr(why, "free of 4999 bytes"));
        assert_non_null(strstr(why, "where 5000 bytes were allocated (tensors)"));
        expect_returned(pool, &h);
    }
}

PLAIN_TEST(test_guards) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_GUARDED);
    char why[256], expected[64];
    static const size_t sizes[] = {1, 511, 512, 513, 5000, MIB - 1, 3 * MIB + 7};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        int64_t bytes = (int64_t)sizes[i];
        const int64_t end_of_guard = (int64_t)round_up(sizes[i], ALIGN) + 511;
        const int64_t places[] = {-1, -512, bytes, bytes + 511, end_of_guard};
        for (int k = 0; k < 6; k++) {
            char *memory = tn__cuda_pool_take(pool, sizes[i], "scratch");
            assert_int_equal((uintptr_t)memory % ALIGN, 0);
            assert_int_equal((unsigned char)memory[0], NEW_BYTE);
            assert_int_equal((unsigned char)memory[bytes - 1], NEW_BYTE);
            memset(memory, 0, sizes[i]); /* writing all of it is fine */
            if (k == 5) {
                give_well(pool, memory, sizes[i]);
                assert_int_equal((unsigned char)memory[0], FREED_BYTE);
                assert_int_equal((unsigned char)memory[bytes - 1], FREED_BYTE);
                continue;
            }
            memory[places[k]] ^= 1;
            assert_false(tn__cuda_pool_give(pool, memory, sizes[i], why, sizeof(why)));
            snprintf(expected, sizeof(expected), "byte %lld of a block of %zu bytes",
                     (long long)places[k], sizes[i]);
            assert_non_null(strstr(why, expected));
            assert_non_null(strstr(why, "(scratch)"));
        }
    }
    expect_returned(pool, &h);
    run_storm(1, TN__CUDA_GUARDED);
}

PLAIN_TEST(test_direct) {
    host h = {.most = 5000};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_DIRECT);
    char *a = tn__cuda_pool_take(pool, 1001, "tensors");
    char *b = tn__cuda_pool_take(pool, 3, "tensors");
    assert_int_equal(h.bytes, 1004); /* no padding that would hide an overrun */
    assert_null(tn__cuda_pool_take(pool, 4000, "tensors"));
    give_well(pool, a, 1001);
    assert_int_equal(h.bytes, 3);
    char *c = tn__cuda_pool_take(pool, 4000, "tensors");
    assert_non_null(c);
    check_inside(pool);
    give_well(pool, c, 4000);
    give_well(pool, b, 3);
    assert_int_equal(tn__cuda_pool_stats(pool).from_cache, 0);
    assert_int_equal(h.asked, 6); /* the failed call asked three times */
    expect_returned(pool, &h);
    run_storm(9, TN__CUDA_DIRECT);
}

/* ---- Threads --------------------------------------------------------------------------------- */

static pthread_barrier_t all_there;

static void *live_beside(void *argument) {
    tn__cuda_pool *pool = argument;
    uint64_t seed = (uintptr_t)&pool;
    pthread_barrier_wait(&all_there);
    model m = {.n = 0};
    char why[256];
    intptr_t wrong = 0;
    for (int step = 0; step < 20000; step++) {
        if (m.n < 20 && draw_below(&seed, 2)) {
            size_t bytes = 8 + draw_below(&seed, 20000);
            char *memory = tn__cuda_pool_take(pool, bytes, "tensors");
            *(char **)(void *)memory = memory; /* its own address */
            m.memory[m.n] = memory;
            m.bytes[m.n++] = bytes;
        } else if (m.n > 0) {
            m.n--;
            wrong += *(char **)(void *)m.memory[m.n] != m.memory[m.n];
            *(char **)(void *)m.memory[m.n] = NULL;
            wrong += !tn__cuda_pool_give(pool, m.memory[m.n], m.bytes[m.n], why, sizeof(why));
        }
    }
    while (m.n > 0) {
        m.n--;
        wrong += !tn__cuda_pool_give(pool, m.memory[m.n], m.bytes[m.n], why, sizeof(why));
    }
    return (void *)wrong;
}

PLAIN_TEST(test_threads) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    pthread_t threads[4];
    pthread_barrier_init(&all_there, NULL, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, live_beside, pool), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    pthread_barrier_destroy(&all_there);
    check_inside(pool);
    expect_returned(pool, &h);
}

PLAIN_TEST(test_free_with_blocks_in_use) {
    host h = {0};
    tn__cuda_pool *pool = pool_over(&h, TN__CUDA_CACHING);
    for (int i = 0; i < 20; i++) {
        assert_non_null(tn__cuda_pool_take(pool, 200000, "tensors"));
    }
    tn__cuda_pool_free(pool);
    assert_int_equal(h.bytes, 0);
}
