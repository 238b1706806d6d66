/* Training on several processes: the program for one, plus three lines.
 *
 *     07_ddp                     one process
 *     tern run -n 2 07_ddp       two on this host: the same batches, shared between them,
 *                                and the same losses
 *
 * Each process (rank) has the whole model and half of every batch. tn_ddp adds hooks to the model:
 * after a backward all ranks have the same gradients, so their weights stay the same, and the loop
 * below does not change. Each of the ten classes is points around two centres, so no straight line
 * separates two classes.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>

enum { CLASSES = 10, WIDTH = 32, TRAIN = 4096, TEST = 1000, BATCH = 64, EPOCHS = 5 };

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct {
    tn_module base; /* comes first */
    tn_linear *fc1, *fc2;
} mlp;

static tn_tensor *mlp_forward(tn_module *self, tn_tensor *x) {
    mlp *net = (mlp *)self;
    return tn_call(net->fc2, tn_relu(tn_call(net->fc1, x)));
}

static void mlp_init(mlp *net, int64_t in, int64_t hidden, int64_t out) {
    tn_module_init(net, "mlp", mlp_forward);
    TN_OWN(net, fc1, tn_linear_new(in, hidden));
    TN_OWN(net, fc2, tn_linear_new(hidden, out));
}

/* ---- The data -------------------------------------------------------------------------------- */

/* Example i: a point around one of the two centres of class i % CLASSES. The same on every rank,
 * since it is a function of i alone. */
static tn_status get_point(tn_dataset *self, tn_example e, void *x, void *y) {
    (void)self;
    tn_generator noise = {.seed = 1, .stream = (uint64_t)e.index};
    int64_t label = e.index % CLASSES, centre = label + CLASSES * tn_random_below(&noise, 2);
    tn_generator place = {.seed = 2, .stream = (uint64_t)centre};
    for (int k = 0; k < WIDTH; k++) {
        double far = tn_random_uniform(&place) - 0.5, near = tn_random_uniform(&noise) - 0.5;
        ((float *)x)[k] = (float)(2 * far + 2.5 * near);
    }
    *(int64_t *)y = label;
    return TN_OK;
}

static tn_dataset make_points(int64_t size) {
    return (tn_dataset){.kind = "points",
                        .size = size,
                        .x_dims = TN_DIMS(WIDTH),
                        .y_dims = TN_DIMS(),
                        .x_dtype = TN_F32,
                        .y_dtype = TN_I64,
                        .get = get_point};
}

/* This rank's share of `order`. */
static tn_loader *open_loader(tn_dataset *d, tn_group *world, tn_sampler order, int64_t epochs) {
    return tn_loader_new(
        d, tn_distributed_sampler(world, order, false),
        TN_WITH(tn_loader, .batch = BATCH / tn_group_size(world), .epochs = epochs));
}

/* ---- Testing --------------------------------------------------------------------------------- */

/* The accuracy on all test points. Each rank counts in its part; tn_group_mean divides the sum of
 * the correct ones by the sum of all. Points that pad the last part are not valid and are not
 * counted. */
static double mlp_accuracy(mlp *net, tn_group *world, tn_dataset *test) {
    TN_NO_GRAD;
    tn_loader *loader = open_loader(test, world, tn_sequential_sampler(), 1);
    double right = 0, count = 0;
    tn_batch b;
    while (tn_loader_next(loader, &b)) {
        TN_SCOPE;
        tn_tensor *hit = tn_eq(tn_argmax(tn_call(net, b.x), 1, false), b.y);
        tn_tensor *real = b.valid ? b.valid : tn_ones_like(hit);
        right += tn_item(tn_sum_all(tn_logical_and(real, hit)));
        count += tn_item(tn_sum_all(real));
    }
    tn_loader_free(loader);
    return tn_group_mean(world, right, count);
}

/* ---- Training -------------------------------------------------------------------------------- */

int main(void) {
    tn_on_error(tn_error_exit);
    tn_group *world = tn_dist_init(tn_dist_defaults()); /* one rank if nothing is set */
    tn_seed(7);
    mlp net;
    mlp_init(&net, WIDTH, 128, CLASSES);
    tn_ddp(&net, world, tn_ddp_defaults()); /* before the optimiser is made */

    tn_optim *opt = tn_adamw(&net, TN_WITH(tn_adamw, .lr = 3e-3));
    tn_dataset train = make_points(TRAIN), test = make_points(TEST);
    tn_loader *loader = open_loader(&train, world, tn_random_sampler(7), EPOCHS);
    tn_batch b;
    for (int64_t step = 0; tn_loader_next(loader, &b); step++) {
        TN_SCOPE;
        tn_tensor *loss = tn_cross_entropy(tn_call(&net, b.x), b.y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (step % 40 == 0) {
            double mean = tn_group_mean(world, tn_item(loss), 1); /* every rank calls it */
            if (tn_group_rank(world) == 0) { printf("step %3d  loss %.4f\n", (int)step, mean); }
        }
    }
    double right = mlp_accuracy(&net, world, &test);
    if (tn_group_rank(world) == 0) {
        int ranks = tn_group_size(world);
        printf("%d rank%s: %.1f %% of the test points are correct\n", ranks, ranks == 1 ? "" : "s",
               100 * right);
    }
    tn_loader_free(loader);
    tn_optim_free(opt);
    tn_module_finish(&net);
    tn_dist_finish();
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
