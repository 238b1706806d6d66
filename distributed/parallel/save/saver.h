/* The inside of a saver.
 *
 *     saver.c         the public calls: a save in the program's thread
 *     talk.c          what ranks tell each other, through the store
 *     write.c         a rank's file, and rank 0's commit: in a thread of their own
 *     folder.c        steps in the folder: names, the lock, what is removed
 *     load.c          loading
 *     holdings.c      who has what, and who writes it;  index.c  what lies where
 *
 * The K-th save of a job, in keys of the store:
 *
 *     K/R/has      rank R: the step, and what it has (only if that is new)
 *     K/R/writes   rank 0: what of it R writes, a digit for each
 *     K/R/done     rank R's thread: bytes of its file, digests of what it wrote
 *     K/end        rank 0's thread: it is committed
 *     K/R/heard    rank R, after an error: it needs the store no more
 *
 * Each of them may be an error instead, which whoever waits for it raises: so all ranks raise what
 * went wrong on one. Nothing here is a collective, and a slow disk holds up no training.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_SAVER_H
#define TERN_DISTRIBUTED_PARALLEL_SAVER_H

#include "distributed/parallel/save/holdings.h"

#include <pthread.h>

/* Something that this rank writes. */
typedef struct tn__written {
    tn_tensor *tensor; /* 1-dimensional, one reference */
    const char *name;  /* the state's */
    char digest[TN__DIGEST_DIGITS + 1];
} tn__written;

struct tn_saver {
    tn_group *world;
    int rank, ranks;
    uint32_t process; /* that made it (core/fork.h) */
    char *folder;
    tn_saver_options options;
    tn_store *store;       /* a prefix of its own */
    const char *operation; /* of the public call, static text */

    int64_t saves;   /* calls so far: K above */
    tn__state state; /* what the last save wrote: where behind, copies that the next one fills again
                      */
    char *writes;    /* a digit for each item of the state, as rank 0 told */
    char told[TN__DIGEST_DIGITS + 1]; /* the digest of the list that rank 0 has; "": it has none */

    /* Rank 0. */
    tn__holdings *holdings;
    int lock;   /* of the folder, since the first save; -1 */
    char *made; /* the folder of the step that is being written; NULL: there is none */

    /* The save under way. */
    bool under_way, has_thread;
    pthread_t thread;
    int64_t step;
    double deadline;      /* of tn__now: all must have written then */
    char *metadata;       /* rank 0: its texts as a JSON object */
    tn__written *written; /* [written_count] */
    int written_count;
    tn_error_record failed; /* what went wrong before the thread began; TN_OK */
    bool shared_error;      /* what was heard last was an error, which all ranks hear */
};

/* ---- talk.c ---------------------------------------------------------------------------------- */

/* Tells what stands under key K/`rank`/`what` (rank -1: K/`what`), or the pending error, which
 * stays pending. */
void tn__saver_tell(tn_saver *s, int rank, const char *what, const void *data, size_t bytes);

/* Waits for a key until `deadline`. The caller frees; a 0 follows. NULL after raising: what was
 * told as an error, or TN_EPEER with `late`, which says who is missing. */
char *tn__saver_hear(tn_saver *s, int rank, const char *what, double deadline, const char *late);

/* After an error, which stays pending: rank 0, whose process as a rule serves the store, does not
 * go on, perhaps to its end, before the others have heard of it; but not for long. */
void tn__saver_part(tn_saver *s);

/* Removes the keys of save K. Fails silently: they are in nobody's way. */
void tn__saver_forget(tn_saver *s, int64_t k);

/* How much later than the deadline rank 0 has certainly said what it thinks. */
double tn__saver_grace(const tn_saver *s);

/* ---- write.c --------------------------------------------------------------------------------- */

/* Writes this rank's file and tells so; on rank 0 commits then. Raises nothing: what goes wrong is
 * told at the end of the save. */
void tn__saver_write(tn_saver *s);

/* Rank 0, with an error pending that the others have heard of: some of them may be writing all the
 * same. Waits for these and removes the step. */
void tn__saver_give_up(tn_saver *s);

/* ---- folder.c: steps in a folder ------------------------------------------------------------- */

enum { TN__STEP_NAME = 40 };

/* "step-000100", or with `made` the name that it has until it is committed. */
void tn__step_name(int64_t step, bool made, char *text);

/* FOLDER/step-000100[.tmp] or FOLDER/step-000100[.tmp]/FILE (NULL: none). The caller frees; NULL
 * after raising. */
char *tn__step_path(const char *folder, int64_t step, bool made, const char *file,
                    const char *operation);

/* The newest committed step in a folder; -1: there is none; -2 after raising. A folder that is not
 * there has none. */
int64_t tn__step_newest(const char *folder, const char *operation);

/* Makes the folder and takes its lock, once; removes what dead jobs have left in it, as far as that
 * can be removed. Then makes the folder of this step. False after raising. */
bool tn__saver_prepare(tn_saver *s);
/* Every rank: makes the folder and takes its lock, which the first save would do. False after
 * raising, on rank 0 alone. */
bool tn__saver_hold(tn_saver *s, const char *operation);
/* Other savers may have the folder, unless this process is a child of the one that locked it. */
void tn__saver_unlock(tn_saver *s);
/* Gives the written step its name, and removes what is older than options.keep steps. False after
 * raising: then the step does not exist. */
bool tn__saver_commit(tn_saver *s);
/* Removes all committed steps. False after raising. */
bool tn__saver_clear_steps(tn_saver *s);
/* Removes what there is of a step that failed; needs no memory. What cannot be removed is in
 * nobody's way, and the log says so. */
void tn__saver_discard(tn_saver *s);

#endif
