/* Traces: the latest events, and when they happened, for later reading.
 *
 * A trace is a ring of events, each with a name, a begin and an end. Writers take turns under a
 * lock. Readers take none: they copy an event and check whether it changed in between. So a trace
 * can be read while its writers hang, and from a signal handler.
 *
 *     typedef struct step_event {
 *         tn__event event;                       what every event has; it comes first
 *         double loss;                           what this one adds
 *     } step_event;
 *     static tn__trace steps = TN__TRACE(step_event, 1000, NULL);
 *     ...
 *     step_event e = {.event = {.name = "step", .begin = began, .end = tn__now()}, .loss = loss};
 *     tn__trace_add(&steps, &e.event);
 *     ...
 *     step_event e = {0};
 *     while (tn__trace_next(&steps, &e.event)) { ... }
 *
 * A program with many writing threads should give each its own trace; tn__trace_save takes several.
 * Two rings use this: what groups did (distributed/group/recorder.c), always, and what the profiler
 * saw (profile/span.h), while it is on.
 */
#ifndef TERN_PROFILE_TRACE_H
#define TERN_PROFILE_TRACE_H

#include "text/json_write.h"

#include <pthread.h>
#include <stddef.h>

typedef struct tn__event {
    uint64_t number;  /* 1 for the first of its trace */
    double begin;     /* seconds of tn__now; 0: not yet */
    double end;       /* 0: it has not ended */
    const char *kind; /* a static string or NULL: the category in viewers ("forward") */
    int process;      /* the process's number, such as a rank */
    char thread[64];  /* the row in which it is drawn */
    char name[64];
} tn__event;

/* Writes the name that a reader will see; for names that are only made when read. */
typedef void (*tn__event_name)(const tn__event *e, char *text, size_t size);

/* Writes the members of a JSON object that a viewer shows with an event: "\"bytes\": 12". */
typedef void (*tn__event_details)(const tn__event *e, tn__buffer *j);

typedef struct tn__trace {
    pthread_mutex_t lock; /* the writers' */
    uint64_t count;       /* atomic: events so far */
    uint64_t forgotten;   /* atomic: events up to this number are no longer read */
    uint64_t *words;      /* [capacity][1 + event_words]: the number of writes, then the event */
    uint64_t capacity;    /* 0: events added are lost */
    size_t event_words;
    tn__event_name name;       /* NULL: tn__event.name */
    tn__event_details details; /* NULL: none */
} tn__trace;

/* A trace of the last n events of `type`, a struct that begins with a tn__event. For variables
 * outside functions. */
#define TN__TRACE(type, n, name_of)                                                           \
    {                                                                                         \
        .lock = PTHREAD_MUTEX_INITIALIZER,                                                    \
        .words = (uint64_t[(n) * (1 + sizeof(type) / sizeof(uint64_t))]){0}, .capacity = (n), \
        .event_words = sizeof(type) / sizeof(uint64_t), .name = (name_of)                     \
    }

/* Gives a trace of capacity 0 memory for n events of this size; false: no memory. It is never
 * freed, since readers take no lock. */
bool tn__trace_open(tn__trace *trace, size_t event_bytes, uint64_t n);

/* From now on readers find only what is added after this. */
TN_API void tn__trace_clear(tn__trace *trace);

/* Copies a string into a name or a thread, cut between two UTF-8 characters if it is too long; NULL
 * is "". */
TN_API void tn__event_text(char *to, size_t size, const char *text);

/* Adds a copy of an event and returns its number. */
TN_API uint64_t tn__trace_add(tn__trace *trace, const tn__event *e);

/* Writes an event again, by its number, unless a later one has overwritten it. Only one thread at a
 * time may change the same event. */
TN_API void tn__trace_change(tn__trace *trace, const tn__event *e);

/* Copies the event with this number; false when it has been overwritten, or is being written. */
TN_API bool tn__trace_get(const tn__trace *trace, uint64_t number, tn__event *e);

/* The next event after e->number, which is 0 at first; false at the end. */
TN_API bool tn__trace_next(const tn__trace *trace, tn__event *e);

/* Writes the events of `n` traces that ended after `since` as a file for chrome://tracing and
 * Perfetto. Times are whole nanoseconds, so nested events stay nested. Not from a signal handler.
 * Raises in the name of `operation`. */
TN_API tn_status tn__trace_save(const tn__trace *const *traces, int n, double since,
                                const char *path, const char *operation);

#endif
