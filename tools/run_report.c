/* What the user is told about a rank that failed: which, where, how, its last lines, and which
 * failed after it. */
#include "tools/run.h"

#include "core/plain_text.h"

#include <string.h>
#include <sys/wait.h>

enum { TAIL_LINES = 20, LONGEST_SHOWN = 400 };

int report_code(const worker *w) {
    return WIFSIGNALED(w->status) ? 128 + WTERMSIG(w->status) : WEXITSTATUS(w->status);
}

/* "rank 1 (host a, pid 42) was killed by SIGSEGV (Segmentation fault)" */
static void put_end(tn__buffer *to, const worker *w, const run_options *o) {
    tn__buffer_format(to, "rank %d (host %s, pid %d) ", w->rank, o->node.name, (int)w->pid);
    if (w->pid < 0) {
        tn__buffer_text(to, "could not be started");
    } else if (WIFSIGNALED(w->status)) {
        int signal = WTERMSIG(w->status);
        const char *name = sigabbrev_np(signal), *what = sigdescr_np(signal);
        tn__buffer_format(
            to, "was killed by SIG%s (%s%s)", name ? name : "?", what ? what : "unknown signal",
            signal == SIGKILL ? ": by a user or program, or by the kernel when memory ran out"
                              : "");
    } else {
        int code = WEXITSTATUS(w->status);
        const char *name = code > 128 ? sigabbrev_np(code - 128) : NULL;
        tn__buffer_format(to, "ended with exit code %d", code);
        if (name) { /* the convention of shells, and of programs that stop cleanly */
            tn__buffer_format(to, ", as after SIG%s", name);
        }
    }
}

/* Writes what a terminal would show of a line, without control sequences. */
static void put_line(tn__buffer *to, const char *line, size_t length) {
    shown_part(&line, &length);
    tn__buffer_text(to, "\n    | ");
    if (tn__buffer_hold(to, length)) {
        size_t shown = tn__plain_text(to->at + to->bytes, line, length);
        to->bytes += shown < LONGEST_SHOWN ? shown : LONGEST_SHOWN;
        tn__buffer_text(to, shown > LONGEST_SHOWN ? " …" : "");
    }
}

static void put_tail(tn__buffer *to, const worker *w, output *out) {
    tn__buffer tail = output_tail(out, w->rank);
    size_t from = tail.bytes;
    for (int lines = 0; from > 0; from--) {
        lines += tail.at[from - 1] == '\n';
        if (lines == TAIL_LINES) { break; }
    }
    tn__buffer_text(to, tail.bytes > 0 ? "\n  the last lines of its stderr:"
                                       : "\n  it wrote nothing to stderr");
    for (size_t here; from < tail.bytes; from += here + 1) {
        const char *line = tail.at + from, *newline = memchr(line, '\n', tail.bytes - from);
        here = newline ? (size_t)(newline - line) : tail.bytes - from;
        put_line(to, line, here);
    }
    tn__buffer_free(&tail);
}

static bool has_words(output *out, const worker *w) {
    tn__buffer tail = output_tail(out, w->rank);
    bool any = tail.bytes > 0;
    tn__buffer_free(&tail);
    return any;
}

/* The failure to report. A rank that ended without a word, with an exit code, may have heard from
 * another what is wrong and have been faster: then the one that said it and ended with the same. */
static const worker *explained_failure(const workers *w, output *out) {
    const worker *first = workers_first_failure(w);
    if (!first || !WIFEXITED(first->status) || has_words(out, first)) { return first; }
    for (int i = 0; i < w->count; i++) {
        const worker *one = &w->list[i];
        if (one->ended && one->status == first->status && has_words(out, one)) { return one; }
    }
    return first;
}

char *report_failure(const workers *w, const run_options *o, output *out) {
    const worker *first = explained_failure(w, out);
    bool explained = first != workers_first_failure(w);
    tn__buffer to = {0};
    if (!first) { return NULL; }
    put_end(&to, first, o);
    tn__buffer_format(&to, ", %.1f s after its start", first->end - first->began);
    put_tail(&to, first, out);
    for (int i = 0; i < w->failures * w->count; i++) { /* in the order of their failures */
        const worker *one = &w->list[i % w->count];
        if (one->order == 1 + i / w->count && one != first) {
            double later = one->end - first->end; /* a signal comes first, seen at once */
            tn__buffer_text(&to, explained ? "\n  also " : "\n  then ");
            put_end(&to, one, o);
            if (!explained) { tn__buffer_format(&to, ", %.2f s later", later > 0 ? later : 0); }
        }
    }
    return text_take(&to);
}
