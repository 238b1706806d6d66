/* Every collective against a serial computation: on every engine, for every dtype and reduction,
 * odd sizes, empty tensors, 1 to 8 ranks, in the group's memory and elsewhere. And what else groups
 * promise: the same bits in every run, sums in the order of the ranks, an error when ranks
 * disagree. Ranks are threads (local) or processes (the others); a start runs all cases. Elements
 * are small whole numbers, so a sum has one right answer in any order. */
#include "tern/tern.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/gloo.h"
#include "tests/support/test.h"

#include "../support/ranks.h"
#include "elements.h"

/* ---- Expected values ------------------------------------------------------------------------- */

/* Element i of rank r's tensor. Products stay small, and nothing rounds. */
static double element_of(tn_dtype dtype, tn_reduction how, int rank, int64_t i) {
    if (how == TN_PRODUCT) { return (i * 5 + rank * 3) % 4 == 0 ? 2 : 1; }
    return (double)((i * 7 + rank * 3) % 8) - (dtype == TN_U8 ? 0 : 3);
}

static double reduced_element(tn_dtype dtype, tn_reduction how, int ranks, int64_t i) {
    double y = element_of(dtype, how, 0, i);
    for (int r = 1; r < ranks; r++) {
        double x = element_of(dtype, how, r, i);
        bool smaller = x < y;
        y = how == TN_PRODUCT ? y * x
            : how == TN_MIN   ? (smaller ? x : y)
            : how == TN_MAX   ? (smaller ? y : x)
                              : y + x;
    }
    double one;
    put_element(dtype, &one, 0, how == TN_MEAN ? y / ranks : y);
    return get_element(dtype, &one, 0);
}

/* One case; each rank that is a thread has its own. */
typedef struct trial {
    tn_group *g;
    int rank, ranks;
    tn_dtype dtype;
    tn_reduction how;
    int64_t count;
    bool shared; /* made by tn_group_empty */
} trial;

static int failures;

static void note_failure(const trial *c, const char *what, const char *detail) {
    __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "%s, rank %d of %d: %s %s [%lld], reduction %d, %s memory: %s\n",
            tn_group_engine(c->g), c->rank, c->ranks, what, tn_dtype_name(c->dtype),
            (long long)c->count, (int)c->how, c->shared ? "shared" : "private", detail);
}

static void expect_done(const trial *c, const char *what, tn_work *w) {
    if (tn_work_wait(w, 0) != TN_OK) { note_failure(c, what, tn_error_message()); }
}

static void expect_element(const trial *c, const char *what, const tn_tensor *t, int64_t i,
                           double want) {
    double got = get_element(c->dtype, tn_data(t), i);
    if (got != want) {
        char text[128];
        snprintf(text, sizeof(text), "element %lld is %g, not %g", (long long)i, got, want);
        note_failure(c, what, text);
    }
}

/* parts 0: a tensor of count elements; otherwise (parts, count). All elements are -1 (255 in
 * u8). */
static tn_tensor *blank_tensor(const trial *c, int parts) {
    tn_dims dims = parts ? TN_DIMS(parts, c->count) : TN_DIMS(c->count);
    tn_tensor *t = c->shared ? tn_group_empty(c->g, dims, c->dtype) : tn_empty(dims, c->dtype);
    void *data = tn_data_mut(t);
    for (int64_t i = 0, n = tn_count(t); i < n; i++) {
        put_element(c->dtype, data, i, c->dtype == TN_U8 ? 255 : -1);
    }
    return t;
}

/* The same, with this rank's elements. */
static tn_tensor *filled_tensor(const trial *c, int parts) {
    tn_tensor *t = blank_tensor(c, parts);
    void *data = tn_data_mut(t);
    for (int64_t i = 0, n = tn_count(t); i < n; i++) {
        put_element(c->dtype, data, i, element_of(c->dtype, c->how, c->rank, i));
    }
    return t;
}

/* ---- The collectives ------------------------------------------------------------------------- */

static void check_all_reduce(const trial *c) {
    tn_tensor *t = filled_tensor(c, 0);
    expect_done(c, "all_reduce", tn_all_reduce(c->g, t, c->how));
    for (int64_t i = 0; i < c->count; i++) {
        expect_element(c, "all_reduce", t, i, reduced_element(c->dtype, c->how, c->ranks, i));
    }
}

static void check_reduce_scatter(const trial *c) {
    tn_tensor *t = filled_tensor(c, c->ranks), *out = blank_tensor(c, 0);
    expect_done(c, "reduce_scatter", tn_reduce_scatter(c->g, out, t, c->how));
    for (int64_t i = 0; i < c->count; i++) {
        expect_element(c, "reduce_scatter", out, i,
                       reduced_element(c->dtype, c->how, c->ranks, c->rank * c->count + i));
        expect_element(c, "reduce_scatter's input", t, i, element_of(c->dtype, c->how, c->rank, i));
    }
}

static void check_reduce_to(const trial *c, int root) {
    tn_tensor *t = filled_tensor(c, 0);
    expect_done(c, "reduce_to", tn_reduce_to(c->g, t, root, c->how));
    for (int64_t i = 0; i < c->count && c->rank == root; i++) {
        expect_element(c, "reduce_to", t, i, reduced_element(c->dtype, c->how, c->ranks, i));
    }
}

static void check_all_gather(const trial *c) {
    tn_tensor *t = filled_tensor(c, 0), *out = blank_tensor(c, c->ranks);
    expect_done(c, "all_gather", tn_all_gather(c->g, out, t));
    for (int64_t i = 0; i < c->ranks * c->count; i++) {
        expect_element(c, "all_gather", out, i,
                       element_of(c->dtype, c->how, (int)(i / c->count), i % c->count));
    }
}

static void check_broadcast(const trial *c, int root) {
    tn_tensor *t = filled_tensor(c, 0);
    expect_done(c, "broadcast", tn_broadcast(c->g, t, root));
    for (int64_t i = 0; i < c->count; i++) {
        expect_element(c, "broadcast", t, i, element_of(c->dtype, c->how, root, i));
    }
}

static void check_gather(const trial *c, int root) {
    bool is_root = c->rank == root;
    tn_tensor *t = filled_tensor(c, 0);
    tn_tensor *out =
        is_root || c->shared ? blank_tensor(c, c->ranks) : NULL; /* shared: on all ranks */
    expect_done(c, "gather_to", tn_gather_to(c->g, is_root ? out : NULL, t, root));
    for (int64_t i = 0; i < c->ranks * c->count && is_root; i++) {
        expect_element(c, "gather_to", out, i,
                       element_of(c->dtype, c->how, (int)(i / c->count), i % c->count));
    }
}

static void check_scatter(const trial *c, int root) {
    bool is_root = c->rank == root;
    tn_tensor *t = is_root || c->shared ? filled_tensor(c, c->ranks) : NULL,
              *out = blank_tensor(c, 0);
    expect_done(c, "scatter_from", tn_scatter_from(c->g, out, is_root ? t : NULL, root));
    for (int64_t i = 0; i < c->count; i++) {
        expect_element(c, "scatter_from", out, i,
                       element_of(c->dtype, c->how, root, c->rank * c->count + i));
    }
}

static void check_all_to_all(const trial *c, bool in_place) {
    tn_tensor *t = filled_tensor(c, c->ranks), *out = in_place ? t : blank_tensor(c, c->ranks);
    expect_done(c, "all_to_all", tn_all_to_all(c->g, out, t));
    for (int64_t i = 0; i < c->ranks * c->count; i++) {
        int from = (int)(i / c->count);
        expect_element(c, "all_to_all", out, i,
                       element_of(c->dtype, c->how, from, c->rank * c->count + i % c->count));
    }
}

/* Each rank sends to the one below it; all send before they receive. */
static void check_messages(const trial *c) {
    int next = (c->rank + 1) % c->ranks, last = (c->rank + c->ranks - 1) % c->ranks;
    if (c->ranks == 1) { return; }
    tn_tensor *t = filled_tensor(c, 0), *in = blank_tensor(c, 0);
    tn_work *sent = c->rank == 0 ? NULL : tn_send(c->g, t, last);
    if (c->rank != c->ranks - 1) {
        expect_done(c, "recv", tn_recv(c->g, in, next));
        for (int64_t i = 0; i < c->count; i++) {
            expect_element(c, "recv", in, i, element_of(c->dtype, c->how, next, i));
        }
    }
    expect_done(c, "send", sent);
}

/* Collectives that move bytes and do not compute. */
static void check_moves(const trial *c) {
    check_all_gather(c);
    check_all_to_all(c, false);
    check_all_to_all(c, true);
    check_messages(c);
    for (int root = 0; root<c->ranks; root += c->ranks> 1 ? c->ranks - 1 : 1) {
        check_broadcast(c, root);
        check_gather(c, root);
        check_scatter(c, root);
    }
}

static void check_reductions(const trial *c) {
    check_all_reduce(c);
    check_reduce_scatter(c);
    check_reduce_to(c, 0);
    check_reduce_to(c, c->ranks - 1);
}

/* All dtypes and reductions at small sizes, some at large ones. */
static void check_numbers(tn_group *g, bool thorough) {
    static const int64_t few[] = {0, 17}, many[] = {0, 1, 3, 17, 1000},
                         large[] = {4099, 65537, 300001};
    trial c = {.g = g, .rank = tn_group_rank(g), .ranks = tn_group_size(g)};
    /* other engines have no shared memory */
    int kinds = strcmp(tn_group_engine(g), "shm") == 0 ? 2 : 1;
    for (int shared = 0; shared < kinds; shared++) {
        c.shared = shared;
        for (size_t d = 0; d < COUNT_OF(DTYPES); d++) {
            c.dtype = DTYPES[d];
            for (size_t n = 0; n < (thorough ? COUNT_OF(many) : COUNT_OF(few)); n++) {
                c.count = thorough ? many[n] : few[n];
                TN_SCOPE;
                c.how = TN_SUM;
                check_moves(&c);
                for (size_t h = 0; h < COUNT_OF(REDUCES); h++) {
                    c.how = REDUCES[h];
                    check_reductions(&c);
                }
            }
        }
        int sizes = thorough ? 1 + kinds : 1; /* the last needs several of shm's slots */
        for (int n = 0; n < sizes; n++) {
            const tn_dtype dtypes[] = {TN_U8, TN_BF16, TN_F32};
            TN_SCOPE;
            c.count = large[n];
            c.dtype = dtypes[n];
            c.how = n % 2 ? TN_MEAN : TN_SUM;
            check_moves(&c);
            check_reductions(&c);
        }
    }
    if (thorough && strcmp(tn_group_engine(g), "gloo") == 0) { /* several of its blocks */
        TN_SCOPE;
        c.count = 600001;
        c.dtype = TN_F32;
        check_all_reduce(&c);
        check_reduce_scatter(&c);
        check_broadcast(&c, 0);
        check_messages(&c);
    }
}

/* ---- Bits ------------------------------------------------------------------------------------ */

/* Numbers whose sum depends on the order. */
static void fill_wildly(float *x, int64_t n, int rank) {
    for (int64_t i = 0; i < n; i++) {
        tn_random4 r = tn_philox(7, (uint64_t)rank, 0, (uint64_t)i);
        float scale = (float)(1 << (r.word[1] % 24));
        x[i] = ((float)(r.word[0] >> 8) * 0x1p-24f - 0.5f) * scale;
    }
}

/* A sum has the bits of adding in rank order, in every run and on every rank. */
static void check_bits(tn_group *g) {
    enum { N = 40001 };
    TN_SCOPE;
    trial c = {.g = g, .rank = tn_group_rank(g), .ranks = tn_group_size(g), .count = N};
    c.how = TN_SUM;
    float *want = malloc(N * sizeof(float)), *x = malloc(N * sizeof(float));
    fill_wildly(want, N, 0);
    for (int r = 1; r < c.ranks; r++) {
        fill_wildly(x, N, r);
        for (int64_t i = 0; i < N; i++) {
            want[i] += x[i];
        }
    }
    for (int run = 0; run < 4; run++) {
        c.shared = run % 2;
        tn_tensor *t = blank_tensor(&c, 0), *all = blank_tensor(&c, c.ranks);
        fill_wildly(tn_data_mut(t), N, c.rank);
        usleep((useconds_t)((c.rank * 7 + run * 3) % 5 * 500)); /* different timing */
        expect_done(&c, "all_reduce", tn_all_reduce(g, t, TN_SUM));
        if (memcmp(tn_data(t), want, N * sizeof(float)) != 0) {
            note_failure(&c, "all_reduce", "not in the order of the ranks");
        }
        expect_done(&c, "all_gather", tn_all_gather(g, all, t));
        for (int r = 0; r < c.ranks; r++) {
            if (memcmp((const float *)tn_data(all) + (int64_t)r * N, tn_data(t),
                       N * sizeof(float)) != 0) {
                note_failure(&c, "all_reduce", "the ranks have different bits");
            }
        }
    }
    free(want);
    free(x);
}

/* ---- Misuse ---------------------------------------------------------------------------------- */

static void *reduce_from_thread(void *user) {
    TN_SCOPE;
    tn_tensor *t = tn_ones(TN_DIMS(3), TN_F32);
    tn_work *w = tn_all_reduce(user, t, TN_SUM);
    bool refused = tn_error() == TN_ESTATE && !w;
    tn_error_clear();
    return refused ? user : NULL;
}

/* A call from a second thread is refused, and the group continues. */
static void check_threads(tn_group *g) {
    TN_SCOPE;
    trial c = {.g = g, .rank = tn_group_rank(g), .ranks = tn_group_size(g)};
    pthread_t thread;
    void *refused = NULL;
    if (pthread_create(&thread, NULL, reduce_from_thread, g) == 0) {
        pthread_join(thread, &refused);
    }
    if (!refused && c.ranks > 1) {
        note_failure(&c, "all_reduce", "from a second thread was not refused");
    }
    c.count = 5;
    c.how = TN_SUM;
    check_all_reduce(&c);
}

static void check_all(tn_group *g) {
    check_numbers(g, tn_group_size(g) <= 3);
    check_bits(g);
    check_threads(g);
}

/* Rank 1 makes a different call from the others. */
static const struct disagreement {
    const char *name, *theirs, *mine; /* what the others do, what rank 1 does */
} DISAGREEMENTS[] = {
    {"size", "all_reduce f32 [6] sum", "all_reduce f32 [7] sum"},
    {"dtype", "all_reduce f32 [6] sum", "all_reduce i32 [6] sum"},
    {"order", "all_reduce f32 [6] sum", "broadcast f32 [6] from rank 0"},
    {"reduction", "all_reduce f32 [6] sum", "all_reduce f32 [6] max"},
    {"gather", "all_reduce f32 [6] sum", "all_gather f32 [6]"},
    {"barrier", "all_reduce f32 [6] sum", "barrier"},
    {"root", "broadcast f32 [6] from rank 0", "broadcast f32 [6] from rank 1"},
    {"message", "rank 0 sends f32 [6]", "rank 1 receives f32 [7]"},
};

static void disagree_in(tn_group *g, const char *what) {
    bool other = tn_group_rank(g) == 1, is_message = strcmp(what, "message") == 0;
    int64_t size = other && (is_message || strcmp(what, "size") == 0) ? 7 : 6;
    tn_tensor *t = tn_ones(TN_DIMS(size), other && strcmp(what, "dtype") == 0 ? TN_I32 : TN_F32);
    tn_work *w = NULL;
    if (is_message) {
        w = other ? tn_recv(g, t, 0) : tn_group_rank(g) == 0 ? tn_send(g, t, 1) : NULL;
    } else if (strcmp(what, "root") == 0) {
        w = tn_broadcast(g, t, other);
    } else if (other && strcmp(what, "order") == 0) {
        w = tn_broadcast(g, t, 0);
    } else if (other && strcmp(what, "gather") == 0) {
        w = tn_all_gather(g, tn_empty(TN_DIMS(tn_group_size(g), 6), TN_F32), t);
    } else if (other && strcmp(what, "barrier") == 0) {
        tn_barrier(g);
    } else {
        w = tn_all_reduce(g, t, other && strcmp(what, "reduction") == 0 ? TN_MAX : TN_SUM);
    }
    tn_work_wait(w, 0);
}

/* Every rank's error must name both calls; for a message, the receiver's must. Ends the group. */
static void check_disagreement(tn_group *g, const struct disagreement *d) {
    TN_SCOPE;
    trial c = {.g = g, .rank = tn_group_rank(g), .ranks = tn_group_size(g), .count = 6};
    c.how = TN_SUM;
    check_all_reduce(&c);
    disagree_in(g, d->name);
    bool must_hear = c.rank == 1 || strcmp(d->name, "message") != 0;
    if (must_hear && (tn_error() != TN_EMISMATCH || !strstr(tn_error_message(), d->theirs) ||
                      !strstr(tn_error_message(), d->mine))) {
        note_failure(&c, d->name, tn_error() ? tn_error_message() : "no error");
    }
    tn_error_clear();
}

/* ---- Ranks as threads ------------------------------------------------------------------------ */

static void local_all(tn_group *g, void *user) {
    check_all(g);
}

static void local_disagreement(tn_group *g, void *user) {
    const struct disagreement *const *d = user;
    check_disagreement(g, *d);
}

static void threads_pass(bool checked, int most) {
    setenv("TERN_CHECKED", checked ? "1" : "0", 1);
    failures = 0;
    for (int ranks = 1; ranks <= most; ranks++) {
        if (tn_local_run(ranks, local_all, NULL) != TN_OK) { fail_msg("%s", tn_error_message()); }
    }
    for (size_t i = 0; i < COUNT_OF(DISAGREEMENTS); i++) {
        const struct disagreement *d = &DISAGREEMENTS[i];
        assert_int_equal(tn_local_run(3, local_disagreement, &d), TN_OK);
    }
    unsetenv("TERN_CHECKED");
    assert_int_equal(failures, 0);
}

PLAIN_TEST(test_local) {
    threads_pass(false, 8);
}

PLAIN_TEST(test_checked_local) {
    threads_pass(true, 3);
}

/* ---- Ranks as processes ---------------------------------------------------------------------- */

/* "shm": the engine to check; "shm,2": also which disagreement to provoke. */
PLAIN_RANK(run_checks) {
    char engine[16] = "";
    size_t which;
    bool is_disagreement = sscanf(argument, "%15[^,],%zu", engine, &which) == 2;
    tn_group *g = tn_dist_init(TN_WITH(tn_dist, .engine = engine));
    rank_assert(g != NULL);
    rank_assert(tn_group_size(g) == 1 || strcmp(tn_group_engine(g), engine) == 0);
    if (is_disagreement) {
        check_disagreement(g, &DISAGREEMENTS[which]);
    } else {
        check_all(g);
    }
    tn_dist_finish();
    return failures ? 1 : 0;
}

static void pass_on_ranks(int ranks, const char *argument, bool checked) {
    const char *const environment[] = {checked ? "TERN_CHECKED=1" : "TERN_CHECKED=0",
                                       "TERN_TIMEOUT=30", NULL};
    ranks_result result = ranks_run(ranks, "run_checks", argument, environment, 100);
    bool ok = ranks_ok(&result);
    ranks_free(&result);
    if (!ok) { fail_msg("%s on %d ranks: see above", argument, ranks); }
}

static void disagree_pass(const char *engine, bool checked) {
    for (size_t i = 0; i < COUNT_OF(DISAGREEMENTS); i++) {
        char argument[40];
        snprintf(argument, sizeof(argument), "%s,%zu", engine, i);
        pass_on_ranks(2 + (int)i % 2, argument, checked);
    }
}

PLAIN_TEST(test_shm) {
    for (int ranks = 1; ranks <= 8; ranks++) {
        pass_on_ranks(ranks, "shm", false);
    }
    disagree_pass("shm", false);
}

PLAIN_TEST(test_checked_shm) {
    pass_on_ranks(3, "shm", true);
    disagree_pass("shm", true);
}

PLAIN_TEST(test_gloo) {
    if (!gloo_is_here()) { skip(); }
    for (int ranks = 2; ranks <= 8; ranks++) {
        pass_on_ranks(ranks, "gloo", false);
    }
}

PLAIN_TEST(test_checked_gloo) {
    if (!gloo_is_here()) { skip(); }
    pass_on_ranks(3, "gloo", true);
    disagree_pass("gloo", true);
}
