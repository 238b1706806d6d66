/* Recurrent nets, as far as PyTorch is not needed (test_rnn_torch.py compares numbers): a state
 * that continues from call to call, lengths, dropout between layers, the same bits for any number
 * of threads and with or without a graph, second derivatives, and errors that name both sides.
 */
#include "tests/support/test.h"

#include <tern/tern.h>

enum { TIMES = 7, BATCH = 3, IN = 4, HIDDEN = 5 };

static tn_rnn_options two_layers(void) {
    tn_rnn_options o = TN_WITH(tn_rnn, .layers = 2, .dtype = TN_F64);
    return o;
}

static tn_tensor *draw_input(void) {
    return tn_randn(TN_DIMS(TIMES, BATCH, IN), TN_F64);
}

/* Two parts of a sequence, the second from the first one's last state, equal the whole. */
TEST(states_go_on) {
    tn_rnn *(*const make[])(int64_t, int64_t, tn_rnn_options) = {tn_rnn_new_with, tn_gru_new_with,
                                                                 tn_lstm_new_with};
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_rnn *m = make[i](IN, HIDDEN, two_layers());
        tn_tensor *x = draw_input(), *whole = tn_call(m, x);
        tn_rnn_state s = {NULL, NULL}, end = {NULL, NULL};
        tn_tensor *first = tn_rnn_call(m, tn_narrow(x, 0, 0, 3), &s, NULL);
        assert_int_equal(tn_size(s.h, 0), 2);
        assert_int_equal(s.c != NULL, i == 2);
        tn_tensor *second = tn_rnn_call(m, tn_narrow(x, 0, 3, TIMES - 3), &s, NULL);
        tn_rnn_call(m, x, &end, NULL);
        assert_true(tn_all_close(first, tn_narrow(whole, 0, 0, 3), 1e-12, 1e-12));
        assert_true(tn_all_close(second, tn_narrow(whole, 0, 3, TIMES - 3), 1e-12, 1e-12));
        assert_true(tn_all_close(s.h, end.h, 1e-12, 1e-12));
        tn_module_free(m);
    }
}

/* A row with a length gives the same results as alone, cut to its length; zeros after that. */
TEST(lengths_cut_rows) {
    tn_rnn_options o = two_layers();
    o.bidirectional = true;
    o.batch_first = true;
    tn_lstm *m = tn_lstm_new_with(IN, HIDDEN, o);
    tn_tensor *x = tn_randn(TN_DIMS(BATCH, TIMES, IN), TN_F64);
    int64_t n[BATCH] = {2, TIMES, 4};
    tn_rnn_state all = {NULL, NULL};
    tn_tensor *y = tn_rnn_call(m, x, &all, tn_from_data(n, TN_DIMS(BATCH), TN_I64));
    for (int b = 0; b < BATCH; b++) {
        tn_rnn_state one = {NULL, NULL};
        tn_tensor *row = tn_narrow(tn_narrow(x, 0, b, 1), 1, 0, n[b]);
        tn_tensor *alone = tn_rnn_call(m, row, &one, NULL), *cut = tn_narrow(y, 0, b, 1);
        assert_true(tn_all_close(tn_narrow(cut, 1, 0, n[b]), alone, 1e-12, 1e-12));
        assert_true(tn_all_close(tn_narrow(all.h, 1, b, 1), one.h, 1e-12, 1e-12));
        assert_true(tn_all_close(tn_narrow(all.c, 1, b, 1), one.c, 1e-12, 1e-12));
        tn_tensor *rest = tn_narrow(cut, 1, n[b], TIMES - n[b]);
        assert_true(tn_equal(rest, tn_zeros_like(rest)));
    }
    tn_module_free(m);
}

/* Without a state: as with zeros, gradients too; docs/data.md shows such a call. */
TEST(state_is_left_out) {
    tn_rnn *(*const make[])(int64_t, int64_t, tn_rnn_options) = {tn_rnn_new_with, tn_gru_new_with,
                                                                 tn_lstm_new_with};
    for (int i = 0; i < 6; i++) {
        TN_SCOPE;
        tn_rnn_options o = two_layers();
        o.batch_first = true;
        o.bidirectional = i >= 3;
        tn_rnn *m = make[i % 3](IN, HIDDEN, o);
        tn_tensor *x = tn_randn(TN_DIMS(BATCH, TIMES, IN), TN_F64), *y[2], *dw[2],
                  *zeros = tn_zeros(TN_DIMS(i < 3 ? 2 : 4, BATCH, HIDDEN), TN_F64),
                  *lengths = tn_from_data((int64_t[]){2, TIMES, 4}, TN_DIMS(BATCH), TN_I64);
        for (int k = 0; k < 2; k++) {
            tn_rnn_state s = {zeros, i % 3 == 2 ? zeros : NULL};
            y[k] = tn_rnn_call(m, x, k ? NULL : &s, lengths);
            assert_int_equal(tn_backward(tn_sum_all(tn_square(y[k]))), TN_OK);
            dw[k] = tn_copy(tn_grad_of(m->weights[0].weight_hh));
            tn_module_zero_grad(m);
        }
        assert_true(tn_equal(y[0], y[1]));
        assert_true(tn_equal(dw[0], dw[1]));
        tn_module_free(m);
    }
}

/* Dropout is between layers: there is none with one layer or in eval mode. */
TEST(dropout_between_layers) {
    tn_rnn_options o = two_layers();
    o.dropout = 0.5;
    tn_gru *two = tn_gru_new_with(IN, HIDDEN, o);
    o.layers = 1;
    tn_gru *one = tn_gru_new_with(IN, HIDDEN, o);
    tn_tensor *x = draw_input();
    assert_false(tn_equal(tn_call(two, x), tn_call(two, x)));
    assert_true(tn_equal(tn_call(one, x), tn_call(one, x)));
    tn_module_train(two, false);
    assert_true(tn_equal(tn_call(two, x), tn_call(two, x)));
    tn_module_free(two);
    tn_module_free(one);
}

/* f32, wide enough for several panels, tiles and threads. */
TEST(same_bits) {
    int threads = tn_threads();
    tn_rnn *(*const make[])(int64_t, int64_t) = {tn_rnn_new, tn_gru_new, tn_lstm_new};
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_rnn *m = make[i](24, 150);
        tn_tensor *x = tn_randn(TN_DIMS(5, 20, 24), TN_F32), *y[3], *g[3];
        for (int n = 0; n < 3; n++) {
            tn_set_threads(n + 1);
            tn_module_zero_grad(m);
            y[n] = tn_call(m, x);
            tn_backward(tn_sum_all(tn_square(y[n])));
            g[n] = tn_copy(tn_grad_of(m->weights[0].weight_hh));
        }
        assert_true(tn_equal(y[0], y[1]) && tn_equal(y[0], y[2]));
        assert_true(tn_equal(g[0], g[1]) && tn_equal(g[0], g[2]));
        TN_NO_GRAD;
        assert_true(tn_equal(tn_call(m, x), y[0]));
        tn_module_free(m);
    }
    tn_set_threads(threads);
}

/* The loss uses only the last state: no gradient reaches y. */
TEST(last_state_alone) {
    tn_lstm *m = tn_lstm_new_with(IN, HIDDEN, two_layers());
    tn_tensor *x = tn_set_requires_grad(draw_input(), true);
    tn_rnn_state s = {NULL, NULL};
    tn_tensor *y = tn_rnn_call(m, x, &s, NULL);
    tn_backward(tn_sum_all(tn_select(s.h, 0, 1)));
    tn_tensor *got = tn_copy(tn_grad_of(x));
    tn_zero_grad(x);
    y = tn_rnn_call(m, x, &(tn_rnn_state){NULL, NULL}, NULL);
    tn_backward(tn_sum_all(tn_select(y, 0, TIMES - 1)));
    assert_true(tn_all_close(got, tn_grad_of(x), 1e-12, 1e-14));
    tn_module_free(m);
}

/* A gradient penalty through the net reaches the weights. */
TEST(second_derivative) {
    tn_gru *m = tn_gru_new_with(IN, HIDDEN, two_layers());
    tn_tensor *x = tn_set_requires_grad(draw_input(), true), *d;
    tn_tensor *y = tn_sum_all(tn_square(tn_call(m, x)));
    tn_grad_options o = TN_WITH(tn_grad, .create_graph = true);
    assert_int_equal(tn_grad(&y, NULL, 1, &x, 1, &d, o), TN_OK);
    tn_backward(tn_sum_all(tn_square(d)));
    assert_true(tn_item(tn_sum_all(tn_abs(tn_grad_of(m->weights[0].weight_hh)))) > 0.0);
    tn_module_free(m);
}

TEST(refused_options) {
    tn_rnn_options o = tn_rnn_defaults();
    tn_module_free(tn_lstm_new(0, 3));
    assert_error(TN_EVALUE, "lstm: in is 0 (it must be at least 1)");
    o.dropout = 1.5;
    tn_module_free(tn_gru_new_with(2, 3, o));
    assert_error(TN_EVALUE, "gru: dropout is 1.5");
    o.dropout = 0.0;
    o.relu = true;
    tn_module_free(tn_gru_new_with(2, 3, o));
    assert_error(TN_EVALUE, "gru: relu is only for tn_rnn");
    tn_module_free(tn_gru_cell_new(2, 0));
    assert_error(TN_EVALUE, "gru_cell: hidden is 0 (it must be 1 to ");
}

TEST(both_sides) {
    tn_lstm *m = tn_lstm_new(IN, HIDDEN);
    tn_tensor *x = tn_zeros(TN_DIMS(TIMES, BATCH, IN), TN_F32),
              *h = tn_zeros(TN_DIMS(2, BATCH, HIDDEN), TN_F32);
    tn_call(m, tn_zeros(TN_DIMS(TIMES, IN), TN_F32));
    assert_error(TN_ESHAPE, "lstm: x is [7, 4] but must be (times, batch, in) with in 4");
    tn_call(m, tn_zeros(TN_DIMS(TIMES, BATCH, IN + 1), TN_F32));
    assert_error(TN_ESHAPE, "x is [7, 3, 5] but must be (times, batch, in) with in 4");
    tn_call_values(m, (tn_values){2, {x, h}}, NULL);
    assert_error(TN_ESHAPE, "h0 is [2, 3, 5] but must be [1, 3, 5]");
    int64_t n[] = {1, 8, 2};
    tn_rnn_state s = {NULL, NULL};
    tn_rnn_call(m, x, &s, tn_from_data(n, TN_DIMS(3), TN_I64));
    assert_error(TN_EVALUE, "lstm: lengths[1] is 8 but x is [7, 3, 4] (1 to 7 times)");
    s = (tn_rnn_state){NULL, NULL};
    tn_rnn_call(m, x, &s, tn_from_data(n, TN_DIMS(2), TN_I64));
    assert_error(TN_EVALUE, "lengths[1] is 8");
    n[1] = 7;
    s = (tn_rnn_state){NULL, NULL};
    tn_rnn_call(m, x, &s, tn_from_data(n, TN_DIMS(2), TN_I64));
    assert_error(TN_ESHAPE, "x is [7, 3, 4] but lengths is [2]");
    tn_rnn_weights w = m->weights[0];
    tn_gru_op(x, NULL, w, NULL, false, NULL);
    assert_error(TN_ESHAPE, "gru: weight_hh is [20, 5] but must be (3 units, units)");
    w.bias_ih = tn_zeros(TN_DIMS(19), TN_F32);
    tn_lstm_op(x, NULL, NULL, w, NULL, false, NULL, NULL);
    assert_error(TN_ESHAPE, "weight_ih is [20, 4] but bias_ih is [19]");
    tn_lstm_op(tn_cast(x, TN_F64), NULL, NULL, m->weights[0], NULL, false, NULL, NULL);
    assert_error(TN_EDTYPE, "x is f64 but weight_ih is f32");
    tn_module_free(m);
    tn_lstm_cell *cell = tn_lstm_cell_new(IN, HIDDEN);
    tn_call_values(cell, (tn_values){1, {x}}, NULL);
    assert_error(TN_ESHAPE, "lstm_cell: x is [7, 3, 4] but must be (batch, in) with in 4");
    tn_call_values(cell, (tn_values){4, {x, NULL, NULL, x}}, NULL);
    assert_error(TN_EVALUE, "4 inputs given");
    tn_module_free(cell);
}
