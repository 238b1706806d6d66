/* Writes recurrent nets of random shapes and options, for test_rnn_torch.py: dump_rnn FILE
 *
 * CASE/options   i64: 0 rnn 1 gru 2 lstm, layers, directions, batch_first, relu, bias, cell
 *
 * CASE/x, CASE/lengths, CASE/h0, CASE/c0     inputs; all but x may be missing
 *
 * CASE/y, CASE/hn, CASE/cn     results; CASE/dy, CASE/dhn, CASE/dcn what they are weighted with
 *
 * CASE/gx, CASE/gh0, CASE/gc0     gradients of the inputs
 *
 * CASE/p.NAME, CASE/g.NAME     parameters and their gradients
 */
#include "tests/support/dump.h"

/* An initial state, half of the time. */
static tn_tensor *draw_state(tn_dims dims, tn_dtype dtype) {
    return draw_whole(0, 1) ? tn_set_requires_grad(tn_randn(dims, dtype), true) : NULL;
}

static void add_all(const char *name, tn_values in, tn_values out) {
    static const char *const results[] = {"y", "hn", "cn"}, *const weights[] = {"dy", "dhn", "dcn"};
    static const char *const inputs[] = {"x", "h0", "c0", "lengths"}, *const grads[] = {"gx", "gh0",
                                                                                        "gc0"};
    tn_tensor *weight[3];
    for (int i = 0; i < out.n; i++) {
        weight[i] = tn_randn(tn_shape(out.v[i]), tn_dtype_of(out.v[i]));
        add_tensor(name, results[i], "", out.v[i]);
        add_tensor(name, weights[i], "", weight[i]);
    }
    tn_backward_from(out.v, weight, out.n, false);
    for (int i = 0; i < in.n; i++) {
        if (in.v[i]) { add_tensor(name, inputs[i], "", in.v[i]); }
        if (i < 3 && in.v[i]) { add_tensor(name, grads[i], "", tn_grad_of(in.v[i])); }
    }
}

static void dump_net(const char *name, int kind, tn_dtype dtype) {
    TN_SCOPE;
    int64_t times = draw_whole(1, 9), batch = draw_whole(1, 7), in = draw_whole(1, 20),
            hidden = draw_whole(1, 40);
    tn_rnn_options o =
        TN_WITH(tn_rnn, .layers = (int)draw_whole(1, 3), .bias = draw_whole(0, 2) > 0,
                .batch_first = draw_whole(0, 1), .bidirectional = draw_whole(0, 1),
                .relu = kind == 0 && draw_whole(0, 1), .dtype = dtype);
    tn_rnn *m = kind == 0   ? tn_rnn_new_with(in, hidden, o)
                : kind == 1 ? tn_gru_new_with(in, hidden, o)
                            : tn_lstm_new_with(in, hidden, o);
    tn_dims x = o.batch_first ? TN_DIMS(batch, times, in) : TN_DIMS(times, batch, in),
            state = TN_DIMS(o.layers * (o.bidirectional ? 2 : 1), batch, hidden);
    tn_tensor *lengths = draw_whole(0, 1) ? tn_randint(1, times + 1, TN_DIMS(batch), TN_I64) : NULL;
    tn_values in_all = {4, {tn_set_requires_grad(tn_randn(x, dtype), true)}};
    in_all.v[1] = draw_state(state, dtype);
    in_all.v[2] =
        kind == 2 && in_all.v[1] ? tn_set_requires_grad(tn_randn(state, dtype), true) : NULL;
    in_all.v[3] = lengths;
    int64_t options[] = {kind, o.layers, o.bidirectional, o.batch_first, o.relu, o.bias, 0};
    add_tensor(name, "options", "", tn_from_data(options, TN_DIMS(7), TN_I64));
    add_all(name, in_all, tn_call_values(m, in_all, NULL));
    add_module(name, m);
    tn_module_free(m);
}

static void dump_cell(const char *name, int kind, bool relu, tn_dtype dtype) {
    TN_SCOPE;
    int64_t batch = draw_whole(1, 7), in = draw_whole(1, 20), hidden = draw_whole(1, 40);
    tn_rnn_cell m;
    tn_rnn_cell_options o =
        TN_WITH(tn_rnn_cell, .bias = draw_whole(0, 1), .relu = relu, .dtype = dtype);
    void (*const init[])(tn_rnn_cell *, int64_t, int64_t, tn_rnn_cell_options) = {
        tn_rnn_cell_init, tn_gru_cell_init, tn_lstm_cell_init};
    init[kind](&m, in, hidden, o);
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(batch, in), dtype), true);
    tn_values in_all = {kind == 2 ? 3 : 2, {x}};
    for (int i = 1; i < in_all.n; i++) {
        in_all.v[i] = tn_set_requires_grad(tn_randn(TN_DIMS(batch, hidden), dtype), true);
    }
    int64_t options[] = {kind, 1, 0, 0, relu, o.bias, 1};
    add_tensor(name, "options", "", tn_from_data(options, TN_DIMS(7), TN_I64));
    add_all(name, in_all, tn_call_values(&m, in_all, NULL));
    add_module(name, &m);
    tn_module_finish(&m);
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    static const char *const kinds[] = {"rnn", "gru", "lstm"};
    char name[32];
    for (int i = 0; i < 36; i++) {
        snprintf(name, sizeof(name), "%s_%d", kinds[i % 3], i / 3);
        dump_net(name, i % 3, i % 4 ? TN_F64 : TN_F32);
    }
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof(name), "%s_cell_%d", kinds[i / 2 % 3], i);
        dump_cell(name, i / 2 % 3, i >= 6, i % 2 ? TN_F64 : TN_F32);
    }
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
