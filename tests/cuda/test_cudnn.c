/* What runs through cuDNN, over the emulator and the stand-in for cuDNN (tests/emulator/
 * fake_cudnn.c): which calls it receives, that its results are used, and what is left to our own
 * kernels. How cuDNN itself computes only a GPU can show. */
#include "tests/emulator/fake_cudnn.h"
#include "tests/support/test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tern/sys/device.h>
#include <tern/sys/op.h>
#include <tern/tern.h>

static bool has_cudnn; /* the stand-in and the emulator were built */

/* What a function of the stand-in returns; 0: it is not loaded. */
static int ask_cudnn(const char *function) {
    void *library = dlopen(getenv("TERN_CUDNN"), RTLD_NOW | RTLD_NOLOAD);
    int (*ask)(void) = NULL;
    if (library) {
        *(void **)&ask = dlsym(library, function);
        dlclose(library);
    }
    return ask ? ask() : 0;
}

static int runs_so_far(void) {
    return ask_cudnn("fake_cudnn_runs");
}

/* The operands of one call, and the gradients of sum(y²). */
typedef struct conv_case {
    tn_tensor *x, *w, *b; /* b NULL: none */
    tn_conv_options options;
    bool transposed;
} conv_case;

typedef struct conv_results {
    tn_tensor *y, *x, *w, *b;
} conv_results;

static tn_tensor *leaf_on(tn_tensor *t, tn_device device) {
    return t ? tn_set_requires_grad(tn_detach(tn_copy(tn_to(t, device))), true) : NULL;
}

static conv_results run_on(const conv_case *c, tn_device device) {
    tn_tensor *x = leaf_on(c->x, device), *w = leaf_on(c->w, device), *b = leaf_on(c->b, device);
    tn_tensor *y = c->transposed ? tn_conv_transpose2d_op(x, w, b, c->options)
                                 : tn_conv2d_op(x, w, b, c->options);
    tn_backward(tn_sum_all(tn_square(tn_cast(y, TN_F32))));
    assert_string_equal(tn_error_message(), "");
    return (conv_results){y, tn_grad_of(x), tn_grad_of(w), b ? tn_grad_of(b) : NULL};
}

static void expect_close(tn_tensor *on_device, tn_tensor *wanted, tn_dtype dtype,
                         const char *what) {
    double relative = dtype == TN_BF16 ? 3e-2 : dtype == TN_F16 ? 4e-3 : 1e-5;
    tn_tensor *got = tn_cast(tn_to(tn_detach(on_device), tn_cpu()), TN_F64),
              *want = tn_cast(tn_detach(wanted), TN_F64);
    double largest = tn_item(tn_max(tn_reshape(tn_abs(want), TN_DIMS(-1)), TN_DIMS(0), false));
    if (!tn_all_close(got, want, relative, relative * largest)) {
        fail_msg("%s in %s is not the CPU's", what, tn_dtype_name(dtype));
    }
}

/* Runs it on the device and on the CPU; returns how many cuDNN graphs that took. */
static int expect_same(const conv_case *c) {
    tn_device device = tn_device_named("cuda");
    tn_dtype dtype = tn_dtype_of(c->x);
    int before = runs_so_far();
    conv_results got = run_on(c, device), want = run_on(c, tn_cpu());
    expect_close(got.y, want.y, dtype, "the result");
    expect_close(got.x, want.x, dtype, "the gradient of x");
    expect_close(got.w, want.w, dtype, "the gradient of the weight");
    if (c->b) { expect_close(got.b, want.b, dtype, "the gradient of the bias"); }
    return runs_so_far() - before;
}

static tn_tensor *randn_as(tn_dims dims, tn_dtype dtype) {
    return tn_cast(tn_randn(dims, TN_F32), dtype);
}

static conv_case some_case(tn_dtype dtype, bool with_bias) {
    tn_conv_options o = tn_conv_strided(2, 1);
    return (conv_case){.x = randn_as(TN_DIMS(2, 4, 9, 8), dtype),
                       .w = randn_as(TN_DIMS(6, 4, 3, 3), dtype),
                       .b = with_bias ? randn_as(TN_DIMS(6), dtype) : NULL,
                       .options = o};
}

static void need_cudnn(void) {
    if (!has_cudnn) {
        fprintf(stderr, "the stand-in for cuDNN, or the emulator, was not built\n");
        skip();
    }
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Forward and both gradients, with and without a bias, in three dtypes. */
TEST(goes_to_cudnn) {
    need_cudnn();
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
    for (int i = 0; i < 3; i++) {
        for (int bias = 0; bias < 2; bias++) {
            conv_case c = some_case(dtypes[i], bias);
            assert_int_equal(expect_same(&c), 3);
            assert_int_equal(expect_same(&c), 3); /* from cached plans */
        }
    }
}

/* Groups and dilation; a transposed convolution with a bias; one dimension as two. */
TEST(forms_go_to_cudnn) {
    need_cudnn();
    conv_case c = some_case(TN_F32, true);
    c.w = randn_as(TN_DIMS(6, 2, 3, 2), TN_F32);
    c.options = tn_conv_defaults();
    c.options.groups = 2;
    c.options.dilation = TN_DIMS(2, 1);
    assert_int_equal(expect_same(&c), 3);
    c = (conv_case){.x = randn_as(TN_DIMS(2, 4, 5, 5), TN_F32),
                    .w = randn_as(TN_DIMS(4, 6, 3, 3), TN_F32),
                    .b = randn_as(TN_DIMS(6), TN_F32),
                    .options = tn_conv_strided(2, 1),
                    .transposed = true};
    assert_int_equal(expect_same(&c), 3);
    tn_tensor *x = tn_to(tn_randn(TN_DIMS(2, 3, 20), TN_F32), tn_device_named("cuda")),
              *w = tn_to(tn_randn(TN_DIMS(5, 3, 4), TN_F32), tn_device_named("cuda"));
    int before = runs_so_far();
    tn_tensor *y = tn_conv1d_op(x, w, NULL, tn_conv_defaults());
    expect_close(y, tn_conv1d_op(tn_to(x, tn_cpu()), tn_to(w, tn_cpu()), NULL, tn_conv_defaults()),
                 TN_F32, "a row");
    assert_int_equal(runs_so_far() - before, 1);
}

/* Operands that are not dense are copied first. */
TEST(copies_go_to_cudnn) {
    need_cudnn();
    tn_device device = tn_device_named("cuda");
    conv_case c = some_case(TN_F32, false);
    int before = runs_so_far();
    tn_tensor *x = tn_transpose(tn_to(c.x, device), 2, 3), *w = tn_to(c.w, device);
    tn_tensor *y = tn_conv2d_op(x, w, NULL, c.options);
    expect_close(y, tn_conv2d_op(tn_transpose(c.x, 2, 3), c.w, NULL, c.options), TN_F32,
                 "a transposed picture");
    assert_int_equal(runs_so_far() - before, 1);
}

/* (N, C, D, H, W) with the channels last in memory. */
static tn_desc channels_last(tn_tensor *t) {
    tn_desc d = tn_desc_of(t);
    d.stride[1] = 1;
    d.stride[4] = d.size[1];
    d.stride[3] = d.size[4] * d.stride[4];
    d.stride[2] = d.size[3] * d.stride[3];
    d.stride[0] = d.size[2] * d.stride[2];
    return d;
}

/* The result of the CPU or the device, from operands with the channels last; NULL: it failed. */
static tn_tensor *conv_of_last(tn_device device, tn_tensor *x, tn_tensor *w) {
    tn_tensor *y = tn_to(tn_zeros(TN_DIMS(2, 6, 1, 9, 8), TN_F32), device);
    tn_desc yd = channels_last(y), xd = channels_last(tn_to(x, device)),
            wd = channels_last(tn_to(w, device));
    tn_conv_args args = {
        .stride = {1, 1, 1}, .padding = {0, 1, 1}, .dilation = {1, 1, 1}, .groups = 1};
    tn_status status =
        tn_backend_of(device)->conv(tn_context_of(device), &yd, &xd, &wd, NULL, &args);
    return status == TN_OK ? y : NULL;
}

/* Channels last in all operands are not copied: no memory is taken but cuDNN's own. */
TEST(last_channels_stay) {
    need_cudnn();
    tn_tensor *x = randn_as(TN_DIMS(2, 4, 1, 9, 8), TN_F32),
              *w = randn_as(TN_DIMS(6, 4, 1, 3, 3), TN_F32);
    int before = runs_so_far();
    int64_t taken = 0;
    for (int i = 0; i < 2; i++) { /* the second time from a cached plan */
        int64_t used = tn_device_memory(tn_cuda(0)).allocated;
        tn_device_memory_reset_peak(tn_cuda(0));
        expect_close(conv_of_last(tn_cuda(0), x, w), conv_of_last(tn_cpu(), x, w), TN_F32, "it");
        taken = tn_device_memory(tn_cuda(0)).peak - used;
    }
    assert_int_equal(runs_so_far() - before, 2);
    int64_t operands = 4 * (2 * 4 * 9 * 8 + 6 * 4 * 9 + 2 * 6 * 9 * 8);
    assert_true(taken < operands + 4096 + 4 * 512);
}

/* f64 and empty batches are for our own kernels. */
TEST(rest_is_ours) {
    need_cudnn();
    conv_case c = some_case(TN_F64, true);
    assert_int_equal(expect_same(&c), 0);
    c = some_case(TN_F32, true);
    c.x = randn_as(TN_DIMS(0, 4, 9, 8), TN_F32);
    int before = runs_so_far();
    run_on(&c, tn_device_named("cuda"));
    assert_int_equal(runs_so_far() - before, 0);
}

static int engine_of(const conv_case *c) {
    run_on(c, tn_device_named("cuda"));
    return ask_cudnn("fake_cudnn_engine");
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Attention of (1, 4, T, 16) over (1, 2, T, 16) in y, and the gradients of sum(y g). */
typedef struct attention_results {
    tn_tensor *of[4];
} attention_results;

static attention_results attend_on(tn_device device, tn_tensor *const operand[4], bool causal) {
    tn_tensor *x[3];
    for (int i = 0; i < 3; i++) {
        x[i] = leaf_on(operand[i], device);
    }
    tn_attention_options o = TN_WITH(tn_attention, .causal = causal);
    tn_tensor *y = tn_attention(x[0], x[1], x[2], NULL, o);
    tn_backward(tn_sum_all(tn_cast(tn_mul(y, tn_to(operand[3], device)), TN_F32)));
    assert_string_equal(tn_error_message(), "");
    return (attention_results){{y, tn_grad_of(x[0]), tn_grad_of(x[1]), tn_grad_of(x[2])}};
}

/* Compares with the CPU; returns how many plans were made. */
static int attend_both(int64_t length, bool causal) {
    static const char *const what[] = {"attention", "dq", "dk", "dv"};
    TN_SCOPE;
    int64_t before = ask_cudnn("fake_cudnn_plans"), ran = runs_so_far();
    tn_tensor *operand[4];
    for (int i = 0; i < 4; i++) { /* q k v g */
        operand[i] = randn_as(TN_DIMS(1, i == 1 || i == 2 ? 2 : 4, length, 16), TN_BF16);
    }
    attention_results got = attend_on(tn_cuda(0), operand, causal),
                      want = attend_on(tn_cpu(), operand, causal);
    for (int i = 0; i < 4; i++) {
        expect_close(got.of[i], want.of[i], TN_BF16, what[i]);
    }
    assert_int_equal(runs_so_far() - ran, 2);
    return (int)(ask_cudnn("fake_cudnn_plans") - before);
}

/* Prompts of many lengths share plans, and their results are those of their own rows. */
TEST(lengths_share_plans) {
    need_cudnn();
    setenv("FAKE_CUDNN_ATTENTION", "1", 1);
    assert_int_equal(attend_both(65, true), 2);  /* 128: forward, backward */
    assert_int_equal(attend_both(128, true), 2); /* in its own layout in memory */
    assert_int_equal(attend_both(127, true), 0);
    assert_int_equal(attend_both(100, true), 0);
    assert_int_equal(attend_both(20, true), 2); /* 64 */
    assert_int_equal(attend_both(33, true), 0);
    assert_int_equal(attend_both(33, false), 2); /* what every query sees has its own length */
    assert_int_equal(attend_both(520, true), 2); /* 640 */
    assert_int_equal(attend_both(600, true), 0);
    tn_set_deterministic(false);
    assert_int_equal(attend_both(600, true), 2); /* which adds up parts of dq */
    tn_set_deterministic(true);
    assert_int_equal(attend_both(601, true), 0);
    unsetenv("FAKE_CUDNN_ATTENTION");
}

/* ---- Settings -------------------------------------------------------------------------------- */

/* Which engine may run: rounding to TF32 is the default for convolutions of f32 alone. */
TEST(takes_allowed_engine) {
    need_cudnn();
    enum { ROUNDS, BY_ARRIVAL, NEITHER };
    conv_case c = some_case(TN_F32, false);
    assert_true(tn_conv_tf32() && tn_deterministic() && !tn_matmul_tf32());
    assert_int_equal(engine_of(&c), ROUNDS);
    tn_set_conv_tf32(false);
    assert_int_equal(engine_of(&c), NEITHER);
    tn_set_deterministic(false);
    assert_int_equal(engine_of(&c), BY_ARRIVAL);
    tn_set_deterministic(true);
    assert_int_equal(engine_of(&c), NEITHER);
    tn_set_conv_tf32(true);
    assert_int_equal(engine_of(&c), ROUNDS);
}

/* The lines of the log, one after another. */
static char news[2048];
static void take_news(tn_log_level level, const char *message, void *user) {
    assert_int_equal(level, TN_LOG_WARN);
    strncat(news, message, sizeof(news) - strlen(news) - 2);
    strcat(news, "\n");
}

static int count_lines(void) {
    int lines = 0;
    for (const char *c = news; *c; c++) {
        lines += *c == '\n';
    }
    return lines;
}

/* Attention that it refuses; a second device, on which it does not start. */
TEST(says_what_is_slow) {
    need_cudnn();
    news[0] = 0;
    tn_log_to(take_news, TN_LOG_WARN, NULL);
    tn_tensor *q = tn_to(randn_as(TN_DIMS(1, 2, 16, 8), TN_BF16), tn_device_named("cuda"));
    for (int i = 0; i < 2; i++) {
        tn_attention(q, q, q, NULL, tn_attention_defaults());
        assert_non_null(strstr(news, "cuDNN refuses attention of 16 queries, 16 keys, 8 wide"));
        assert_int_equal(count_lines(), 1);
    }
    news[0] = 0;
    setenv("FAKE_CUDNN_STARTS", "no", 1);
    conv_case c = some_case(TN_F32, false);
    int before = runs_so_far();
    for (int i = 0; i < 2; i++) {
        run_on(&c, tn_device_named("cuda:1"));
        assert_non_null(strstr(news, "does not start: the stand-in refuses"));
        assert_int_equal(count_lines(), 1);
    }
    assert_int_equal(runs_so_far() - before, 0);
    char text[1024];
    tn__device_plugin(TN_CUDA)->versions(text, sizeof(text));
    assert_non_null(strstr(text, "(which does not start: the stand-in refuses)"));
    unsetenv("FAKE_CUDNN_STARTS");
    tn__device_plugin(TN_CUDA)->versions(text, sizeof(text));
    assert_null(strstr(text, "start"));
    tn_log_to(NULL, TN_LOG_WARN, NULL);
}

int main(void) {
    char fake[512];
    snprintf(fake, sizeof(fake), "%s/emulator/libfake_cudnn.so", getenv("TERN_TEST_BIN"));
    setenv("TERN_CUDA", "cuda_emulator", 1);
    setenv("TERN_CUDNN", fake, 1);
    setenv("TERN_AUTOTUNE", "0", 1); /* the first engine that may run */
    unsetenv("TERN_TF32");
    has_cudnn = access(fake, R_OK) == 0;
    return tests_run(NULL, NULL);
}
