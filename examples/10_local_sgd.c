/* Local SGD: ranks train separately and average their weights now and then.
 *
 *     tern run -n 4 10_local_sgd                        averages every 16 steps
 *     tern run -n 4 10_local_sgd --every 64             every 64
 *     tern run -n 4 10_local_sgd --every 64 --diloco    with an outer optimiser
 *
 *     Stich 2018, arXiv:1805.09767; Douillard et al. 2023, arXiv:2311.08105
 *
 * tn_ddp averages gradients in every step. Here each rank takes its own steps, with its own data;
 * after every k steps all weights become their mean over the ranks. In between nothing is sent and
 * no rank waits, which matters on slow networks. Meanwhile the ranks' models drift apart, so
 * training takes a slightly different path. DiLoCo takes the mean of what k steps have changed as a
 * gradient, and makes a step with momentum of it. The program trains twice from the same start,
 * with averages after each step (which for plain SGD equals averaging gradients) and as asked for,
 * and prints both.
 */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>

enum { BATCH = 16, STEPS = 1024 };

static int64_t every = 16;
static bool diloco;
static const tn_option table[] = {
    {"every", 'k', "N", "steps between two averages", .whole = &every, .most = STEPS},
    {"diloco", 'd', .help = "an outer optimiser steps with momentum", .flag = &diloco},
    {0},
};

/* ---- The data: y = sin(3 a) b, for points (a, b) in a square --------------------------------- */

static tn_tensor *make_points(tn_generator *g, int64_t n) {
    return tn_uniform_(tn_empty(TN_DIMS(n, 2), TN_F32), -1.0, 1.0, g);
}

static tn_tensor *wanted_output(tn_tensor *x) {
    tn_tensor *a = tn_slice(x, 1, 0, 1, 1), *b = tn_slice(x, 1, 1, 2, 1);
    return tn_mul(tn_sin(tn_mul_scalar(a, 3.0)), b);
}

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct {
    tn_module base; /* comes first */
    tn_linear *in, *out;
} mlp;

static tn_tensor *mlp_forward(tn_module *self, tn_tensor *x) {
    mlp *net = (mlp *)self;
    return tn_call(net->out, tn_tanh(tn_call(net->in, x)));
}

static void mlp_init(mlp *net) {
    tn_module_init(net, "mlp", mlp_forward);
    TN_OWN(net, in, tn_linear_new(2, 64));
    TN_OWN(net, out, tn_linear_new(64, 1));
}

/* ---- Training -------------------------------------------------------------------------------- */

/* The loss on points that no rank has seen; every rank computes a share. */
static double test_loss(mlp *net, tn_group *world) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_generator g = {.seed = 5, .stream = (uint64_t)tn_group_rank(world)};
    tn_tensor *x = make_points(&g, 500);
    return tn_group_mean(world, tn_item(tn_mse(tn_call(net, x), wanted_output(x), TN_MEAN)), 1);
}

static void train_rank(tn_group *world, tn_local_sgd_options options) {
    bool speaks = tn_group_rank(world) == 0;
    int k = (int)options.every;
    tn_seed(7); /* all ranks start from the same weights … */
    /* … and differ here */
    tn_generator data = {.seed = 1, .stream = (uint64_t)tn_group_rank(world)};
    mlp net;
    mlp_init(&net);
    tn_optim *opt = tn_sgd(&net, TN_WITH(tn_sgd, .lr = 0.1));
    tn_local_sgd *outer = tn_local_sgd_new(&net, world, options);
    for (int step = 1; step <= STEPS; step++) {
        TN_SCOPE;
        tn_tensor *x = make_points(&data, BATCH);
        tn_backward(tn_mse(tn_call(&net, x), wanted_output(x), TN_MEAN));
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        tn_local_sgd_step(outer);
        if (step == STEPS) { tn_local_sgd_sync(outer); }
        if (step % (STEPS / 4) == 0) {
            double loss = test_loss(&net, world), drift = tn_local_sgd_statistics(outer).drift;
            drift = sqrt(tn_group_mean(world, drift * drift, 1));
            if (speaks) {
                printf("average every %3d  step %3d  test loss %.5f  drift before it %.4f\n", k,
                       step, loss, drift);
            }
        }
    }
    if (speaks) {
        printf("average every %3d: each of %d rank%s has sent %.0f kB\n", k, tn_group_size(world),
               tn_group_size(world) == 1 ? "" : "s",
               (double)tn_local_sgd_statistics(outer).sent / 1000.0);
    }
    tn_module_free(outer);
    tn_optim_free(opt);
    tn_module_finish(&net);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv,
                     "Trains an MLP on ranks that average their weights now and then "
                     "(tern run -n N).",
                     table);
    tn_local_sgd_options options = diloco ? tn_diloco_defaults() : tn_local_sgd_defaults();
    options.every = every;
    tn_group *world = tn_dist_init(tn_dist_defaults()); /* one rank if nothing is set */
    train_rank(world, TN_WITH(tn_local_sgd, .every = 1));
    train_rank(world, options);
    tn_dist_finish();
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
