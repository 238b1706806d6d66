/* Reversible layers: a deep network whose activations need no more memory the deeper it is.
 *
 *     Gomez, Ren, Urtasun, Grosse 2017, arXiv:1707.04585
 *
 * A residual network keeps what each layer reads until backward needs it. With two streams,
 *
 *     y1 = x1 + f(x2)
 *     y2 = x2 + g(y1)
 *
 * only the last y1 and y2 are kept: x2 = y2 - g(y1), and then x1 = y1 - f(x2), up to rounding.
 * Backward computes them back, pair by pair, and runs f and g once more for that. Recompute
 * (tn_module_set_recompute) runs them once more as well, but keeps what each of them reads.
 *
 * The program trains the same network in all three ways, at three depths, and prints the loss, what
 * a step needs at its peak beside the parameters' gradients, and the time: of a few steps, or of as
 * many as --steps says.
 */
#include <tern/tern.h>

#include <stdio.h>

enum { WIDTH = 64, BATCH = 256, MOST = 64 };

static int64_t steps = 2;
static const tn_option table[] = {
    {"steps", 'n', "N", "of each network", .whole = &steps},
    {0},
};

typedef enum { KEPT, RECOMPUTED, REVERSIBLE } way;

typedef struct {
    tn_module base; /* comes first */
    tn_linear *in, *out;
    tn_reversible *pairs;
    way how;
} net;

/* The pairs as the formula says. */
static tn_values compose_pairs(tn_reversible *pairs, tn_values x) {
    for (int i = 0; i < pairs->pairs; i++) {
        x.v[0] = tn_add(x.v[0], tn_call(tn_module_at(pairs, 2 * i), x.v[1]));
        x.v[1] = tn_add(x.v[1], tn_call(tn_module_at(pairs, 2 * i + 1), x.v[0]));
    }
    return x;
}

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *m = (net *)self;
    x = tn_call(m->in, x); /* both streams begin with it */
    tn_values y = m->how == REVERSIBLE ? tn_call_values(m->pairs, TN_VALUES(x, x), NULL)
                                       : compose_pairs(m->pairs, TN_VALUES(x, x));
    return tn_call(m->out, tn_add(y.v[0], y.v[1]));
}

/* What each pair has twice, as f and as g. */
static void *layer_new(way how) {
    tn_sequential *m = TN_SEQUENTIAL(tn_layer_norm_new(WIDTH), tn_linear_new(WIDTH, WIDTH),
                                     TN_FN(tn_gelu), tn_linear_new(WIDTH, WIDTH));
    tn_module_set_recompute(m, how == RECOMPUTED);
    return m;
}

static void net_init(net *m, int pairs, way how) {
    void *f[MOST], *g[MOST];
    tn_seed(1);
    for (int i = 0; i < pairs; i++) {
        f[i] = layer_new(how);
        g[i] = layer_new(how);
    }
    tn_module_init(m, "net", net_forward);
    m->how = how;
    TN_OWN(m, in, tn_linear_new(2, WIDTH));
    TN_OWN(m, pairs, tn_reversible_new(f, g, pairs));
    TN_OWN(m, out, tn_linear_new(WIDTH, 1));
}

/* ---- Training: y = sin(3 a) b, for points (a, b) in a square --------------------------------- */

static tn_tensor *wanted_output(tn_tensor *x) {
    tn_tensor *a = tn_slice(x, 1, 0, 1, 1), *b = tn_slice(x, 1, 1, 2, 1);
    return tn_mul(tn_sin(tn_mul_scalar(a, 3.0)), b);
}

static double train_step(net *m, tn_optim *opt, int64_t step) {
    TN_SCOPE;
    tn_generator data = {.seed = 2, .stream = (uint64_t)step};
    tn_tensor *x = tn_uniform_(tn_empty(TN_DIMS(BATCH, 2), TN_F32), -1.0, 1.0, &data);
    tn_tensor *loss = tn_mse(tn_call(m, x), wanted_output(x), TN_MEAN);
    tn_backward(loss);
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    return tn_item(loss);
}

static void train_net(int pairs, way how, const char *name) {
    TN_SCOPE;
    net m;
    net_init(&m, pairs, how);
    tn_optim *opt = tn_adamw(&m, TN_WITH(tn_adamw, .lr = 1e-3));
    train_step(&m, opt, 0); /* makes the optimiser's state */
    double loss = 0.0, begin = tn_flight_now();
    int64_t rest = tn_memory().allocated + tn_module_count(&m) * (int64_t)sizeof(float);
    tn_memory_reset_peak();
    for (int64_t step = 1; step <= steps; step++) {
        loss = train_step(&m, opt, step);
    }
    printf("%2d pairs, %-10s  loss %.4f  a step needs %6.1f MB  %5.1f ms\n", pairs, name, loss,
           (double)(tn_memory().peak - rest) / 1e6,
           (tn_flight_now() - begin) * 1e3 / (double)steps);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv, "Trains deep networks in three ways.", table);
    for (int pairs = 4; pairs <= MOST; pairs *= 4) {
        train_net(pairs, KEPT, "kept");
        train_net(pairs, RECOMPUTED, "recomputed");
        train_net(pairs, REVERSIBLE, "reversible");
    }
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
