/* References to what stays with its owner. */
#include "core/allocator.h"

#include <signal.h>
#include <stdlib.h>

#include "rpc_check.h"

#include "tests/support/ranks.h"

static int let_go_of; /* how many counters */

static void free_counter(void *counter) {
    __atomic_fetch_add(&let_go_of, 1, __ATOMIC_RELAXED);
    free(counter);
}

static void make_counter(const tn_message *in, tn_message *out, void *rpc) {
    tn_remote *m = tn_remote_of_object(rpc, calloc(1, sizeof(int64_t)), free_counter);
    tn_message_add_remote(out, m);
    tn_remote_free(m);
}

static void count_up(const tn_message *in, tn_message *out, void *rpc) {
    tn_remote *m = tn_message_remote(in, 0);
    int64_t *counter = tn_remote_object(m);
    if (counter) {
        tn_message_add_int(out, __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED));
    }
    tn_remote_free(m);
}

static void make_tensor(const tn_message *in, tn_message *out, void *rpc) {
    tn_remote *m = tn_remote_of(rpc, tn_arange(0, (double)tn_message_int(in, 0), 1, TN_F32));
    tn_message_add_remote(out, m);
    tn_remote_free(m);
}

/* Fetches a reference's tensor, wherever it is, and gives the sum. */
static void sum_remote(const tn_message *in, tn_message *out, void *rpc) {
    tn_remote *m = tn_message_remote(in, 0);
    tn_message_add_int(out, (int64_t)tn_item(tn_sum_all(tn_remote_get(m, 0))));
    tn_remote_free(m);
}

static tn_rpc *start_owner(tn_group *world) {
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_rpc_register(r, "make_counter", make_counter, r);
    tn_rpc_register(r, "count_up", count_up, r);
    tn_rpc_register(r, "make_tensor", make_tensor, r);
    tn_rpc_register(r, "sum", sum_remote, r);
    tn_rpc_start(r);
    return r;
}

static tn_remote *ask_remote(tn_rpc *r, int to, const char *name, int64_t number) {
    tn_message *in = tn_message_new();
    tn_message_add_int(in, number);
    tn_message *out = ask_rank(r, to, name, in, 0);
    tn_remote *m = tn_message_remote(out, 0);
    tn_message_free(out);
    return m;
}

static int64_t ask_about(tn_rpc *r, int to, const char *name, tn_remote *m) {
    tn_message *in = tn_message_new();
    tn_message_add_remote(in, m);
    tn_message *out = ask_rank(r, to, name, in, 0);
    int64_t number = tn_message_int(out, 0);
    tn_message_free(out);
    return number;
}

static void use_references(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = start_owner(world);
    if (tn_rpc_rank(r) == 0) {
        tn_remote *counter = ask_remote(r, 1, "make_counter", 0);
        CHECK(tn_remote_owner(counter) == 1);
        for (int i = 1; i <= 20; i++) {
            CHECK(ask_about(r, 1, "count_up", counter) == i);
        }
        CHECK(!tn_remote_object(counter) && failed_with(TN_ESTATE, "the owner, rank 1"));
        CHECK(tn_is_inert(tn_remote_get(counter, 0)) && failed_with(TN_ESTATE, "not a tensor"));
        tn_remote *tensor = ask_remote(r, 1, "make_tensor", 5);
        CHECK(tn_item(tn_sum_all(tn_remote_get(tensor, 0))) == 10);
        CHECK(ask_about(r, 2, "sum", tensor) == 10); /* a third rank fetches it from the second */
        CHECK(ask_about(r, 0, "sum", tensor) == 10);
        tn_remote_free(tensor);
        tn_remote_free(counter);
        tn_tensor *t = tn_ones(TN_DIMS(4), TN_F32); /* and one that stays here */
        tn_remote *own = tn_remote_of(r, t);
        CHECK(tn_remote_get(own, 0) == t && tn_rpc_kept(r) == 1);
        CHECK(ask_about(r, 1, "sum", own) == 4);
        CHECK(!tn_remote_object(own) && failed_with(TN_ESTATE, "it is a tensor"));
        CHECK(ask_about(r, 2, "sum", own) == 4);
        tn_remote_free(own);
        CHECK(comes_to_keep(r, 0));
    }
    end_rank(world, r);
}

TEST(test_references) {
    let_go_of = 0;
    run_ok(3, use_references, NULL);
    assert_int_equal(let_go_of, 1);
}

/* A reference in the reply of a call that nobody waits for any more is given back. */
static void slow_counter(const tn_message *in, tn_message *out, void *rpc) {
    usleep(200000);
    make_counter(in, out, rpc);
}

static void late_reference(tn_group *world, void *user) {
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_rpc_register(r, "slow_counter", slow_counter, r);
    tn_rpc_start(r);
    if (tn_rpc_rank(r) == 0) {
        CHECK(!tn_rpc_wait(tn_rpc_call(r, 1, "slow_counter", NULL, 0.05)));
        CHECK(failed_with(TN_EPEER, "no answer"));
    }
    end_rank(world, r);
}

TEST(test_late_reference) {
    let_go_of = 0;
    run_ok(2, late_reference, NULL);
    assert_int_equal(let_go_of, 1);
}

/* References in calls that no function gets are given back: there is none of this name, or it is
 * too late to begin. */
TEST(test_dropped_references) {
    tn_rpc *r = tn_rpc_new(NULL, TN_WITH(tn_rpc, .threads = 1));
    tn_rpc_register(r, "slow_counter", slow_counter, r);
    tn_rpc_start(r);
    tn_remote *own = tn_remote_of(r, tn_ones(TN_DIMS(4), TN_F32));
    tn_message *in = tn_message_new();
    tn_message_add_remote(in, own);
    assert_null(ask_rank(r, 0, "nothing", in, 0));
    assert_error(TN_EVALUE, "there is no function");
    tn_future *first = tn_rpc_call(r, 0, "slow_counter", NULL, 0);
    in = tn_message_new();
    tn_message_add_remote(in, own);
    assert_null(tn_rpc_wait(tn_rpc_call(r, 0, "slow_counter", in, 0.01)));
    assert_error(TN_EPEER, "no answer");
    tn_message_free(tn_rpc_wait(first));
    assert_int_equal(tn_rpc_shutdown(r, 20), TN_OK);
    tn_remote_free(own);
    assert_int_equal(tn_rpc_kept(r), 0);
    tn_rpc_free(r);
}

/* References in a message that is too large for who gets it, a call or a result, are given back: of
 * the sender's own objects, the receiver's and a third rank's, before and after what is large. */
static void give_too_much(const tn_message *in, tn_message *out, void *rpc) {
    echo_values(in, out, NULL);
    make_counter(in, out, rpc);
    tn_message_add(out, tn_zeros(TN_DIMS(5, 10000), TN_U8));
    tn_message_add_text(out, "a text");
    make_counter(in, out, rpc);
}

static void ask_too_much(tn_rpc *r, int to, int64_t bytes, const char *error) {
    tn_remote *own = tn_remote_of(r, tn_ones(TN_DIMS(4), TN_F32));
    tn_remote *theirs = ask_remote(r, to, "make_counter", 0);
    tn_remote *third = ask_remote(r, 3 - to, "make_counter", 0);
    tn_message *in = tn_message_new();
    tn_message_add_remote(in, own);
    tn_message_add_remote(in, third);
    tn_message_add(in, tn_zeros(TN_DIMS(bytes), TN_U8));
    tn_message_add_int(in, -1);
    tn_message_add_remote(in, theirs);
    tn_message_add_remote(in, third);
    CHECK(!ask_rank(r, to, "give_too_much", in, 0));
    CHECK(failed_with(TN_EVALUE, error));
    tn_remote_free(own);
    tn_remote_free(theirs);
    tn_remote_free(third);
}

static void refused_references(tn_group *world, void *user) {
    static const int64_t limits[] = {40000, 20000, 80000};
    TN_SCOPE;
    int rank = tn_group_rank(world);
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .message_limit = limits[rank]));
    tn_rpc_register(r, "make_counter", make_counter, r);
    tn_rpc_register(r, "give_too_much", give_too_much, r);
    tn_rpc_start(r);
    if (rank == 0) {
        ask_too_much(r, 1, 30000, "message_limit there: 20000");
        ask_too_much(r, 2, 100, "(message_limit: 40000)");
    }
    end_rank(world, r);
}

TEST(test_refused_references) {
    let_go_of = 0;
    run_ok(3, refused_references, NULL);
    assert_int_equal(let_go_of, 6);
}

/* Numbers mean something else in another rpc. */
TEST(test_foreign_reference) {
    tn_rpc *r = start_owner(NULL), *other = start_owner(NULL);
    tn_remote *m = tn_remote_of(r, tn_ones(TN_DIMS(4), TN_F32));
    tn_remote *same_number = tn_remote_of(other, tn_ones(TN_DIMS(5), TN_F32));
    tn_message *in = tn_message_new();
    tn_message_add_remote(in, m);
    assert_null(ask_rank(other, 0, "sum", in, 0));
    assert_error(TN_EVALUE, "another rpc");
    assert_int_equal(ask_about(r, 0, "sum", m), 4);
    tn_remote_free(m);
    tn_remote_free(same_number);
    assert_int_equal(tn_rpc_kept(r) + tn_rpc_kept(other), 0);
    tn_rpc_free(r);
    tn_rpc_free(other);
}

/* tn_rpc_free lets go of what a function uses only when that has ended. */
static int used_after; /* how many were let go of while in use */
static bool is_used;

static void use_slowly(const tn_message *in, tn_message *out, void *rpc) {
    tn_remote *m = tn_message_remote(in, 0);
    CHECK(tn_remote_object(m) == &used_after);
    __atomic_store_n(&is_used, true, __ATOMIC_RELEASE);
    usleep(200000);
    __atomic_store_n(&is_used, false, __ATOMIC_RELEASE);
    tn_remote_free(m);
}

static void let_go_used(void *object) {
    used_after += __atomic_load_n(&is_used, __ATOMIC_ACQUIRE);
}

TEST(test_free_while_used) {
    failures = used_after = 0;
    tn_rpc *r = tn_rpc_new(NULL, tn_rpc_defaults());
    tn_rpc_register(r, "use", use_slowly, r);
    tn_rpc_start(r);
    tn_remote *m = tn_remote_of_object(r, &used_after, let_go_used);
    tn_message *in = tn_message_new();
    tn_message_add_remote(in, m);
    tn_remote_free(m);
    tn_future *f = tn_rpc_call(r, 0, "use", in, 0);
    while (!__atomic_load_n(&is_used, __ATOMIC_ACQUIRE)) {
        usleep(1000);
    }
    tn_rpc_free(r);
    assert_null(tn_rpc_wait(f));
    assert_error(TN_EPEER, "tn_rpc_free was called");
    assert_int_equal(used_after, 0);
    assert_int_equal(failures, 0);
}

/* Without memory for a reference, what it is for stays the caller's. */
TEST(test_no_memory) {
    tn_rpc *r = tn_rpc_new(NULL, tn_rpc_defaults());
    tn_tensor *t = tn_ones(TN_DIMS(4), TN_F32);
    let_go_of = 0;
    int64_t *counter = calloc(1, sizeof(*counter));
    for (int i = 0, failed = 1; failed; i++) {
        for (int object = 0; object < 2; object++) {
            tn__alloc_fail_at(i);
            tn_remote *m =
                object ? tn_remote_of_object(r, counter, free_counter) : tn_remote_of(r, t);
            failed = !tn__alloc_fail_armed();
            tn__alloc_fail_at(-1);
            assert_int_equal(m == NULL, failed);
            assert_int_equal(let_go_of, 0);
            assert_int_equal(tn_rpc_kept(r), m ? 1 : 0);
            if (failed) {
                assert_error(TN_ENOMEM, "remote");
            }
            tn_remote_free(m);
        }
    }
    assert_int_equal(let_go_of, 1);
    assert_true(tn_item(tn_sum_all(t)) == 4);
    tn_rpc_free(r);
}

/* Whatever there is no memory for on the way there and back: no reference is left. */
static void give_back(const tn_message *in, tn_message *out, void *rpc) {
    for (int i = 0; i < tn_message_count(in); i++) {
        tn_remote *m = tn_message_remote(in, i);
        tn_message_add_remote(out, m);
        tn_remote_free(m);
    }
}

TEST(test_no_memory_on_the_way) {
    tn_rpc *r = tn_rpc_new(NULL, TN_WITH(tn_rpc, .timeout = 0.5));
    tn_rpc_register(r, "give_back", give_back, r);
    tn_rpc_start(r);
    tn_tensor *t = tn_ones(TN_DIMS(4), TN_F32);
    for (int i = 0, failed = 1; failed; i++) {
        tn_remote *m[] = {tn_remote_of(r, t), tn_remote_of(r, t)};
        tn__alloc_fail_at(i);
        tn_message *in = tn_message_new();
        for (int k = 0; k < 3; k++) {
            tn_message_add_remote(in, m[k % 2]);
        }
        tn_message *out = ask_rank(r, 0, "give_back", in, 0);
        failed = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_true(failed || tn_message_count(out) == 3);
        tn_error_clear(); /* if any: there may have been no memory for a log's line only */
        tn_message_free(out);
        tn_remote_free(m[0]);
        tn_remote_free(m[1]);
        assert_true(comes_to_keep(r, 0));
    }
    assert_int_equal(tn_rpc_shutdown(r, 20), TN_OK);
    tn_rpc_free(r);
}

/* A message that cannot be sent leaves no reference with the rank that would have got it, rank 1,
 * whoever is the owner: rank 3, which leaves, has the last. */
static void half_passed(tn_group *world, void *user) {
    tn_rpc *r = start_owner(world);
    int rank = tn_rpc_rank(r);
    if (rank == 0) {
        tn_remote *own = tn_remote_of(r, tn_ones(TN_DIMS(4), TN_F32));
        tn_remote *third = ask_remote(r, 2, "make_counter", 0);
        tn_remote *other = ask_remote(r, 3, "make_counter", 0);
        tn_message *in = tn_message_new();
        tn_message_add_remote(in, own);
        tn_message_add_remote(in, third);
        tn_message_add_remote(in, other);
        tn_barrier(world); /* rank 3 leaves */
        tn_status status = TN_OK;
        while (status != TN_EPEER) {
            ask_rank(r, 3, "nothing", NULL, 0);
            status = tn_error();
            tn_error_clear();
        }
        CHECK(!ask_rank(r, 1, "nothing", in, 0) && failed_with(TN_EPEER, "rank 3"));
        tn_remote_free(own);
        tn_remote_free(third);
        tn_remote_free(other);
        CHECK(tn_rpc_kept(r) == 0);
    } else {
        tn_barrier(world);
    }
    CHECK(rank == 3 || comes_to_keep(r, 0)); /* while rank 1 is there */
    if (rank != 3) {
        tn_barrier(world);
    }
    tn_rpc_free(r);
    if (rank == 3) {
        tn_barrier(world);
    }
}

TEST(test_half_passed) {
    let_go_of = 0;
    run_ok(4, half_passed, NULL);
    assert_int_equal(let_go_of, 2);
}

/* Rank 2 is stopped when rank 0 wants to pass rank 2's counter on to rank 1, and counts nothing for
 * rank 1 when it goes on: nobody waits for that any more. */
static void await_kept(tn_rpc *r, int64_t count) {
    while (tn_rpc_kept(r) != count) {
        usleep(1000);
    }
    printf("keeps %lld\n", (long long)count);
    fflush(stdout);
}

static int pass_too_late(tn_group *world, const char *argument) {
    tn_rpc *r = start_owner(world);
    if (tn_rpc_rank(r) == 0) {
        tn_remote *counter = ask_remote(r, 2, "make_counter", 0);
        for (bool late = false; !late; tn_error_clear()) {
            tn_message *in = tn_message_new();
            tn_message_add_remote(in, counter);
            rank_assert(!ask_rank(r, 1, "nothing", in, 0.5));
            late = tn_error() == TN_EPEER && strstr(tn_error_message(), "tn/share");
        }
        printf("too late\n");
        fflush(stdout);
        rank_assert(!ask_rank(r, 2, "nothing", NULL, 60) && tn_error() == TN_EVALUE);
        tn_error_clear();
        tn_remote_free(counter);
    } else if (tn_rpc_rank(r) == 2) {
        await_kept(r, 1);
        await_kept(r, 0);
    }
    sleep(60); /* until the test kills it */
    return 0;
}

TEST(test_passed_too_late) {
    ranks_job job = ranks_start(3, "pass_too_late", "", NULL);
    bool began = ranks_await_output(&job, 2, "keeps 1", 60);
    kill(job.pid[2], SIGSTOP);
    bool late = ranks_await_output(&job, 0, "too late", 60);
    kill(job.pid[2], SIGCONT);
    bool ended = ranks_await_output(&job, 2, "keeps 0", 20);
    for (int i = 0; i < 3; i++) {
        kill(job.pid[i], SIGKILL);
    }
    ranks_result result = ranks_wait(&job, 60);
    if (!began || !late || !ended) {
        fail_msg("rank 0: %s, rank 2: %s", result.output[0], result.output[2]);
    }
    ranks_free(&result);
}

/* Rank 0 passes rank 2's counter on to rank 1, which is stopped, and is killed halfway: rank 1 will
 * never get it, and rank 2 learns that. */
static int pass_and_die(tn_group *world, const char *argument) {
    tn_rpc *r = start_owner(world);
    if (tn_rpc_rank(r) == 0) {
        tn_remote *counter = ask_remote(r, 2, "make_counter", 0);
        rank_assert(ask_about(r, 2, "count_up", counter) == 1);
        tn_message_free(ask_rank(r, 1, "nothing", NULL, 0));
        tn_error_clear();
        printf("has it\n");
        fflush(stdout);
        for (bool stopped = false; !stopped; tn_error_clear()) {
            tn_message_free(ask_rank(r, 1, "nothing", NULL, 0.5));
            stopped = tn_error() == TN_EPEER;
        }
        tn_message *in = tn_message_new();
        tn_message_add(in, tn_zeros(TN_DIMS(64 << 20), TN_U8)); /* more than a socket takes */
        tn_message_add_remote(in, counter);
        rank_assert(tn_rpc_call(r, 1, "nothing", in, 0));
        printf("sent\n");
        fflush(stdout);
    } else if (tn_rpc_rank(r) == 2) {
        await_kept(r, 1);
        await_kept(r, 0);
    }
    sleep(60); /* until the test kills it */
    return 0;
}

TEST(test_killed_halfway) {
    ranks_job job = ranks_start(3, "pass_and_die", "", NULL);
    bool began = ranks_await_output(&job, 0, "has it", 60);
    kill(job.pid[1], SIGSTOP);
    bool sent = ranks_await_output(&job, 0, "sent", 60);
    kill(job.pid[0], SIGKILL);
    kill(job.pid[1], SIGCONT);
    bool ended = ranks_await_output(&job, 2, "keeps 0", 20);
    for (int i = 0; i < 3; i++) {
        kill(job.pid[i], SIGKILL);
    }
    ranks_result result = ranks_wait(&job, 60);
    if (!began || !sent || !ended) {
        fail_msg("rank 0: %s, rank 2: %s", result.output[0], result.output[2]);
    }
    ranks_free(&result);
}

/* The same when the owner, rank 2, is stopped, and reads what rank 0 asked of it only after all
 * that others say of rank 0's end: in front of it there is more than is read at once. */
static int ask_and_die(tn_group *world, const char *argument) {
    tn_rpc *r = start_owner(world);
    if (tn_rpc_rank(r) == 0) {
        tn_remote *counter = ask_remote(r, 2, "make_counter", 0);
        printf("has it\n");
        fflush(stdout);
        for (bool stopped = false; !stopped; tn_error_clear()) {
            tn_message_free(ask_rank(r, 2, "nothing", NULL, 0.5));
            stopped = tn_error() == TN_EPEER;
        }
        for (int i = 0; i < 300; i++) {
            rank_assert(tn_rpc_call(r, 2, "nothing", NULL, 0));
        }
        printf("asks\n");
        fflush(stdout);
        tn_message *in = tn_message_new();
        tn_message_add_remote(in, counter);
        tn_rpc_call(r, 1, "nothing", in, 0);
    } else if (tn_rpc_rank(r) == 1) {
        while (!ask_rank(r, 0, "nothing", NULL, 0) && tn_error() != TN_EPEER) {
            tn_error_clear();
            usleep(1000);
        }
        tn_error_clear();
        printf("lost it\n");
        fflush(stdout);
    } else {
        await_kept(r, 1);
        await_kept(r, 0);
    }
    sleep(60); /* until the test kills it */
    return 0;
}

TEST(test_killed_asking) {
    ranks_job job = ranks_start(3, "ask_and_die", "", NULL);
    bool began =
        ranks_await_output(&job, 0, "has it", 60) && ranks_await_output(&job, 2, "keeps 1", 60);
    kill(job.pid[2], SIGSTOP);
    bool asks = ranks_await_output(&job, 0, "asks", 60);
    usleep(500000); /* for the question to be sent */
    kill(job.pid[0], SIGKILL);
    bool lost = ranks_await_output(&job, 1, "lost it", 60);
    kill(job.pid[2], SIGCONT);
    bool ended = ranks_await_output(&job, 2, "keeps 0", 20);
    for (int i = 0; i < 3; i++) {
        kill(job.pid[i], SIGKILL);
    }
    ranks_result result = ranks_wait(&job, 60);
    if (!began || !asks || !lost || !ended) {
        fail_msg("rank 0: %s, rank 2: %s", result.output[0], result.output[2]);
    }
    ranks_free(&result);
}

/* Holders that are killed hold nothing: rank 1 and 2 have references to rank 0's tensor, and rank 2
 * got its own from rank 1. */
static tn_remote *held;

static void hold_it(const tn_message *in, tn_message *out, void *rpc) {
    held = tn_message_remote(in, 0);
    if (tn_rpc_rank(rpc) == 1) {
        tn_message *next = tn_message_new();
        tn_message_add_remote(next, held);
        tn_message_free(ask_rank(rpc, 2, "hold", next, 0));
    }
}

static int hold_until_killed(tn_group *world, const char *argument) {
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_rpc_register(r, "hold", hold_it, r);
    tn_rpc_start(r);
    if (tn_rpc_rank(r) > 0) {
        sleep(60);
        return 0;
    }
    tn_message *in = tn_message_new();
    tn_remote *m = tn_remote_of(r, tn_ones(TN_DIMS(4), TN_F32));
    tn_message_add_remote(in, m);
    tn_message_free(ask_rank(r, 1, "hold", in, 0));
    tn_remote_free(m);
    rank_assert(!tn_error() && tn_rpc_kept(r) == 1);
    for (int i = 0; i < 2; i++) {
        printf("kept %lld\n", (long long)tn_rpc_kept(r));
        fflush(stdout);
        if (i == 0) {
            sleep(2); /* rank 1 is killed: rank 2 still holds it */
            rank_assert(tn_rpc_kept(r) == 1);
        }
    }
    rank_assert(comes_to_keep(r, 0));
    printf("let go\n");
    fflush(stdout);
    tn_rpc_free(r);
    return 0;
}

TEST(test_killed_holders) {
    ranks_job job = ranks_start(3, "hold_until_killed", "", NULL);
    bool began = ranks_await_output(&job, 0, "kept 1\n", 60);
    kill(job.pid[1], SIGKILL);
    bool stays = ranks_await_output(&job, 0, "kept 1\nkept 1\n", 60);
    kill(job.pid[2], SIGKILL);
    bool ends = ranks_await_output(&job, 0, "let go", 60);
    kill(job.pid[0], SIGKILL);
    ranks_result result = ranks_wait(&job, 60);
    if (!began || !stays || !ends) {
        fail_msg("rank 0: %s", result.output[0]);
    }
    ranks_free(&result);
}

static const rank_entry bodies[] = {{"hold_until_killed", hold_until_killed},
                                    {"pass_too_late", pass_too_late},
                                    {"pass_and_die", pass_and_die},
                                    {"ask_and_die", ask_and_die}};

int main(int argc, char **argv) {
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(bodies[0]));
    return tests_run(NULL, NULL);
}
