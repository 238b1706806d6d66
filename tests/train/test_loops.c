/* Whole training loops: the same bits for any number of threads; a mistake ends the loop. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

enum { STEPS = 4, MOST = 64 };

typedef struct result {
    double loss[STEPS];
    tn_tensor *weight[MOST];
    int count;
} result;

static bool take_weight(const tn_entry *entry, void *user) {
    result *r = user;
    assert_true(r->count < MOST);
    r->weight[r->count++] = tn_keep(tn_copy(tn_detach(*entry->field)));
    return true;
}

/* Large enough that kernels use several threads: 640 rows of 96. */
static void train_gpt(int threads, result *r) {
    TN_SCOPE;
    tn_set_threads(threads);
    tn_seed(11);
    tn_gpt gpt;
    tn_gpt_options o = TN_WITH(tn_gpt, .vocab = 211, .context = 80, .layers = 2, .heads = 3,
                               .width = 96, .dropout = 0.1);
    tn_gpt_init(&gpt, o);
    tn_optim *opt = tn_adamw(&gpt, tn_adamw_defaults());
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *tokens = tn_randint(0, o.vocab, TN_DIMS(8, 80), TN_I64);
        tn_tensor *loss = tn_lm_loss(&gpt, tokens, tn_randint(0, o.vocab, TN_DIMS(8, 80), TN_I64));
        r->loss[step] = tn_item(loss);
        tn_backward(loss);
        tn_optim_clip(opt, 1.0);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    assert_int_equal(tn_error(), TN_OK);
    tn_module_each(&gpt, (tn_walk){0}, take_weight, r);
    tn_optim_free(opt);
    tn_module_finish(&gpt);
}

PLAIN_TEST(same_bits_for_any_number) {
    int before = tn_threads();
    result one = {0};
    train_gpt(1, &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0] + 0.5 && one.loss[0] > 4.0);
    for (int threads = 2; threads <= 3; threads++) {
        result other = {0};
        train_gpt(threads, &other);
        assert_int_equal(other.count, one.count);
        for (int i = 0; i < STEPS; i++) {
            assert_true(one.loss[i] == other.loss[i]);
        }
        for (int i = 0; i < one.count; i++) {
            assert_true(tn_equal(one.weight[i], other.weight[i]));
            tn_release(other.weight[i]);
        }
    }
    for (int i = 0; i < one.count; i++) {
        tn_release(one.weight[i]);
    }
    tn_set_threads(before);
}

/* A program with a mistake and no handler: the loop ends by itself, nothing is stepped, and the
 * error says where. */
PLAIN_TEST(wrong_shape_ends_the_loop) {
    TN_SCOPE;
    tn_linear net;
    tn_linear_init(&net, 20, 3, tn_linear_defaults());
    tn_tensor *weight = tn_copy(net.weight);
    tn_optim *opt = tn_adamw(&net, tn_adamw_defaults());
    tn_dataset *data =
        tn_tensor_dataset(tn_randn(TN_DIMS(640, 19), TN_F32), tn_zeros(TN_DIMS(640), TN_I64));
    tn_loader_options o = tn_loader_defaults();
    o.batch = 64;
    o.threads = 1;
    o.epochs = 0; /* without end */
    tn_loader *loader = tn_loader_new(data, tn_random_sampler(1), o);
    tn_batch b;
    int steps = 0;
    while (tn_loader_next(loader, &b)) {
        TN_SCOPE;
        tn_tensor *loss = tn_cross_entropy(tn_call(&net, b.x), b.y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        steps++;
    }
    assert_int_equal(steps, 1);
    assert_int_equal(tn_error(), TN_ESHAPE);
    assert_contains(tn_error_message(), "test_loops.c");
    assert_contains(tn_error_message(), "[64, 19]");
    assert_contains(tn_error_message(), "[3, 20]");
    tn_error_clear();
    assert_true(tn_equal(weight, net.weight));
    tn_loader_free(loader);
    tn_optim_free(opt);
    tn_module_finish(&net);
}

/* Statistics of two batches, whose means are 1 and 4: as PyTorch's update_bn. */
TEST(statistics_begin_anew) {
    TN_SCOPE;
    tn_batch_norm1d norm;
    tn_batch_norm1d_init(&norm, 1, tn_batch_norm_defaults());
    tn_module_train(&norm, false);
    TN_NO_GRAD;
    tn_fill_(norm.running_mean, 77.0);
    tn_loader_options o = TN_WITH(tn_loader, .batch = 2);
    tn_tensor *x =
        tn_reshape(tn_from_data((float[]){0, 2, 3, 5}, TN_DIMS(4), TN_F32), TN_DIMS(4, 1));
    tn_loader *loader = tn_loader_new(tn_tensor_dataset(x, NULL), tn_sequential_sampler(), o);
    assert_int_equal(tn_update_bn(loader, &norm), TN_OK);
    assert_true(fabs(tn_item(norm.running_mean) - 2.5) < 1e-6);
    assert_true(fabs(tn_item(norm.running_var) - 2.0) < 1e-6);
    assert_true(tn_item(norm.num_batches_tracked) == 2);
    assert_false(norm.options.cumulative || norm.base.training);

    /* again, after a loop that counted its batches and never saw the end of the pass */
    for (int k = 0; k < 2; k++) {
        tn_batch b;
        tn_fill_(norm.running_mean, 77.0);
        for (int i = 0; i < k * 2; i++) {
            assert_true(tn_loader_next(loader, &b));
        }
        assert_int_equal(tn_update_bn(loader, &norm), TN_OK);
        assert_true(fabs(tn_item(norm.running_mean) - 2.5) < 1e-6);
    }
    assert_fails(tn_update_bn(NULL, &norm), TN_EVALUE, "update_bn: the loader is NULL");
    tn_loader_free(loader);
    tn_module_finish(&norm);
}

/* Running statistics are averaged as weights are, as by PyTorch's AveragedModel(use_buffers=True):
 * under the average the model normalises as the models behind it did. Integers, and infinities of a
 * mask, stay; and what the model had comes back. */
TEST(statistics_are_averaged) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_batch_norm1d norm;
    tn_batch_norm1d_init(&norm, 1, tn_batch_norm_defaults());
    tn_tensor *mask;
    tn_module_buffer(&norm, "mask", &mask,
                     tn_from_data((float[]){-INFINITY, 0}, TN_DIMS(2), TN_F32));
    tn_average *swa = tn_swa(&norm);
    for (int i = 1; i <= 4; i++) {
        tn_fill_(norm.running_mean, 3.0 * i);
        tn_fill_(norm.running_var, 1.0 * i);
        tn_fill_(norm.num_batches_tracked, 5.0 * i);
        assert_int_equal(tn_average_update(swa), TN_OK);
    }
    for (int again = 0; again < 2; again++) {
        {
            TN_AVERAGED(swa);
            assert_true(fabs(tn_item(norm.running_mean) - 7.5) < 1e-6);
            assert_true(fabs(tn_item(norm.running_var) - 2.5) < 1e-6);
            assert_true(tn_item(norm.num_batches_tracked) == 20);
            assert_true(tn_at(mask, TN_DIMS(0)) == -INFINITY && tn_at(mask, TN_DIMS(1)) == 0);
            tn_fill_(norm.running_mean, 77.0); /* as tn_update_bn: for as long as the average */
        }
        assert_true(tn_item(norm.running_mean) == 12 && tn_item(norm.running_var) == 4);
    }
    tn_average_free(swa);
    tn_module_finish(&norm);
}
