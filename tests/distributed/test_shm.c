/* The engine "shm" on real processes: its memory, its messages, more ranks than cores. The results
 * of its collectives are checked in test_collectives.c. */
#include <sys/resource.h>

#include "core/allocator.h"
#include "tests/distributed/shm_ranks.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

static float *ask_region(tn_engine *e, size_t count) {
    float *x = e->alloc(e, count * sizeof(float), tn__now() + PATIENCE);
    rank_assert(x != NULL);
    rank_assert((uintptr_t)x % 64 == 0);
    return x;
}

/* Fills x with rank + i, and sums it over the ranks. */
static void add_region(tn_engine *e, float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(rank + i);
    }
    tn_transfer t = all_reduce(x, n);
    t.out = out;
    rank_assert(run_transfer(e, t) == TN_OK);
    for (int64_t i = 0; i < n; i++) {
        rank_assert(out[i] == (float)(ranks * i + ranks * (ranks - 1) / 2));
    }
}

PLAIN_RANK(body_regions) {
    enum { N = 3000 };
    static float private[N];
    tn_engine *e = join_engine(argument);
    int before = count_mappings();
    float *a = ask_region(e, N), *b = ask_region(e, N), *none = ask_region(e, 0);
    rank_assert(a != b && count_mappings() == before + 3);
    add_region(e, a, a, N);
    add_region(e, a, b, N);
    add_region(e, b + 17, b + 17, N - 17);
    /* Some ranks' data in a region, others' not; in different regions; input and output in
     * different places. */
    add_region(e, rank == 1 ? private : a, rank == 1 ? private : a, N);
    add_region(e, rank == 1 ? b : a, rank == 0 ? b : a, N);
    add_region(e, a, rank == 0 ? private : b, N);
    /* Freed by one rank before the other: the memory stays until both have. */
    if (rank == 0) {
        e->free(e, a);
        e->free(e, none);
    }
    add_region(e, b, b, N);
    add_region(e, rank == 0 ? b : a, rank == 0 ? b : a, N);
    if (rank != 0) {
        e->free(e, none);
        e->free(e, a);
    }
    rank_assert(run_transfer(e, BARRIER) == TN_OK);
    float *c = ask_region(e, 2 * N);
    rank_assert(count_mappings() == before + 2);
    add_region(e, c + N, c, N);
    for (int i = 0; i < 50; i++) { /* no leak */
        float *d = ask_region(e, N);
        add_region(e, d, d, N);
        e->free(e, d);
    }
    e->free(e, NULL);
    e->free(e, private);
    e->free(e, c);
    e->free(e, b);
    e->destroy(e);
    rank_assert(count_mappings() == 0);
    return 0;
}

static char logged[512];

static void keep_log(tn_log_level level, const char *text, void *user) {
    snprintf(logged, sizeof(logged), "%s", text);
}

/* More memory than there is: all ranks get NULL, the log has the reason, and the group still
 * works. */
PLAIN_RANK(body_too_much) {
    tn_engine *e = join_engine(argument);
    int before = count_mappings();
    tn_log_to(keep_log, TN_LOG_WARN, NULL);
    const size_t sizes[] = {(size_t)1 << 50, SIZE_MAX, SIZE_MAX / 2 + 1};
    for (int i = 0; i < 3; i++) {
        rank_assert(e->alloc(e, sizes[i], tn__now() + PATIENCE) == NULL);
        rank_assert(tn_error() == TN_OK);
        rank_assert(strstr(logged, "rank 0: Cannot allocate memory"));
    }
    /* The system refuses one rank. */
    const struct rlimit few = {3, 4096}, enough = {1024, 4096};
    rank_assert(setrlimit(RLIMIT_NOFILE, rank == 1 ? &few : &enough) == 0);
    rank_assert(e->alloc(e, 1 << 20, tn__now() + PATIENCE) == NULL && tn_error() == TN_OK);
    rank_assert(strstr(logged, "rank 1: Too many open files"));
    rank_assert(setrlimit(RLIMIT_NOFILE, &enough) == 0);
    rank_assert(count_mappings() == before);
    float *x = ask_region(e, 100);
    add_region(e, x, x, 100);
    e->destroy(e);
    return 0;
}

/* If one rank's own allocation fails, the call fails on all. */
PLAIN_RANK(body_no_memory) {
    tn_engine *e = join_engine(argument);
    add_up(e);
    if (rank == 1) { tn__alloc_fail_at(0); }
    rank_assert(e->alloc(e, 100, tn__now() + PATIENCE) == NULL);
    tn__alloc_fail_at(-1);
    expect_error(run_transfer(e, BARRIER), TN_ENOMEM, "rank 1 is out of memory");
    e->destroy(e);
    return 0;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void fill_numbers(float *x, int64_t n, float first) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = first + (float)(i % 1000);
    }
}

static bool has_numbers(const float *x, int64_t n, float first) {
    for (int64_t i = 0; i < n; i++) {
        if (x[i] != first + (float)(i % 1000)) { return false; }
    }
    return true;
}

/* All send to all before any rank receives: far more than the lanes hold. */
PLAIN_RANK(body_messages) {
    enum { N = 700001 };
    const int64_t sizes[] = {0, 1, 16383, 16384, N, 0, 5};
    static float x[N];
    tn_engine *e = join_engine(argument);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        for (int to = 0; to < ranks; to++) {
            fill_numbers(x, sizes[s], (float)(1000 * rank + (int)s));
            rank_assert(to == rank ||
                        run_transfer(e, message_with(TN_SEND, x, sizes[s], to)) == TN_OK);
        }
    }
    add_up(e); /* with messages under way */
    for (int from = ranks - 1; from >= 0; from--) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes) && from != rank; s++) {
            memset(x, 0, sizeof(x));
            rank_assert(run_transfer(e, message_with(TN_RECV, x, sizes[s], from)) == TN_OK);
            rank_assert(has_numbers(x, sizes[s], (float)(1000 * from + (int)s)));
        }
    }
    add_up(e);
    /* Around a ring, one way. */
    for (int i = 0; i < 20; i++) {
        fill_numbers(x, N, (float)rank);
        int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
        tn_status first = rank == 0 ? run_transfer(e, message_with(TN_SEND, x, N, next))
                                    : run_transfer(e, message_with(TN_RECV, x, N, last));
        rank_assert(first == TN_OK && (rank == 0 || has_numbers(x, N, 0)));
        tn_status second = rank == 0 ? run_transfer(e, message_with(TN_RECV, x, N, last))
                                     : run_transfer(e, message_with(TN_SEND, x, N, next));
        rank_assert(second == TN_OK && has_numbers(x, N, 0));
    }
    e->destroy(e);
    return 0;
}

/* ---- More ranks than cores ------------------------------------------------------------------- */

PLAIN_RANK(body_crowd) {
    enum { N = 300000 };
    static float x[N];
    tn_engine *e = join_engine(argument);
    float *shared = ask_region(e, N);
    for (int i = 0; i < 100; i++) {
        add_up(e);
    }
    for (int i = 0; i < 10; i++) {
        add_region(e, x, x, N);
        add_region(e, shared, shared, N);
    }
    e->destroy(e);
    return 0;
}

/* ---- The tests ------------------------------------------------------------------------------- */

PLAIN_TEST(test_regions) {
    ranks_pass(2, "body_regions", ranks_place());
    ranks_pass(3, "body_regions", ranks_place());
}

PLAIN_TEST(test_no_memory) {
    ranks_pass(3, "body_too_much", ranks_place());
    ranks_pass(3, "body_no_memory", ranks_place());
}

PLAIN_TEST(test_messages) {
    ranks_pass(2, "body_messages", ranks_place());
    ranks_pass(3, "body_messages", ranks_place());
}

PLAIN_TEST(test_more_ranks_than_cores) {
    ranks_pass(8, "body_crowd", ranks_place());
}
