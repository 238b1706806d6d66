/* Saves in memory (tn_saver_remember): they outlive ranks that are killed, and any number of ranks
 * in any layout loads them; what is damaged, incomplete or of another run is not loaded. This
 * program keeps the memory, as `tern run` does. */
#define _GNU_SOURCE 1 /* memfd_create */
#include "tests/parallel/vault_job.h"
#include "tests/support/kill_at.h"
#include "tests/support/temp.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* As kill_at.h does with write: the head and the tail are written with this. */
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    if (kill_is_due()) {
        (void)!syscall(SYS_pwrite64, fd, data, bytes / 2, at);
        kill(getpid(), SIGKILL);
    }
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

static void count_calls(void) {
    const char *kill_at = getenv("KILL_AT");
    kill_at_call = kill_at ? atoi(kill_at) : 0;
}

/* Until KILL_AT kills it, or another rank is gone. */
static int save_until_killed(tn_group *world, const char *folder) {
    return save_forever(world, folder, 0, count_calls);
}

/* Files may not be larger than 4 KiB. */
static int save_without_room(tn_group *world, const char *folder) {
    job j;
    job_open(&j, world, folder);
    if (tn_group_rank(world) == 1) {
        const struct rlimit most = {4096, 4096};
        rank_assert(setrlimit(RLIMIT_FSIZE, &most) == 0);
    }
    save_steps(&j, "m10 m20 m30");
    job_close(&j);
    return 0;
}

static int save_from_two_savers(tn_group *world, const char *folder) {
    job first, second;
    char other[600];
    snprintf(other, sizeof(other), "%s-other", folder);
    job_open(&first, world, folder);
    job_open(&second, world, other);
    save_step(&first, 10, true);
    save_step(&second, 20, true);
    rank_assert(tn_saver_wait(first.saver) == TN_OK);
    job_close(&second);
    job_close(&first);
    return 0;
}

/* A child of fork that lives on keeps this saver's memory from no other one. */
static int save_after_fork(tn_group *world, const char *folder) {
    job j;
    job_open(&j, world, folder);
    save_step(&j, 10, true);
    rank_assert(tn_saver_wait(j.saver) == TN_OK);
    pid_t child = fork();
    if (child == 0) {
        pause();
    }
    job_close(&j);
    job_open(&j, world, folder);
    save_step(&j, 20, true);
    job_close(&j);
    kill(child, SIGKILL);
    rank_assert(waitpid(child, NULL, 0) == child);
    return 0;
}

static const rank_entry bodies[] = {{"job", load_and_save},
                                    {"forever", save_until_killed},
                                    {"room", save_without_room},
                                    {"two", save_from_two_savers},
                                    {"fork", save_after_fork}};

/* ---- Tests ----------------------------------------------------------------------------------- */

typedef struct launch {
    const char *body;
    int ranks;
    lie how;
    const char *loads, *saves;
} launch;

/* Runs it to its end; says: part of what rank 0 writes (NULL: nothing of a save that was passed
 * over). */
static void pass_ranks(const keeper *k, const launch *l, const char *folder, const char *says) {
    char way[32], loads[32], saves[64];
    const char *environment[5] = {k ? k->variable : "TERN_VAULT", way, NULL};
    int n = 2;
    snprintf(way, sizeof(way), "WAY=%d", (int)l->how);
    snprintf(loads, sizeof(loads), "LOADS=%s", l->loads ? l->loads : "");
    snprintf(saves, sizeof(saves), "SAVES=%s", l->saves ? l->saves : "");
    if (l->loads) {
        environment[n++] = loads;
    }
    environment[n++] = saves;
    ranks_result result = ranks_run(l->ranks, l->body, folder, environment, 60);
    assert_true(ranks_ok(&result));
    if (says) {
        assert_says(&result, 0, says);
    } else if (strstr(result.output[0], "passed over")) {
        fail_msg("%s", result.output[0]);
    }
    ranks_free(&result);
}

PLAIN_TEST(survives_ranks_and_changes_layout) {
    keeper k = keeper_new();
    const char *folder = temp_path("survives");
    pass_ranks(&k, &(launch){"job", 2, LIES_FLAT, "-1", "f10 m20 m30 m40"}, folder, NULL);
    pass_ranks(&k, &(launch){"job", 2, LIES_CUT, "40", NULL}, folder, NULL);
    pass_ranks(&k, &(launch){"job", 3, LIES_WHOLE, "40", NULL}, folder, NULL);
    pass_ranks(&k, &(launch){"job", 4, LIES_TP_4, "40", "m50"}, folder, NULL);
    pass_ranks(&k, &(launch){"job", 4, LIES_ODD, "50", "f60"}, folder, NULL);
    pass_ranks(&k, &(launch){"job", 2, LIES_WHOLE, "60", NULL}, folder, NULL);
    pass_ranks(&k, &(launch){"job", 4, LIES_TP_2, "60", NULL}, folder,
               NULL); /* the files are newer */
    pass_ranks(NULL, &(launch){"job", 4, LIES_FLAT, "60", NULL}, folder, NULL);
    /* another folder is another run */
    pass_ranks(&k, &(launch){"job", 4, LIES_FLAT, "-1", "m5"}, temp_path("survives-2"), NULL);
    pass_ranks(&k, &(launch){"job", 4, LIES_FLAT, "60", NULL}, folder, NULL);
    keeper_finish(&k);
}

PLAIN_TEST(damage_is_passed_over) {
    for (int tail = 0; tail < 2; tail++) {
        keeper k = keeper_new();
        const char *folder = temp_path(tail ? "tail" : "image");
        pass_ranks(&k, &(launch){"job", 3, LIES_FLAT, NULL, "f10 m20 m30"}, folder, NULL);
        flip_byte(&k, block_of(&k, 1, 30), tail);
        pass_ranks(&k, &(launch){"job", 3, LIES_FLAT, "20", NULL}, folder,
                   "step 30 in memory is passed over");
        /* it is not looked at again: after 20 there may be another step 30 */
        pass_ranks(&k, &(launch){"job", 4, LIES_WHOLE, "20", NULL}, folder, NULL);
        flip_byte(&k, block_of(&k, 2, 20), tail);
        pass_ranks(&k, &(launch){"job", 3, LIES_FLAT, "10", "m30"}, folder, "is damaged");
        pass_ranks(&k, &(launch){"job", 3, LIES_ODD, "30", NULL}, folder, NULL);
        keeper_finish(&k);
    }
}

PLAIN_TEST(incomplete_saves_are_not_loaded) {
    keeper k = keeper_new();
    const char *folder = temp_path("incomplete");
    pass_ranks(&k, &(launch){"job", 3, LIES_FLAT, NULL, "f10 m20 m30"}, folder, NULL);
    erase_block(&k, block_of(&k, 2, 30));
    pass_ranks(&k, &(launch){"job", 3, LIES_CUT, "20", NULL}, folder, NULL);
    erase_block(&k, block_of(&k, 0, 20));
    pass_ranks(&k, &(launch){"job", 3, LIES_CUT, "10", NULL}, folder, NULL);
    keeper_finish(&k);
}

PLAIN_TEST(parts_of_two_saves_do_not_mix) {
    keeper k = keeper_new();
    const char *folder = temp_path("mix");
    pass_ranks(&k, &(launch){"job", 2, LIES_FLAT, NULL, "f10 m30 m30"}, folder, NULL);
    pass_ranks(&k, &(launch){"job", 2, LIES_CUT, "30", NULL}, folder, NULL);
    erase_block(&k, 0); /* the first save's part of rank 0, */
    erase_block(&k, 3); /* and the second one's of rank 1 */
    pass_ranks(&k, &(launch){"job", 2, LIES_FLAT, "10", NULL}, folder, NULL);
    keeper_finish(&k);
}

PLAIN_TEST(parts_of_other_hosts_are_sent) {
    keeper k = keeper_new(), other = keeper_new();
    const char *folder = temp_path("hosts");
    char first[300], last[300], way[16], local[32];
    snprintf(last, sizeof(last), "1:%s", other.variable); /* the second host's only rank */
    snprintf(first, sizeof(first), "0:%s", k.variable);
    snprintf(local, sizeof(local), "1:LOCAL_RANK=0");
    for (int how = LIES_WHOLE; how <= LIES_CUT; how++) {
        snprintf(way, sizeof(way), "WAY=%d", how);
        const char *const environment[] = {first, last, local, way, "SAVES=m7", "LOADS=-1", NULL};
        const char *const again[] = {first, last, local, "WAY=1", "LOADS=7", "CLEARS=1", NULL};
        ranks_result result = ranks_run(2, "job", folder, environment, 60);
        assert_true(ranks_ok(&result));
        ranks_free(&result);
        result = ranks_run(2, "job", folder, again, 60);
        assert_true(ranks_ok(&result));
        ranks_free(&result);
    }
    keeper_finish(&k);
    keeper_finish(&other);
}

PLAIN_TEST(no_memory_is_a_warning) {
    keeper k = keeper_new();
    const char *folder = temp_path("none");
    pass_ranks(NULL, &(launch){"job", 2, LIES_FLAT, "-1", "m10 m20 f30 m40"}, folder,
               "not saved in memory: rank 0: no launcher keeps memory");
    pass_ranks(NULL, &(launch){"job", 2, LIES_FLAT, "30", NULL}, folder, NULL);
    pass_ranks(&k, &(launch){"room", 2, LIES_WHOLE, NULL, NULL}, temp_path("room"),
               "not saved in memory: rank 1: it needs");
    assert_int_equal(head_at(&k, 2).magic[0], 0);
    assert_int_equal(head_at(&k, 3).magic[0], 0);
    pass_ranks(&k, &(launch){"two", 2, LIES_WHOLE, NULL, NULL}, temp_path("two"),
               "step 20 and later ones are not saved in memory: rank 0: another saver");
    keeper_finish(&k);
}

PLAIN_TEST(newer_memory_needs_no_files) {
    keeper k = keeper_new();
    char folder[512], index[600];
    snprintf(folder, sizeof(folder), "%s", temp_path("files"));
    snprintf(index, sizeof(index), "%s/step-000020/index.json", folder);
    pass_ranks(&k, &(launch){"job", 2, LIES_FLAT, NULL, "m10 f20 m30"}, folder, NULL);
    assert_int_equal(unlink(index), 0);
    pass_ranks(&k, &(launch){"job", 2, LIES_CUT, "30", NULL}, folder,
               "step 30 in memory is loaded");
    flip_byte(&k, block_of(&k, 1, 30), false);
    /* not step 10: nobody has decided to go back that far */
    const char *const environment[] = {k.variable, "LOADS=10", NULL};
    ranks_result result = ranks_run(2, "job", folder, environment, 60);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(WIFEXITED(result.status[rank]) && WEXITSTATUS(result.status[rank]) == 1);
        assert_says(&result, rank, "step-000020/index.json: No such file");
    }
    ranks_free(&result);
    keeper_finish(&k);
}

PLAIN_TEST(forked_children_do_not_hold_it) {
    keeper k = keeper_new();
    pass_ranks(&k, &(launch){"fork", 2, LIES_FLAT, NULL, NULL}, temp_path("fork"), NULL);
    block_of(&k, 0, 20);
    block_of(&k, 1, 20);
    keeper_finish(&k);
}

/* A save that is whole on all ranks stays until another is, whatever the numbers of the steps. */
PLAIN_TEST(last_whole_save_stays) {
    keeper k = keeper_new();
    pass_ranks(&k, &(launch){"job", 2, LIES_FLAT, NULL, "m40 m30 m20 m10"}, temp_path("down"),
               NULL);
    for (int rank = 0; rank < 2; rank++) {
        block_of(&k, rank, 20);
        block_of(&k, rank, 10);
    }
    keeper_finish(&k);
}

PLAIN_TEST(cleared_memory_is_gone) {
    keeper k = keeper_new();
    const char *folder = temp_path("cleared");
    const char *const environment[] = {k.variable, "SAVES=m10 m20", "CLEARS=1", NULL};
    ranks_result result = ranks_run(2, "job", folder, environment, 60);
    assert_true(ranks_ok(&result));
    ranks_free(&result);
    pass_ranks(&k, &(launch){"job", 2, LIES_WHOLE, "-1", NULL}, folder, NULL);
    keeper_finish(&k);
}

/* ---- Kills ----------------------------------------------------------------------------------- */

/* Nothing is in files, so only memory can have the steps. Each job loads what the one before has
 * left: its last step, or the one before. */
PLAIN_TEST(killed_again_and_again) {
    enum { RANKS = 3, KILLS = 60 };
    keeper k = keeper_new();
    const char *folder = temp_path("kills");
    int64_t least = 0, most = 0;
    int old = 0, new = 0;
    for (int i = 0; i < KILLS; i++) {
        int victim = i % RANKS;
        char kill_at[32], way[32];
        snprintf(kill_at, sizeof(kill_at), "%d:KILL_AT=%d", victim, 1 + i / RANKS);
        snprintf(way, sizeof(way), "WAY=%d", i % WAYS);
        const char *const environment[] = {k.variable, kill_at, way, NULL};
        ranks_result result = run_until_killed(RANKS, folder, victim, environment);
        int64_t loaded = last_said(&result, "loaded "), saves = last_said(&result, "saves ");
        int64_t began = last_said(&result, "began ");
        bool damaged = strstr(result.output[0], "passed over") != NULL;
        if (!WIFSIGNALED(result.status[victim]) || loaded < least || loaded > most || damaged) {
            fail_msg("kill %d: rank %d ended with %#x; step %lld was loaded, not %lld to %lld: %s",
                     i, victim, (unsigned)result.status[victim], (long long)loaded,
                     (long long)least, (long long)most, result.output[damaged ? 0 : victim]);
        }
        ranks_free(&result);
        *(loaded < most ? &old : &new) += 1;
        least = began > loaded ? began - 1 : loaded; /* a save begins when the last has ended */
        most = saves > loaded ? saves : loaded;
    }
    fprintf(stderr, "%d kills left the step before, %d the new one; %lld steps\n", old, new,
            (long long)most);
    assert_true(old > 0 && most > KILLS / 2);
    keeper_finish(&k);
}

int main(int argc, char **argv) {
    tn_set_threads(1);
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(*bodies));
    return tests_run(NULL, NULL);
}
