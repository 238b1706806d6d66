/* Data parallelism by hand, with threads: what tn_ddp does between processes.
 *
 * Each thread is a rank. It has its own model, its own share of every batch, and its own gradients.
 * Then all gradients are averaged over the ranks, and every rank takes the same step. So four ranks
 * do the same as one with the whole batch: the losses are the same up to rounding, and the models
 * of the ranks stay equal to the last bit.
 *
 * 07_ddp.c does the same with processes, with less waiting, and with no change to the loop.
 */
#include <tern/tern.h>

#include <stdio.h>

enum { BATCH = 64, STEPS = 300, MOST = 16 };

/* y = sin(3 a) b, for points (a, b) in a square. The same on every rank, since it depends only on
 * the step. */
static tn_tensor *make_points(int64_t step) {
    tn_generator g = {.seed = 1, .stream = (uint64_t)step};
    return tn_uniform_(tn_empty(TN_DIMS(BATCH, 2), TN_F32), -1.0, 1.0, &g);
}

static tn_tensor *wanted_output(tn_tensor *x) {
    tn_tensor *a = tn_slice(x, 1, 0, 1, 1), *b = tn_slice(x, 1, 1, 2, 1);
    return tn_mul(tn_sin(tn_mul_scalar(a, 3.0)), b);
}

/* ---- The gradients of all ranks -------------------------------------------------------------- */

typedef struct {
    tn_group *world;
    tn_work *works[MOST]; /* in flight */
    int n;
} journey;

static bool send_gradient(const tn_entry *entry, void *user) {
    journey *j = user;
    j->works[j->n++] = tn_all_reduce(j->world, tn_grad_of(*entry->field), TN_MEAN);
    return j->n < MOST;
}

/* Averages every gradient of the model over the ranks: sends all at once, then waits for all. */
static void average_gradients(void *model, tn_group *world) {
    journey j = {.world = world};
    tn_module_each(model, (tn_walk){0}, send_gradient, &j);
    for (int i = 0; i < j.n; i++) {
        tn_work_wait(j.works[i], 0);
    }
}

/* Counts the parameters that differ between ranks. */
static bool compare_weights(const tn_entry *entry, void *user) {
    journey *j = user;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *low = tn_copy(*entry->field), *high = tn_copy(*entry->field);
    tn_work_wait(tn_all_reduce(j->world, low, TN_MIN), 0);
    tn_work_wait(tn_all_reduce(j->world, high, TN_MAX), 0);
    j->n += tn_item(tn_sum_all(tn_sub(high, low))) != 0.0;
    return true;
}

/* ---- What every rank does -------------------------------------------------------------------- */

static void train_rank(tn_group *world, void *user) {
    int rank = tn_group_rank(world), ranks = tn_group_size(world);
    double *losses = user; /* rank 0's results, for the main program */
    tn_seed(3);            /* the same initial weights on all ranks */
    tn_sequential *net = TN_SEQUENTIAL(tn_linear_new(2, 64), TN_FN(tn_tanh), tn_linear_new(64, 1));
    tn_optim *opt = tn_adamw(net, TN_WITH(tn_adamw, .lr = 1e-2));

    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        int share = BATCH / ranks; /* examples of this rank */
        tn_tensor *x = tn_slice(make_points(step), 0, rank * share, (rank + 1) * share, 1);
        tn_tensor *loss = tn_mse(tn_call(net, x), wanted_output(x), TN_MEAN);
        tn_backward(loss);
        average_gradients(net, world);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        double mean = tn_group_mean(world, tn_item(loss), 1); /* of the whole batch */
        if (rank == 0 && (step + 1) % (STEPS / 3) == 0) {
            losses[(step + 1) / (STEPS / 3) - 1] = mean;
        }
    }

    journey different = {.world = world};
    tn_module_each(net, (tn_walk){0}, compare_weights, &different);
    if (rank == 0) { losses[3] = different.n; }
    tn_optim_free(opt);
    tn_module_free(net);
}

int main(void) {
    tn_on_error(tn_error_exit);
    tn_set_threads(1); /* the ranks are the threads */
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        double told[4] = {0};
        tn_local_run(ranks, train_rank, told);
        printf("ranks %d  loss %.6f %.6f %.6f  parameters that differ between ranks: %.0f\n", ranks,
               told[0], told[1], told[2], told[3]);
    }
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
