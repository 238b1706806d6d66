/* Spans, their sites, and the trace in which they are kept. */
#include "profile/span.h"

#include "core/clock.h"
#include "core/fork.h"
#include "core/memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct span_event {
    tn__event event;
    double bytes, flops;
    char note[sizeof(((tn__span *)0)->note)];
} span_event;
_Static_assert(sizeof(span_event) % sizeof(uint64_t) == 0, "rings are made of words");

static const char *const kind_names[TN__SPAN_KINDS] = {"step",     "region",     "module",
                                                       "backward", "operation",  "gradient",
                                                       "kernel",   "collective", "wait"};

bool tn__profiling;

static void put_details(const tn__event *event, tn__buffer *j) {
    const span_event *e = (const span_event *)event;
    double seconds = event->end - event->begin;
    if (e->note[0]) {
        tn__buffer_format(j, "\"what\": ");
        tn__json_put_string(j, e->note);
    }
    if (e->bytes > 0 && seconds > 0) {
        tn__buffer_format(j, "%s\"bytes\": %.0f, \"GB/s\": %.4g", j->bytes ? ", " : "", e->bytes,
                          e->bytes / seconds / 1e9);
    }
    if (e->flops > 0 && seconds > 0) {
        tn__buffer_format(j, "%s\"FLOP\": %.0f, \"GFLOP/s\": %.4g", j->bytes ? ", " : "", e->flops,
                          e->flops / seconds / 1e9);
    }
}

static tn__trace spans = {.lock = PTHREAD_MUTEX_INITIALIZER, .details = put_details};

/* The tree, and what belongs to it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tn__site root;
static uint64_t session; /* atomic: grows at each reset; spans of an older one are dropped */
static double seen_since, seen_before; /* 0: not profiling now; the total before */
static int process_number;

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&lock);
    tn__fork_takes(&spans.lock);
}

/* ---- Sites ----------------------------------------------------------------------------------- */

/* Under the lock: the site of a name below another, made if new. NULL: no memory. The site found is
 * moved to the front. */
static tn__site *site_below(tn__site *up, tn__span_kind kind, const char *name) {
    for (tn__site **at = &up->first; *at; at = &(*at)->next) {
        tn__site *site = *at;
        if (site->kind == kind && strcmp(site->name, name) == 0) {
            *at = site->next;
            site->next = up->first;
            up->first = site;
            return site;
        }
    }
    size_t length = strlen(name) + 1;
    tn__site *site = tn__malloc(sizeof(*site) + length);
    if (!site) { return NULL; }
    memcpy(site + 1, name, length);
    *site = (tn__site){.up = up, .next = up->first, .kind = kind, .name = (const char *)(site + 1)};
    up->first = site;
    return site;
}

static void site_count(tn__site *site, double seconds, const tn__span *work) {
    site->calls++;
    site->seconds += seconds;
    site->bytes += work->bytes;
    site->flops += work->flops;
    site->least += work->least;
}

/* Names of modules, outermost first. Returns the length of the whole text. */
static size_t put_path(const tn__site *site, char *text, size_t size) {
    if (!site) { return 0; }
    size_t used = put_path(site->up, text, size);
    if (site->kind != TN__SPAN_MODULE || !site->up) { return used; }
    size_t left = used < size ? size - used : 0;
    return used +
           (size_t)snprintf(left ? text + used : NULL, left, "%s%s", used ? "." : "", site->name);
}

void tn__site_path(const tn__site *site, char *text, size_t size) {
    text[0] = 0;
    put_path(site, text, size);
}

/* ---- Spans ----------------------------------------------------------------------------------- */

static _Thread_local tn__span *innermost;
static _Thread_local int thread_number; /* 0: not yet; 1: the one that runs main */

static void put_thread(char *text, size_t size) {
    static int last = 1; /* atomic */
    if (thread_number == 0) {
        bool first = syscall(SYS_gettid) == getpid();
        thread_number = first ? 1 : __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    }
    if (thread_number == 1) {
        snprintf(text, size, "main");
    } else {
        snprintf(text, size, "thread %d", thread_number);
    }
}

bool tn__span_begin(tn__span *span, tn__span_kind kind, const char *name) {
    span->up = innermost;
    span->bytes = span->flops = span->least = 0;
    span->note[0] = 0;
    pthread_mutex_lock(&lock);
    span->session = session;
    span->site = site_below(innermost ? innermost->site : &root, kind, name ? name : "");
    pthread_mutex_unlock(&lock);
    if (!span->site) { return false; }
    innermost = span;
    span->begin = tn__now();
    return true;
}

static void add_event(const tn__span *span, const char *row, double end) {
    const tn__site *site = span->site;
    span_event e = {.event = {.begin = span->begin,
                              .end = end,
                              .kind = kind_names[site->kind],
                              .process = process_number},
                    .bytes = span->bytes,
                    .flops = span->flops};
    tn__event_text(e.event.thread, sizeof(e.event.thread), row);
    tn__event_text(e.event.name, sizeof(e.event.name), site->name);
    tn__event_text(e.note, sizeof(e.note), span->note);
    if (site->kind == TN__SPAN_MODULE) { tn__site_path(site, e.note, sizeof(e.note)); }
    tn__trace_add(&spans, &e.event);
}

/* Drops a span that began in an older session or ends after profiling stopped. */
static void finish_span(const tn__span *span, const char *row, double end) {
    pthread_mutex_lock(&lock);
    bool counts = span->session == session && seen_since > 0;
    if (counts) { site_count(span->site, end - span->begin, span); }
    pthread_mutex_unlock(&lock);
    if (counts) { add_event(span, row, end); }
}

void tn__span_end(tn__span *span) {
    double end = tn__now();
    char row[32];
    innermost = span->up;
    put_thread(row, sizeof(row));
    finish_span(span, row, end);
}

void tn__span_drop(tn__span *span) {
    tn__span **at = &innermost;
    while (*at && *at != span) {
        at = &(*at)->up;
    }
    if (*at) { *at = span->up; }
}

void tn__span_record(tn__span_kind kind, const char *name, const char *note, const char *row,
                     double begin, double end, double bytes) {
    tn__span span = {.begin = begin, .bytes = bytes};
    tn__event_text(span.note, sizeof(span.note), note);
    pthread_mutex_lock(&lock);
    span.session = session;
    bool counts = seen_since > 0 && begin >= seen_since;
    span.site = counts ? site_below(&root, kind, name) : NULL;
    pthread_mutex_unlock(&lock);
    if (span.site) { finish_span(&span, row, end); }
}

tn__span *tn__span_innermost(void) {
    return innermost;
}

tn__site *tn__span_module(void) {
    tn__site *site = innermost ? innermost->site : NULL;
    while (site && site->kind != TN__SPAN_MODULE) {
        site = site->up;
    }
    return site;
}

/* ---- For the profiler ------------------------------------------------------------------------ */

bool tn__spans_begin(int64_t events, int process) {
    if (!tn__trace_open(&spans, sizeof(span_event), (uint64_t)events)) { return false; }
    process_number = process;
    tn__spans_clear();
    return true;
}

int tn__spans_process(void) {
    return process_number;
}

static void clear_sites(tn__site *site) {
    site->calls = 0;
    site->seconds = site->bytes = site->flops = site->least = 0;
    for (tn__site *below = site->first; below; below = below->next) {
        clear_sites(below);
    }
}

void tn__spans_clear(void) {
    pthread_mutex_lock(&lock);
    session++;
    clear_sites(&root);
    tn__trace_clear(&spans);
    seen_before = 0;
    seen_since = seen_since > 0 ? tn__now() : 0;
    pthread_mutex_unlock(&lock);
}

void tn__spans_see(tn__spans_mode mode) {
    pthread_mutex_lock(&lock);
    double now = tn__now();
    if (mode == TN__SPANS_ON && seen_since == 0) {
        seen_since = now;
    } else if (mode != TN__SPANS_ON && seen_since > 0) {
        seen_before += now - seen_since;
        seen_since = 0;
    }
    __atomic_store_n(&tn__profiling, mode != TN__SPANS_OFF, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

double tn__spans_seconds(void) {
    pthread_mutex_lock(&lock);
    double seconds = seen_before + (seen_since > 0 ? tn__now() - seen_since : 0);
    pthread_mutex_unlock(&lock);
    return seconds;
}

static uint64_t count_below(const tn__site *site) {
    uint64_t count = site->calls;
    for (const tn__site *below = site->first; below; below = below->next) {
        count += count_below(below);
    }
    return count;
}

uint64_t tn__spans_count(void) {
    pthread_mutex_lock(&lock);
    uint64_t count = count_below(&root);
    pthread_mutex_unlock(&lock);
    return count;
}

static void visit_sites(const tn__site *site, tn__site_visitor f, void *user) {
    for (const tn__site *below = site->first; below; below = below->next) {
        if (count_below(below) > 0) {
            f(below, user);
            visit_sites(below, f, user);
        }
    }
}

void tn__sites_each(tn__site_visitor f, void *user) {
    pthread_mutex_lock(&lock);
    visit_sites(&root, f, user);
    pthread_mutex_unlock(&lock);
}

tn_status tn__spans_save(const char *path, const char *operation) {
    const tn__trace *one[] = {&spans};
    return tn__trace_save(one, 1, 0, path, operation);
}
