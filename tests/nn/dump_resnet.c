/* Writes what the ResNet of examples/15_resnet.c computes, for test_resnet.py:  dump_resnet FILE
 *
 * start/p.NAME and start/b.NAME, then x, label, y, loss and g.NAME of the first step, and
 * steps/losses of a few steps of SGD; end/b.NAME: the running statistics.
 */
#include "tests/support/dump.h"

int example_main(int argc, char **argv);
#define main example_main
#include "examples/15_resnet.c"
#undef main

enum { STEPS = 5, PICTURES = 4 };

static bool add_state(const tn_entry *entry, void *user) {
    add_tensor(user, entry->buffer ? "b." : "p.", entry->path, *entry->field);
    return true;
}

static void add_all(const char *name, resnet *net) {
    tn_module_each(net, (tn_walk){.buffers = true}, add_state, (void *)name);
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    resnet net;
    resnet_init(&net, 8, CLASSES);
    add_all("start", &net);
    tn_tensor *x = tn_randn(TN_DIMS(PICTURES, 3, SIDE, SIDE), TN_F32);
    tn_tensor *label = tn_randint(0, CLASSES, TN_DIMS(PICTURES), TN_I64);
    add_tensor("first", "x", "", x);
    add_tensor("first", "label", "", label);
    tn_sgd_options options = TN_WITH(tn_sgd, .lr = 0.02, .momentum = 0.9);
    tn_optim *opt = tn_sgd(&net, options);
    float losses[STEPS];
    for (int i = 0; i < STEPS; i++) {
        TN_SCOPE;
        tn_tensor *y = tn_call(&net, x), *loss = tn_cross_entropy(y, label, TN_MEAN);
        tn_backward(loss);
        losses[i] = (float)tn_item(loss);
        if (i == 0) {
            add_tensor("first", "y", "", y);
            tn_module_each(&net, (tn_walk){0}, add_gradient, (void *)"first");
        }
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    add_tensor("steps", "losses", "", TN_FROM(losses, TN_DIMS(STEPS), TN_F32));
    add_all("end", &net);
    tn_optim_free(opt);
    tn_module_finish(&net);
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
