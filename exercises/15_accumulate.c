/* Exercise 15: gradient accumulation and clipping in Tern. The page is 15_accumulate.md. */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>

/* One step with the batch x (B, 4), y (B, 1) in `pieces` micro-batches, each with its own backward.
 * Their sizes differ by at most 1 row. The weights become what one batch of all rows would make of
 * them: its loss is the mean over the rows, and its gradients' norm is at most max_norm. */
static void step(void *net, tn_optim *opt, tn_tensor *x, tn_tensor *y, int pieces,
                 double max_norm) {
    int64_t rows = tn_size(x, 0);
    /* ---- yours ---- */
    (void)net, (void)opt, (void)y, (void)pieces, (void)max_norm, (void)rows;
    /* ---- end ---- */
}

/* ---- The judge ---- */

/* Of the model: how many calls, with how many rows, and how many more tensors at a later one. */
static int64_t calls, largest, smallest, live, grown;

static tn_tensor *counted_tanh(tn_tensor *x) {
    int64_t now = tn_live_tensors(), rows = tn_size(x, 0);
    if (calls > 1 && now > live) { grown = now - live; }
    live = now, calls++, largest = rows > largest ? rows : largest;
    smallest = rows < smallest ? rows : smallest;
    return tn_tanh(x);
}

typedef struct {
    tn_linear *in, *out;
    tn_sequential *net;
    tn_optim *opt;
} model;

static model model_new(uint64_t seed) {
    tn_seed(seed);
    model m = {.in = tn_linear_new(4, 8), .out = tn_linear_new(8, 1)};
    m.net = TN_SEQUENTIAL(m.in, TN_FN(counted_tanh), m.out);
    m.opt = tn_sgd(m.net, TN_WITH(tn_sgd, .lr = 0.1, .momentum = 0.9));
    return m;
}

static void model_free(model *m) { tn_optim_free(m->opt), tn_module_free(m->net); }

/* The norm of the difference between all weights. */
static double distance(const model *a, const model *b) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *of_a[] = {a->in->weight, a->in->bias, a->out->weight, a->out->bias};
    tn_tensor *of_b[] = {b->in->weight, b->in->bias, b->out->weight, b->out->bias};
    double sum = 0;
    for (int i = 0; i < 4; i++) { sum += tn_item(tn_sum_all(tn_square(tn_sub(of_a[i], of_b[i])))); }
    return sqrt(sum);
}

static int judge(int64_t rows, int pieces, double max_norm) {
    uint64_t seed = (uint64_t)(rows * 100 + pieces);
    model start = model_new(seed), whole = model_new(seed), yours = model_new(seed);
    int differs = 0;
    for (int i = 0; i < 3 && !differs; i++) {
        TN_SCOPE;
        tn_tensor *x = tn_mul_scalar(tn_randn(TN_DIMS(rows, 4), TN_F32), 1 + i);
        tn_tensor *y = tn_randn(TN_DIMS(rows, 1), TN_F32);
        tn_backward(tn_mse(tn_call(whole.net, x), y, TN_MEAN));
        tn_clip_grad_norm(whole.net, max_norm);
        tn_optim_step(whole.opt);
        tn_optim_zero_grad(whole.opt);
        calls = largest = grown = 0, smallest = rows;
        step(yours.net, yours.opt, x, y, pieces, max_norm);
        int64_t most = (rows + pieces - 1) / pieces;
        double moved = distance(&whole, &start), got = distance(&yours, &start);
        char what[100];
        snprintf(what, 100, "%d rows in %d, norm %g, step %d", (int)rows, pieces, max_norm, i);
        if (tn_error()) {
            differs = printf("differs: %s: %s\n", what, tn_error_message());
        } else if (calls != pieces || largest != most || smallest != rows / pieces) {
            differs = printf(
                "differs: %s: expected %d calls of %d to %d rows, got %d of %d to %d\n", what,
                pieces, (int)rows / pieces, (int)most, (int)calls, (int)smallest, (int)largest);
        } else if (grown) {
            differs = printf("differs: %s: a piece leaves tensors (TN_SCOPE, a backward?)\n", what);
        } else if (distance(&yours, &whole) > 1e-5) {
            differs = printf(
                "differs: %s: expected weights that moved by %.6g, got %.6g (%s)\n", what, moved,
                got,
                i > 0            ? "gradients of the step before?"
                : max_norm < 100 ? "clip once, after the last backward"
                : rows % pieces  ? "weigh each loss by its rows"
                                : "each loss times n / rows, as double; zero_grad, step after all");
        }
    }
    model_free(&start), model_free(&whole), model_free(&yours);
    return differs;
}

int main(void) {
    int64_t rows[] = {12, 24, 10, 7};
    double norms[] = {1e6, 0.05};
    for (int i = 0; i < 8; i++) {
        for (int pieces = 1; pieces <= 4; pieces++) {
            if (judge(rows[i % 4], pieces, norms[i / 4])) { return 1; }
        }
    }
    printf("pass\n");
    return 0;
}
