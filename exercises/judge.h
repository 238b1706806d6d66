/* What the judges share: random tensors, gradients by differences, and the one line that says what
 * differs. It comes after tiny.c. */

/* The judge's answer to a wrong program; main returns it. */
int differs(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("differs: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    return 1;
}

int pass(void) { return puts("pass"), 0; }
/* Seconds after which ranks that wait for each other are ended; in the tests the machine may be
 * busy. */
#define PATIENCE (getenv("TERN_TEST_BIN") ? 40 : 3)

bool near(double a, double b, double most) { return fabs(a - b) <= most * (1 + fabs(a) + fabs(b)); }

/* A tensor that wants a gradient and outlives the tape: random numbers, middle - spread to middle +
 * spread. */
tensor *leaf(shape s, float middle, float spread) {
    tensor *t = allocate(1, sizeof(*t));
    t->s = s, t->base = t, t->needs = true;
    set_strides(t);
    t->mem = floats(count_of(s)), t->grad = floats(count_of(s));
    for (long i = 0; i < count_of(s); i++) {
        t->mem[i] = middle + spread * (float)(2 * uniform() - 1);
    }
    return t;
}

/* "[1][0]": where element i of a tensor of this shape is. The text is good until the next call. */
const char *place(shape s, long i) {
    static char text[64];
    long left = count_of(s);
    size_t length = 0;
    for (int d = 4 - s.n; d < 4; d++) {
        left /= s.d[d];
        length += (size_t)snprintf(text + length, sizeof(text) - length, "[%ld]", i / left);
        i %= left;
    }
    return text;
}

/* The sum of f's results, each times its own factor. */
double weighted(tensor *(*f)(tensor **), tensor **in, const float *factors) {
    double sum = 0;
    const tensor *y = f(in);
    const float *ys = values(y);
    for (long i = 0; i < count_of(y->s); i++) { sum += (double)factors[i] * (double)ys[i]; }
    tape_clear();
    return sum;
}

/* Compares what backward() gives to the inputs of `f`, one for each letter of `names`, with
 * differences: (L(x + h) - L(x - h)) / 2h, where L is the sum of f's results times random factors.
 * 0: they agree; otherwise it says where not, and the hint. */
int judge_gradient(const char *what, tensor *(*f)(tensor **), tensor **in, const char *names,
                   const char *hint) {
    tensor *y = f(in);
    if (!y->needs) { return differs("%s: the result has no gradient: %s", what, hint); }
    long count = count_of(y->s);
    float *factors = floats(count), *means = floats(count), h = 1.0f / 64;
    for (long i = 0; i < count; i++) {
        factors[i] = (float)(2 * uniform() - 1), means[i] = (float)count * factors[i];
    }
    for (int t = 0; names[t]; t++) { clear(in[t]->grad, count_of(in[t]->s)); }
    backward(mean(mul(y, input(y->s, means))));
    tape_clear();
    for (int t = 0; names[t]; t++) {
        long n = count_of(in[t]->s), none = 0;
        for (; none < n && in[t]->grad[none] == 0; none++) {}
        if (none == n) { return differs("%s: no gradient comes to %c", what, names[t]); }
        for (long i = 0; i < n; i++) {
            float *x = &in[t]->mem[i], middle = *x;
            *x = middle + h;
            double above = weighted(f, in, factors);
            *x = middle - h;
            double expected = (above - weighted(f, in, factors)) / (2 * (double)h);
            *x = middle;
            if (!near(expected, (double)in[t]->grad[i], 4e-3)) {
                return differs("%s: gradient of %c%s, expected %.4f, got %.4f: %s", what, names[t],
                               place(in[t]->s, i), expected, (double)in[t]->grad[i], hint);
            }
        }
    }
    free(factors), free(means);
    return 0;
}
