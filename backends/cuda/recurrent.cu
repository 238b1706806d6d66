/* Recurrent cells over time (ref/recurrent.c has the formulas): a step is a product of the state
 * with the weights, by the entry linear, and one launch with a thread for each unit of a row. The
 * host queues the steps and waits for none. */
#include "backends/cuda/block.cuh"
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/desc.h"
#include "backends/recurrent.h"

/* The step at time t, of B rows of H units; the pointers are to that time. */
template <typename T> struct cell_step {
    tn_cell cell;
    int64_t t, B, H;
    const void *lengths;
    tn_dtype length_dtype;
    T *gates;                 /* (B, K H) */
    const T *h, *c;           /* (B, H): the state before */
    const T *a;               /* (B, G H): forward, w h + b */
    T *y, *h_after, *c_after; /* forward */
    const T *dy;              /* backward; NULL: 0 */
    T *dp, *da;               /* (B, G H); da NULL except for GRU */
    T *dh, *dc;               /* (B, H): of the state after; then, in part, of the state before */
};

template <typename T> static __device__ __forceinline__ T sigmoid_of(T x) {
    return 1 / (1 + exp(-x));
}

template <typename T>
static __device__ __forceinline__ bool row_lives(const cell_step<T> &s, int64_t row) {
    return !s.lengths || s.t < tn__get_integer(s.lengths, s.length_dtype, row);
}

/* Unit j of the state after, h (returned) and *c, from its gates and a, whose parts are H apart. */
template <typename T>
static __device__ __forceinline__ T cell_forward(const cell_step<T> &s, T *gate, const T *a, T h,
                                                 T *c) {
    int64_t H = s.H;
    if (s.cell == TN_CELL_LSTM) {
        T i = sigmoid_of(gate[0] + a[0]), f = sigmoid_of(gate[H] + a[H]),
          g = tanh(gate[2 * H] + a[2 * H]), o = sigmoid_of(gate[3 * H] + a[3 * H]);
        gate[0] = i;
        gate[H] = f;
        gate[2 * H] = g;
        gate[3 * H] = o;
        *c = f * *c + i * g;
        return o * tanh(*c);
    }
    if (s.cell == TN_CELL_GRU) {
        T r = sigmoid_of(gate[0] + a[0]), z = sigmoid_of(gate[H] + a[H]), m = a[2 * H],
          n = tanh(gate[2 * H] + r * m);
        gate[0] = r;
        gate[H] = z;
        gate[2 * H] = n;
        gate[3 * H] = m;
        return (1 - z) * n + z * h;
    }
    T sum = gate[0] + a[0];
    gate[0] = s.cell == TN_CELL_TANH ? tanh(sum) : sum < 0 ? 0 : sum;
    return gate[0];
}

template <typename T>
__global__ void __launch_bounds__(TN__LOOP_BLOCK) cell_kernel(cell_step<T> s) {
    int64_t n = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x, H = s.H;
    int64_t G = tn__cell_gates(s.cell), K = tn__cell_kept(s.cell);
    for (; n < s.B * H; n += (int64_t)gridDim.x * TN__LOOP_BLOCK) {
        int64_t row = n / H, j = n % H;
        bool lives = row_lives(s, row);
        T h = s.h[n], c = s.c ? s.c[n] : 0;
        if (lives) { h = cell_forward(s, s.gates + row * K * H + j, s.a + row * G * H + j, h, &c); }
        s.y[n] = lives ? h : 0;
        s.h_after[n] = h;
        if (s.c) { s.c_after[n] = c; }
    }
}

/* Unit j's gradients dp and da from dh and *dc, those of the state after. Those of the state
 * before, without the product's part, are returned and left in *dc. */
template <typename T>
static __device__ __forceinline__ T cell_backward(const cell_step<T> &s, const T *gate, T h, T c,
                                                  T dh, T *dc, T *dp, T *da) {
    int64_t H = s.H;
    if (s.cell == TN_CELL_LSTM) {
        T i = gate[0], f = gate[H], g = gate[2 * H], o = gate[3 * H];
        T top = tanh(f * c + i * g), d = *dc + dh * o * (1 - top * top);
        dp[0] = d * g * i * (1 - i);
        dp[H] = d * c * f * (1 - f);
        dp[2 * H] = d * i * (1 - g * g);
        dp[3 * H] = dh * top * o * (1 - o);
        *dc = d * f;
        return 0;
    }
    if (s.cell == TN_CELL_GRU) {
        T r = gate[0], z = gate[H], n = gate[2 * H], m = gate[3 * H];
        T dn = dh * (1 - z) * (1 - n * n);
        dp[0] = da[0] = dn * m * r * (1 - r);
        dp[H] = da[H] = dh * (h - n) * z * (1 - z);
        dp[2 * H] = dn;
        da[2 * H] = dn * r;
        return dh * z;
    }
    T after = gate[0];
    dp[0] = s.cell == TN_CELL_TANH ? dh * (1 - after * after) : after > 0 ? dh : 0;
    return 0;
}

template <typename T>
__global__ void __launch_bounds__(TN__LOOP_BLOCK) cell_backward_kernel(cell_step<T> s) {
    int64_t n = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x, H = s.H;
    int64_t G = tn__cell_gates(s.cell), K = tn__cell_kept(s.cell);
    for (; n < s.B * H; n += (int64_t)gridDim.x * TN__LOOP_BLOCK) {
        int64_t row = n / H, j = n % H;
        T *dp = s.dp + row * G * H + j, *da = s.da ? s.da + row * G * H + j : NULL;
        if (!row_lives(s, row)) { /* its gradients pass through unchanged */
            for (int64_t q = 0; q < G; q++) {
                dp[q * H] = 0;
                if (da) { da[q * H] = 0; }
            }
            continue;
        }
        T dh = s.dh[n] + (s.dy ? s.dy[n] : 0), dc = s.dc ? s.dc[n] : 0;
        s.dh[n] = cell_backward(s, s.gates + row * K * H + j, s.h[n], s.c ? s.c[n] : (T)0, dh, &dc,
                                dp, da);
        if (s.dc) { s.dc[n] = dc; }
    }
}

/* ---- The host's part ------------------------------------------------------------------------- */

template <typename T> static T *data_at(const tn_desc *d, int64_t at) {
    return d ? (T *)d->data + at : NULL;
}

/* Sets a state (B, H) to another one, or to 0. */
template <typename T>
static tn_status set_state(tn_context *ctx, T *to, const T *from, tn_dtype dtype, int64_t B,
                           int64_t H) {
    tn_desc y = tn__desc_of_matrix(to, dtype, B, H), x = tn__desc_of_matrix(from, dtype, B, H);
    return !to ? TN_OK : from ? tn__cuda_copy(ctx, &y, &x) : tn__cuda_fill(ctx, &y, 0);
}

template <typename T> static cell_step<T> step_at(const tn_recurrent *r, int64_t i) {
    int64_t times = r->h_before->size[0], B = r->h_before->size[1], H = r->h_before->size[2];
    int64_t t = tn__recurrent_time(r, i, times), K = tn__cell_kept(r->cell);
    cell_step<T> s = {};
    s.cell = r->cell;
    s.t = t;
    s.B = B;
    s.H = H;
    s.lengths = r->lengths ? r->lengths->data : NULL;
    s.length_dtype = r->lengths ? r->lengths->dtype : TN_I64;
    s.gates = data_at<T>(r->gates, t * B * K * H);
    s.h = data_at<T>(r->h_before, t * B * H);
    s.c = data_at<T>(r->c_before, t * B * H);
    return s;
}

template <typename T>
static tn_status run_forward(tn_context *ctx, const tn_recurrent *r, const tn_desc *y,
                             const tn_desc *hn, const tn_desc *cn, const tn_desc *h0,
                             const tn_desc *c0, T *a) {
    int64_t times = y->size[0], B = y->size[1], H = y->size[2], G = tn__cell_gates(r->cell);
    cell_step<T> s = step_at<T>(r, 0);
    T *h = times > 0 ? (T *)s.h : data_at<T>(hn, 0), *c = times > 0 ? (T *)s.c : data_at<T>(cn, 0);
    tn_status status = set_state(ctx, h, data_at<T>(h0, 0), r->w->dtype, B, H);
    if (status == TN_OK) { status = set_state(ctx, c, data_at<T>(c0, 0), r->w->dtype, B, H); }
    for (int64_t i = 0; i < times && status == TN_OK; i++) {
        cell_step<T> next = step_at<T>(r, i + 1 < times ? i + 1 : i);
        s = step_at<T>(r, i);
        s.a = a;
        s.y = data_at<T>(y, s.t * B * H);
        s.h_after = i + 1 < times ? (T *)next.h : data_at<T>(hn, 0);
        s.c_after = i + 1 < times ? (T *)next.c : data_at<T>(cn, 0);
        tn_desc shares = tn__desc_of_matrix(a, r->w->dtype, B, G * H),
                state = tn__desc_of_matrix(s.h, r->w->dtype, B, H);
        status = tn__cuda_linear(ctx, &shares, &state, r->w, r->b);
        if (status == TN_OK) {
            status =
                TN_LAUNCH(ctx, (cell_kernel<T>), tn__loop_grid(ctx, B * H), TN__LOOP_BLOCK, 0, s);
        }
    }
    return status;
}

/* dh and dc: (B, H) of scratch memory; dc NULL except for LSTM. */
template <typename T>
static tn_status run_backward(tn_context *ctx, const tn_recurrent *r, const tn_desc *dp,
                              const tn_desc *da, const tn_desc *dh0, const tn_desc *dc0,
                              const tn_desc *dy, const tn_desc *dhn, const tn_desc *dcn, T *dh,
                              T *dc) {
    int64_t times = r->h_before->size[0], B = r->h_before->size[1], H = r->h_before->size[2];
    int64_t G = tn__cell_gates(r->cell);
    tn_dtype dtype = r->w->dtype;
    tn_desc rows = tn__desc_of_matrix(dh, dtype, B, H), state = tn__desc_batched(&rows),
            w = tn__desc_batched(r->w);
    tn_status status = set_state(ctx, dh, data_at<T>(dhn, 0), dtype, B, H);
    if (status == TN_OK) { status = set_state(ctx, dc, data_at<T>(dcn, 0), dtype, B, H); }
    for (int64_t i = times - 1; i >= 0 && status == TN_OK; i--) {
        cell_step<T> s = step_at<T>(r, i);
        int64_t at = s.t * B * G * H;
        s.dy = data_at<T>(dy, s.t * B * H);
        s.dp = data_at<T>(dp, at);
        s.da = data_at<T>(da, at);
        s.dh = dh;
        s.dc = dc;
        status = TN_LAUNCH(ctx, (cell_backward_kernel<T>), tn__loop_grid(ctx, B * H),
                           TN__LOOP_BLOCK, 0, s);
        rows = tn__desc_of_matrix(s.da ? s.da : s.dp, dtype, B, G * H);
        tn_desc shares = tn__desc_batched(&rows);
        if (status == TN_OK) { status = tn__cuda_matmul(ctx, &state, &shares, &w, 1, 1); }
    }
    if (status == TN_OK) { status = set_state(ctx, data_at<T>(dh0, 0), dh, dtype, B, H); }
    return status == TN_OK && dc ? set_state(ctx, data_at<T>(dc0, 0), dc, dtype, B, H) : status;
}

/* ---- Entries --------------------------------------------------------------------------------- */

static bool handles_dtype(const tn_recurrent *r) {
    return r->w->dtype == TN_F32 || r->w->dtype == TN_F64;
}

/* Bytes of this many units of each row. */
static size_t bytes_of_rows(const tn_recurrent *r, int64_t units) {
    return (size_t)(r->h_before->size[1] * units) * tn__cuda_element(r->w->dtype);
}

extern "C" tn_status tn__cuda_recurrent(tn_context *ctx, const tn_recurrent *r, const tn_desc *y,
                                        const tn_desc *hn, const tn_desc *cn, const tn_desc *h0,
                                        const tn_desc *c0) {
    if (!handles_dtype(r)) { return TN_EUNSUPPORTED; }
    size_t bytes = bytes_of_rows(r, tn__cell_gates(r->cell) * y->size[2]);
    if (bytes == 0) { return TN_OK; }
    TN__SCRATCH(char, a, ctx, bytes);
    if (!a) { return TN_ENOMEM; }
    return r->w->dtype == TN_F64 ? run_forward(ctx, r, y, hn, cn, h0, c0, (double *)a)
                                 : run_forward(ctx, r, y, hn, cn, h0, c0, (float *)a);
}

extern "C" tn_status tn__cuda_recurrent_backward(tn_context *ctx, const tn_recurrent *r,
                                                 const tn_desc *dp, const tn_desc *da,
                                                 const tn_desc *dh0, const tn_desc *dc0,
                                                 const tn_desc *dy, const tn_desc *dhn,
                                                 const tn_desc *dcn) {
    if (!handles_dtype(r)) { return TN_EUNSUPPORTED; }
    size_t bytes = bytes_of_rows(r, r->h_before->size[2]);
    if (bytes == 0) { return TN_OK; }
    bool lstm = r->cell == TN_CELL_LSTM;
    TN__SCRATCH(char, dh, ctx, bytes);
    TN__SCRATCH_IF(lstm, char, dc, ctx, bytes);
    if (!dh || (lstm && !dc)) { return TN_ENOMEM; }
    return r->w->dtype == TN_F64
               ? run_backward(ctx, r, dp, da, dh0, dc0, dy, dhn, dcn, (double *)dh, (double *)dc)
               : run_backward(ctx, r, dp, da, dh0, dc0, dy, dhn, dcn, (float *)dh, (float *)dc);
}
