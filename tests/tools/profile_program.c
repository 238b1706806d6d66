/* Trains a small net on as many ranks as there are, for tests of what TERN_PROFILE shows.
 *
 *     profile_program STEPS        0: endless; prints "stepping" once it runs
 *     profile_program quiet        computes nothing
 *     profile_program FOLDER/      4 ranks that are threads, each a tn_run of 5 steps
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct net {
    tn_module base;
    tn_linear fc1, fc2;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *m = (net *)self;
    return tn_call(&m->fc2, tn_gelu(tn_call(&m->fc1, x)));
}

static void net_init(net *m) {
    tn_module_init(m, "net", net_forward);
    tn_linear_init(&m->fc1, 16, 32, tn_linear_defaults());
    tn_linear_init(&m->fc2, 32, 4, tn_linear_defaults());
    tn_module_add(m, "fc1", &m->fc1);
    tn_module_add(m, "fc2", &m->fc2);
}

static void train_step(net *m, tn_optim *opt) {
    TN_SCOPE;
    tn_tensor *x = tn_randn(TN_DIMS(8, 16), TN_F32), *y = tn_zeros(TN_DIMS(8), TN_I64);
    tn_backward(tn_cross_entropy(tn_call(m, x), y, TN_MEAN));
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
}

static void train_as_rank(tn_group *world, void *out) {
    tn_set_threads(1);
    net m;
    net_init(&m);
    tn_ddp(&m, world, tn_ddp_defaults());
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_run *run = tn_run_new(world, TN_WITH(tn_run, .out = out, .steps = 5, .save_every = 5),
                             (tn_checkpoint){.model = &m, .optim = opt});
    while (tn_run_next(run)) {
        train_step(&m, opt);
    }
    tn_run_end(run);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc != 2 || strcmp(argv[1], "quiet") == 0) { return argc != 2; }
    if (strchr(argv[1], '/')) { return tn_local_run(4, train_as_rank, argv[1]) != TN_OK; }
    long steps = strtol(argv[1], NULL, 10);
    tn_group *world = tn_dist_init(tn_dist_defaults());
    tn_set_threads(1);
    net m;
    net_init(&m);
    tn_ddp(&m, world, tn_ddp_defaults());
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    for (long step = 0; steps == 0 || step < steps; step++) {
        TN_PROFILE_REGION("train");
        train_step(&m, opt);
        if (step == 2) {
            puts("stepping");
            fflush(stdout);
        }
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_dist_finish();
    return 0;
}
