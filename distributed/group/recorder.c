/* The flight recorder: what this process's groups did last, for whoever looks at a job that hangs.
 *
 * A ring of the last operations, under one lock. On a time-out the group that failed writes it to a
 * file; on SIGUSR1 a thread does, which the signal handler wakes by the only thing it may do:
 * sem_post.
 */
#include "core/error.h"
#include "distributed/group/group.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 1000 };

typedef struct entry {
    uint64_t number; /* 1 for the first of the process; 0: unused */
    char group[64];
    int rank, size;
    int process; /* the rank in the world */
    tn_transfer t;
    char mark[48]; /* instead of an operation: an event of the program */
    double queued, started, ended;
    tn_status status;
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry ring[ENTRIES];
static uint64_t count;
static int process; /* of the last operation: marks are of the same one */

/* Under the lock: the next entry, emptied. */
static entry *next_entry(void) {
    entry *e = &ring[count % ENTRIES];
    memset(e, 0, sizeof(*e));
    e->number = ++count;
    return e;
}

/* Under the lock: NULL when it has been overwritten. */
static entry *find_entry(uint64_t number) {
    entry *e = number ? &ring[(number - 1) % ENTRIES] : NULL;
    return e && e->number == number ? e : NULL;
}

uint64_t tn__flight_queued(const tn_group *g, const tn_transfer *t) {
    pthread_mutex_lock(&lock);
    entry *e = next_entry();
    snprintf(e->group, sizeof(e->group), "%s", g->name);
    e->rank = g->rank;
    e->size = g->size;
    e->process = process = g->world[g->rank];
    e->t = *t;
    e->queued = tn__now();
    uint64_t number = e->number;
    pthread_mutex_unlock(&lock);
    return number;
}

void tn__flight_started(uint64_t number, double when) {
    pthread_mutex_lock(&lock);
    entry *e = find_entry(number);
    if (e) {
        e->started = when;
    }
    pthread_mutex_unlock(&lock);
}

void tn__flight_ended(uint64_t number, double when, tn_status status) {
    pthread_mutex_lock(&lock);
    entry *e = find_entry(number);
    if (e) {
        e->ended = when;
        e->status = status;
    }
    pthread_mutex_unlock(&lock);
}

double tn_flight_now(void) {
    return tn__now();
}

void tn_flight_mark(const char *name, double begin) {
    pthread_mutex_lock(&lock);
    entry *e = next_entry();
    snprintf(e->mark, sizeof(e->mark), "%s", name ? name : "");
    e->process = process;
    e->queued = e->started = begin;
    e->ended = tn__now();
    pthread_mutex_unlock(&lock);
}

/* ---- Reading it ------------------------------------------------------------------------------ */

static const char *state_of(const entry *e) {
    return e->ended > 0     ? e->status == TN_OK ? "done" : tn_status_name(e->status)
               : e->started > 0 ? "running"
                            : "queued";
}

/* Entries oldest first, copied one by one: printing does not hold the lock. */
static bool entry_after(uint64_t *number, entry *e) {
    pthread_mutex_lock(&lock);
    uint64_t oldest = count > ENTRIES ? count - ENTRIES + 1 : 1;
    *number = *number + 1 < oldest ? oldest : *number + 1;
    bool found = *number <= count;
    if (found) {
        *e = ring[(*number - 1) % ENTRIES];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void tn_flight_dump(FILE *file) {
    if (!file) {
        return;
    }
    double now = tn__now();
    fprintf(file, "%-6s %-20s %-6s %-8s %-44s %-10s %10s %10s %10s\n", "entry", "group", "rank",
            "number", "operation", "state", "queued", "waited ms", "ran ms");
    entry e;
    for (uint64_t number = 0; entry_after(&number, &e);) {
        char text[128];
        if (*e.mark) {
            snprintf(text, sizeof(text), "(%s)", e.mark);
        } else {
            tn__transfer_text(&e.t, text, sizeof(text));
        }
        double started = e.started > 0 ? e.started : now, ended = e.ended > 0 ? e.ended : now;
        fprintf(file, "%-6llu %-20s %d/%-4d %-8llu %-44s %-10s %9.3fs %10.3f %10.3f\n",
                (unsigned long long)e.number, e.group, e.rank, e.size,
                (unsigned long long)e.t.sequence, text, state_of(&e), e.queued - now,
                (started - e.queued) * 1e3, e.started > 0 ? (ended - started) * 1e3 : 0.0);
    }
}

/* As a JSON string without its quotes; a control character becomes a space. */
static void write_escaped(FILE *file, const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', file);
        }
        fputc((unsigned char)*text < 32 ? ' ' : *text, file);
    }
}

static void write_event(FILE *file, const entry *e) {
    char text[128];
    tn__transfer_text(&e->t, text, sizeof(text));
    fprintf(file, "{\"name\": \"");
    write_escaped(file, *e->mark ? e->mark : text);
    fprintf(file, "\", \"ph\": \"X\", \"pid\": %d, \"tid\": \"%s\", \"ts\": %.3f, \"dur\": %.3f}",
            e->process, *e->mark ? "program" : e->group, e->started * 1e6,
            (e->ended - e->started) * 1e6);
}

tn_status tn_flight_trace(const char *path) {
    if (!path) {
        return tn__raise(TN_EVALUE, "flight_trace", "the path is NULL");
    }
    FILE *file = fopen(path, "w");
    if (!file) {
        return tn__raise(TN_EIO, "flight_trace", "%s: %s", path, strerror(errno));
    }
    fprintf(file, "[");
    const char *comma = "\n";
    entry e;
    for (uint64_t number = 0; entry_after(&number, &e);) {
        if (e.ended > 0) {
            fputs(comma, file);
            write_event(file, &e);
            comma = ",\n";
        }
    }
    fprintf(file, "\n]\n");
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        return tn__raise(TN_EIO, "flight_trace", "%s: %s", path, strerror(errno));
    }
    return TN_OK;
}

void tn__flight_save(int rank, const char *reason) {
    const char *folder = getenv("TERN_FLIGHT_DIR");
    if (!folder || !*folder) {
        folder = getenv("TMPDIR");
    }
    char path[4096];
    snprintf(path, sizeof(path), "%s/tern-flight-%d.txt", folder && *folder ? folder : "/tmp",
             rank);
    FILE *file = fopen(path, "w");
    if (!file) {
        tn_log_write(TN_LOG_WARN, "flight recorder: %s: %s", path, strerror(errno));
        return;
    }
    fprintf(file, "%s\n", reason);
    tn_flight_dump(file);
    fclose(file);
    tn_log_write(TN_LOG_WARN, "flight recorder: the last operations are in %s (%s)", path, reason);
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
    sigset_t all, before;
    if (sigaction(SIGUSR1, NULL, &old) != 0 || old.sa_handler != SIG_DFL ||
        sem_init(&asked, 0, 0) != 0) {
        return;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* the program's signals go to its own threads */
    if (pthread_create(&thread, NULL, save_when_asked, NULL) == 0) {
        pthread_detach(thread);
        sigaction(SIGUSR1, &mine, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void tn__flight_signals(int rank) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    __atomic_store_n(&signal_rank, rank, __ATOMIC_RELAXED);
    pthread_once(&once, start_signals);
}
