/* TERN_PROFILE: profiles any program without changes to it.
 *
 *     TERN_PROFILE=1           tables on stderr when the program ends
 *     TERN_PROFILE=PATH.json   and a trace in this file; with several ranks in PATH.rank3.json etc.
 *
 * The end is exit, or the return from main: a program that a signal ends reports nothing.
 */
#include "core/error.h"
#include "core/fork.h"
#include "profile/profiler.h"
#include "profile/span.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 25 };

/* ---- Ranks ----------------------------------------------------------------------------------- */

int tn__profiler_rank(void) {
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const char *text = getenv(names[i]);
        char *end;
        long rank = text && *text ? strtol(text, &end, 10) : -1;
        if (rank >= 0 && rank < 1 << 20 && !*end) { return (int)rank; }
    }
    return -1;
}

/* trace.json of rank 3: trace.rank3.json */
static void rank_path(char *path, size_t size, const char *wish) {
    int rank = tn__profiler_rank();
    const char *dot = strrchr(wish, '.'), *slash = strrchr(wish, '/');
    size_t stem = dot && (!slash || dot > slash) ? (size_t)(dot - wish) : strlen(wish);
    if (rank < 0) {
        snprintf(path, size, "%s", wish);
    } else {
        snprintf(path, size, "%.*s.rank%d%s", (int)stem, wish, rank, wish + stem);
    }
}

/* ---- The report ------------------------------------------------------------------------------ */

static const char *wish; /* the variable's value; NULL: no report */
static uint32_t process; /* whose report it is: a child of fork has none */

/* An error that the program left pending stays. */
static void write_report(void) {
    if (!wish || tn__inherited(process) || tn__spans_count() == 0) { return; }
    tn__spans_see(TN__SPANS_OFF);
    tn_error_record before;
    bool pending = tn_error_take(&before);
    tn__quiet(1);
    tn_profiler_table(stderr, TN_PROFILER_OPS, ROWS);
    fprintf(stderr, "\n");
    tn_profiler_table(stderr, TN_PROFILER_MODULES, ROWS);
    char path[4096];
    rank_path(path, sizeof(path), wish);
    if (strstr(wish, ".json") && tn_profiler_save(path) == TN_OK) {
        fprintf(stderr, "the trace is in %s: open it at https://ui.perfetto.dev\n", path);
    }
    if (tn_error() != TN_OK) { fprintf(stderr, "%s\n", tn_error_message()); }
    tn_error_clear();
    tn__quiet(-1);
    if (pending) { tn_error_give(&before); }
}

__attribute__((constructor)) static void begin_by_environment(void) {
    const char *value = getenv("TERN_PROFILE");
    if (!value || !*value || strcmp(value, "0") == 0) { return; }
    if (tn__profiler_begin(tn_profiler_defaults(), true) == TN_OK && atexit(write_report) == 0) {
        wish = value;
        process = tn__process();
    }
}
