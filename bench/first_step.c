/* How soon after its start a process has trained one step of a small classifier: first_step START,
 * where START is the monotonic clock when the process was started. Prints the times in ms at main,
 * when the model is ready, and after the step.
 */
#include "bench/bench.h"

typedef struct classifier {
    tn_module base;
    tn_linear fc1, fc2;
} classifier;

static tn_tensor *classifier_forward(tn_module *self, tn_tensor *x) {
    classifier *net = (classifier *)self;
    return tn_call(&net->fc2, tn_relu(tn_call(&net->fc1, x)));
}

static void classifier_init(classifier *net) {
    tn_module_init(net, "classifier", classifier_forward);
    tn_linear_init(&net->fc1, 784, 256, tn_linear_defaults());
    tn_linear_init(&net->fc2, 256, 10, tn_linear_defaults());
    tn_module_add(net, "fc1", &net->fc1);
    tn_module_add(net, "fc2", &net->fc2);
}

int main(int argc, char **argv) {
    double started = argc == 2 ? atof(argv[1]) : bench_now(), in_main = bench_now();
    tn_on_error(tn_error_exit);
    classifier net;
    classifier_init(&net);
    tn_optim *opt = tn_adamw(&net, tn_adamw_defaults());
    double built = bench_now();
    {
        TN_SCOPE;
        tn_tensor *x = tn_rand(TN_DIMS(64, 784), TN_F32),
                  *y = tn_randint(0, 10, TN_DIMS(64), TN_I64);
        tn_tensor *loss = tn_cross_entropy(tn_call(&net, x), y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    double stepped = bench_now();
    printf("%.3f %.3f %.3f\n", (in_main - started) * 1e3, (built - started) * 1e3,
           (stepped - started) * 1e3);
    tn_optim_free(opt);
    tn_module_finish(&net);
    return 0;
}
