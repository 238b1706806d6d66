/* The inside of a saver.
 *
 *     saver.c         the public calls: a save in the program's thread
 *     protocol.c      what ranks send each other, through the store
 *     write.c         a rank's file, and rank 0's commit: in a thread of their own
 *     folder.c        steps in the folder: names, the lock, what is removed
 *     after.c         the program's command after a commit
 *     load.c          loading
 *     vault.c         saves in memory: a rank's part (vault.h)
 *     recall.c        and loading them
 *     copies.c        and their copies on other hosts
 *     manifest.c      who has what, and who writes it;  io/checkpoint/parts.h  what is where
 *
 * The K-th save of a job, in keys of the store:
 *
 *     K/R/list     rank R: its folder and step, and what it has (only if that is new)
 *     K/R/writes   rank 0: which of it R writes, a digit per item
 *     K/R/done     rank R's thread: bytes of its file, digests of what it wrote
 *     K/-1/end     rank 0's thread: it is committed
 *     K/R/heard    rank R, after an error: it no longer needs the store
 *
 * A save to memory sends the same, except: `list` may say why R has no memory, and where R is, for
 * copies; and `writes` that therefore nothing is saved, or else also a number that makes this save
 * known from all others, how long rank 0 will wait, and who sends copies to whom; `done` says
 * nothing, or why R could not write, or why a copy was not made. There is nothing to commit: what
 * is in the vaults is found when it is loaded.
 *
 * Each of them may instead be an error, raised by the ranks that wait for it: so one rank's error
 * is raised on all. Nothing here is a collective, and a slow disk does not hold up training.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_SAVER_H
#define TERN_DISTRIBUTED_PARALLEL_SAVER_H

#include "core/alive.h"
#include "distributed/parallel/save/copies.h"
#include "distributed/parallel/save/manifest.h"
#include "distributed/parallel/save/vault.h"
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
    tn_group *world;
    int rank, ranks;
    uint32_t process; /* that made it (core/fork.h) */
    char *folder;
    tn_saver_options options;
    tn_store *store;       /* a prefix of its own */
    const char *operation; /* the public call's, a static string */

    int64_t saves;   /* calls so far: K above */
    tn__state state; /* what the last save wrote; `behind`: copies that the next one reuses */
    char *writes;    /* a digit for each item of the state, from rank 0 */
    char sent[TN__DIGEST_DIGITS + 1]; /* the digest of the list that rank 0 has; "": it has none */

    tn__vault vault;
    bool memory;     /* the current save is to memory */
    bool memory_off; /* all ranks know that one has none, or not enough: none saves to it */
    uint64_t number; /* the current save to memory */
    tn__buffer list; /* what this rank has, as rank 0 got it */
    tn__copies copies;

    int64_t in_files; /* the newest step in files when it last loaded; -1: none */

    /* Rank 0. */
    bool memory_ends;       /* memory_off will be true after the next save */
    bool copies_end;        /* from the next save on there are none */
    tn__copy_place *places; /* [ranks]; with options.copies */
    tn__manifest *manifest;
    int lock;   /* of the folder, since the first save; -1 */
    char *made; /* the folder of the step that is being written; NULL: there is none */
    tn__saver_after after;

    /* The current save. */
    bool under_way, has_thread;
    pthread_t thread;
    int64_t step;
    double deadline;        /* by tn__now: all must have written by then */
    double first_deadline;  /* in memory: the deadline of rank 0, which may have begun earlier */
    char *metadata;         /* rank 0: its strings as a JSON object */
    tn_error_record failed; /* what went wrong before the thread began; TN_OK */
    bool shared_error;      /* the last thing received was an error, which all ranks get */
};

/* Whether the saver, which is not NULL, was not freed; false after raising. */
bool tn__saver_here(const tn_saver *s, const char *operation);

/* ---- protocol.c ------------------------------------------------------------------------------ */

/* A message without place and operation, which who raises it again prepends. */
const char *tn__saver_plain(const tn_saver *s, const char *message);

/* Sends the value of key K/`rank`/`what`, or the pending error, which stays. */
void tn__saver_send(tn_saver *s, int rank, const char *what, const void *data, size_t bytes);

/* Waits for a key until the deadline, or for rank 0's decision a little longer. The caller frees; a
 * 0 follows the *bytes bytes (may be NULL). NULL after raising: the error that was sent, or
 * TN_EPEER, which says who has not `late` ("begun to save") the step. */
char *tn__saver_receive(tn_saver *s, int rank, const char *what, const char *late, size_t *bytes);

/* The same until another deadline; says that `sender` is late. */
char *tn__saver_receive_by(tn_saver *s, double deadline, int rank, const char *what, int sender,
                           const char *late, size_t *bytes);

/* After an error, which stays pending: rank 0, whose process usually serves the store, waits a
 * while until the others have read it, since it may end next. */
void tn__saver_leave(tn_saver *s);

/* Rank 0 warns if the ranks' copies of the model differ. */
void tn__warn_ranks_differ(const tn_group *g, const tn_checkpoint *c, const char *operation);

/* Removes the previous save's keys, which no rank still needs. Raises nothing. */
void tn__saver_forget(tn_saver *s);

/* ---- write.c --------------------------------------------------------------------------------- */

/* Writes this rank's file of `saver` and tells the others; rank 0 then commits. Returns NULL and
 * raises nothing: its errors are raised at the end of the save. */
void *tn__saver_write(void *saver);

/* Rank 0, with an error pending that the others have received: some of them may still be writing.
 * Waits for these and removes the step. */
void tn__saver_give_up(tn_saver *s);

/* The text of a step's index. metadata: a JSON object. */
void tn__saver_put_index(const tn__manifest *m, const char *metadata, tn__buffer *j);

/* Rank 0: says, once, that a rank cannot save to memory, which then ends for all; or that it cannot
 * take copies. */
void tn__saver_no_memory(tn_saver *s, int rank, const char *why);
void tn__saver_no_copies(tn_saver *s, int rank, const char *why);

/* ---- load.c, recall.c ------------------------------------------------------------------------ */

/* After tn__agree_begin: loads from an index (NULL: an error is pending), on all ranks or on none;
 * frees it. */
tn_status tn__saver_load_index(tn_group *g, tn_checkpoint *c, tn__index *ix, const char *operation);

/* Loads the newest save in memory, from step `least` on, that all ranks can load. *step -1: there
 * is none, and nothing has changed. Every rank calls. */
tn_status tn__saver_recall(tn_saver *s, tn_checkpoint *c, int64_t least, int64_t *step,
                           const char *operation);

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

/* The newest committed step in a folder; -1: there is none, or after raising. */
int64_t tn__step_newest(const char *folder, const char *operation);

/* Once, makes the folder, takes its lock and, as far as possible, removes what dead jobs have left.
 * Then makes this step's folder. False after raising. */
bool tn__saver_prepare(tn_saver *s);
/* Called on every rank: makes the folder and takes its lock, as the first save would. False after
 * raising, on rank 0 only. */
bool tn__saver_hold(tn_saver *s, const char *operation);
/* Unlocks the folder for other savers, unless this process is a forked child of the one that locked
 * it. */
void tn__saver_unlock(tn_saver *s);
/* Gives the written step its name, and removes steps beyond the newest options.keep. False after
 * raising: then the step does not exist. */
bool tn__saver_commit(tn_saver *s);
/* Removes steps beyond the newest options.keep; the log says what cannot be removed. */
void tn__saver_remove_old(tn_saver *s);
/* Removes all committed steps. False after raising. */
bool tn__saver_clear_steps(tn_saver *s);
/* Removes what exists of a failed step; needs no memory. The log says what cannot be removed. */
void tn__saver_discard(tn_saver *s);

#endif
