/* The inside of a search: search.c is its loop and state, folder.c its files, rungs.c which trial
 * is next, space.c what is searched, process.c trials as processes, what these are started with
 * and their locks, table.c the final table. */
#ifndef TERN_TRAIN_SEARCH_SEARCH_H
#define TERN_TRAIN_SEARCH_SEARCH_H

#include "core/buffer.h"
#include "tern/train.h"

#include <sys/types.h>

enum { TN__RUNGS = 40, TN__MOST_TRIALS = 100000, TN__MOST_SEARCHED = 64, TN__SEARCH_VALUE = 40 };

/* A value that is searched for: from a list, or else from a range. */
typedef struct tn__searched {
    char name[32];
    double *real; /* one of these points to the variable */
    int64_t *whole;
    const char **text;
    double low, high;
    int64_t least, most; /* of an integer: low and high come from these */
    bool log;
    void *choices; /* double, int64_t or const char *: a copy */
    int count;
} tn__searched;

typedef struct tn__trial {
    int rungs; /* completed */
    bool failed, running;
    bool elsewhere;           /* another process has it, as far as is known */
    double values[TN__RUNGS]; /* [rungs] */
} tn__trial;

/* A trial's value for a searched one. */
typedef struct tn__setting {
    double real; /* one of these */
    int64_t whole;
    const char *text;
} tn__setting;

/* A trial and its result, lower being better. */
typedef struct tn__ranked {
    double value;
    int64_t trial;
} tn__ranked;

/* The trials that reach `steps` steps. */
typedef struct tn__rung {
    int64_t steps;
    int64_t *order; /* [count]: the trials that belong to it, in the order in which they count */
    int64_t count;
    int64_t counted;  /* how many of the order are decided */
    tn__ranked *best; /* [ranked]: those with a value, the best first */
    int64_t ranked;
    bool *promoted; /* [trial_count]: which were promoted */
} tn__rung;

/* A process that runs a trial. */
typedef struct tn__search_worker {
    pid_t pid;
    int64_t trial;
    int slot; /* its number among those that run: the lowest that is free */
} tn__search_worker;

struct tn_search {
    tn_search_options options;
    char *out;
    tn__searched *space;
    int space_count;
    tn__trial *trials; /* [trial_count], once the first is asked for */
    int64_t trial_count;
    tn__rung rungs[TN__RUNGS];
    int rung_count;
    tn__search_worker *workers; /* [worker_count] */
    int worker_count;
    int processes;               /* at the same time; 0: trials run in this one */
    int rank, ranks;             /* of those that share the search */
    int local_rank, local_ranks; /* of this host */
    int trial_rank;              /* of the trial's ranks, which of them this process is */
    int64_t current;             /* the trial that this process runs; -1: none */
    char *folder;                /* of that trial */
    bool child;                  /* this process was started only for `current` */
    bool began, reported, stopped;
    bool over; /* no trial of this process follows: all have ended, or the search has failed */
};

/* Locks the trial: the open file, until whose end no other process can. -1: another has locked it,
 * also one on another host; or after raising. */
int tn__search_lock(const tn_search *s, int64_t trial);
/* Starts the trial's next rung in a process, which gets the lock. False after raising. */
bool tn__search_start(tn_search *s, int64_t trial, int lock);
/* Waits until a process has ended; returns its trial, and whether its exit status was 0. -1: none
 * has for a second, or this process was asked to stop. */
int64_t tn__search_wait(tn_search *s, bool *well);
/* Ends all that run, and waits for them. */
void tn__search_stop(tn_search *s);
/* Reads from the environment which trial this process was started for; false: none. Removes it for
 * processes started from here. */
bool tn__search_told(int64_t *trial, int64_t *rung);
/* Reads from the environment which of the ranks that share the search this is, of all and of this
 * host. False after raising. */
bool tn__search_find_rank(tn_search *s);
/* Whether there are as many GPUs as the processes of this host need. False after raising. */
bool tn__search_gpus_suffice(const tn_search *s);

void tn__search_free(tn_search *s);

/* Paths, for the caller to free; NULL after raising. The second: where a rank says that it has the
 * same folder. */
char *tn__search_trial_folder(const tn_search *s, int64_t trial);
char *tn__search_rank_path(const tn_search *s, int rank);
/* Makes the folder, and says there what is searched, and by which ranks. False after raising: it
 * has another search. */
bool tn__search_claim(const tn_search *s);
/* Writes the trial's values into s->folder, for people, or its next result. False after raising. */
bool tn__search_write_settings(const tn_search *s, int64_t trial);
bool tn__search_write_value(const tn_search *s, int64_t trial, double value);
/* Reads all results of the trial that are not known yet; false: there is none, or after raising. */
bool tn__search_learn(tn_search *s, int64_t trial);

/* Describes the search, a line per item; the caller frees. NULL after raising. */
char *tn__search_text(const tn_search *s);
/* A trial's values, to settings[space_count]. */
void tn__search_draw(const tn_search *s, int64_t trial, tn__setting *settings);
/* One value as text: "0.001", in `number` unless it is a string */
const char *tn__search_value(const tn__searched *v, const tn__setting *setting,
                             char number[TN__SEARCH_VALUE]);
/* Sets the program's variables. */
void tn__search_set(const tn_search *s, int64_t trial);
/* "lr 0.001, width 64"; the caller frees. NULL after raising. */
char *tn__search_describe(const tn_search *s, int64_t trial);

/* Call when the trials exist. False after raising. */
bool tn__search_begin_rungs(tn_search *s);
void tn__search_free_rungs(tn_search *s);
/* The trial whose next rung is to be run; -1: none until a running one ends. */
int64_t tn__search_choose_next(tn_search *s);

/* The trials that have completed a rung, the best first; the caller frees. NULL after raising. */
tn__ranked *tn__search_sort(const tn_search *s, int rung, int64_t *count);

#endif
