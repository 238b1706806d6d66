/* Exercise 2: the gradient of broadcasting. The page is 02_broadcast.md. */
#include "../tiny/tiny.c"
#include "judge.h"

/* `g` has the shape `large`, `sum` has the shape `small`, and neither has gaps. A dimension of
 * `small` is that of `large`, or 1: then it was repeated. Adds each number of `g` to the element of
 * `sum` from which it came. */
void sum_repeated(float *sum, shape small, const float *g, shape large) {
    /* ---- yours ---- */
    (void)sum, (void)small, (void)g, (void)large;
    /* ---- end ---- */
}

/* Both inputs have dy as their gradient, as far as their shapes go. */
void plus_rule(tensor *y) {
    for (int i = 0; i < 2; i++) {
        float *g = temporary(count_of(y->in[i]->s));
        clear(g, count_of(y->in[i]->s));
        sum_repeated(g, y->in[i]->s, y->grad, y->s);
        give(y->in[i], g);
    }
}

/* a + b; what has one element along a dimension where the other has more is repeated. */
tensor *plus(tensor *a, tensor *b) {
    shape s = {a->s.n > b->s.n ? a->s.n : b->s.n, {0}};
    for (int i = 0; i < 4; i++) { s.d[i] = a->s.d[i] == 1 ? b->s.d[i] : a->s.d[i]; }
    const tensor *all_a = expand(a, s), *all_b = expand(b, s);
    tensor *y = result(s, plus_rule, a, b);
    const float *as = values(all_a), *bs = values(all_b);
    for (long i = 0; i < count_of(s); i++) { y->mem[i] = as[i] + bs[i]; }
    return y;
}

/* ---- The judge ---- */

tensor *call(tensor **in) { return plus(in[0], in[1]); }

int main(void) {
    const char *same = "nothing is repeated here: each number goes where it came from";
    const char *sum = "it is the sum over the copies, not the last of them, and not their mean";
    const char *any = "any dimension may be repeated; the place in sum is counted with "
                      "small.d, with index 0 where that is 1";
    for (int i = 0; i < 3; i++) {
        int p = 2 + (int)(4 * uniform()), q = p + 1, r = p + 2; /* sizes */
        const struct {
            shape a, b;
            const char *what, *hint;
        } cases[] = {
            {S(p, q), S(p, q), "(p, q) + (p, q)", same},
            {S(p, q), S(q), "(p, q) + (q)", sum},
            {S(p, q), S(1), "(p, q) + (1)", sum},
            {S(p, q), S(p, 1), "(p, q) + (p, 1)", any},
            {S(p, 1), S(q), "(p, 1) + (q)", any},
            {S(p, q, r), S(p, 1, r), "(p, q, r) + (p, 1, r)", any},
            {S(r, p, q, 3), S(p, 1, 3), "(r, p, q, 3) + (p, 1, 3)", any},
        };
        for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
            tensor *in[] = {leaf(cases[c].a, 0, 1), leaf(cases[c].b, 0, 1)};
            if (judge_gradient(cases[c].what, call, in, "ab", cases[c].hint)) { return 1; }
        }
    }
    return pass();
}
