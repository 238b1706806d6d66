/* What this processor computes in registers, in GFLOP/s: f32 multiply-adds, pairs of bf16
 * (vdpbf16ps) and tiles of bf16 (tdpbf16ps), where it has them. machine levels: the levels of
 * Tern's kernels that it runs.
 */
#include "backends/backend.h"
#include "bench/bench.h"
#include "bench/registers.h"

#include <tern/sys/backend.h>

#include <math.h>
#include <omp.h>

#if defined(__x86_64__)
#define TN_CPU_LEVEL 4 /* the processor's own tiles, not their twin */
#include "backends/cpu/tiles.h"
#include <immintrin.h>

__attribute__((target("avx512bf16,avx512f"), noinline)) static float run_pairs(int64_t n,
                                                                               double *flops) {
    __m512 sum[12];
    __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
    for (int i = 0; i < 12; i++) {
        sum[i] = _mm512_set1_ps((float)i);
    }
    for (int64_t r = 0; r < n; r++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) {
            sum[i] = _mm512_dpbf16_ps(sum[i], one, one);
        }
    }
    float all = 0;
    for (int i = 0; i < 12; i++) {
        all += sum[i][0];
    }
    *flops = (double)n * 12 * 64;
    return all;
}

static float run_tiles(int64_t n, double *flops) {
    tile_configure();
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    tile_zero(4);
    tile_zero(5);
    for (int64_t r = 0; r < n; r++) {
        tile_multiply(0, 4, 5);
        tile_multiply(1, 4, 5);
        tile_multiply(2, 4, 5);
        tile_multiply(3, 4, 5);
    }
    tile_release();
    *flops = (double)n * 4 * 2 * TILE_SIDE * TILE_SIDE * TILE_K;
    return 0;
}
#endif

/* The best of some rounds. */
static double measure_rate(float (*run)(int64_t n, double *flops), int threads) {
    double best = 0;
    float sink = 0;
    for (int round = 0; round < 5; round++) {
        double flops = 0, start = bench_step_now();
#pragma omp parallel num_threads(threads) reduction(+ : sink, flops)
        {
            double mine = 0;
            sink += run(2000000, &mine);
            flops += mine;
        }
        best = fmax(best, flops / (bench_step_now() - start) * 1e-9);
    }
    return isnan(sink) ? 0 : best;
}

static void tell_rate(const char *name, bool there, float (*run)(int64_t n, double *flops)) {
    int threads = tn_threads();
    if (!there) {
        printf("%-28s none\n", name);
        return;
    }
    printf("%-28s %10.0f %10.0f\n", name, measure_rate(run, 1), measure_rate(run, threads));
}

int main(int argc, char **argv) {
    char levels[TN__CPU_LEVELS];
    if (argc > 1 && strcmp(argv[1], "levels") == 0) {
        printf("%s\n", tn__cpu_levels(levels, sizeof(levels)));
        return 0;
    }
    printf("%-28s %10s %7d threads\n", "GFLOP/s in registers", "1 thread", tn_threads());
    tell_rate("f32", true, run_fma);
#if defined(__x86_64__)
    tell_rate("bf16, pairs (vdpbf16ps)", __builtin_cpu_supports("avx512bf16"), run_pairs);
    tell_rate("bf16, tiles (tdpbf16ps)", tn_backend_named("cpu-amx") != NULL, run_tiles);
#endif
    return 0;
}
