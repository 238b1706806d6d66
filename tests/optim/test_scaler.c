/* The scale of a loss: PyTorch's rule step by step, skipped steps, clipping, checkpoints, ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static void set_gradient(tn_linear *m, double value) {
    TN_SCOPE;
    tn_set_grad(m->weight, tn_full(tn_shape(m->weight), value, TN_F32));
    tn_set_grad(m->bias, tn_full(tn_shape(m->bias), 1.0, TN_F32));
}

static double weight_of(const tn_linear *m) {
    return tn_at(m->weight, TN_DIMS(0, 0));
}

/* Plain SGD with lr 1: a weight changes by its gradient. */
static tn_optim *plain_descent(void *m) {
    tn_sgd_options o = TN_WITH(tn_sgd, .lr = 1.0);
    return tn_sgd(m, o);
}

/* ---- The rule -------------------------------------------------------------------------------- */

/* The scale of torch.cuda.amp.GradScaler(init_scale=8, growth_interval=3) after each of these
 * steps, according to its documentation: an overflow halves it and restarts the count, three good
 * steps in a row double it. */
TEST(the_rule) {
    static const struct {
        bool overflow;
        double scale;
        int64_t streak;
    } steps[] = {{false, 8, 1},  {false, 8, 2},   {false, 16, 0},  {true, 8, 0},  {false, 8, 1},
                 {true, 4, 0},   {true, 2, 0},    {false, 2, 1},   {false, 2, 2}, {true, 1, 0},
                 {true, 0.5, 0}, {false, 0.5, 1}, {false, 0.5, 2}, {false, 1, 0}, {false, 1, 1}};
    static const double bad[] = {INFINITY, -INFINITY, NAN};
    tn_linear m;
    tn_linear_init(&m, 3, 2, tn_linear_defaults());
    tn_optim *opt = plain_descent(&m);
    tn_scaler_options o = TN_WITH(tn_scaler, .scale = 8, .interval = 3);
    tn_scaler *s = tn_scaler_new(o);
    for (int i = 0; i < (int)(sizeof(steps) / sizeof(*steps)); i++) {
        double before = weight_of(&m), scale = tn_scaler_where(s).scale;
        set_gradient(&m, steps[i].overflow ? bad[i % 3] : 0.25 * scale);
        assert_int_equal(tn_scaler_step(s, opt), TN_OK);
        assert_true(weight_of(&m) == (float)(steps[i].overflow ? before : before - 0.25));
        assert_int_equal(tn_scaler_update(s), TN_OK);
        assert_int_equal(tn_scaler_skipped(s), steps[i].overflow);
        assert_true(tn_scaler_where(s).scale == steps[i].scale);
        assert_int_equal(tn_scaler_where(s).streak, steps[i].streak);
    }
    tn_scaler_free(s);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(default_options) {
    tn_scaler_options o = tn_scaler_defaults();
    assert_true(o.scale == 65536.0 && o.growth == 2.0 && o.backoff == 0.5 && o.enabled);
    assert_int_equal(o.interval, 2000);
}

/* The scale does not grow beyond f32. */
TEST(growth_has_an_end) {
    tn_linear m;
    tn_linear_init(&m, 3, 2, tn_linear_defaults());
    tn_optim *opt = plain_descent(&m);
    tn_scaler_options o = TN_WITH(tn_scaler, .scale = ldexp(1, 126), .interval = 1);
    tn_scaler *s = tn_scaler_new(o);
    for (int i = 0; i < 3; i++) {
        set_gradient(&m, 0.0);
        tn_scaler_step(s, opt);
        tn_scaler_update(s);
        assert_true(tn_scaler_where(s).scale == ldexp(1, 127));
        assert_int_equal(tn_scaler_where(s).streak, 0);
    }
    tn_scaler_free(s);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* Two optimisers: an overflow in one does not affect the other's step, and lowers the scale of
 * both. */
TEST(two_optimisers) {
    tn_linear a, b;
    tn_linear_init(&a, 3, 2, tn_linear_defaults());
    tn_linear_init(&b, 3, 2, tn_linear_defaults());
    tn_optim *first = plain_descent(&a), *second = plain_descent(&b);
    tn_scaler *s = tn_scaler_new(tn_scaler_defaults());
    double wa = weight_of(&a), wb = weight_of(&b);
    set_gradient(&a, INFINITY);
    set_gradient(&b, 65536.0);
    tn_scaler_step(s, first);
    tn_scaler_step(s, second);
    tn_scaler_update(s);
    assert_true(weight_of(&a) == wa);
    assert_true(weight_of(&b) == (float)(wb - 1.0));
    assert_true(tn_scaler_where(s).scale == 32768.0);
    assert_int_equal(tn_optim_steps(first), 0);
    assert_int_equal(tn_optim_steps(second), 1);
    tn_scaler_free(s);
    tn_optim_free(first);
    tn_optim_free(second);
    tn_module_finish(&a);
    tn_module_finish(&b);
}

/* Steps with the scale are the same as without it: powers of two change no bit. */
TEST(steps_are_the_same) {
    float weights[3][6];
    for (int i = 0; i < 3; i++) { /* without, enabled, disabled */
        TN_SCOPE;
        tn_linear m;
        tn_seed(2);
        tn_linear_init(&m, 3, 2, tn_linear_defaults());
        tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
        tn_scaler_options o = TN_WITH(tn_scaler, .enabled = i == 1);
        tn_scaler *s = tn_scaler_new(o);
        for (int k = 0; k < 4; k++) {
            tn_tensor *loss = tn_mean_all(tn_square(tn_call(&m, tn_randn(TN_DIMS(5, 3), TN_F32))));
            if (i == 0) {
                tn_backward(loss);
                assert_true(tn_optim_clip(opt, 0.5) > 0);
                tn_optim_step(opt);
            } else {
                tn_backward(tn_scaler_scale(s, loss));
                assert_true(tn_scaler_clip(s, opt, 0.5) > 0);
                tn_scaler_step(s, opt);
                tn_scaler_update(s);
            }
            tn_optim_zero_grad(opt);
        }
        tn_copy_out(m.weight, weights[i]);
        tn_scaler_free(s);
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
    assert_memory_equal(weights[1], weights[0], sizeof(weights[0]));
    assert_memory_equal(weights[2], weights[0], sizeof(weights[0]));
}

TEST(clipping_is_without_the_scale) {
    tn_linear m;
    tn_linear_options o = TN_WITH(tn_linear, .bias = false);
    tn_linear_init(&m, 4, 1, o);
    tn_optim *opt = plain_descent(&m);
    tn_scaler *s = tn_scaler_new(tn_scaler_defaults());
    TN_SCOPE;
    tn_set_grad(m.weight, tn_full(TN_DIMS(1, 4), 3.0 * 65536.0, TN_F32));
    double before = weight_of(&m), norm = tn_scaler_clip(s, opt, 2.0);
    assert_true(fabs(norm - 6.0) < 1e-12); /* sqrt(4 9) */
    tn_scaler_step(s, opt);
    assert_true(fabs(before - weight_of(&m) - 1.0) < 1e-6); /* 3 2/6 */
    /* clipping finds an overflow, too */
    tn_set_grad(m.weight, tn_full(TN_DIMS(1, 4), INFINITY, TN_F32));
    assert_true(isinf(tn_scaler_clip(s, opt, 2.0)));
    before = weight_of(&m);
    tn_scaler_step(s, opt);
    assert_true(weight_of(&m) == before && tn_scaler_skipped(s));
    tn_scaler_free(s);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* ---- f16 ------------------------------------------------------------------------------------- */

static double gradient_norm(tn_module *m, tn_scaler *s, tn_tensor *x) {
    TN_SCOPE;
    tn_tensor *y = tn_cast(tn_call(m, x), TN_F32);
    tn_tensor *loss = tn_mul_scalar(tn_mean_all(y), 1e-5);
    tn_backward(s ? tn_scaler_scale(s, loss) : loss);
    double norm = tn_clip_grad_norm(m, INFINITY);
    tn_module_zero_grad(m);
    return s ? norm / tn_scaler_where(s).scale : norm;
}

/* Gradients of 1e-8 are 0 in f16, but not with a scale; one that is too large skips steps until it
 * fits. */
TEST(f16_needs_it) {
    tn_linear m;
    tn_linear_init(&m, 8, 64, tn_linear_defaults());
    tn_precision policy = tn_precision_defaults();
    tn_tensor *x = tn_randn(TN_DIMS(16, 8), TN_F32);
    double f32 = gradient_norm(&m.base, NULL, x);
    policy.compute = TN_F16;
    tn_module_set_precision(&m, policy);
    tn_scaler *s = tn_scaler_new(tn_scaler_defaults());
    assert_true(gradient_norm(&m.base, NULL, x) < 0.01 * f32);
    assert_true(fabs(gradient_norm(&m.base, s, x) / f32 - 1.0) < 0.01);
    tn_scaler_seek(s, (tn_scaler_state){.scale = ldexp(1, 40)});
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    int skipped = 0;
    for (int i = 0; i < 30; i++) {
        TN_SCOPE;
        tn_tensor *loss = tn_mean_all(tn_square(tn_cast(tn_call(&m, x), TN_F32)));
        tn_backward(tn_scaler_scale(s, loss));
        tn_scaler_step(s, opt);
        tn_scaler_update(s);
        tn_optim_zero_grad(opt);
        skipped += tn_scaler_skipped(s);
    }
    assert_in_range(skipped, 5, 25);
    assert_false(tn_scaler_skipped(s));
    assert_int_equal(tn_optim_steps(opt), 30 - skipped);
    assert_true(isfinite(weight_of(&m)));
    tn_scaler_free(s);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* ---- Ranks and checkpoints ------------------------------------------------------------------- */

static int failures;

/* Rank 1 overflows in the second of three steps: all ranks skip it. */
static void rank_steps(tn_group *g, void *user) {
    TN_SCOPE;
    tn_linear m;
    tn_seed(4);
    tn_linear_init(&m, 3, 2, tn_linear_defaults());
    tn_ddp(&m.base, g, tn_ddp_defaults());
    tn_optim *opt = plain_descent(&m);
    tn_scaler *s = tn_scaler_new(tn_scaler_defaults());
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        double factor = i == 1 && tn_group_rank(g) == 1 ? 3e38 : 1.0;
        tn_tensor *loss = tn_sum_all(tn_call(&m, tn_ones(TN_DIMS(2, 3), TN_F32)));
        tn_backward(tn_scaler_scale(s, tn_mul_scalar(loss, factor)));
        tn_scaler_step(s, opt);
        tn_scaler_update(s);
        tn_optim_zero_grad(opt);
        bool right = tn_scaler_skipped(s) == (i == 1) && !tn_error() &&
                     tn_scaler_where(s).scale == (i == 0 ? 65536.0 : 32768.0);
        __atomic_fetch_add(&failures, !right, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&failures, tn_optim_steps(opt) != 2, __ATOMIC_RELAXED);
    tn_scaler_free(s);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(ranks_agree) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        failures = 0;
        assert_int_equal(tn_local_run(ranks, rank_steps, NULL), TN_OK);
        assert_int_equal(failures, 0);
    }
}

TEST(state_in_checkpoints) {
    char path[64];
    snprintf(path, sizeof(path), "/tmp/tern_scaler_%d.safetensors", (int)getpid());
    tn_scaler *s = tn_scaler_new(tn_scaler_defaults()), *t = tn_scaler_new(tn_scaler_defaults());
    tn_scaler_seek(s, (tn_scaler_state){.scale = 384.25, .streak = 17});
    tn_checkpoint c = {.scaler = s};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    tn_checkpoint loaded = {.scaler = t};
    assert_int_equal(tn_checkpoint_load(&loaded, path), TN_OK);
    assert_true(tn_scaler_where(t).scale == 384.25 && tn_scaler_where(t).streak == 17);
    tn_checkpoint without = {.step = 0};
    assert_int_equal(tn_checkpoint_load(&without, path), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "scaler");
    tn_scaler_free(s);
    tn_scaler_free(t);
    unlink(path);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

TEST(bad_options) {
    tn_scaler_options bad[6];
    for (int i = 0; i < 6; i++) {
        bad[i] = tn_scaler_defaults();
    }
    bad[0].scale = 0;
    bad[1].scale = 1e40;
    bad[2].growth = 1.0;
    bad[3].backoff = 1.0;
    bad[4].backoff = NAN;
    bad[5].interval = 0;
    for (int i = 0; i < 6; i++) {
        assert_null(tn_scaler_new(bad[i]));
        assert_error(TN_EVALUE, "scale");
    }
}

TEST(order_of_calls) {
    tn_linear m;
    tn_linear_init(&m, 3, 2, tn_linear_defaults());
    tn_optim *opt = plain_descent(&m);
    tn_scaler *s = tn_scaler_new(tn_scaler_defaults());
    assert_int_equal(tn_scaler_update(s), TN_ESTATE);
    assert_error(TN_ESTATE, "no step");
    tn_raise(TN_EVALUE, "something else");
    double before = weight_of(&m);
    set_gradient(&m, 1.0);
    assert_int_equal(tn_scaler_step(s, opt), TN_EVALUE);
    assert_error(TN_EVALUE, "something else");
    assert_true(weight_of(&m) == before);
    tn_scaler_seek(s, (tn_scaler_state){.scale = -1});
    assert_error(TN_EVALUE, "scale -1");
    tn_scaler_free(s);
    tn_optim_free(opt);
    tn_module_zero_grad(&m);
    tn_module_finish(&m);
}
