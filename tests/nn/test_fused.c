/* Calls in a row that are one operation on some devices (tn__may_fuse): a block gives what it gives
 * with hooks on its parts, which forbid that; and hooks on the parts are called. */
#include "tests/support/test.h"

#include <tern/tern.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 32, ROWS = 10, PARTS = 3 };

typedef struct trained {
    tn_tensor *y, *dx, *grads[12];
    int count;
} trained;

static bool take_gradient(const tn_entry *entry, void *user) {
    trained *t = user;
    t->grads[t->count++] = tn_copy(tn_grad_of(entry->stored));
    return true;
}

/* The result of the block and all gradients of a sum of it. */
static trained run_block(void *m, tn_tensor *data) {
    trained t = {0};
    tn_tensor *x = tn_set_requires_grad(tn_copy(data), true);
    t.y = tn_call(m, x);
    tn_backward(tn_sum_all(tn_square(tn_cast(t.y, TN_F32))));
    t.dx = tn_grad_of(x);
    tn_module_each(m, (tn_walk){0}, take_gradient, &t);
    tn_module_zero_grad(m);
    return t;
}

static void expect_close(tn_tensor *got, tn_tensor *want, double relative, const char *what,
                         int which) {
    tn_tensor *a = tn_cast(tn_to(tn_detach(got), tn_cpu()), TN_F64),
              *b = tn_cast(tn_to(tn_detach(want), tn_cpu()), TN_F64);
    double most = tn_item(tn_max(tn_reshape(tn_abs(b), TN_DIMS(-1)), TN_DIMS(0), false));
    if (!tn_all_close(a, b, 0, relative * most)) {
        fail_msg("%s %d is not that of the parts", what, which);
    }
}

static tn_values count_call(tn_module *m, tn_values in, void *user) {
    (*(int *)user)++;
    return in;
}

/* Of a kind of block, parts on which a hook forbids to call several as one. */
typedef union any_block {
    tn_block gpt;
    tn_llama_block llama;
} any_block;

static int make_block(any_block *m, bool llama, tn_dtype dtype, void **parts) {
    tn_seed(7);
    if (llama) {
        tn_llama_block_init(&m->llama, WIDTH, 3 * WIDTH,
                            TN_WITH(tn_llama_block, .heads = 4, .kv_heads = 2, .dtype = dtype));
        parts[0] = &m->llama.post_attention_layernorm;
        return 1;
    }
    tn_block_init(&m->gpt, WIDTH, TN_WITH(tn_block, .heads = 2, .dtype = dtype));
    parts[0] = &m->gpt.ln_2;
    parts[1] = &m->gpt.mlp.c_fc;
    parts[2] = &m->gpt.mlp.c_proj;
    return 3;
}

TEST(is_the_parts) {
    /* a bf16 intermediate is rounded in different places: half a step, a few times */
    static const struct {
        tn_dtype dtype;
        double relative;
    } cases[] = {{TN_F32, 2e-6}, {TN_BF16, 2e-2}, {TN_F16, 3e-3}};
    bool device = tn_default_device().kind != TN_CPU;
    for (int i = 0; i < 6; i++) {
        TN_SCOPE;
        any_block m;
        void *parts[PARTS];
        int calls = 0, count = make_block(&m, i % 2, cases[i / 2].dtype, parts);
        tn_tensor *x = tn_cast(tn_randn(TN_DIMS(2, ROWS / 2, WIDTH), TN_F32), cases[i / 2].dtype);
        trained together = run_block(&m, x);
        for (int k = 0; k < count; k++) {
            tn_module_hook(parts[k], (tn_module_hooks){.before = count_call, .user = &calls});
        }
        trained apart = run_block(&m, x);
        assert_int_equal(calls, count);
        double relative = device ? cases[i / 2].relative : 0; /* on the CPU the same bits */
        expect_close(together.y, apart.y, relative, "the result", 0);
        expect_close(together.dx, apart.dx, relative, "the gradient of x", 0);
        assert_int_equal(together.count, i % 2 ? 9 : 12);
        for (int k = 0; k < together.count; k++) {
            expect_close(together.grads[k], apart.grads[k], relative, "gradient", k);
        }
        tn_module_finish(&m);
    }
}

/* The gradients of h = 2 x in norm(h) w + h v, where the norm's backward may add to h's: x's. */
static tn_tensor *residual_gradient(tn_tensor *data, tn_device device, bool rms) {
    tn_tensor *x = tn_set_requires_grad(tn_copy(tn_to(data, device)), true);
    tn_tensor *w = tn_cast(tn_to(tn_linspace(-1, 1, WIDTH, TN_F32), device), tn_dtype_of(data));
    tn_tensor *h = tn_mul_scalar(x, 2.0);
    tn_tensor *y = rms ? tn_rms_norm_op(h, NULL, 1e-5) : tn_layer_norm_op(h, NULL, NULL, 1e-5);
    tn_backward(tn_sum_all(tn_cast(tn_add(tn_mul(y, w), tn_mul(h, tn_square(w))), TN_F32)));
    return tn_grad_of(x);
}

/* Anomaly mode has the engine add. */
TEST(whoever_adds) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    for (int i = 0; i < 8; i++) {
        TN_SCOPE;
        tn_tensor *data = tn_cast(tn_randn(TN_DIMS(3, 7, WIDTH), TN_F32), dtypes[i / 2]);
        tn_tensor *kernels = residual_gradient(data, tn_default_device(), i % 2);
        tn_set_anomaly(true);
        tn_tensor *engines = residual_gradient(data, tn_default_device(), i % 2);
        tn_set_anomaly(false);
        assert_true(tn_equal(kernels, engines));
    }
}

TEST(a_norm_adds_its_gradient) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    static const double relative[] = {2e-6, 1e-12, 2e-2, 3e-3};
    for (int i = 0; i < 8; i++) {
        TN_SCOPE;
        tn_tensor *data =
            tn_cast(tn_to(tn_randn(TN_DIMS(3, 7, WIDTH), TN_F32), tn_cpu()), dtypes[i / 2]);
        expect_close(residual_gradient(data, tn_default_device(), i % 2),
                     residual_gradient(data, tn_cpu(), i % 2), relative[i / 2], "gradient", i);
    }
}

/* A weight in another dtype than x, and a finished part, are the call's to refuse. */
TEST(refuses_like_the_parts) {
    tn_block m;
    tn_block_init(&m, WIDTH, tn_block_defaults());
    tn_call(&m, tn_zeros(TN_DIMS(1, 2, WIDTH), TN_BF16));
    assert_error(TN_EDTYPE, "");
    tn_module_finish(&m.mlp.c_fc);
    tn_call(&m, tn_zeros(TN_DIMS(1, 2, WIDTH), TN_F32));
    assert_error(TN_ESTATE, "");
    tn_module_finish(&m);
}

/* The bytes that a recorded mlp holds, its result apart; `wants`: a bit for each input. */
static int64_t mlp_holds(unsigned wants) {
    TN_SCOPE;
    const tn_dims dims[] = {TN_DIMS(64, 64), TN_DIMS(256, 64), TN_DIMS(256), TN_DIMS(64, 256),
                            TN_DIMS(64)};
    tn_tensor *in[5];
    for (int i = 0; i < 5; i++) {
        in[i] = tn_set_requires_grad(tn_ones(dims[i], TN_F32), wants >> i & 1);
    }
    int64_t before = tn_device_memory(tn_default_device()).allocated;
    tn_tensor *y = tn_mlp_op(in[0], in[1], in[2], in[3], in[4]);
    int64_t held = tn_device_memory(tn_default_device()).allocated - before;
    return held - tn_count(y) * (int64_t)sizeof(float);
}

/* What is not needed is not held: gelu's argument and its result are 64 KiB each. */
TEST(mlp_holds_what_it_needs) {
    const int64_t one = 64 * 256 * sizeof(float), some = one / 4;
    assert_true(llabs(mlp_holds(31) - 2 * one) < some);
    assert_true(llabs(mlp_holds(1) - one) < some);
    assert_true(llabs(mlp_holds(2) - one) < some);
    assert_true(llabs(mlp_holds(8) - one) < some);
    assert_true(llabs(mlp_holds(16)) < some);
}
