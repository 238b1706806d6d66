/* The engine gloo, without a group around it: results with ranks as threads, failures with ranks as
 * processes. */
#include "distributed/group/group.h"
#include "distributed/store/net.h"

#include <string.h>

#include "rank_check.h"

#include "tests/support/gloo.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

enum { MOST = 8 };

static bool missing; /* the plugin is not built here */
#define NEEDS_GLOO() \
    if (missing) { skip(); }

static tn_engine *join_gloo(tn_store *store, int rank, int ranks, const char *interface,
                            double seconds, char *why) {
    tn_engine_options o = {.store = store,
                           .rank = rank,
                           .ranks = ranks,
                           .deadline = tn__now() + seconds,
                           .timeout = seconds,
                           .interface = interface};
    return tn_engine_new("gloo", &o, why);
}

/* ---- Ranks as threads ------------------------------------------------------------------------ */

typedef struct crew {
    tn_store *store;
    int ranks;
    void (*body)(tn_engine *e);
} crew;

typedef struct member {
    const crew *crew;
    int rank;
} member;

static void *run_member(void *user) {
    const member *m = user;
    char why[TN_ENGINE_WHY] = "";
    tn_engine *e = join_gloo(m->crew->store, m->rank, m->crew->ranks, "127.0.0.1", 30, why);
    if (!e) { fprintf(stderr, "rank %d: %s\n", m->rank, why); }
    CHECK(e);
    if (e) {
        m->crew->body(e);
        e->destroy(e);
    }
    return NULL;
}

static void run_threads(int ranks, void (*body)(tn_engine *e)) {
    pthread_t threads[MOST];
    member members[MOST];
    crew c = {.store = tn_memory_store(), .ranks = ranks, .body = body};
    failures = 0;
    for (int r = 0; r < ranks; r++) {
        members[r] = (member){.crew = &c, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_member, &members[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    tn_store_free(c.store);
    assert_int_equal(failures, 0);
}

static void transfer_ok(tn_engine *e, tn_transfer t) {
    char why[TN_ENGINE_WHY] = "", text[128];
    t.deadline = tn__now() + 30;
    if (e->run(e, &t, why) != TN_OK) {
        tn__transfer_text(&t, text, sizeof(text));
        fprintf(stderr, "%s, rank %d of %d: %s\n", text, e->rank, e->ranks, why);
        CHECK(false);
    }
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16, TN_I64, TN_I32, TN_U8};
enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

/* n elements that differ between ranks and positions: finite floats of any sign, any integers. */
static void fill_elements(tn_dtype dtype, void *to, int64_t n, int rank) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = ((uint32_t)i * 2654435761u) ^ ((uint32_t)rank + 1) * 0x9e3779b9u;
        float x = (float)bits / 65536.0f - 32768.0f;
        uint32_t pattern;
        memcpy(&pattern, &x, sizeof(x));
        switch (dtype) {
        case TN_F32:
            ((float *)to)[i] = x;
            break;
        case TN_F64:
            ((double *)to)[i] = (double)x * 1.000000001;
            break;
        case TN_BF16:
            ((uint16_t *)to)[i] = (uint16_t)(pattern >> 16);
            break;
        case TN_F16: /* sign, exponent below the largest, fraction */
            ((uint16_t *)to)[i] = (uint16_t)((bits & 0x83ff) | (bits >> 16) % 28 << 10);
            break;
        case TN_I64:
            ((int64_t *)to)[i] = (int64_t)bits * 977 - 1000000;
            break;
        case TN_I32:
            ((int32_t *)to)[i] = (int32_t)bits;
            break;
        default:
            ((uint8_t *)to)[i] = (uint8_t)bits;
        }
    }
}

/* One operation, with the inputs of all ranks: each rank makes all of them to compute the expected
 * result. */
typedef struct task {
    tn_engine *e;
    tn_transfer t;
    int64_t bytes;    /* of `count` elements */
    char *all[MOST];  /* every rank's input: N count elements */
    char *out, *want; /* N count elements each, with a canary after */
} task;

static const char canary[] = "canary!";

static char *alloc_guarded(int64_t bytes) {
    char *memory = malloc((size_t)bytes + sizeof(canary));
    memset(memory, 0x55, (size_t)bytes);
    memcpy(memory + bytes, canary, sizeof(canary));
    return memory;
}

static void task_begin(task *x, tn_engine *e, tn_collective kind, tn_dtype dtype, int64_t count) {
    int64_t n = e->ranks * count, bytes = n * (int64_t)tn_dtype_size(dtype);
    *x = (task){.e = e,
                .t = {.kind = kind, .dtype = dtype, .count = count, .reduce = TN_SUM},
                .bytes = count * (int64_t)tn_dtype_size(dtype),
                .out = alloc_guarded(bytes),
                .want = alloc_guarded(bytes)};
    for (int r = 0; r < e->ranks; r++) {
        x->all[r] = alloc_guarded(bytes);
        fill_elements(dtype, x->all[r], n, r);
    }
    x->t.in = x->all[e->rank];
    x->t.out = x->out;
}

static void task_end(task *x) {
    int64_t bytes = x->e->ranks * x->bytes;
    transfer_ok(x->e, x->t);
    const char *got = x->t.out ? x->t.out : x->want;
    char text[128];
    if (memcmp(got, x->want, (size_t)bytes + sizeof(canary)) != 0) {
        tn__transfer_text(&x->t, text, sizeof(text));
        fprintf(stderr, "%s: wrong result at rank %d of %d%s\n", text, x->e->rank, x->e->ranks,
                x->t.in == x->t.out ? " (in place)" : "");
        CHECK(false);
    }
    for (int r = 0; r < x->e->ranks; r++) {
        free(x->all[r]);
    }
    free(x->out);
    free(x->want);
}

/* The reduction of `count` elements, from element `begin` of each rank's in. */
static void want_reduced(task *x, int64_t begin) {
    const void *in[MOST];
    for (int r = 0; r < x->e->ranks; r++) {
        in[r] = x->all[r] + begin * (int64_t)tn_dtype_size(x->t.dtype);
    }
    tn__reduce_all(x->t.reduce, x->t.dtype, x->want, in, x->e->ranks, x->t.count);
}

static void check_reductions(tn_engine *e, tn_dtype dtype, int64_t count, tn_reduction how,
                             bool in_place) {
    task x;
    task_begin(&x, e, TN_ALL_REDUCE, dtype, count);
    x.t.reduce = how;
    want_reduced(&x, 0);
    if (in_place) {
        x.t.out = x.all[e->rank];
        memcpy(x.want + x.bytes, (char *)x.t.out + x.bytes, (size_t)((e->ranks - 1) * x.bytes));
    }
    task_end(&x);

    task_begin(&x, e, TN_REDUCE_SCATTER, dtype, count);
    x.t.reduce = how;
    want_reduced(&x, e->rank * count);
    task_end(&x);

    task_begin(&x, e, TN_REDUCE_TO_ROOT, dtype, count);
    x.t.reduce = how;
    x.t.root = e->ranks / 2;
    if (e->rank == x.t.root) {
        want_reduced(&x, 0);
    } else if (in_place) {
        x.t.out = NULL;
    }
    task_end(&x);
}

static void check_moves(tn_engine *e, tn_dtype dtype, int64_t count, bool in_place) {
    task x;
    int rank = e->rank, ranks = e->ranks, root = ranks - 1;
    task_begin(&x, e, TN_ALL_GATHER, dtype, count);
    for (int r = 0; r < ranks; r++) {
        memcpy(x.want + r * x.bytes, x.all[r], (size_t)x.bytes);
    }
    task_end(&x);

    task_begin(&x, e, TN_ALL_TO_ALL, dtype, count);
    for (int r = 0; r < ranks; r++) {
        memcpy(x.want + r * x.bytes, x.all[r] + rank * x.bytes, (size_t)x.bytes);
    }
    x.t.out = in_place ? x.all[rank] : x.out;
    task_end(&x);

    task_begin(&x, e, TN_BROADCAST, dtype, count);
    x.t.root = root;
    memcpy(x.want, x.all[root], (size_t)x.bytes);
    if (rank == root && in_place) {
        memcpy(x.want, x.all[root], (size_t)(ranks * x.bytes));
        x.t.out = x.all[root];
    } else if (rank != root) {
        x.t.in = NULL;
    }
    task_end(&x);

    task_begin(&x, e, TN_GATHER, dtype, count);
    x.t.root = root;
    for (int r = 0; r < ranks && rank == root; r++) {
        memcpy(x.want + r * x.bytes, x.all[r], (size_t)x.bytes);
    }
    x.t.out = rank == root ? x.out : NULL;
    task_end(&x);

    task_begin(&x, e, TN_SCATTER, dtype, count);
    x.t.root = root;
    memcpy(x.want, x.all[root] + rank * x.bytes, (size_t)x.bytes);
    x.t.in = rank == root ? x.all[root] : NULL;
    task_end(&x);
}

/* Rank r sends to r + 1; other ranks' operations in between do not matter. */
static void check_messages(tn_engine *e, tn_dtype dtype, int64_t count) {
    task x;
    int after = (e->rank + 1) % e->ranks, before = (e->rank + e->ranks - 1) % e->ranks;
    for (int turn = 0; turn < 2 && e->ranks > 1; turn++) {
        if ((e->rank == 0) == (turn == 0)) {
            task_begin(&x, e, TN_SEND, dtype, count);
            x.t.root = after;
            x.t.out = NULL;
            task_end(&x);
        } else {
            task_begin(&x, e, TN_RECV, dtype, count);
            x.t.root = before;
            memcpy(x.want, x.all[before], (size_t)x.bytes);
            x.t.in = NULL;
            task_end(&x);
        }
    }
}

static void all_operations(tn_engine *e) {
    static const int64_t counts[] = {0, 1, 2, 7, 1000, 2053};
    static const tn_reduction hows[] = {TN_SUM, TN_MEAN, TN_PRODUCT, TN_MIN, TN_MAX};
    for (int d = 0; d < DTYPES; d++) {
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            check_reductions(e, dtypes[d], counts[c], hows[(c + (size_t)d) % 5], c & 1);
            check_moves(e, dtypes[d], counts[c], c & 1);
            check_messages(e, dtypes[d], counts[c]);
        }
    }
    transfer_ok(e, (tn_transfer){.kind = TN_BARRIER});
}

/* Longer than a block: several blocks are under way at once, and the last one is not full. */
static void long_arrays(tn_engine *e) {
    check_reductions(e, TN_F32, 800003, TN_MEAN, true);
    check_reductions(e, TN_BF16, 1100001, TN_SUM, false);
    check_moves(e, TN_F32, 600001, true);
    check_messages(e, TN_F64, 300001);
}

PLAIN_TEST(test_numbers) {
    NEEDS_GLOO();
    static const int ranks[] = {1, 2, 3, 5};
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        run_threads(ranks[i], all_operations);
    }
}

PLAIN_TEST(test_long_arrays) {
    NEEDS_GLOO();
    run_threads(2, long_arrays);
    run_threads(3, long_arrays);
}

/* The last message of a rank that leaves at once still arrives, even if the receiver comes late. */
static void leave_early(tn_engine *e) {
    task x;
    int64_t count = 30000;
    bool sends = e->rank == 0;
    task_begin(&x, e, sends ? TN_SEND : TN_RECV, TN_F32, count);
    x.t.root = 1 - e->rank;
    if (sends) {
        x.t.out = NULL;
    } else {
        usleep(20000);
        memcpy(x.want, x.all[0], (size_t)x.bytes);
    }
    task_end(&x);
}

PLAIN_TEST(test_last_message) {
    NEEDS_GLOO();
    for (int i = 0; i < 20; i++) {
        run_threads(2, leave_early);
    }
}

/* ---- Leaving and giving up ------------------------------------------------------------------- */

static tn_status try_all_reduce(tn_engine *e, double seconds, char *why) {
    static float in[1000];
    float out[1000];
    tn_transfer t = {.kind = TN_ALL_REDUCE,
                     .dtype = TN_F32,
                     .reduce = TN_SUM,
                     .count = 1000,
                     .in = in,
                     .out = out,
                     .deadline = tn__now() + seconds};
    return e->run(e, &t, why);
}

static int told; /* ranks whose error said that rank 2 has left */

/* The first rank to notice says so; the second may only have noticed that the first gave up. */
static void leave_first(tn_engine *e) {
    char why[TN_ENGINE_WHY] = "", again[TN_ENGINE_WHY] = "";
    if (e->rank == 2) { return; }
    CHECK(try_all_reduce(e, 20, why) == TN_EPEER);
    bool left = strstr(why, "rank 2 has left the group");
    __atomic_fetch_add(&told, left, __ATOMIC_RELAXED);
    CHECK(left || strstr(why, "the connection to rank"));
    CHECK(try_all_reduce(e, 20, again) == TN_EPEER);
    CHECK(strcmp(why, again) == 0);
}

PLAIN_TEST(test_who_has_left) {
    NEEDS_GLOO();
    double begin = tn__now();
    told = 0;
    run_threads(3, leave_first);
    assert_true(told > 0);
    assert_true(tn__now() - begin < 15);
}

static bool failed[2]; /* ranks 0 and 1; their engines live until both have failed */

static void await_failure(int rank) {
    for (int i = 0; i < 1000 && !__atomic_load_n(&failed[rank], __ATOMIC_ACQUIRE); i++) {
        usleep(10000);
    }
    CHECK(failed[rank]);
}

static void fail_together(tn_engine *e, char *why) {
    CHECK(try_all_reduce(e, 20, why) == TN_EPEER);
    __atomic_store_n(&failed[e->rank], true, __ATOMIC_RELEASE);
    await_failure(1 - e->rank);
}

static void *abort_later(void *user) {
    tn_engine *e = user;
    usleep(200000);
    e->abort(e, "the test said so");
    e->abort(e, "and again");
    return NULL;
}

/* Rank 0 waits for rank 1, which is still computing, and is aborted from another thread; rank 1
 * notices in its own call. */
static void give_up(tn_engine *e) {
    char why[TN_ENGINE_WHY] = "";
    pthread_t thread;
    if (e->rank == 0) {
        CHECK(pthread_create(&thread, NULL, abort_later, e) == 0);
    } else {
        await_failure(0);
    }
    fail_together(e, why);
    CHECK(strstr(why, e->rank == 0 ? "the test said so" : "rank 0"));
    if (e->rank == 0) { pthread_join(thread, NULL); }
}

/* Rank 1 is aborted while it runs no operation, and rank 0 waits for it. */
static void give_up_idle(tn_engine *e) {
    char why[TN_ENGINE_WHY] = "";
    if (e->rank == 1) {
        usleep(200000);
        e->abort(e, "rank 1 has enough");
        await_failure(0);
    }
    fail_together(e, why);
    CHECK(strstr(why, e->rank == 1 ? "rank 1 has enough" : "rank 1"));
}

PLAIN_TEST(test_abort) {
    NEEDS_GLOO();
    run_threads(2, give_up);
    failed[0] = failed[1] = false;
    run_threads(2, give_up_idle);
}

/* There is one deadline for the whole operation; a rank that is in another operation does not
 * answer. */
static void disagree_in_kind(tn_engine *e) {
    char why[TN_ENGINE_WHY] = "", data[4000] = "";
    double begin = tn__now();
    tn_transfer t = {.kind = e->rank ? TN_ALL_REDUCE : TN_BROADCAST,
                     .dtype = TN_F32,
                     .reduce = TN_SUM,
                     .count = 1000,
                     .in = data,
                     .out = data,
                     .deadline = begin + 0.5};
    CHECK(e->run(e, &t, why) == TN_EPEER);
    CHECK(tn__now() - begin < 10);
    CHECK(strstr(why, "did not answer within 0.5 seconds") || strstr(why, "is lost"));
}

static void disagree_in_size(tn_engine *e) {
    char why[TN_ENGINE_WHY] = "", data[4000] = "";
    tn_transfer t = {.kind = TN_SEND,
                     .dtype = TN_U8,
                     .root = 1 - e->rank,
                     .count = e->rank ? 1000 : 4000,
                     .in = data,
                     .out = data,
                     .deadline = tn__now() + 0.5};
    t.kind = e->rank ? TN_RECV : TN_SEND;
    CHECK(e->run(e, &t, why) == TN_EPEER);
}

PLAIN_TEST(test_disagreement) {
    NEEDS_GLOO();
    run_threads(2, disagree_in_kind);
    run_threads(2, disagree_in_size);
}

/* ---- Joining --------------------------------------------------------------------------------- */

PLAIN_TEST(test_missing_ranks_are_named) {
    NEEDS_GLOO();
    char why[TN_ENGINE_WHY] = "";
    tn_store *store = tn_memory_store();
    double begin = tn__now();
    assert_null(join_gloo(store, 0, 3, NULL, 0.3, why));
    assert_string_equal(why, "no sign of rank 1, 2");
    assert_true(tn__now() - begin < 10);
    tn_store_free(store);
}

/* What rank 1 gives instead of its addresses: a reason, also one as long as they are, or those of a
 * group of another size. */
PLAIN_TEST(test_no_addresses) {
    NEEDS_GLOO();
    static const char *const says[] = {"rank 1 could not join: no port",
                                       "rank 1 could not join: no",
                                       "rank 1 gave 768 bytes of addresses, not 512"};
    for (int i = 0; i < 3; i++) {
        char given[3 * TN__ENDPOINT] = ": no port", why[TN_ENGINE_WHY] = "";
        given[0] = i == 2 ? 2 : ':';
        tn_store *store = tn_memory_store();
        size_t bytes = i == 0 ? strlen(given) : (size_t)(1 + i) * TN__ENDPOINT;
        assert_int_equal(tn_store_set(store, "gloo/at/1", given, bytes), TN_OK);
        assert_null(join_gloo(store, 0, 2, "127.0.0.1", 20, why));
        assert_non_null(strstr(why, says[i]));
        tn_store_free(store);
    }
}

PLAIN_TEST(test_interfaces) {
    NEEDS_GLOO();
    char why[TN_ENGINE_WHY] = "";
    tn_store *store = tn_memory_store();
    assert_null(join_gloo(store, 0, 1, "nonexistent0", 5, why));
    assert_non_null(strstr(why, "\"nonexistent0\""));
    assert_non_null(strstr(why, "lo (127.0.0.1)"));
    assert_null(join_gloo(store, 0, 1, "203.0.113.7", 5, why));
    static const char *const good[] = {"lo", "127.0.0.1", "127.0.0.2", NULL};
    for (int i = 0; i < 4; i++) {
        tn_engine *e = join_gloo(store, 0, 1, good[i], 5, why);
        if (!e) { fail_msg("%s: %s", good[i] ? good[i] : "(NULL)", why); }
        e->destroy(e);
    }
    tn_store_free(store);
}

enum { PORTS = 16 };
static int first_port;

static bool is_allowed(const uint8_t place[TN__PLACE]) {
    int port = place[16] << 8 | place[17];
    return port >= first_port && port < first_port + PORTS;
}

/* One end of each connection of this process is a port at which someone has listened. */
static void check_ports(tn_engine *e) {
    int connections = 0;
    for (int fd = 0; fd < 1024; fd++) {
        uint8_t here[TN__PLACE], there[TN__PLACE];
        if (tn__net_place(fd, false, here) && tn__net_place(fd, true, there)) {
            connections++;
            CHECK(is_allowed(here) || is_allowed(there));
        }
    }
    CHECK(connections == e->ranks * (e->ranks - 1));
    transfer_ok(e, (tn_transfer){.kind = TN_BARRIER});
}

/* With TERN_PORTS the connections are made there; too few of them are an error. */
PLAIN_TEST(test_ports) {
    NEEDS_GLOO();
    char text[32], why[TN_ENGINE_WHY] = "", said[64];
    first_port = ranks_free_ports(PORTS);
    snprintf(text, sizeof(text), "%d-%d", first_port, first_port + PORTS - 1);
    setenv("TERN_PORTS", text, 1);
    run_threads(3, check_ports);

    int port = first_port, listener = tn__net_listen("127.0.0.1", &port, why);
    assert_true(listener >= 0);
    snprintf(text, sizeof(text), "%d-%d", first_port, first_port);
    setenv("TERN_PORTS", text, 1);
    tn_store *store = tn_memory_store();
    assert_null(join_gloo(store, 0, 3, "127.0.0.1", 5, why));
    snprintf(said, sizeof(said), "none of TERN_PORTS up to %d is free", first_port);
    assert_non_null(strstr(why, said));
    setenv("TERN_PORTS", "many", 1);
    assert_null(join_gloo(store, 0, 3, "127.0.0.1", 5, why));
    assert_non_null(strstr(why, "TERN_PORTS is \"many\""));
    unsetenv("TERN_PORTS");
    tn_store_free(store);
    close(listener);
}

PLAIN_TEST(test_public_addresses) {
    static const char *const near[] = {"127.0.0.1",
                                       "127.255.255.255",
                                       "10.0.0.1",
                                       "10.255.255.255",
                                       "172.16.0.1",
                                       "172.31.255.255",
                                       "192.168.0.1",
                                       "169.254.1.1",
                                       "100.64.0.1",
                                       "100.127.255.255",
                                       "::1",
                                       "fe80::1",
                                       "fd00::1",
                                       "fc12::7",
                                       "::ffff:10.1.2.3",
                                       "::ffff:127.0.0.1"};
    static const char *const far[] = {
        "126.255.255.255", "128.0.0.1",   "9.255.255.255", "11.0.0.0",       "172.15.255.255",
        "172.32.0.0",      "192.167.0.1", "192.169.0.1",   "100.63.255.255", "100.128.0.0",
        "203.0.113.7",     "8.8.8.8",     "2001:db8::1",   "2a00::1",        "::ffff:8.8.8.8"};
    for (size_t i = 0; i < sizeof(near) / sizeof(*near); i++) {
        if (tn__address_is_public(near[i])) {
            fail_msg("%s is taken for a public address", near[i]);
        }
    }
    for (size_t i = 0; i < sizeof(far) / sizeof(*far); i++) {
        if (!tn__address_is_public(far[i])) {
            fail_msg("%s is taken for a private address", far[i]);
        }
    }
}

/* ---- Ranks as processes ---------------------------------------------------------------------- */

/* `argument` is "PLACE SECONDS": of the store, and the time limit of an operation. Reduces until
 * something fails; then prints the reason and how long it took. */
static int reduce_forever(tn_group *world, const char *argument) {
    char why[TN_ENGINE_WHY] = "", path[512];
    double seconds;
    rank_assert(sscanf(argument, "%511s %lf", path, &seconds) == 2);
    tn_store *store = ranks_store(path);
    tn_engine *e =
        join_gloo(store, atoi(getenv("RANK")), atoi(getenv("WORLD_SIZE")), NULL, 30, why);
    rank_assert(e);
    double begin;
    for (int64_t i = 0;; i++) {
        begin = tn__now();
        if (try_all_reduce(e, seconds, why) != TN_OK) { break; }
        if (i == 100) { printf("reducing\n"); }
    }
    printf("failed after %.3f s: %s\n", tn__now() - begin, why);
    e->destroy(e);
    tn_store_free(store);
    return 0;
}

static const rank_entry bodies[] = {{"-reduce_forever", reduce_forever}};

/* Starts three ranks and sends `signal` to rank 1. The others must fail, and at least one of them
 * must name rank 1. texts receives each one's reason, seconds how long its last operation took. */
static void signal_rank_1(int signal, int timeout, double seconds[3], char texts[3][256]) {
    char argument[600];
    snprintf(argument, sizeof(argument), "%s %d", ranks_place(), timeout);
    ranks_job job = ranks_start(3, "-reduce_forever", argument, NULL);
    assert_true(ranks_await_output(&job, 1, "reducing", 30));
    kill(job.pid[1], signal);
    bool ended =
        ranks_await_output(&job, 0, "failed", 50) && ranks_await_output(&job, 2, "failed", 50);
    kill(job.pid[1], SIGKILL);
    ranks_result result = ranks_wait(&job, 100);
    for (int r = 0; r < 3; r += 2) {
        const char *line = strstr(result.output[r], "failed after");
        if (!line || sscanf(line, "failed after %lf s: %255[^\n]", &seconds[r], texts[r]) != 2) {
            fail_msg("rank %d: %s", r, result.output[r]);
        }
    }
    assert_true(ended && !result.timed_out);
    assert_true(strstr(texts[0], "rank 1") || strstr(texts[2], "rank 1"));
    ranks_free(&result);
}

TEST_WITH(test_killed, NULL, temp_clean) {
    NEEDS_GLOO();
    double seconds[3];
    char texts[3][256];
    signal_rank_1(SIGKILL, 40, seconds, texts);
    assert_true(seconds[0] < 30 && seconds[2] < 30); /* not by the timeout */
    assert_true(strstr(texts[0], "lost") && strstr(texts[2], "lost"));
}

TEST_WITH(test_stopped, NULL, temp_clean) {
    NEEDS_GLOO();
    double seconds[3];
    char texts[3][256];
    signal_rank_1(SIGSTOP, 1, seconds, texts);
    assert_true(strstr(texts[0], "did not answer") || strstr(texts[2], "did not answer"));
    assert_true(seconds[0] < 20 && seconds[2] < 20);
    assert_true(seconds[0] > 0.9 || seconds[2] > 0.9);
}

/* ---- All ------------------------------------------------------------------------------------- */

static int look_for_plugin(void **state) {
    missing = !gloo_is_here();
    return 0;
}

int main(int argc, char **argv) {
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(bodies[0]));
    return tests_run(look_for_plugin, NULL);
}
