/* The fast CPU kernels against ref: every level that this machine runs, every entry, in f32 bf16 f16 f64, dense and spread out
 * (transposed, with gaps), with NaN, with sizes 0 and 1 and beyond every blocking size; outputs poisoned, gaps watched; the
 * same bits for 1, 2 and 3 threads.
 *
 * A trial names its outputs and a function that makes the call on them. try_all runs it on ref once and on every level with
 * every number of threads, and compares.
 */
#include "arrays.h"

#include <omp.h>
#include <stdio.h>

enum { OUTPUTS = 3 };

typedef struct trial {
    const char *name;
    int outputs;
    array start[OUTPUTS]; /* copied before each call: what an output holds before */
    tn_status (*call)(const tn_backend *t, const tn_desc *const *out, void *user);
    void *user;
    double relative, absolute; /* of the largest of 1 and the expected value; absolute is added */
} trial;

static tn_context *ctx(void) {
    return tn_context_of((tn_device){TN_CPU, 0});
}

static const tn_backend *level(int i) {
    static const char *const names[] = {"cpu-v2", "cpu-v3", "cpu-v4"};
    return i < 3 ? tn_backend_named(names[i]) : NULL;
}

/* A copy of an array with memory of its own, released by the caller. */
static array duplicate(const array *a) {
    array b = *a;
    b.memory = malloc(a->bytes);
    assert_non_null(b.memory);
    memcpy(b.memory, a->memory, a->bytes);
    b.d.data = b.memory + ((unsigned char *)a->d.data - a->memory);
    return b;
}

static tn_status run(const trial *t, const tn_backend *backend, array *out) {
    const tn_desc *d[OUTPUTS] = {NULL};
    for (int i = 0; i < t->outputs; i++) {
        out[i] = duplicate(&t->start[i]);
        d[i] = &out[i].d;
    }
    return t->call(backend, d, t->user);
}

static double step_of(tn_dtype dtype) {
    return dtype == TN_BF16 ? 0x1p-7 : dtype == TN_F16 ? 0x1p-10 : 0;
}

static void expect_near(const trial *t, const char *who, const array *a, const array *b) {
    for (int64_t i = 0; i < a->count; i++) {
        double value = array_get(a, i), expected = array_get(b, i);
        bool fine = value == expected || (isnan(value) && isnan(expected));
        if (!fine && isfinite(value) && isfinite(expected)) {
            double size = fmax(1, fabs(expected));
            fine = fabs(value - expected) <=
                   t->absolute + size * t->relative + fabs(expected) * step_of(a->d.dtype);
        }
        if (!fine) {
            fail_msg("%s on %s, %s: element %ld of %ld is %.9g, expected %.9g", t->name, who,
                     tn_dtype_name(a->d.dtype), (long)i, (long)a->count, value, expected);
        }
    }
}

static void try_all(const trial *t) {
    array expected[OUTPUTS];
    tn_status status = run(t, tn_backend_named("ref"), expected);
    for (int l = 0; l < 3; l++) {
        const tn_backend *backend = level(l);
        if (!backend) {
            continue;
        }
        array first[OUTPUTS];
        for (int threads = 1; threads <= 3; threads++) {
            tn_set_threads(threads);
            array out[OUTPUTS];
            if (run(t, backend, out) != status) {
                fail_msg("%s on %s: not ref's status", t->name, backend->name);
            }
            for (int i = 0; i < t->outputs; i++) {
                if (status == TN_OK && threads == 1) {
                    expect_near(t, backend->name, &out[i], &expected[i]);
                    array_check_gaps(&out[i]);
                } else if (status == TN_OK &&
                           memcmp(out[i].memory, first[i].memory, out[i].bytes) != 0) {
                    fail_msg("%s on %s, %s: other bits with %d threads", t->name, backend->name,
                             tn_dtype_name(out[i].d.dtype), threads);
                }
            }
            for (int i = 0; i < t->outputs; i++) {
                if (threads == 1) {
                    first[i] = out[i];
                } else {
                    free(out[i].memory);
                }
            }
        }
        for (int i = 0; i < t->outputs; i++) {
            free(first[i].memory);
        }
    }
    tn_set_threads(2);
    for (int i = 0; i < t->outputs; i++) {
        free(expected[i].memory);
    }
}

/* Called between cases: arrays are many and large. */
static void forget(void) {
    arrays_free(NULL);
}

static array make(tn_dtype dtype, array_layout layout, int ndim, const int64_t *size) {
    return array_new(dtype, layout, ndim, size);
}
static array varied(tn_dtype dtype, array_layout layout, int ndim, const int64_t *size, int64_t salt) {
    array a = make(dtype, layout, ndim, size);
    array_vary(&a, salt);
    return a;
}
/* The same memory, broadcast along dim. */
static tn_desc broadcast(const array *a, int dim, int64_t size) {
    tn_desc d = a->d;
    d.size[dim] = size;
    d.stride[dim] = 0;
    return d;
}
#define SIZES(...) ((const int64_t[]){__VA_ARGS__})

/* ---- Elementwise ---------------------------------------------------------------------------------------------------------- */

typedef struct elementwise {
    int f;
    double k0, k1;
    tn_desc x, a, b;
} elementwise;

static tn_status call_unary(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return t->unary(ctx(), (tn_unary)e->f, out[0], &e->x, e->k0, e->k1);
}
static tn_status call_binary(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return t->binary(ctx(), (tn_binary)e->f, out[0], &e->a, &e->b);
}
static tn_status call_compare(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return t->compare(ctx(), (tn_compare)e->f, out[0], &e->a, &e->b);
}
static tn_status call_where(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return t->where(ctx(), out[0], &e->x, &e->a, &e->b);
}
static tn_status call_copy(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return t->copy(ctx(), out[0], &e->x);
}
static tn_status call_fill(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    return t->fill(ctx(), out[0], e->k0);
}

static const int64_t shapes[][3] = {{0, 3, 2}, {1, 1, 1}, {3, 5, 7}, {2, 1, 2050}, {33, 40, 31}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Special values in front, where there is room. */
static void spoil(array *a) {
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 100, -100};
    for (int64_t i = 0; i < 8 && a->count > 16; i++) {
        array_set(a, 3 * i % a->count, odd[i]);
    }
}

static void test_unary(void **state) {
    (void)state;
    for (int f = 0; f < TN_UNARY_COUNT; f++) {
        for (int k = 0; k < SHAPES * 4 * 4; k++) {
            const int64_t *size = shapes[k / 16];
            if (k / 16 == SHAPES - 1 && k % 4 != f % 4) {
                continue;
            }
            tn_dtype dtype = array_floats[k / 4 % 4];
            array x = varied(dtype, k & 1, 3, size, f), y = make(dtype, k >> 1 & 1, 3, size);
            spoil(&x);
            elementwise e = {.f = f, .k0 = f == TN_POW_K ? 3 : -0.5, .k1 = 0.75, .x = x.d};
            trial t = {"unary", 1, {y}, call_unary, &e, dtype == TN_F64 ? 1e-15 : 1e-6, 0};
            try_all(&t);
            forget();
        }
    }
}

static void test_binary(void **state) {
    (void)state;
    for (int f = 0; f < TN_BINARY_COUNT; f++) {
        for (int k = 0; k < SHAPES * 4 * 8; k++) {
            const int64_t *size = shapes[k / 32];
            if (k / 32 == SHAPES - 1 && k % 8 != f % 8) {
                continue; /* of the large shape one combination of layouts for each formula */
            }
            tn_dtype dtype = array_floats[k / 8 % 4];
            array a = varied(dtype, k & 1, 3, size, f),
                  b = varied(dtype, k >> 1 & 1, 3, size, f + 1),
                  y = make(dtype, k >> 2 & 1, 3, size);
            spoil(&a);
            elementwise e = {.f = f, .a = a.d, .b = b.d};
            trial t = {"binary", 1, {y}, call_binary, &e, dtype == TN_F64 ? 1e-15 : 2e-6, 0};
            try_all(&t);
            forget();
        }
    }
}

/* A bias row, a column, a scalar; each as left and right operand. */
static void test_broadcast(void **state) {
    (void)state;
    for (int k = 0; k < 4 * 3 * 2; k++) {
        tn_dtype dtype = array_floats[k % 4];
        int kind = k / 4 % 3;
        const int64_t size[] = {130, 257}, small[] = {kind == 0 ? 1 : 130, kind == 1 ? 1 : 257},
                      one[] = {1, 1};
        array a = varied(dtype, DENSE, 2, size, k),
              b = varied(dtype, DENSE, 2, kind == 2 ? one : small, 5),
              y = make(dtype, DENSE, 2, size);
        tn_desc wide = kind == 1 ? broadcast(&b, 1, 257) : broadcast(&b, 0, 130);
        if (kind == 2) {
            wide.size[1] = 257;
            wide.stride[1] = 0;
        }
        elementwise e = {.f = TN_SUB, .a = k < 12 ? a.d : wide, .b = k < 12 ? wide : a.d};
        trial t = {"broadcast binary", 1, {y}, call_binary, &e, 1e-6, 0};
        try_all(&t);
        forget();
    }
}

/* Input and output are one memory. */
static tn_status call_in_place(const tn_backend *t, const tn_desc *const *out, void *user) {
    elementwise *e = user;
    tn_status status = t->unary(ctx(), TN_GELU_TANH, out[0], out[0], 0, 0);
    return status == TN_OK ? t->binary(ctx(), TN_ADD, out[0], &e->a, out[0]) : status;
}
static void test_in_place(void **state) {
    (void)state;
    for (int k = 0; k < SHAPES * 4 * 2; k++) {
        tn_dtype dtype = array_floats[k / 2 % 4];
        array y = varied(dtype, k & 1, 3, shapes[k / 8], 1),
              a = varied(dtype, DENSE, 3, shapes[k / 8], 2);
        elementwise e = {.a = a.d};
        trial t = {"in place", 1, {y}, call_in_place, &e, 2e-6, step_of(dtype) * 4};
        try_all(&t);
        forget();
    }
}

static void test_compare_and_where(void **state) {
    (void)state;
    for (int k = 0; k < SHAPES * TN_DTYPES * 4; k++) {
        const int64_t *size = shapes[k / (TN_DTYPES * 4)];
        tn_dtype dtype = (tn_dtype)(k / 4 % TN_DTYPES);
        array a = make(dtype, k & 1, 3, size), b = make(dtype, DENSE, 3, size),
              c = make(TN_BOOL, k >> 1 & 1, 3, size);
        for (int64_t i = 0; i < a.count; i++) {
            array_set(&a, i, dtype == TN_BOOL ? i & 1 : (double)(i * 7 % 5));
            array_set(&b, i, dtype == TN_BOOL ? i >> 1 & 1 : (double)(i * 3 % 5));
            array_set(&c, i, i * 5 % 3 == 0);
        }
        for (int f = 0; f < TN_COMPARE_COUNT; f++) {
            array y = make(TN_BOOL, k >> 1 & 1, 3, size);
            elementwise e = {.f = f, .a = a.d, .b = b.d};
            trial t = {"compare", 1, {y}, call_compare, &e, 0, 0};
            try_all(&t);
        }
        elementwise e = {.x = c.d, .a = a.d, .b = b.d};
        trial t = {"where", 1, {make(dtype, DENSE, 3, size)}, call_where, &e, 0, 0};
        try_all(&t);
        forget();
    }
}

static void test_copy(void **state) {
    (void)state;
    for (int k = 0; k < SHAPES * TN_DTYPES * TN_DTYPES * 4; k++) {
        const int64_t *size = shapes[k / (4 * TN_DTYPES * TN_DTYPES)];
        tn_dtype from = (tn_dtype)(k / 4 % TN_DTYPES), to = (tn_dtype)(k / 4 / TN_DTYPES % TN_DTYPES);
        array x = make(from, k & 1, 3, size), y = make(to, k >> 1 & 1, 3, size);
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&x, i,
                      from == TN_BOOL ? i & 1
                      : from == TN_U8 ? i % 200
                                      : (double)(i % 199) - 90.25);
        }
        if (tn_dtype_is_float(from) && tn_dtype_is_float(to)) {
            spoil(&x);
        }
        elementwise e = {.x = x.d};
        trial t = {"copy", 1, {y}, call_copy, &e, 0, 0};
        try_all(&t);
        forget();
    }
    for (int k = 0; k < 4; k++) { /* the blocked transposition, with rests on both sides */
        tn_dtype dtype = (tn_dtype[]){TN_F32, TN_F64, TN_BF16, TN_U8}[k];
        array x = varied(dtype, SPREAD, 2, SIZES(150, 131), 1),
              y = make(dtype, DENSE, 2, SIZES(150, 131));
        elementwise e = {.x = x.d};
        trial t = {"transposed copy", 1, {y}, call_copy, &e, 0, 0};
        try_all(&t);
        forget();
    }
}

/* Every bf16 and f16 to f32, and f32 near every f16 back: the conversions are our own code. */
static void test_conversions(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        tn_dtype half = k ? TN_F16 : TN_BF16;
        array x = make(half, DENSE, 1, SIZES(65536)), y = make(TN_F32, DENSE, 1, SIZES(65536));
        for (int64_t i = 0; i < x.count; i++) {
            ((uint16_t *)x.d.data)[i] = (uint16_t)i;
        }
        elementwise e = {.x = x.d};
        trial t = {"from half", 1, {y}, call_copy, &e, 0, 0};
        try_all(&t);
        array wide = make(TN_F32, DENSE, 1, SIZES(5 * 65536)),
              back = make(half, DENSE, 1, SIZES(5 * 65536));
        for (int64_t i = 0; i < wide.count; i++) {
            float f = k ? tn_f16_to_float((tn_f16){(uint16_t)(i / 5)})
                        : tn_bf16_to_float((tn_bf16){(uint16_t)(i / 5)});
            uint32_t bits;
            memcpy(&bits, &f, 4);
            bits += (uint32_t)((int[]){0, 1, -1, k ? 0x1000 : 0x8000, k ? 0x1001 : 0x7fff})[i % 5];
            memcpy((float *)wide.d.data + i, &bits, 4);
        }
        e.x = wide.d;
        trial to = {"to half", 1, {back}, call_copy, &e, 0, 0};
        try_all(&to);
        forget();
    }
}

static void test_fill(void **state) {
    (void)state;
    for (int k = 0; k < SHAPES * TN_DTYPES * 2; k++) {
        elementwise e = {.k0 = k % 3 - 0.75};
        trial t = {"fill",
                   1,
                   {make((tn_dtype)(k / 2 % TN_DTYPES), k & 1, 3, shapes[k / 2 / TN_DTYPES])},
                   call_fill,
                   &e,
                   0,
                   0};
        try_all(&t);
        forget();
    }
}

/* ---- Reductions ------------------------------------------------------------------------------------------------------------- */

typedef struct reducing {
    tn_reduction f;
    tn_desc x;
} reducing;
static tn_status call_reduce(const tn_backend *t, const tn_desc *const *out, void *user) {
    reducing *r = user;
    return t->reduce(ctx(), r->f, out[0], &r->x);
}

static void try_reduce(tn_reduction f, tn_dtype dtype, array_layout layout, const int64_t *size,
                       int which, bool odd) {
    int64_t small[3];
    for (int d = 0; d < 3; d++) {
        small[d] = which >> d & 1 ? 1 : size[d];
    }
    tn_dtype to = f == TN_RED_SUM_SQUARES && which % 2 ? TN_F64 : dtype;
    array x = varied(dtype, layout, 3, size, which), y = make(to, DENSE, 3, small);
    if (odd) {
        spoil(&x);
    }
    if ((f == TN_RED_MAX || f == TN_RED_MIN) && x.count == 0 && y.count > 0) {
        return;
    }
    reducing r = {f, x.d};
    trial t = {"reduce",
               1,
               {y},
               call_reduce,
               &r,
               dtype == TN_F64 ? 1e-12 : 3e-6,
               dtype == TN_F64 ? 0 : 1e-5};
    try_all(&t);
}

static void test_reduce(void **state) {
    (void)state;
    static const int64_t large[][3] = {{3, 700, 40},  {1, 1, 50001}, {20000, 1, 3},
                                       {2, 300, 300}, {5, 1, 20000}, {70, 9, 50}};
    for (int f = 0; f <= TN_RED_SUM_SQUARES; f++) {
        for (int k = 0; k < SHAPES * 4 * 2 * 8; k++) {
            try_reduce((tn_reduction)f, array_floats[k / 8 % 4], k / 32 & 1, shapes[k / 64], k % 8,
                       k % 3 == 0);
            forget();
        }
        for (int k = 0; k < 6 * 2 * 8 && f != TN_RED_MEAN && f != TN_RED_MIN; k++) {
            try_reduce((tn_reduction)f, k % 5 == 4 ? TN_BF16 : TN_F32, k / 8 & 1, large[k / 16],
                       k % 8, false);
            forget();
        }
    }
}

/* A million times 0.1: the table promises about log(n) roundings, 20 of 2^-24 of the sum or 0.12. Adding one by one in f32 is
 * off by 1034. */
static void test_sum_is_accurate(void **state) {
    (void)state;
    const int64_t n = 1 << 20;
    for (int columns = 0; columns < 2; columns++) {
        array x = make(TN_F32, DENSE, 2, columns ? SIZES(n, 1) : SIZES(1, n)),
              y = make(TN_F32, DENSE, 2, SIZES(1, 1));
        for (int64_t i = 0; i < n; i++) {
            ((float *)x.d.data)[i] = 0.1f;
        }
        for (int l = 0; l < 3; l++) {
            if (level(l)) {
                assert_int_equal(level(l)->reduce(ctx(), TN_RED_SUM, &y.d, &x.d), TN_OK);
                assert_true(fabs(array_get(&y, 0) - (double)n * (double)0.1f) < 0.05);
            }
        }
    }
}

/* ---- Products ----------------------------------------------------------------------------------------------------------------- */

typedef struct product {
    tn_desc a, b, c;
    bool bias;
    double alpha, beta;
} product;
static tn_status call_matmul(const tn_backend *t, const tn_desc *const *out, void *user) {
    product *p = user;
    return t->matmul(ctx(), out[0], &p->a, &p->b, p->alpha, p->beta);
}
static tn_status call_linear(const tn_backend *t, const tn_desc *const *out, void *user) {
    product *p = user;
    return t->linear(ctx(), out[0], &p->a, &p->b, p->bias ? &p->c : NULL);
}

static void try_matmul(tn_dtype dtype, int64_t batch, int64_t m, int64_t k, int64_t n, int layouts,
                       bool accumulate) {
    array a = varied(dtype, layouts & 1, 3, SIZES(batch, m, k), 1),
          b = varied(dtype, layouts >> 1 & 1, 3, SIZES(batch, k, n), 2);
    array y = make(dtype, layouts >> 2 & 1, 3, SIZES(batch, m, n));
    if (accumulate) {
        array_vary(&y, 3);
    }
    product p = {.a = a.d, .b = b.d, .alpha = accumulate ? -0.5 : 1, .beta = accumulate ? 0.75 : 0};
    double scale = sqrt((double)k + 1);
    trial t = {"matmul",
               1,
               {y},
               call_matmul,
               &p,
               dtype == TN_F64 ? 1e-13 : 1e-6 * scale,
               dtype == TN_F64 ? 1e-13 : scale * 4e-6 + 8 * step_of(dtype)};
    try_all(&t);
    forget();
}

static void test_matmul(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {{1, 1, 1, 1},     {1, 5, 3, 4},     {3, 7, 17, 33},
                                       {1, 13, 400, 17}, {0, 3, 3, 3},     {2, 0, 3, 3},
                                       {2, 3, 0, 3},     {2, 3, 3, 0},     {1, 1, 70, 50},
                                       {1, 50, 70, 1},   {20, 33, 20, 35}, {1, 97, 129, 130}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int k = 0; k < 4 * 8 * 2; k++) {
            try_matmul(array_floats[k % 4], sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3],
                       k / 4 % 8, k / 32);
        }
    }
    try_matmul(TN_F32, 1, 1300, 9, 40, 0,
               false); /* beyond one packed block of rows, of depth, of columns */
    try_matmul(TN_F32, 1, 30, 1000, 40, 2, true);
    try_matmul(TN_F32, 1, 20, 9, 6500, 0, false);
}

/* Rows contiguous but further apart than they are long, and one operand for the whole batch. */
static void test_matmul_broadcast(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        tn_dtype dtype = array_floats[k];
        array a = varied(dtype, DENSE, 3, SIZES(1, 33, 21), 1),
              b = varied(dtype, DENSE, 3, SIZES(6, 21, 19), 2);
        product p = {.a = broadcast(&a, 0, 6), .b = b.d, .alpha = 1};
        trial t = {"broadcast matmul",
                   1,
                   {make(dtype, DENSE, 3, SIZES(6, 33, 19))},
                   call_matmul,
                   &p,
                   1e-5,
                   1e-5 + 8 * step_of(dtype)};
        try_all(&t);
        forget();
    }
}

static void test_linear(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {5, 3, 4},    {0, 3, 4},     {3, 0, 4},
                                       {3, 4, 0}, {1, 130, 70}, {100, 65, 48}, {70, 400, 37}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int k = 0; k < 4 * 8 * 2; k++) {
            tn_dtype dtype = array_floats[k % 4];
            int64_t m = sizes[s][0], in = sizes[s][1], out = sizes[s][2];
            array x = varied(dtype, k / 4 & 1, 2, SIZES(m, in), 1),
                  w = varied(dtype, k / 8 & 1, 2, SIZES(out, in), 2);
            array b = varied(dtype, k / 4 & 1, 1, SIZES(out), 3),
                  y = make(dtype, k / 16 & 1, 2, SIZES(m, out));
            product p = {.a = x.d, .b = w.d, .c = b.d, .bias = k >= 32};
            double scale = sqrt((double)in + 1);
            trial t = {"linear",
                       1,
                       {y},
                       call_linear,
                       &p,
                       dtype == TN_F64 ? 1e-13 : 1e-6 * scale,
                       dtype == TN_F64 ? 1e-13 : scale * 4e-6 + 8 * step_of(dtype)};
            try_all(&t);
            forget();
        }
    }
}

/* ---- Rows: softmax, norms, cross-entropy -------------------------------------------------------------------------------------- */

typedef struct rows {
    tn_desc x, y, dy, w, b, mean, rstd, label, lse;
    bool log_form, has_w, has_b, centred;
    tn_cross_entropy_args args;
} rows;

static tn_status call_softmax(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return t->softmax(ctx(), out[0], &r->x, r->log_form);
}
static tn_status call_softmax_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return t->softmax_backward(ctx(), out[0], &r->y, &r->dy, r->log_form);
}

static const int64_t row_shapes[][2] = {{0, 4},   {4, 0},    {1, 1},     {3, 5},
                                        {70, 65}, {6, 1500}, {40, 1030}, {700, 40}};
enum { ROW_SHAPES = sizeof row_shapes / sizeof *row_shapes };

static void test_softmax(void **state) {
    (void)state;
    for (int k = 0; k < ROW_SHAPES * 4 * 8; k++) {
        const int64_t *size = row_shapes[k / 32];
        tn_dtype dtype = array_floats[k / 8 % 4];
        bool log_form = k & 1;
        array x = varied(dtype, k >> 1 & 1, 2, size, 1), dy = varied(dtype, k >> 1 & 1, 2, size, 2),
              y = make(dtype, k >> 2 & 1, 2, size);
        if (size[0] >= 6) {
            array_set(&x, 1, -INFINITY);
            array_set(&x, size[1], NAN);
            for (int64_t j = 0; j < size[1]; j++) {
                array_set(&x, 2 * size[1] + j, -INFINITY);
            }
        }
        rows r = {.x = x.d, .y = x.d, .dy = dy.d, .log_form = log_form};
        trial t = {"softmax", 1, {y}, call_softmax, &r, dtype == TN_F64 ? 1e-13 : 2e-6, 1e-7};
        try_all(&t);
        trial back = {"softmax_backward",           1,  {y},
                      call_softmax_backward,        &r, dtype == TN_F64 ? 1e-12 : 2e-5,
                      dtype == TN_F64 ? 1e-9 : 2e-4};
        if (size[0] < 6) {
            try_all(&back);
        }
        forget();
    }
}

static tn_status call_norm(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    if (r->centred) {
        return t->layer_norm(ctx(), out[0], out[1], out[2], &r->x, r->has_w ? &r->w : NULL,
                             r->has_b ? &r->b : NULL, 1e-5);
    }
    return t->rms_norm(ctx(), out[0], out[1], &r->x, r->has_w ? &r->w : NULL, 1e-5);
}
static tn_status call_norm_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    const tn_desc *w = r->has_w ? &r->w : NULL;
    if (r->centred) {
        return t->layer_norm_backward(ctx(), out[0], out[1], out[2], &r->dy, &r->x, &r->mean,
                                      &r->rstd, w);
    }
    return t->rms_norm_backward(ctx(), out[0], out[1], &r->dy, &r->x, &r->rstd, w);
}

static void test_norms(void **state) {
    (void)state;
    for (int k = 0; k < ROW_SHAPES * 4 * 16; k++) {
        const int64_t *size = row_shapes[k / 64];
        tn_dtype dtype = array_floats[k / 16 % 4], stat = dtype == TN_F64 ? TN_F64 : TN_F32;
        array x = varied(dtype, k & 1, 2, size, 1), dy = varied(dtype, k & 1, 2, size, 2),
              w = varied(dtype, k & 1, 1, size + 1, 3);
        array b = varied(dtype, DENSE, 1, size + 1, 4), mean = varied(stat, k & 1, 1, size, 5),
              rstd = varied(stat, DENSE, 1, size, 6);
        rows r = {.x = x.d,
                  .dy = dy.d,
                  .w = w.d,
                  .b = b.d,
                  .mean = mean.d,
                  .rstd = rstd.d,
                  .has_w = k & 2,
                  .has_b = k & 2,
                  .centred = k & 4};
        bool double_form = dtype == TN_F64;
        array y = make(dtype, k >> 3 & 1, 2, size), s0 = make(stat, k & 1, 1, size),
              s1 = make(stat, DENSE, 1, size);
        trial t = {"norm",
                   r.centred ? 3 : 2,
                   {y, s0, s1},
                   call_norm,
                   &r,
                   double_form ? 1e-13 : 4e-6,
                   double_form ? 1e-12 : 4e-6 + step_of(dtype)};
        try_all(&t);
        array dw = make(dtype, k & 1, 1, size + 1), db = make(dtype, DENSE, 1, size + 1);
        double scale = 1 + sqrt((double)size[0]);
        trial back = {"norm_backward",
                      r.centred ? 3 : 2,
                      {y, dw, db},
                      call_norm_backward,
                      &r,
                      double_form ? 1e-12 : 1e-5,
                      double_form ? 1e-11 : 4e-5 * scale + step_of(dtype)};
        try_all(&back);
        forget();
    }
}

static tn_status call_loss(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return t->cross_entropy(ctx(), out[0], out[1], &r->x, &r->label, &r->args);
}
static tn_status call_loss_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return t->cross_entropy_backward(ctx(), out[0], &r->dy, &r->lse, &r->x, &r->label, &r->args);
}

static void test_cross_entropy(void **state) {
    (void)state;
    for (int k = 0; k < ROW_SHAPES * 4 * 16; k++) {
        const int64_t *size = row_shapes[k / 64];
        tn_dtype dtype = array_floats[k / 16 % 4], stat = dtype == TN_F64 ? TN_F64 : TN_F32;
        array x = varied(dtype, k & 1, 2, size, 1),
              label = make(k & 4 ? TN_I32 : TN_I64, k & 1, 1, size);
        array dloss = varied(stat, k & 1, 1, size, 5), lse = varied(stat, DENSE, 1, size, 6);
        for (int64_t i = 0; i < size[0]; i++) {
            array_set(&label, i, size[1] == 0 || i % 5 == 4 ? -100 : (double)(i * 7 % size[1]));
            array_set(&lse, i, 5 + array_get(&lse, i));
        }
        rows r = {
            .x = x.d, .dy = dloss.d, .lse = lse.d, .label = label.d, .args = {-100, k & 2 ? 0.1 : 0}};
        bool double_form = dtype == TN_F64;
        array loss = make(stat, k & 1, 1, size), sum = make(stat, DENSE, 1, size),
              dx = make(dtype, k >> 3 & 1, 2, size);
        trial t = {"cross_entropy", 2, {loss, sum}, call_loss, &r, double_form ? 1e-13 : 2e-6, 0};
        if (size[1] > 0) {
            try_all(&t);
        }
        trial back = {"cross_entropy_backward",   1, {dx}, call_loss_backward, &r,
                      double_form ? 1e-13 : 2e-6, 0};
        try_all(&back);
        forget();
    }
}

/* A label out of range: TN_EINDEX with its place, as ref. */
static void test_bad_indices(void **state) {
    (void)state;
    array x = varied(TN_F32, DENSE, 2, SIZES(4, 6), 1), y = make(TN_F32, DENSE, 2, SIZES(4, 6)),
          index = make(TN_I64, DENSE, 1, SIZES(4));
    array loss = make(TN_F32, DENSE, 1, SIZES(4)), lse = make(TN_F32, DENSE, 1, SIZES(4));
    tn_cross_entropy_args args = {-100, 0};
    for (int64_t i = 0; i < 4; i++) {
        array_set(&index, i, i == 2 ? 6 : 1);
    }
    for (int l = 0; l < 3; l++) {
        const tn_backend *t = level(l);
        if (t) {
            tn_context *c = ctx();
            assert_int_equal(t->cross_entropy(c, &loss.d, &lse.d, &x.d, &index.d, &args), TN_EINDEX);
            assert_int_equal(c->bad_position, 2);
            assert_int_equal(c->bad_value, 6);
            c->bad_position = 0;
            assert_int_equal(t->gather_rows(c, &y.d, &x.d, &index.d), TN_EINDEX);
            assert_int_equal(c->bad_position, 2);
            assert_int_equal(t->scatter_add_rows(c, &x.d, &index.d, &y.d), TN_EINDEX);
        }
    }
}

/* ---- Indexing, random numbers, optimisers ---------------------------------------------------------------------------------------- */

typedef struct indexing {
    tn_desc x, index;
} indexing;
static tn_status call_gather(const tn_backend *t, const tn_desc *const *out, void *user) {
    indexing *i = user;
    return t->gather_rows(ctx(), out[0], &i->x, &i->index);
}
static tn_status call_scatter(const tn_backend *t, const tn_desc *const *out, void *user) {
    indexing *i = user;
    return t->scatter_add_rows(ctx(), out[0], &i->index, &i->x);
}
static void test_rows_by_index(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{0, 4, 3}, {1, 1, 1}, {50, 7, 3}, {300, 20, 130}, {9, 3, 0}};
    for (int k = 0; k < 5 * 4 * 4; k++) {
        const int64_t *s = sizes[k / 16];
        tn_dtype dtype = array_floats[k / 4 % 4];
        array x = varied(dtype, k & 1, 2, s + 1, 1),
              src = varied(dtype, k & 1, 2, SIZES(s[0], s[2]), 2),
              index = make(k & 2 ? TN_I32 : TN_I64, k & 1, 1, s);
        for (int64_t i = 0; i < s[0]; i++) {
            array_set(&index, i, (double)(i * i % s[1]));
        }
        indexing take = {x.d, index.d}, add = {src.d, index.d};
        trial t = {"gather_rows",
                   1,
                   {make(dtype, k >> 1 & 1, 2, SIZES(s[0], s[2]))},
                   call_gather,
                   &take,
                   0,
                   0};
        try_all(&t);
        trial back = {"scatter_add_rows", 1, {x}, call_scatter, &add, 1e-6, 0};
        try_all(&back);
        forget();
    }
}

typedef struct drawing {
    tn_random_kind kind;
    tn_random_key key;
    double a, b;
    tn_desc x;
} drawing;
static tn_status call_random(const tn_backend *t, const tn_desc *const *out, void *user) {
    drawing *d = user;
    return t->random(ctx(), out[0], d->kind, d->key, d->a, d->b);
}
static tn_status call_dropout(const tn_backend *t, const tn_desc *const *out, void *user) {
    drawing *d = user;
    return t->dropout(ctx(), out[0], &d->x, d->a, d->key);
}
static void test_random(void **state) {
    (void)state;
    for (int k = 0; k < SHAPES * 4 * 8; k++) {
        const int64_t *size = shapes[k / 32];
        tn_dtype dtype = array_floats[k / 8 % 4];
        drawing d = {(tn_random_kind[]){TN_UNIFORM, TN_NORMAL, TN_BERNOULLI, TN_UNIFORM}[k % 4],
                     {7, (uint64_t)k / 32, 0x100000002u},
                     0.25,
                     0.75,
                     {0}};
        trial t = {"random",
                   1,
                   {make(dtype, k >> 2 & 1, 3, size)},
                   call_random,
                   &d,
                   d.kind == TN_NORMAL ? 2e-6 : 0,
                   0};
        try_all(&t);
        array x = varied(dtype, k & 1, 3, size, 1);
        d.x = x.d;
        trial drop = {"dropout", 1, {make(dtype, k >> 2 & 1, 3, size)}, call_dropout, &d, 1e-6, 0};
        try_all(&drop);
        forget();
    }
}

/* Five spans of all kinds; out[0] … out[2] are the memory of parameters, first and second state. */
typedef struct stepping {
    bool adam, master;
    tn_adam_step a;
    tn_sgd_step s;
    array grad;
    tn_dtype param_dtype;
} stepping;
static tn_status call_step(const tn_backend *t, const tn_desc *const *out, void *user) {
    stepping *s = user;
    tn_optim_span spans[5];
    const int64_t counts[5] = {1, 0, 16385, 100, 3000};
    int64_t from = 0;
    for (int i = 0; i < 5; i++) {
        size_t wide = out[1]->dtype == TN_F64 ? 8 : 4;
        spans[i] = (tn_optim_span){
            .param = (char *)out[0]->data + from * (int64_t)tn_dtype_size(out[0]->dtype),
            .param_dtype = out[0]->dtype,
            .grad = (char *)s->grad.d.data + from * (int64_t)tn_dtype_size(s->grad.d.dtype),
            .grad_dtype = s->grad.d.dtype,
            .state = {(float *)((char *)out[1]->data + from * (int64_t)wide),
                      (float *)((char *)out[2]->data + from * (int64_t)wide)},
            .count = counts[i],
        };
        if (!s->adam && s->s.momentum == 0) {
            spans[i].state[0] = NULL;
        }
        if (s->master) { /* instead of the second state, which SGD does not need */
            spans[i].master = spans[i].state[1];
        }
        from += counts[i];
    }
    return s->adam ? t->adam(ctx(), spans, 5, &s->a) : t->sgd(ctx(), spans, 5, &s->s);
}
static void test_optimisers(void **state) {
    (void)state;
    const int64_t n = 1 + 16385 + 100 + 3000;
    for (int k = 0; k < 4 * 16; k++) {
        tn_dtype dtype = array_floats[k / 16], wide = dtype == TN_F64 ? TN_F64 : TN_F32;
        stepping s = {.adam = k & 1, .param_dtype = dtype};
        s.a = (tn_adam_step){1e-2, 0.9, 0.999, 1e-8, 0.1, k & 2, 1 + k % 5, 0.5};
        s.s = (tn_sgd_step){1e-2, k & 2 ? 0.9 : 0, k & 4 ? 0.1 : 0, 0.01, k & 4, k & 8, 0.5};
        s.master = !s.adam && k & 8 && dtype != TN_F64;
        s.grad = varied(k & 8 && dtype != TN_F64 ? TN_F32 : dtype, DENSE, 1, &n, 3);
        array p = varied(dtype, DENSE, 1, &n, 1), m = varied(wide, DENSE, 1, &n, 2),
              v = varied(wide, DENSE, 1, &n, 4);
        for (int64_t i = 0; i < n; i++) {
            array_set(&v, i, fabs(array_get(&v, i)) + 0.01);
        }
        if (!s.adam && s.s.first) {
            array_poison(&m); /* the buffer may hold anything before the first step */
            if (s.s.momentum == 0) {
                array_vary(&m, 2);
            }
        }
        trial t = {s.adam ? "adam" : "sgd",       3, {p, m, v}, call_step, &s,
                   wide == TN_F64 ? 1e-13 : 2e-6, 0};
        try_all(&t);
        forget();
    }
}

/* ---- Attention --------------------------------------------------------------------------------------------------------------------- */

typedef struct attending {
    tn_desc q, k, v, y, dy, lse, mask;
    tn_attention_args args;
} attending;
static tn_status call_attention(const tn_backend *t, const tn_desc *const *out, void *user) {
    attending *a = user;
    return t->attention(ctx(), out[0], out[1], &a->q, &a->k, &a->v, &a->args);
}
static tn_status call_attention_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    attending *a = user;
    return t->attention_backward(ctx(), out[0], out[1], out[2], &a->dy, &a->y, &a->lse, &a->q,
                                 &a->k, &a->v, &a->args);
}

/* B, H, G, Tq, Tk, D */
static void try_attention(tn_dtype dtype, const int64_t *s, array_layout layout, bool causal,
                          int masked, bool odd) {
    const int64_t q_size[] = {s[0], s[1], s[3], s[5]}, k_size[] = {s[0], s[2], s[4], s[5]},
                  mask_size[] = {1, s[1], s[3], s[4]};
    tn_dtype stat = dtype == TN_F64 ? TN_F64 : TN_F32;
    array q = varied(dtype, layout, 4, q_size, 1), k = varied(dtype, layout, 4, k_size, 2),
          v = varied(dtype, layout, 4, k_size, 3);
    array dy = varied(dtype, layout, 4, q_size, 4), y = make(dtype, layout, 4, q_size),
          lse = make(stat, layout, 3, q_size);
    array mask = make(TN_BOOL, DENSE, 4, mask_size);
    for (int64_t i = 0; i < mask.count; i++) {
        array_set(&mask, i,
                  (i * 7 + i / 5) % 3 != 0 &&
                      (masked < 2 || i / s[4] % 3 != 1)); /* 2: some rows see nothing */
    }
    if (odd && k.count > 0 && q.count > 0) { /* in the last key and in one query */
        array_set(&v, v.count - 1, NAN);
        array_set(&k, k.count - 1, INFINITY);
        array_set(&dy, dy.count / 2, NAN);
    }
    attending a = {.q = q.d, .k = k.d, .v = v.d, .dy = dy.d, .mask = broadcast(&mask, 0, s[0])};
    a.args = (tn_attention_args){1 / sqrt((double)s[5] + 1), causal, masked ? &a.mask : NULL};
    bool double_form = dtype == TN_F64;
    trial t = {"attention",
               2,
               {y, lse},
               call_attention,
               &a,
               double_form ? 1e-12 : 4e-6,
               double_form ? 1e-12 : 4e-6};
    try_all(&t);
    assert_int_equal(
        tn_backend_named("ref")->attention(ctx(), &y.d, &lse.d, &q.d, &k.d, &v.d, &a.args), TN_OK);
    a.y = y.d;
    a.lse = lse.d;
    array dq = make(dtype, layout, 4, q_size), dk = make(dtype, layout, 4, k_size),
          dv = make(dtype, layout, 4, k_size);
    trial back = {"attention_backward",
                  3,
                  {dq, dk, dv},
                  call_attention_backward,
                  &a,
                  double_form ? 1e-11 : 3e-5,
                  double_form ? 1e-11 : 3e-5 + step_of(dtype)};
    try_all(&back);
    forget();
}

static void test_attention(void **state) {
    (void)state;
    static const int64_t sizes[][6] = {
        {1, 1, 1, 1, 1, 1},    {2, 4, 2, 5, 5, 3},     {1, 2, 2, 65, 65, 8}, {2, 2, 1, 3, 70, 33},
        {1, 1, 1, 9, 4, 5},    {0, 2, 2, 3, 3, 4},     {1, 2, 2, 0, 3, 4},   {1, 2, 1, 3, 0, 4},
        {1, 3, 3, 64, 64, 32}, {1, 1, 1, 130, 133, 16}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int k = 0; k < 4 * 2 * 2 * 3; k++) {
            if (sizes[s][3] * sizes[s][4] > 5000 && k % 4 != 0 && k > 14) { /* ref is slow */
                continue;
            }
            try_attention(array_floats[k % 4], sizes[s], k / 4 & 1, k / 8 & 1, k / 16, k % 5 == 4);
        }
    }
}

/* From inside a parallel region the kernels run serially, with the same bits. */
static void test_nested(void **state) {
    (void)state;
    const int64_t n = 300;
    array a = varied(TN_F32, DENSE, 3, SIZES(1, n, n), 1),
          b = varied(TN_F32, DENSE, 3, SIZES(1, n, n), 2);
    array alone = make(TN_F32, DENSE, 3, SIZES(1, n, n)), inside[3], sums[3],
          sum = make(TN_F32, DENSE, 3, SIZES(1, 1, 1));
    const tn_backend *t = tn_backend_named("cpu");
    assert_int_equal(t->matmul(ctx(), &alone.d, &a.d, &b.d, 1, 0), TN_OK);
    assert_int_equal(t->reduce(ctx(), TN_RED_SUM, &sum.d, &alone.d), TN_OK);
    for (int i = 0; i < 3; i++) {
        inside[i] = make(TN_F32, DENSE, 3, SIZES(1, n, n));
        sums[i] = make(TN_F32, DENSE, 3, SIZES(1, 1, 1));
    }
#pragma omp parallel for num_threads(3)
    for (int i = 0; i < 3; i++) {
        t->matmul(ctx(), &inside[i].d, &a.d, &b.d, 1, 0);
        t->reduce(ctx(), TN_RED_SUM, &sums[i].d, &inside[i].d);
    }
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(inside[i].memory, alone.memory, alone.bytes);
        assert_memory_equal(sums[i].memory, sum.memory, sum.bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ARRAY_TEST(test_unary),
        ARRAY_TEST(test_binary),
        ARRAY_TEST(test_broadcast),
        ARRAY_TEST(test_in_place),
        ARRAY_TEST(test_compare_and_where),
        ARRAY_TEST(test_copy),
        ARRAY_TEST(test_conversions),
        ARRAY_TEST(test_fill),
        ARRAY_TEST(test_reduce),
        ARRAY_TEST(test_sum_is_accurate),
        ARRAY_TEST(test_matmul),
        ARRAY_TEST(test_matmul_broadcast),
        ARRAY_TEST(test_linear),
        ARRAY_TEST(test_softmax),
        ARRAY_TEST(test_norms),
        ARRAY_TEST(test_cross_entropy),
        ARRAY_TEST(test_bad_indices),
        ARRAY_TEST(test_rows_by_index),
        ARRAY_TEST(test_random),
        ARRAY_TEST(test_optimisers),
        ARRAY_TEST(test_attention),
        ARRAY_TEST(test_nested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
