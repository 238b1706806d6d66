/* The inside of a run: run.c is what it does, run_show.c what a person sees of it. */
#ifndef TERN_TRAIN_RUN_H
#define TERN_TRAIN_RUN_H

#include "tern/train.h"

struct tn_run {
    tn_run_options options;
    tn_checkpoint parts; /* with the steps done */
    tn_group *world;
    int ranks;
    bool first_rank; /* shows, and keeps the history */
    char *losses, *picture;
    tn_saver *saver;
    tn_history *history;   /* of the first rank, as is */
    tn_progress *progress; /* this */
    int64_t start, saved;  /* steps done when it began, and at the last checkpoint; -1: none */
    bool refused, stopped, ended, exported;

    /* The step. */
    bool in_step, clock_stopped, validating;
    double began, loss, megabytes;
    int64_t units;
    char note[128], line[256]; /* what was logged: for the progress line, and after validation */
};

void tn__run_say_what(const tn_run *r);
/* steps_before: of the schedule, when it was saved. */
void tn__run_say_begin(const tn_run *r, bool found, int64_t steps_before);
void tn__run_say_refused(const tn_run *r);
void tn__run_show(tn_run *r, const char *name, double value);
void tn__run_show_step(tn_run *r);
void tn__run_say_line(tn_run *r);
void tn__run_say_end(tn_run *r);
/* Writes the picture. */
void tn__run_picture(tn_run *r);

#endif
