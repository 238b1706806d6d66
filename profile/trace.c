/* Rings of events, and the file that viewers of traces read. */
#include "profile/trace.h"

#include "core/file.h"
#include "core/memory.h"
#include "text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing --------------------------------------------------------------------------------- */

void tn__event_text(char *to, size_t size, const char *text) {
    size_t length = text ? strnlen(text, size) : 0;
    if (text && length == size) {
        length--;
        while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) {
            length--; /* inside a character */
        }
    }
    memcpy(to, text ? text : "", length);
    memset(to + length, 0, size - length);
}

_Static_assert(offsetof(tn__event, number) == 0, "write_slot fills it in");

static uint64_t *slot_of(const tn__trace *trace, uint64_t number) {
    return &trace->words[(number - 1) % trace->capacity * (1 + trace->event_words)];
}

/* Under the lock. The slot's first word is odd while the others change; a reader that sees any new
 * word also sees a new first word. */
static void write_slot(const tn__trace *trace, uint64_t number, const tn__event *e) {
    uint64_t *slot = slot_of(trace, number);
    const unsigned char *from = (const unsigned char *)e;
    __atomic_store_n(slot, *slot + 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < trace->event_words; i++) {
        uint64_t word = number; /* an event begins with it */
        if (i > 0) { memcpy(&word, from + i * sizeof(word), sizeof(word)); }
        __atomic_store_n(slot + 1 + i, word, __ATOMIC_RELEASE);
    }
    __atomic_store_n(slot, *slot + 1, __ATOMIC_RELEASE);
}

bool tn__trace_open(tn__trace *trace, size_t event_bytes, uint64_t n) {
    size_t event_words = event_bytes / sizeof(uint64_t);
    pthread_mutex_lock(&trace->lock);
    if (trace->capacity == 0) {
        trace->event_words = event_words;
        trace->words = tn__calloc((size_t)n, (1 + event_words) * sizeof(uint64_t));
        trace->capacity = trace->words ? n : 0;
    }
    pthread_mutex_unlock(&trace->lock);
    return trace->capacity > 0;
}

void tn__trace_clear(tn__trace *trace) {
    uint64_t count = __atomic_load_n(&trace->count, __ATOMIC_ACQUIRE);
    __atomic_store_n(&trace->forgotten, count, __ATOMIC_RELEASE);
}

uint64_t tn__trace_add(tn__trace *trace, const tn__event *e) {
    pthread_mutex_lock(&trace->lock);
    uint64_t number = trace->capacity > 0 ? trace->count + 1 : 0;
    if (number > 0) {
        write_slot(trace, number, e);
        __atomic_store_n(&trace->count, number, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&trace->lock);
    return number;
}

void tn__trace_change(tn__trace *trace, const tn__event *e) {
    pthread_mutex_lock(&trace->lock);
    if (e->number > 0 && slot_of(trace, e->number)[1] == e->number) {
        write_slot(trace, e->number, e);
    }
    pthread_mutex_unlock(&trace->lock);
}

/* ---- Reading --------------------------------------------------------------------------------- */

bool tn__trace_get(const tn__trace *trace, uint64_t number, tn__event *e) {
    const uint64_t *slot = number > 0 ? slot_of(trace, number) : NULL;
    unsigned char *to = (unsigned char *)e;
    /* The writer caught in the middle may be the one that this signal handler interrupts. */
    for (int attempt = 0; slot && attempt < 100; attempt++) {
        uint64_t before = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
        for (size_t i = 0; i < trace->event_words; i++) {
            uint64_t word = __atomic_load_n(slot + 1 + i, __ATOMIC_ACQUIRE);
            memcpy(to + i * sizeof(word), &word, sizeof(word));
        }
        if (before % 2 == 0 && __atomic_load_n(slot, __ATOMIC_RELAXED) == before) {
            return e->number == number;
        }
    }
    return false;
}

bool tn__trace_next(const tn__trace *trace, tn__event *e) {
    uint64_t forgotten = __atomic_load_n(&trace->forgotten, __ATOMIC_ACQUIRE);
    uint64_t first = e->number < forgotten ? forgotten + 1 : e->number + 1;
    for (uint64_t number = first;; number++) {
        uint64_t count = __atomic_load_n(&trace->count, __ATOMIC_ACQUIRE);
        uint64_t oldest = count > trace->capacity ? count - trace->capacity + 1 : 1;
        number = number < oldest ? oldest : number;
        if (number > count) { return false; }
        if (tn__trace_get(trace, number, e)) { return true; }
        e->number = number; /* what was read of it is useless */
    }
}

/* ---- The file -------------------------------------------------------------------------------- */

/* As a JSON string with its quotes; a control character becomes a space, a byte that is not UTF-8
 * '?'. */
static void write_string(tn__file *file, const char *text) {
    tn__file_put(file, "\"", 1);
    for (size_t left = strlen(text); left > 0;) {
        int32_t code;
        int bytes = tn__utf8_decode(text, left, &code);
        if (*text == '"' || *text == '\\') { tn__file_put(file, "\\", 1); }
        bool plain = bytes > 0 && (unsigned char)*text >= 32;
        bytes = bytes > 0 ? bytes : 1;
        tn__file_put(file, plain ? text : (unsigned char)*text < 32 ? " " : "?", (size_t)bytes);
        text += bytes;
        left -= (size_t)bytes;
    }
    tn__file_put(file, "\"", 1);
}

/* Whole nanoseconds; 0 for an invalid time. */
static long long whole_ns(double seconds) {
    return fabs(seconds) < 1e9 ? llround(seconds * 1e9) : 0;
}

/* Microseconds with three digits after a '.', in every locale. */
static void write_microseconds(tn__file *file, long long ns) {
    tn__file_print(file, "%s%lld.%03lld", ns < 0 ? "-" : "", llabs(ns) / 1000, llabs(ns) % 1000);
}

static void write_details(tn__file *file, const tn__trace *trace, const tn__event *e) {
    tn__buffer j = {0};
    if (trace->details) { trace->details(e, &j); }
    if (j.bytes > 0 && !j.failed) {
        tn__file_print(file, ", \"args\": {");
        tn__file_put(file, j.at, j.bytes);
        tn__file_put(file, "}", 1);
    }
    free(j.at);
}

static void write_event(tn__file *file, const tn__trace *trace, const tn__event *e) {
    char text[128];
    long long begin = whole_ns(e->begin);
    snprintf(text, sizeof(text), "%.*s", (int)sizeof(e->name), e->name);
    if (trace->name) { trace->name(e, text, sizeof(text)); }
    tn__file_print(file, "{\"name\": ");
    write_string(file, text);
    if (e->kind) {
        tn__file_print(file, ", \"cat\": ");
        write_string(file, e->kind);
    }
    tn__file_print(file, ", \"ph\": \"X\", \"pid\": %d, \"tid\": ", e->process);
    write_string(file, e->thread);
    tn__file_print(file, ", \"ts\": ");
    write_microseconds(file, begin);
    tn__file_print(file, ", \"dur\": ");
    write_microseconds(file, whole_ns(e->end) - begin);
    write_details(file, trace, e);
    tn__file_put(file, "}", 1);
}

/* False: no memory. */
static bool write_trace(tn__file *file, const tn__trace *trace, double since, const char **comma) {
    tn__event *e = tn__calloc(trace->event_words, sizeof(uint64_t));
    while (e && tn__trace_next(trace, e)) {
        if (e->end > 0 && !(e->end < since)) {
            tn__file_print(file, "%s", *comma);
            write_event(file, trace, e);
            *comma = ",\n";
        }
    }
    free(e);
    return e != NULL;
}

tn_status tn__trace_save(const tn__trace *const *traces, int n, double since, const char *path,
                         const char *operation) {
    tn__file file;
    if (!tn__file_begin(&file, path, operation)) { return tn_error(); }
    const char *comma = "\n";
    tn__file_put(&file, "[", 1);
    for (int i = 0; i < n; i++) {
        if (!write_trace(&file, traces[i], since, &comma)) {
            tn__file_abandon(&file);
            return tn__raise(TN_ENOMEM, operation, "%s: no memory", path);
        }
    }
    tn__file_print(&file, "\n]\n");
    return tn__file_commit(&file);
}
