/* The CPU kernels against this machine's limits, measured in the same run and in turn with them:
 * for memory-bound kernels, a plain loop over as many bytes (a = b + s c if the kernel writes other
 * memory than it reads, a += b if it writes what it has read, a sum if it writes little); for
 * products, multiply-adds that stay in registers.
 *
 * kernels [CASE]: only rows whose name contains CASE. TERN_CPU caps the level of the CPU,
 * OMP_NUM_THREADS chooses the threads. With TERN_BENCH_TIME=cpu times are of the processor, which
 * other programs disturb less: with one thread only.
 */
#include "backends/attention.h"
#include "backends/cross_entropy.h"
#include "backends/norm.h"
#include "backends/rotary.h"
#include "backends/softmax.h"
#include "bench/bench.h"
#include "bench/registers.h"

#include <tern/sys/op.h>
#include <tern/sys/tensor.h>

#include <math.h>
#include <omp.h>

enum { ROUNDS = 12 };

static const tn_backend *kernels;
static tn_context *ctx;
static const char *wanted = "";
static double fma_limit; /* GFLOP/s on all threads */

/* ---- Limits ---------------------------------------------------------------------------------- */

#if defined(__x86_64__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default"), noinline))
#elif defined(__x86_64__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES __attribute__((noinline))
#endif

CLONES static void triad_part(float *restrict a, const float *restrict b, const float *restrict c,
                              int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        a[i] = b[i] + 0.5f * c[i];
    }
}
CLONES static void add_part(float *restrict a, const float *restrict b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        a[i] += b[i];
    }
}

CLONES static float sum_part(const float *a, int64_t n) {
    float lane[64] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i += 64) {
        for (int l = 0; l < 64; l++) {
            lane[l] += a[i + l];
        }
    }
    for (int l = 0; l < 64; l++) {
        sum += lane[l];
    }
    return sum;
}

typedef enum traffic { WRITES_OTHER, IN_PLACE, READS } traffic;

/* Bytes per second of one pass over arrays of `bytes` in total. */
static double memory_pass(float *a, int64_t bytes, traffic kind) {
    static const int element[] = {12, 8, 4}, moved[] = {12, 12, 4};
    int64_t n = bytes / element[kind] / 64 * 64;
    int threads = bytes > 200000 ? tn_threads() : 1;
    double start = bench_step_now();
    float sink = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sink)
    {
        int64_t from = n / 64 * omp_get_thread_num() / omp_get_num_threads() * 64;
        int64_t to = n / 64 * (omp_get_thread_num() + 1) / omp_get_num_threads() * 64;
        if (kind == READS) {
            sink += sum_part(a + from, to - from);
        } else if (kind == IN_PLACE) {
            add_part(a + from, a + n + from, to - from);
        } else {
            triad_part(a + from, a + n + from, a + 2 * n + from, to - from);
        }
    }
    double seconds = bench_step_now() - start;
    a[0] += sink * 0; /* so that the sums are needed */
    return (double)(n * moved[kind]) / seconds;
}

static void measure_fma(void) {
    const int64_t n = 2000000;
    float sink = 0;
    for (int round = 0; round < 5; round++) {
        double flops = 0, start = bench_step_now();
#pragma omp parallel num_threads(tn_threads()) reduction(+ : sink, flops)
        {
            double mine;
            sink += run_fma(n, &mine);
            flops += mine;
        }
        fma_limit = fmax(fma_limit, flops / (bench_step_now() - start) * 1e-9);
    }
    if (isnan(sink)) { printf("not a number\n"); }
}

/* ---- Rows of the table ----------------------------------------------------------------------- */

static tn_desc desc_of(const tn_tensor *t) {
    tn_desc d = {.data = tn_data_mut((tn_tensor *)t), .dtype = t->dtype, .ndim = t->dims.ndim};
    memcpy(d.size, t->dims.size, sizeof d.size);
    memcpy(d.stride, t->stride, sizeof d.stride);
    return d;
}
static tn_desc normal_desc(tn_dims dims) {
    return desc_of(tn_randn(dims, TN_F32));
}
static tn_desc turned_desc(tn_desc d, int a, int b) {
    int64_t size = d.size[a], stride = d.stride[a];
    d.size[a] = d.size[b];
    d.stride[a] = d.stride[b];
    d.size[b] = size;
    d.stride[b] = stride;
    return d;
}

typedef struct work {
    tn_desc x, y, z, w, b, s, t, label, dq, dk, dv;
    tn_attention_args attention;
    tn_cross_entropy_args loss;
    tn_optim_span span;
    int f;
} work;
typedef tn_status (*kernel)(work *w);

static bool is_skipped(const char *name) {
    return !strstr(name, wanted);
}

/* Best of ROUNDS, in turn with the limit; short calls are repeated. */
static double best_time(kernel k, work *w, void (*between)(void *), void *user) {
    double start = bench_step_now(), best = 1e9;
    k(w);
    int repeat = (int)fmin(1000, fmax(1, 0.002 / (bench_step_now() - start)));
    for (int round = 0; round < ROUNDS; round++) {
        start = bench_step_now();
        for (int i = 0; i < repeat; i++) {
            if (k(w) != TN_OK) { return NAN; }
        }
        best = fmin(best, (bench_step_now() - start) / repeat);
        if (between) { between(user); }
    }
    return best;
}

typedef struct pass {
    float *memory;
    int64_t bytes;
    traffic kind;
    double best;
} pass;
static void run_pass(void *user) {
    pass *p = user;
    int repeat = (int)fmax(1, 2e7 / (double)p->bytes);
    for (int i = 0; i < repeat; i++) {
        p->best = fmax(p->best, memory_pass(p->memory, p->bytes, p->kind));
    }
}

/* `bytes`: what the kernel must read and write once. `held`: the memory that it touches, which
 * determines the cache. */
static void memory_row(const char *name, kernel k, work *w, double bytes, double held,
                       traffic kind) {
    TN_SCOPE;
    pass p = {.bytes = (int64_t)held, .kind = kind};
    p.memory = tn_data_mut(tn_zeros(TN_DIMS((int64_t)held / 4 + 64), TN_F32));
    double seconds = best_time(k, w, run_pass, &p), rate = bytes / seconds * 1e-9,
           limit = p.best * 1e-9;
    printf("%-44s %9.1f us %8.1f GB/s    %8.1f  %5.0f %%\n", name, seconds * 1e6, rate, limit,
           100 * rate / limit);
}

static void flop_row(const char *name, kernel k, work *w, double flops) {
    double seconds = best_time(k, w, NULL, NULL), rate = flops / seconds * 1e-9;
    printf("%-44s %9.1f us %8.1f GFLOP/s %8.1f  %5.0f %%\n", name, seconds * 1e6, rate, fma_limit,
           100 * rate / fma_limit);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static tn_status k_unary(work *w) {
    return kernels->unary(ctx, (tn_unary)w->f, &w->y, &w->x, 2, 3);
}
static tn_status k_binary(work *w) {
    return kernels->binary(ctx, (tn_binary)w->f, &w->y, &w->x, &w->z);
}
static tn_status k_copy(work *w) {
    return kernels->copy(ctx, &w->y, &w->x);
}
static tn_status k_fill(work *w) {
    return kernels->fill(ctx, &w->y, 1);
}
static tn_status k_reduce(work *w) {
    return kernels->reduce(ctx, (tn_reduction)w->f, &w->y, &w->x);
}

/* A kernel of an operation, forward and backward. */
#define FORWARD(name, ...)  \
    tn_op_run(              \
        tn_op_named(#name), \
        &(tn_op_call){.op = tn_op_named(#name), .kernels = kernels, .ctx = ctx, __VA_ARGS__})
#define BACKWARD(name, ...) \
    tn_op_run_back(tn_op_named(#name), &(tn_op_back){.kernels = kernels, .ctx = ctx, __VA_ARGS__})

static const tn_softmax_args last_dim = {-1};
static const tn_norm_args usual_eps = {1e-5};

static tn_status k_softmax(work *w) {
    return FORWARD(softmax, .args = &last_dim, .x = {&w->x}, .y = {&w->y});
}
static tn_status k_softmax_backward(work *w) {
    return BACKWARD(softmax, .args = &last_dim, .dx = {&w->y}, .y = {&w->x}, .dy = {&w->z});
}
static tn_status k_layer_norm(work *w) {
    return FORWARD(layer_norm, .args = &usual_eps, .x = {&w->x, &w->w, &w->b},
                   .y = {&w->y, &w->s, &w->t});
}
static tn_status k_layer_norm_backward(work *w) {
    return BACKWARD(layer_norm, .args = &usual_eps, .dx = {&w->y, &w->dq, &w->dk}, .dy = {&w->z},
                    .x = {&w->x, &w->w}, .y = {NULL, &w->s, &w->t});
}
static tn_status k_loss(work *w) {
    return FORWARD(cross_entropy, .args = &w->loss, .x = {&w->x, &w->label},
                   .y = {&w->s, &w->t, &w->dq});
}
static tn_status k_loss_backward(work *w) {
    return BACKWARD(cross_entropy, .args = &w->loss, .dx = {&w->y}, .dy = {&w->s},
                    .x = {&w->x, &w->label}, .y = {NULL, &w->t, &w->dq});
}
static tn_status k_rotary(work *w) {
    static const tn_rotary_args args = {10000.0, 1.0, 1.0, 4.0, 8192, false};
    return FORWARD(rotary, .args = &args, .x = {&w->x, &w->label}, .y = {&w->y});
}
static tn_status k_attention(work *w) {
    return FORWARD(attention, .args = &w->attention, .x = {&w->x, &w->z, &w->w},
                   .y = {&w->y, &w->s});
}
static tn_status k_attention_backward(work *w) {
    return BACKWARD(attention, .args = &w->attention, .dx = {&w->dq, &w->dk, &w->dv}, .dy = {&w->b},
                    .x = {&w->x, &w->z, &w->w}, .y = {&w->y, &w->s});
}
static tn_status k_gather(work *w) {
    return kernels->gather_rows(ctx, &w->y, &w->x, &w->label);
}
static tn_status k_scatter(work *w) {
    return kernels->scatter_add_rows(ctx, &w->y, &w->label, &w->x);
}
static tn_status k_random(work *w) {
    return kernels->random(ctx, &w->y, (tn_random_kind)w->f, (tn_random_key){1, 2, 3, 0}, 0, 1);
}
static tn_status k_dropout(work *w) {
    return kernels->dropout(ctx, &w->y, &w->x, 0.1, (tn_random_key){1, 2, 3, 0});
}
static tn_status k_adam(work *w) {
    tn_step step = {TN_STEP_ADAM, 1e-4, 0.9, 0.999, 1e-8, 1, 0, 0.99999, 1, NULL};
    return kernels->step(ctx, &w->span, 1, &step);
}
static tn_status k_matmul(work *w) {
    return kernels->matmul(ctx, &w->y, &w->x, &w->z, 1, 0);
}
static tn_status k_linear(work *w) {
    return kernels->linear(ctx, &w->y, &w->x, &w->w, &w->b);
}
/* ---- Groups of rows -------------------------------------------------------------------------- */

static void elementwise_rows(void) {
    static const struct {
        const char *name;
        int f;
        bool binary;
    } rows[] = {{"relu", TN_RELU, false},
                {"exp", TN_EXP, false},
                {"gelu (tanh)", TN_GELU_TANH, false},
                {"gelu (erf)", TN_GELU_ERF, false},
                {"tanh", TN_TANH, false},
                {"add", TN_ADD, true},
                {"mul", TN_MUL, true},
                {"gelu (tanh) backward", TN_GELU_TANH_GRAD, true}};
    const int64_t n = 16384 * 1024;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s, 64 MiB", rows[i].name);
        if (is_skipped(name)) { continue; }
        TN_SCOPE;
        work w = {.x = normal_desc(TN_DIMS(n)), .y = normal_desc(TN_DIMS(n)), .f = rows[i].f};
        w.z = rows[i].binary ? normal_desc(TN_DIMS(n)) : w.x;
        double bytes = (double)n * 4 * (rows[i].binary ? 3 : 2);
        memory_row(name, rows[i].binary ? k_binary : k_unary, &w, bytes, bytes, WRITES_OTHER);
    }
    if (!is_skipped("add in place, bias row (16384, 1024)")) {
        TN_SCOPE;
        work w = {.x = normal_desc(TN_DIMS(16384, 1024)),
                  .z = normal_desc(TN_DIMS(1, 1024)),
                  .f = TN_ADD};
        w.y = w.x;
        w.z.size[0] = 16384;
        w.z.stride[0] = 0;
        memory_row("add in place, bias row (16384, 1024)", k_binary, &w, (double)n * 8,
                   (double)n * 8, IN_PLACE);
    }
}

static void copy_rows(void) {
    if (!is_skipped("copy, 64 MiB")) {
        TN_SCOPE;
        work w = {.x = normal_desc(TN_DIMS(4096, 4096)), .y = normal_desc(TN_DIMS(4096, 4096))};
        memory_row("copy, 64 MiB", k_copy, &w, 2.0 * 4096 * 4096 * 4, 2.0 * 4096 * 4096 * 4,
                   WRITES_OTHER);
    }
    if (!is_skipped("copy transposed (4096, 4096)")) {
        TN_SCOPE;
        work w = {.x = normal_desc(TN_DIMS(4096, 4096)), .y = normal_desc(TN_DIMS(4096, 4096))};
        w.x = turned_desc(w.x, 0, 1);
        memory_row("copy transposed (4096, 4096)", k_copy, &w, 2.0 * 4096 * 4096 * 4,
                   2.0 * 4096 * 4096 * 4, WRITES_OTHER);
    }
    for (int i = 0; i < 2; i++) {
        tn_dtype half = i ? TN_F16 : TN_BF16;
        if (!is_skipped(i ? "copy f32 to f16, 16M" : "copy f32 to bf16, 16M")) {
            TN_SCOPE;
            work w = {.x = normal_desc(TN_DIMS(4096, 4096)),
                      .y = desc_of(tn_zeros(TN_DIMS(4096, 4096), half))};
            memory_row(i ? "copy f32 to f16, 16M" : "copy f32 to bf16, 16M", k_copy, &w,
                       6.0 * 4096 * 4096, 6.0 * 4096 * 4096, WRITES_OTHER);
        }
    }
    if (!is_skipped("fill, 64 MiB")) {
        TN_SCOPE;
        work w = {.y = normal_desc(TN_DIMS(4096, 4096))};
        memory_row("fill, 64 MiB", k_fill, &w, 4.0 * 4096 * 4096, 2 * 4.0 * 4096 * 4096,
                   WRITES_OTHER);
    }
}

static void reduce_rows(void) {
    static const char *const names[] = {"sum of all (16384, 1024)", "sum over rows (16384, 1024)",
                                        "sum over columns (16384, 1024)",
                                        "sum of squares (16384, 1024)"};
    for (int i = 0; i < 4; i++) {
        if (is_skipped(names[i])) { continue; }
        TN_SCOPE;
        work w = {.x = normal_desc(TN_DIMS(16384, 1024)), .f = i == 3 ? TN_SUM_SQUARES : TN_SUM};
        w.y = normal_desc(TN_DIMS(i == 1 ? 16384 : 1, i == 2 ? 1024 : 1));
        memory_row(names[i], k_reduce, &w, 4.0 * 16384 * 1024, 4.0 * 16384 * 1024, READS);
    }
}

/* Results of few elements each, or few results: inner dimensions for which going row by row would
 * be slow. */
static void short_reduce_rows(void) {
    static const struct {
        const char *name;
        tn_dims x, y;
    } rows[] = {
        {"max of 2 x 2 windows (256, 64, 16, 2, 16, 2)",
         {6, {256, 64, 16, 2, 16, 2}},
         {6, {256, 64, 16, 1, 16, 1}}},
        {"max over rows (8388608, 2)", {2, {8388608, 2}}, {2, {8388608, 1}}},
        {"max over rows (5592405, 3)", {2, {5592405, 3}}, {2, {5592405, 1}}},
        {"max over rows (1677721, 10)", {2, {1677721, 10}}, {2, {1677721, 1}}},
        {"max over rows (262144, 64)", {2, {262144, 64}}, {2, {262144, 1}}},
        {"max over 7 x 7 (342391, 49)", {2, {342391, 49}}, {2, {342391, 1}}},
        {"max over the middle (1048576, 4, 4)", {3, {1048576, 4, 4}}, {3, {1048576, 1, 4}}},
        {"max over columns (4194304, 4)", {2, {4194304, 4}}, {2, {1, 4}}},
        {"max of two rows (2, 8388608)", {2, {2, 8388608}}, {2, {1, 8388608}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (is_skipped(rows[i].name)) { continue; }
        TN_SCOPE;
        work w = {.x = normal_desc(rows[i].x), .y = normal_desc(rows[i].y), .f = TN_MAX};
        double bytes = 4.0 * (double)(tn_dims_count(rows[i].x) + tn_dims_count(rows[i].y));
        memory_row(rows[i].name, k_reduce, &w, bytes, bytes, IN_PLACE);
    }
}

static void norm_rows(int64_t rows, int64_t c) {
    char name[64];
    double one = (double)(rows * c) * 4;
    TN_SCOPE;
    work w = {.x = normal_desc(TN_DIMS(rows, c)),
              .y = normal_desc(TN_DIMS(rows, c)),
              .z = normal_desc(TN_DIMS(rows, c)),
              .w = normal_desc(TN_DIMS(c)),
              .b = normal_desc(TN_DIMS(c)),
              .s = normal_desc(TN_DIMS(rows)),
              .t = normal_desc(TN_DIMS(rows)),
              .dq = normal_desc(TN_DIMS(c)),
              .dk = normal_desc(TN_DIMS(c))};
    snprintf(name, sizeof name, "layer_norm (%ld, %ld)", (long)rows, (long)c);
    if (!is_skipped(name)) { memory_row(name, k_layer_norm, &w, 2 * one, 2 * one, WRITES_OTHER); }
    snprintf(name, sizeof name, "layer_norm_backward (%ld, %ld)", (long)rows, (long)c);
    if (!is_skipped(name)) {
        memory_row(name, k_layer_norm_backward, &w, 3 * one, 3 * one, WRITES_OTHER);
    }
    snprintf(name, sizeof name, "softmax (%ld, %ld)", (long)rows, (long)c);
    if (!is_skipped(name)) { memory_row(name, k_softmax, &w, 2 * one, 2 * one, WRITES_OTHER); }
    snprintf(name, sizeof name, "softmax_backward (%ld, %ld)", (long)rows, (long)c);
    if (!is_skipped(name)) {
        memory_row(name, k_softmax_backward, &w, 3 * one, 3 * one, WRITES_OTHER);
    }
}

static void loss_rows(int64_t rows, int64_t c) {
    char name[64];
    double one = (double)(rows * c) * 4;
    TN_SCOPE;
    work w = {.x = normal_desc(TN_DIMS(rows, c)),
              .s = normal_desc(TN_DIMS(rows)),
              .t = normal_desc(TN_DIMS(rows)),
              .dq = normal_desc(TN_DIMS(rows)),
              .loss = {.ignore_index = -100}};
    w.label = desc_of(tn_randint(0, c, TN_DIMS(rows), TN_I64));
    snprintf(name, sizeof name, "cross_entropy (%ld, %ld)", (long)rows, (long)c);
    if (!is_skipped(name)) { memory_row(name, k_loss, &w, one, one, READS); }
    w.y = normal_desc(TN_DIMS(rows, c));
    snprintf(name, sizeof name, "cross_entropy_backward (%ld, %ld)", (long)rows, (long)c);
    if (!is_skipped(name)) {
        memory_row(name, k_loss_backward, &w, 2 * one, 2 * one, WRITES_OTHER);
    }
}

/* Queries of a batch as they come from a projection; all sequences have the same positions. */
static void rotary_row(void) {
    enum { B = 8, H = 12, T = 1024, D = 64 };
    if (is_skipped("rotary (8, 12, 1024, 64)")) { return; }
    TN_SCOPE;
    tn_desc positions = desc_of(tn_arange(0, T, 1, TN_I64));
    work w = {.x = turned_desc(normal_desc(TN_DIMS(B, T, H, D)), 1, 2),
              .y = turned_desc(normal_desc(TN_DIMS(B, T, H, D)), 1, 2),
              .label = {positions.data, TN_I64, 2, {B, T}, {0, 1}}};
    double bytes = 2.0 * B * H * T * D * 4;
    memory_row("rotary (8, 12, 1024, 64)", k_rotary, &w, bytes, bytes, WRITES_OTHER);
}

static void other_rows(void) {
    const int64_t n = 32 << 20;
    if (!is_skipped("adam, 32M parameters")) {
        TN_SCOPE;
        tn_desc p = normal_desc(TN_DIMS(n)), g = normal_desc(TN_DIMS(n)),
                m = desc_of(tn_zeros(TN_DIMS(n), TN_F32)),
                v = desc_of(tn_zeros(TN_DIMS(n), TN_F32));
        work w = {.span = {.param = p.data,
                           .param_dtype = TN_F32,
                           .grad = g.data,
                           .grad_dtype = TN_F32,
                           .state = {m.data, v.data},
                           .count = n}};
        memory_row("adam, 32M parameters", k_adam, &w, 28.0 * (double)n, 16.0 * (double)n,
                   IN_PLACE);
    }
    if (!is_skipped("dropout, 64 MiB")) {
        TN_SCOPE;
        work w = {.x = normal_desc(TN_DIMS(n / 2)), .y = normal_desc(TN_DIMS(n / 2))};
        memory_row("dropout, 64 MiB", k_dropout, &w, 4.0 * (double)n, 4.0 * (double)n,
                   WRITES_OTHER);
    }
    if (!is_skipped("uniform, 64 MiB")) {
        TN_SCOPE;
        work w = {.y = normal_desc(TN_DIMS(n / 2)), .f = TN_UNIFORM};
        memory_row("uniform, 64 MiB", k_random, &w, 2.0 * (double)n, 4.0 * (double)n, WRITES_OTHER);
    }
    if (!is_skipped("normal, 64 MiB")) {
        TN_SCOPE;
        work w = {.y = normal_desc(TN_DIMS(n / 2)), .f = TN_NORMAL};
        memory_row("normal, 64 MiB", k_random, &w, 2.0 * (double)n, 4.0 * (double)n, WRITES_OTHER);
    }
    TN_SCOPE;
    work w = {.x = normal_desc(TN_DIMS(50257, 768)),
              .y = normal_desc(TN_DIMS(4096, 768)),
              .label = desc_of(tn_randint(0, 50257, TN_DIMS(4096), TN_I64))};
    if (!is_skipped("gather_rows 4096 of (50257, 768)")) {
        memory_row("gather_rows 4096 of (50257, 768)", k_gather, &w, 2.0 * 4096 * 768 * 4,
                   2.0 * 4096 * 768 * 4, WRITES_OTHER);
    }
    if (!is_skipped("scatter_add_rows 4096 to (50257, 768)")) {
        tn_desc x = w.x;
        w.x = w.y;
        w.y = x;
        memory_row("scatter_add_rows 4096 to (50257, 768)", k_scatter, &w, 3.0 * 4096 * 768 * 4,
                   2.0 * 4096 * 768 * 4, IN_PLACE);
    }
}

/* A linear layer's three products: y = x w^T + b, dx = dy w, dw = dy^T x. */
static void product_rows(int64_t tokens, int64_t in, int64_t out) {
    char name[64];
    double flops = 2.0 * (double)tokens * (double)in * (double)out;
    TN_SCOPE;
    tn_desc x = normal_desc(TN_DIMS(tokens, in)), weight = normal_desc(TN_DIMS(out, in)),
            y = normal_desc(TN_DIMS(tokens, out));
    snprintf(name, sizeof name, "linear (%ld, %ld) to %ld", (long)tokens, (long)in, (long)out);
    if (!is_skipped(name)) {
        work w = {.x = x, .y = y, .w = weight, .b = normal_desc(TN_DIMS(out))};
        flop_row(name, k_linear, &w, flops);
    }
    tn_desc *all[] = {&x, &weight, &y};
    for (int i = 0; i < 3; i++) { /* as a batch of one */
        tn_desc *d = all[i];
        *d = (tn_desc){
            d->data, d->dtype, 3, {1, d->size[0], d->size[1]}, {0, d->stride[0], d->stride[1]}};
    }
    snprintf(name, sizeof name, "  its dx = dy w");
    if (!is_skipped("linear dx")) {
        work w = {.y = x, .x = y, .z = weight};
        flop_row(name, k_matmul, &w, flops);
    }
    snprintf(name, sizeof name, "  its dw = dy^T x");
    if (!is_skipped("linear dw")) {
        work w = {.y = weight, .x = turned_desc(y, 1, 2), .z = x};
        flop_row(name, k_matmul, &w, flops);
    }
}

static void batched_rows(int64_t n, int64_t m, int64_t k, int64_t p) {
    char name[64];
    snprintf(name, sizeof name, "matmul %ld x (%ld, %ld, %ld)", (long)n, (long)m, (long)k, (long)p);
    if (!is_skipped(name)) {
        TN_SCOPE;
        work w = {.y = normal_desc(TN_DIMS(n, m, p)),
                  .x = normal_desc(TN_DIMS(n, m, k)),
                  .z = normal_desc(TN_DIMS(n, k, p))};
        flop_row(name, k_matmul, &w, 2.0 * (double)(n * m * k * p));
    }
}

/* One of q, k, v in a (B, T, 3, H, D) tensor, as (B, H, T, D). */
static tn_desc part_of(tn_desc qkv, int which) {
    int64_t heads = qkv.size[3], width = qkv.size[4];
    return (tn_desc){(float *)qkv.data + which * heads * width,
                     TN_F32,
                     4,
                     {qkv.size[0], heads, qkv.size[1], width},
                     {qkv.stride[0], width, qkv.stride[1], 1}};
}

static void attention_rows(int64_t b, int64_t h, int64_t t, int64_t d) {
    char name[64];
    TN_SCOPE;
    tn_desc qkv = normal_desc(TN_DIMS(b, t, 3, h, d)), grad = normal_desc(TN_DIMS(b, t, 3, h, d));
    work w = {.x = part_of(qkv, 0),
              .z = part_of(qkv, 1),
              .w = part_of(qkv, 2),
              .dq = part_of(grad, 0),
              .dk = part_of(grad, 1),
              .dv = part_of(grad, 2)};
    w.y = turned_desc(normal_desc(TN_DIMS(b, t, h, d)), 1, 2);
    w.b = turned_desc(normal_desc(TN_DIMS(b, t, h, d)), 1, 2);
    w.s = normal_desc(TN_DIMS(b, h, t));
    w.attention = (tn_attention_args){.causal = true};
    double flops = 2.0 * (double)(b * h * t * (t + 1) / 2 * d);
    k_attention(&w);
    snprintf(name, sizeof name, "attention B=%ld H=%ld T=%ld D=%ld causal", (long)b, (long)h,
             (long)t, (long)d);
    if (!is_skipped(name)) { flop_row(name, k_attention, &w, 2 * flops); }
    snprintf(name, sizeof name, "  its backward");
    if (!is_skipped("attention_backward")) { flop_row(name, k_attention_backward, &w, 5 * flops); }
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    wanted = argc > 1 ? argv[1] : "";
    kernels = tn_backend_of((tn_device){TN_CPU, 0});
    ctx = tn_context_of((tn_device){TN_CPU, 0});
    measure_fma();
    printf("%s; %d threads\n%-44s %12s %16s %10s %7s\n", tn_build_info(), tn_threads(), "kernel",
           "time", "rate", "limit", "ratio");
    elementwise_rows();
    copy_rows();
    reduce_rows();
    short_reduce_rows();
    norm_rows(16384, 768);
    norm_rows(768, 128);
    loss_rows(1024, 50257);
    loss_rows(768, 65);
    rotary_row();
    other_rows();
    product_rows(768, 128, 384);
    product_rows(768, 128, 128);
    product_rows(768, 128, 512);
    product_rows(768, 512, 128);
    product_rows(768, 128, 65);
    product_rows(256, 768, 2304);
    product_rows(256, 3072, 768);
    product_rows(1024, 768, 3072);
    product_rows(1024, 768, 50257);
    product_rows(1, 768, 3072);
    batched_rows(48, 64, 32, 64);
    batched_rows(48, 256, 64, 256);
    batched_rows(1, 1024, 1024, 1024);
    attention_rows(12, 4, 64, 32);
    attention_rows(4, 12, 64, 64);
    attention_rows(4, 12, 256, 64);
    attention_rows(4, 12, 1024, 64);
    return 0;
}
