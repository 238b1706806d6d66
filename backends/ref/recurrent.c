/* Recurrent cells over time, forward and backward; tn_recurrent has the formulas.
 *
 * Backward goes through the steps from the last to the first. With dh and dc the gradients of the
 * state after a step (including dy of its time), the gates' gradients are, with s' = s (1 - s):
 *
 *     TANH, RELU   da = dh f'(h')
 *     GRU          dn = dh (1 - z) (1 - n n), dz = dh (h - n) z', dr = dn m r'
 *                  dp = (dr, dz, dn), da = (dr, dz, dn r); directly to the state before: dh z
 *     LSTM         do = dh tanh(c') o', dc += dh o (1 - tanh(c')^2)
 *                  di = dc g i', df = dc c f', dg = dc i (1 - g g); to the cell before: dc f
 *
 * and the gradient of the state before is da w, plus what goes there directly. An inactive row
 * passes its gradients on unchanged.
 */
#include "backends/recurrent.h"
#include "backends/ref/ref.h"
#include "backends/scratch.h"

typedef struct step {
    const tn_recurrent *r;
    int64_t T, B, H, G, K;
    int64_t t, b;
} step;

static step step_of(const tn_recurrent *r) {
    return (step){.r = r,
                  .T = r->h_before->size[0],
                  .B = r->h_before->size[1],
                  .H = r->h_before->size[2],
                  .G = tn__cell_gates(r->cell),
                  .K = tn__cell_kept(r->cell)};
}

static bool handles_dtype(const tn_recurrent *r) {
    return r->w->dtype == TN_F32 || r->w->dtype == TN_F64;
}

static double take_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* Unit j of gate or kept number q, and of a state, at the step. */
static double gate_load(const step *s, int q, int64_t j) {
    return load_float(s->r->gates, ((s->t * s->B + s->b) * s->K + q) * s->H + j);
}
static void gate_store(const step *s, int q, int64_t j, double value) {
    store_float(s->r->gates, ((s->t * s->B + s->b) * s->K + q) * s->H + j, value);
}
static double state_load(const step *s, const tn_desc *state, int64_t j) {
    return load_float(state, (s->t * s->B + s->b) * s->H + j);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Row q H + j of w times the state before, plus its bias. */
static double recurrent_share(const step *s, int q, int64_t j) {
    int64_t row = q * s->H + j;
    double sum = s->r->b ? load_float(s->r->b, row) : 0;
    for (int64_t k = 0; k < s->H; k++) {
        sum += load_float(s->r->w, row * s->H + k) * state_load(s, s->r->h_before, k);
    }
    return sum;
}

/* Unit j of h' and, for LSTM, of c'. */
static double cell_forward(const step *s, int64_t j, double *c) {
    tn_cell cell = s->r->cell;
    double a[4] = {0}, p[4] = {0};
    for (int q = 0; q < s->G; q++) {
        a[q] = recurrent_share(s, q, j);
        p[q] = gate_load(s, q, j);
    }
    if (cell == TN_CELL_LSTM) {
        double i = take_sigmoid(p[0] + a[0]), f = take_sigmoid(p[1] + a[1]), g = tanh(p[2] + a[2]),
               o = take_sigmoid(p[3] + a[3]);
        gate_store(s, 0, j, i);
        gate_store(s, 1, j, f);
        gate_store(s, 2, j, g);
        gate_store(s, 3, j, o);
        *c = f * state_load(s, s->r->c_before, j) + i * g;
        return o * tanh(*c);
    }
    if (cell == TN_CELL_GRU) {
        double r = take_sigmoid(p[0] + a[0]), z = take_sigmoid(p[1] + a[1]),
               n = tanh(p[2] + r * a[2]);
        gate_store(s, 0, j, r);
        gate_store(s, 1, j, z);
        gate_store(s, 2, j, n);
        gate_store(s, 3, j, a[2]);
        return (1 - z) * n + z * state_load(s, s->r->h_before, j);
    }
    double sum = p[0] + a[0], h = cell == TN_CELL_TANH ? tanh(sum) : sum < 0 ? 0 : sum;
    gate_store(s, 0, j, h);
    return h;
}

/* One state of a row, at an offset of each operand; 0 without a source. */
static void row_move(const tn_desc *to, int64_t at, const tn_desc *from, int64_t from_at,
                     int64_t n) {
    for (int64_t j = 0; to && j < n; j++) {
        store_float(to, at + j, from ? load_float(from, from_at + j) : 0);
    }
}

static void step_forward(const step *s, int64_t i, const tn_desc *y, const tn_desc *hn,
                         const tn_desc *cn) {
    const tn_recurrent *r = s->r;
    bool last = i == s->T - 1, lives = tn__recurrent_lives(r, s->t, s->b);
    int64_t here = (s->t * s->B + s->b) * s->H,
            next = last ? s->b * s->H : (tn__recurrent_time(r, i + 1, s->T) * s->B + s->b) * s->H;
    const tn_desc *h = last ? hn : r->h_before, *c = last ? cn : r->c_before;
    for (int64_t j = 0; j < s->H; j++) {
        double c_after = r->c_before ? state_load(s, r->c_before, j) : 0,
               h_after = lives ? cell_forward(s, j, &c_after) : state_load(s, r->h_before, j);
        store_float(y, here + j, lives ? h_after : 0);
        store_float(h, next + j, h_after);
        if (c) { store_float(c, next + j, c_after); }
    }
}

tn_status tn__ref_recurrent(tn_context *ctx, const tn_recurrent *r, const tn_desc *y,
                            const tn_desc *hn, const tn_desc *cn, const tn_desc *h0,
                            const tn_desc *c0) {
    if (!handles_dtype(r)) { return TN_EUNSUPPORTED; }
    step s = step_of(r);
    if (s.T == 0) {
        row_move(hn, 0, h0, 0, s.B * s.H);
        row_move(cn, 0, c0, 0, s.B * s.H);
        return TN_OK;
    }
    for (s.b = 0; s.b < s.B; s.b++) {
        int64_t first = (tn__recurrent_time(r, 0, s.T) * s.B + s.b) * s.H;
        row_move(r->h_before, first, h0, s.b * s.H, s.H);
        row_move(r->c_before, first, c0, s.b * s.H, s.H);
        for (int64_t i = 0; i < s.T; i++) {
            s.t = tn__recurrent_time(r, i, s.T);
            step_forward(&s, i, y, hn, cn);
        }
    }
    return TN_OK;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Unit j's gradients from dh and *dc, of the state after the step: dp and da of its gates. What
 * goes directly to the state before is returned and left in *dc. */
static double cell_backward(const step *s, int64_t j, double dh, double *dc, double *dp,
                            double *da) {
    tn_cell cell = s->r->cell;
    if (cell == TN_CELL_LSTM) {
        double i = gate_load(s, 0, j), f = gate_load(s, 1, j), g = gate_load(s, 2, j),
               o = gate_load(s, 3, j), c = state_load(s, s->r->c_before, j),
               tanh_c = tanh(f * c + i * g), d = *dc + dh * o * (1 - tanh_c * tanh_c);
        dp[0] = d * g * i * (1 - i);
        dp[1] = d * c * f * (1 - f);
        dp[2] = d * i * (1 - g * g);
        dp[3] = dh * tanh_c * o * (1 - o);
        *dc = d * f;
    } else if (cell == TN_CELL_GRU) {
        double r = gate_load(s, 0, j), z = gate_load(s, 1, j), n = gate_load(s, 2, j),
               m = gate_load(s, 3, j), dn = dh * (1 - z) * (1 - n * n);
        dp[0] = dn * m * r * (1 - r);
        dp[1] = dh * (state_load(s, s->r->h_before, j) - n) * z * (1 - z);
        dp[2] = dn;
        da[0] = dp[0];
        da[1] = dp[1];
        da[2] = dn * r;
        return dh * z;
    } else {
        double h = gate_load(s, 0, j);
        dp[0] = cell == TN_CELL_TANH ? dh * (1 - h * h) : h > 0 ? dh : 0;
    }
    return 0;
}

/* Column j of w times da of the row at the step. */
static double state_gradient(const step *s, const tn_desc *da, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < s->G * s->H; k++) {
        sum += load_float(da, (s->t * s->B + s->b) * s->G * s->H + k) *
               load_float(s->r->w, k * s->H + j);
    }
    return sum;
}

/* dh and dc (H): of the state after the step, then of that before it. */
static void step_backward(const step *s, double *dh, double *dc, const tn_desc *dp,
                          const tn_desc *da, const tn_desc *dy) {
    bool lives = tn__recurrent_lives(s->r, s->t, s->b);
    int64_t row = (s->t * s->B + s->b) * s->G * s->H;
    for (int64_t j = 0; j < s->H; j++) {
        double each[4] = {0}, more[4] = {0};
        if (lives) {
            double sum = dh[j] + (dy ? state_load(s, dy, j) : 0);
            dh[j] = cell_backward(s, j, sum, &dc[j], each, more);
        }
        for (int q = 0; q < s->G; q++) {
            store_float(dp, row + q * s->H + j, each[q]);
            if (da) { store_float(da, row + q * s->H + j, more[q]); }
        }
    }
    for (int64_t j = 0; j < s->H; j++) {
        dh[j] += state_gradient(s, da ? da : dp, j);
    }
}

tn_status tn__ref_recurrent_backward(tn_context *ctx, const tn_recurrent *r, const tn_desc *dp,
                                     const tn_desc *da, const tn_desc *dh0, const tn_desc *dc0,
                                     const tn_desc *dy, const tn_desc *dhn, const tn_desc *dcn) {
    if (!handles_dtype(r)) { return TN_EUNSUPPORTED; }
    step s = step_of(r);
    TN__SCRATCH(double, dh, ctx, 2 * s.H);
    if (!dh) { return TN_ENOMEM; }
    double *dc = dh + s.H;
    for (s.b = 0; s.b < s.B; s.b++) {
        for (int64_t j = 0; j < s.H; j++) {
            dh[j] = dhn ? load_float(dhn, s.b * s.H + j) : 0;
            dc[j] = dcn ? load_float(dcn, s.b * s.H + j) : 0;
        }
        for (int64_t i = s.T - 1; i >= 0; i--) {
            s.t = tn__recurrent_time(r, i, s.T);
            step_backward(&s, dh, dc, dp, da, dy);
        }
        for (int64_t j = 0; j < s.H; j++) {
            if (dh0) { store_float(dh0, s.b * s.H + j, dh[j]); }
            if (dc0) { store_float(dc0, s.b * s.H + j, dc[j]); }
        }
    }
    return TN_OK;
}
