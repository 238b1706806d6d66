/* Batch norm as a module: what it keeps from batch to batch, and when. test_torch.py compares
 * results and gradients, also those of group and instance norm, which keep nothing. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

static double element_at(tn_tensor *t, int64_t i) {
    return tn_at(t, TN_DIMS(i));
}

static void expect_near(double got, double want, double within) {
    if (!(fabs(got - want) <= within)) { fail_msg("%.9g, but %.9g was expected", got, want); }
}

/* Two samples of channel 0 with mean 1 and unbiased variance 2; channel 1 is constant. */
static tn_tensor *small_batch(double shift) {
    const float values[] = {(float)(0 + shift), 3, (float)(2 + shift), 3};
    return TN_FROM(values, TN_DIMS(2, 2), TN_F32);
}

static void expect_running(const tn_batch_norm1d *m, double mean, double var, double batches) {
    expect_near(element_at(m->running_mean, 0), mean, 1e-6);
    expect_near(element_at(m->running_var, 0), var, 1e-6);
    expect_near(tn_item(m->num_batches_tracked), batches, 0);
}

TEST(running_statistics) {
    tn_batch_norm1d m;
    tn_batch_norm1d_init(&m, 2, tn_batch_norm_defaults());
    expect_running(&m, 0, 1, 0);
    tn_call(&m, small_batch(0));
    expect_running(&m, 0.1, 0.9 + 0.1 * 2, 1);
    tn_tensor *y = tn_call(&m, small_batch(10));
    expect_running(&m, 0.9 * 0.1 + 1.1, 0.9 * 1.1 + 0.2, 2);
    expect_near(element_at(tn_flatten(y, 0, -1), 0), -1 / sqrt(1 + 1e-5), 1e-6);
    tn_module_train(&m, false);
    y = tn_call(&m, small_batch(0));
    expect_running(&m, 1.19, 1.19, 2);
    expect_near(element_at(tn_flatten(y, 0, -1), 0), -1.19 / sqrt(1.19 + 1e-5), 1e-6);
    tn_module_finish(&m);
}

TEST(cumulative_statistics) {
    tn_batch_norm_options options = TN_WITH(tn_batch_norm, .cumulative = true);
    tn_batch_norm1d m;
    tn_batch_norm1d_init(&m, 2, options);
    for (int i = 0; i < 3; i++) {
        tn_call(&m, small_batch(3 * i));
    }
    expect_running(&m, (1 + 4 + 7) / 3.0, 2, 3);
    tn_module_finish(&m);
}

/* Statistics of the batch, in training and in eval mode; nothing is kept. */
TEST(untracked_statistics) {
    tn_batch_norm_options options = tn_batch_norm_defaults();
    options.track_running_stats = options.affine = false;
    tn_batch_norm1d *m = tn_batch_norm1d_new_with(2, options);
    tn_tensor *training = tn_call(m, small_batch(5));
    tn_module_train(m, false);
    assert_true(tn_equal(training, tn_call(m, small_batch(5))));
    assert_null(m->running_mean);
    assert_int_equal(tn_module_count(m), 0);
    tn_module_free(m);
}

/* A recomputed forward runs twice, and counts once. */
TEST(recomputed_once) {
    tn_batch_norm1d m;
    tn_batch_norm1d_init(&m, 2, tn_batch_norm_defaults());
    tn_module_set_recompute(&m, true);
    tn_tensor *x = tn_set_requires_grad(small_batch(0), true);
    tn_backward(tn_sum_all(tn_square(tn_call(&m, x))));
    expect_running(&m, 0.1, 1.1, 1);
    tn_module_finish(&m);
}

/* Running statistics are f32 even if parameters are bf16, and a policy does not change that. */
TEST(mixed_precision) {
    tn_batch_norm1d m;
    tn_batch_norm1d_init(&m, 2, tn_batch_norm_defaults());
    tn_module_set_precision(&m, tn_precision_defaults());
    tn_tensor *y = tn_call(&m, small_batch(0));
    assert_int_equal(tn_dtype_of(y), TN_BF16);
    expect_running(&m, 0.1, 1.1, 1);
    tn_module_finish(&m);
}

TEST(names_are_pytorchs) {
    tn_batch_norm2d *m = tn_batch_norm2d_new(3);
    static const char *const names[] = {"weight", "bias", "running_mean", "running_var",
                                        "num_batches_tracked"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        assert_int_equal(tn_count(tn_module_get(m, names[i])), i < 4 ? 3 : 1);
    }
    tn_module_free(m);
}

static tn_tensor *double_input(tn_tensor *x, void *user) {
    return tn_mul_scalar(x, 2.0);
}

static tn_tensor *return_input(tn_tensor *x, void *user) {
    return x;
}

/* Two ranks with the same batch: the same result, and the variance of twice as many samples. */
TEST(shared_statistics) {
    tn_batch_norm1d alone, shared;
    tn_batch_norm1d_init(&alone, 2, tn_batch_norm_defaults());
    tn_batch_norm1d_init(&shared, 2, tn_batch_norm_defaults());
    assert_int_equal(tn_batch_norm_share(&shared, double_input, NULL), TN_OK);
    assert_true(
        tn_all_close(tn_call(&shared, small_batch(0)), tn_call(&alone, small_batch(0)), 0, 1e-6));
    expect_running(&shared, 0.1, 0.9 + 0.1 * 4 / 3, 1);
    assert_int_equal(tn_batch_norm_share(&shared, NULL, NULL), TN_OK);
    tn_call(&shared, small_batch(0));
    expect_running(&shared, 0.19, 0.9 * (0.9 + 0.4 / 3) + 0.2, 2);
    tn_batch_norm_share(&shared, return_input, NULL);
    tn_call(&shared, tn_ones(TN_DIMS(1, 2), TN_F32));
    assert_error(TN_EVALUE, "more than one element of each channel");
    assert_true(isfinite(tn_at(shared.running_var, TN_DIMS(0))));
    tn_module_finish(&alone);
    tn_module_finish(&shared);
}

TEST(refused_arguments) {
    tn_batch_norm2d m;
    tn_batch_norm2d_init(&m, 0, tn_batch_norm_defaults());
    assert_error(TN_EVALUE, "batch_norm2d: channels is 0");
    tn_module_finish(&m);
    tn_batch_norm2d_init(&m, 2, tn_batch_norm_defaults());
    assert_inert(tn_call(&m, small_batch(0)), TN_ESHAPE, "batch_norm2d: x is [2, 2] (it needs 4");
    assert_inert(tn_call(&m, tn_ones(TN_DIMS(2, 3, 1, 1), TN_F32)), TN_ESHAPE, "2 channels");
    assert_inert(tn_call(&m, tn_ones(TN_DIMS(1, 2, 1, 1), TN_F32)), TN_EVALUE, "more than one");
    expect_near(element_at(m.running_mean, 0), 0, 0);
    tn_tensor *three = tn_ones(TN_DIMS(3), TN_F32);
    assert_inert(tn_batch_norm(small_batch(0), three, NULL, NULL, NULL, true, 0.1, 1e-5), TN_ESHAPE,
                 "running_mean is f32 [3]");
    assert_inert(tn_batch_norm(small_batch(0), three, three, NULL, NULL, false, 0.1, 1e-5),
                 TN_ESHAPE, "mean is [3]");
    assert_inert(tn_batch_norm(small_batch(0), NULL, NULL, three, NULL, true, 0.1, 1e-5), TN_ESHAPE,
                 "weight is [3]");
    assert_inert(tn_group_norm_op(small_batch(0), 3, NULL, NULL, 1e-5), TN_EVALUE, "groups is 3");
    assert_inert(tn_instance_norm(small_batch(0), NULL, NULL, 1e-5), TN_ESHAPE, "(N, C, …)");
    tn_module_finish(&m);
}
