/* Matrix products of GPT-2's shapes, forward and for both gradients, small ones, and those of a few
 * rows. Prints "name ms" lines; the peers' names are the same (peers/torch_products.py).
 *
 * products DTYPE: f32 or bf16. OMP_NUM_THREADS chooses the threads, TERN_CPU the level.
 */
#include "bench/bench.h"

#include <math.h>

static double best_ms(tn_tensor *a, tn_tensor *b) {
    double best = INFINITY, begin = bench_now();
    for (int i = 0; i < 5 || (i < 200 && bench_now() < begin + 0.1); i++) {
        TN_SCOPE;
        double start = bench_step_now();
        tn_matmul(a, b);
        best = fmin(best, (bench_step_now() - start) * 1e3);
    }
    return best;
}

/* y (m, n) = x (m, k) w (n, k)^T; dx = y w; dw = y^T x. */
static void measure_layer(tn_dtype dtype, int64_t m, int64_t n, int64_t k, bool forward_alone) {
    TN_SCOPE;
    tn_tensor *x = tn_cast(tn_randn(TN_DIMS(m, k), TN_F32), dtype),
              *w = tn_cast(tn_randn(TN_DIMS(n, k), TN_F32), dtype),
              *y = tn_cast(tn_randn(TN_DIMS(m, n), TN_F32), dtype);
    char name[64];
    snprintf(name, sizeof(name), "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
    printf("%s_forward %.5f\n", name, best_ms(x, tn_transpose(w, 0, 1)));
    if (!forward_alone) {
        printf("%s_input %.5f\n", name, best_ms(y, w));
        printf("%s_weight %.5f\n", name, best_ms(tn_transpose(y, 0, 1), x));
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const int64_t layers[][3] = {
        {256, 2304, 768}, {256, 768, 3072}, {1024, 3072, 768}, {1024, 768, 3072}};
    static const int64_t sides[] = {64, 128}, rows[] = {1, 2, 3, 4, 8, 16, 32};
    tn_on_error(tn_error_exit);
    tn_dtype dtype = argc > 1 && strcmp(argv[1], "bf16") == 0 ? TN_BF16 : TN_F32;
    TN_NO_GRAD;
    for (size_t i = 0; i < sizeof(layers) / sizeof(*layers); i++) {
        measure_layer(dtype, layers[i][0], layers[i][1], layers[i][2], false);
    }
    for (size_t i = 0; i < sizeof(sides) / sizeof(*sides); i++) {
        measure_layer(dtype, sides[i], sides[i], sides[i], true);
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        measure_layer(dtype, rows[i], 2304, 768, true);
    }
    return 0;
}
