/* A model in two halves, each on its own rank, that learns by calls.
 *
 *     tern run -n 2 26_rpc        rank 0 has the first half and the data, rank 1 the second half
 *     26_rpc                      one rank calls itself: the same losses
 *
 * Rank 1 registers a function that runs its half, and one that steps its optimiser. Rank 0 calls
 * the first like an operation: backward runs the other half on its rank. Rank 0 never sees the
 * weights of the second half, and rank 1 has no loop. A pipeline (tn_pipeline) computes on all
 * ranks at once; calls suit parts that are reached from several places, now and then, by name.
 */
#include <tern/tern.h>

#include <stdio.h>

enum { STEPS = 200, BATCH = 64 };

static const tn_option table[] = {{0}};
static const tn_values nothing = {0};

/* ---- On the owner of the second half --------------------------------------------------------- */

static tn_values run_half(tn_values in, void *half) {
    return TN_VALUES(tn_call(half, in.v[0]));
}

static tn_values step_half(tn_values in, void *opt) {
    (void)in;
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    return nothing;
}

static tn_values count_weights(tn_values in, void *half) {
    (void)in;
    return TN_VALUES(tn_scalar((double)tn_module_count(half), TN_I64));
}

/* ---- On the rank that trains ----------------------------------------------------------------- */

static void train_both(tn_rpc *rpc, int other, void *half) {
    tn_generator data = {.seed = 1};
    tn_optim *opt = tn_sgd(half, TN_WITH(tn_sgd, .lr = 0.1));
    tn_values there = tn_rpc_wait(tn_rpc_call(rpc, other, "count", nothing, 0));
    printf("%lld weights here, %.0f on rank %d\n", (long long)tn_module_count(half),
           tn_item(there.v[0]), other);
    for (int step = 1; step <= STEPS; step++) {
        TN_SCOPE;
        tn_tensor *x = tn_uniform_(tn_empty(TN_DIMS(BATCH, 2), TN_F32), -1, 1, &data);
        tn_tensor *wanted = tn_prod(x, TN_DIMS(1), true);
        tn_values h = TN_VALUES(tn_tanh(tn_call(half, x)));
        tn_values y = tn_rpc_forward(rpc, other, "half", h, 0);
        tn_tensor *loss = tn_mse(y.v[0], wanted, TN_MEAN);
        tn_backward(loss);                                        /* … through the other rank */
        tn_optim_step(opt);                                       /* the half that is here */
        tn_rpc_wait(tn_rpc_call(rpc, other, "step", nothing, 0)); /* the half that is there */
        tn_optim_zero_grad(opt);
        if (step % 50 == 0) { printf("step %3d  loss %.6f\n", step, tn_item(loss)); }
    }
    tn_optim_free(opt);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv,
                     "Trains a model whose second half is on another rank (tern run -n 2).", table);
    TN_SCOPE;
    tn_group *world = tn_dist_init(tn_dist_defaults());
    int rank = tn_group_rank(world), last = tn_group_size(world) - 1;
    tn_seed(26); /* both make both halves, and use one: the same weights for any number of ranks */
    void *first = tn_linear_new(2, 32);
    void *second = TN_SEQUENTIAL(tn_linear_new(32, 32), TN_FN(tn_tanh), tn_linear_new(32, 1));
    tn_optim *opt = tn_sgd(second, TN_WITH(tn_sgd, .lr = 0.1));
    tn_rpc *rpc = tn_rpc_new(world, tn_rpc_defaults());
    tn_rpc_register(rpc, "half", run_half, second);
    tn_rpc_register(rpc, "count", count_weights, second);
    tn_rpc_register(rpc, "step", step_half, opt);
    tn_rpc_start(rpc);
    if (rank == 0) { train_both(rpc, last, first); }
    tn_rpc_shutdown(rpc, 0); /* the others serve until rank 0 gets here */
    tn_rpc_free(rpc);
    tn_optim_free(opt);
    tn_module_free(first);
    tn_module_free(second);
    tn_dist_finish();
    return fflush(stdout) || ferror(stdout);
}
