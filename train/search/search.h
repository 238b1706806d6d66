/* The inside of a search: search.c is its loop and state, rungs.c which trial is next, space.c what
 * is searched, process.c trials as processes, table.c the final table. */
#ifndef TERN_TRAIN_SEARCH_SEARCH_H
#define TERN_TRAIN_SEARCH_SEARCH_H

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
    int gone; /* becomes readable when it has ended */
    int64_t trial;
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
    int64_t current; /* the trial that this process runs; -1: none */
    char *folder;    /* of that trial */
    int held;        /* the file of tn__search_hold; -1: none */
    bool child;      /* this process was started only for `current` */
    bool began, reported, stopped;
};

/* Starts the trial's next rung in a process. False after raising. */
bool tn__search_start(tn_search *s, int64_t trial);
/* Waits until a process has ended; returns its trial, and whether its exit status was 0. -1: this
 * process was asked to stop, or after raising; then all have ended. */
int64_t tn__search_wait(tn_search *s, bool *well);
/* Ends all that run, and waits for them. */
void tn__search_stop(tn_search *s);
/* Reads from the environment which trial this process was started for; false: none. Removes it for
 * processes started from here. */
bool tn__search_told(int64_t *trial, int64_t *rung);
/* Waits until no other process holds the trial in s->folder, then holds it until the process ends
 * or tn__search_leave. False after raising, or when the process was asked to stop. */
bool tn__search_hold(tn_search *s);
void tn__search_leave(tn_search *s);

void tn__search_free(tn_search *s);
char *tn__search_trial_folder(const tn_search *s, int64_t trial);
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
