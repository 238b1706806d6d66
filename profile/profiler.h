/* What the files of the profiler share. The public side is tern/profiler.h. */
#ifndef TERN_PROFILE_PROFILER_H
#define TERN_PROFILE_PROFILER_H

#include "tern/profiler.h"

/* tn_profiler_start; `environment`: a program that starts it itself takes over. */
tn_status tn__profiler_begin(tn_profiler_options options, bool environment);

/* tn_profiler_step for loops of the library's own: where TERN_PROFILE alone profiles, since a
 * program that does says itself what its steps are. Of loops that run at once in threads the first
 * one's steps count, until it ends. */
void tn__profiler_own_step(const void *loop);
void tn__profiler_own_end(const void *loop);

/* Steps that were kept; 0 where the program says nothing of steps. */
int64_t tn__profiler_steps(void);

/* environment.c: with TERN_PROFILE, from now on SIGINT and SIGTERM do not end the process before it
 * has reported. */
void tn__profiler_watch(void);

/* Which of a job's processes this is, as launchers say it: environment.c. */
int tn__profiler_rank(void);

#endif
