/* Recurrent cells over time, backward (recurrent.h). A step multiplies the gate gradients of the
 * step after it by the weights, which gives the gradient of the state between them, and computes
 * its own gate gradients from that. A panel has the columns of 2 VL units.
 */
#include "backends/cpu/recurrent.h"

enum { WIDE = 2, PANEL = WIDE * VL };

typedef struct backward_pass {
    scan s;
    float *dp, *da;   /* (T, B, G H); da is dp where they do not differ */
    float *dh, *dc;   /* (B, H): what reaches the state other than through gates */
    const float *dy;  /* (T, B, H) or NULL */
    float *dh0, *dc0; /* (B, H) or NULL */
} backward_pass;

/* ---- Cells: `n` units, VL or fewer, of one row ----------------------------------------------- */

/* dh: the gradient of h'. What reaches the state before other than through gates is left in
 * `straight` and dc. */

INLINE void lstm_backward(const int n, int64_t apart, const float *restrict dh,
                          const float *restrict gate, const float *restrict c, float *restrict dp,
                          float *restrict dc) {
#pragma omp simd
    for (int j = 0; j < n; j++) {
        float i = gate[j], f = gate[apart + j], g = gate[2 * apart + j], o = gate[3 * apart + j],
              tanh_c = tn__tanhf(f * c[j] + i * g), d = dc[j] + dh[j] * o * (1 - tanh_c * tanh_c);
        dp[j] = d * g * i * (1 - i);
        dp[apart + j] = d * c[j] * f * (1 - f);
        dp[2 * apart + j] = d * i * (1 - g * g);
        dp[3 * apart + j] = dh[j] * tanh_c * o * (1 - o);
        dc[j] = d * f;
    }
}

INLINE void gru_backward(const int n, int64_t apart, const float *restrict dh,
                         const float *restrict gate, const float *restrict h, float *restrict dp,
                         float *restrict da, float *restrict straight) {
#pragma omp simd
    for (int j = 0; j < n; j++) {
        float r = gate[j], z = gate[apart + j], new = gate[2 * apart + j], m = gate[3 * apart + j],
              dn = dh[j] * (1 - z) * (1 - new *new), dr = dn *m *r *(1 - r),
              dz = dh[j] * (h[j] - new) * z *(1 - z);
        dp[j] = dr;
        dp[apart + j] = dz;
        dp[2 * apart + j] = dn;
        da[j] = dr;
        da[apart + j] = dz;
        da[2 * apart + j] = dn * r;
        straight[j] = dh[j] * z;
    }
}

INLINE void plain_backward(const int n, const bool bends, const float *restrict dh,
                           const float *restrict gate, float *restrict dp) {
#pragma omp simd
    for (int j = 0; j < n; j++) {
        dp[j] = bends ? dh[j] * (1 - gate[j] * gate[j]) : gate[j] > 0 ? dh[j] : 0;
    }
}

/* Units [j, j + n) of row b at `time`; dh (n): the gradient of the state after it. */
INLINE void cell_backward(const backward_pass *p, const tn_cell cell, const int n, int64_t time,
                          int64_t b, int64_t j, float *dh) {
    const scan *s = &p->s;
    int64_t units = s->units, row = time * s->rows + b, own = row * units + j;
    const float *gate = s->gate + row * s->kept * units + j;
    float *dp = p->dp + row * s->gates * units + j, *da = p->da + row * s->gates * units + j,
          *straight = p->dh + b * units + j, *dc = p->dc + b * units + j;
    if (!tn__recurrent_lives(s->r, time, b)) {
        memcpy(straight, dh, (size_t)n * sizeof(float));
        for (int q = 0; q < s->gates; q++) {
            memset(dp + q * units, 0, (size_t)n * sizeof(float));
            memset(da + q * units, 0, (size_t)n * sizeof(float));
        }
        return;
    }
    for (int i = 0; p->dy && i < n; i++) {
        dh[i] += p->dy[own + i];
    }
    memset(straight, 0, (size_t)n * sizeof(float));
    if (cell == TN_CELL_LSTM) {
        lstm_backward(n, units, dh, gate, s->c_before + own, dp, dc);
    } else if (cell == TN_CELL_GRU) {
        gru_backward(n, units, dh, gate, s->h_before + own, dp, da, straight);
    } else {
        plain_backward(n, cell == TN_CELL_TANH, dh, gate, dp);
    }
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* The step at `time`, and the time `after` of the step after it; -1: none. With time -1: the
 * initial state. */
typedef struct backward_step {
    int64_t time, after;
} backward_step;

/* Units [j, j + n) of row b; sum: what came through the later gates. */
INLINE void run_units(const backward_pass *p, const backward_step *at, const tn_cell cell,
                      const int n, int64_t b, int64_t j, float *sum) {
    int64_t own = b * p->s.units + j;
    for (int i = 0; i < n; i++) {
        sum[i] += p->dh[own + i];
    }
    if (at->time >= 0) {
        cell_backward(p, cell, n, at->time, b, j, sum);
    } else {
        memcpy(p->dh0 + own, sum, (size_t)n * sizeof(float));
    }
}

INLINE void run_task(const backward_pass *p, const backward_step *at, const tn_cell cell,
                     int64_t task) {
    const scan *s = &p->s;
    int64_t panel = task / s->tiles, tile = task % s->tiles, from = s->rows * tile / s->tiles,
            to = s->rows * (tile + 1) / s->tiles;
    float sums[MOST_ROWS * PANEL] __attribute__((aligned(64)));
    if (at->after < 0) {
        memset(sums, 0, sizeof sums);
    } else {
        tile_product((int)(to - from), WIDE, s->depth,
                     p->da + (at->after * s->rows + from) * s->depth, s->depth,
                     s->packed + panel * PANEL * s->depth, NULL, sums);
    }
    for (int64_t b = from; b < to; b++) {
        for (int64_t q = 0; q < WIDE; q++) {
            int64_t j = panel * PANEL + q * VL;
            float *sum = sums + ((b - from) * WIDE + q) * VL;
            if (j + VL <= s->units) {
                run_units(p, at, cell, VL, b, j, sum);
            } else if (j < s->units) {
                run_units(p, at, cell, (int)(s->units - j), b, j, sum);
            }
        }
    }
}

#define TASKS_OF(name, cell)                                                         \
    static void name(const backward_pass *p, const backward_step *at, int64_t first, \
                     int64_t last) {                                                 \
        for (int64_t task = first; task < last; task++) {                            \
            run_task(p, at, cell, task);                                             \
        }                                                                            \
    }
TASKS_OF(tanh_tasks, TN_CELL_TANH)
TASKS_OF(relu_tasks, TN_CELL_RELU)
TASKS_OF(gru_tasks, TN_CELL_GRU)
TASKS_OF(lstm_tasks, TN_CELL_LSTM)

/* VL columns of all rows of w, for each of the parts [first, last) of panels. */
static void pack_columns(const scan *s, int64_t first, int64_t last) {
    const float *w = s->r->w->data;
    for (int64_t at = first; at < last; at++) {
        int64_t j = at * VL, n = min_of(VL, s->units - j);
        float *panel = s->packed + at * s->depth * VL;
        for (int64_t k = 0; k < s->depth; k++) {
            const float *from = w + k * s->units + j;
            if (n == VL) {
                memcpy(panel + k * VL, from, VL * sizeof(float));
            } else {
                for (int64_t i = 0; i < VL; i++) {
                    panel[k * VL + i] = i < n ? from[i] : 0;
                }
            }
        }
    }
}

static void run_backward(const backward_pass *p, int threads, int me) {
    static void (*const tasks_of[])(const backward_pass *, const backward_step *, int64_t,
                                    int64_t) = {tanh_tasks, relu_tasks, gru_tasks, lstm_tasks};
    const scan *s = &p->s;
    int64_t parts = s->panels * WIDE, steps = s->times + (p->dh0 ? 1 : 0);
    pack_columns(s, parts * me / threads, parts * (me + 1) / threads);
    for (int64_t i = 0; i < steps; i++) { /* from the last step to the initial state */
        backward_step at = {-1, -1};
        if (i < s->times) { at.time = tn__recurrent_time(s->r, s->times - 1 - i, s->times); }
        if (i > 0) { at.after = tn__recurrent_time(s->r, s->times - i, s->times); }
        team_meet(threads);
        tasks_of[s->r->cell](p, &at, first_task(s, threads, me), first_task(s, threads, me + 1));
    }
}

tn_status TN_CPU(recurrent_backward)(tn_context *ctx, const tn_recurrent *r, const tn_desc *dp,
                                     const tn_desc *da, const tn_desc *dh0, const tn_desc *dc0,
                                     const tn_desc *dy, const tn_desc *dhn, const tn_desc *dcn) {
    int64_t units = r->h_before->size[2];
    backward_pass p = {.s = scan_of(r, WIDE, tn__cell_gates(r->cell) * units, div_up(units, PANEL)),
                       .dp = dp->data,
                       .da = da ? da->data : dp->data,
                       .dy = dy ? dy->data : NULL,
                       .dh0 = dh0 ? dh0->data : NULL};
    scan *s = &p.s;
    if (r->w->dtype != TN_F32 || s->times == 0 || s->rows == 0 || units == 0) {
        return TN_CPU(ref)->recurrent_backward(ctx, r, dp, da, dh0, dc0, dy, dhn, dcn);
    }
    int64_t state = s->rows * units;
    size_t panels = packed_floats(s);
    TN__SCRATCH(float, memory, ctx, panels + (size_t)(2 * state));
    if (!memory) { return TN_ENOMEM; }
    s->packed = memory;
    p.dh = memory + panels;
    p.dc = p.dh + state;
    set_state(p.dh, dhn, state);
    set_state(p.dc, dcn, state);
#pragma omp parallel num_threads(s->threads) if (s->threads > 1)
    run_backward(&p, omp_get_num_threads(), omp_get_thread_num());
    if (dc0) { memcpy(dc0->data, p.dc, (size_t)state * sizeof(float)); }
    return TN_OK;
}
