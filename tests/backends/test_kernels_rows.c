/* Rows against ref: softmax, norms, cross-entropy. trial.h. */
#include "kernels.h"
#include "trial.h"

typedef struct rows {
    tn_desc x, y, dy, w, b, mean, rstd, label, top, log_sum, other;
    bool log_form, has_w, has_b, centred, has_other;
    tn_cross_entropy_args args;
} rows;

static tn_status call_softmax(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return run_softmax(t, out[0], r->has_other ? &r->x : out[0], r->log_form);
}
static tn_status call_softmax_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return run_softmax_backward(t, out[0], &r->x, &r->dy, r->log_form);
}

/* Rows of whole packs, and others; that fit in a warp or a block, and longer ones. */
static const int64_t row_shapes[][2] = {{0, 4},    {4, 0},    {1, 1},    {3, 5},     {5, 31},
                                        {70, 33},  {9, 768},  {6, 1600}, {40, 1025}, {700, 40},
                                        {3, 2568}, {2, 4099}, {1, 50257}};
enum { ROW_SHAPES = sizeof row_shapes / sizeof *row_shapes };

/* Long rows, and larger shapes on the emulator, get only every fifth case: 5 is coprime to the
 * period of a case's bits. */
static bool passes_over(const int64_t *size, int k) {
    return (size[1] > 4000 || (trial_on_emulator() && size[0] * size[1] > 2000)) && k % 5 != 0;
}

/* What norms read in case k: bit 0 spreads some of it, bit 1 adds a weight and a bias. */
static rows norm_operands(tn_dtype dtype, const int64_t *size, int k) {
    tn_dtype stat = dtype == TN_F64 ? TN_F64 : TN_F32;
    return (rows){.x = varied_array(dtype, k & 1, 2, size, 1).d,
                  .dy = varied_array(dtype, k & 1, 2, size, 2).d,
                  .w = varied_array(dtype, k & 1, 1, size + 1, 3).d,
                  .b = varied_array(dtype, DENSE, 1, size + 1, 4).d,
                  .mean = varied_array(stat, k & 1, 1, size, 5).d,
                  .rstd = varied_array(stat, DENSE, 1, size, 6).d,
                  .has_w = k & 2,
                  .has_b = k & 2};
}

static tn_status call_norm(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    if (r->centred) {
        return run_layer_norm(t, out[0], out[1], out[2], &r->x, r->has_w ? &r->w : NULL,
                              r->has_b ? &r->b : NULL, 1e-5);
    }
    return run_rms_norm(t, out[0], out[1], &r->x, r->has_w ? &r->w : NULL, 1e-5);
}
static tn_status call_norm_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    const tn_desc *w = r->has_w ? &r->w : NULL;
    if (r->centred) {
        return run_layer_norm_backward(t, out[0], out[1], out[2], &r->dy, &r->x, &r->mean, &r->rstd,
                                       w);
    }
    return run_rms_norm_backward(t, out[0], out[1], &r->dy, &r->x, &r->rstd, w);
}

/* Operands and results with gaps, which those of operations never have; softmax over its own
 * operand; statistics that no forward made. */
TRIAL_TEST(test_rows_anywhere) {
    for (int k = 0; k < 3 * 4 * 8; k++) {
        const int64_t *size = ((const int64_t[3][2]){{3, 5}, {70, 33}, {6, 1600}})[k / 32];
        tn_dtype dtype = array_floats[k / 8 % 4], stat = dtype == TN_F64 ? TN_F64 : TN_F32;
        bool exact = dtype == TN_F64;
        rows r = norm_operands(dtype, size, k);
        r.log_form = r.centred = k & 4;
        r.has_other = k & 2; /* softmax is not in place */
        array y = make_array(dtype, SPREAD, 2, size), x = varied_array(dtype, k & 1, 2, size, 1),
              s0 = make_array(stat, k & 1, 1, size), s1 = make_array(stat, SPREAD, 1, size),
              dw = make_array(stat, k & 1, 1, size + 1), db = make_array(stat, SPREAD, 1, size + 1);
        const trial trials[] = {
            {"softmax", 1, {k & 2 ? y : x}, call_softmax, &r, exact ? 1e-13 : 2e-6, 1e-7},
            {"softmax_backward",
             1,
             {y},
             call_softmax_backward,
             &r,
             exact ? 1e-12 : 2e-5,
             exact ? 1e-9 : 2e-4},
            {"norm",
             r.centred ? 3 : 2,
             {y, s0, s1},
             call_norm,
             &r,
             exact ? 1e-13 : 4e-6,
             exact ? 1e-12 : 4e-6 + step_of(dtype)},
            {"norm_backward",
             r.centred ? 3 : 2,
             {y, dw, db},
             call_norm_backward,
             &r,
             exact ? 1e-12 : 1e-5,
             exact ? 1e-11 : 4e-5 * (1 + sqrt((double)size[0])) + step_of(dtype)}};
        for (int i = 0; i < 4; i++) {
            trial_run(&trials[i]);
        }
        trial_forget();
    }
}

/* ---- Batch norm: samples, channels, places --------------------------------------------------- */

static tn_status call_batch_norm(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return run_batch_norm(t, out[0], out[1], out[2], &r->x, r->has_w ? &r->w : NULL,
                          r->has_b ? &r->b : NULL, 1e-5, false);
}
/* The first element is far from all others: their distances from it are large and nearly equal. */
TRIAL_TEST(test_batch_norm_outlier) {
    if (!KERNEL_OWN(trial_tables()[0], batch_norm)) { skip(); }
    const int64_t size[] = {1, 1, 4096};
    for (int k = 0; k < 2; k++) {
        array x = make_array(TN_F32, k, 3, size), y = make_array(TN_F32, k, 3, size),
              mean = make_array(TN_F32, DENSE, 1, size + 1),
              var = make_array(TN_F32, DENSE, 1, size + 1);
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&x, i, i == 0 ? 0 : 1000.1);
        }
        rows r = {.x = x.d};
        trial t = {
            "batch_norm with an outlier", 3, {y, mean, var}, call_batch_norm, &r, 4e-6, 4e-5};
        trial_run(&t);
        trial_forget();
    }
}

/* An infinite element, in any piece or pack, makes the mean infinite and the variance NaN. */
TRIAL_TEST(test_batch_norm_infinite) {
    static const int64_t places[] = {0, 1, 2047, 2048, 4095};
    if (!KERNEL_OWN(trial_tables()[0], batch_norm)) { skip(); }
    const int64_t size[] = {1, 1, 4096};
    for (int k = 0; k < 5 * 3; k++) {
        tn_dtype dtype = array_floats[k / 5];
        tn_dtype stat = dtype == TN_F64 ? TN_F64 : TN_F32;
        array x = varied_array(dtype, DENSE, 3, size, 1), y = make_array(dtype, DENSE, 3, size),
              mean = make_array(stat, DENSE, 1, size + 1),
              var = make_array(stat, DENSE, 1, size + 1);
        array_set(&x, places[k % 5], k & 1 ? -INFINITY : INFINITY);
        rows r = {.x = x.d};
        trial t = {"batch_norm of infinity", 3, {y, mean, var}, call_batch_norm, &r, 0, 0};
        trial_run(&t);
        const tn_desc *out[] = {&y.d, &mean.d, &var.d};
        assert_int_equal(call_batch_norm(tn_backend_named("ref"), out, &r), TN_OK);
        assert_true(isinf(array_get(&mean, 0)) && isnan(array_get(&var, 0)));
        trial_forget();
    }
}

/* A row of equal elements has no deviation: y is the bias, to the bit. */
TRIAL_TEST(test_constant_rows) {
    static const int64_t widths[] = {1, 3, 257, 768, 1025, 5000};
    static const double values[] = {1000.7, 0.1, -3e4};
    for (int k = 0; k < 4 * 6 * 3; k++) {
        tn_dtype dtype = array_floats[k % 4], stat = dtype == TN_F64 ? TN_F64 : TN_F32;
        int64_t size[] = {3, widths[k / 4 % 6]};
        array x = make_array(dtype, k & 1, 2, size), zero = make_array(dtype, DENSE, 2, size),
              y = make_array(dtype, DENSE, 2, size), s = make_array(dtype, DENSE, 2, size),
              w = varied_array(dtype, DENSE, 1, size + 1, 3),
              b = varied_array(dtype, DENSE, 1, size + 1, 4),
              mean = make_array(stat, DENSE, 1, size), rstd = make_array(stat, DENSE, 1, size);
        for (int64_t i = 0; i < x.count; i++) {
            array_set(&x, i, values[k / 24]);
            array_set(&zero, i, 0);
        }
        for (const tn_backend *const *t = trial_and_ref(); *t; t++) {
            for (int added = 0; added < 1 + KERNEL_OWN(*t, add_layer_norm); added++) {
                array_poison(&y);
                tn_status status =
                    added ? run_add_layer_norm(*t, &s.d, &y.d, &mean.d, &rstd.d, &zero.d, &x.d,
                                               &w.d, &b.d, 1e-5)
                          : run_layer_norm(*t, &y.d, &mean.d, &rstd.d, &x.d, &w.d, &b.d, 1e-5);
                assert_int_equal(trial_wait(*t, status), TN_OK);
                for (int64_t i = 0; i < y.count; i++) {
                    assert_true(array_get(&y, i) == array_get(&b, i % size[1]));
                }
                assert_true(array_get(&mean, 2) == array_get(&x, 0));
            }
        }
        trial_forget();
    }
}

static tn_status call_loss(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return run_cross_entropy(t, out[0], out[1], out[2], &r->x, &r->label, &r->args);
}
static tn_status call_loss_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return run_cross_entropy_backward(t, out[0], &r->dy, &r->top, &r->log_sum, &r->x, &r->label,
                                      &r->args);
}

TRIAL_TEST(test_cross_entropy) {
    for (int k = 0; k < ROW_SHAPES * 4 * 16; k++) {
        const int64_t *size = row_shapes[k / 64];
        if (passes_over(size, k)) { continue; }
        tn_dtype dtype = array_floats[k / 16 % 4], stat = dtype == TN_F64 ? TN_F64 : TN_F32;
        array x = varied_array(dtype, k & 1, 2, size, 1),
              label = make_array(k & 4 ? TN_I32 : TN_I64, k & 1, 1, size);
        bool far = k & 8 && dtype == TN_F32;
        array dloss = varied_array(stat, k & 1, 1, size, 5),
              top = varied_array(stat, DENSE, 1, size, 6),
              log_sum = varied_array(stat, k & 1, 1, size, 7);
        for (int64_t i = 0; i < size[0]; i++) {
            array_set(&label, i, size[1] == 0 || i % 5 == 4 ? -100 : (double)(i * 7 % size[1]));
            array_set(&top, i, (far ? 1e4 : 0) + 5 + array_get(&top, i));
        }
        for (int64_t i = 0; far && i < x.count; i++) {
            array_set(&x, i, 1e4 + array_get(&x, i)); /* far logits: their differences count */
        }
        rows r = {.x = x.d,
                  .dy = dloss.d,
                  .top = top.d,
                  .log_sum = log_sum.d,
                  .label = label.d,
                  .args = {.ignore_index = -100, .label_smoothing = k & 2 ? 0.1 : 0}};
        if (!(k & 2) && k & 4) { /* some rows' targets are another rank's */
            r.args.whole = size[1] + 3;
            r.args.first = 3;
        }
        bool double_form = dtype == TN_F64;
        array loss = make_array(stat, k & 1, 1, size), most = make_array(stat, DENSE, 1, size),
              sum = make_array(stat, k & 1, 1, size), dx = make_array(dtype, k >> 3 & 1, 2, size);
        trial t = {
            "cross_entropy", 3, {loss, most, sum}, call_loss, &r, double_form ? 1e-13 : 2e-6, 0};
        if (size[1] > 0) { trial_run(&t); }
        trial back = {"cross_entropy_backward",   1, {dx}, call_loss_backward, &r,
                      double_form ? 1e-13 : 2e-6, 0};
        trial_run(&back);
        trial_forget();
    }
}

/* The forward that makes the gradient, over the logits or elsewhere. */
static tn_status call_ahead(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return KERNEL_CALL(t, cross_entropy, .args = &r->args,
                       .x = {r->has_other ? &r->x : out[3], &r->label},
                       .y = {out[0], out[1], out[2], out[3], &r->other});
}
static tn_status call_rescale(const tn_backend *t, const tn_desc *const *out, void *user) {
    rows *r = user;
    return KERNEL_BACK(t, cross_entropy, .args = &r->args, .dx = {out[0]}, .dy = {&r->dy});
}

TRIAL_TEST(test_gradient_ahead) {
    for (int k = 0; k < ROW_SHAPES * 4 * 8; k++) {
        const int64_t *size = row_shapes[k / 32];
        if (size[1] == 0 || passes_over(size, k)) { continue; }
        tn_dtype dtype = array_floats[k / 8 % 4], stat = dtype == TN_F64 ? TN_F64 : TN_F32;
        array x = varied_array(dtype, k & 1, 2, size, 1),
              label = make_array(TN_I64, k & 1, 1, size),
              share = make_array(stat, DENSE, 1, SIZES(1)),
              dy = make_array(stat, DENSE, 1, SIZES(1));
        for (int64_t i = 0; i < size[0]; i++) {
            array_set(&label, i, i % 5 == 4 ? -100 : (double)(i * 7 % size[1]));
        }
        array_set(&share, 0, 0.5);
        array_set(&dy, 0, k & 1 ? 2.0 : 6.0);
        rows r = {.x = x.d,
                  .dy = dy.d,
                  .label = label.d,
                  .other = share.d,
                  .has_other = k & 4,
                  .args = {.ignore_index = -100, .label_smoothing = k & 2 ? 0.1 : 0, .ahead = 2}};
        double error = dtype == TN_F64 ? 1e-13 : 2e-6;
        array loss = make_array(stat, k & 1, 1, size), most = make_array(stat, DENSE, 1, size),
              sum = make_array(stat, k & 1, 1, size);
        trial t = {"cross_entropy ahead", 4, {loss, most, sum, x}, call_ahead, &r, error, 0};
        trial_run(&t);
        trial back = {"cross_entropy rescaled", 1, {x}, call_rescale, &r, k & 1 ? 0 : error, 0};
        trial_run(&back);
        trial_forget();
    }
}

/* A label out of range: TN_EINDEX with its place. */
TRIAL_TEST(test_bad_labels) {
    for (int64_t bad = -1; bad <= 6; bad += 7) {
        array x = varied_array(TN_F32, DENSE, 2, SIZES(4, 6), 1),
              dx = make_array(TN_F32, DENSE, 2, SIZES(4, 6)),
              label = make_array(TN_I64, DENSE, 1, SIZES(4)),
              loss = varied_array(TN_F32, DENSE, 1, SIZES(4), 2),
              top = varied_array(TN_F32, DENSE, 1, SIZES(4), 3),
              sum = varied_array(TN_F32, DENSE, 1, SIZES(4), 4);
        for (int64_t i = 0; i < 4; i++) {
            array_set(&label, i, i == 0 ? -100 : i == 2 ? (double)bad : 1);
        }
        rows r = {.x = x.d, .dy = loss.d, .label = label.d, .args = {.ignore_index = -100}};
        r.top = top.d;
        r.log_sum = sum.d;
        const tn_desc *out[] = {&loss.d, &top.d, &sum.d}, *back[] = {&dx.d};
        for (const tn_backend *const *t = trial_and_ref(); *t; t++) {
            trial_expect_bad(*t, call_loss(*t, out, &r), 2, bad);
            trial_expect_bad(*t, call_loss_backward(*t, back, &r), 2, bad);
            array_check_gaps(&loss);
        }
        trial_forget();
    }
}
