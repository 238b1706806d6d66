/* Saving and loading: weights, a whole run, and files that do not fit.
 *
 *     06_save_load [FOLDER]                  writes weights.safetensors and run.safetensors there
 *                                            (default: the current one)
 *
 * Weights are plain safetensors: other libraries can read them. A checkpoint has the same format
 * and everything else that a run needs to continue bit for bit: the optimiser, the place in the
 * data, the random generator. Both are written under a temporary name first, so an interrupted save
 * leaves the old file.
 */
#include <tern/tern.h>

#include <stdlib.h>

/* ---- A small run: learn to add two numbers --------------------------------------------------- */

typedef struct run {
    tn_linear model;
    tn_optim *optim;
    tn_loader *loader;
    int64_t step;
} run;

static void run_init(run *r, uint64_t seed) {
    TN_SCOPE;
    tn_seed(seed);
    tn_linear_init(&r->model, 2, 1, tn_linear_defaults());
    r->optim = tn_adamw(&r->model, tn_adamw_defaults());
    r->step = 0;

    tn_generator data = {.seed = 7}; /* the same data, whatever the seed of the weights */
    tn_tensor *x = tn_uniform_(tn_empty(TN_DIMS(100, 2), TN_F32), -1, 1, &data);
    tn_tensor *y = tn_sum(x, TN_DIMS(1), true);
    r->loader = tn_loader_new(tn_tensor_dataset(x, y), tn_random_sampler(3),
                              TN_WITH(tn_loader, .batch = 8, .epochs = 0)); /* endless */
}

static double run_steps(run *r, int count) {
    double last = 0;
    tn_batch b;
    for (int i = 0; i < count && tn_loader_next(r->loader, &b); i++) {
        TN_SCOPE;
        tn_tensor *loss = tn_mse(tn_call(&r->model, b.x), b.y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(r->optim);
        tn_optim_zero_grad(r->optim);
        last = tn_item(loss);
        r->step++;
    }
    return last;
}

static void run_finish(run *r) {
    tn_optim_free(r->optim);
    tn_loader_free(r->loader);
    tn_module_finish(&r->model);
}

/* What a checkpoint holds. Omitted members are not saved. */
static tn_checkpoint checkpoint_of(run *r) {
    return (tn_checkpoint){.model = &r->model,
                           .optim = r->optim,
                           .loader = r->loader,
                           .generator = tn_default_generator(),
                           .step = r->step};
}

/* ---- Three uses of files --------------------------------------------------------------------- */

static void save_weights(run *trained, const char *path) {
    tn_save(&trained->model, path);
    tn_linear other;
    tn_linear_init(&other, 2, 1, tn_linear_defaults());
    tn_load(&other, path);
    printf("weights: saved to %s; the loaded ones are %s\n", path,
           tn_equal(other.weight, trained->model.weight) ? "the same" : "different");
    tn_module_finish(&other);

    tn_safetensors *file = tn_safetensors_open(path); /* any safetensors file, tensor by tensor */
    for (int i = 0; i < tn_safetensors_count(file); i++) {
        TN_SCOPE;
        const char *name = tn_safetensors_name(file, i);
        printf("    %-8s %lld of %s: ", name,
               (long long)tn_dims_count(tn_safetensors_shape(file, name)),
               tn_safetensors_dtype(file, name));
        tn_print(tn_safetensors_get(file, name));
    }
    tn_safetensors_close(file);
}

static void go_on(run *first, const char *path) {
    tn_checkpoint c = checkpoint_of(first);
    tn_checkpoint_save(&c, path);
    double undisturbed = run_steps(first, 30);

    run second;
    run_init(&second, 99); /* different weights, to be replaced */
    c = checkpoint_of(&second);
    tn_checkpoint_load(&c, path);
    second.step = c.step;
    double resumed = run_steps(&second, 30);
    printf("run: 30 steps after step %lld, loss %.9g undisturbed and %.9g resumed: %s\n",
           (long long)c.step, undisturbed, resumed,
           undisturbed == resumed ? "the same bits" : "different");
    run_finish(&second);
}

/* A failed load changes nothing. */
static void what_does_not_fit(const char *path) {
    tn_on_error(NULL); /* from here on errors are checked, not fatal */
    tn_linear wide;
    tn_linear_init(&wide, 3, 1, tn_linear_defaults());
    if (tn_load(&wide, path) != TN_OK) {
        printf("refused: %s\n", tn_error_message());
        tn_error_clear();
    }
    tn_module_finish(&wide);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    char weights_path[4096], run_path[4096];
    const char *folder = argc > 1 ? argv[1] : ".";
    snprintf(weights_path, sizeof(weights_path), "%s/weights.safetensors", folder);
    snprintf(run_path, sizeof(run_path), "%s/run.safetensors", folder);

    run r;
    run_init(&r, 1);
    run_steps(&r, 50);
    save_weights(&r, weights_path);
    go_on(&r, run_path);
    what_does_not_fit(weights_path);
    run_finish(&r);
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
