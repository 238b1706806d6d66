/* What a schedule costs: when each action runs, if every stage takes the same time.
 *
 * Ranks are looked at in turn. Each runs its actions as long as what they need has been computed;
 * an action begins when its rank is free and its input has arrived. When no rank can go on, the
 * schedule is over, or can never end.
 */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/parallel/pipeline/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct course {
    const tn_pipe_schedule *s;
    tn_pipe_cost cost;
    double *forward, *back; /* [stages x micros] when these ended; NaN: not yet */
    double *now;            /* [ranks] */
    double *begins;         /* [actions] of all ranks, row after row */
    int *at;                /* [ranks] the next action */
} course;

static double *time_of(const course *c, double *times, int stage, int micro) {
    return &times[(size_t)stage * (size_t)c->s->micros + (size_t)micro];
}

/* The later of two times; NaN: one is not there yet. */
static double later_of(double a, double b) {
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

/* When what the action needs is there; NaN: not yet. */
static double input_ready(const course *c, tn_pipe_action a) {
    int last = c->s->stages - 1;
    if (a.what == 'F') {
        return a.stage == 0 ? 0 : *time_of(c, c->forward, a.stage - 1, a.micro) + c->cost.link;
    }
    if (a.what == 'W') { return *time_of(c, c->back, a.stage, a.micro); }
    double graph = *time_of(c, c->forward, a.stage, a.micro);
    return a.stage == last
               ? graph
               : later_of(graph, *time_of(c, c->back, a.stage + 1, a.micro) + c->cost.link);
}

static double action_seconds(const tn_pipe_cost *cost, char what) {
    return what == 'F'   ? cost->forward
           : what == 'I' ? cost->inputs
           : what == 'W' ? cost->weights
                         : cost->inputs + cost->weights;
}

/* The place of a rank's actions in `begins`. */
static size_t row_place(const tn_pipe_schedule *s, int rank) {
    size_t place = 0;
    for (int r = 0; r < rank; r++) {
        place += (size_t)s->counts[r];
    }
    return place;
}

/* Whether rank r has run an action. */
static bool run_next(course *c, int r) {
    if (c->at[r] == c->s->counts[r]) { return false; }
    tn_pipe_action a = c->s->rows[r][c->at[r]];
    double ready = input_ready(c, a);
    if (isnan(ready)) { return false; }
    double begin = fmax(ready, c->now[r]);
    c->begins[row_place(c->s, r) + (size_t)c->at[r]++] = begin;
    c->now[r] = begin + action_seconds(&c->cost, a.what);
    if (a.what != 'W') {
        *time_of(c, a.what == 'F' ? c->forward : c->back, a.stage, a.micro) = c->now[r];
    }
    return true;
}

/* False after raising an error that names the actions that wait. */
static bool run_all(course *c) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < c->s->ranks; r++) {
            while (run_next(c, r)) {
                moved = true;
            }
        }
    }
    char text[256] = "";
    size_t length = 0;
    for (int r = 0; r < c->s->ranks && length < sizeof(text); r++) {
        if (c->at[r] < c->s->counts[r]) {
            tn_pipe_action a = c->s->rows[r][c->at[r]];
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%srank %d at %c%d.%d",
                                       length ? ", " : "", r, a.what, a.stage, a.micro);
        }
    }
    return length == 0 || tn__fail(TN_ESTATE, "pipe_simulate",
                                   "the schedule cannot end: %s wait for each other", text);
}

/* ---- What comes of it ------------------------------------------------------------------------ */

/* The most graphs at once on rank 0. */
static int most_alive(const tn_pipe_schedule *s) {
    int alive = 0, most = 0;
    for (int i = 0; i < s->counts[0]; i++) {
        char what = s->rows[0][i].what;
        alive += what == 'F' ? 1 : what == 'I' ? 0 : -1;
        most = alive > most ? alive : most;
    }
    return most;
}

static tn_pipe_outcome outcome_of(const course *c) {
    tn_pipe_outcome o = {.alive = most_alive(c->s)};
    double busy = 0;
    for (int r = 0; r < c->s->ranks; r++) {
        o.seconds = fmax(o.seconds, c->now[r]);
        for (int i = 0; i < c->s->counts[r]; i++) {
            busy += action_seconds(&c->cost, c->s->rows[r][i].what);
        }
    }
    o.bubble = o.seconds > 0 ? 1 - busy / (o.seconds * c->s->ranks) : 0;
    return o;
}

/* That of a time, but no later than the end of the drawing: costs may be far apart. */
static int column_of(double time, double unit, int columns) {
    return (int)fmin(round(time / unit), columns);
}

/* A line for each rank. A column is as long as the shortest action, and an action as many columns
 * as it takes: "  F0  F1  B0 ===   ." */
static void draw_course(const course *c, double seconds, FILE *f) {
    enum { WIDEST = 400 };
    double unit = INFINITY;
    for (const char *what = "FBIW"; *what; what++) {
        double each = action_seconds(&c->cost, *what);
        unit = each > 0 ? fmin(unit, each) : unit;
    }
    int columns = (int)fmin(ceil(seconds / unit - 1e-9), WIDEST);
    for (int r = 0; r < c->s->ranks; r++) {
        int at = 0;
        fprintf(f, "rank %d", r);
        for (int i = 0; i < c->s->counts[r] && at < columns; i++) {
            tn_pipe_action a = c->s->rows[r][i];
            double begin = c->begins[row_place(c->s, r) + (size_t)i];
            int first = column_of(begin, unit, columns);
            int end = column_of(begin + action_seconds(&c->cost, a.what), unit, columns);
            char cell[16];
            snprintf(cell, sizeof(cell), "%c%d", a.what, a.micro);
            for (int shown = at > first ? at : first; at < end; at++) {
                fprintf(f, "%4s", at < shown ? "." : at == shown ? cell : "===");
            }
        }
        for (; at < columns; at++) {
            fprintf(f, "%4s", ".");
        }
        fputc('\n', f);
    }
}

static bool course_alloc(course *c) {
    size_t cells = (size_t)c->s->stages * (size_t)c->s->micros, ranks = (size_t)c->s->ranks;
    static const char operation[] = "pipe_simulate";
    c->forward = tn__calloc_for(2 * cells, sizeof(*c->forward), operation);
    c->now = tn__calloc_for(ranks, sizeof(*c->now), operation);
    c->begins = tn__calloc_for(row_place(c->s, c->s->ranks), sizeof(*c->begins), operation);
    c->at = tn__calloc_for(ranks, sizeof(*c->at), operation);
    if (!c->forward || !c->now || !c->begins || !c->at) { return false; }
    c->back = c->forward + cells;
    for (size_t i = 0; i < 2 * cells; i++) {
        c->forward[i] = NAN;
    }
    return true;
}

tn_status tn_pipe_simulate(const tn_pipe_schedule *s, tn_pipe_cost cost, tn_pipe_outcome *outcome,
                           FILE *drawing) {
    bool sound = cost.forward >= 0 && cost.inputs >= 0 && cost.weights >= 0 && cost.link >= 0 &&
                 isfinite(cost.forward + cost.inputs + cost.weights + cost.link);
    if (!s || !sound) {
        return tn__raise(TN_EVALUE, "pipe_simulate",
                         s ? "a cost is below 0 or not a number" : "the schedule is NULL");
    }
    course c = {.s = s, .cost = cost};
    if (tn__pipe_schedule_complete(s) && course_alloc(&c) && run_all(&c)) {
        tn_pipe_outcome o = outcome_of(&c);
        if (outcome) { *outcome = o; }
        if (drawing && o.seconds > 0) { draw_course(&c, o.seconds, drawing); }
    }
    free(c.forward);
    free(c.now);
    free(c.begins);
    free(c.at);
    return tn_error();
}
