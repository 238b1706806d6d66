/* The inside of a run: run.c is what it does, run_show.c what the user sees. */
#ifndef TERN_TRAIN_RUN_H
#define TERN_TRAIN_RUN_H

#include "core/alive.h"
#include "tern/tensorboard.h"
#include "tern/train.h"
#include "train/history_table.h"

/* The last value of a name, and its step, from 1. */
typedef struct tn__run_value {
    char name[TN__COLUMN_NAME];
    double value;
    int64_t step;
} tn__run_value;

/* A callback for an event. */
typedef struct tn__run_watcher {
    tn_run_event event;
    tn_run_callback f;
    void *user;
} tn__run_watcher;

struct tn_run {
    tn__alive alive;
    tn_run_options options;
    tn_checkpoint parts; /* with the steps done */
    tn_group *world;
    int ranks;
    bool first_rank;                 /* shows, and keeps the history */
    char *losses, *picture, *record; /* paths */
    tn_saver *saver, *memory;        /* memory: NULL: none */
    tn_history *history;             /* only on the first rank, like */
    tn_progress *progress;           /* this */
    tn_summary_writer *board;        /* and this one, with options.tensorboard */
    int64_t start, saved; /* steps done when it began, and at the last checkpoint; -1: none */
    int64_t saved_before; /* and at the checkpoint before */
    int64_t remembered;   /* at the last save in memory; -1: none */
    int64_t remembered_before;
    int64_t batch_before; /* all ranks' examples of a batch in the checkpoint; 0: unknown */
    bool refused, stopped, ended, exported;
    bool drawn; /* the picture shows all saved steps */
    /* For run.json: earlier starts, this one without its end, and when it began. */
    char *starts_before, *start_text;

    /* Callbacks (run_watch.c). */
    tn__run_value values[TN__COLUMNS]; /* [value_count], on every rank */
    int value_count;
    tn__run_watcher *watchers; /* [watcher_count] */
    int watcher_count;
    int64_t watcher_capacity;
    bool wants_end;               /* this rank's tn_run_stop */
    bool finished;                /* some rank's did, or it stalled: the run ends early */
    char *early_name, *best_name; /* NULL: not requested */
    tn_early_options early;
    bool stalled; /* the value has not improved for that long */
    int64_t best_count;
    bool best_larger;

    /* The step. */
    bool in_step, clock_stopped, validating;
    bool bad_loss; /* this rank has logged a NaN or infinite one */
    bool unsound;  /* some rank's loss or weights were, and the run has ended */
    double began, loss, megabytes;
    int64_t units;
    char unit[24];
    double opened;             /* when the run began, in this process */
    double counted;            /* units of all steps of the run, on the first rank */
    char limit[80];            /* which the run has reached, likewise; "": none */
    bool goes_on;              /* it could continue: the limit is of each start */
    char note[128], line[256]; /* logged values: for the progress line, and after validation */
};

/* run_state.c. A run begins, and ends: false after raising, it has ended already. */
void tn__run_opened(tn_run *r);
bool tn__run_closes(tn_run *r);
/* Whether the run, which is not NULL, was not ended; false after raising. */
bool tn__run_here(const tn_run *r, const char *operation);
bool tn__run_any_rank(const tn_run *r, bool mine); /* whether any rank says so; every rank calls */
void tn__run_note_value(tn_run *r, const char *name, double value);
void tn__run_tell(tn_run *r, tn_run_event event);
/* After a step: keeps the best weights, and checks whether it still improves. False after raising.
 */
bool tn__run_look(tn_run *r);
/* On the first rank: counts the units of the steps in the history, and of a step that ends; whether
 * one of the options' limits is reached. */
void tn__run_count_before(tn_run *r);
const char *tn__run_count_name(const tn_run *r, char *name); /* [TN__COLUMN_NAME]: "tok_count" */
void tn__run_count_step(tn_run *r);
bool tn__run_at_limit(tn_run *r);
/* Removes best weights that are no longer needed. */
void tn__run_clear_best(tn_run *r);

/* run_finite.c. Notes a value of this step; whether training may continue (no rank has a bad loss),
 * and whether the weights may be saved. If not, false on all ranks after raising: the run is
 * over. */
void tn__run_note_loss(tn_run *r, const char *name, double value);
bool tn__run_loss_finite(tn_run *r, bool any_bad);
bool tn__run_weights_finite(tn_run *r);

#define TN__RESUME_HINT " (--resume-anyway: continue nevertheless)"

/* run_memory.c: saves in memory, which end on all ranks with a warning when one fails. Saving does
 * not wait for tn_history_sync: what the history has so far survives this process. */
void tn__run_memory_open(tn_run *r);
void tn__run_memory_save(tn_run *r);
void tn__run_memory_clear(tn_run *r); /* all is in files */
void tn__run_memory_close(tn_run *r);
/* Loads the newest checkpoint, from the folder or from memory; if it is damaged and memory has one,
 * the other, with a warning. Whether there is one; false also after raising. */
bool tn__run_load(tn_run *r, tn_checkpoint *c);

void tn__run_say_what(const tn_run *r);
/* steps_before: the schedule's when saved. */
void tn__run_say_begin(const tn_run *r, bool found, int64_t steps_before);
/* On the first rank, after two steps: whether a step has other than before this start. */
void tn__run_say_batch(const tn_run *r);
void tn__run_say_refused(const tn_run *r);
void tn__run_show(tn_run *r, const char *name, double value);
void tn__run_show_step(tn_run *r);
void tn__run_say_line(tn_run *r);
void tn__run_say_end(tn_run *r);
/* run_board.c. Opens the writer, if requested; adds a number of this step to it and the history;
 * writes histograms of the weights, and all of it to disk. */
void tn__run_board_open(tn_run *r);
void tn__run_put(tn_run *r, const char *name, double value);
void tn__run_board_weights(tn_run *r);
/* record.c. Prepares run.json, on the first rank: `continued` keeps the starts that it has. Then
 * writes it; `end`: how the run ended, NULL while it goes on. Errors are raised. */
void tn__run_record_open(tn_run *r, bool continued);
void tn__run_record(tn_run *r, const char *end);
/* Writes the picture. */
void tn__run_picture(tn_run *r);

#endif
