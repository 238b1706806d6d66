/* What training costs in memory: N blocks cost their saved tensors, the gradients of the parameters
 * and two temporaries.
 *
 * Counted by hand for one transformer block on x (B, T, C) with H heads, in elements, U = B T C:
 *
 *     x, the input of ln_1            U        (the result of the block before, whose add
 *                                              saves nothing)
 *     ln_1's result, c_attn's input   U
 *     qkv, attention's input         3 U
 *     attention's result              U        and the log-sums of its rows, B H T
 *     x + attn, the input of ln_2     U
 *     ln_2's result, c_fc's input     U
 *     c_fc's result, gelu's input    4 U
 *     gelu's result, c_proj's input  4 U
 *     mean and 1 / deviation of both norms, 4 B T
 *
 * The widest temporary is a gradient of 4 U elements;
 * "two" is an operation's incoming and outgoing gradient.
 */
#include <stdlib.h>

#include "tests/support/test.h"

#include <tern/tern.h>

enum { B = 2, T = 64, C = 128, H = 4, MOST = 6 };

static const int64_t U = (int64_t)B * T * C * (int64_t)sizeof(float);
static const int64_t ROWS = (int64_t)B * T * (int64_t)sizeof(float);

/* What the kernels also use, for any number of blocks. */
static const int64_t SCRATCH = 512 * 1024;

/* The allocator rounds sizes up. */
static int64_t rounding_of(int64_t bytes) {
    return bytes / 100 + 4096;
}

typedef struct model {
    tn_sequential all;
    tn_block blocks[MOST];
    int count;
} model;

static void model_init(model *m, int count) {
    tn_block_options options = TN_WITH(tn_block, .heads = H);
    tn_sequential_init(&m->all);
    m->count = count;
    for (int i = 0; i < count; i++) {
        tn_block_init(&m->blocks[i], C, options);
        tn_sequential_add(&m->all, &m->blocks[i]);
    }
}

typedef struct cost {
    int64_t forward; /* held after it, not counting the input and the parameters */
    int64_t peak;    /* of forward and backward */
    int64_t gradients;
} cost;

/* One step's memory, starting without gradients. x requires none. */
static cost measure_step(model *m) {
    TN_SCOPE;
    tn_tensor *x = tn_randn(TN_DIMS(B, T, C), TN_F32), *dy = tn_ones_like(x);
    int64_t before = tn_device_memory(tn_default_device()).allocated;
    tn_device_memory_reset_peak(tn_default_device());
    tn_tensor *y = tn_call(&m->all, x);
    cost c = {.forward = tn_device_memory(tn_default_device()).allocated - before};
    tn_backward_from(&y, &dy, 1, false);
    c.peak = tn_device_memory(tn_default_device()).peak - before;
    c.gradients = tn_module_count(&m->all) * (int64_t)sizeof(float);
    assert_string_equal(tn_error_message(), "");
    tn_module_zero_grad(&m->all);
    return c;
}

static void expect_at_most(int64_t got, int64_t want) {
    if (got > want + rounding_of(want)) {
        fail_msg("%lld bytes; %lld were expected (%.2f and %.2f U)", (long long)got,
                 (long long)want, (double)got / (double)U, (double)want / (double)U);
    }
}

static void expect_at_least(int64_t got, int64_t want) {
    if (got < want) {
        fail_msg("only %lld bytes; %lld were expected: does the measurement count everything?",
                 (long long)got, (long long)want);
    }
}

static int64_t saved_by_a_block(void) {
    return 16 * U + H * ROWS + 4 * ROWS;
}

PLAIN_TEST(saved_tensors) {
    for (int n = 1; n <= MOST; n += 5) {
        model m;
        model_init(&m, n);
        cost c = measure_step(&m);
        /* the first x is the caller's, and the last result comes on top: - U + U */
        int64_t want = n * saved_by_a_block();
        expect_at_most(c.forward, want);
        expect_at_least(c.forward, want);
        tn_module_finish(&m.all);
    }
}

PLAIN_TEST(peak_of_training) {
    for (int n = 1; n <= MOST; n += 5) {
        model m;
        model_init(&m, n);
        cost c = measure_step(&m);
        expect_at_most(c.peak, n * saved_by_a_block() + c.gradients + 2 * 4 * U + SCRATCH);
        expect_at_least(c.peak, n * saved_by_a_block());
        tn_module_finish(&m.all);
    }
}

/* Recomputed blocks cost their inputs, and one block at a time all that it saves. */
PLAIN_TEST(peak_with_recompute) {
    model m;
    model_init(&m, MOST);
    for (int i = 0; i < MOST; i++) {
        tn_module_set_recompute(&m.blocks[i], true);
    }
    cost c = measure_step(&m);
    expect_at_most(c.forward, MOST * U);
    expect_at_most(c.peak, MOST * U + saved_by_a_block() + c.gradients + 2 * 4 * U + SCRATCH);
    tn_module_finish(&m.all);
}

/* Without recording: the peak of one block, for any number of blocks. It is in mlp: the block's
 * input, x + attn, the results of ln_2, c_fc and gelu, and then that of c_proj. */
PLAIN_TEST(peak_of_inference) {
    model m;
    model_init(&m, MOST);
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = tn_randn(TN_DIMS(B, T, C), TN_F32);
    int64_t before = tn_device_memory(tn_default_device()).allocated;
    tn_device_memory_reset_peak(tn_default_device());
    tn_call(&m.all, x);
    expect_at_most(tn_device_memory(tn_default_device()).peak - before,
                   U + U + U + 4 * U + 4 * U + U + SCRATCH);
    expect_at_most(tn_device_memory(tn_default_device()).allocated - before, U);
    tn_module_finish(&m.all);
}
