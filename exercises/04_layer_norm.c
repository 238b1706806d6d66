/* Exercise 4: the backward of layer norm. The page is 04_layer_norm.md. */
#include "../tiny/tiny.c"
#include "judge.h"

/* The mean of a row, and its standard deviation: the root of its variance. */
void moments(const float *x, long n, float *mean, float *deviation) {
    float sum = 0, squares = 0;
    for (long i = 0; i < n; i++) { sum += x[i]; }
    *mean = sum / (float)n;
    for (long i = 0; i < n; i++) { squares += (x[i] - *mean) * (x[i] - *mean); }
    *deviation = sqrtf(squares / (float)n + 1e-5f);
}

/* For one row: writes dx, the gradient of x, and adds to dw, the gradient of the weights. */
void norm_row_backward(float *dx, float *dw, const float *dy, const float *x, const float *w,
                       long n) {
    float mean, deviation;
    moments(x, n, &mean, &deviation);
    /* ---- yours ---- */
    clear(dx, n);
    (void)dw, (void)dy, (void)w;
    /* ---- end ---- */
}

void norm_rule(tensor *y) {
    tensor *x = y->in[0], *w = y->in[1];
    const float *xs = values(x), *ws = values(w);
    float *dx = temporary(count_of(x->s)), *dw = temporary(count_of(w->s));
    clear(dw, count_of(w->s));
    EACH_ROW (y, r, n) { norm_row_backward(dx + r * n, dw, y->grad + r * n, xs + r * n, ws, n); }
    give(x, dx), give(w, dw);
}

/* y = w (x - mean) / deviation, for each row of x by itself. All rows have the same weights. */
tensor *norm(tensor *x, tensor *w) {
    tensor *y = result(x->s, norm_rule, x, w);
    const float *xs = values(x), *ws = values(w);
    EACH_ROW (x, r, n) {
        float mean, deviation;
        moments(xs + r * n, n, &mean, &deviation);
        for (long i = 0; i < n; i++) {
            y->mem[r * n + i] = ws[i] * (xs[r * n + i] - mean) / deviation;
        }
    }
    return y;
}

/* ---- The judge ---- */

tensor *call(tensor **in) { return norm(in[0], in[1]); }

int main(void) {
    const char *moving = "mean and deviation move with x, too";
    const char *weights = "the gradient of h is dy w, and that of w is dy h";
    const char *rows = "all rows use the same weights: add to dw; each has its own mean";
    for (int i = 0; i < 3; i++) {
        int n = 5 + (int)((6 + 10 * i) * uniform());
        tensor *in[] = {leaf(S(n), 1, 3), leaf(S(n), 1, 0)};
        if (judge_gradient("a row, w = 1", call, in, "xw", moving)) { return 1; }
        in[1] = leaf(S(n), 0, 2);
        if (judge_gradient("a row", call, in, "xw", weights)) { return 1; }
        in[0] = leaf(S(2, 3, n), -1, 3);
        if (judge_gradient("six rows", call, in, "xw", rows)) { return 1; }
    }
    return pass();
}
