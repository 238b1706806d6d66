/* The log: nowhere, unless a sink is set or TERN_LOG names a level (then stderr). */
#include "core/log.h"

#include "core/error.h"
#include "core/fork.h"
#include "core/plain_text.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_LINE = 1024 };

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static tn_log_sink sink;
static void *sink_user;
static int most = -1; /* atomic: the highest level that goes anywhere; -1: none */

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&lock);
}

/* Sinks that are running in this thread. A sink may log, but not endlessly: what it logs while
 * handling its own message goes nowhere. */
enum { MAX_WITHIN = 2 };
static _Thread_local int within;

static void to_stderr(tn_log_level level, const char *text, void *user) {
    char plain[LONGEST_LINE]; /* a line may quote a peer or a file */
    size_t length = tn__plain_text(plain, text, strlen(text));
    fprintf(stderr, "tern %s: %.*s\n", level_names[level], (int)length, plain);
}

static void read_environment(void) {
    const char *name = getenv("TERN_LOG");
    for (int i = 0; name && i <= TN_LOG_DEBUG; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            sink = to_stderr;
            __atomic_store_n(&most, i, __ATOMIC_RELAXED);
        }
    }
}

void tn_log_to(tn_log_sink new_sink, tn_log_level new_most, void *user) {
    pthread_once(&once, read_environment);
    pthread_mutex_lock(&lock);
    sink = new_sink;
    sink_user = user;
    __atomic_store_n(&most, new_sink ? (int)new_most : -1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

/* To the sink, else to `other` (NULL: nowhere). */
static void write_line(tn_log_level level, tn_log_sink other, const char *format,
                       va_list arguments) {
    char text[LONGEST_LINE];
    vsnprintf(text, sizeof(text), format, arguments);
    pthread_mutex_lock(&lock);
    tn_log_sink current = sink;
    void *user = sink_user;
    pthread_mutex_unlock(&lock);
    current = current ? current : other;
    if (current) {
        within++;
        current(level, text, user);
        within--;
    }
}

bool tn__log_heard(tn_log_level level) {
    pthread_once(&once, read_environment);
    return (int)level <= __atomic_load_n(&most, __ATOMIC_RELAXED);
}

void tn_log_write(tn_log_level level, const char *format, ...) {
    pthread_once(&once, read_environment);
    if ((unsigned)level > TN_LOG_DEBUG || !format || within == MAX_WITHIN ||
        (int)level > __atomic_load_n(&most, __ATOMIC_RELAXED)) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    write_line(level, NULL, format, arguments);
    va_end(arguments);
}

void tn__log_loud(const char *format, ...) {
    pthread_once(&once, read_environment);
    int level = __atomic_load_n(&most, __ATOMIC_RELAXED);
    if (within == MAX_WITHIN || (level >= 0 && level < TN_LOG_WARN)) { return; }
    va_list arguments;
    va_start(arguments, format);
    write_line(TN_LOG_WARN, to_stderr, format, arguments);
    va_end(arguments);
}
