/* One of several ranks that train and save in parts is killed at each of its calls that change
 * files: what is left is the step before or the new one, whole. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/parallel/parts_run.h"
#include "tests/support/kill_at.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"

/* Jobs that are killed, and how each lays out the model on its ranks. */
typedef struct kills {
    int ranks, kills;
    lie ways[3];
    int stride;     /* of a rank's calls, from one kill to the next */
    bool end_alone; /* the others are not killed, and must notice */
} kills;

static const kills all_kills[] = {
    {3, 60, {LIES_FLAT, LIES_ODD, LIES_WHOLE}, 1, false},
    {4, 40, {LIES_TP_2, LIES_FLAT, LIES_TP_4}, 2, true},
};

/* ---- A rank ---------------------------------------------------------------------------------- */

/* What ranks do besides saving: communicate, and change what was saved. */
static bool train_on(parts_run *r, int64_t step) {
    TN_SCOPE;
    tn_tensor *t = tn_ones(TN_DIMS(100), TN_F32);
    parts_run_values(r, (uint64_t)step, false);
    return tn_work_wait(tn_all_reduce(r->world, t, TN_SUM), 0) == TN_OK;
}

/* Saves one step after another until KILL_AT kills it, or it notices that another rank is gone. */
RANK(save_forever) {
    const char *kill_at = getenv("KILL_AT");
    parts_run r;
    parts_run_open(&r, world, (lie)atoi(getenv("WAY")));
    parts_run_saver(&r, argument, TN_WITH(tn_saver, .timeout = 60));
    bool found = false;
    rank_assert(tn_saver_load(r.saver, &r.c, &found) == TN_OK);
    if (found) { parts_run_values(&r, (uint64_t)r.c.step, true); }
    rank_assert(tn_barrier(world) == TN_OK);
    kill_at_call = kill_at ? atoi(kill_at) : 0;
    while (train_on(&r, r.c.step + 1) && tn_saver_wait(r.saver) == TN_OK) {
        r.c.step++;
        printf("saves %lld\n", (long long)r.c.step);
        if (tn_saver_save(r.saver, &r.c) != TN_OK) { break; }
    }
    _exit(3); /* like a program whose error handler exits in the middle of a save */
}

/* ---- The test -------------------------------------------------------------------------------- */

/* The last step that any rank began to save. */
static int64_t last_begun(const ranks_result *result) {
    int64_t last = 0;
    for (int rank = 0; rank < result->n; rank++) {
        for (const char *at = result->output[rank]; (at = strstr(at, "saves ")); at++) {
            int64_t step = strtoll(at + 6, NULL, 10);
            last = step > last ? step : last;
        }
    }
    return last;
}

/* The newest step, with every element checked; 0: there is none. */
static int64_t load_newest(const char *folder) {
    parts_run r;
    parts_run_open(&r, NULL, LIES_WHOLE);
    parts_run_saver(&r, folder, tn_saver_defaults());
    bool found;
    if (tn_saver_load(r.saver, &r.c, &found) != TN_OK) { fail_msg("%s", tn_error_message()); }
    if (found) { parts_run_values(&r, (uint64_t)r.c.step, true); }
    parts_run_close(&r);
    return r.c.step;
}

/* Runs the ranks until one is killed, and the others end or are killed at once, as by a launcher.
 */
static ranks_result run_until_killed(const kills *k, const char *folder, int victim,
                                     const char *const *environment) {
    ranks_job job = ranks_start(k->ranks, "save_forever", folder, environment);
    siginfo_t about;
    assert_int_equal(waitid(P_PID, (id_t)job.pid[victim], &about, WEXITED | WNOWAIT), 0);
    for (int rank = 0; rank < k->ranks; rank++) {
        if (rank != victim && !k->end_alone) { kill(-job.pid[rank], SIGKILL); }
    }
    return ranks_wait(&job, 30); /* less than the time-out */
}

static void kill_again_and_again(const kills *k, const char *folder) {
    int64_t step = 0;
    int old = 0, new = 0;
    for (int i = 0; i < k->kills; i++) {
        int victim = i % k->ranks;
        char kill_at[32], way[32];
        snprintf(kill_at, sizeof(kill_at), "%d:KILL_AT=%d", victim, (1 + i / k->ranks) * k->stride);
        snprintf(way, sizeof(way), "WAY=%d", k->ways[i % 3]);
        const char *const environment[] = {kill_at, way, NULL};
        ranks_result result = run_until_killed(k, folder, victim, environment);
        if (!WIFSIGNALED(result.status[victim])) {
            fail_msg("kill %d: rank %d ended with %#x: %s", i, victim,
                     (unsigned)result.status[victim], result.output[victim]);
        }
        for (int rank = 0; rank < k->ranks && k->end_alone; rank++) {
            bool noticed = WIFEXITED(result.status[rank]) && WEXITSTATUS(result.status[rank]) == 3;
            assert_true(rank == victim || noticed);
        }
        int64_t begun = last_begun(&result), now = load_newest(folder);
        ranks_free(&result);
        if (now < step || now < begun - 1 || now > begun) {
            fail_msg("kill %d: there was step %lld, %lld was being saved, %lld is there", i,
                     (long long)step, (long long)begun, (long long)now);
        }
        *(now == begun ? &new : &old) += 1;
        step = now;
    }
    fprintf(stderr, "%d kills left the step before, %d the new one; %lld steps\n", old, new,
            (long long)step);
    assert_true(old > 0 && new > 0);
}

PLAIN_TEST(killed_while_training_and_saving) {
    kill_again_and_again(&all_kills[0], temp_path("run"));
}

PLAIN_TEST(killed_on_a_mesh) {
    kill_again_and_again(&all_kills[1], temp_path("mesh"));
}
