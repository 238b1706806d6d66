/* A perceptron that learns a given function, on ranks that are threads: with whole gradients, or
 * with those of PowerSGD. */
#ifndef TERN_TESTS_POWERSGD_TRAIN_H
#define TERN_TESTS_POWERSGD_TRAIN_H

#include <tern/tern.h>

#include <math.h>

enum { POWER_IN = 64, POWER_HIDDEN = 256, POWER_OUT = 16, POWER_STEPS = 200, POWER_RANKS = 2 };

typedef struct power_net {
    tn_module base;
    tn_linear in, middle, out;
} power_net;

/* tensors: (steps, ranks, B, IN) and (steps, ranks, B, OUT); the loss is that of the last steps */
typedef struct power_run {
    tn_tensor *x, *y;
    const char *weights; /* a file for tn_load; NULL: seeded */
    bool compressed;
    tn_powersgd_options options;
    double loss; /* results: the mean of the last 20 steps, of all ranks */
    int64_t sent;
} power_run;

static inline tn_tensor *power_forward(tn_module *self, tn_tensor *x) {
    power_net *m = (power_net *)self;
    x = tn_tanh(tn_call(&m->in, x));
    return tn_call(&m->out, tn_tanh(tn_call(&m->middle, x)));
}

static inline void power_init(power_net *m) {
    tn_module_init(m, "power", power_forward);
    tn_linear_init(&m->in, POWER_IN, POWER_HIDDEN, tn_linear_defaults());
    tn_linear_init(&m->middle, POWER_HIDDEN, POWER_HIDDEN, tn_linear_defaults());
    tn_linear_init(&m->out, POWER_HIDDEN, POWER_OUT, tn_linear_defaults());
    TN_ADD(m, in);
    TN_ADD(m, middle);
    TN_ADD(m, out);
}

static inline tn_tensor *power_batch(tn_tensor *data, int64_t step, int rank) {
    return tn_select(tn_select(data, 0, step), 0, rank);
}

static inline void power_rank(tn_group *g, void *user) {
    power_run *run = user;
    power_net m;
    tn_seed(3);
    power_init(&m);
    if (run->weights) {
        tn_load(&m, run->weights);
    }
    tn_ddp_state *ddp = tn_ddp(&m, g, tn_ddp_defaults());
    if (run->compressed) {
        tn_ddp_powersgd(ddp, run->options);
    }
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.05, .momentum = 0.9));
    double losses = 0.0;
    for (int64_t step = 0; step < POWER_STEPS && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        tn_tensor *y = tn_call(&m, power_batch(run->x, step, tn_group_rank(g)));
        tn_tensor *loss = tn_mse(y, power_batch(run->y, step, tn_group_rank(g)), TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        losses += step >= POWER_STEPS - 20 ? tn_item(loss) : 0.0;
    }
    double mean = tn_group_mean(g, losses, 20);
    if (tn_group_rank(g) == 0) {
        run->loss = mean;
        run->sent = tn_ddp_statistics(ddp).sent;
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
}

#endif
