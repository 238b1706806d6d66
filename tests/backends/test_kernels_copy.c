/* copy, fill and arange against ref: every pair of dtypes, trial.h. */
#include "trial.h"

typedef struct moving {
    tn_desc x;
    double k0, k1;
} moving;

static tn_status call_copy(const tn_backend *t, const tn_desc *const *out, void *user) {
    moving *e = user;
    return TRIAL_CALL(t, copy, out[0], &e->x);
}
static tn_status call_fill(const tn_backend *t, const tn_desc *const *out, void *user) {
    moving *e = user;
    return TRIAL_CALL(t, fill, out[0], e->k0);
}
static tn_status call_arange(const tn_backend *t, const tn_desc *const *out, void *user) {
    moving *e = user;
    return TRIAL_CALL(t, arange, out[0], e->k0, e->k1);
}

TRIAL_TEST(test_copy) {
    for (int k = 0; k < TRIAL_SHAPES * TN_DTYPES * TN_DTYPES * 4; k++) {
        const int64_t *size = trial_shapes[k / (4 * TN_DTYPES * TN_DTYPES)];
        tn_dtype from = (tn_dtype)(k / 4 % TN_DTYPES),
                 to = (tn_dtype)(k / 4 / TN_DTYPES % TN_DTYPES);
        array x = make_array(from, k & 1, 3, size), y = make_array(to, k >> 1 & 1, 3, size);
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&x, i,
                      from == TN_BOOL ? i & 1
                      : from == TN_U8 ? i % 200
                                      : (double)(i % 199) - 90.25);
        }
        if (tn_dtype_is_float(from) && tn_dtype_is_float(to)) { spoil_front(&x); }
        moving e = {.x = x.d};
        trial t = {"copy", 1, {y}, call_copy, &e, 0, 0};
        trial_run(&t);
        trial_forget();
    }
    for (int k = 0; k < 4; k++) { /* the blocked transposition, with remainders both ways */
        tn_dtype dtype = (tn_dtype[]){TN_F32, TN_F64, TN_BF16, TN_U8}[k];
        array x = varied_array(dtype, SPREAD, 2, SIZES(150, 131), 1),
              y = make_array(dtype, DENSE, 2, SIZES(150, 131));
        moving e = {.x = x.d};
        trial t = {"transposed copy", 1, {y}, call_copy, &e, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}

/* x and y are dense in different dimensions: first and last are exchanged, with a batch between
 * them, and sizes end inside, at and after a square of 32. */
TRIAL_TEST(test_transposed) {
    static const int64_t sizes[][3] = {
        {150, 1, 131}, {32, 3, 64}, {17, 2, 33}, {16, 1, 16}, {70, 2, 31}};
    for (int k = 0; k < 5 * 4; k++) {
        const int64_t *size = sizes[k / 4];
        tn_dtype dtype = (tn_dtype[]){TN_F32, TN_F64, TN_BF16, TN_U8}[k % 4];
        array x = make_array(dtype, DENSE, 3, SIZES(size[2], size[1], size[0])),
              y = make_array(dtype, DENSE, 3, size);
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&x, i, (double)(i % 251));
        }
        moving e = {.x = x.d};
        for (int d = 0; d < 3; d++) {
            e.x.size[d] = x.d.size[2 - d];
            e.x.stride[d] = x.d.stride[2 - d];
        }
        trial t = {"transposed copy", 1, {y}, call_copy, &e, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}

/* Every bf16 and f16 to f32, and back f32 near every f16: the conversions are our own code. */
TRIAL_TEST(test_conversions) {
    for (int k = 0; k < 2; k++) {
        tn_dtype half = k ? TN_F16 : TN_BF16;
        array x = make_array(half, DENSE, 1, SIZES(65536)),
              y = make_array(TN_F32, DENSE, 1, SIZES(65536));
        for (int64_t i = 0; i < x.count; i++) {
            ((uint16_t *)x.d.data)[i] = (uint16_t)i;
        }
        moving e = {.x = x.d};
        trial t = {"from half", 1, {y}, call_copy, &e, 0, 0};
        trial_run(&t);
        array wide = make_array(TN_F32, DENSE, 1, SIZES(5 * 65536)),
              back = make_array(half, DENSE, 1, SIZES(5 * 65536));
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
        trial_run(&to);
        trial_forget();
    }
}

TRIAL_TEST(test_fill) {
    for (int k = 0; k < TRIAL_SHAPES * TN_DTYPES * 2; k++) {
        moving e = {.k0 = k % 3 - 0.75};
        tn_dtype dtype = (tn_dtype)(k / 2 % TN_DTYPES);
        array y = make_array(dtype, k & 1, 3, trial_shapes[k / 2 / TN_DTYPES]);
        trial t = {"fill", 1, {y}, call_fill, &e, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}

/* Steps that a dtype cannot represent exactly, negative ones, and outputs with gaps; bool is
 * refused, as by ref. */
TRIAL_TEST(test_arange) {
    static const double steps[] = {1, -0.37, 3, 1e-3};
    for (int k = 0; k < TRIAL_SHAPES * TN_DTYPES * 2; k++) {
        tn_dtype dtype = (tn_dtype)(k / 2 % TN_DTYPES);
        bool whole = !tn_dtype_is_float(dtype);
        moving e = {.k0 = dtype == TN_U8 ? 0 : -5.5, .k1 = steps[k % 4]};
        if (dtype == TN_U8) { /* tables may differ below 0 and beyond 255 */
            e.k1 = 0.01;
        } else if (whole && k % 3 == 0) {
            e.k0 = -0x1p31;
            e.k1 = 0x1p19;
        }
        array y = make_array(dtype, k & 1, 3, trial_shapes[k / 2 / TN_DTYPES]);
        trial t = {"arange", 1, {y}, call_arange, &e, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}
