/* Spans: what a thread is doing, nested, and how long it takes. The profiler's mechanism; its
 * public side is tern/profiler.h.
 *
 * While the profiler is off a span costs one branch. Otherwise each span that ends is an event of a
 * trace (profile/trace.h), and is counted at its site: the place of its name below the names around
 * it. Sites form a tree, for the tables; the trace is for viewers.
 *
 *     tn__span span;
 *     bool seen = tn__profiled() && tn__span_begin(&span, TN__SPAN_WAIT, name);
 *     ...
 *     if (seen) {
 *         tn__span_end(&span);
 *     }
 *
 * Nothing here raises: without memory for a site, a span is not recorded.
 */
#ifndef TERN_PROFILE_SPAN_H
#define TERN_PROFILE_SPAN_H

#include "profile/trace.h"

typedef enum tn__span_kind {
    TN__SPAN_STEP,       /* of the profiler's schedule */
    TN__SPAN_REGION,     /* the program's own */
    TN__SPAN_MODULE,     /* a module's forward; inside TN__SPAN_BACKWARD its backward */
    TN__SPAN_BACKWARD,   /* a run of the engine */
    TN__SPAN_OP,         /* an operation, even one that is not in the registry (fill, adam) */
    TN__SPAN_GRADIENT,   /* an operation's backward */
    TN__SPAN_KERNEL,     /* the device's part of either */
    TN__SPAN_COLLECTIVE, /* of a group, in a separate row */
    TN__SPAN_WAIT,       /* for a collective */
    TN__SPAN_KINDS
} tn__span_kind;

/* A place in the tree. Never freed. */
typedef struct tn__site {
    struct tn__site *up, *next, *first; /* its parent, next sibling and first child */
    tn__span_kind kind;
    const char *name;
    uint64_t calls;
    double seconds;
    /* of this site itself, without those below */
    double bytes, flops;
    double least; /* the seconds that these take at the limits given, or 0 */
} tn__site;

typedef struct tn__span {
    struct tn__span *up;
    tn__site *site;
    double begin;
    double bytes, flops, least; /* set before the end, where they are known */
    uint64_t session;
    char note[64]; /* shown with the event: "[64, 20] [30, 20]" */
} tn__span;

/* Whether spans are recorded: one load and a predicted branch. */
extern bool tn__profiling; /* atomic */
static inline bool tn__profiled(void) {
    return __builtin_expect(__atomic_load_n(&tn__profiling, __ATOMIC_RELAXED), false);
}

/* The name is copied. */
bool tn__span_begin(tn__span *span, tn__span_kind kind, const char *name);
void tn__span_end(tn__span *span);
/* Ends it uncounted, even if others of this thread are still inside it. */
void tn__span_drop(tn__span *span);

/* Records something already over, in a row of its own, inside no other span. */
void tn__span_record(tn__span_kind kind, const char *name, const char *note, const char *row,
                     double begin, double end, double bytes);

/* The module of this thread whose forward is running; NULL: none, or the profiler is off. */
tn__site *tn__span_module(void);
/* This thread's innermost span, or NULL. */
tn__span *tn__span_innermost(void);

/* The names of the modules from the outermost to the site, "mlp.fc1". */
TN_API void tn__site_path(const tn__site *site, char *text, size_t size);

/* ---- For the profiler ------------------------------------------------------------------------ */

/* Allocates a trace of `events` (only the first call's number counts) and clears what was recorded.
 * `process` is this process's number in the job. False: no memory. */
bool tn__spans_begin(int64_t events, int process);
int tn__spans_process(void);
void tn__spans_clear(void);

/* Sets what happens to spans: recorded and counted (ON), only timed, to warm up (WARM), or neither.
 */
typedef enum tn__spans_mode { TN__SPANS_OFF, TN__SPANS_WARM, TN__SPANS_ON } tn__spans_mode;
void tn__spans_see(tn__spans_mode mode);

/* Calls f for each site below the root that has calls itself or below it, parents first. The tree
 * does not change during the call, and f begins no span. */
typedef void (*tn__site_visitor)(const tn__site *site, void *user);
TN_API void tn__sites_each(tn__site_visitor f, void *user);

/* Seconds for which spans were recorded since the last clear. */
TN_API double tn__spans_seconds(void);
TN_API uint64_t tn__spans_count(void); /* how many were recorded then */

tn_status tn__spans_save(const char *path, const char *operation);

#endif
