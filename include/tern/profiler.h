/* The profiler: how long each operation and each module takes, forward and backward, how much it
 * moves and computes, and how far that is from what the machine can do.
 *
 *     tn_profiler_start(TN_WITH(tn_profiler, .wait = 1, .warmup = 1, .active = 3)); // steps
 *     for (int step = 0; step < 5; step++) {
 *         TN_SCOPE;
 *         train_step(&net, opt);
 *         tn_profiler_step();
 *     }
 *     tn_profiler_stop();
 *     tn_profiler_table(stdout, TN_PROFILER_OPS, 20);
 *     tn_profiler_save("trace.json");                  // for ui.perfetto.dev and chrome://tracing
 *
 * Any program is profiled without being changed: TERN_PROFILE=1 ./program prints the tables at its
 * end, and TERN_PROFILE=trace.json writes the trace too. docs/profiling.md reads both with you.
 *
 * Time is the host's. On a device the host waits for each kernel (options.sync), so a kernel's time
 * is the device's, and what usually overlaps does not. Everything here is the process's: threads
 * are profiled together, each in its own row.
 *
 * Read next: profile/span.h.
 */
#ifndef TERN_PROFILER_H
#define TERN_PROFILER_H

#include "core.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As torch.profiler.schedule: of the steps (tn_profiler_step) the first skip_first are left out;
 * then wait steps are not seen, warmup steps are seen and not counted, active steps are kept; and
 * again from wait on, repeat times (0: as long as there are steps). What is kept is forgotten when
 * the next time round keeps its first step: `ready`, which is called at the end of each, takes it.
 */
typedef struct tn_profiler_options {
    int64_t skip_first, wait, warmup;
    int64_t active; /* 0: no schedule, all is kept from the start on */
    int64_t repeat;
    void (*ready)(void *user); /* or NULL */
    void *user;
    /* The machine's limits: 10^9 bytes and 10^9 floating-point operations a second, in f32 and in
     * bf16 and f16 (f64: half of f32). 0: measured at the start, in about a tenth of a second. */
    double gbytes, gflops, half_gflops;
    bool sync;      /* true: wait for the device at the end of each kernel */
    int64_t events; /* 200000: the trace has the last so many of a process; the first start's count
                     */
    bool from_defaults;
} tn_profiler_options;
TN_API tn_profiler_options tn_profiler_defaults(void);

/* Forgets what was seen before. TN_ESTATE: it runs; TN_EVALUE: a number is negative, or above 2^40;
 * TN_ENOMEM. */
TN_API tn_status tn_profiler_start(tn_profiler_options options);
/* The end of a step. For one thread, outside of regions. Nothing happens without a start. */
TN_API void tn_profiler_step(void);
/* What was seen stays, for a table and a trace. TN_ESTATE: it does not run. */
TN_API tn_status tn_profiler_stop(void);

/* A part of the program with a name, up to the enclosing block's `}`: shown around the operations
 * in it. */
#define TN_PROFILE_REGION(name)                                                            \
    __attribute__((cleanup(tn_profile_region_end), unused)) tn_profile_region *TN__UNIQUE( \
        tn__region_) = tn_profile_region_begin(name)
typedef struct tn_profile_region tn_profile_region;
TN_API tn_profile_region *tn_profile_region_begin(const char *name); /* NULL: it is not seen */
TN_API void tn_profile_region_end(tn_profile_region *const *region);

/* Rows, those that took most first: */
typedef enum tn_profiler_view {
    TN_PROFILER_OPS,    /* operations, their gradients, and regions, by their own time */
    TN_PROFILER_MODULES /* modules by their path, forward and backward */
} tn_profiler_view;
/* At most `most` of them. `% limit`: the time that the machine would need for these bytes and
 * operations at its limits, of the time that it took; above 100 what is read was in a cache.
 * TN_EVALUE; TN_ENOMEM. */
TN_API tn_status tn_profiler_table(FILE *file, tn_profiler_view view, int most);

/* The trace as JSON: modules, operations and kernels inside one another, a row for each thread, and
 * one for each group with its collectives. Written as io.h says. */
TN_API tn_status tn_profiler_save(const char *path);

#ifdef __cplusplus
}
#endif
#endif
