/* recurrent and recurrent_backward against ref: trial.h. */
#include "trial.h"

#include "backends/recurrent.h"

/* The operands of one case that no kernel writes. */
typedef struct net {
    tn_recurrent r;
    array w, b, lengths, h0, c0, gates, h_before, c_before, dy, dhn, dcn;
    bool state, lstm;
} net;

enum { Y, HN, GATES, H_BEFORE, CN, C_BEFORE };

static tn_status call_forward(const tn_backend *t, const tn_desc *const *out, void *user) {
    const net *n = user;
    tn_recurrent r = n->r;
    r.gates = out[GATES];
    r.h_before = out[H_BEFORE];
    r.c_before = n->lstm ? out[C_BEFORE] : NULL;
    return TRIAL_CALL(t, recurrent, &r, out[Y], out[HN], n->lstm ? out[CN] : NULL,
                      n->state ? &n->h0.d : NULL, n->state && n->lstm ? &n->c0.d : NULL);
}

enum { DP, DH0, DA };

static tn_status call_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    const net *n = user;
    bool gru = n->r.cell == TN_CELL_GRU;
    return TRIAL_CALL(t, recurrent_backward, &n->r, out[DP], gru ? out[DA] : NULL,
                      n->state ? out[DH0] : NULL, n->lstm ? out[DA] : NULL,
                      n->state ? &n->dy.d : NULL, &n->dhn.d, n->lstm ? &n->dcn.d : NULL);
}

static array sine_array(tn_dtype dtype, int ndim, const int64_t *size, int64_t salt) {
    array a = make_array(dtype, ROW_MAJOR, ndim, size);
    for (int64_t i = 0; i < a.count; i++) {
        array_set(&a, i, sin((double)(37 * i + 11 * salt)));
    }
    return a;
}

/* As small as weights are, so gradients do not grow from step to step. */
static array draw_weights(tn_dtype dtype, int64_t rows, int64_t units) {
    array w = make_array(dtype, ROW_MAJOR, 2, SIZES(rows, units));
    for (int64_t i = 0; i < w.count; i++) {
        array_set(&w, i, sin((double)(37 * i)) / sqrt((double)units));
    }
    return w;
}

/* Case k of a shape T, B, H: bits for the direction, for lengths, for an initial state. */
static void try_cell(tn_dtype dtype, tn_cell cell, const int64_t *s, int k) {
    int64_t T = s[0], B = s[1], H = s[2], G = tn__cell_gates(cell), K = tn__cell_kept(cell);
    net n = {.w = draw_weights(dtype, G * H, H),
             .b = sine_array(dtype, 1, SIZES(G * H), 2),
             .lengths = make_array(TN_I64, ROW_MAJOR, 1, SIZES(B)),
             .h0 = sine_array(dtype, 2, SIZES(B, H), 3),
             .c0 = sine_array(dtype, 2, SIZES(B, H), 4),
             .gates = sine_array(dtype, 3, SIZES(T, B, K * H), 5),
             .h_before = sine_array(dtype, 3, SIZES(T, B, H), 6),
             .c_before = sine_array(dtype, 3, SIZES(T, B, H), 7),
             .dy = sine_array(dtype, 3, SIZES(T, B, H), 8),
             .dhn = sine_array(dtype, 2, SIZES(B, H), 9),
             .dcn = sine_array(dtype, 2, SIZES(B, H), 10),
             .state = k & 4,
             .lstm = cell == TN_CELL_LSTM};
    for (int64_t i = 0; i < B; i++) {
        array_set(&n.lengths, i, (double)(i * 5 % (T + 1)));
    }
    n.r = (tn_recurrent){.cell = cell,
                         .reverse = k & 1,
                         .lengths = k & 2 ? &n.lengths.d : NULL,
                         .w = &n.w.d,
                         .b = k & 4 ? &n.b.d : NULL};
    array y = make_array(dtype, ROW_MAJOR, 3, SIZES(T, B, H)),
          hn = make_array(dtype, ROW_MAJOR, 2, SIZES(B, H)),
          dp = make_array(dtype, ROW_MAJOR, 3, SIZES(T, B, G * H)),
          none = make_array(dtype, ROW_MAJOR, 1, SIZES(0)), dh0 = n.state ? hn : none;
    double relative = dtype == TN_F64 ? 1e-12 : 2e-5; /* f32 over some steps */
    trial forward = {
        "recurrent", n.lstm ? 6 : 4, {y, hn, n.gates, y, hn, y}, call_forward, &n, relative, 0};
    trial_run(&forward);
    n.r.gates = &n.gates.d;
    n.r.h_before = &n.h_before.d;
    n.r.c_before = n.lstm ? &n.c_before.d : NULL;
    trial backward = {"recurrent_backward",
                      cell == TN_CELL_GRU || n.lstm ? 3 : 2,
                      {dp, dh0, n.lstm ? hn : dp},
                      call_backward,
                      &n,
                      relative,
                      0};
    trial_run(&backward);
    trial_forget();
}

/* Empty, one, odd, more rows than a tile and more units than a panel, several of both. */
TRIAL_TEST(test_cells) {
    if (!trial_tables()[0]->recurrent) { skip(); /* a table that leaves it to the composition */ }
    static const int64_t shapes[][3] = {{0, 2, 3},  {2, 0, 3},   {1, 1, 1},   {3, 2, 5},
                                        {4, 7, 17}, {2, 29, 40}, {3, 25, 100}};
    for (int i = 0; i < (int)(sizeof(shapes) / sizeof(*shapes)); i++) {
        for (int cell = 0; cell < 4 * 8; cell++) {
            try_cell(TN_F32, (tn_cell)(cell / 8), shapes[i], cell % 8);
        }
        for (int cell = 0; cell < 4 && i < 5; cell++) {
            try_cell(TN_F64, (tn_cell)cell, shapes[i], 7);
        }
    }
}

TRIAL_TEST(test_refused) {
    const tn_backend *table = trial_tables()[0];
    if (!table->recurrent) { skip(); }
    array s = sine_array(TN_BF16, 3, SIZES(2, 1, 3), 1), w = sine_array(TN_BF16, 2, SIZES(3, 3), 2),
          n = sine_array(TN_BF16, 2, SIZES(1, 3), 3);
    tn_recurrent r = {.cell = TN_CELL_TANH, .w = &w.d, .gates = &s.d, .h_before = &s.d};
    assert_int_equal(TRIAL_CALL(table, recurrent, &r, &s.d, &n.d, NULL, NULL, NULL),
                     TN_EUNSUPPORTED);
    assert_int_equal(
        TRIAL_CALL(table, recurrent_backward, &r, &s.d, NULL, NULL, NULL, NULL, NULL, NULL),
        TN_EUNSUPPORTED);
}
