/* Exercise 5: Adam and its bias correction. The page is 05_adam.md. */
#include "../tiny/tiny.c"
#include "judge.h"

/* Step o.t (the first is 1) of Adam for n weights `w` with gradients `g`. `m` and `v` are the
 * running means, 0 before the first step. */
void adam(float *w, float *m, float *v, const float *g, long n, optimiser o) {
    /* ---- yours ---- */
    (void)w, (void)m, (void)v, (void)g, (void)n, (void)o;
    /* ---- end ---- */
}

/* ---- The judge ---- */

enum { STEPS = 30, N = 5 };

/* The same from all gradients so far. A corrected running mean is their mean, in which each counts
 * beta times as much as the next one. */
double truth(double w, float g[STEPS][N], int i, optimiser o) {
    double mean = 0, mean2 = 0, sum = 0, sum2 = 0;
    for (int s = 0; s < o.t; s++) {
        double share = pow((double)o.beta1, (double)(o.t - 1 - s));
        double share2 = pow((double)o.beta2, (double)(o.t - 1 - s)), x = (double)g[s][i];
        mean += share * x, sum += share, mean2 += share2 * x * x, sum2 += share2;
    }
    return w - (double)o.lr * (mean / sum) / (sqrt(mean2 / sum2) + (double)o.eps);
}

/* What is wrong in the first step, in which w moves by lr against the sign of its gradient. */
int judge_first(double moved, optimiser o) {
    double m_only = 1 / sqrt(1 - (double)o.beta2), v_only = 1 - (double)o.beta1;
    const char *hint = "its corrected means are g and g g; o.t is 1 in the first step";
    if (near(moved, m_only * v_only, 1e-3)) { hint = "so it moves without bias correction"; }
    if (near(moved, m_only, 1e-3)) { hint = "so it moves if v is not corrected"; }
    if (near(moved, v_only, 1e-3)) { hint = "so it moves if m is not corrected"; }
    if (near(moved, -1, 1e-3)) { hint = "w goes against the gradient"; }
    return differs("step 1: w moves by lr times a factor, expected 1.0000, got %.4f: %s", moved,
                   hint);
}

int judge(optimiser o, const char *hint) {
    float w[N], m[N] = {0}, v[N] = {0}, g[STEPS][N];
    double expected[N];
    for (int i = 0; i < N; i++) { expected[i] = w[i] = (float)normal(); }
    for (o.t = 1; o.t <= STEPS; o.t++) {
        for (int i = 0; i < N; i++) { g[o.t - 1][i] = (float)(normal() + 0.5); }
        double before = (double)w[0], sign = g[0][0] > 0 ? 1 : -1;
        adam(w, m, v, g[o.t - 1], 2, o);
        adam(w + 2, m + 2, v + 2, g[o.t - 1] + 2, N - 2, o);
        for (int i = 0; i < N; i++) {
            expected[i] = truth(expected[i], g, i, o);
            if (near(expected[i], (double)w[i], 1e-4)) { continue; }
            if (o.t == 1 && i == 0 && o.eps < 1e-6f) {
                return judge_first((before - (double)w[0]) / (double)o.lr * sign, o);
            }
            return differs("step %ld: w[%d], expected %.5f, got %.5f: %s", o.t, i, expected[i],
                           (double)w[i], hint);
        }
    }
    return 0;
}

int main(void) {
    for (int i = 0; i < 3; i++) {
        float beta1 = (float)(0.7 + 0.25 * uniform()), beta2 = (float)(0.9 + 0.09 * uniform());
        float lr = (float)(0.05 + 0.1 * uniform());
        optimiser o = {ADAM, .lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = 1e-8f};
        if (judge(o, "m and v go on uncorrected; o.t counts the steps")) { return 1; }
        o.eps = 0.5f;
        if (judge(o, "with a large eps: it is added to the root of the corrected v")) { return 1; }
    }
    return pass();
}
