/* The profiler: how long each operation and each module takes, forward and backward, how much it
 * moves and computes, and how far that is from the machine's limits.
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
 * Any program can be profiled without changes: TERN_PROFILE=1 ./program prints the tables at its
 * exit, and TERN_PROFILE=trace.json writes the trace too. docs/profiling.md explains both.
 *
 * Times are the host's. On a device the host waits for each kernel (options.sync), so a kernel's
 * time is the device's, and nothing overlaps as it usually does. The profiler is per process: all
 * threads are profiled together, each in its own row.
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

/* Like torch.profiler.schedule: the first skip_first steps (tn_profiler_step) are left out; then
 * wait steps are not profiled, warmup steps are profiled but discarded, active steps are recorded;
 * and so on from wait, repeat times (0: without end). `ready` is called at the end of each cycle
 * and should save its record, which is discarded at the first active step of the next.
 */
typedef struct tn_profiler_options {
    int64_t skip_first, wait, warmup;
    int64_t active; /* 0: no schedule, all steps are recorded */
    int64_t repeat;
    void (*ready)(void *user); /* or NULL */
    void *user;
    /* The machine's limits: 10^9 bytes and 10^9 floating-point operations per second, in f32 and in
     * bf16 and f16 (f64: half of f32). 0: not known, and not compared with. */
    double gbytes, gflops, half_gflops;
    bool sync;      /* true: wait for the device at the end of each kernel */
    int64_t events; /* 200000: size of the trace, the last events; fixed by the first start */
    bool from_defaults;
} tn_profiler_options;
TN_API tn_profiler_options tn_profiler_defaults(void);

/* Discards earlier records. TN_ESTATE: it is already running; TN_EVALUE: a number is negative, or
 * above 2^40; TN_ENOMEM. */
TN_API tn_status tn_profiler_start(tn_profiler_options options);
/* Ends a step. Call it from one thread, outside of regions. Does nothing without a start. */
TN_API void tn_profiler_step(void);
/* Keeps the record, for a table and a trace. TN_ESTATE: it is not running. */
TN_API tn_status tn_profiler_stop(void);

/* A named part of the program, up to the enclosing block's `}`: shown around the operations in
 * it. TN_EVALUE while profiling: the name is not UTF-8, as a trace must be. */
#define TN_PROFILE_REGION(name)                                                            \
    __attribute__((cleanup(tn_profile_region_end), unused)) tn_profile_region *TN__UNIQUE( \
        tn__region_) = tn_profile_region_begin(name)
typedef struct tn_profile_region tn_profile_region;
TN_API tn_profile_region *tn_profile_region_begin(const char *name); /* NULL: not profiled */
TN_API void tn_profile_region_end(tn_profile_region *const *region);

/* Rows, most time first: */
typedef enum tn_profiler_view {
    TN_PROFILER_OPS,    /* operations, their gradients, and regions, by self time */
    TN_PROFILER_MODULES /* modules by their path, forward and backward */
} tn_profiler_view;
/* At most `most` of them. `% limit`, if limits were given: the time that the machine would need for
 * these bytes and operations at its limits, relative to the time taken; above 100 the data was in a
 * cache. TN_EVALUE; TN_ENOMEM. */
TN_API tn_status tn_profiler_table(FILE *file, tn_profiler_view view, int most);

/* The trace as JSON: modules, operations and kernels inside one another, a row for each thread, and
 * one for each group with its collectives. Written as io.h says. */
TN_API tn_status tn_profiler_save(const char *path);

#ifdef __cplusplus
}
#endif
#endif
