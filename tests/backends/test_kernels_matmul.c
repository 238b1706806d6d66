/* matmul and linear against ref: trial.h. */
#include "kernels.h"
#include "trial.h"

#include "ops/linalg/linear.h"

#include "tern/sys/op.h"

typedef struct product {
    tn_desc a, b, c;
    bool bias;
    double alpha, beta;
} product;
static tn_status call_matmul(const tn_backend *t, const tn_desc *const *out, void *user) {
    product *p = user;
    return TRIAL_CALL(t, matmul, out[0], &p->a, &p->b, p->alpha, p->beta);
}
static tn_status call_linear(const tn_backend *t, const tn_desc *const *out, void *user) {
    product *p = user;
    return TRIAL_CALL(t, linear, out[0], &p->a, &p->b, p->bias ? &p->c : NULL);
}

/* Sums of so many products, in f32 or f64, of which a bf16 or f16 is made. */
static void try_sums(const char *name,
                     tn_status (*call)(const tn_backend *t, const tn_desc *const *out, void *user),
                     void *user, int outputs, const array *out, tn_dtype dtype, double terms) {
    double scale = sqrt(terms + 1);
    trial t = {.name = name, .outputs = outputs, .call = call, .user = user};
    memcpy(t.start, out, (size_t)outputs * sizeof(*out));
    t.relative = dtype == TN_F64 ? 1e-13 : 1e-6 * scale;
    t.absolute = dtype == TN_F64 ? 1e-13 : scale * 4e-6 + 8 * step_of(out[0].d.dtype);
    trial_run(&t);
    trial_forget();
}

static void try_matmul(tn_dtype dtype, int64_t batch, int64_t m, int64_t k, int64_t n, int layouts,
                       bool accumulate) {
    array a = varied_array(dtype, layouts & 1, 3, SIZES(batch, m, k), 1),
          b = varied_array(dtype, layouts >> 1 & 1, 3, SIZES(batch, k, n), 2);
    array y = make_array(dtype, layouts >> 2 & 1, 3, SIZES(batch, m, n));
    if (accumulate) { array_vary(&y, 3); }
    product p = {.a = a.d, .b = b.d, .alpha = accumulate ? -0.5 : 1, .beta = accumulate ? 0.75 : 0};
    try_sums("matmul", call_matmul, &p, 1, &y, dtype, (double)k);
}

TRIAL_TEST(test_matmul) {
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
    /* beyond one packed block of rows, of depth, of columns */
    try_matmul(TN_F32, 1, 1300, 9, 40, 0, false);
    try_matmul(TN_F32, 1, 30, 1000, 40, 2, true);
    try_matmul(TN_F32, 1, 20, 9, 6500, 0, false);
}

/* Contiguous rows with gaps between them, and one operand for the whole batch. */
TRIAL_TEST(test_matmul_broadcast) {
    for (int k = 0; k < 4; k++) {
        tn_dtype dtype = array_floats[k];
        array a = varied_array(dtype, DENSE, 3, SIZES(1, 33, 21), 1),
              b = varied_array(dtype, DENSE, 3, SIZES(6, 21, 19), 2);
        product p = {.a = broadcast_along(&a, 0, 6), .b = b.d, .alpha = 1};
        trial t = {"broadcast matmul",
                   1,
                   {make_array(dtype, DENSE, 3, SIZES(6, 33, 19))},
                   call_matmul,
                   &p,
                   1e-5,
                   1e-5 + 8 * step_of(dtype)};
        trial_run(&t);
        trial_forget();
    }
}

TRIAL_TEST(test_linear) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {5, 3, 4},    {0, 3, 4},     {3, 0, 4},
                                       {3, 4, 0}, {1, 130, 70}, {100, 65, 48}, {70, 400, 37}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int k = 0; k < 4 * 8 * 2; k++) {
            tn_dtype dtype = array_floats[k % 4];
            int64_t m = sizes[s][0], in = sizes[s][1], out = sizes[s][2];
            array x = varied_array(dtype, k / 4 & 1, 2, SIZES(m, in), 1),
                  w = varied_array(dtype, k / 8 & 1, 2, SIZES(out, in), 2);
            array b = varied_array(dtype, k / 4 & 1, 1, SIZES(out), 3),
                  y = make_array(dtype, k / 16 & 1, 2, SIZES(m, out));
            product p = {.a = x.d, .b = w.d, .c = b.d, .bias = k >= 32};
            try_sums("linear", call_linear, &p, 1, &y, dtype, (double)in);
        }
    }
}

/* One row and a few more, up to where another kernel takes over; rows of w that end inside a
 * vector, inside a word and at the end of both; groups and strips of rows of w that are not full.
 */
TRIAL_TEST(test_few_rows) {
    static const int64_t ins[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130, 769},
                         outs[] = {1, 3, 4, 5, 31, 32, 33, 67};
    enum { INS = sizeof ins / sizeof *ins, OUTS = sizeof outs / sizeof *outs };
    for (int k = 0; k < 9 * INS * OUTS; k++) {
        int64_t m = 1 + k % 9, in = ins[k / 9 % INS], out = outs[k / 9 / INS];
        tn_dtype dtype = array_floats[k % 4];
        array x = varied_array(dtype, k / 4 & 1, 2, SIZES(m, in), 1),
              w = varied_array(dtype, DENSE, 2, SIZES(out, in), 2);
        array b = varied_array(dtype, k / 4 & 1, 1, SIZES(out), 3),
              y = make_array(dtype, k / 8 & 1, 2, SIZES(m, out));
        product p = {.a = x.d, .b = w.d, .c = b.d, .bias = k / 16 & 1};
        try_sums("linear, few rows", call_linear, &p, 1, &y, dtype, (double)in);
    }
}

/* The same through matmul: b transposed, the product scaled and added to y; a vector on either
 * side. */
TRIAL_TEST(test_few_rows_added) {
    for (int k = 0; k < 4 * 9 * 2 * 2; k++) {
        tn_dtype dtype = array_floats[k % 4];
        int64_t m = 1 + k / 4 % 9, n = 70, in = 97;
        bool turned = k / 36 & 1, added = k / 72;
        array a = varied_array(dtype, DENSE, 3, turned ? SIZES(2, n, in) : SIZES(2, m, in), 1),
              b = varied_array(dtype, DENSE, 3, turned ? SIZES(2, m, in) : SIZES(2, n, in), 2),
              y = make_array(dtype, DENSE, 3, turned ? SIZES(2, n, m) : SIZES(2, m, n));
        if (added) { array_vary(&y, 3); }
        product p = {.a = a.d,
                     .b = tn_desc_swap(&b.d, 1, 2),
                     .alpha = added ? -0.5 : 1,
                     .beta = added ? 0.75 : 0};
        try_sums("matmul, few rows", call_matmul, &p, 1, &y, dtype, (double)in);
    }
}

/* ---- An 8-bit weight ------------------------------------------------------------------------- */

typedef struct quantised {
    tn_desc x, w, scale, b;
    bool bias;
} quantised;
static tn_status call_linear_q8(const tn_backend *t, const tn_desc *const *out, void *user) {
    quantised *q = user;
    return run_linear_q8(t, out[0], &q->x, &q->w, &q->scale, q->bias ? &q->b : NULL);
}

/* As many rows as in test_few_rows, and more; every byte; a scale of any dtype; a weight whose rows
 * are not adjacent, which is widened whatever the number of rows. */
TRIAL_TEST(test_linear_q8) {
    if (trial_on_cuda()) { skip(); }
    static const int64_t ms[] = {0, 1, 2, 3, 4, 5, 8, 9, 40},
                         ins[] = {0, 1, 3, 15, 16, 17, 63, 64, 65, 257, 1100},
                         outs[] = {0, 1, 5, 32, 37, 70};
    enum { MS = sizeof ms / sizeof *ms, INS = sizeof ins / sizeof *ins, OUTS = 6 };
    for (int k = 0; k < MS * INS * OUTS; k++) {
        int64_t m = ms[k % MS], in = ins[k / MS % INS], out = outs[k / (MS * INS)];
        int way = k + k / MS;
        tn_dtype dtype = array_floats[way % 4];
        array x = varied_array(dtype, way / 2 & 1, 2, SIZES(m, in), 1),
              w = make_array(TN_I8, k % 7 == 0 ? SPREAD : DENSE, 2, SIZES(out, in)),
              scale = varied_array(k % 5 ? TN_F32 : dtype, way & 1, 1, SIZES(out), 2),
              b = varied_array(dtype, way / 2 & 1, 1, SIZES(out), 3),
              y = make_array(dtype, way / 4 & 1, 2, SIZES(m, out));
        for (int64_t i = 0; i < w.count; i++) {
            array_set(&w, i, (double)((i * 89 + k) % 256 - 128));
        }
        quantised q = {x.d, w.d, scale.d, b.d, .bias = way / 8 & 1};
        double most = 128 * sqrt((double)in + 1);
        trial t = {"linear_q8",
                   1,
                   {y},
                   call_linear_q8,
                   &q,
                   dtype == TN_F64 ? 1e-13 * most : 1e-6 * most,
                   dtype == TN_F64 ? 1e-13 * most : most * 4e-6 + 8 * step_of(dtype)};
        trial_run(&t);
        trial_forget();
    }
}

/* A larger weight than is widened at a time. */
TRIAL_TEST(test_linear_q8_blocks) {
    if (trial_on_cuda()) { skip(); }
    array x = varied_array(TN_BF16, DENSE, 2, SIZES(9, 4100), 1),
          w = make_array(TN_I8, DENSE, 2, SIZES(300, 4100)),
          scale = varied_array(TN_F32, DENSE, 1, SIZES(300), 2),
          b = varied_array(TN_BF16, DENSE, 1, SIZES(300), 3);
    for (int64_t i = 0; i < w.count; i++) {
        array_set(&w, i, (double)(i * 89 % 256 - 128));
    }
    quantised q = {x.d, w.d, scale.d, b.d, true};
    trial t = {"linear_q8, blocks", 1,  {make_array(TN_BF16, DENSE, 2, SIZES(9, 300))},
               call_linear_q8,      &q, 1e-2,
               128 * 64 * 4e-6};
    trial_run(&t);
    trial_forget();
}

/* A weight that does not begin at a whole pack, as a slice, has the bits of its copy that does. */
TRIAL_TEST(test_slice_of_weight) {
    enum { M = 3, IN = 1200, OUT = 5 };
    const tn_backend *t = trial_tables()[0];
    if (!KERNEL_OWN(t, linear_cat)) { skip(); }
    for (int k = 0; k < 4 * M; k++) {
        int64_t m = 1 + k / 4;
        tn_dtype dtype = array_floats[k % 4];
        array x = varied_array(dtype, DENSE, 1, SIZES(m * IN), 1),
              w = make_array(dtype, DENSE, 1, SIZES(OUT * IN)),
              behind = make_array(dtype, DENSE, 1, SIZES(1 + OUT * IN)),
              y[2] = {make_array(dtype, DENSE, 1, SIZES(m * OUT)),
                      make_array(dtype, DENSE, 1, SIZES(m * OUT))};
        array_vary(&behind, 2);
        for (int64_t i = 0; i < OUT * IN; i++) {
            array_set(&w, i, array_get(&behind, 1 + i));
        }
        for (int i = 0; i < 2; i++) {
            tn_desc rows = {x.d.data, dtype, 2, {m, IN}, {IN, 1}},
                    weight = {w.d.data, dtype, 2, {OUT, IN}, {IN, 1}},
                    result = {y[i].d.data, dtype, 2, {m, OUT}, {OUT, 1}};
            if (i == 1) { weight.data = (char *)behind.d.data + tn_dtype_size(dtype); }
            tn_status status = KERNEL_CALL(t, linear_cat, .x = {&rows, &weight}, .y = {&result});
            assert_int_equal(trial_wait(t, status), TN_OK);
        }
        for (int64_t i = 0; i < m * OUT; i++) {
            assert_true(array_get(&y[0], i) == array_get(&y[1], i));
        }
        trial_forget();
    }
}

/* NaN and infinities of either side reach the elements that depend on them, and no others. */
TRIAL_TEST(test_few_rows_odd) {
    for (int k = 0; k < 4; k++) {
        array x = varied_array(array_floats[k], DENSE, 2, SIZES(2, 37), 1),
              w = varied_array(array_floats[k], DENSE, 2, SIZES(33, 37), 2);
        array_set(&x, 37 + 36, NAN);
        array_set(&w, 5 * 37 + 36, INFINITY);
        array_set(&w, 7 * 37 + 1, 1e-40);
        product p = {.a = x.d, .b = w.d};
        trial t = {"linear, odd values",
                   1,
                   {make_array(array_floats[k], DENSE, 2, SIZES(2, 33))},
                   call_linear,
                   &p,
                   1e-5,
                   1e-5 + 8 * step_of(array_floats[k])};
        trial_run(&t);
        trial_forget();
    }
}

/* ---- Exact sums ------------------------------------------------------------------------------ */

/* Integers from -4 to 4: f32 holds their sums exactly, in any order. */
static array small_integers(tn_dtype dtype, array_layout layout, int64_t rows, int64_t columns,
                            int64_t salt) {
    array a = make_array(dtype, layout, 2, SIZES(rows, columns));
    for (int64_t i = 0; i < a.count; i++) {
        array_set(&a, i, (double)((i * 7919 + i / columns * 31 + salt) % 9 - 4));
    }
    return a;
}

/* Dense, transposed, with gaps, or rows at an odd distance from each other. */
static tn_desc integer_operand(tn_dtype dtype, int way, int64_t rows, int64_t columns,
                               int64_t salt) {
    if (way == 1) {
        array turned = small_integers(dtype, ROW_MAJOR, columns, rows, salt);
        return tn_desc_swap(&turned.d, 0, 1);
    }
    int64_t more = way == 3 ? 1 + columns % 2 : 0;
    array a = small_integers(dtype, way == 2 ? SPREAD : ROW_MAJOR, rows, columns + more, salt);
    a.d.size[1] = columns;
    return a.d;
}

static tn_desc stacked_desc(tn_desc d) {
    tn_desc s = d;
    s.ndim = 3;
    s.size[0] = 1;
    s.stride[0] = d.size[0] * d.size[1];
    memcpy(s.size + 1, d.size, 2 * sizeof(*d.size));
    memcpy(s.stride + 1, d.stride, 2 * sizeof(*d.stride));
    return s;
}

static void try_integers(tn_dtype in, tn_dtype out, const int64_t *size, int ways, bool add) {
    int64_t m = size[0], k = size[1], n = size[2];
    array y = small_integers(out, ROW_MAJOR, m, n, 3), row = small_integers(in, SPREAD, 1, n, 2);
    tn_desc a = integer_operand(in, ways % 4, m, k, 1), b = integer_operand(in, ways / 4, k, n, 5);
    if (in == out) {
        product p = {.a = a, .b = tn_desc_swap(&b, 0, 1), .bias = add};
        p.c = (tn_desc){row.d.data, in, 1, {n}, {row.d.stride[1]}};
        trial t = {"linear of integers", 1, {y}, call_linear, &p, 0, 0};
        trial_run(&t);
    }
    y.d = stacked_desc(y.d);
    product p = {stacked_desc(a), stacked_desc(b), .alpha = add ? -0.5 : 1, .beta = add ? 0.25 : 0};
    trial t = {"matmul of integers", 1, {y}, call_matmul, &p, 0, 0};
    trial_run(&t);
    trial_forget();
}

/* bf16 with sums in f32, which a processor may multiply in pairs, and f32. Few rows and more than
 * few_rows takes; panels that are not full; an odd k; k in two and in three cuts. A bf16 result is
 * rounded once, so it is exact too. */
ARRAY_TEST(test_integers) {
    if (trial_on_cuda()) { skip(); }
    static const int64_t sizes[][3] = {{1, 100, 37},  {2, 33, 70},   {3, 65, 40},  {8, 769, 33},
                                       {9, 1, 1},     {12, 2, 32},   {25, 33, 31}, {36, 64, 65},
                                       {13, 769, 33}, {30, 1601, 40}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int ways = 0; ways < 16; ways++) {
            for (int add = 0; add < 2; add++) {
                try_integers(TN_BF16, TN_BF16, sizes[s], ways, add);
                try_integers(TN_BF16, TN_F32, sizes[s], ways, add);
                try_integers(TN_F32, TN_F32, sizes[s], ways, add);
            }
        }
    }
    for (int way = 0; way < 16; way++) { /* more rows than are multiplied at once */
        try_integers(TN_F32, TN_F32, (const int64_t[]){9 + way % 8, 1030, 1025}, way, way & 1);
    }
    /* beyond one packed block of rows, of columns */
    try_integers(TN_BF16, TN_BF16, (const int64_t[]){2130, 9, 40}, 0, true);
    try_integers(TN_BF16, TN_BF16, (const int64_t[]){20, 800, 6200}, 4, true);
}

/* What is not a number stays in its row and column, at the end of an odd k too. */
ARRAY_TEST(test_pairs_odd) {
    if (trial_on_cuda()) { skip(); }
    for (int way = 0; way < 4; way++) {
        tn_desc a = integer_operand(TN_BF16, way, 25, 37, 1),
                b = integer_operand(TN_BF16, way, 37, 40, 2);
        tn_bf16 *x = a.data, *y = b.data;
        x[3 * a.stride[0] + 36 * a.stride[1]] = tn_bf16_from_float(INFINITY);
        x[24 * a.stride[0] + 35 * a.stride[1]] = tn_bf16_from_float(NAN);
        y[36 * b.stride[0] + 39 * b.stride[1]] = tn_bf16_from_float(-INFINITY);
        product p = {stacked_desc(a), stacked_desc(b), .alpha = 1};
        trial t = {"matmul, odd values",
                   1,
                   {make_array(TN_BF16, DENSE, 3, SIZES(1, 25, 40))},
                   call_matmul,
                   &p,
                   0,
                   0};
        trial_run(&t);
        trial_forget();
    }
}

/* ---- Tiles ------------------------------------------------------------------------------------
 */

static float flush_tiny(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* What tiles make of row i of a and column j of b (tiles.h): k in cuts of at most 512, each in
 * steps of 32, the last filled up with 0. */
static float tiled_sum(const product *p, int64_t i, int64_t j, float before) {
    const tn_desc *a = &p->a, *b = &p->b;
    const tn_bf16 *x = (const tn_bf16 *)a->data + i * a->stride[1],
                  *y = (const tn_bf16 *)b->data + j * b->stride[2];
    int64_t k = a->size[2], cuts = (k + 511) / 512, depth = ((k + cuts - 1) / cuts + 31) / 32 * 32;
    float sum = (float)p->beta * before;
    for (int64_t p0 = 0; p0 < k; p0 += depth) {
        float part = 0;
        for (int64_t at = p0; at < p0 + depth; at += 32) {
            float chain[2] = {0};
            for (int64_t q = at; q < at + 32; q++) {
                float u = q < k ? flush_tiny(tn_bf16_to_float(x[q * a->stride[2]])) : 0,
                      v = q < k ? flush_tiny(tn_bf16_to_float(y[q * b->stride[1]])) : 0;
                chain[q % 2] = flush_tiny(fmaf(u, v, chain[q % 2]));
            }
            part = flush_tiny(part + flush_tiny(chain[0] + chain[1]));
        }
        sum = p->beta != 0 || p0 > 0 ? (float)p->alpha * part + sum : (float)p->alpha * part;
    }
    return sum;
}

/* Numbers about 1, of very different sizes, whose products are about the smallest that is not
 * subnormal, of any bits that are finite, and with a few that are not. */
static tn_desc drawn_operand(int kind, bool turned, int64_t rows, int64_t columns) {
    array a =
        make_array(TN_BF16, ROW_MAJOR, 2, turned ? SIZES(columns, rows) : SIZES(rows, columns));
    static const int lowest[] = {126, 110, 60}, exponents[] = {2, 30, 8};
    tn_bf16 *x = a.d.data;
    for (int64_t i = 0; i < a.count; i++) {
        uint16_t bits = (uint16_t)rand();
        if (kind < 3) {
            int exponent = lowest[kind] + rand() % exponents[kind];
            bits = (uint16_t)((bits & 0x807f) | exponent << 7);
        } else if ((bits & 0x7f80) > 0x5f80 && (kind == 3 || rand() % 20)) {
            bits &= 0xbfff; /* products of the others are finite */
        }
        memcpy(&x[i], &bits, sizeof(bits));
    }
    return stacked_desc(turned ? tn_desc_swap(&a.d, 0, 1) : a.d);
}

static bool same_float(float x, float y) {
    return memcmp(&x, &y, sizeof(x)) == 0 || (isnan(x) && isnan(y));
}

/* `way`: a, b transposed; the result transposed, rounded; added to. */
static void try_tiles(const tn_backend *t, int64_t m, int64_t k, int64_t n, int way) {
    bool turned = way >> 2 & 1, rounded = way >> 3 & 1, added = way >> 4 & 1 && !rounded;
    product p = {.a = drawn_operand((int)(m + k + n) % 5, way & 1, m, k),
                 .b = drawn_operand((int)(m + k + n) % 5, way >> 1 & 1, k, n),
                 .alpha = 1,
                 .beta = added};
    array y =
        small_integers(rounded ? TN_BF16 : TN_F32, ROW_MAJOR, turned ? n : m, turned ? m : n, 3);
    tn_desc out = stacked_desc(turned ? tn_desc_swap(&y.d, 0, 1) : y.d);
    float *wanted = malloc((size_t)(m * n) * sizeof(float));
    for (int64_t i = 0; i < m * n; i++) {
        int64_t at = turned ? i % n * m + i / n : i;
        wanted[i] = tiled_sum(&p, i / n, i % n, added ? (float)array_get(&y, at) : 0);
        wanted[i] = rounded ? tn_bf16_to_float(tn_bf16_from_float(wanted[i])) : wanted[i];
    }
    for (int threads = 1; threads <= 3; threads++) {
        array start = small_integers(y.d.dtype, ROW_MAJOR, y.d.size[0], y.d.size[1], 3);
        memcpy(y.d.data, start.d.data, (size_t)(m * n) * tn_dtype_size(y.d.dtype));
        tn_set_threads(threads);
        assert_int_equal(TRIAL_CALL(t, matmul, &out, &p.a, &p.b, p.alpha, p.beta), TN_OK);
        for (int64_t i = 0; i < m * n; i++) {
            float given = (float)array_get(&y, turned ? i % n * m + i / n : i);
            if (!same_float(given, wanted[i])) {
                fail_msg("%s, %d threads: (%d, %d, %d), way %d: element (%d, %d) is %a, not %a",
                         t->name, threads, (int)m, (int)k, (int)n, way, (int)(i / n), (int)(i % n),
                         given, wanted[i]);
            }
        }
    }
    tn_set_threads(2);
    free(wanted);
    trial_forget();
}

/* Every m, n and k from 1 to 70, and more than a cut of k, a task, a packed block of rows. Up to
 * four rows few_rows has other bits. */
static void try_all_tiles(const char *name) {
    const tn_backend *t = tn_backend_named(name);
    if (!t) {
        fprintf(stderr, "NOT TESTED: this machine has no table %s\n", name);
        skip();
    }
    for (int i = 0; i < 70 * 3; i++) {
        int64_t a = 1 + i % 70, b = 1 + i * 29 % 70, c = 1 + i * 47 % 70;
        int64_t m = i < 70 ? a : b, n = i < 140 && i >= 70 ? a : c,
                k = i >= 140 ? a
                    : i < 70 ? b
                             : c;
        try_tiles(t, m + 4 * (m < 5), k, n + 4 * (n < 5 && (i & 4)), i % 32);
        try_tiles(t, m, k + (k == 1), n + (n == 1), i % 32 & ~6); /* b by its rows */
    }
    for (int way = 0; way < 32; way++) {
        try_tiles(t, 33, way % 2 ? 1030 : 600 + way, 40, way);
    }
    try_tiles(t, 150, 40, 530, 0);
    try_tiles(t, 2100, 3, 33, 1);
    try_tiles(t, 33, 3, 4200, 8);
}

ARRAY_TEST(test_twin) {
    if (trial_on_cuda()) { skip(); }
    try_all_tiles("cpu-amx-twin");
}

/* The same numbers from the processor's own tiles: this holds the twin to them. */
ARRAY_TEST(test_tiles) {
    if (trial_on_cuda()) { skip(); }
    try_all_tiles("cpu-amx");
}

/* ---- Kernels that only a device has ------------------------------------------------- */

static tn_status call_linear_gelu(const tn_backend *t, const tn_desc *const *out, void *user) {
    product *p = user;
    return run_linear_gelu(t, out[0], out[1], &p->a, &p->b, p->bias ? &p->c : NULL);
}

/* Dense rows at a multiple of 16 bytes, as cuBLASLt requires for two outputs at once. */
static array aligned_rows(tn_dtype dtype, int64_t rows, int64_t columns) {
    array a = make_array(dtype, DENSE, 2, SIZES(rows + 16, columns));
    memset(a.memory, ARRAY_GAP, a.bytes);
    a.d.size[0] = rows;
    a.count = rows * columns;
    a.d.data = (char *)a.d.data + (16 - (uintptr_t)a.d.data % 16) % 16;
    array_poison(&a);
    return a;
}

TRIAL_TEST(test_linear_gelu) {
    static const int64_t sizes[][3] = {{1, 1, 1},  {5, 3, 4},    {0, 3, 4},    {3, 0, 4},
                                       {9, 16, 8}, {70, 65, 48}, {33, 100, 37}};
    if (!trial_on_cuda()) { skip(); }
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int k = 0; k < 4 * 4 * 2 * 2; k++) {
            tn_dtype dtype = array_floats[k % 4];
            int64_t m = sizes[s][0], in = sizes[s][1], out = sizes[s][2];
            array x = varied_array(dtype, k / 4 & 1, 2, SIZES(m, in), 1),
                  w = varied_array(dtype, k / 8 & 1, 2, SIZES(out, in), 2),
                  b = varied_array(dtype, k / 4 & 1, 1, SIZES(out), 3),
                  y = make_array(dtype, k / 8 & 1, 2, SIZES(m, out)),
                  pre = make_array(dtype, k / 8 & 1, 2, SIZES(m, out));
            if (!(k / 8 & 1)) {
                y = aligned_rows(dtype, m, out);
                pre = aligned_rows(dtype, m, out);
            }
            product p = {.a = x.d, .b = w.d, .c = b.d, .bias = k / 16 & 1};
            try_sums("linear_gelu", call_linear_gelu, &p, 1 + k / 32, (array[]){y, pre}, dtype,
                     (double)in);
        }
    }
}

typedef struct gradients {
    tn_desc dy, x;
    bool with_bias, accumulate;
} gradients;
static tn_status call_backward_weight(const tn_backend *t, const tn_desc *const *out, void *user) {
    gradients *g = user;
    const tn_op_back b = {.kernels = t,
                          .ctx = trial_context(t),
                          .x = {&g->x},
                          .dx = {NULL, out[0], g->with_bias ? out[1] : NULL},
                          .adds = g->accumulate ? TN__LINEAR_WEIGHTS : 0};
    return tn__linear_back(&b, &g->dy);
}

TRIAL_TEST(test_linear_backward_weight) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {5, 3, 4},  {0, 3, 4},    {3, 0, 4},
                                       {3, 4, 0}, {9, 16, 8}, {70, 65, 48}, {133, 10, 37}};
    if (!trial_on_cuda()) { skip(); }
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int k = 0; k < 4 * 4 * 2 * 2 * 2; k++) {
            tn_dtype dtype = array_floats[k % 4], sums = dtype;
            if (k / 64) { /* the gradients are f32 */
                if (dtype != TN_BF16 && dtype != TN_F16) { continue; }
                sums = TN_F32;
            }
            int64_t n = sizes[s][0], in = sizes[s][1], out = sizes[s][2];
            array dy = varied_array(dtype, k / 4 & 1, 2, SIZES(n, out), 1),
                  x = varied_array(dtype, k / 8 & 1, 2, SIZES(n, in), 2),
                  dw = varied_array(sums, k / 8 & 1, 2, SIZES(out, in), 3),
                  db = varied_array(sums, k / 4 & 1, 1, SIZES(out), 4);
            gradients g = {dy.d, x.d, .with_bias = k / 16 & 1, .accumulate = k / 32 & 1};
            try_sums("linear_backward_weight", call_backward_weight, &g, 1 + g.with_bias,
                     (array[]){dw, db}, dtype, (double)n);
        }
    }
}

/* y is column-major; one b for a batch that becomes rows; candidates are timed, since the context
 * need not be deterministic. */
TRIAL_TEST(test_matmul_layouts) {
    tn_set_deterministic(false);
    for (int k = 0; k < 4 * 2 * 2; k++) {
        tn_dtype dtype = array_floats[k % 4];
        array a = varied_array(dtype, DENSE, 3, SIZES(3, 17, 24), 1),
              b = varied_array(dtype, DENSE, 3, SIZES(1, 24, 40), 2),
              y = make_array(dtype, DENSE, 3, k & 4 ? SIZES(3, 40, 17) : SIZES(3, 17, 40));
        if (k & 4) { y.d = tn_desc_swap(&y.d, 1, 2); }
        if (k & 8) { array_vary(&y, 3); }
        product p = {
            .a = a.d, .b = broadcast_along(&b, 0, 3), .alpha = 2, .beta = k & 8 ? -0.5 : 0};
        trial t = {"matmul, other layouts",
                   1,
                   {y},
                   call_matmul,
                   &p,
                   dtype == TN_F64 ? 1e-13 : 1e-5,
                   dtype == TN_F64 ? 1e-13 : 2e-5 + 16 * step_of(dtype)};
        trial_run(&t);
        trial_forget();
    }
    tn_set_deterministic(true);
}
