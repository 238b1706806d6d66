/* Calls whose times decide how a GPU should compute: gpu_choices.py runs this with both sides of
 * each choice.
 *
 * gpu_choices [--small] CASE ...: prints "CASE MILLISECONDS BYTES" for each, the median of a few
 * rounds of queued calls; BYTES: what it must read and write, 0 where that says nothing. --small:
 * tiny shapes, to try the program. --list: the names.
 */
#include "backends/attention.h"
#include "bench/bench.h"

#include <tern/sys/op.h>
#include <tern/sys/tensor.h>

enum { ROUNDS = 5, OPERANDS = 9 };

static const tn_backend *kernels;
static tn_context *ctx;
static bool small;

/* Operands of a call, in a meaning of its own. */
typedef struct job {
    tn_desc d[OPERANDS];
    tn_tensor *x; /* instead, where a kernel is more than one call */
    tn_attention_args attention;
    tn_conv_args conv;
    double bytes;
} job;

typedef struct choice_case {
    const char *name;
    void (*make)(job *j, const int64_t *size);
    int64_t size[6], tiny[6];
    tn_status (*call)(job *j);
} choice_case;

static tn_desc randn_desc(tn_dims dims, tn_dtype dtype) {
    tn_tensor *t = tn_empty(dims, dtype);
    tn_normal_(t, 0, 0.5, NULL);
    return tn_desc_of(t);
}

static tn_desc empty_desc(tn_dims dims, tn_dtype dtype) {
    return tn_desc_of(tn_empty(dims, dtype));
}

#define OP(name) tn_op_named(#name)
#define FORWARD(name, ...) \
    tn_op_run(OP(name), &(tn_op_call){.op = OP(name), .kernels = kernels, .ctx = ctx, __VA_ARGS__})
#define BACKWARD(name, ...) \
    tn_op_run_back(OP(name), &(tn_op_back){.kernels = kernels, .ctx = ctx, __VA_ARGS__})

/* ---- Products: rows, in, out ----------------------------------------------------------------- */

static void make_product(job *j, const int64_t *n) {
    j->d[0] = randn_desc(TN_DIMS(n[0], n[1]), TN_BF16); /* x */
    j->d[1] = randn_desc(TN_DIMS(n[2], n[1]), TN_BF16); /* w */
    j->d[2] = randn_desc(TN_DIMS(n[2]), TN_BF16);       /* b */
    j->d[3] = randn_desc(TN_DIMS(n[0], n[2]), TN_BF16); /* y, dy */
    j->d[4] = empty_desc(TN_DIMS(n[0], n[2]), TN_BF16); /* what gelu is taken of */
    j->d[5] = empty_desc(TN_DIMS(n[2], n[1]), TN_F32);  /* dw */
    j->d[6] = empty_desc(TN_DIMS(n[2]), TN_F32);        /* db */
    j->d[7] = empty_desc(TN_DIMS(n[0], n[1]), TN_BF16); /* dx */
}

static tn_status linear_forward(job *j) {
    return kernels->linear(ctx, &j->d[3], &j->d[0], &j->d[1], &j->d[2]);
}

static tn_status linear_gradients(job *j) {
    return BACKWARD(linear, .x = {&j->d[0], &j->d[1]}, .dy = {&j->d[3]},
                    .dx = {NULL, &j->d[5], &j->d[6]});
}

/* In one product, or as its parts. */
static tn_status linear_and_gelu(job *j) {
    tn_status status =
        FORWARD(linear_gelu, .x = {&j->d[0], &j->d[1], &j->d[2]}, .y = {&j->d[3], &j->d[4]});
    if (status == TN_EUNSUPPORTED) {
        status = kernels->linear(ctx, &j->d[4], &j->d[0], &j->d[1], &j->d[2]);
        status =
            status == TN_OK ? kernels->unary(ctx, TN_GELU_TANH, &j->d[3], &j->d[4], 0, 0) : status;
    }
    return status;
}

/* dp = (dy w2) gelu'(p): x stands for dy and dx for p. */
static tn_status slope_after_product(job *j) {
    tn_desc w2 = j->d[1]; /* (hidden, C) as the (C, hidden) that mlp has */
    w2.size[0] = j->d[1].size[1];
    w2.size[1] = j->d[1].size[0];
    w2.stride[0] = w2.size[1];
    tn_status status = BACKWARD(mlp, .x = {NULL, NULL, NULL, &w2}, .y = {NULL, &j->d[4]},
                                .dy = {&j->d[0]}, .dx = {&j->d[3]});
    if (status == TN_EUNSUPPORTED) {
        tn_desc y = j->d[3], a = j->d[0];
        tn_desc *all[] = {&y, &a, &w2};
        for (int i = 0; i < 3; i++) { /* (n, c) as a batch of one */
            tn_desc *d = all[i];
            *d = (tn_desc){d->data, d->dtype, 3, {1, d->size[0], d->size[1]}, {0, d->stride[0], 1}};
        }
        status = kernels->matmul(ctx, &y, &a, &w2, 1, 0);
        status = status == TN_OK
                     ? kernels->binary(ctx, TN_GELU_TANH_GRAD, &j->d[3], &j->d[4], &j->d[3])
                     : status;
    }
    return status;
}

/* ---- Attention: B, H, G, Tq, Tk, D ----------------------------------------------------------- */

static void make_attention(job *j, const int64_t *n) {
    tn_dims queries = TN_DIMS(n[0], n[1], n[3], n[5]), keys = TN_DIMS(n[0], n[2], n[4], n[5]);
    for (int i = 0; i < 8; i++) { /* q y dy dq, k v dk dv */
        j->d[i] = randn_desc(i < 4 ? queries : keys, TN_BF16);
    }
    j->d[8] = empty_desc(TN_DIMS(n[0], n[1], n[3]), TN_F32); /* lse */
    j->attention = (tn_attention_args){.causal = n[3] == n[4]};
}

static tn_status attend_forward(job *j) {
    return FORWARD(attention, .args = &j->attention, .x = {&j->d[0], &j->d[4], &j->d[5]},
                   .y = {&j->d[1], &j->d[8]});
}

static tn_status attend_backward(job *j) {
    return BACKWARD(attention, .args = &j->attention, .x = {&j->d[0], &j->d[4], &j->d[5]},
                    .y = {&j->d[1], &j->d[8]}, .dy = {&j->d[2]},
                    .dx = {&j->d[3], &j->d[6], &j->d[7]});
}

/* ---- Convolutions: N, C, O, side, kernel ----------------------------------------------------- */

static void make_conv(job *j, const int64_t *n) {
    int64_t k = n[4];
    j->d[0] = randn_desc(TN_DIMS(n[0], n[1], 1, n[3], n[3]), TN_BF16); /* x */
    j->d[1] = randn_desc(TN_DIMS(n[2], n[1], 1, k, k), TN_BF16);       /* w */
    j->d[2] = randn_desc(TN_DIMS(n[0], n[2], 1, n[3], n[3]), TN_BF16); /* y, dy */
    j->d[3] = empty_desc(TN_DIMS(n[2], n[1], 1, k, k), TN_F32);        /* dw */
    j->conv = (tn_conv_args){
        .stride = {1, 1, 1}, .padding = {0, k / 2, k / 2}, .dilation = {1, 1, 1}, .groups = 1};
}

static void make_conv_last(job *j, const int64_t *n) {
    make_conv(j, n);
    for (int i = 0; i < 3; i++) {
        tn_desc *d = &j->d[i];
        d->stride[1] = 1;
        d->stride[4] = d->size[1];
        d->stride[3] = d->stride[2] = d->size[4] * d->stride[4];
        d->stride[0] = d->size[3] * d->stride[3];
    }
}

static tn_status run_conv(job *j) {
    return kernels->conv(ctx, &j->d[2], &j->d[0], &j->d[1], NULL, &j->conv);
}

static tn_status conv_gradient(job *j) {
    return kernels->conv_backward_weight(ctx, &j->d[3], NULL, &j->d[2], &j->d[0], &j->conv);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void make_copy(job *j, const int64_t *n) {
    j->d[0] = randn_desc(TN_DIMS(n[0], n[1]), TN_BF16);
    j->d[1] = empty_desc(TN_DIMS(n[0], n[1]), TN_BF16);
    j->bytes = 4.0 * (double)(n[0] * n[1]);
}

static tn_status copy_all(job *j) {
    return kernels->copy(ctx, &j->d[1], &j->d[0]);
}

static void make_argmax(job *j, const int64_t *n) {
    j->d[0] = randn_desc(TN_DIMS(n[0], n[1]), TN_BF16);
    j->d[1] = empty_desc(TN_DIMS(n[0], 1), TN_I64);
    j->bytes = 2.0 * (double)(n[0] * n[1]);
}

static tn_status find_largest(job *j) {
    return kernels->argmax(ctx, &j->d[1], &j->d[0], 1);
}

/* N, C, side */
static void make_batch(job *j, const int64_t *n) {
    j->x = tn_randn(TN_DIMS(n[0], n[1], n[2], n[2]), TN_BF16);
    j->bytes = 6.0 * (double)(n[0] * n[1] * n[2] * n[2]); /* reads x twice, writes y */
}

static tn_status normalise_batch(job *j) {
    TN_SCOPE;
    tn_batch_norm(j->x, NULL, NULL, NULL, NULL, true, 0.1, 1e-5);
    return tn_error();
}

/* ---- The cases ------------------------------------------------------------------------------- */

/* clang-format off */
static const choice_case cases[] = {
    {"product:qkv", make_product, {65536, 768, 2304}, {64, 16, 48}, linear_forward},
    {"product:out", make_product, {65536, 768, 768}, {64, 16, 16}, linear_forward},
    {"product:down", make_product, {65536, 3072, 768}, {64, 64, 16}, linear_forward},
    {"product:logits", make_product, {16384, 768, 50304}, {64, 16, 128}, linear_forward},
    {"sums:qkv", make_product, {65536, 768, 2304}, {64, 16, 48}, linear_gradients},
    {"sums:out", make_product, {65536, 768, 768}, {64, 16, 16}, linear_gradients},
    {"sums:up", make_product, {65536, 768, 3072}, {64, 16, 64}, linear_gradients},
    {"sums:down", make_product, {65536, 3072, 768}, {64, 64, 16}, linear_gradients},
    {"gelu", make_product, {65536, 768, 3072}, {64, 16, 64}, linear_and_gelu},
    {"slope", make_product, {65536, 768, 3072}, {64, 16, 64}, slope_after_product},
    {"attention", make_attention, {64, 12, 12, 1024, 1024, 64}, {2, 2, 2, 16, 16, 16},
     attend_forward},
    {"attention:backward", make_attention, {64, 12, 12, 1024, 1024, 64}, {2, 2, 2, 16, 16, 16},
     attend_backward},
    {"attention:odd", make_attention, {64, 12, 12, 1000, 1000, 64}, {2, 2, 2, 17, 17, 16},
     attend_forward},
    {"attention:odd:backward", make_attention, {64, 12, 12, 1000, 1000, 64},
     {2, 2, 2, 17, 17, 16}, attend_backward},
    {"attention:token", make_attention, {1, 32, 8, 1, 1000, 64}, {1, 4, 2, 1, 200, 16},
     attend_forward},
    {"attention:tokens", make_attention, {64, 32, 8, 1, 1000, 64}, {2, 4, 2, 1, 200, 16},
     attend_forward},
    {"conv", make_conv, {256, 64, 64, 56, 3}, {2, 8, 8, 6, 3}, run_conv},
    {"conv:last", make_conv_last, {256, 64, 64, 56, 3}, {2, 8, 8, 6, 3}, run_conv},
    {"conv:gradient", make_conv, {256, 64, 64, 56, 3}, {2, 8, 8, 6, 3}, conv_gradient},
    {"batch_norm", make_batch, {256, 64, 112}, {2, 4, 4}, normalise_batch},
    {"argmax", make_argmax, {1, 128256}, {1, 1000}, find_largest},
    {"copy", make_copy, {16384, 16384}, {64, 64}, copy_all},
};
/* clang-format on */

enum { CASES = sizeof(cases) / sizeof(*cases) };

/* Milliseconds of one of `count` queued calls; negative: it failed. */
static double time_of(const choice_case *c, job *j, int count) {
    tn_status status = TN_OK;
    double start = bench_now();
    for (int i = 0; i < count && status == TN_OK; i++) {
        status = c->call(j);
    }
    tn_status waited = tn_device_synchronize(tn_default_device());
    return status == TN_OK && waited == TN_OK ? (bench_now() - start) * 1e3 / count : -1;
}

/* Prints the case's line; false: it does not run. */
static bool measure_case(const choice_case *c) {
    TN_SCOPE;
    job j = {.bytes = 0};
    c->make(&j, small ? c->tiny : c->size);
    double first = time_of(c, &j, 1), once = time_of(c, &j, small ? 1 : 3), ms[ROUNDS];
    int count = small || once > 20 ? 1 : once > 0.02 ? (int)(20 / once) : 1000;
    bool runs = first >= 0 && once >= 0;
    for (int i = 0; i < ROUNDS && runs; i++) {
        ms[i] = time_of(c, &j, count);
        runs = ms[i] >= 0;
    }
    if (!runs) {
        fprintf(stderr, "%s does not run: %s\n", c->name, tn_error_message());
        return false;
    }
    printf("%s %.5f %.0f\n", c->name, bench_median(ms, ROUNDS), j.bytes);
    fflush(stdout);
    return true;
}

static const choice_case *case_named(const char *name) {
    for (int i = 0; i < CASES; i++) {
        if (strcmp(cases[i].name, name) == 0) { return &cases[i]; }
    }
    return NULL;
}

int main(int argc, char **argv) {
    int first = 1;
    for (; first < argc && strncmp(argv[first], "--", 2) == 0; first++) {
        small = small || strcmp(argv[first], "--small") == 0;
        for (int i = 0; i < CASES && strcmp(argv[first], "--list") == 0; i++) {
            printf("%s\n", cases[i].name);
        }
    }
    if (first == argc) { return 0; }
    const char *fast = getenv("BENCH_DETERMINISTIC");
    tn_set_deterministic(!fast || strcmp(fast, "0") != 0);
    if (tn_set_default_device(tn_device_named("cuda")) != TN_OK || tn_error()) {
        fprintf(stderr, "%s\n", tn_error_message());
        return 1;
    }
    kernels = tn_backend_of(tn_default_device());
    ctx = tn_context_of(tn_default_device());
    TN_NO_GRAD;
    bool good = true;
    for (int i = first; i < argc; i++) {
        const choice_case *c = case_named(argv[i]);
        good = c && measure_case(c) && good;
    }
    return good ? 0 : 1;
}
