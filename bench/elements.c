/* Operations on a million f32. Prints "name ms" lines; the peers' names are the same
 * (peers/torch_elements.py).
 */
#include "bench/bench.h"

#include <math.h>

enum { CALLS = 15, COUNT = 1000000, SIDE = 1000 };

static tn_tensor *x, *square;
static tn_dropout dropout;

#define OPERATION(name, call)      \
    static void run_##name(void) { \
        (void)(call);              \
    }
OPERATION(exp, tn_exp(x))
OPERATION(sin, tn_sin(x))
OPERATION(cos, tn_cos(x))
OPERATION(tan, tn_tan(x))
OPERATION(tanh, tn_tanh(x))
OPERATION(sum, tn_sum_all(x))
OPERATION(argmax, tn_argmax(x, 0, false))
OPERATION(argmax_rows, tn_argmax(square, 1, false))
OPERATION(argmax_columns, tn_argmax(square, 0, false))
OPERATION(cumsum, tn_cumsum(x, 0))
OPERATION(argsort, tn_argsort(x, 0, false))
OPERATION(topk_50, tn_topk(x, 50, 0, true, NULL))
OPERATION(topk_1000, tn_topk(x, 1000, 0, true, NULL))
OPERATION(rand, tn_rand(TN_DIMS(COUNT), TN_F32))
OPERATION(randn, tn_randn(TN_DIMS(COUNT), TN_F32))
OPERATION(randperm, tn_randperm(COUNT))
OPERATION(dropout, tn_call(&dropout, x))

static double best_ms(void (*run)(void)) {
    double best = INFINITY;
    for (int i = 0; i < CALLS; i++) {
        TN_SCOPE;
        double start = bench_step_now();
        run();
        double ms = (bench_step_now() - start) * 1e3;
        best = ms < best ? ms : best;
    }
    return best;
}

int main(void) {
    tn_on_error(tn_error_exit);
    x = tn_randn(TN_DIMS(COUNT), TN_F32);
    square = tn_reshape(x, TN_DIMS(SIDE, SIDE));
    tn_dropout_init(&dropout, 0.1);
    static const struct {
        const char *name;
        void (*run)(void);
    } list[] = {
#define ROW(name) {#name, run_##name}
        ROW(exp),       ROW(sin),         ROW(cos),
        ROW(tan),       ROW(tanh),        ROW(sum),
        ROW(argmax),    ROW(argmax_rows), ROW(argmax_columns),
        ROW(cumsum),    ROW(argsort),     ROW(topk_50),
        ROW(topk_1000), ROW(rand),        ROW(randn),
        ROW(randperm),  ROW(dropout),
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++) {
        printf("%s %.4f\n", list[i].name, best_ms(list[i].run));
    }
    tn_module_finish(&dropout);
    return 0;
}
