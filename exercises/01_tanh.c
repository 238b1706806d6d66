/* Exercise 1: the backward of an operation. The page is 01_tanh.md. */
#include "../tiny/tiny.c"
#include "judge.h"

/* The rule of y = tanh(x). The gradient of the result is in y->grad; the rule gives the input its
 * own. */
void tanh_rule(tensor *y) {
    /* ---- yours ---- */
    (void)y;
    /* ---- end ---- */
}

tensor *tanh_of(tensor *x) {
    tensor *y = result(x->s, tanh_rule, x, NULL);
    const float *xs = values(x);
    for (long i = 0; i < count_of(x->s); i++) { y->mem[i] = tanhf(xs[i]); }
    return y;
}

/* ---- The judge ---- */

tensor *once(tensor **in) { return tanh_of(in[0]); }
tensor *twice(tensor **in) { return mul(tanh_of(in[0]), in[0]); }
tensor *of_view(tensor **in) { return tanh_of(transpose(in[0], 0, 1)); }
tensor *of_part(tensor **in) { return tanh_of(narrow(in[0], 0, 1, 2)); }

int main(void) {
    const char *formula = "dx = dy (1 - y y), where y = tanh(x), and dy is in y->grad";
    const char *sum = "x is used twice, so its gradient is a sum: add to what is there";
    const char *view = "x is a view, and its numbers have gaps: give() knows where they lie";
    shape shapes[] = {S(3), S(2, 5), S(4, 5, 7)};
    for (int i = 0; i < 3; i++) {
        tensor *x = leaf(shapes[i], 0, 2);
        bool wrong = judge_gradient("tanh(x)", once, &x, "x", formula) ||
                     judge_gradient("tanh(x) x", twice, &x, "x", sum) ||
                     judge_gradient("tanh(x transposed)", of_view, &x, "x", view) ||
                     judge_gradient("tanh(x[..., 1:3])", of_part, &x, "x", view);
        if (wrong) { return 1; }
    }
    return pass();
}
