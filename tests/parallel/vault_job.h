/* What tests of saves in memory share: memory as `tern run` keeps it, and ranks that save to it and
 * load. */
#ifndef TERN_TESTS_PARALLEL_VAULT_JOB_H
#define TERN_TESTS_PARALLEL_VAULT_JOB_H

#include "distributed/parallel/save/vault.h"
#include "tests/parallel/parts_run.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Memory ---------------------------------------------------------------------------------- */

enum { KEPT_RANKS = 4, KEPT_BLOCKS = 2 * 2 * KEPT_RANKS };

/* The memory of a host's launcher. */
typedef struct keeper {
    int fd[KEPT_BLOCKS];
    char variable[256];
} keeper;

static inline keeper keeper_new(void) {
    keeper k;
    int used =
        snprintf(k.variable, sizeof(k.variable), "TERN_VAULT=%d %d", (int)getpid(), KEPT_RANKS);
    for (int i = 0; i < KEPT_BLOCKS; i++) {
        k.fd[i] = memfd_create("tern-vault", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_true(k.fd[i] >= 0 && fcntl(k.fd[i], F_ADD_SEALS, F_SEAL_SHRINK) == 0);
        used += snprintf(k.variable + used, sizeof(k.variable) - (size_t)used, " %d", k.fd[i]);
    }
    return k;
}

static inline void keeper_finish(keeper *k) {
    for (int i = 0; i < KEPT_BLOCKS; i++) {
        close(k->fd[i]);
    }
}

static inline tn__vault_head head_at(const keeper *k, int block) {
    tn__vault_head h = {.step = -1};
    assert_true(pread(k->fd[block], &h, sizeof(h), 0) >= 0);
    return h;
}

/* The block of a place that has the step: of its rank, or of a copy. */
static inline int block_with(const keeper *k, int place, bool copy, int64_t step) {
    int block = 2 * (place + copy * KEPT_RANKS);
    block += head_at(k, block).step != step;
    assert_int_equal(head_at(k, block).step, step);
    return block;
}

static inline int block_of(const keeper *k, int rank, int64_t step) {
    return block_with(k, rank, false, step);
}

/* Where the image of a block has its last bytes, which belong to a tensor. */
static inline void flip_byte(const keeper *k, int block, bool in_tail) {
    tn__vault_head h = head_at(k, block);
    off_t at = TN__VAULT_BEGIN + h.image + (in_tail ? h.tail / 2 : -3);
    unsigned char byte;
    assert_int_equal(pread(k->fd[block], &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(k->fd[block], &byte, 1, at), 1);
}

/* A block's save is gone, as if its rank had been killed while it wrote. */
static inline void erase_block(const keeper *k, int block) {
    static const char nothing[sizeof(tn__vault_head)];
    assert_int_equal(pwrite(k->fd[block], nothing, sizeof(nothing), 0), sizeof(nothing));
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

typedef struct job {
    parts_run run;
    tn_saver *saver;
    tn_checkpoint c;
} job;

/* WAY: how the model lies; COPIES: with copies; PATIENCE: the saver's time-out. */
static inline void job_open(job *j, tn_group *world, const char *folder) {
    const char *way = getenv("WAY"), *patience = getenv("PATIENCE");
    tn_saver_options o = patient_options(true);
    o.copies = getenv("COPIES") != NULL;
    o.timeout = patience ? atof(patience) : o.timeout;
    parts_run_open(&j->run, world, (lie)(way ? atoi(way) : 0));
    j->saver = tn_saver_new(world, folder, o);
    j->c = parts_run_checkpoint(&j->run);
}

static inline void job_close(job *j) {
    tn_saver_free(j->saver);
    parts_run_close(&j->run);
}

static inline void save_step(job *j, int64_t step, bool memory) {
    parts_run_values(&j->run, (uint64_t)step, false);
    j->c.step = step;
    rank_assert((memory ? tn_saver_remember : tn_saver_save)(j->saver, &j->c) == TN_OK);
}

/* "f10 m20 …": saves these steps, to files and to memory. */
static inline void save_steps(job *j, const char *steps) {
    for (const char *at = steps; at && *at; at += strcspn(at, " "), at += *at == ' ') {
        save_step(j, atoi(at + 1), *at == 'm');
    }
    rank_assert(tn_saver_wait(j->saver) == TN_OK);
}

/* Loads, which must give step LOADS (-1: none), and then saves the steps of SAVES. */
static inline int load_and_save(tn_group *world, const char *folder) {
    job j;
    bool found;
    const char *loads = getenv("LOADS");
    job_open(&j, world, folder);
    if (loads) {
        rank_assert(tn_saver_load(j.saver, &j.c, &found) == TN_OK);
        printf("loaded %lld\n", found ? (long long)j.c.step : -1);
        rank_assert((found ? j.c.step : -1) == atoi(loads));
        if (found) {
            parts_run_values(&j.run, (uint64_t)j.c.step, true);
        }
    }
    save_steps(&j, getenv("SAVES"));
    if (getenv("CLEARS")) {
        rank_assert(tn_saver_clear(j.saver) == TN_OK);
    }
    job_close(&j);
    return 0;
}

/* Saves one step after another until something ends it, `begin` for instance: it comes when
 * `first` saves have ended. */
static inline int save_forever(tn_group *world, const char *folder, int first,
                               void (*begin)(void)) {
    job j;
    bool found;
    job_open(&j, world, folder);
    rank_assert(tn_saver_load(j.saver, &j.c, &found) == TN_OK);
    if (found) {
        parts_run_values(&j.run, (uint64_t)j.c.step, true);
    }
    printf("loaded %lld\n", (long long)j.c.step);
    rank_assert(tn_barrier(world) == TN_OK);
    for (tn_status status = TN_OK; status == TN_OK; first--) {
        if (first == 0) {
            rank_assert(tn_saver_wait(j.saver) == TN_OK);
            begin();
        }
        parts_run_values(&j.run, (uint64_t)++j.c.step, false);
        printf("saves %lld\n", (long long)j.c.step);
        status = tn_saver_remember(j.saver, &j.c);
        if (status == TN_OK) {
            printf("began %lld\n", (long long)j.c.step);
        }
    }
    fprintf(stderr, "%s\n", tn_error_message());
    _exit(3);
}

/* The highest number that any rank has written after `word`. */
static inline int64_t last_said(const ranks_result *result, const char *word) {
    int64_t last = 0;
    for (int rank = 0; rank < result->n; rank++) {
        for (const char *at = result->output[rank]; (at = strstr(at, word)); at++) {
            int64_t step = strtoll(at + strlen(word), NULL, 10);
            last = step > last ? step : last;
        }
    }
    return last;
}

/* Runs ranks that save forever until the victim has killed itself, and ends the others. */
static inline ranks_result run_until_killed(int ranks, const char *folder, int victim,
                                            const char *const *environment) {
    ranks_job started = ranks_start(ranks, "forever", folder, environment);
    siginfo_t about;
    assert_int_equal(waitid(P_PID, (id_t)started.pid[victim], &about, WEXITED | WNOWAIT), 0);
    for (int rank = 0; rank < ranks; rank++) {
        if (rank != victim) {
            kill(-started.pid[rank], SIGKILL);
        }
    }
    return ranks_wait(&started, 60);
}

#endif
