/* Exercise 6: causal attention. The page is 06_attention.md. */
#include "../tiny/tiny.c"
#include "judge.h"

/* q, k and v (B, T, C) -> (B, T, C), with H heads of D = C / H columns each. Position t sees the
 * positions 0 to t. */
tensor *attend(tensor *q, tensor *k, tensor *v, int H) {
    int B = q->s.d[1], T = q->s.d[2], C = q->s.d[3], D = C / H;
    tensor *y = input(S(B, T, C), floats((long)B * T * C));
    /* ---- yours ---- */
    (void)D, (void)k, (void)v;
    /* ---- end ---- */
    return y;
}

/* ---- The judge ---- */

/* One number of the result, from the definition. */
double truth(tensor **in, int H, int b, int t, int c) {
    int T = in[0]->s.d[2], C = in[0]->s.d[3], D = C / H, head = c / D * D;
    const float *q = in[0]->mem + (b * T + t) * C + head, *k = in[1]->mem + b * T * C + head;
    const float *v = in[2]->mem + b * T * C;
    double sum = 0, weights = 0;
    for (int s = 0; s <= t; s++) {
        double score = 0;
        for (int d = 0; d < D; d++) { score += (double)q[d] * (double)k[s * C + d]; }
        double weight = exp(score / sqrt(D));
        weights += weight, sum += weight * (double)v[s * C + c];
    }
    return sum / weights;
}

int heads;
tensor *call(tensor **in) { return attend(in[0], in[1], in[2], heads); }

/* Position 0 must stay as it is when the last one changes. */
int judge_causal(tensor **in) {
    int T = in[0]->s.d[2], C = in[0]->s.d[3];
    float before = *values(call(in));
    for (int c = 0; c < C; c++) { in[2]->mem[(T - 1) * C + c] += 1; }
    float after = *values(call(in));
    if (before == after) { return 0; }
    return differs("position 0 changes with v of position %d, expected %.4f, got %.4f: hide what "
                   "comes later",
                   T - 1, (double)before, (double)after);
}

int judge(int B, int T, int H, int D, const char *hint) {
    tensor *in[3];
    for (int i = 0; i < 3; i++) { in[i] = leaf(S(B, T, H * D), 0, 2); }
    heads = H;
    if (judge_causal(in)) { return 1; }
    const tensor *y = call(in);
    if (y->s.n != 3 || y->s.d[1] != B || y->s.d[2] != T || y->s.d[3] != H * D) {
        return differs("the result's shape: expected (%d, %d, %d)", B, T, H * D);
    }
    for (long i = 0; i < count_of(y->s); i++) {
        long b = i / (T * H * D), t = i / (H * D) % T, c = i % (H * D);
        double expected = truth(in, H, (int)b, (int)t, (int)c), got = (double)values(y)[i];
        if (!near(expected, got, 1e-4)) {
            return differs("B %d, T %d, H %d, D %d: y%s, expected %.4f, got %.4f: %s", B, T, H, D,
                           place(y->s, i), expected, got, hint);
        }
    }
    tape_clear();
    const char *tape_hint = "is everything made by operations on the tape?";
    return B * T * H * D > 60 ? 0 : judge_gradient("the gradient", call, in, "qkv", tape_hint);
}

int main(void) {
    for (int i = 0; i < 3; i++) {
        int T = 3 + (int)(4 * uniform()), D = 2 + (int)(3 * uniform()),
            H = 2 + (int)(3 * uniform());
        const char *split = "head h has the columns h D to (h + 1) D - 1 of each position, and its "
                            "scores are divided by sqrt(D), not sqrt(C)";
        bool wrong = judge(1, T, 1, 1, "the weights are softmax of q k over what is seen") ||
                     judge(1, T, 1, D, "one head: are the scores divided by sqrt(D)?") ||
                     judge(1, T, H, D, split) || judge(2, T, H, D, "each text is by itself");
        if (wrong) { return 1; }
    }
    return pass();
}
