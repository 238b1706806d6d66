/* The engine "shm" on real processes: a rank that dies, stops, leaves, disagrees or gives up is
 * named. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/distributed/shm_ranks.h"

/* ---- Death, sleep, leaving ------------------------------------------------------------------- */

static void say_line(const char *text) {
    printf("%s\n", text);
    fflush(stdout);
}

/* Rank 1 is killed between two operations or in the middle of a long one. */
static int see_death(tn_engine *e, int64_t count, bool waits) {
    static float x[1 << 20];
    add_up(e);
    if (rank == 1 && waits) {
        say_line("ready");
        pause();
    }
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK; i++) {
        status = run_transfer(e, all_reduce(x, count));
        if (i == 3) { say_line("ready"); }
    }
    expect_error(status, TN_EPEER, "rank 1 (process ");
    expect_error(status, TN_EPEER, ") has died");
    /* It stays dead, with the same reason. */
    expect_error(run_transfer(e, BARRIER), TN_EPEER, "rank 1 (process ");
    e->destroy(e);
    return 0;
}

PLAIN_RANK(body_killed_before) {
    return see_death(join_engine(argument), 3, true);
}

PLAIN_RANK(body_killed_within) {
    return see_death(join_engine(argument), 1 << 20, false);
}

PLAIN_RANK(body_stopped) {
    tn_engine *e = join_engine(argument);
    add_up(e);
    say_line("ready");
    for (int i = 0; i < 50; i++) {
        usleep(20000);
        add_up(e);
    }
    e->destroy(e);
    return 0;
}

PLAIN_RANK(body_stopped_long) {
    tn_engine *e = join_engine(argument);
    float x = 1;
    add_up(e);
    say_line("ready");
    tn_status status = TN_OK;
    while (status == TN_OK) {
        usleep(1000);
        status = run_for(e, all_reduce(&x, 1), 0.5);
    }
    expect_error(status, TN_EPEER, "timed out waiting for rank 1, which ");
    rank_assert(!strstr(why, "rank 0") && !strstr(why, "rank 2"));
    say_line("failed");
    e->destroy(e);
    return 0;
}

/* The error names a rank that never comes, and where it is instead. */
PLAIN_RANK(body_late) {
    tn_engine *e = join_engine(argument);
    float x = 1;
    add_up(e);
    if (rank == 1) {
        tn_status status = run_transfer(e, message_with(TN_RECV, &x, 1, 2));
        expect_error(status, TN_EPEER,
                     "timed out waiting for rank 1, which is in operation 2 (recv), and rank 2, "
                     "which has finished operation 1");
    } else if (rank == 0) {
        expect_error(
            run_for(e, BARRIER, 0.2), TN_EPEER,
            "timed out waiting for rank 1, which is in operation 2 (recv), and rank 2, which has "
            "finished operation 1");
    } else {
        sleep(1);
        expect_error(run_transfer(e, BARRIER), TN_EPEER, "timed out waiting for rank 1");
    }
    e->destroy(e);
    return 0;
}

/* Completed operations stay complete; one that needs a rank that has left fails at once. */
PLAIN_RANK(body_leaves) {
    tn_engine *e = join_engine(argument);
    for (int i = 0; i < 40; i++) {
        add_up(e);
    }
    if (rank != 2) {
        if (rank == 1) { usleep(50000); }
        expect_error(run_transfer(e, BARRIER), TN_EPEER,
                     "rank 2 has left the group after 40 operations");
    }
    e->destroy(e);
    return 0;
}

/* A message that was sent before its sender left can be received. */
PLAIN_RANK(body_leaves_message) {
    tn_engine *e = join_engine(argument);
    float x = 7;
    if (rank == 0) {
        rank_assert(run_transfer(e, message_with(TN_SEND, &x, 1, 1)) == TN_OK);
    } else {
        x = 0;
        usleep(100000);
        rank_assert(run_transfer(e, message_with(TN_RECV, &x, 1, 0)) == TN_OK);
        rank_assert(x == 7);
        expect_error(run_transfer(e, message_with(TN_RECV, &x, 1, 0)), TN_EPEER,
                     "rank 0 has left the group after 1 operations");
    }
    e->destroy(e);
    return 0;
}

static void *give_up(void *user) {
    tn_engine *e = user;
    usleep(50000);
    e->abort(e, "the program has had enough");
    e->abort(e, "a second reason");
    return NULL;
}

PLAIN_RANK(body_abort) {
    tn_engine *e = join_engine(argument);
    pthread_t thread;
    add_up(e);
    if (rank == 2) {
        sleep(1);
    } else {
        if (rank == 0) { rank_assert(pthread_create(&thread, NULL, give_up, e) == 0); }
        double begin = tn__now();
        expect_error(run_transfer(e, BARRIER), TN_EPEER, "the program has had enough");
        rank_assert(tn__now() - begin < PATIENCE / 2.0);
        if (rank == 0) { pthread_join(thread, NULL); }
    }
    expect_error(run_transfer(e, BARRIER), TN_EPEER, "the program has had enough");
    e->destroy(e);
    return 0;
}

/* ---- Disagreement ---------------------------------------------------------------------------- */

/* Other disagreements are in test_collectives.c. */
PLAIN_RANK(body_mismatch_recv) {
    tn_engine *e = join_engine(argument);
    float x[4] = {0};
    add_up(e);
    tn_transfer t = rank == 1 ? message_with(TN_RECV, x, 4, 0) : all_reduce(x, 4);
    expect_error(run_transfer(e, t), TN_EMISMATCH,
                 "rank 1 is in operation 2 (recv) with rank 0, but rank 0 is in operation 2 "
                 "(all_reduce)");
    e->destroy(e);
    return 0;
}

PLAIN_RANK(body_mismatch_message) {
    tn_engine *e = join_engine(argument);
    float x[8] = {0};
    if (rank == 0) {
        rank_assert(run_transfer(e, message_with(TN_SEND, x, 8, 1)) == TN_OK);
    } else {
        expect_error(run_transfer(e, message_with(TN_RECV, x, 4, 0)), TN_EMISMATCH,
                     "rank 0 sends f32 [8], but rank 1 receives f32 [4]");
    }
    expect_error(run_transfer(e, BARRIER), TN_EMISMATCH, "rank 0 sends f32 [8]");
    e->destroy(e);
    return 0;
}

PLAIN_RANK(body_mismatch_alloc) {
    tn_engine *e = join_engine(argument);
    rank_assert(e->alloc(e, rank == 1 ? 200 : 100, tn__now() + PATIENCE) == NULL);
    expect_error(run_transfer(e, BARRIER), TN_EMISMATCH,
                 "rank 0 allocates 100 bytes, but rank 1 allocates 200 bytes");
    e->destroy(e);
    return 0;
}

/* ---- The tests ------------------------------------------------------------------------------- */

static void finish_job(ranks_job *job, int killed_rank) {
    ranks_result result = ranks_wait(job, PATIENCE + 30);
    if (killed_rank >= 0) {
        assert_true(WIFSIGNALED(result.status[killed_rank]));
        result.status[killed_rank] = 0;
    }
    bool ok = ranks_ok(&result);
    ranks_free(&result);
    assert_true(ok);
}

static void kill_rank_1(const char *body) {
    ranks_job job = ranks_start(3, body, ranks_place(), NULL);
    assert_true(ranks_await_output(&job, 1, "ready", PATIENCE));
    double begin = tn__now();
    kill(job.pid[1], SIGKILL);
    finish_job(&job, 1);
    /* Noticed directly, not by the timeout. */
    assert_true(tn__now() - begin < PATIENCE / 2.0);
}

PLAIN_TEST(test_killed) {
    kill_rank_1("body_killed_before");
    kill_rank_1("body_killed_within");
}

PLAIN_TEST(test_stopped) {
    ranks_job job = ranks_start(2, "body_stopped", ranks_place(), NULL);
    assert_true(ranks_await_output(&job, 1, "ready", PATIENCE));
    kill(job.pid[1], SIGSTOP);
    usleep(300000);
    kill(job.pid[1], SIGCONT);
    finish_job(&job, -1);
}

PLAIN_TEST(test_stopped_past_the_deadline) {
    ranks_job job = ranks_start(3, "body_stopped_long", ranks_place(), NULL);
    assert_true(ranks_await_output(&job, 1, "ready", PATIENCE));
    kill(job.pid[1], SIGSTOP);
    assert_true(ranks_await_output(&job, 0, "failed", PATIENCE));
    assert_true(ranks_await_output(&job, 2, "failed", PATIENCE));
    kill(job.pid[1], SIGCONT);
    finish_job(&job, -1);
}

PLAIN_TEST(test_late) {
    ranks_pass(3, "body_late", ranks_place());
}

PLAIN_TEST(test_leaves) {
    ranks_pass(3, "body_leaves", ranks_place());
    ranks_pass(2, "body_leaves_message", ranks_place());
}

PLAIN_TEST(test_abort) {
    ranks_pass(3, "body_abort", ranks_place());
}

PLAIN_TEST(test_mismatch) {
    ranks_pass(2, "body_mismatch_recv", ranks_place());
    ranks_pass(2, "body_mismatch_message", ranks_place());
    ranks_pass(3, "body_mismatch_alloc", ranks_place());
}

/* A file in /dev/shm would outlive a killed job. The folders there are launchers'. */
PLAIN_TEST(test_nothing_stays) {
    ranks_job job = ranks_start(2, "body_stopped", ranks_place(), NULL);
    assert_true(ranks_await_output(&job, 0, "ready", PATIENCE));
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        assert_true(entry->d_type == DT_DIR || !strstr(entry->d_name, "tern"));
    }
    if (folder) { closedir(folder); }
    kill(job.pid[0], SIGKILL);
    kill(job.pid[1], SIGKILL);
    ranks_result result = ranks_wait(&job, PATIENCE);
    ranks_free(&result);
}
