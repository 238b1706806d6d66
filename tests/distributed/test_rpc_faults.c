/* Calls of ranks that are slow, late, stopped or killed. */
#include "distributed/group/group.h"

#include <signal.h>
#include <stdlib.h>

#include "rpc_check.h"

#include "tests/support/ranks.h"

static void slow_function(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 0) {
        double begin = tn__now();
        tn_message *in = tn_message_new();
        tn_message_add_int(in, 500000);
        CHECK(!ask_rank(r, 1, "sleep", in, 0.1));
        CHECK(failed_with(TN_EPEER, "\"sleep\" of rank 1: no answer within 0.1 seconds"));
        CHECK(tn__now() - begin < 0.45);
        tn_message *out = ask_rank(r, 1, "echo", NULL, 0); /* its late reply disturbs nothing */
        CHECK(out && tn_message_count(out) == 0);
        tn_message_free(out);
    }
    end_rank(world, r);
}

TEST(test_slow) {
    run_ok(2, slow_function, NULL);
}

/* Rank 1 leaves without a word while rank 0 waits for it, and calls it again. */
static void abrupt_end(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 1) {
        usleep(200000);
        tn_rpc_free(r);
        return;
    }
    tn_message *in = tn_message_new();
    tn_message_add_int(in, 600000);
    CHECK(!ask_rank(r, 1, "sleep", in, 30) &&
          failed_with(TN_EPEER, "\"sleep\" of rank 1: rank 1 is gone"));
    CHECK(!ask_rank(r, 1, "echo", NULL, 30) && failed_with(TN_EPEER, "rank 1 is gone"));
    CHECK(tn_rpc_shutdown(r, 30) == TN_EPEER && failed_with(TN_EPEER, "rank 1 is gone"));
    tn_rpc_free(r);
}

TEST(test_abrupt_end) {
    run_ok(2, abrupt_end, NULL);
}

static void late_rank(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 1) {
        usleep(500000);
    } else {
        CHECK(tn_rpc_shutdown(r, 0.1) == TN_EPEER);
        CHECK(failed_with(TN_EPEER, "rank 1 has not ended within 0.1 seconds"));
    }
    tn_rpc_free(r);
}

TEST(test_late_end) {
    run_ok(2, late_rank, NULL);
}

/* Whoever asks instead of waiting learns of the deadline as well. */
TEST(test_done_when_late) {
    tn_rpc *r = start_rank(NULL);
    tn_message *in = tn_message_new();
    tn_message_add_int(in, 1000000);
    tn_future *f = tn_rpc_call(r, 0, "sleep", in, 0.5);
    assert_false(tn_rpc_done(f));
    usleep(600000);
    assert_true(tn_rpc_done(f));
    assert_null(tn_rpc_wait(f));
    assert_error(TN_EPEER, "no answer within 0.5 seconds");
    tn_rpc_free(r);
}

/* ---- Faster than it answers ------------------------------------------------------------------ */

enum { LARGE = 3000, TWO_LARGE = 5000 }; /* bytes of a call, and a limit that two of them reach */

static tn_future *call_large(tn_rpc *r, int to, const char *name, double timeout) {
    TN_SCOPE;
    tn_values large = {1, {tn_zeros(TN_DIMS(LARGE), TN_U8)}};
    return tn_rpc_call(r, to, name, tn_message_of(large), timeout);
}

static void echo_slowly(const tn_message *in, tn_message *out, void *user) {
    usleep(20000);
    echo_values(in, out, NULL);
}

/* A call waits until the last but one is answered. */
static void slow_server(tn_group *world, void *user) {
    enum { CALLS = 8 };
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .threads = 1, .backlog_limit = TWO_LARGE));
    tn_rpc_register(r, "echo_slowly", echo_slowly, NULL);
    tn_rpc_start(r);
    for (int to = 0; tn_rpc_rank(r) == 0 && to < 2; to++) { /* to itself too */
        tn_future *f[CALLS];
        for (int i = 0; i < CALLS; i++) {
            f[i] = call_large(r, to, "echo_slowly", 0);
            CHECK(f[i] && (i < 2 || tn_rpc_done(f[i - 2])));
        }
        for (int i = 0; i < CALLS; i++) {
            tn_message *out = tn_rpc_wait(f[i]);
            CHECK(tn_message_count(out) == 1);
            tn_message_free(out);
        }
    }
    end_rank(world, r);
}

TEST(test_slow_server) {
    run_ok(2, slow_server, NULL);
}

/* Calls inside functions do not wait for room, which may come only after them: here both ranks have
 * called as much as they may. */
static void call_back(const tn_message *in, tn_message *out, void *rpc) {
    for (int i = 0; i < 2; i++) {
        tn_message *reply = tn_rpc_wait(call_large(rpc, tn_rpc_caller(), "echo", 0));
        tn_message_add_int(out, tn_message_count(reply));
        tn_message_free(reply);
    }
}

static void room_inside(tn_group *world, void *user) {
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .threads = 1, .backlog_limit = TWO_LARGE));
    tn_rpc_register(r, "echo", echo_values, NULL);
    tn_rpc_register(r, "call_back", call_back, r);
    tn_rpc_start(r);
    for (int i = 0; i < 20; i++) {
        tn_future *f[] = {call_large(r, 1 - tn_rpc_rank(r), "call_back", 30),
                          call_large(r, 1 - tn_rpc_rank(r), "call_back", 30)};
        for (int k = 0; k < 2; k++) {
            tn_message *out = tn_rpc_wait(f[k]);
            CHECK(tn_message_count(out) == 2);
            tn_message_free(out);
        }
    }
    end_rank(world, r);
}

TEST(test_room_inside) {
    run_ok(2, room_inside, NULL);
}

/* An object's end, in the reader's thread, may call: it does not wait for answers that this thread
 * would have to read. */
static tn_future *ended_with;

static void call_at_end(void *rpc) {
    tn_future *f = call_large(rpc, 1, "echo_slowly", 30);
    __atomic_store_n(&ended_with, f, __ATOMIC_RELEASE);
}

static void give_object(const tn_message *in, tn_message *out, void *rpc) {
    tn_remote *m = tn_remote_of_object(rpc, rpc, call_at_end);
    tn_message_add_remote(out, m);
    tn_remote_free(m);
}

static void room_at_end(tn_group *world, void *user) {
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .threads = 1, .backlog_limit = TWO_LARGE));
    tn_rpc_register(r, "echo_slowly", echo_slowly, NULL);
    tn_rpc_register(r, "give", give_object, r);
    tn_rpc_start(r);
    tn_message *object = tn_rpc_rank(r) == 2 ? ask_rank(r, 0, "give", NULL, 0) : NULL;
    tn_future *f[2] = {NULL};
    if (tn_rpc_rank(r) == 0) {
        while (tn_rpc_kept(r) == 0) {
            usleep(1000);
        }
        f[0] = call_large(r, 1, "echo_slowly", 0);
        f[1] = call_large(r, 1, "echo_slowly", 0); /* full */
    }
    tn_barrier(world);
    tn_message_free(object);
    for (int i = 0; i < 2; i++) {
        tn_message *out = tn_rpc_wait(f[i]);
        CHECK(!f[i] || out);
        tn_message_free(out);
    }
    if (tn_rpc_rank(r) == 0) {
        CHECK(comes_to_keep(r, 0));
        while (!__atomic_load_n(&ended_with, __ATOMIC_ACQUIRE)) {
            usleep(1000);
        }
        tn_message *out = tn_rpc_wait(ended_with);
        CHECK(out);
        tn_message_free(out);
    }
    end_rank(world, r);
}

TEST(test_room_at_end) {
    ended_with = NULL;
    run_ok(3, room_at_end, NULL);
}

/* However many threads call, no more than the limit and one call are unanswered. */
static void *flood_rank_1(void *rpc) {
    tn_rpc *r = rpc;
    for (int i = 0; i < 10; i++) {
        tn_future *f = call_large(r, 1, "echo", 0);
        pthread_mutex_lock(&r->lock);
        CHECK(r->peers[1].unanswered < TWO_LARGE + LARGE + 100);
        pthread_mutex_unlock(&r->lock);
        tn_message_free(tn_rpc_wait(f));
        CHECK(!tn_error());
    }
    return NULL;
}

static void many_threads(tn_group *world, void *user) {
    enum { THREADS = 16 };
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .threads = 1, .backlog_limit = TWO_LARGE));
    pthread_t threads[THREADS];
    for (int i = 0; tn_rpc_rank(r) == 0 && i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, flood_rank_1, r) == 0);
    }
    for (int i = 0; tn_rpc_rank(r) == 0 && i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(r->peers[1].unanswered == 0 && r->peers[0].unanswered == 0);
    end_rank(world, r);
}

TEST(test_many_threads) {
    run_ok(2, many_threads, NULL);
}

/* A rank that is stopped is sent no more than the limit. When it goes on it answers all that. */
static int fill_rank_1(tn_group *world, const char *argument) {
    enum { MOST = 100 };
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .backlog_limit = 10 * LARGE));
    if (tn_rpc_rank(r) == 0) {
        printf("calling\n");
        fflush(stdout);
        for (bool stopped = false; !stopped; tn_error_clear()) {
            tn_message_free(ask_rank(r, 1, "echo", NULL, 0.5));
            stopped = tn_error() == TN_EPEER;
        }
        tn_future *f[MOST];
        int n = 0;
        while (n < MOST && (f[n] = call_large(r, 1, "echo", n < 10 ? 60 : 0.5))) {
            n++;
        }
        rank_assert(n == 10);
        rank_assert(failed_with(TN_EPEER, "bytes of calls wait for its answers (backlog_limit: "));
        tn_message_free(ask_rank(r, 2, "echo", NULL, 60));
        rank_assert(!tn_error());
        printf("full\n");
        fflush(stdout);
        for (int i = 0; i < n; i++) {
            tn_message *out = tn_rpc_wait(f[i]);
            rank_assert(tn_message_count(out) == 1);
            tn_message_free(out);
        }
        tn_message_free(tn_rpc_wait(call_large(r, 1, "echo", 60)));
        rank_assert(!tn_error());
    }
    rank_assert(tn_rpc_shutdown(r, 0) == TN_OK);
    tn_rpc_free(r);
    return 0;
}

TEST(test_full) {
    ranks_job job = ranks_start(3, "fill_rank_1", "", NULL);
    bool began = ranks_await_output(&job, 0, "calling", 60);
    usleep(200000);
    kill(job.pid[1], SIGSTOP);
    bool full = ranks_await_output(&job, 0, "full", 60);
    kill(job.pid[1], SIGCONT);
    ranks_result result = ranks_wait(&job, 60);
    if (!began || !full || !ranks_ok(&result)) {
        fail_msg("rank 0: %s", result.output[0]);
    }
    ranks_free(&result);
}

/* ---- Late ------------------------------------------------------------------------------------ */

/* A rank whose time was up, while it waited for a call or for others, may try again. */
static void end_again(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 0) {
        tn_message *in = tn_message_new();
        tn_message_add_int(in, 1000000);
        tn_future *f = tn_rpc_call(r, 1, "sleep", in, 0);
        CHECK(tn_rpc_shutdown(r, 0.1) == TN_EPEER && failed_with(TN_EPEER, "still running"));
        tn_message_free(tn_rpc_wait(f));
        CHECK(tn_rpc_shutdown(r, 0.1) == TN_EPEER && failed_with(TN_EPEER, "has not ended"));
        tn_message_free(ask_rank(r, 1, "echo", NULL, 0));
    }
    tn_barrier(world);
    CHECK(tn_rpc_shutdown(r, 10) == TN_OK);
    tn_rpc_free(r);
}

TEST(test_end_again) {
    run_ok(2, end_again, NULL);
}

static void missing_start(tn_group *world, void *user) {
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .timeout = 0.3));
    if (tn_rpc_rank(r) != 1) {
        CHECK(tn_rpc_start(r) == TN_EPEER && strstr(tn_error_message(), "rank 1"));
        tn_error_clear();
    }
    tn_rpc_free(r);
}

TEST(test_missing_start) {
    run_ok(3, missing_start, NULL);
}

/* Rank 2 is killed after tn_rpc_new, or when it has said where it listens ("at"): ranks 0 and 1,
 * which wait for it, learn that at once. */
static int wait_for_rank_2(tn_group *world, const char *argument) {
    snprintf(world->interface, sizeof(world->interface), "127.0.0.1"); /* listens at once */
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    printf("waiting\n");
    fflush(stdout);
    if (tn_rpc_rank(r) == 2) {
        if (*argument) {
            tn_store_set(world->store, "rpc/0/at/2", "127.0.0.1 1", 12);
        }
        sleep(60); /* until the test kills it */
    }
    double begin = tn__now();
    rank_assert(tn_rpc_start(r) == TN_EPEER && tn__now() - begin < 30);
    const char *named = strstr(tn_error_message(), "ended before it connected: rank ");
    rank_assert(named && strchr(named, '2')); /* the other may have ended first */
    tn_error_clear();
    tn_rpc_free(r);
    return 0;
}

static void kill_early(const char *argument) {
    ranks_job job = ranks_start(3, "wait_for_rank_2", argument, NULL);
    for (int i = 0; i < 3; i++) {
        assert_true(ranks_await_output(&job, i, "waiting", 60));
    }
    usleep(300000);
    kill(job.pid[2], SIGKILL);
    ranks_result result = ranks_wait(&job, 60);
    if (result.status[0] != 0 || result.status[1] != 0) {
        fail_msg("rank 0: %s, rank 1: %s", result.output[0], result.output[1]);
    }
    ranks_free(&result);
}

TEST(test_killed_early) {
    kill_early("");
    kill_early("at");
}

/* Rank 1 is killed or stopped while rank 0 waits for it. Rank 0 says how it ended. */
static int wait_for_rank_1(tn_group *world, const char *argument) {
    tn_rpc *r = start_rank(world);
    int rank = tn_rpc_rank(r);
    if (rank == 2) { /* rank 1 holds a reference, and rank 0 one that came from rank 1 */
        tn_remote *m = tn_remote_of(r, tn_ones(TN_DIMS(2), TN_F32));
        tn_message *in = tn_message_new();
        tn_message_add_remote(in, m);
        tn_message_free(ask_rank(r, 1, "echo", in, 0));
        tn_remote_free(m);
    }
    if (rank == 0) {
        double begin = tn__now();
        tn_message *in = tn_message_new();
        tn_message_add_int(in, 60000000);
        printf("waiting\n");
        fflush(stdout);
        rank_assert(!ask_rank(r, 1, "sleep", in, atof(argument)));
        printf("failed after %.3f s: %s\n", tn__now() - begin, tn_error_message());
        fflush(stdout);
        tn_error_clear();
        tn_message *out = ask_rank(r, 2, "add", NULL, 10); /* the others still work */
        rank_assert(!out && tn_error() == TN_EINDEX);
        tn_error_clear();
    } else {
        sleep(60); /* until the test kills it */
    }
    tn_rpc_free(r);
    return 0;
}

static void signal_rank_1(int signal, const char *seconds, double *took, char text[256]) {
    ranks_job job = ranks_start(3, "wait_for_rank_1", seconds, NULL);
    assert_true(ranks_await_output(&job, 0, "waiting", 60));
    usleep(200000);
    kill(job.pid[1], signal);
    bool ended = ranks_await_output(&job, 0, "failed", 60);
    for (int i = 0; i < 3; i++) {
        kill(job.pid[i], SIGKILL);
    }
    ranks_result result = ranks_wait(&job, 60);
    const char *line = strstr(result.output[0], "failed after");
    if (!ended || !line || sscanf(line, "failed after %lf s: %255[^\n]", took, text) != 2) {
        fail_msg("rank 0: %s", result.output[0]);
    }
    ranks_free(&result);
}

TEST(test_killed) {
    double took;
    char text[256];
    signal_rank_1(SIGKILL, "50", &took, text);
    assert_contains(text, "\"sleep\" of rank 1: rank 1 is gone");
    assert_true(took < 10);
}

TEST(test_stopped) {
    double took;
    char text[256];
    signal_rank_1(SIGSTOP, "1", &took, text);
    assert_contains(text, "\"sleep\" of rank 1: no answer within 1 seconds");
    assert_true(took < 10);
}

static const rank_entry bodies[] = {{"wait_for_rank_1", wait_for_rank_1},
                                    {"fill_rank_1", fill_rank_1},
                                    {"wait_for_rank_2", wait_for_rank_2}};

int main(int argc, char **argv) {
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(bodies[0]));
    return tests_run(NULL, NULL);
}
