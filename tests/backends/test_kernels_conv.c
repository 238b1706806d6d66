/* Convolutions against ref: trial.h. */
#include "trial.h"

typedef struct sliding {
    tn_desc x, w, b, dy;
    tn_conv_args args;
    bool with_bias, with_weight;
} sliding;

static tn_status call_conv(const tn_backend *t, const tn_desc *const *out, void *user) {
    sliding *s = user;
    return TRIAL_CALL(t, conv, out[0], &s->x, &s->w, s->with_bias ? &s->b : NULL, &s->args);
}
static tn_status call_input(const tn_backend *t, const tn_desc *const *out, void *user) {
    sliding *s = user;
    return TRIAL_CALL(t, conv_backward_input, out[0], &s->dy, &s->w, s->with_bias ? &s->b : NULL,
                      &s->args);
}
static tn_status call_weight(const tn_backend *t, const tn_desc *const *out, void *user) {
    sliding *s = user;
    return TRIAL_CALL(t, conv_backward_weight, s->with_weight ? out[0] : NULL,
                      s->with_bias ? out[s->with_weight] : NULL, &s->dy,
                      s->with_weight ? &s->x : NULL, &s->args);
}

/* Sizes of x, the output channels, the groups, and the kernel with its stride, padding and
 * dilation. */
typedef struct shape {
    int64_t n, c, o, groups, x[3], k[3], stride[3], padding[3], dilation[3];
} shape;

static const shape shapes[] = {
    {0, 2, 3, 1, {1, 4, 4}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}}, /* no batch */
    {2, 0, 3, 1, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}}, /* no input channels */
    {2, 2, 0, 1, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}}, /* no output channels */
    {1, 1, 1, 1, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}},
    {2, 3, 5, 1, {1, 1, 19}, {1, 1, 4}, {1, 1, 1}, {0, 0, 2}, {1, 1, 1}},
    {2, 3, 5, 1, {1, 7, 6}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}},
    {1, 2, 3, 1, {1, 9, 8}, {1, 3, 2}, {1, 2, 3}, {0, 1, 0}, {1, 1, 1}},
    {2, 4, 6, 2, {1, 8, 9}, {1, 2, 3}, {1, 3, 2}, {0, 2, 4}, {1, 2, 3}},
    {1, 6, 6, 6, {1, 5, 20}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}}, /* depthwise */
    {1, 2, 4, 1, {3, 4, 5}, {2, 3, 2}, {1, 2, 1}, {1, 0, 1}, {1, 1, 2}},
    {3, 4, 9, 1, {1, 5, 5}, {1, 1, 1}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}}, /* skips pixels */
    {1, 1, 2, 1, {1, 2, 3}, {1, 2, 2}, {1, 1, 1}, {0, 5, 4}, {1, 1, 1}}, /* all padding */
    {2, 35, 21, 1, {1, 6, 7}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Larger than a block of the fast kernels, in each dimension. */
static const shape large[] = {
    {3, 20, 70, 1, {1, 13, 13}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}},
    {2, 70, 9, 1, {1, 6, 11}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}},
    {1, 3, 17, 1, {1, 1, 1300}, {1, 1, 5}, {1, 1, 2}, {0, 0, 2}, {1, 1, 3}},
    {40, 2, 3, 1, {1, 4, 4}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}},
    {1, 600, 5, 1, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}},
    {1, 8, 130, 2, {1, 5, 5}, {1, 2, 2}, {1, 1, 1}, {0, 1, 0}, {1, 1, 1}},
    {1, 2, 3, 1, {9, 9, 9}, {7, 7, 7}, {1, 1, 1}, {3, 3, 3}, {1, 1, 1}},
    {2, 35, 9, 1, {1, 29, 30}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}}, /* rows across panels */
    /* groups, strides, dilation, three dimensions, several images */
    {2, 48, 64, 2, {1, 9, 10}, {1, 3, 3}, {1, 2, 1}, {0, 2, 1}, {1, 2, 2}},
    {2, 17, 33, 1, {3, 6, 7}, {2, 3, 2}, {1, 1, 3}, {1, 1, 2}, {1, 1, 1}},
    {19, 40, 32, 1, {1, 6, 5}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}},
    /* 3 x 3 with many channels, by squares of 2 x 2 places: odd sizes, small images across a panel,
     * and a sum in several parts */
    {2, 33, 44, 1, {1, 13, 22}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}},
    {37, 40, 32, 1, {1, 4, 5}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}},
    {1, 210, 37, 1, {1, 4, 101}, {1, 3, 3}, {1, 1, 1}, {0, 0, 2}, {1, 1, 1}},
};
enum { LARGE = sizeof large / sizeof *large };

static int64_t output_places(const shape *s, int d) {
    return (s->x[d] + 2 * s->padding[d] - s->dilation[d] * (s->k[d] - 1) - 1) / s->stride[d] + 1;
}

/* Case k of a shape: bits for the layouts of inputs and outputs, and for the bias. Sums have
 * `terms` products of up to 4: the error is one rounding of the sum of their magnitudes for each
 * level of the summation. */
static void try_shape(const shape *s, tn_dtype dtype, tn_dtype wide, int k) {
    const int64_t x_size[] = {s->n, s->c, s->x[0], s->x[1], s->x[2]},
                  w_size[] = {s->o, s->c / s->groups, s->k[0], s->k[1], s->k[2]},
                  y_size[] = {s->n, s->o, output_places(s, 0), output_places(s, 1),
                              output_places(s, 2)};
    array_layout in = k & 1 ? SPREAD : DENSE, out = k >> 1 & 1 ? SPREAD : DENSE;
    array x = varied_array(dtype, in, 5, x_size, 1), w = varied_array(dtype, out, 5, w_size, 2),
          dy = varied_array(dtype, in, 5, y_size, 3), y = make_array(dtype, out, 5, y_size),
          dx = make_array(dtype, out, 5, x_size), dw = make_array(wide, out, 5, w_size),
          db = make_array(wide, out, 1, &s->o);
    array b = varied_array(dtype, in, 1, &s->o, 4), c = varied_array(dtype, in, 1, &s->c, 5);
    sliding a = {.x = x.d, .w = w.d, .b = b.d, .dy = dy.d, .args = {.groups = s->groups}};
    memcpy(a.args.stride, s->stride, sizeof s->stride);
    memcpy(a.args.padding, s->padding, sizeof s->padding);
    memcpy(a.args.dilation, s->dilation, sizeof s->dilation);
    a.with_bias = k >> 2 & 1;
    a.with_weight = true;
    double step = dtype == TN_F64 ? 0x1p-50 : 0x1p-21;
    int64_t kernel = s->k[0] * s->k[1] * s->k[2], reach = y_size[2] * y_size[3] * y_size[4];
    double terms = (double)(s->c * kernel + 1), back = (double)(s->o * kernel + 1),
           all = (double)(s->n * reach + 1);
    trial forward = {"conv", 1, {y}, call_conv, &a, step, step * terms};
    trial_run(&forward);
    a.b = c.d;
    trial input = {"conv_backward_input", 1, {dx}, call_input, &a, step, step * back};
    trial_run(&input);
    trial weight = {
        "conv_backward_weight", 1 + a.with_bias, {dw, db}, call_weight, &a, step, step * all};
    trial_run(&weight);
    a.with_weight = false;
    if (a.with_bias) {
        trial bias = {
            "conv_backward_weight, bias alone", 1, {db}, call_weight, &a, step, step * all};
        trial_run(&bias);
    }
    trial_forget();
}

TRIAL_TEST(test_small) {
    for (int i = 0; i < SHAPES; i++) {
        for (int k = 0; k < 8; k++) {
            for (int t = 0; t < 4; t++) {
                try_shape(&shapes[i], array_floats[t], array_floats[t], k);
            }
            try_shape(&shapes[i], TN_BF16, TN_F32, k);
            try_shape(&shapes[i], TN_F16, TN_F32, k);
        }
    }
}

TRIAL_TEST(test_large) {
    for (int i = 0; i < (trial_on_emulator() ? 0 : LARGE); i++) {
        for (int k = 0; k < 8; k += 3) {
            try_shape(&large[i], TN_F32, TN_F32, k);
        }
        try_shape(&large[i], TN_F64, TN_F64, 4);
        try_shape(&large[i], TN_BF16, TN_F32, 4);
    }
}

TRIAL_TEST(test_refused) {
    const tn_backend *table = trial_tables()[0];
    const int64_t *one = SIZES(1, 1, 1, 1, 1);
    array x = varied_array(TN_F32, DENSE, 5, one, 1), whole = make_array(TN_I64, DENSE, 5, one),
          wide = make_array(TN_F64, DENSE, 5, one), half = make_array(TN_BF16, DENSE, 5, one);
    tn_conv_args args = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1};
    assert_int_equal(TRIAL_CALL(table, conv, &x.d, &x.d, &wide.d, NULL, &args), TN_EUNSUPPORTED);
    assert_int_equal(TRIAL_CALL(table, conv, &whole.d, &whole.d, &whole.d, NULL, &args),
                     TN_EUNSUPPORTED);
    assert_int_equal(TRIAL_CALL(table, conv, &x.d, &half.d, &half.d, NULL, &args), TN_EUNSUPPORTED);
    assert_int_equal(
        TRIAL_CALL(table, conv_backward_input, &whole.d, &whole.d, &whole.d, NULL, &args),
        TN_EUNSUPPORTED);
    assert_int_equal(TRIAL_CALL(table, conv_backward_weight, &half.d, NULL, &x.d, &x.d, &args),
                     TN_EUNSUPPORTED);
    assert_int_equal(TRIAL_CALL(table, conv_backward_weight, &x.d, NULL, &x.d, &half.d, &args),
                     TN_EUNSUPPORTED);
}
