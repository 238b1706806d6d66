/* The flight recorder: what this process's groups did last, to find out why a job hangs.
 *
 * A trace (profile/trace.h) of the last operations. On a time-out the group that failed writes it
 * to a file; on SIGUSR1 a thread does, which the signal handler wakes by sem_post, one of the few
 * calls it may make.
 */
#include "core/error.h"
#include "core/fork.h"
#include "core/threads.h"
#include "distributed/group/group.h"
#include "distributed/group/record_file.h"
#include "profile/span.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An operation of a group, in whose row it is drawn; or an event of the program. */
typedef struct flight_event {
    tn__event event; /* begin: started */
    int rank, size;  /* in the group; size 0: an event of the program */
    tn_transfer t;
    double queued;
    tn_status status;
} flight_event;

static void name_event(const tn__event *event, char *text, size_t size) {
    const flight_event *e = (const flight_event *)event;
    if (e->size > 0) { tn__transfer_text(&e->t, text, size); }
}

static tn__trace flight = TN__TRACE(flight_event, 1000, name_event);
static int last_process; /* atomic: of the last operation; used for events of the program too */

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&flight.lock);
}

uint64_t tn__flight_queued(const tn_group *g, const tn_transfer *t) {
    flight_event e = {.event.process = g->world[g->rank],
                      .rank = g->rank,
                      .size = g->size,
                      .t = *t,
                      .queued = tn__now()};
    tn__event_text(e.event.thread, sizeof(e.event.thread), g->name);
    __atomic_store_n(&last_process, e.event.process, __ATOMIC_RELAXED);
    return tn__trace_add(&flight, &e.event);
}

void tn__flight_started(uint64_t number, double when) {
    flight_event e;
    if (tn__trace_get(&flight, number, &e.event)) {
        e.event.begin = when;
        tn__trace_change(&flight, &e.event);
    }
}

/* Ranks may be threads of one process: each has its own row for the group. */
static void group_row(const flight_event *e, char *row, size_t size) {
    if (e->event.process == tn__spans_process()) {
        snprintf(row, size, "%s", e->event.thread);
    } else {
        snprintf(row, size, "%s, rank %d", e->event.thread, e->event.process);
    }
}

void tn__flight_ended(uint64_t number, double when, tn_status status) {
    flight_event e = {0};
    if (tn__trace_get(&flight, number, &e.event)) {
        e.event.end = when;
        e.status = status;
        tn__trace_change(&flight, &e.event);
        if (tn__profiled()) {
            char text[128], row[96];
            name_event(&e.event, text, sizeof(text));
            group_row(&e, row, sizeof(row));
            tn__span_record(TN__SPAN_COLLECTIVE, tn_collective_name(e.t.kind), text, row,
                            e.event.begin, when,
                            (double)e.t.count * (double)tn_dtype_size(e.t.dtype));
        }
    }
}

double tn_flight_now(void) {
    return tn__now();
}

void tn_flight_mark(const char *name, double begin) {
    double now = tn__now();
    flight_event e = {.event = {.process = __atomic_load_n(&last_process, __ATOMIC_RELAXED),
                                .begin = begin > 0 && begin < now ? begin : now,
                                .end = now,
                                .thread = "program"}};
    e.queued = e.event.begin;
    tn__event_text(e.event.name, sizeof(e.event.name), name);
    tn__trace_add(&flight, &e.event);
}

/* ---- Reading it ------------------------------------------------------------------------------ */

static const char *state_of(const flight_event *e) {
    return e->event.end > 0     ? e->status == TN_OK ? "done" : tn_status_name(e->status)
               : e->event.begin > 0 ? "running"
                                : "queued";
}

void tn_flight_dump(FILE *file) {
    if (!file) { return; }
    double now = tn__now();
    fprintf(file, "%-6s %-20s %-6s %-8s %-44s %-10s %10s %10s %10s\n", "entry", "group", "rank",
            "number", "operation", "state", "queued", "waited ms", "ran ms");
    flight_event e = {0};
    while (tn__trace_next(&flight, &e.event)) {
        char text[128];
        snprintf(text, sizeof(text), "(%s)", e.event.name);
        name_event(&e.event, text, sizeof(text));
        double begin = e.event.begin > 0 ? e.event.begin : now;
        double end = e.event.end > 0 ? e.event.end : now;
        fprintf(file, "%-6llu %-20s %d/%-4d %-8llu %-44s %-10s %9.3fs %10.3f %10.3f\n",
                (unsigned long long)e.event.number, e.size > 0 ? e.event.thread : "", e.rank,
                e.size, (unsigned long long)e.t.sequence, text, state_of(&e), e.queued - now,
                (begin - e.queued) * 1e3, e.event.begin > 0 ? (end - begin) * 1e3 : 0.0);
    }
}

tn_status tn_flight_trace(const char *path) {
    return tn__trace_save((const tn__trace *const[]){&flight}, 1, 0, path, "flight_trace");
}

void tn__flight_save(int rank, const char *reason) {
    char path[4096];
    FILE *file = tn__record_open(rank, path, sizeof(path));
    if (!file) { return; }
    fprintf(file, "%s\n", reason);
    tn_flight_dump(file);
    bool whole = !ferror(file);
    whole = fclose(file) == 0 && whole;
    tn_log_write(TN_LOG_WARN, "flight recorder: the last operations are in %s%s (%s)", path,
                 whole ? "" : ", as far as they could be written", reason);
}

/* ---- SIGUSR1 --------------------------------------------------------------------------------- */

static sem_t asked;
static int signal_rank;

static void on_signal(int number) {
    int before = errno;
    sem_post(&asked);
    errno = before;
}

static void *save_when_asked(void *unused) {
    for (;;) {
        if (sem_wait(&asked) == 0) {
            tn__flight_save(__atomic_load_n(&signal_rank, __ATOMIC_RELAXED), "asked by SIGUSR1");
        }
    }
    return unused;
}

static void start_signals(void) {
    struct sigaction old, mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&mine.sa_mask);
    pthread_t thread;
    if (sigaction(SIGUSR1, NULL, &old) != 0 || old.sa_handler != SIG_DFL ||
        sem_init(&asked, 0, 0) != 0) {
        return;
    }
    if (tn__thread_start(&thread, save_when_asked, NULL) == 0) {
        pthread_detach(thread);
        sigaction(SIGUSR1, &mine, NULL);
    }
}

void tn__flight_signals(int rank) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    __atomic_store_n(&signal_rank, rank, __ATOMIC_RELAXED);
    pthread_once(&once, start_signals);
}
