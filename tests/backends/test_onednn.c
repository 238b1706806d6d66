/* Products by oneDNN against ref, with 1, 2 and 3 threads (trial.h). TERN_ONEDNN=always: in f32 on
 * every machine; in bf16 where the CPU multiplies bf16. */
#include "trial.h"

#include "backends/cpu/onednn.h"

#include <omp.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct product {
    tn_desc a, b, bias;
    bool has_bias;
    double beta;
} product;

static tn_status call_matmul(const tn_backend *t, const tn_desc *const *out, void *user) {
    product *p = user;
    return TRIAL_CALL(t, matmul, out[0], &p->a, &p->b, 1, p->beta);
}

static tn_status call_linear(const tn_backend *t, const tn_desc *const *out, void *user) {
    product *p = user;
    return TRIAL_CALL(t, linear, out[0], &p->a, &p->b, p->has_bias ? &p->bias : NULL);
}

static void need_library(void) {
    if (*tn__onednn_reason()) {
        fprintf(stderr, "no oneDNN: %s\n", tn__onednn_reason());
        skip();
    }
}

/* TERN_CPU may cap the level. */
static bool multiplies_bf16(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") && tn_backend_named("cpu-v4");
}

/* Column-major: a dense matrix transposed. */
static tn_desc transposed_desc(const array *a) {
    tn_desc d = a->d;
    int last = d.ndim - 1;
    d.size[last] = a->d.size[last - 1];
    d.size[last - 1] = a->d.size[last];
    d.stride[last] = a->d.stride[last - 1];
    d.stride[last - 1] = a->d.stride[last];
    return d;
}

static void run_product(const char *name, array y,
                        tn_status (*call)(const tn_backend *, const tn_desc *const *, void *),
                        product *p, tn_dtype in, int64_t k) {
    double scale = sqrt((double)k + 1);
    trial t = {name,
               1,
               {y},
               call,
               p,
               1e-6 * scale,
               scale * 4e-6 + (in == TN_BF16 ? 8 * step_of(y.d.dtype) : 0)};
    int64_t before = tn__onednn_count();
    trial_run(&t);
    if (tn__onednn_count() < before + 3) {
        fail_msg("%s (%lld, %lld, %lld) was not made by oneDNN", name,
                 (long long)p->a.size[p->a.ndim - 2], (long long)k,
                 (long long)y.d.size[y.d.ndim - 1]);
    }
    trial_forget();
}

/* y = x w^T + b, dx = dy w, dw += dy^T x, and a product with a column-major result. */
static void try_forms(tn_dtype in, tn_dtype out, int64_t n, int64_t from, int64_t to) {
    if (in == out) {
        for (int bias = 0; bias < 2; bias++) {
            array x = varied_array(in, DENSE, 2, SIZES(n, from), 1),
                  w = varied_array(in, DENSE, 2, SIZES(to, from), 2),
                  b = varied_array(in, DENSE, 1, SIZES(to), 3);
            product p = {.a = x.d, .b = w.d, .bias = b.d, .has_bias = bias};
            run_product("linear", make_array(out, DENSE, 2, SIZES(n, to)), call_linear, &p, in,
                        from);
        }
    }
    array dy = varied_array(in, DENSE, 3, SIZES(1, n, to), 4),
          w = varied_array(in, DENSE, 3, SIZES(1, to, from), 5);
    product p = {.a = dy.d, .b = w.d};
    run_product("dx", make_array(out, DENSE, 3, SIZES(1, n, from)), call_matmul, &p, in, to);

    for (int beta = 0; beta < 2; beta++) {
        dy = varied_array(in, DENSE, 3, SIZES(1, n, to), 6);
        array x = varied_array(in, DENSE, 3, SIZES(1, n, from), 7);
        p = (product){.a = transposed_desc(&dy), .b = x.d, .beta = beta};
        run_product("dw", varied_array(out, DENSE, 3, SIZES(1, to, from), 8), call_matmul, &p, in,
                    n);
    }

    dy = varied_array(in, DENSE, 3, SIZES(1, n, to), 9);
    w = varied_array(in, DENSE, 3, SIZES(1, to, from), 10);
    array y = make_array(out, DENSE, 3, SIZES(1, from, n));
    y.d = transposed_desc(&y);
    p = (product){.a = dy.d, .b = w.d};
    run_product("into columns", y, call_matmul, &p, in, to);
}

static void try_sizes(tn_dtype in, tn_dtype out) {
    /* one element, one row, one column, odd, one piece, four kinds of pieces */
    static const int64_t sizes[][3] = {{1, 1, 1}, {1, 70, 33},    {50, 1, 1},
                                       {7, 5, 3}, {97, 130, 129}, {600, 300, 250}};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        try_forms(in, out, sizes[s][0], sizes[s][1], sizes[s][2]);
    }
}

static void test_f32(void **state) {
    need_library();
    try_sizes(TN_F32, TN_F32);
}

static void test_bf16(void **state) {
    need_library();
    if (!multiplies_bf16()) {
        fprintf(stderr, "this CPU has no bf16 arithmetic: oneDNN's bf16 products are not tested\n");
        skip();
    }
    try_sizes(TN_BF16, TN_BF16);
    try_sizes(TN_BF16, TN_F32);
}

/* Our own kernel runs what oneDNN has no fast code for. */
static void test_refused(void **state) {
    need_library();
    int64_t before = tn__onednn_count();
    for (int f16 = multiplies_bf16(); f16 < 2; f16++) {
        tn_dtype dtype = f16 ? TN_F16 : TN_BF16;
        array a = varied_array(dtype, DENSE, 3, SIZES(1, 60, 70), 1),
              b = varied_array(dtype, DENSE, 3, SIZES(1, 70, 80), 2);
        product p = {.a = a.d, .b = b.d};
        trial t = {"refused",         1,  {make_array(dtype, DENSE, 3, SIZES(1, 60, 80))},
                   call_matmul,       &p, 1e-5,
                   8 * step_of(dtype)};
        trial_run(&t);
        trial_forget();
    }
    assert_int_equal(tn__onednn_count(), before);
}

/* More shapes than the cache holds, and then all of them again. */
static void test_many_shapes(void **state) {
    need_library();
    for (int64_t i = 0; i < 601; i++) {
        int64_t m = 1 + i % 300;
        array a = varied_array(TN_F32, DENSE, 3, SIZES(1, m, 3), i),
              b = varied_array(TN_F32, DENSE, 3, SIZES(1, 3, 5), i);
        product p = {.a = a.d, .b = b.d};
        run_product("many shapes", make_array(TN_F32, DENSE, 3, SIZES(1, m, 5)), call_matmul, &p,
                    TN_F32, 3);
    }
}

/* A program's own threads share the primitives; the bits are those of one thread. */
static void test_at_once(void **state) {
    need_library();
    enum { AT_ONCE = 4 };
    const tn_backend *t = tn_backend_named("cpu");
    array a = varied_array(TN_F32, DENSE, 3, SIZES(1, 600, 300), 1),
          b = varied_array(TN_F32, DENSE, 3, SIZES(1, 300, 250), 2),
          alone = make_array(TN_F32, DENSE, 3, SIZES(1, 600, 250)), each[AT_ONCE];
    assert_int_equal(TRIAL_CALL(t, matmul, &alone.d, &a.d, &b.d, 1, 0), TN_OK);
    for (int i = 0; i < AT_ONCE; i++) {
        each[i] = make_array(TN_F32, DENSE, 3, SIZES(1, 600, 250));
    }
    int64_t before = tn__onednn_count();
#pragma omp parallel for num_threads(AT_ONCE)
    for (int i = 0; i < AT_ONCE; i++) {
        for (int again = 0; again < 3; again++) {
            TRIAL_CALL(t, matmul, &each[i].d, &a.d, &b.d, 1, 0);
        }
    }
    for (int i = 0; i < AT_ONCE; i++) {
        assert_memory_equal(each[i].memory, alone.memory, alone.bytes);
    }
    assert_int_equal(tn__onednn_count(), before + 3 * AT_ONCE);
    trial_forget();
}

/* In a child process: the variable is read once. */
static void test_switched_off(void **state) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("TERN_ONEDNN", "0", 1);
        float x[4] = {1, 2, 3, 4}, y[4];
        tn_desc a = {x, TN_F32, 3, {1, 2, 2}, {4, 2, 1}}, out = a;
        out.data = y;
        const tn_backend *t = tn_backend_named("cpu");
        bool right = t->matmul(tn_context_of(tn_cpu()), &out, &a, &a, 1, 0) == TN_OK &&
                     y[3] == 22 && tn__onednn_count() == 0 && *tn__onednn_reason();
        _exit(right ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void) {
    setenv("TERN_ONEDNN", "always", 1);
    const struct CMUnitTest tests[] = {
        ARRAY_TEST(test_switched_off), /* before anything has read the variable */
        ARRAY_TEST(test_f32),          ARRAY_TEST(test_bf16),    ARRAY_TEST(test_refused),
        ARRAY_TEST(test_many_shapes),  ARRAY_TEST(test_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
