/* TERN_PROFILE: profiles any program without changes to it.
 *
 *     TERN_PROFILE=1           tables on stderr when the program ends
 *     TERN_PROFILE=PATH.json   and a trace in this file; with several ranks in PATH.rank3.json etc.
 *
 * The end is exit, or the return from main, or SIGINT or SIGTERM where the program does not handle
 * these: a thread writes the report, and the process ends as it would have.
 */
#include "core/error.h"
#include "core/fork.h"
#include "core/threads.h"
#include "profile/profiler.h"
#include "profile/span.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Runs once. An error that the program left pending stays. */
static void write_report(void) {
    static bool written; /* atomic */
    if (!wish || tn__inherited(process) || __atomic_exchange_n(&written, true, __ATOMIC_RELAXED) ||
        tn__spans_count() == 0) {
        return;
    }
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

/* ---- Signals --------------------------------------------------------------------------------- */

static sem_t asked;
static int asked_by; /* atomic: the signal */

static void on_signal(int number) {
    int before = errno;
    if (tn__inherited(process)) { /* the thread that reports stayed with the parent */
        kill(getpid(), number);   /* arrives once this returns, and ends the process */
        return;
    }
    __atomic_store_n(&asked_by, number, __ATOMIC_RELAXED);
    sem_post(&asked);
    errno = before;
}

static void *report_when_asked(void *unused) {
    while (sem_wait(&asked) != 0) {}
    write_report();
    int number = __atomic_load_n(&asked_by, __ATOMIC_RELAXED);
    signal(number, SIG_DFL);
    kill(getpid(), number);
    return unused;
}

static void watch_signal(int number) {
    struct sigaction old;
    /* once: a second signal ends the process */
    struct sigaction mine = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigemptyset(&mine.sa_mask);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_DFL) {
        sigaction(number, &mine, NULL);
    }
}

/* At the first operation, not at load time: a program that only loads the library forks without
 * an extra thread. */
static void watch_signals(void) {
    pthread_t thread;
    if (sem_init(&asked, 0, 0) != 0) { return; }
    if (tn__thread_start(&thread, report_when_asked, NULL) == 0) {
        pthread_detach(thread);
        watch_signal(SIGINT);
        watch_signal(SIGTERM);
    }
}

void tn__profiler_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (wish) { pthread_once(&once, watch_signals); }
}

__attribute__((constructor)) static void begin_by_environment(void) {
    const char *value = getenv("TERN_PROFILE");
    if (!value || !*value || strcmp(value, "0") == 0) { return; }
    if (tn__profiler_begin(tn_profiler_defaults(), true) == TN_OK && atexit(write_report) == 0) {
        wish = value;
        process = tn__process();
    }
}
