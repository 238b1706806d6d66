/* Shared by the benchmarks: a clock, medians, this process's peak memory, and the loop of a program
 * driven by a comparison (peers/duel.py): it reads how many steps to run and answers with their
 * times.
 */
#ifndef TERN_BENCH_H
#define TERN_BENCH_H

#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* Seconds of the clock of Python's time.monotonic. */
static inline double bench_now(void) {
    return tn_now();
}

/* The clock for steps: bench_now, or with TERN_BENCH_TIME=cpu this process's CPU time, which other
 * programs do not affect. */
static inline double bench_step_now(void) {
    const char *kind = getenv("TERN_BENCH_TIME");
    struct timespec t;
    if (!kind || strcmp(kind, "cpu") != 0) { return bench_now(); }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts x. */
static inline double bench_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof(*x), bench_compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* This process's peak resident memory, in MiB. */
static inline double bench_peak_rss(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024.0;
}

/* Writes the peer's initial data to a folder (peers/shared.py): the weights of `module`, and the
 * batches x and y, each (steps, batch, tokens). */
static inline void bench_share(void *module, const char *folder, tn_tensor *x, tn_tensor *y) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/weights.safetensors", folder);
    tn_status saved = tn_save(module, path);
    snprintf(path, sizeof(path), "%s/batches.safetensors", folder);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "x", x);
    tn_safetensors_writer_add(w, "y", y);
    if (saved != TN_OK || tn_safetensors_writer_save(w, path) != TN_OK) { exit(1); }
}

/* Answers "run N" with the loss of the last step and N times in ms, "memory" with the peaks of the
 * process and of tensors in MiB; ends with the input. `step` returns the loss. */
static inline int bench_serve(double (*step)(void *user), void *user) {
    char line[64];
    while (fgets(line, sizeof(line), stdin)) {
        int n = 0;
        if (strncmp(line, "memory", 6) == 0) {
            printf("%.1f %.1f\n", bench_peak_rss(),
                   (double)tn_device_memory(tn_default_device()).peak / 1048576.0);
        } else if (sscanf(line, "run %d", &n) == 1 && n > 0) {
            double loss = 0.0, *ms = malloc((size_t)n * sizeof(*ms));
            if (!ms) { return 1; }
            for (int i = 0; i < n; i++) {
                double start = bench_step_now();
                loss = step(user);
                ms[i] = (bench_step_now() - start) * 1e3;
            }
            printf("%.6f", loss);
            for (int i = 0; i < n; i++) {
                printf(" %.4f", ms[i]);
            }
            printf("\n");
            free(ms);
        }
        fflush(stdout);
    }
    return 0;
}

#endif
