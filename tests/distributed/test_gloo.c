/* The engine gloo, without a group around it: failures, with ranks as threads and as processes. Its
 * results are checked in test_collectives.c. */
#include "core/error.h"
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

/* The last call's error; "": none. */
static void take_why(char *why) {
    snprintf(why, TN_ENGINE_WHY, "%s", tn__error_why());
    tn_error_clear();
}

static tn_engine *join_gloo(tn_store *store, int rank, int ranks, const char *interface,
                            double seconds, char *why) {
    tn_engine_options o = {.store = store,
                           .rank = rank,
                           .ranks = ranks,
                           .deadline = tn__now() + seconds,
                           .timeout = seconds,
                           .interface = interface};
    tn_engine *e = tn_engine_new("gloo", &o);
    take_why(why);
    return e;
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
    char text[128];
    t.deadline = tn__now() + 30;
    if (e->run(e, &t) != TN_OK) {
        tn__transfer_text(&t, text, sizeof(text));
        fprintf(stderr, "%s, rank %d of %d: %s\n", text, e->rank, e->ranks, tn__error_why());
        CHECK(false);
    }
}

/* ---- Leaving and giving up ------------------------------------------------------------------- */

/* The last message of a rank that leaves at once still arrives, even if the receiver comes late. */
static void leave_early(tn_engine *e) {
    enum { COUNT = 30000 };
    float data[COUNT];
    bool sends = e->rank == 0;
    for (int i = 0; i < COUNT; i++) {
        data[i] = sends ? (float)i : -1;
    }
    if (!sends) { usleep(20000); }
    transfer_ok(e, (tn_transfer){.kind = sends ? TN_SEND : TN_RECV,
                                 .dtype = TN_F32,
                                 .root = 1 - e->rank,
                                 .count = COUNT,
                                 .in = sends ? data : NULL,
                                 .out = sends ? NULL : data});
    CHECK(data[0] == 0 && data[COUNT - 1] == (float)(COUNT - 1));
}

PLAIN_TEST(test_last_message) {
    NEEDS_GLOO();
    for (int i = 0; i < 20; i++) {
        run_threads(2, leave_early);
    }
}

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
    tn_status status = e->run(e, &t);
    take_why(why);
    return status;
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
    CHECK(e->run(e, &t) == TN_EPEER);
    take_why(why);
    CHECK(tn__now() - begin < 10);
    CHECK(strstr(why, "did not answer within 0.5 seconds") || strstr(why, "is lost"));
}

static void disagree_in_size(tn_engine *e) {
    char data[4000] = "";
    tn_transfer t = {.kind = TN_SEND,
                     .dtype = TN_U8,
                     .root = 1 - e->rank,
                     .count = e->rank ? 1000 : 4000,
                     .in = data,
                     .out = data,
                     .deadline = tn__now() + 0.5};
    t.kind = e->rank ? TN_RECV : TN_SEND;
    CHECK(e->run(e, &t) == TN_EPEER);
    tn_error_clear();
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
        assert_contains(why, says[i]);
        tn_store_free(store);
    }
}

PLAIN_TEST(test_interfaces) {
    NEEDS_GLOO();
    char why[TN_ENGINE_WHY] = "";
    tn_store *store = tn_memory_store();
    assert_null(join_gloo(store, 0, 1, "nonexistent0", 5, why));
    assert_contains(why, "\"nonexistent0\"");
    assert_contains(why, "lo (127.0.0.1)");
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

    int port = first_port, listener = tn__net_listen("127.0.0.1", &port, NULL);
    assert_true(listener >= 0);
    snprintf(text, sizeof(text), "%d-%d", first_port, first_port);
    setenv("TERN_PORTS", text, 1);
    tn_store *store = tn_memory_store();
    assert_null(join_gloo(store, 0, 3, "127.0.0.1", 5, why));
    snprintf(said, sizeof(said), "none of TERN_PORTS up to %d is free", first_port);
    assert_contains(why, said);
    setenv("TERN_PORTS", "many", 1);
    assert_null(join_gloo(store, 0, 3, "127.0.0.1", 5, why));
    assert_contains(why, "TERN_PORTS is \"many\"");
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
PLAIN_RANK(reduce_forever) {
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

/* Starts three ranks and sends `signal` to rank 1. The others must fail, and at least one of them
 * must name rank 1. texts receives each one's reason, seconds how long its last operation took. */
static void signal_rank_1(int signal, int timeout, double seconds[3], char texts[3][256]) {
    char argument[600];
    snprintf(argument, sizeof(argument), "%s %d", ranks_place(), timeout);
    ranks_job job = ranks_start(3, "reduce_forever", argument, NULL);
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
    ranks_main(argc, argv);
    return tests_run(look_for_plugin, NULL);
}
