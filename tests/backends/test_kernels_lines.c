/* Operations along one dimension against ref's, which are their loops on the host: argsort, topk,
 * cumsum, cumprod. trial.h. */
#include "kernels.h"
#include "trial.h"

#include "backends/lines.h"

/* One case: ref reads `wide`, since loops on the host take no bf16 and f16. */
typedef struct along {
    tn_desc x, wide;
    int dim;
    int64_t k;
    bool flag; /* descending, largest, reverse */
} along;

static const tn_desc *input_of(const tn_backend *t, const along *a) {
    return strcmp(t->name, "ref") == 0 ? &a->wide : &a->x;
}

static tn_status call_argsort(const tn_backend *t, const tn_desc *const *out, void *user) {
    const along *a = user;
    tn__argsort_args args = {a->dim, a->flag};
    return KERNEL_CALL(t, argsort, .args = &args, .x = {input_of(t, a)}, .y = {out[0]});
}

static tn_status call_topk(const tn_backend *t, const tn_desc *const *out, void *user) {
    const along *a = user;
    tn__topk_args args = {a->k, a->dim, a->flag};
    return KERNEL_CALL(t, topk, .args = &args, .x = {input_of(t, a)}, .y = {out[0]});
}

static tn_status call_cumsum(const tn_backend *t, const tn_desc *const *out, void *user) {
    const along *a = user;
    tn__cumulative_args args = {a->dim, a->flag};
    return KERNEL_CALL(t, cumsum, .args = &args, .x = {&a->x}, .y = {out[0]});
}

static tn_status call_cumprod(const tn_backend *t, const tn_desc *const *out, void *user) {
    const along *a = user;
    tn__cumulative_args args = {a->dim, a->flag};
    return KERNEL_CALL(t, cumprod, .args = &args, .x = {&a->x}, .y = {out[0]});
}

/* Empty, one, short lines, lines of some tiles; many lines, few. */
static const int64_t shapes[][3] = {{0, 3, 2},  {2, 0, 3},  {1, 1, 1},   {3, 5, 7},
                                    {40, 3, 9}, {90, 2, 5}, {2, 1, 5000}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const tn_dtype sorted_dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16, TN_I64,
                                         TN_I32, TN_U8,  TN_I8,   TN_BOOL};
enum { DTYPES = sizeof sorted_dtypes / sizeof *sorted_dtypes };

/* Floats with ties, NaN, infinities, both zeros and numbers close to 0; integers of both signs. */
static along sort_operands(tn_dtype dtype, const int64_t *size, int k) {
    array x = varied_array(dtype, k & 1, 3, size, 1), wide = x;
    bool real = tn_dtype_is_float(dtype);
    for (int64_t i = 0; i < x.count; i++) {
        if (dtype == TN_BOOL || (real && i % 3 == 0)) {
            array_set(&x, i, real ? (double)(i % 7 - 3) : (double)(i % 7 > 3));
        }
    }
    if (real) { spoil_front(&x); }
    if (dtype == TN_BF16 || dtype == TN_F16) {
        wide = make_array(TN_F32, DENSE, 3, size);
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&wide, i, array_get(&x, i));
        }
    }
    return (along){.x = x.d, .wide = wide.d, .dim = k % 3, .flag = k & 2};
}

TRIAL_TEST(test_sorts) {
    if (!KERNEL_OWN(trial_tables()[0], argsort)) { skip(); }
    for (int k = 0; k < SHAPES * DTYPES * 12; k++) {
        const int64_t *size = shapes[k / 12 % SHAPES];
        tn_dtype dtype = sorted_dtypes[k / 12 / SHAPES];
        bool slow = size[0] * size[1] * size[2] > 500 || tn_dtype_size(dtype) == 8;
        if (trial_on_emulator() && slow && k % 5 != 0) { continue; }
        along a = sort_operands(dtype, size, k);
        array y = make_array(TN_I64, k >> 2 & 1, 3, size);
        trial sorts = {"argsort", 1, {y}, call_argsort, &a, 0, 0};
        trial_run(&sorts);
        int64_t kept[] = {size[0], size[1], size[2]};
        a.k = kept[a.dim] = size[a.dim] < 4 ? size[a.dim] : size[a.dim] - 3;
        array best = make_array(TN_I64, k >> 2 & 1, 3, kept);
        trial takes = {"topk", 1, {best}, call_topk, &a, 0, 0};
        trial_run(&takes);
        trial_forget();
    }
}

/* A warp's and a block's lines, in one part and in bands; lines side by side, in bands too. */
static const int64_t scanned[][3] = {{0, 3, 2},    {2, 0, 3},     {1, 1, 1},
                                     {3, 5, 7},    {2, 67, 3},    {3, 2, 300},
                                     {5, 1, 2500}, {1, 1, 17000}, {2, 300, 40}};
enum { SCANNED = sizeof scanned / sizeof *scanned };

/* Case k: numbers near 1, whose products stay near it; the same with 0 and NaN; a 0 at the
 * beginning of numbers whose product leaves f64. */
static array scan_operand(tn_dtype dtype, const int64_t *size, int k) {
    array x = varied_array(dtype, k & 1, 3, size, 1);
    bool large = k & 8, reverse = k & 2;
    if (!tn_dtype_is_float(dtype)) { return x; }
    for (int64_t i = 0; i < x.count; i++) {
        array_set(&x, i, large ? 30.0 : 1 + array_get(&x, i) / 64);
    }
    if (x.count > 16 && k & 12) { array_set(&x, large && reverse ? x.count - 3 : 2, 0); }
    if (x.count > 16 && k & 4 && !large) { array_set(&x, x.count - 3, NAN); }
    return x;
}

TRIAL_TEST(test_scans) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_I64};
    if (!KERNEL_OWN(trial_tables()[0], cumsum)) { skip(); }
    for (int k = 0; k < SCANNED * 3 * 16; k++) {
        const int64_t *size = scanned[k / 16 % SCANNED];
        tn_dtype dtype = dtypes[k / 16 / SCANNED];
        if (trial_on_emulator() && size[0] * size[1] * size[2] > 1000 && k % 5 != 0) { continue; }
        for (int dim = size[2] > 300 ? 2 : 0; dim < 3; dim++) {
            array x = scan_operand(dtype, size, k), y = make_array(dtype, k >> 1 & 1, 3, size);
            along a = {.x = x.d, .dim = dim, .flag = k & 2};
            double near = dtype == TN_F64 ? 1e-12 : 1e-6;
            trial sums = {"cumsum", 1, {y}, call_cumsum, &a, near, 0};
            trial_run(&sums);
            trial products = {"cumprod", 1, {y}, call_cumprod, &a, near, 0};
            trial_run(&products);
            trial_forget();
        }
    }
}
