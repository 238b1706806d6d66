/* Local SGD: ranks train separately and average their weights now and then.
 *
 *     tern run -n 4 10_local_sgd          averages every 16 steps
 *     tern run -n 4 10_local_sgd 64       every 64
 *
 *     Stich 2018, arXiv:1805.09767
 *
 * tn_ddp averages gradients in every step. Here each rank takes its own steps, with its own data;
 * every k steps all weights become their mean over the ranks. In between nothing is sent and no
 * rank waits, which matters on slow networks. Meanwhile the ranks' models drift apart, so training
 * takes a slightly different path. The program trains twice from the same start, with k = 1 (which
 * for plain SGD equals averaging gradients) and with the k asked for, and prints both.
 */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 16, STEPS = 1024 };

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

/* ---- Averaging ------------------------------------------------------------------------------- */

typedef struct {
    tn_group *world;
    double drift;  /* squared distance of this rank's weights from the mean */
    int64_t bytes; /* given to all_reduce */
} averaging;

static bool average_weights(const tn_entry *entry, void *user) {
    averaging *a = user;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *weight = *entry->field, *own = tn_copy(weight);
    tn_work_wait(tn_all_reduce(a->world, weight, TN_MEAN), 0);
    a->drift += tn_item(tn_sum_all(tn_square(tn_sub(own, weight))));
    a->bytes += tn_count(weight) * (int64_t)sizeof(float);
    return true;
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

static void train_rank(tn_group *world, int k) {
    bool speaks = tn_group_rank(world) == 0;
    tn_seed(7); /* all ranks start from the same weights … */
    /* … and differ here */
    tn_generator data = {.seed = 1, .stream = (uint64_t)tn_group_rank(world)};
    mlp net;
    mlp_init(&net);
    tn_optim *opt = tn_sgd(&net, TN_WITH(tn_sgd, .lr = 0.1));
    averaging a = {.world = world};
    for (int step = 1; step <= STEPS; step++) {
        TN_SCOPE;
        tn_tensor *x = make_points(&data, BATCH);
        tn_backward(tn_mse(tn_call(&net, x), wanted_output(x), TN_MEAN));
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (step % k == 0 || step == STEPS) {
            a.drift = 0.0;
            tn_module_each(&net, (tn_walk){0}, average_weights, &a);
        }
        if (step % (STEPS / 4) == 0) {
            double loss = test_loss(&net, world);
            double drift = sqrt(tn_group_mean(world, a.drift, 1));
            if (speaks) {
                printf("average every %3d  step %3d  test loss %.5f  drift before it %.4f\n", k,
                       step, loss, drift);
            }
        }
    }
    if (speaks) {
        printf("average every %3d: each of %d rank%s has sent %.0f kB\n", k, tn_group_size(world),
               tn_group_size(world) == 1 ? "" : "s", (double)a.bytes / 1000.0);
    }
    tn_optim_free(opt);
    tn_module_finish(&net);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    int k = argc > 1 ? atoi(argv[1]) : 16;
    if (k < 1) {
        fprintf(stderr, "usage: %s [steps between two averages]\n", argv[0]);
        return 2;
    }
    tn_group *world = tn_dist_init(tn_dist_defaults()); /* one rank if nothing is set */
    train_rank(world, 1);
    train_rank(world, k);
    tn_dist_finish();
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
