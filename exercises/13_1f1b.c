/* Exercise 13: a 1F1B schedule for a pipeline of stages. The page is 13_1f1b.md. */
#include "../tiny/tiny.c"
#include "judge.h"

enum { STAGES = 16, MICRO = 64, MOST = 4 * MICRO };

/* What a stage does, in its order: m + 1 is the forward of micro-batch m, -(m + 1) its backward. */
typedef struct {
    int length, work[MOST];
} order;

void forward_of(order *o, int m) {
    if (o->length < MOST) { o->work[o->length++] = m + 1; }
}
void backward_of(order *o, int m) {
    if (o->length < MOST) { o->work[o->length++] = -(m + 1); }
}

/* The order of stage 0 <= stage < stages, for micro-batches 0 … micro - 1. */
void schedule(order *o, int stage, int stages, int micro) {
    /* ---- yours ---- */
    (void)o, (void)stage, (void)stages, (void)micro;
    /* ---- end ---- */
}

/* ---- The judge ---- */

enum { FORWARD = 1, BACKWARD = 2 }; /* units of time */

const char *text(int work) {
    static char texts[2][40];
    static int i;
    i = 1 - i;
    snprintf(texts[i], 40, "the %s of %d", work > 0 ? "forward" : "backward", abs(work) - 1);
    return work ? texts[i] : "nothing";
}

int refuse(int stage, int stages, int micro, const char *expected, const char *got) {
    return differs("stage %d of %d, %d micro-batches: expected %s, got %s", stage, stages, micro,
                   expected, got);
}

/* Each micro-batch goes forward once and then backward once; and how many are alive between. */
int judge_order(const order *o, int stage, int stages, int micro) {
    int next[2] = {0}, live = 0, peak = 0; /* next forward, next backward */
    char expected[80], got[80];
    for (int i = 0; i < o->length; i++) {
        int w = o->work[i], m = abs(w) - 1, back = w < 0;
        if (m < 0 || m >= micro || m != next[back] || (back && m >= next[0])) {
            return refuse(stage, stages, micro, "a forward, later a backward, of 0, 1, 2 … in turn",
                          text(w));
        }
        next[back]++, live += w > 0 ? 1 : -1;
        peak = live > peak ? live : peak;
    }
    snprintf(expected, 80, "%d forwards and backwards", 2 * micro);
    snprintf(got, 80, "%d", o->length);
    if (o->length != 2 * micro) { return refuse(stage, stages, micro, expected, got); }
    int most = stages - stage < micro ? stages - stage : micro;
    snprintf(expected, 80, "at most %d micro-batches alive", most);
    snprintf(got, 80, "%d (does a backward follow each forward after the warm-up?)", peak);
    return peak > most ? refuse(stage, stages, micro, expected, got) : 0;
}

/* Runs all stages: a forward waits for the stage before, a backward for the next stage. */
int judge_time(const order *orders, int stages, int micro) {
    static int done[STAGES + 2][MICRO][2]; /* when; 0: not yet */
    int next[STAGES] = {0}, clock[STAGES] = {0}, left = 2 * micro * stages, end = 0;
    memset(done, 0, sizeof(done));
    for (int moved = 1; moved; left -= moved) {
        moved = 0;
        for (int s = 0; s < stages; s++) {
            int w = orders[s].work[next[s]], m = abs(w) - 1, back = w < 0;
            if (next[s] == orders[s].length) { continue; }
            bool source = back ? s == stages - 1 : s == 0; /* waits for no other stage */
            int ready = source ? 0 : done[back ? s + 1 : s - 1][m][back];
            if (!source && !ready) { continue; }
            clock[s] = (ready > clock[s] ? ready : clock[s]) + (back ? BACKWARD : FORWARD);
            end = clock[s] > end ? clock[s] : end;
            done[s][m][back] = clock[s], next[s]++, moved++;
        }
    }
    for (int s = 0; left && s < stages; s++) {
        if (next[s] == orders[s].length) { continue; }
        return refuse(s, stages, micro, "an end", "stages that wait for each other for ever");
    }
    char expected[80], got[80];
    int best = (micro + stages - 1) * (FORWARD + BACKWARD);
    snprintf(expected, 80, "an end at time %d, with a bubble of %d", best,
             best - micro * (FORWARD + BACKWARD));
    snprintf(got, 80, "%d (too few forwards before the first backward?)", end);
    return end > best ? refuse(0, stages, micro, expected, got) : 0;
}

int main(void) {
    static order orders[STAGES];
    for (int trial = 0; trial < 300; trial++) {
        int stages = 1 + trial % STAGES, micro = 1 + (int)(uniform() * (trial < 50 ? 4 : MICRO));
        for (int s = 0; s < stages; s++) {
            orders[s].length = 0;
            schedule(&orders[s], s, stages, micro);
            if (judge_order(&orders[s], s, stages, micro)) { return 1; }
        }
        if (judge_time(orders, stages, micro)) { return 1; }
    }
    return pass();
}
