/* Training steps of ResNet-18 on images of CIFAR-10's shape: resnet FOLDER [WIDTH]
 *
 * The model is that of examples/15_resnet.c, at the paper's width of 64; 32 images, AdamW. The
 * initial weights and the batch, which is always the same, go to the folder. peers/torch_resnet.py
 * is the same in PyTorch.
 */
#include "bench/bench.h"

int example_main(int argc, char **argv);
#define main example_main
#include "examples/15_resnet.c"
#undef main

typedef struct trainer {
    resnet net;
    tn_optim *opt;
    tn_tensor *x, *y;
} trainer;

static double train_step(void *user) {
    TN_SCOPE;
    trainer *t = user;
    tn_tensor *loss = tn_cross_entropy(tn_call(&t->net, t->x), t->y, TN_MEAN);
    tn_backward(loss);
    tn_optim_step(t->opt);
    tn_optim_zero_grad(t->opt);
    return tn_item(loss);
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: resnet FOLDER [WIDTH]   (run bench/resnet.py)\n");
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_seed(1337);
    static trainer t;
    resnet_init(&t.net, argc > 2 ? atoi(argv[2]) : 64, CLASSES);
    t.opt = tn_adamw(&t.net, tn_adamw_defaults());
    t.x = tn_randn(TN_DIMS(BATCH, 3, SIDE, SIDE), TN_F32);
    t.y = tn_randint(0, CLASSES, TN_DIMS(BATCH), TN_I64);
    bench_share(&t.net, argv[1], t.x, t.y);
    int status = bench_serve(train_step, &t);
    tn_optim_free(t.opt);
    tn_module_finish(&t.net);
    return status;
}
