/* Unusual programs, on public headers only: what users write beyond "a batch in, a loss out".
 *
 *   a recurrent net              whose state is in buffers between the calls
 *   attention under a mask       padding that is masked
 *   a gradient penalty           a loss made of a gradient
 */
#include <math.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* ---- A state in buffers ---------------------------------------------------------------------- */

/* x (T, B, in) -> (T, B, H), from the state of the last call, and leaves the new one, detached. */
typedef struct stateful {
    tn_module base;
    tn_lstm *net;
    tn_tensor *h, *c;
} stateful;

static tn_tensor *stateful_forward(tn_module *self, tn_tensor *x) {
    stateful *m = (stateful *)self;
    tn_rnn_state state = {m->h, m->c};
    tn_tensor *y = tn_rnn_call(m->net, x, &state, NULL);
    tn_module_set_buffer(m, "h", tn_detach(state.h));
    tn_module_set_buffer(m, "c", tn_detach(state.c));
    return y;
}

/* A long sequence in pieces equals one call. */
TEST(lstm_keeps_its_state) {
    stateful m;
    tn_module_init(&m, "stateful", stateful_forward);
    TN_OWN(&m, net, tn_lstm_new(3, 5));
    tn_module_scratch(&m, "h", &m.h, NULL);
    tn_module_scratch(&m, "c", &m.c, NULL);
    tn_tensor *x = tn_randn(TN_DIMS(12, 4, 3), TN_F32), *whole = tn_call(m.net, x), *pieces[3];
    for (int i = 0; i < 3; i++) {
        pieces[i] = tn_call(&m, tn_narrow(x, 0, 4 * i, 4));
    }
    assert_true(tn_all_close(tn_cat(pieces, 3, 0), whole, 1e-6, 1e-6));
    tn_backward(tn_sum_all(pieces[2])); /* the graph ends at the beginning of the piece */
    assert_non_null(tn_grad_of(m.net->weights[0].weight_hh));
    assert_int_equal(tn_module_count(&m), 20 * 3 + 20 * 5 + 2 * 20);
    tn_module_finish(&m);
}

/* ---- Attention with a mask ------------------------------------------------------------------- */

/* A sequence of 4 padded to 6 under a mask: its first 4 results and all gradients are those of the
 * sequence alone. */
TEST(padding_behind_a_mask) {
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

/* ---- A gradient penalty (Gulrajani et al. 2017, arXiv:1704.00028) ---------------------------- */

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
