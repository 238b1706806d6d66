/* The library's overhead: operations on one element, where the arithmetic is negligible. Prints
 * "name ns" lines; the peers' names are the same (peers/torch_overhead.py).
 */
#include "bench/bench.h"

enum { ROUNDS = 30, CALLS = 10000 };

static tn_tensor *a, *b;
static tn_function identity;

/* Each runs `n` times and releases what it makes. */
static void run_empty(int n) {
    for (int i = 0; i < n; i++) {
        tn_drop(tn_empty(TN_DIMS(1), TN_F32));
    }
}

static void run_scope(int n) {
    for (int i = 0; i < n; i++) {
        TN_SCOPE;
    }
}

static void run_add(int n) {
    TN_NO_GRAD;
    for (int i = 0; i < n; i++) {
        TN_SCOPE;
        tn_add(a, b);
    }
}

static void recorded_add(int n) {
    for (int i = 0; i < n; i++) {
        TN_SCOPE;
        tn_add(a, b);
    }
}

static void recorded_mul(int n) {
    for (int i = 0; i < n; i++) {
        TN_SCOPE;
        tn_mul(a, b);
    }
}

static void run_view(int n) {
    TN_NO_GRAD;
    for (int i = 0; i < n; i++) {
        TN_SCOPE;
        tn_reshape(a, TN_DIMS(1, 1));
    }
}

static void module_call(int n) {
    TN_NO_GRAD;
    for (int i = 0; i < n; i++) {
        TN_SCOPE;
        tn_call(&identity, a);
    }
}

/* A chain of `links` additions, and with `backward` their backward. */
static void run_chain(int n, int links, bool backward) {
    for (int i = 0; i < n; i += links) {
        TN_SCOPE;
        tn_tensor *x = a;
        for (int k = 0; k < links; k++) {
            x = tn_add(x, b);
        }
        if (backward) { tn_backward(x); }
    }
    tn_zero_grad(a);
}

static void forward_chain(int n) {
    run_chain(n, 100, false);
}

static void train_chain(int n) {
    run_chain(n, 100, true);
}

static tn_tensor *same_tensor(tn_tensor *x) {
    return x;
}

/* The best of some rounds, in ns per call: other work on the machine can only add to it. */
static double measure_ns(void (*f)(int n)) {
    double best = 1e9;
    f(CALLS / 10);
    for (int i = 0; i < ROUNDS; i++) {
        double start = bench_now();
        f(CALLS);
        double ns = (bench_now() - start) * 1e9 / CALLS;
        best = ns < best ? ns : best;
    }
    return best;
}

int main(void) {
    tn_on_error(tn_error_exit);
    a = tn_set_requires_grad(tn_ones(TN_DIMS(1), TN_F32), true);
    b = tn_ones(TN_DIMS(1), TN_F32);
    tn_function_init(&identity, "identity", same_tensor);
    const struct {
        const char *name;
        void (*f)(int n);
    } list[] = {
        {"scope", run_scope},           {"empty", run_empty}, {"view", run_view},
        {"module", module_call},        {"add", run_add},     {"recorded_add", recorded_add},
        {"recorded_mul", recorded_mul},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++) {
        printf("%s %.1f\n", list[i].name, measure_ns(list[i].f));
    }
    double there = measure_ns(forward_chain), both = measure_ns(train_chain);
    printf("backward_add %.1f\n", both - there);
    tn_module_finish(&identity);
    return 0;
}
