/* What a device has no kernel for runs on the host and says so in the log, once; what has one says
 * nothing. */
#include "tests/support/test.h"

#include "core/plugin.h"
#include "tern/sys/device.h"
#include "tern/tern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What was said since listen. */
static char heard[4096];
static int times;

static void hear_line(tn_log_level level, const char *message, void *user) {
    if (strstr(message, "runs on the host")) {
        times++;
        strncat(heard, message, sizeof(heard) - strlen(heard) - 1);
    }
}

static void listen_again(void) {
    heard[0] = '\0';
    times = 0;
    tn_log_to(hear_line, TN_LOG_WARN, NULL);
}

static tn_tensor *draw_on_device(tn_dims dims, tn_dtype dtype) {
    return tn_set_requires_grad(tn_cast(tn_to(tn_randn(dims, TN_F32), tn_cuda(0)), dtype), true);
}

TEST(said_once) {
    listen_again();
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_unfold_options o = tn_unfold_defaults();
        tn_tensor *x = draw_on_device(TN_DIMS(1, 4, 4), TN_F32);
        tn_fold(x, TN_DIMS(3, 3), TN_DIMS(2, 2), o);
        assert_int_equal(times, 1);
        assert_contains(heard, "fold has no kernel for this on cuda:0: it runs on the host");
    }
    tn_to(tn_fold(tn_randn(TN_DIMS(1, 4, 4), TN_F32), TN_DIMS(3, 3), TN_DIMS(2, 2),
                  tn_unfold_defaults()),
          tn_cpu());
    assert_int_equal(times, 1);
    tn_log_to(NULL, TN_LOG_ERROR, NULL);
}

/* Sorting and running sums. */
TEST(lines_stay) {
    listen_again();
    tn_tensor *x = draw_on_device(TN_DIMS(3, 5), TN_BF16), *index;
    tn_sort(x, 1, false, &index);
    tn_topk(x, 2, 1, true, &index);
    tn_nonzero(x);
    tn_prod(tn_cumsum(x, 1), TN_DIMS(0), false);
    tn_cumprod(x, -1);
    assert_string_equal(heard, "");
    tn_log_to(NULL, TN_LOG_ERROR, NULL);
}

enum { X, W_IH, W_HH, B_IH, B_HH, LEAVES };

/* The same numbers on this device, as leaves: x, and the weights of a cell with so many gates. */
static void make_leaves(tn_device device, tn_dtype dtype, int64_t gates, tn_tensor **leaf) {
    const tn_dims dims[] = {TN_DIMS(4, 2, 3), TN_DIMS(gates * 4, 3), TN_DIMS(gates * 4, 4),
                            TN_DIMS(gates * 4), TN_DIMS(gates * 4)};
    tn_seed(3);
    for (int i = 0; i < LEAVES; i++) {
        tn_tensor *t = tn_to(tn_cast(tn_randn(dims[i], TN_F32), dtype), device);
        leaf[i] = tn_set_requires_grad(t, true);
    }
}

static tn_tensor *run_cell(tn_tensor **leaf, int64_t gates, bool reverse) {
    tn_rnn_weights w = {leaf[W_IH], leaf[W_HH], leaf[B_IH], leaf[B_HH]};
    tn_tensor *hn;
    return gates == 4   ? tn_lstm_op(leaf[X], NULL, NULL, w, NULL, reverse, &hn, NULL)
           : gates == 3 ? tn_gru_op(leaf[X], NULL, w, NULL, reverse, &hn)
                        : tn_rnn_op(leaf[X], NULL, w, NULL, reverse, false, &hn);
}

/* In every dtype, forward and backward, as on the CPU. Both directions use the same weights, so
 * that gradients are added. */
TEST(recurrent_nets_stay) {
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
    static const int64_t gates[] = {1, 3, 4};
    listen_again();
    for (int i = 0; i < 9; i++) {
        TN_SCOPE;
        tn_dtype dtype = dtypes[i / 3];
        tn_tensor *leaf[2][LEAVES], *y[2][2];
        for (int k = 0; k < 2; k++) {
            make_leaves(k ? tn_cuda(0) : tn_cpu(), dtype, gates[i % 3], leaf[k]);
            for (int reverse = 0; reverse < 2; reverse++) {
                y[k][reverse] = run_cell(leaf[k], gates[i % 3], reverse);
            }
            tn_tensor *loss = tn_add(tn_sum_all(tn_square(y[k][0])), tn_sum_all(y[k][1]));
            assert_int_equal(tn_backward(loss), TN_OK);
        }
        double near = dtype == TN_F32 ? 1e-5 : dtype == TN_BF16 ? 1.0 / 32 : 1.0 / 256;
        assert_true(tn_all_close(tn_to(y[1][1], tn_cpu()), y[0][1], near, near));
        for (int n = 0; n < LEAVES; n++) {
            tn_tensor *got = tn_to(tn_grad_of(leaf[1][n]), tn_cpu());
            assert_true(tn_all_close(got, tn_grad_of(leaf[0][n]), near, near));
        }
    }
    assert_string_equal(heard, "");
    tn_log_to(NULL, TN_LOG_ERROR, NULL);
}

int main(void) {
    setenv("TERN_CUDA", "cuda_emulator", 0);
    if (!tn__device_plugin(TN_CUDA)) {
        printf("1..0 # SKIP %s\n", tn_device_why(TN_CUDA));
        return 0;
    }
    return tests_run(NULL, NULL);
}
