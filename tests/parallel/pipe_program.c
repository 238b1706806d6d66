/* pipe_program FOLDER [MS], on 4 ranks: runs schedules of pipelines with parts that sleep, each for
 * MS milliseconds forward, 15 unless told, and twice that backward. Writes into FOLDER each rank's
 * trace, and schedules.txt: what was simulated and measured, and the simulated course.
 * docs/draw_splitting.py draws them. */
#include "tests/parallel/sleeping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_outcome(FILE *f, const char *what, const tn_pipe_outcome *o) {
    fprintf(f, ", %s %.3f s, bubble %.1f %%, graphs %d", what, o->seconds, 100 * o->bubble,
            o->alive);
}

static void print_run(FILE *f, sleep_run *r) {
    sleep_simulate(r, NULL);
    fprintf(f, "%s", r->name);
    print_outcome(f, "simulated", &r->simulated);
    if (r->measured.seconds > 0) { print_outcome(f, "measured", &r->measured); }
    fputc('\n', f);
    sleep_simulate(r, f);
    fputc('\n', f);
}

static void print_all(const char *folder, sleep_run *runs) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/schedules.txt", folder);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < SLEEP_RUNS; i++) {
        print_run(f, &runs[i]);
    }
    if (!f || fclose(f) != 0) { tn_raise(TN_EIO, "schedules.txt cannot be written"); }
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_group *world = tn_dist_init(tn_dist_defaults());
    if (argc < 2 || tn_group_size(world) != SLEEP_RANKS) {
        fprintf(stderr, "tern run -n %d pipe_program FOLDER [MS]\n", SLEEP_RANKS);
        return 2;
    }
    sleep_forward = argc > 2 ? atof(argv[2]) / 1000 : sleep_forward;
    sleep_run runs[SLEEP_RUNS];
    memcpy(runs, sleep_runs, sizeof(runs));
    for (int i = 0; i < SLEEP_RUNS; i++) {
        sleep_measure(&runs[i], world, 2); /* of all runs, as many as the flight recorder holds */
    }
    char path[4096];
    snprintf(path, sizeof(path), "%s/rank-%d.json", argv[1], tn_group_rank(world));
    tn_flight_trace(path);
    if (tn_group_rank(world) == 0) { print_all(argv[1], runs); }
    tn_dist_finish();
    return 0;
}
