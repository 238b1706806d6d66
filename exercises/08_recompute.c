/* Exercise 8: recompute. The page is 08_recompute.md. */
#include "../tiny/tiny.c"
#include "judge.h"

/* The parts of a model that are computed again in backward. A result's `number` says which. */
struct {
    tensor *(*f)(tensor *);
    uint64_t seed; /* with which it began */
} parts[64];
int part_count;

/* Runs the rules from the tape's end down to place `from`. */
void run_rules(int from) {
    for (int i = tape_length - 1; i >= from; i--) {
        temporary_count = 0;
        if (tape[i]->rule) { tape[i]->rule(tape[i]); }
    }
}

/* ---- yours ---- */
/* Has the gradient of f(x) in y->grad: makes f's tape again, and walks it. */
void recompute_rule(tensor *y) { (void)y; }

/* f(x), of whose tape nothing stays but the result. */
tensor *recompute(tensor *(*f)(tensor *), tensor *x) { return f(x); }
/* ---- end ---- */

/* ---- The judge ---- */

enum { ROWS = 3, WIDTH = 6, PARTS = 4 };
double rate; /* of dropout */
int runs[2]; /* of mlp: without recording, and with it */

/* Zero with probability `rate`, by random numbers from `seed`. */
tensor *dropout(tensor *x) {
    float *mask = temporary(count_of(x->s));
    for (long i = 0; i < count_of(x->s); i++) {
        mask[i] = rate > 0 && uniform() < rate ? 0 : (float)(1 / (1 - rate));
    }
    return mul(x, input(x->s, mask));
}

tensor *mlp(tensor *x) {
    runs[recording]++;
    tensor *h = dropout(gelu(linear("up", x, 4 * WIDTH, true)));
    return add(x, linear("down", h, WIDTH, true));
}

/* Runs the model, and writes the gradients of all parameters. The number of them, or -1. */
long train(bool again, const float *x, float *grads, uint64_t *seed_after) {
    for (int p = 0; p < param_count; p++) { clear(params[p].t->grad, count_of(params[p].t->s)); }
    seed = 7, part_count = 0, runs[0] = runs[1] = 0;
    tensor *y = linear("first", input(S(ROWS, WIDTH), x), WIDTH, true);
    int before = tape_length, n = 0;
    for (int i = 0; i < PARTS; i++) { y = again ? recompute(mlp, y) : mlp(y); }
    int most = 2 * PARTS, length = tape_length - before;
    if (again && length > most) {
        return -differs("tensors on the tape after %d parts, expected at most %d, got %d: cut "
                        "tape_length back after f",
                        PARTS, most, length);
    }
    if (!recording) { return -differs("recording is still false after a part"); }
    tensor *loss = mse(y, input(S(1), (float[]){0.3f}));
    if (again && runs[1] > 0) {
        return -differs("f runs in forward with recording true: its gradients take memory");
    }
    if (!loss->needs) { return -differs("no gradient: set recording back before result()"); }
    int whole = tape_length;
    backward(loss);
    if (again && (runs[0] != PARTS || runs[1] != PARTS)) {
        return -differs("runs of f in forward and backward, expected %d and %d, got %d and %d",
                        PARTS, PARTS, runs[0], runs[1]);
    }
    if (tape_length != whole) {
        return -differs("the tape's length after backward, expected %d, got %d: cut it back after "
                        "the rules",
                        whole, tape_length);
    }
    for (int p = 0; p < param_count; p++) {
        copy_floats(grads + n, params[p].t->grad, count_of(params[p].t->s));
        n += (int)count_of(params[p].t->s);
    }
    *seed_after = seed;
    return tape_clear(), n;
}

int judge(double with_rate, const char *hint) {
    float x[ROWS * WIDTH], expected[1000], got[1000];
    uint64_t seed_expected, seed_got;
    for (int i = 0; i < ROWS * WIDTH; i++) { x[i] = (float)normal(); }
    rate = with_rate;
    train(false, x, expected, &seed_expected); /* makes the parameters */
    long n = train(false, x, expected, &seed_expected);
    if (train(true, x, got, &seed_got) < 0) { return 1; }
    for (long i = 0; i < n; i++) {
        if (expected[i] != got[i]) {
            return differs("dropout %.1f: gradient %ld of %ld, expected %.6f, got %.6f: %s", rate,
                           i, n, (double)expected[i], (double)got[i], hint);
        }
    }
    const char *next = "set it back, or the next step drops other elements";
    return seed_expected == seed_got ? 0 : differs("the seed after backward: %s", next);
}

int main(void) {
    const char *flow = "y->grad goes to the new result; then its rules run";
    return judge(0, flow) || judge(0.4, "the random numbers are those of forward: a seed per part")
               ? 1
               : pass();
}
