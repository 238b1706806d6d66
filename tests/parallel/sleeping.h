/* A pipeline whose parts sleep: its course is that of the schedule, however few cores there are. */
#ifndef TERN_TESTS_PARALLEL_SLEEPING_H
#define TERN_TESTS_PARALLEL_SLEEPING_H

#include <tern/tern.h>

#include <string.h>
#include <time.h>

enum { SLEEP_RANKS = 4, SLEEP_PARTS = 8, SLEEP_MICROS = 8 };

typedef struct sleep_run {
    const char *name;
    tn_pipe_kind kind;
    int chunks;
    tn_pipe_outcome measured; /* seconds: 0 before the first step */
    double took;              /* by a part's forward in it, in the mean; 0: not measured */
    tn_pipe_outcome simulated;
} sleep_run;

enum { SLEEP_RUNS = 4 };
static const sleep_run sleep_runs[SLEEP_RUNS] = {
    {.name = "1F1B", .kind = TN_PIPE_1F1B, .chunks = 1},
    {.name = "GPipe", .kind = TN_PIPE_GPIPE, .chunks = 1},
    {.name = "Interleaved 1F1B", .kind = TN_PIPE_INTERLEAVED, .chunks = 2},
    {.name = "ZB-H1", .kind = TN_PIPE_ZERO_BUBBLE, .chunks = 1},
};

/* Seconds of a part's forward, and of each half of its backward. */
static double sleep_forward = 0.015;
static _Thread_local double slept; /* seconds, by this rank */

static inline void sleep_for(double seconds) {
    double began = tn_flight_now();
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0) {}
    slept += tn_flight_now() - began;
}

static inline tn_tensor *sleep_backward(tn_tensor *grad, void *user) {
    sleep_for(sleep_forward);
    return NULL;
}

static inline tn_tensor *sleep_part(tn_tensor *x) {
    sleep_for(sleep_forward);
    tn_tensor *y = tn_mul_scalar(x, 1);
    tn_on_grad(y, sleep_backward, NULL);
    return y;
}

/* The other half comes with the parameter's gradient. */
static inline bool sleep_at_weight(const tn_entry *entry, void *user) {
    if (strstr(entry->path, "weight")) { tn_on_grad(*entry->field, sleep_backward, NULL); }
    return true;
}

static inline tn_tensor *sleep_loss(tn_tensor *out, tn_tensor *y, void *user) {
    return tn_mse(out, y, TN_MEAN);
}

/* With the seconds that parts took, or should take. drawing: as for tn_pipe_simulate. */
static inline tn_status sleep_simulate(sleep_run *r, FILE *drawing) {
    double part = r->took > 0 ? r->took : sleep_forward;
    double stage = part * SLEEP_PARTS / SLEEP_RANKS / r->chunks;
    tn_pipe_cost cost = {stage, stage, stage, 0};
    tn_pipe_schedule *s = tn_pipe_schedule_new(r->kind, SLEEP_RANKS, r->chunks, SLEEP_MICROS);
    tn_status status = s ? tn_pipe_simulate(s, cost, &r->simulated, drawing) : tn_error();
    tn_pipe_schedule_free(s);
    return status;
}

/* Runs `steps` steps on SLEEP_RANKS ranks; r->measured is of the shortest on this rank, and each is
 * an event of its name in the trace. Where ranks are threads, each has an r of its own. */
static inline void sleep_measure(sleep_run *r, tn_group *world, int steps) {
    TN_SCOPE;
    tn_sequential *m = tn_sequential_new();
    for (int i = 0; i < SLEEP_PARTS; i++) {
        tn_sequential_add(m, TN_SEQUENTIAL(tn_linear_new(4, 4), TN_FN(sleep_part)));
    }
    tn_pipeline *p = tn_pipeline_new(
        m, world, TN_WITH(tn_pipeline, .kind = r->kind, .chunks = r->chunks, .loss = sleep_loss));
    tn_module_each(m, (tn_walk){0}, sleep_at_weight, NULL);
    tn_batch batches[SLEEP_MICROS];
    for (int i = 0; i < SLEEP_MICROS; i++) {
        batches[i] =
            (tn_batch){.x = tn_ones(TN_DIMS(2, 4), TN_F32), .y = tn_zeros(TN_DIMS(2, 4), TN_F32)};
    }
    for (int i = 0; i < steps; i++) {
        tn_barrier(world);
        slept = 0;
        double began = tn_flight_now();
        tn_pipeline_step(p, batches, SLEEP_MICROS, NULL);
        tn_flight_mark(r->name, began);
        double seconds = tn_flight_now() - began;
        double busy = tn_group_mean(world, slept, 1);
        if (i == 0 || seconds < r->measured.seconds) {
            r->measured = (tn_pipe_outcome){seconds, 1 - busy / seconds, tn_pipeline_alive(p)};
            r->took = busy * SLEEP_RANKS / (3 * SLEEP_PARTS * SLEEP_MICROS);
        }
    }
    tn_module_free(m);
}

#endif
