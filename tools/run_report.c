/* What the user is told about a rank that failed: which, where, how, its last lines, and which
 * failed after it. */
#include "tools/run.h"

#include "core/plain_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { LONGEST_SHOWN = 400, IN_VIEW = 10 };

static const char rule[] = "    | ";

int report_code(const worker *w) {
    return WIFSIGNALED(w->status) ? 128 + WTERMSIG(w->status) : WEXITSTATUS(w->status);
}

/* "rank 1 (host a, pid 42) was killed by SIGSEGV (Segmentation fault)" */
static void tell_end(FILE *to, const worker *w, const run_options *o) {
    fprintf(to, "rank %d (host %s, pid %d) ", w->rank, o->node_name, (int)w->pid);
    if (w->pid < 0) {
        fprintf(to, "could not be started");
    } else if (WIFSIGNALED(w->status)) {
        int signal = WTERMSIG(w->status);
        const char *name = sigabbrev_np(signal), *what = sigdescr_np(signal);
        fprintf(to, "was killed by SIG%s (%s%s)", name ? name : "?", what ? what : "unknown signal",
                signal == SIGKILL ? ": by a user or program, or by the kernel when memory ran out"
                                  : "");
    } else {
        int code = WEXITSTATUS(w->status);
        const char *name = code > 128 ? sigabbrev_np(code - 128) : NULL;
        fprintf(to, "ended with exit code %d", code);
        if (name) { /* the convention of shells, and of programs that stop cleanly */
            fprintf(to, ", as after SIG%s", name);
        }
    }
}

/* Writes what a terminal would show of a line, without control sequences. */
static void put_shown(FILE *to, const char *line, size_t length) {
    shown_part(&line, &length);
    char *plain = memory_new(length, 1);
    length = tn__plain_text(plain, line, length, false);
    fprintf(to, "%.*s%s", (int)(length < LONGEST_SHOWN ? length : LONGEST_SHOWN), plain,
            length > LONGEST_SHOWN ? " …" : "");
    free(plain);
}

static void put_lines(FILE *to, const char *text, size_t length) {
    size_t from = length;
    for (int lines = 0; from > 0; from--) {
        lines += text[from - 1] == '\n';
        if (lines == TAIL_LINES) {
            break;
        }
    }
    fprintf(to, "\n  the last lines of its stderr:");
    while (from < length) {
        const char *newline = memchr(text + from, '\n', length - from);
        size_t here = newline ? (size_t)(newline - text) - from : length - from;
        fprintf(to, "\n%s", rule);
        put_shown(to, text + from, here);
        from += here + 1;
    }
}

/* Without the line ends at the end. */
static size_t trim_ends(const char *text, size_t length) {
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r')) {
        length--;
    }
    return length;
}

static void put_tail(FILE *to, const worker *w, bool here, output *out) {
    size_t length;
    uint64_t later;
    char *text = output_tail(out, w->rank, &length, &later);
    length = trim_ends(text, length);
    if (length == 0) {
        fprintf(to, "\n  it wrote nothing to stderr");
    } else if (here && later <= IN_VIEW) {
        fprintf(to, "; its last lines are above");
    } else {
        put_lines(to, text, length);
    }
    free(text);
}

static bool said_something(output *out, const worker *w) {
    size_t length;
    uint64_t later;
    char *text = output_tail(out, w->rank, &length, &later);
    bool some = trim_ends(text, length) > 0;
    free(text);
    return some;
}

/* The failure to report. A rank that ended without a word, with an exit code, may have heard from
 * another what is wrong and have been faster: then the one that said it and ended with the same. */
static const worker *explained_failure(const workers *w, output *out) {
    const worker *first = workers_first_failure(w);
    if (!first || !WIFEXITED(first->status) || said_something(out, first)) {
        return first;
    }
    for (int i = 0; i < w->count; i++) {
        const worker *one = &w->list[i];
        if (one->ended && one->status == first->status && said_something(out, one)) {
            return one;
        }
    }
    return first;
}

char *report_failure(const workers *w, const run_options *o, bool here, output *out) {
    const worker *first = explained_failure(w, out);
    if (!first) {
        return NULL;
    }
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (!to) {
        return text_new("rank %d failed", first->rank);
    }
    tell_end(to, first, o);
    fprintf(to, ", %.1f s after its start", first->end - first->began);
    put_tail(to, first, here, out);
    for (int nth = 1; nth <= w->failures; nth++) {
        for (int i = 0; i < w->count; i++) {
            const worker *one = &w->list[i];
            if (one->order == nth && one != first) {
                bool after = workers_first_failure(w) == first;
                fprintf(to, "\n  %s ", after ? "then" : "also");
                tell_end(to, one, o);
                double later = one->end - first->end; /* a signal comes first, seen at once */
                if (after) {
                    fprintf(to, ", %.2f s later", later > 0 ? later : 0);
                }
            }
        }
    }
    fclose(to);
    return text;
}
