/* Unusual programs, on public headers only: what users write beyond "a batch in, a loss out".
 *
 *   a two-layer LSTM             state passed from step to step, and kept in buffers between calls
 *   attention under a mask       padding that is masked
 *   a GAN                        two optimisers, one network frozen
 *   a gradient penalty           a loss made of a gradient
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* ---- An LSTM (Hochreiter and Schmidhuber 1997) ----------------------------------------------- */

/* (x (B, in), h (B, H), c (B, H)) -> (h, c) */
typedef struct cell {
    tn_module base;
    tn_linear gates; /* of input, forget, cell and output, from x and h side by side */
    int64_t width;
} cell;

static tn_values cell_forward(tn_module *self, tn_values in, void *context) {
    cell *m = (cell *)self;
    tn_tensor *both[2] = {in.v[0], in.v[1]}, *gates[4];
    tn_split(tn_call(&m->gates, tn_cat(both, 2, 1)), m->width, 1, gates, 4);
    tn_tensor *keep = tn_mul(tn_sigmoid(gates[1]), in.v[2]);
    tn_tensor *c = tn_add(keep, tn_mul(tn_sigmoid(gates[0]), tn_tanh(gates[2])));
    return tn_values_of(tn_mul(tn_sigmoid(gates[3]), tn_tanh(c)), c);
}

static void cell_init(cell *m, int64_t in, int64_t width) {
    tn_module_init_values(m, "lstm_cell", cell_forward);
    m->width = width;
    tn_linear_init(&m->gates, in + width, 4 * width, tn_linear_defaults());
    tn_module_add(m, "gates", &m->gates);
}

/* Two cells and a classifier: x (B, T, in) -> (B, T, out). Continues from the state in its buffers,
 * if there is one, and leaves the new state there, detached. */
typedef struct lstm {
    tn_module base;
    cell cells[2];
    tn_linear out;
    tn_tensor *h[2], *c[2];
    int64_t width;
    bool stateful;
} lstm;

static tn_tensor *start_state(tn_tensor *kept, int64_t batch, int64_t width) {
    return kept ? kept : tn_zeros(TN_DIMS(batch, width), TN_F32);
}

static tn_tensor *lstm_forward(tn_module *self, tn_tensor *x) {
    lstm *m = (lstm *)self;
    int64_t B = tn_size(x, 0), T = tn_size(x, 1);
    tn_tensor *h[2], *c[2], *steps[64];
    for (int i = 0; i < 2; i++) {
        h[i] = start_state(m->h[i], B, m->width);
        c[i] = start_state(m->c[i], B, m->width);
    }
    for (int64_t t = 0; t < T; t++) {
        tn_tensor *now = tn_select(x, 1, t);
        for (int i = 0; i < 2; i++) {
            tn_values state = tn_call_values(&m->cells[i], (tn_values){3, {now, h[i], c[i]}}, NULL);
            now = h[i] = state.v[0];
            c[i] = state.v[1];
        }
        steps[t] = now;
    }
    for (int i = 0; i < 2 && m->stateful; i++) {
        tn_module_set_buffer(self, i == 0 ? "h0" : "h1", tn_detach(h[i]));
        tn_module_set_buffer(self, i == 0 ? "c0" : "c1", tn_detach(c[i]));
    }
    return tn_call(&m->out, tn_stack(steps, (int)T, 1));
}

static void lstm_init(lstm *m, int64_t in, int64_t width, int64_t out) {
    tn_module_init(m, "lstm", lstm_forward);
    m->width = width;
    m->stateful = false;
    cell_init(&m->cells[0], in, width);
    cell_init(&m->cells[1], width, width);
    tn_linear_init(&m->out, width, out, tn_linear_defaults());
    tn_module_add(m, "0", &m->cells[0]);
    tn_module_add(m, "1", &m->cells[1]);
    tn_module_add(m, "out", &m->out);
    tn_module_scratch(m, "h0", &m->h[0], NULL);
    tn_module_scratch(m, "c0", &m->c[0], NULL);
    tn_module_scratch(m, "h1", &m->h[1], NULL);
    tn_module_scratch(m, "c1", &m->c[1], NULL);
}

/* A long sequence in pieces, the state in buffers between the calls, equals one call. */
TEST(lstm_keeps_its_state) {
    lstm net;
    lstm_init(&net, 3, 5, 2);
    tn_tensor *x = tn_randn(TN_DIMS(4, 12, 3), TN_F32), *whole = tn_call(&net, x), *pieces[3];
    net.stateful = true;
    for (int i = 0; i < 3; i++) {
        pieces[i] = tn_call(&net, tn_narrow(x, 1, 4 * i, 4));
    }
    assert_true(tn_all_close(tn_cat(pieces, 3, 1), whole, 1e-6, 1e-6));
    tn_backward(tn_sum_all(pieces[2])); /* the graph ends at the beginning of the piece */
    assert_non_null(tn_grad_of(net.cells[0].gates.weight));
    assert_int_equal(tn_module_count(&net), (8 * 20 + 20) + (10 * 20 + 20) + 12);
    tn_module_finish(&net);
}

/* ---- Attention with a mask ------------------------------------------------------------------- */

/* A sequence of 4 padded to 6 under a mask: its first 4 results and all gradients are those of the
 * sequence alone. */
TEST(padding_behind_a_mask) {
    TN_SCOPE;
    enum { T = 4, PADDED = 6, C = 8 };
    tn_block block;
    tn_block_options o = tn_block_defaults();
    o.heads = 2;
    o.causal = false;
    tn_block_init(&block, C, o);
    tn_tensor *x = tn_randn(TN_DIMS(1, T, C), TN_F32),
              *noise = tn_randn(TN_DIMS(1, PADDED - T, C), TN_F32);
    tn_tensor *parts[2] = {x, noise}, *padded = tn_cat(parts, 2, 1);
    /* (PADDED): keys below T */
    tn_tensor *seen = tn_lt(tn_arange(0, PADDED, 1, TN_F32), tn_scalar(T, TN_F32));
    tn_tensor *mask = tn_reshape(seen, TN_DIMS(1, 1, 1, PADDED));

    tn_tensor *alone = tn_call(&block, x);
    tn_backward(tn_sum_all(tn_square(alone)));
    tn_tensor *want = tn_copy(tn_grad_of(block.attn.c_attn.weight));
    tn_module_zero_grad(&block);
    tn_tensor *masked =
        tn_narrow(tn_call_values(&block, tn_values_of(padded, mask), NULL).v[0], 1, 0, T);
    tn_backward(tn_sum_all(tn_square(masked)));
    {
        TN_NO_GRAD;
        assert_true(tn_all_close(masked, alone, 1e-5, 1e-5));
        assert_true(tn_all_close(tn_grad_of(block.attn.c_attn.weight), want, 1e-4, 1e-4));
    }
    tn_module_finish(&block);
}

/* ---- A GAN (Goodfellow et al. 2014) ---------------------------------------------------------- */

typedef struct two_layers {
    tn_module base;
    tn_linear in, out;
} two_layers;

static tn_tensor *two_layers_forward(tn_module *self, tn_tensor *x) {
    two_layers *m = (two_layers *)self;
    return tn_call(&m->out, tn_tanh(tn_call(&m->in, x)));
}

static void two_layers_init(two_layers *m, int64_t in, int64_t width, int64_t out) {
    tn_module_init(m, "two_layers", two_layers_forward);
    tn_linear_init(&m->in, in, width, tn_linear_defaults());
    tn_linear_init(&m->out, width, out, tn_linear_defaults());
    tn_module_add(m, "in", &m->in);
    tn_module_add(m, "out", &m->out);
}

/* -log sigmoid(x), stable: the loss of a score that should be high. */
static tn_tensor *should_be_high(tn_tensor *x) {
    tn_tensor *both[2] = {tn_neg(x), tn_zeros_like(x)};
    return tn_mean_all(tn_logsumexp(tn_stack(both, 2, 0), TN_DIMS(0), false));
}

static tn_optim *make_adam(void *m, double lr) {
    tn_adam_options options = tn_adam_defaults();
    options.lr = lr;
    options.beta1 = 0.5;
    return tn_adam(m, options);
}

TEST(gan_finds_the_mean) {
    enum { B = 64, STEPS = 400 };
    two_layers maker, judge;
    two_layers_init(&maker, 2, 16, 1);
    two_layers_init(&judge, 1, 16, 1);
    tn_optim *maker_opt = make_adam(&maker, 5e-3), *judge_opt = make_adam(&judge, 1e-2);
    double mean = 0.0;
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *real = tn_add_scalar(tn_randn(TN_DIMS(B, 1), TN_F32), 3.0);
        tn_tensor *fake = tn_call(&maker, tn_randn(TN_DIMS(B, 2), TN_F32));

        tn_tensor *on_real = should_be_high(tn_call(&judge, real));
        tn_tensor *on_fake = should_be_high(tn_neg(tn_call(&judge, tn_detach(fake))));
        tn_backward(tn_add(on_real, on_fake));
        assert_null(tn_grad_of(maker.in.weight)); /* detached */
        tn_optim_step(judge_opt);
        tn_optim_zero_grad(judge_opt);

        tn_module_requires_grad(&judge, false); /* passes gradients on, but requires none */
        tn_backward(should_be_high(tn_call(&judge, fake)));
        tn_module_requires_grad(&judge, true);
        assert_null(tn_grad_of(judge.in.weight));
        tn_optim_step(maker_opt);
        tn_optim_zero_grad(maker_opt);
        if (step >= STEPS - 100) { mean += tn_item(tn_mean_all(tn_detach(fake))) / 100; }
    }
    assert_true(fabs(mean - 3.0) < 1.0); /* 0 at the beginning */
    tn_optim_free(maker_opt);
    tn_optim_free(judge_opt);
    tn_module_finish(&maker);
    tn_module_finish(&judge);
}

/* ---- A gradient penalty (Gulrajani et al. 2017, arXiv:1704.00028) ---------------------------- */

/* mean((|d judge(x) / d x| - 1)^2) */
static tn_tensor *slope_penalty(two_layers *judge, tn_tensor *x) {
    tn_tensor *score = tn_sum_all(tn_call(judge, x)), *slope;
    tn_grad_options options = TN_WITH(tn_grad, .create_graph = true);
    tn_grad(&score, NULL, 1, &x, 1, &slope, options);
    tn_tensor *length = tn_sqrt(tn_sum(tn_square(slope), TN_DIMS(1), false));
    return tn_mean_all(tn_square(tn_add_scalar(length, -1.0)));
}

static void set_element(tn_tensor *x, const int64_t at[2], double value) {
    TN_NO_GRAD;
    tn_fill_(tn_select(tn_select(x, 0, at[0]), 0, at[1]), value);
}

TEST(gradient_penalty) {
    TN_SCOPE;
    two_layers judge;
    two_layers_init(&judge, 3, 8, 1);
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(5, 3), TN_F32), true);
    tn_tensor *before = slope_penalty(&judge, x);
    tn_backward(before);
    tn_tensor *grad = tn_grad_of(judge.in.weight);
    assert_null(tn_grad_of(judge.out.bias)); /* the slope does not depend on it */
    int64_t at[][2] = {{0, 0}, {3, 2}, {7, 1}};
    for (int i = 0; i < 3; i++) {
        double was = tn_at(judge.in.weight, tn_dims_from(2, at[i]));
        set_element(judge.in.weight, at[i], was + 1e-2);
        double up = tn_item(slope_penalty(&judge, x));
        set_element(judge.in.weight, at[i], was - 1e-2);
        double down = tn_item(slope_penalty(&judge, x));
        set_element(judge.in.weight, at[i], was);
        assert_true(fabs((up - down) / 2e-2 - tn_at(grad, tn_dims_from(2, at[i]))) < 2e-3);
    }
    tn_optim *opt = tn_adam(&judge, TN_WITH(tn_adam, .lr = 0.02, .beta1 = 0.5));
    tn_optim_zero_grad(opt);
    for (int step = 0; step < 200; step++) {
        TN_SCOPE;
        tn_backward(slope_penalty(&judge, x));
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    assert_true(tn_item(slope_penalty(&judge, x)) < 0.1 * tn_item(before));
    tn_optim_free(opt);
    tn_module_finish(&judge);
}
