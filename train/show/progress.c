/* The progress line:
 *
 *     [███████████▌            ]  1150/2000   loss 1.6721   61.2k tok/s   0:11 left
 */
#include "core/alive.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "tern/train.h"
#include "text/plain_numbers.h"
#include "train/show/terminal.h"

#include <limits.h>
#include <math.h>
#include <string.h>

static const double redraw_seconds = 0.1, line_seconds = 5.0;

struct tn_progress {
    tn__alive alive;
    FILE *file;
    bool terminal, utf8;
    int64_t start, total, done; /* done: steps finished, `start` of them earlier */
    int64_t shown;              /* `done` of the last drawing */
    char unit[16];
    double loss;
    double begun, last, drawn; /* seconds: of tn_progress_new, the last step, the last drawing */
    double busy;               /* seconds in steps */
    int64_t units;
    double flops, peak; /* per unit; the device's per second; 0: not shown */
    char note[128];     /* the program's own facts */
    float *times;       /* [count], ms; float is enough for a median */
    int64_t count, capacity;
};

TN__ALIVE_LIST(lines, "progress line");

tn_progress *tn_progress_new(FILE *file, int64_t start, int64_t total, const char *unit) {
    tn_progress *p = file ? tn__calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        return tn__fail_null(file ? TN_ENOMEM : TN_EVALUE, "progress", "%s",
                             file ? "no memory" : "the file is NULL");
    }
    tn__alive_begin(&lines, p);
    p->file = file;
    p->terminal = tn__is_terminal(file);
    p->utf8 = tn__shows_utf8();
    p->start = p->done = p->shown = start;
    p->total = total;
    p->loss = NAN;
    p->begun = p->last = p->drawn = tn__now();
    snprintf(p->unit, sizeof(p->unit), "%s", unit ? unit : "step");
    return p;
}

/* ---- Drawing --------------------------------------------------------------------------------- */

/* "950", "61.2k", "1.25M" */
static void format_rate(char *text, size_t size, double rate) {
    static const char *const suffixes[] = {"", "k", "M", "G"};
    int at = 0;
    for (; rate >= 1e3 && at < 3; at++) {
        rate /= 1e3;
    }
    snprintf(text, size, "%.*f%s", rate < 10 ? 2 : rate < 100 ? 1 : 0, rate, suffixes[at]);
}

/* "0:11", "1:02:33" */
static void format_duration(char *text, size_t size, double seconds) {
    long s = lround(fmin(fmax(seconds, 0), 1e8));
    if (s >= 3600) {
        snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
    }
}

enum { FACTS = 4, FACT_SIZE = 136 };

/* The facts that fit into `columns`: steps and loss, the rate, the time left, the note. */
static void format_facts(const tn_progress *p, char *text, int columns) {
    char rate[32], left[32] = "?";
    format_rate(rate, sizeof(rate), p->busy > 0 ? (double)p->units / p->busy : 0);
    if (p->busy > 0) {
        double passed = p->last - p->begun;
        format_duration(left, sizeof(left),
                        passed / ((double)p->done - (double)p->start) *
                            ((double)p->total - (double)p->done));
    }
    char mfu[32] = "";
    if (p->flops > 0 && p->peak > 0 && p->busy > 0) {
        snprintf(mfu, sizeof(mfu), "   MFU %.1f %%",
                 100 * (double)p->units / p->busy * p->flops / p->peak);
    }
    int width = snprintf(NULL, 0, "%lld", (long long)p->total), used = 0;
    char parts[FACTS][FACT_SIZE];
    snprintf(parts[0], FACT_SIZE, "%*lld/%lld   loss %.4f", width, (long long)p->done,
             (long long)p->total, p->loss);
    snprintf(parts[1], p->units > 0 ? FACT_SIZE : 1, "   %s %s/s%s", rate, p->unit, mfu);
    snprintf(parts[2], FACT_SIZE, "   %s left", left);
    snprintf(parts[3], FACT_SIZE, "%s%s", *p->note ? "   " : "", p->note);
    for (int i = 0; i < FACTS; i++) {
        int wide = tn__text_columns(parts[i]);
        if (i == 0 || used + wide <= columns) {
            text += snprintf(text, FACT_SIZE, "%.*s", i == 0 ? columns : INT_MAX, parts[i]);
            used += wide;
        }
    }
}

/* `columns` characters; the last one in eighths if there are glyphs for that. */
static void draw_bar(const tn_progress *p, int columns) {
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double part = p->total > 0 ? fmin(1.0, fmax(0.0, (double)p->done / (double)p->total)) : 1.0;
    int filled = (int)(part * columns * 8), whole = filled / 8, rest = p->utf8 ? filled % 8 : 0;
    fputc('[', p->file);
    for (int i = 0; i < whole; i++) {
        fputs(p->utf8 ? "█" : "#", p->file);
    }
    fputs(eighths[rest], p->file);
    for (int i = whole + (rest > 0); i < columns; i++) {
        fputc(p->utf8 ? ' ' : '.', p->file);
    }
    fputs("]  ", p->file);
}

static void draw_line(tn_progress *p) {
    char facts[FACTS * FACT_SIZE];
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    int columns = tn__terminal_columns(p->file);
    format_facts(p, facts, columns - 1); /* a full line would wrap */
    tn__plain_numbers_end(numbers);
    if (p->terminal) {
        int space = columns - tn__text_columns(facts) - 5;
        fputs("\r", p->file);
        if (space >= 8) { draw_bar(p, space < 40 ? space : 40); }
        fprintf(p->file, "%s\033[K", facts);
    } else {
        fprintf(p->file, "%s\n", facts);
    }
    fflush(p->file);
    p->drawn = p->last;
    p->shown = p->done;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

void tn_progress_step(tn_progress *p, int64_t step, double loss, int64_t units) {
    if (!p) { return; }
    double time = tn__now();
    if (tn__grow(&p->times, p->count + 1, &p->capacity, sizeof(*p->times), NULL)) {
        p->times[p->count++] = (float)((time - p->last) * 1e3);
    } /* out of memory: the median leaves this step out */
    p->busy += time - p->last;
    p->last = time;
    p->done = step < INT64_MAX ? step + 1 : step;
    p->loss = loss;
    if (units > 0 && __builtin_add_overflow(p->units, units, &p->units)) { p->units = INT64_MAX; }
    if (time - p->drawn >= (p->terminal ? redraw_seconds : line_seconds)) { draw_line(p); }
}

void tn_progress_utilisation(tn_progress *p, double flops, double peak) {
    if (p) {
        p->flops = flops;
        p->peak = peak;
    }
}

void tn_progress_resume(tn_progress *p) {
    if (p) { p->last = tn__now(); }
}

void tn_progress_note(tn_progress *p, const char *text) {
    if (p) { snprintf(p->note, sizeof(p->note), "%s", text ? text : ""); }
}

void tn_progress_clear(tn_progress *p) {
    if (p && p->terminal) {
        fputs("\r\033[K", p->file);
        fflush(p->file);
    }
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double tn_progress_median_ms(const tn_progress *p) {
    if (!p || p->count == 0) { return 0; }
    float *sorted = tn__malloc_for((size_t)p->count * sizeof(float), "progress");
    if (!sorted) { return 0; }
    memcpy(sorted, p->times, (size_t)p->count * sizeof(float));
    qsort(sorted, (size_t)p->count, sizeof(float), compare_floats);
    int64_t middle = p->count / 2;
    double median =
        p->count % 2 ? sorted[middle] : 0.5 * ((double)sorted[middle - 1] + (double)sorted[middle]);
    free(sorted);
    return median;
}

void tn_progress_free(tn_progress *p) {
    if (!p || !tn__alive_end(&lines, p, "progress_free")) { return; }
    if (p->done > p->start && (p->terminal || p->shown < p->done)) { draw_line(p); }
    if (p->terminal && p->done > p->start) {
        fputc('\n', p->file);
        fflush(p->file);
    }
    free(p->times);
    free(p);
}
