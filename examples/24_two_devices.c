/* One process that trains on several devices: a block of the model on each of two, or a copy of the
 * model on each.
 *
 *     24_two_devices                                       the CPU in the place of both
 *     24_two_devices --devices cuda:0,cuda:1
 *     24_two_devices --devices cuda:0,cuda:1 --copies
 *
 * Blocks on two devices train a model that does not fit on one. They take turns: the second block
 * waits for the first. Nothing else in the program changes: gradients return the same way, and the
 * optimiser steps each block where it is. Copies are data parallelism, with a thread for each
 * device. Both end with the loss of the same model on one device.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <string.h>

enum { BATCH = 64, STEPS = 150, MOST = 8 };

static const char *names = "cpu,cpu";
static bool copies;
static const tn_option table[] = {
    {"devices", 'd', "A,B", "cpu, or cuda:N for each; with --copies up to 8", .text = &names},
    {"copies", 'c', .help = "a copy of the model on each device", .flag = &copies},
    {0},
};

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct {
    tn_module base;
    tn_sequential *first, *second;
    tn_device there; /* the second block's */
} two_blocks;

static tn_tensor *two_forward(tn_module *self, tn_tensor *x) {
    two_blocks *m = (two_blocks *)self;
    tn_tensor *h = tn_call(m->first, x);
    return tn_call(m->second, tn_to(h, m->there)); /* its gradient returns to h's device */
}

static void two_init(two_blocks *m, tn_device here, tn_device there) {
    tn_module_init(m, "two_blocks", two_forward);
    TN_OWN(m, first, TN_SEQUENTIAL(tn_linear_new(2, 64), TN_FN(tn_tanh)));
    TN_OWN(m, second, TN_SEQUENTIAL(tn_linear_new(64, 64), TN_FN(tn_tanh), tn_linear_new(64, 1)));
    m->there = there;
    tn_module_to(m->first, here); /* before the optimiser is made */
    tn_module_to(m->second, there);
}

/* ---- Training -------------------------------------------------------------------------------- */

/* This rank's part of the batch's mean: points (a, b), and what to learn, sin(3 a) b. Shares differ
 * by one example where the ranks do not divide the batch. */
static tn_tensor *share_loss(two_blocks *net, int step, tn_group *world) {
    tn_generator g = {.seed = 1, .stream = (uint64_t)step};
    int rank = tn_group_rank(world), ranks = tn_group_size(world);
    int from = BATCH * rank / ranks, to = BATCH * (rank + 1) / ranks;
    tn_tensor *all = tn_uniform_(tn_empty(TN_DIMS(BATCH, 2), TN_F32), -1.0, 1.0, &g);
    tn_tensor *x = tn_slice(all, 0, from, to, 1);
    tn_tensor *a = tn_slice(x, 1, 0, 1, 1), *b = tn_slice(x, 1, 1, 2, 1);
    tn_tensor *y = tn_mul(tn_sin(tn_mul_scalar(a, 3.0)), b);
    return tn_div_scalar(tn_mse(tn_call(net, x), tn_to(y, net->there), TN_SUM), BATCH);
}

/* The last loss. With a world this is one of its ranks. */
static double train_on(tn_device here, tn_device there, tn_group *world) {
    double last = 0;
    two_blocks net;
    tn_seed(3);
    tn_set_default_device(here); /* of this thread: for the data */
    two_init(&net, here, there);
    if (world) { tn_ddp(&net, world, TN_WITH(tn_ddp, .sum = true)); /* of parts of one mean */ }
    tn_optim *opt = tn_adamw(&net, TN_WITH(tn_adamw, .lr = 1e-2));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *loss = share_loss(&net, step, world);
        tn_backward(loss);
        tn_optim_clip(opt, 1.0);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        last = tn_group_mean(world, tn_item(loss), 1.0 / tn_group_size(world)); /* the sum */
    }
    tn_optim_free(opt);
    tn_module_finish(&net);
    return last;
}

static void train_copy(tn_group *world, void *last) {
    double loss = train_on(tn_default_device(), tn_default_device(), world);
    if (tn_group_rank(world) == 0) { *(double *)last = loss; }
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv, "Trains on several devices from one process.", table);
    tn_device devices[MOST];
    char text[128], *rest = text;
    int n = 0;
    snprintf(text, sizeof(text), "%s", names);
    for (char *name; n < MOST && (name = strsep(&rest, ",")); n++) {
        devices[n] = tn_device_named(name);
    }
    if (rest || (!copies && n > 2)) {
        tn_options_refuse("--devices %s: at most %d devices", names, copies ? MOST : 2);
    }
    double one = train_on(devices[0], devices[0], NULL), more;
    if (copies) {
        tn_local_run_on(devices, n, train_copy, &more);
    } else {
        more = train_on(devices[0], devices[n - 1], NULL);
    }
    printf("one device: loss %.9f  %s: loss %.9f\n", one, copies ? "copies" : "two blocks", more);
    return fflush(stdout) || ferror(stdout);
}
