/* Trains a small net on as many ranks as there are, for tests of what TERN_PROFILE shows.
 *
 *     profile_program STEPS        0: without end; says "stepping" when it is under way
 *     profile_program quiet        computes nothing
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

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc != 2 || strcmp(argv[1], "quiet") == 0) {
        return argc != 2;
    }
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
