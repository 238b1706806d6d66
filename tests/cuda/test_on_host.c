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
    (void)level;
    (void)user;
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

static void said_once(void **state) {
    (void)state;
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
static void lines_stay(void **state) {
    (void)state;
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

/* In every dtype, both ways. */
static void recurrent_nets_stay(void **state) {
    (void)state;
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
    listen_again();
    for (int i = 0; i < 9; i++) {
        TN_SCOPE;
        tn_dtype dtype = dtypes[i / 3];
        int64_t gates = i % 3 == 0 ? 1 : i % 3 == 1 ? 3 : 4;
        tn_rnn_weights w = {draw_on_device(TN_DIMS(gates * 4, 3), dtype),
                            draw_on_device(TN_DIMS(gates * 4, 4), dtype),
                            draw_on_device(TN_DIMS(gates * 4), dtype),
                            draw_on_device(TN_DIMS(gates * 4), dtype)};
        tn_tensor *x = draw_on_device(TN_DIMS(4, 2, 3), dtype), *hn, *y;
        if (gates == 4) {
            y = tn_lstm_op(x, NULL, NULL, w, NULL, false, &hn, NULL);
        } else if (gates == 3) {
            y = tn_gru_op(x, NULL, w, NULL, false, &hn);
        } else {
            y = tn_rnn_op(x, NULL, w, NULL, false, false, &hn);
        }
        assert_int_equal(tn_backward(tn_sum_all(tn_square(y))), TN_OK);
        assert_int_equal(tn_dtype_of(tn_grad_of(w.weight_hh)), dtype);
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
    const struct CMUnitTest tests[] = {
        TEST(said_once),
        TEST(lines_stay),
        TEST(recurrent_nets_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
