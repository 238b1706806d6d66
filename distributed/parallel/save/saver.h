/* The inside of a saver.
 *
 *     saver.c       the public calls: a save in the program's thread
 *     write.c       a rank's file, and rank 0's commit: in a thread of their own
 *     folder.c      steps in the folder: names, the lock, what is removed
 *     after.c       the program's command after a commit
 *     load.c        loading
 *     manifest.c    who has what, and who writes it;  io/checkpoint/parts.h  what is where
 *
 * A save, on every rank:
 *
 *     the program's thread    agree that all can save; gather what each has, and deal out who
 *                             writes what; rank 0 makes the step's folder; agree; copy what this
 *                             rank writes
 *     the saver's thread      write it; agree; gather digests; rank 0 commits; agree; rank 0
 *                             removes old steps
 *
 * They communicate in a group of the saver's own, so training goes on meanwhile, and one thread at
 * a time uses it: the program's waits for the other before the next save. A rank that is lost or
 * late ends this group, and is named on all others; then the saver saves no more.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_SAVER_H
#define TERN_DISTRIBUTED_PARALLEL_SAVER_H

#include "core/alive.h"
#include "distributed/parallel/save/manifest.h"
#include "tern/parallel.h"

#include <pthread.h>
#include <sys/types.h>

/* The command after a commit, on rank 0. */
typedef struct tn__saver_after {
    pid_t pid;            /* 0: it does not run */
    int64_t step, newest; /* which it was started for, and which was committed last; 0: none */
} tn__saver_after;

struct tn_saver {
    tn__alive alive;
    tn_group *world, *group; /* group: the same ranks, for saving alone; NULL: one rank */
    int rank, ranks;
    uint32_t process; /* that made it (core/fork.h) */
    char *folder;
    tn_saver_options options;
    const char *operation; /* the public call's, a static string */

    tn__state state;       /* what the current save writes; `behind`: copies */
    tn__manifest manifest; /* what each rank has and writes; the same on all ranks */

    /* Rank 0. */
    int lock; /* of the folder, since the first save; -1 */
    tn__saver_after after;
    char *metadata; /* the strings of what is saved, as a JSON object */

    /* The current save. */
    int64_t step;
    char *made; /* the step's folder until it is committed; NULL: there is none */
    char *part; /* this rank's file in it, while others do not count on it; NULL */
    bool under_way, has_thread;
    pthread_t thread;
    tn_error_record result; /* of the thread; before it begins, that of the copies */
};

/* Whether s can be used, even with an error pending. False after raising. */
bool tn__saver_sound(const tn_saver *s, const char *operation);

/* Rank 0 warns if the ranks' copies of the model differ. */
void tn__warn_ranks_differ(const tn_group *g, const tn_checkpoint *c, const char *operation);

/* write.c: writes this rank's file of `saver`, and rank 0 commits. Returns NULL; its error is
 * `result`. */
void *tn__saver_write(void *saver);

/* load.c: the step that tn_saver_load would load, even if it is damaged; -1: there is none, or
 * after raising. Every rank calls. */
int64_t tn__saver_newest(tn_saver *s, const char *operation);

/* ---- after.c, on rank 0 ---------------------------------------------------------------------- */

/* Starts the command for the step that is now committed, unless it still runs for another. */
void tn__after_commit(tn_saver *s);
/* The step that it runs for, which is not removed; -1: it does not run. */
int64_t tn__after_step(const tn_saver *s);
/* Waits for it, runs it for the last step if that was passed over, and removes old steps. */
void tn__after_finish(tn_saver *s);

/* ---- folder.c: steps in a folder ------------------------------------------------------------- */

/* FOLDER/step-000100 or FOLDER/step-000100/FILE (NULL: none), or with `made` FOLDER/step-000100.tmp
 * and so on, its name until it is committed. The caller frees; NULL after raising. */
char *tn__step_path(const char *folder, int64_t step, bool made, const char *file,
                    const char *operation);

/* The same for a rank's file in the folder of the current save. */
char *tn__saver_part(const tn_saver *s, int rank);

/* The newest committed step in a folder; -1: there is none, or no folder, or after raising. */
int64_t tn__step_newest(const char *folder, const char *operation);

/* Names this step's folder. Rank 0 then makes it; once, it also makes the folder of the steps,
 * takes its lock and, as far as possible, removes what dead jobs have left. False after raising. */
bool tn__saver_prepare(tn_saver *s);
/* Called on every rank: makes the folder and takes its lock, as the first save would. False after
 * raising, on rank 0 only. */
bool tn__saver_hold(tn_saver *s, const char *operation);
/* Unlocks the folder for other savers, unless this process is a forked child of the one that locked
 * it. */
void tn__saver_unlock(tn_saver *s);
/* Gives the written step its name. False after raising: then the step does not exist. */
bool tn__saver_commit(const tn_saver *s);
/* Removes steps beyond the newest options.keep; the log says what cannot be removed. */
void tn__saver_remove_old(tn_saver *s);
/* Removes all committed steps. False after raising. */
bool tn__saver_clear_steps(tn_saver *s);
/* Removes this rank's file of a failed step, or on rank 0, when no rank writes any more, all that
 * exists of it. Needs no memory; a pending error stays. The log says what cannot be removed. */
void tn__saver_discard(tn_saver *s);

#endif
