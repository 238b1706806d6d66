/* Calls of ranks that are slow, late or stopped. */
#include "distributed/group/group.h"

#include <signal.h>
#include <stdlib.h>

#include "rpc_check.h"

#include "tests/support/ranks.h"

RANKS_TEST(test_slow, 2) {
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    if (tn_group_rank(world) == 0) {
        double begin = tn__now();
        CHECK(is_lost(ask_rank(r, 1, "sleep", number_of(500000), 0.1)));
        CHECK(failed_with(TN_EPEER, "\"sleep\" of rank 1: no answer within 0.1 seconds"));
        CHECK(tn__now() - begin < 0.45);
        CHECK(ask_rank(r, 1, "echo", nothing, 0).n == 0); /* its late reply disturbs nothing */
    }
    end_rank(world, r);
}

/* Rank 1 leaves without a word while rank 0 waits for it, and calls it again. */
RANKS_TEST(test_abrupt_end, 2) {
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    if (tn_group_rank(world) == 1) {
        usleep(200000);
        tn_rpc_free(r);
        return;
    }
    CHECK(is_lost(ask_rank(r, 1, "sleep", number_of(600000), 30)));
    CHECK(failed_with(TN_EPEER, "\"sleep\" of rank 1: rank 1 is gone"));
    CHECK(is_lost(ask_rank(r, 1, "echo", nothing, 30)) && failed_with(TN_EPEER, "rank 1 is gone"));
    CHECK(tn_rpc_shutdown(r, 30) == TN_EPEER && failed_with(TN_EPEER, "rank 1 is gone"));
    tn_rpc_free(r);
}

/* Rank 1 has not ended and stays; rank 2 leaves without a word, and rank 0 waits no longer. */
static void leaves_a_third(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    int rank = tn_group_rank(world);
    if (rank == 0) { CHECK(tn_rpc_shutdown(r, 30) == TN_EPEER && failed_with(TN_EPEER, "rank 2")); }
    if (rank == 2) { tn_rpc_free(r); }
    tn_barrier(world);
    if (rank != 2) { tn_rpc_free(r); }
}

TEST(test_a_third_rank_that_leaves) {
    double begin = tn__now();
    run_ok(3, leaves_a_third, NULL);
    assert_true(tn__now() - begin < 25);
}

/* Whoever asks instead of waiting learns of the deadline as well. */
TEST(test_done_when_late) {
    tn_rpc *r = start_rank(NULL);
    tn_future *f = tn_rpc_call(r, 0, "sleep", number_of(1000000), 0.5);
    assert_false(tn_rpc_done(f));
    usleep(600000);
    assert_true(tn_rpc_done(f));
    assert_true(is_lost(tn_rpc_wait(f)));
    assert_error(TN_EPEER, "no answer within 0.5 seconds");
    tn_rpc_free(r);
}

/* ---- Faster than it answers ------------------------------------------------------------------ */

enum { LARGE = 3000, TWO_LARGE = 5000 }; /* bytes of a call, and a limit that two of them reach */

static tn_future *call_large(tn_rpc *r, int to, const char *name, double timeout) {
    TN_SCOPE;
    tn_values large = {1, {tn_zeros(TN_DIMS(LARGE), TN_U8)}};
    return tn_rpc_call(r, to, name, large, timeout);
}

static tn_values echo_slowly(tn_values in, void *user) {
    usleep(20000);
    return in;
}

/* A call waits until the last but one is answered. */
RANKS_TEST(test_slow_server, 2) {
    enum { CALLS = 8 };
    TN_SCOPE;
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .threads = 1, .backlog_limit = TWO_LARGE),
                           FUNCTIONS({"echo_slowly", echo_slowly, NULL}));
    for (int to = 0; tn_group_rank(world) == 0 && to < 2; to++) { /* to itself too */
        tn_future *f[CALLS];
        for (int i = 0; i < CALLS; i++) {
            f[i] = call_large(r, to, "echo_slowly", 0);
            CHECK(f[i] && (i < 2 || tn_rpc_done(f[i - 2])));
        }
        for (int i = 0; i < CALLS; i++) {
            CHECK(tn_count(tn_rpc_wait(f[i]).v[0]) == LARGE);
        }
    }
    end_rank(world, r);
}

/* Calls inside functions do not wait for room, which may come only after them: here both ranks have
 * called as much as they may. */
static tn_values call_back(tn_values in, void *rpc) {
    tn_values out = {2, {0}};
    for (int i = 0; i < 2; i++) {
        out.v[i] = tn_rpc_wait(call_large(rpc, tn_rpc_caller(), "echo", 0)).v[0];
    }
    return out;
}

RANKS_TEST(test_room_inside, 2) {
    TN_SCOPE;
    int other = 1 - tn_group_rank(world);
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .threads = 1, .backlog_limit = TWO_LARGE),
                           FUNCTIONS({"call_back", call_back, NULL}));
    for (int i = 0; i < 20; i++) {
        tn_future *f[] = {call_large(r, other, "call_back", 30),
                          call_large(r, other, "call_back", 30)};
        for (int k = 0; k < 2; k++) {
            CHECK(tn_rpc_wait(f[k]).n == 2);
        }
    }
    end_rank(world, r);
}

/* A rank that is stopped is sent no more than the limit. When it goes on it answers all that. */
RANK(fill_rank_1) {
    enum { MOST = 100 };
    TN_SCOPE;
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .backlog_limit = 10 * LARGE), NULL);
    if (tn_group_rank(world) == 0) {
        printf("calling\n");
        fflush(stdout);
        for (bool stopped = false; !stopped; tn_error_clear()) {
            ask_rank(r, 1, "echo", nothing, 0.5);
            stopped = tn_error() == TN_EPEER;
        }
        tn_future *f[MOST];
        int n = 0;
        while (n < MOST && (f[n] = call_large(r, 1, "echo", n < 10 ? 60 : 0.5))) {
            n++;
        }
        rank_assert(n == 10);
        rank_assert(failed_with(TN_EPEER, "bytes of calls wait for its answers (backlog_limit: "));
        ask_rank(r, 2, "echo", nothing, 60);
        rank_assert(!tn_error());
        printf("full\n");
        fflush(stdout);
        for (int i = 0; i < n; i++) {
            rank_assert(tn_count(tn_rpc_wait(f[i]).v[0]) == LARGE);
        }
        rank_assert(!is_lost(tn_rpc_wait(call_large(r, 1, "echo", 60))));
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
    if (!began || !full || !ranks_ok(&result)) { fail_msg("rank 0: %s", result.output[0]); }
    ranks_free(&result);
}

/* ---- Late ------------------------------------------------------------------------------------ */

/* A rank whose time was up, while it waited for a call or for others, may try again. */
RANKS_TEST(test_end_again, 2) {
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    if (tn_group_rank(world) == 0) {
        tn_future *f = tn_rpc_call(r, 1, "sleep", number_of(1000000), 0);
        CHECK(tn_rpc_shutdown(r, 0.1) == TN_EPEER && failed_with(TN_EPEER, "still running"));
        CHECK(!is_lost(tn_rpc_wait(f)));
        CHECK(tn_rpc_shutdown(r, 0.1) == TN_EPEER &&
              failed_with(TN_EPEER, "rank 1 has not ended within 0.1 seconds"));
        CHECK(ask_rank(r, 1, "echo", nothing, 0).n == 0);
    }
    tn_barrier(world);
    CHECK(tn_rpc_shutdown(r, 10) == TN_OK);
    tn_rpc_free(r);
}

RANKS_TEST(test_missing_start, 3) {
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .timeout = 0.3));
    if (tn_group_rank(world) != 1) {
        CHECK(tn_rpc_start(r) == TN_EPEER && strstr(tn_error_message(), "rank 1"));
        tn_error_clear();
    }
    tn_rpc_free(r);
}
