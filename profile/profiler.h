/* What the files of the profiler share. The public side is tern/profiler.h. */
#ifndef TERN_PROFILE_PROFILER_H
#define TERN_PROFILE_PROFILER_H

#include "tern/profiler.h"

/* tn_profiler_start. With `environment` it was TERN_PROFILE that started it: a program's own start
 * takes over. */
tn_status tn__profiler_begin(tn_profiler_options options, bool environment);

/* tn_profiler_step for the library's own loops. Counts only if TERN_PROFILE started the profiler: a
 * program that starts it marks its own steps. Of loops that run at the same time in several
 * threads, the first one's steps count until it ends. */
void tn__profiler_own_step(const void *loop);
void tn__profiler_own_end(const void *loop);

/* Steps that were kept; 0 if the program marks none. */
int64_t tn__profiler_steps(void);

/* This process's rank in the job, as launchers set it: environment.c. */
int tn__profiler_rank(void);

#endif
