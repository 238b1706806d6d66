/* Exercise 3: the backward of softmax. The page is 03_softmax.md. */
#include "../tiny/tiny.c"
#include "judge.h"

/* The rule of y = softmax(x / temperature), for each row of the last dimension by itself. */
void soft_rule(tensor *y) {
    const float temperature = y->number;
    float *dx = temporary(count_of(y->s));
    clear(dx, count_of(y->s));
    /* ---- yours ---- */
    (void)temperature;
    /* ---- end ---- */
    give(y->in[0], dx);
}

tensor *soft(tensor *x, float temperature) {
    tensor *y = result(x->s, soft_rule, x, NULL);
    y->number = temperature;
    const float *xs = values(x);
    for (long i = 0; i < count_of(x->s); i++) { y->mem[i] = xs[i] / temperature; }
    EACH_ROW (x, r, n) {
        float *row = y->mem + r * n, *divided = copy_floats(temporary(n), row, n);
        softmax_row(row, divided, n);
        temporary_count--;
    }
    return y;
}

/* ---- The judge ---- */

float heat = 1;
tensor *call(tensor **in) { return soft(in[0], heat); }
tensor *of_view(tensor **in) { return soft(transpose(in[0], 0, 1), heat); }

int main(void) {
    const char *formula = "each x moves all y of its row: dx = y (dy - sum of dy y)";
    const char *rows = "each row is by itself, and its sum, too";
    for (int i = 0; i < 3; i++) {
        int n = 2 + (int)((5 + 10 * i) * uniform());
        tensor *one = leaf(S(n), 0, 2), *many = leaf(S(2, 3, n), 0, 2);
        heat = 1;
        if (judge_gradient("a row", call, &one, "x", formula)) { return 1; }
        if (judge_gradient("six rows", call, &many, "x", rows)) { return 1; }
        if (judge_gradient("a transposed x", of_view, &many, "x", rows)) { return 1; }
        heat = i == 0 ? 2.5f : (float)(0.6 + uniform());
        const char *hint = "x is divided by the temperature, so its gradient is, too";
        if (judge_gradient("with a temperature", call, &many, "x", hint)) { return 1; }
    }
    return pass();
}
