/* Calls between ranks, from outside: what a careless program does, and ranks that are stopped or
 * killed in the middle of something. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "rpc_check.h"

#include "tests/support/ranks.h"

/* ---- The limits of what a message is --------------------------------------------------------- */

static tn_values ones_of(int n) {
    tn_values v = {n, {0}};
    for (int i = 0; i < n; i++) {
        v.v[i] = tn_scalar(i, TN_I64);
    }
    return v;
}

static int other_rank(const tn_group *world) {
    return tn_group_size(world) - 1 - tn_group_rank(world);
}

/* To the byte: a name of 4, a tensor's head of 8 and its size, and the elements. */
RANKS_TEST(test_exact_limit, 1, 2) {
    enum { LIMIT = 4096, HEADS = 4 + 8 + 8 };
    TN_SCOPE;
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .message_limit = LIMIT), NULL);
    for (int more = 0; more <= 1; more++) {
        tn_values in = TN_VALUES(tn_ones(TN_DIMS(LIMIT - HEADS + more), TN_U8));
        tn_values out = ask_rank(r, other_rank(world), "echo", in, 0);
        CHECK(more ? failed_with(TN_EVALUE, "has 4097 bytes or more (message_limit: 4096)")
                   : tn_count(out.v[0]) == LIMIT - HEADS);
    }
    end_rank(world, r);
}

/* One element seen as 2^60 is refused before memory is taken for it. */
RANKS_TEST(test_huge_views, 1, 2) {
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    tn_tensor *large = tn_expand(tn_ones(TN_DIMS(1), TN_F32), TN_DIMS((int64_t)1 << 60));
    tn_values in = {TN_MAX_VALUES, {0}};
    for (int i = 0; i < TN_MAX_VALUES; i++) { /* 2^65 bytes */
        in.v[i] = large;
    }
    CHECK(is_lost(ask_rank(r, other_rank(world), "count", in, 0)));
    CHECK(failed_with(TN_EVALUE, "message_limit"));
    end_rank(world, r);
}

RANKS_TEST(test_long_names, 1, 2) {
    TN_SCOPE;
    char name[257];
    memset(name, 'n', sizeof(name));
    name[256] = 0;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    int other = other_rank(world);
    CHECK(tn_rpc_register(r, name, count_values, NULL) == TN_EVALUE);
    CHECK(failed_with(TN_EVALUE, "a name of 1 to 255 bytes"));
    CHECK(tn_rpc_register(r, "", count_values, NULL) == TN_EVALUE);
    CHECK(failed_with(TN_EVALUE, "a name of 1 to 255 bytes"));
    name[255] = 0;
    tn_rpc_register(r, name, count_values, NULL);
    tn_rpc_start(r);
    CHECK(first_of(ask_rank(r, other, name, ones_of(3), 0)) == 3);
    name[255] = 'n';
    CHECK(is_lost(ask_rank(r, other, name, nothing, 0)) &&
          failed_with(TN_EVALUE, "1 to 255 bytes"));
    name[254] = 0;
    CHECK(is_lost(ask_rank(r, other, name, nothing, 0)));
    CHECK(failed_with(TN_EVALUE, "there is no function"));
    end_rank(world, r);
}

/* ---- Functions that are careless ------------------------------------------------------------- */

static tn_values raise_twice(tn_values in, void *user) {
    tn_raise(TN_EIO, "the first");
    tn_raise(TN_EINDEX, "the second");
    return number_of(1); /* not sent: it has failed */
}

static tn_values register_inside(tn_values in, void *user) {
    tn_rpc_register(user, "late", count_values, NULL);
    return nothing;
}

/* Neither may be called here. */
static tn_values end_inside(tn_values in, void *user) {
    tn_rpc_free(user);
    CHECK(failed_with(TN_ESTATE, "inside a function"));
    tn_rpc_shutdown(user, 1);
    return nothing;
}

static tn_values give_twice(tn_values in, void *user) {
    return TN_VALUES(in.v[0], in.v[0]);
}

static tn_values give_too_many(tn_values in, void *user) {
    return (tn_values){.n = 9};
}

static tn_values give_null(tn_values in, void *user) {
    return (tn_values){.n = 1};
}

/* Its scope's end finds the tensor dead. */
static tn_values release_argument(tn_values in, void *user) {
    tn_release(in.v[0]);
    return nothing;
}

RANKS_TEST(test_careless_functions, 1, 2) {
    TN_SCOPE;
    int other = other_rank(world);
    tn_rpc *r =
        start_with(world, tn_rpc_defaults(),
                   FUNCTIONS({"raise", raise_twice, NULL}, {"register", register_inside, NULL},
                             {"end", end_inside, NULL}, {"twice", give_twice, NULL},
                             {"too_many", give_too_many, NULL}, {"null", give_null, NULL}));
    for (int again = 0; again < 2; again++) {
        CHECK(is_lost(ask_rank(r, other, "raise", nothing, 0)) && failed_with(TN_EIO, "the first"));
        CHECK(is_lost(ask_rank(r, other, "end", nothing, 0)));
        CHECK(failed_with(TN_ESTATE, "inside a function"));
        CHECK(is_lost(ask_rank(r, other, "too_many", nothing, 0)));
        CHECK(failed_with(TN_EVALUE, ": 9 tensors (0 to 8)"));
        CHECK(is_lost(tn_rpc_forward(r, other, "null", nothing, 0)));
        CHECK(failed_with(TN_EVALUE, "NULL"));
        tn_values out = ask_rank(r, other, "register", nothing, 0);
        CHECK(again ? failed_with(TN_ESTATE, "\"late\" is registered already") : out.n == 0);
        CHECK(first_of(ask_rank(r, other, "late", ones_of(2), 0)) == 2);
        tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(4), TN_BF16), true);
        out = ask_rank(r, other, "twice", TN_VALUES(tn_slice(x, 0, 1, 3, 1)), 0);
        CHECK(out.n == 2 && tn_count(out.v[1]) == 2 && !tn_requires_grad(out.v[0]));
    }
    end_rank(world, r);
}

/* The same thread answers the next call. */
RANKS_TEST(test_careless_release, 2) {
    TN_SCOPE;
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .threads = 1, .threads_most = 1),
                           FUNCTIONS({"release", release_argument, NULL}));
    ask_rank(r, other_rank(world), "release", ones_of(1), 0);
    CHECK(!tn_error());
    CHECK(first_of(ask_rank(r, other_rank(world), "count", ones_of(2), 0)) == 2);
    end_rank(world, r);
}

/* ---- After the end --------------------------------------------------------------------------- */

/* After tn_rpc_shutdown a rank can still call itself. What was made before tn_rpc_free can be used
 * and freed after it, which gives errors. */
RANKS_TEST(test_after_the_end, 1, 2) {
    TN_SCOPE;
    tn_linear half;
    tn_seed(1);
    tn_linear_init(&half, 3, 3, tn_linear_defaults());
    tn_rpc *r = start_with(world, tn_rpc_defaults(), FUNCTIONS({"half", run_module, &half}));
    int rank = tn_group_rank(world);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(1, 3), TN_F32), true);
    tn_tensor *loss =
        tn_sum_all(tn_rpc_forward(r, other_rank(world), "half", TN_VALUES(x), 0).v[0]);
    CHECK(tn_rpc_shutdown(r, 60) == TN_OK);
    CHECK(first_of(ask_rank(r, rank, "count", ones_of(1), 0)) == 1);
    tn_future *f = tn_rpc_call(r, rank, "count", ones_of(1), 0);
    tn_rpc_free(r);
    CHECK(is_lost(tn_rpc_wait(f)) ? tn_error() == TN_EPEER : !tn_error()); /* perhaps it ran */
    tn_error_clear();
    tn_backward(loss);
    CHECK(tn_error() == TN_EPEER); /* whichever side was first */
    tn_error_clear();
    tn_module_finish(&half);
}

/* ---- Stopped or killed in the middle --------------------------------------------------------- */

enum { LARGE = 48 << 20 }; /* bytes: more than sockets take */

/* Stops this process; the test lets it go on. */
static void pause_here(void) {
    raise(SIGSTOP);
}

static void await_pause(const ranks_job *job, int rank) {
    int status = 0;
    assert_int_equal(waitpid(job->pid[rank], &status, WUNTRACED), job->pid[rank]);
    assert_true(WIFSTOPPED(status));
}

static void stop_rank(const ranks_job *job, int rank) {
    kill(job->pid[rank], SIGSTOP);
    await_pause(job, rank);
}

static void print_line(const char *text) {
    printf("%s\n", text);
    fflush(stdout);
}

/* Rank 0 sends rank 1 a large message, and rank 2 calls both meanwhile. Each is stopped in the
 * middle: first rank 1, so that rank 0 gets rid of a part only, then rank 0. */
RANK(half_a_frame) {
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    int rank = tn_group_rank(world);
    if (rank == 0) {
        tn_values in = TN_VALUES(tn_zeros(TN_DIMS(LARGE), TN_U8));
        pause_here();
        tn_future *f = tn_rpc_call(r, 1, "echo", in, 0);
        rank_assert(f && !tn_rpc_done(f));
        pause_here();
        rank_assert(tn_count(tn_rpc_wait(f).v[0]) == LARGE);
    } else if (rank == 2) {
        pause_here(); /* until rank 1 has a part of a frame, and rank 0 is stopped */
        rank_assert(first_of(ask_rank(r, 1, "count", ones_of(4), 0)) == 4);
        print_line("answered");
    }
    rank_assert(tn_rpc_shutdown(r, 60) == TN_OK);
    tn_rpc_free(r);
    return 0;
}

TEST(test_stopped_in_a_frame) {
    ranks_job job = ranks_start(3, "half_a_frame", "", NULL);
    await_pause(&job, 0);
    await_pause(&job, 2);
    stop_rank(&job, 1);
    kill(job.pid[0], SIGCONT);
    await_pause(&job, 0);
    kill(job.pid[1], SIGCONT);
    kill(job.pid[2], SIGCONT);
    assert_true(ranks_await_output(&job, 2, "answered", 60));
    kill(job.pid[0], SIGCONT);
    ranks_result result = ranks_wait(&job, 60);
    assert_true(ranks_ok(&result));
    ranks_free(&result);
}

/* What rank 0 does while rank 1 is stopped, until it is killed. */
enum { CALL, LARGE_CALL, FORWARD, BACKWARD, SHUTDOWN, PHASES };

/* An error that names rank 1, and nothing is kept for it. Rank 1 has run forward through rank 0,
 * which keeps that graph until rank 1 is gone. */
static void survive_rank_1(tn_rpc *r, int phase) {
    TN_SCOPE;
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(1, 3), TN_F32), true);
    tn_values large = TN_VALUES(tn_zeros(TN_DIMS(LARGE), TN_U8));
    tn_tensor *loss = tn_sum_all(tn_rpc_forward(r, 1, "half", TN_VALUES(x), 0).v[0]);
    rank_assert(comes_to_keep(r, 1));
    pause_here();
    if (phase == CALL) { ask_rank(r, 1, "count", nothing, 0); }
    if (phase == LARGE_CALL) { ask_rank(r, 1, "count", large, 0); }
    if (phase == FORWARD) { tn_rpc_forward(r, 1, "half", TN_VALUES(x), 0); }
    if (phase == BACKWARD) { tn_backward(loss); }
    if (phase == SHUTDOWN) { tn_rpc_shutdown(r, 0); }
    rank_assert(failed_with(TN_EPEER, "rank 1 is gone"));
}

static atomic_int released; /* calls */

static tn_values release_rank(tn_values in, void *user) {
    atomic_fetch_add(&released, 1);
    return nothing;
}

/* Rank 2 stays until rank 0 has called it twice: others still work. It may leave before the second
 * answer is sent. Rank 1 does not end by itself. */
RANK(rank_1_dies) {
    TN_SCOPE;
    tn_linear half;
    tn_seed(1);
    tn_linear_init(&half, 3, 3, tn_linear_defaults());
    int rank = tn_group_rank(world);
    tn_rpc *r = start_with(world, tn_rpc_defaults(),
                           FUNCTIONS({"half", run_module, &half}, {"release", release_rank, NULL}));
    tn_tensor *x = tn_ones(TN_DIMS(1, 3), TN_F32);
    if (rank == 1) { tn_rpc_forward(r, 0, "half", TN_VALUES(x), 0); }
    if (rank == 0) {
        survive_rank_1(r, atoi(argument));
        rank_assert(!is_lost(ask_rank(r, 2, "release", nothing, 0)) && comes_to_keep(r, 0));
        ask_rank(r, 2, "release", nothing, 0);
        tn_error_clear();
    }
    while (rank == 1) {
        pause();
    }
    rank_assert(tn_rpc_shutdown(r, 60) == TN_EPEER && failed_with(TN_EPEER, "rank 1 is gone"));
    for (int i = 0; rank == 2 && atomic_load(&released) < 2 && i < 60000; i++) {
        usleep(1000);
    }
    tn_rpc_free(r);
    tn_module_finish(&half);
    return 0;
}

TEST(test_killed_in_each_phase) {
    for (int i = 0; i < PHASES; i++) {
        char argument[8];
        snprintf(argument, sizeof(argument), "%d", i);
        ranks_job job = ranks_start(3, "rank_1_dies", argument, NULL);
        await_pause(&job, 0);
        stop_rank(&job, 1);
        kill(job.pid[0], SIGCONT);
        usleep(50000); /* most of the time it waits then */
        kill(job.pid[1], SIGKILL);
        ranks_result result = ranks_wait(&job, 60);
        result.status[1] = 0;
        if (!ranks_ok(&result)) { fail_msg("phase %d", i); }
        ranks_free(&result);
    }
}

/* ---- All ------------------------------------------------------------------------------------- */
