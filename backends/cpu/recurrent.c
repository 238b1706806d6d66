/* Recurrent cells over time, forward (recurrent.h). A panel has the columns of all gates for VL
 * units: after its product a tile has all that the cell needs.
 */
#include "backends/cpu/recurrent.h"

/* What a step reads and writes besides the gates. */
typedef struct forward_step {
    int64_t time;
    const float *h, *c;     /* (B, H): the state before */
    float *y, *h_to, *c_to; /* y of this time, and the state after */
} forward_step;

/* ---- Cells: `n` units, VL or fewer, of one row ----------------------------------------------- */

/* sum: the recurrent share of each gate, VL apart; gate: the input's shares, `apart` apart. */
INLINE void lstm_forward(const int n, int64_t apart, const float *restrict sum,
                         float *restrict gate, const float *restrict c, float *restrict h_to,
                         float *restrict c_to) {
    const float low = exp_limits[0], high = exp_limits[1];
#pragma omp simd
    for (int j = 0; j < n; j++) {
        float i = cell_sigmoid(gate[j] + sum[j], low, high),
              f = cell_sigmoid(gate[apart + j] + sum[VL + j], low, high),
              g = tn__tanhf(gate[2 * apart + j] + sum[2 * VL + j]),
              o = cell_sigmoid(gate[3 * apart + j] + sum[3 * VL + j], low, high),
              next = f * c[j] + i * g;
        gate[j] = i;
        gate[apart + j] = f;
        gate[2 * apart + j] = g;
        gate[3 * apart + j] = o;
        c_to[j] = next;
        h_to[j] = o * tn__tanhf(next);
    }
}

INLINE void gru_forward(const int n, int64_t apart, const float *restrict sum, float *restrict gate,
                        const float *restrict h, float *restrict h_to) {
    const float low = exp_limits[0], high = exp_limits[1];
#pragma omp simd
    for (int j = 0; j < n; j++) {
        float m = sum[2 * VL + j], r = cell_sigmoid(gate[j] + sum[j], low, high),
              z = cell_sigmoid(gate[apart + j] + sum[VL + j], low, high),
              new = tn__tanhf(gate[2 * apart + j] + r * m);
        gate[j] = r;
        gate[apart + j] = z;
        gate[2 * apart + j] = new;
        gate[3 * apart + j] = m;
        h_to[j] = (1 - z) * new + z *h[j];
    }
}

INLINE void plain_forward(const int n, const bool bends, const float *restrict sum,
                          float *restrict gate, float *restrict h_to) {
#pragma omp simd
    for (int j = 0; j < n; j++) {
        float a = gate[j] + sum[j];
        gate[j] = h_to[j] = bends ? tn__tanhf(a) : a < 0 ? 0 : a;
    }
}

/* Units [j, j + n) of row b. */
INLINE void cell_forward(const scan *s, const forward_step *at, const tn_cell cell, const int n,
                         int64_t b, int64_t j, const float *sum) {
    int64_t own = b * s->units + j;
    float *gate = s->gate + (at->time * s->rows + b) * s->kept * s->units + j;
    const float *h = at->h + own, *c = at->c + own;
    float *h_to = at->h_to + own, *c_to = at->c_to + own, *y = at->y + own;
    if (!tn__recurrent_lives(s->r, at->time, b)) {
        for (int i = 0; i < n; i++) {
            h_to[i] = h[i];
            y[i] = 0;
        }
        for (int i = 0; i < n && cell == TN_CELL_LSTM; i++) {
            c_to[i] = c[i];
        }
        return;
    }
    if (cell == TN_CELL_LSTM) {
        lstm_forward(n, s->units, sum, gate, c, h_to, c_to);
    } else if (cell == TN_CELL_GRU) {
        gru_forward(n, s->units, sum, gate, h, h_to);
    } else {
        plain_forward(n, cell == TN_CELL_TANH, sum, gate, h_to);
    }
    for (int i = 0; i < n; i++) {
        y[i] = h_to[i];
    }
}

/* ---- Steps ----------------------------------------------------------------------------------- */

INLINE void run_task(const scan *s, const forward_step *at, const tn_cell cell, const float *bias,
                     int64_t task) {
    const int wide = cell == TN_CELL_LSTM ? 4 : cell == TN_CELL_GRU ? 3 : 1;
    int64_t panel = task / s->tiles, tile = task % s->tiles, j = panel * VL,
            from = s->rows * tile / s->tiles, to = s->rows * (tile + 1) / s->tiles;
    float sums[MOST_ROWS * MOST_WIDE * VL] __attribute__((aligned(64)));
    tile_product((int)(to - from), wide, s->depth, at->h + from * s->units, s->units,
                 s->packed + panel * wide * s->depth * VL, bias + panel * wide * VL, sums);
    for (int64_t b = from; b < to; b++) {
        const float *sum = sums + (b - from) * wide * VL;
        if (j + VL <= s->units) {
            cell_forward(s, at, cell, VL, b, j, sum);
        } else {
            cell_forward(s, at, cell, (int)(s->units - j), b, j, sum);
        }
    }
}

#define TASKS_OF(name, cell)                                                                  \
    static void name(const scan *s, const forward_step *at, const float *bias, int64_t first, \
                     int64_t last) {                                                          \
        for (int64_t task = first; task < last; task++) {                                     \
            run_task(s, at, cell, bias, task);                                                \
        }                                                                                     \
    }
TASKS_OF(tanh_tasks, TN_CELL_TANH)
TASKS_OF(relu_tasks, TN_CELL_RELU)
TASKS_OF(gru_tasks, TN_CELL_GRU)
TASKS_OF(lstm_tasks, TN_CELL_LSTM)

/* The panels of the tasks [first, last), and their biases (panels, gates, VL). */
static void pack_panels(const scan *s, float *bias, int64_t first, int64_t last) {
    const float *w = s->r->w->data, *b = s->r->b ? s->r->b->data : NULL;
    for (int64_t at = first; at < last; at++) {
        int64_t gate = at % s->gates, j = at / s->gates * VL, n = min_of(VL, s->units - j),
                row = gate * s->units + j;
        float *panel = s->packed + at * s->depth * VL;
        if (n == VL) {
            transpose_panel(panel, VL, w + row * s->depth, s->depth, s->depth);
        } else {
            for (int64_t p = 0; p < s->depth; p++) {
                for (int64_t i = 0; i < VL; i++) {
                    panel[p * VL + i] = i < n ? w[(row + i) * s->depth + p] : 0;
                }
            }
        }
        for (int64_t i = 0; i < VL; i++) {
            bias[at * VL + i] = b && i < n ? b[row + i] : 0;
        }
    }
}

/* y, and the final state. */
typedef struct forward_ends {
    float *y, *hn, *cn;
} forward_ends;

static void run_forward(const scan *s, const forward_ends *ends, float *bias, int threads, int me) {
    static void (*const tasks_of[])(const scan *, const forward_step *, const float *, int64_t,
                                    int64_t) = {tanh_tasks, relu_tasks, gru_tasks, lstm_tasks};
    int64_t state = s->rows * s->units, parts = s->panels * s->gates;
    pack_panels(s, bias, parts * me / threads, parts * (me + 1) / threads);
    for (int64_t i = 0; i < s->times; i++) {
        bool last = i == s->times - 1;
        int64_t time = tn__recurrent_time(s->r, i, s->times),
                next = tn__recurrent_time(s->r, i + 1, s->times);
        forward_step at = {.time = time,
                           .h = s->h_before + time * state,
                           .y = ends->y + time * state,
                           .h_to = last ? ends->hn : s->h_before + next * state};
        at.c = s->c_before ? s->c_before + time * state : at.h;
        at.c_to = !s->c_before ? at.h_to : last ? ends->cn : s->c_before + next * state;
        team_meet(threads);
        tasks_of[s->r->cell](s, &at, bias, first_task(s, threads, me),
                             first_task(s, threads, me + 1));
    }
}

tn_status TN_CPU(recurrent)(tn_context *ctx, const tn_recurrent *r, const tn_desc *y,
                            const tn_desc *hn, const tn_desc *cn, const tn_desc *h0,
                            const tn_desc *c0) {
    scan s =
        scan_of(r, tn__cell_gates(r->cell), r->h_before->size[2], div_up(r->h_before->size[2], VL));
    if (r->w->dtype != TN_F32 || s.times == 0 || s.rows == 0 || s.units == 0) {
        return TN_CPU(ref)->recurrent(ctx, r, y, hn, cn, h0, c0);
    }
    size_t panels = packed_floats(&s), biases = (size_t)(s.panels * s.gates * VL);
    TN__SCRATCH(float, memory, ctx, panels + biases);
    if (!memory) { return TN_ENOMEM; }
    s.packed = memory;
    int64_t state = s.rows * s.units, first = tn__recurrent_time(r, 0, s.times) * state;
    set_state(s.h_before + first, h0, state);
    if (s.c_before) { set_state(s.c_before + first, c0, state); }
    forward_ends ends = {y->data, hn->data, cn ? cn->data : NULL};
    float *bias = memory + panels;
#pragma omp parallel num_threads(s.threads) if (s.threads > 1)
    run_forward(&s, &ends, bias, omp_get_num_threads(), omp_get_thread_num());
    return TN_OK;
}
