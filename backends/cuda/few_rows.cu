/* Linears of few rows of x: linear_cat and linear_q8 (their operations have the formulas).
 *
 * A warp computes one column of y: it reads a row of a weight once, 16 bytes a lane, and multiplies
 * it with all rows of x, which stay in the caches. The order of a sum depends on the width alone.
 * Weights of signed bytes are read as they are.
 */
#include "backends/cuda/loop.cuh"
#include "backends/cuda/rows.cuh"
#include "backends/few_rows.h"

enum { THREADS = 256, PARTS = 3 };

namespace {

/* The rows of one weight, which are columns first … of y. */
struct part {
    const void *w, *scale; /* scale: of bytes, else NULL */
    int64_t row, column, scale_stride, first;
    tn_dtype scale_dtype;
};

struct few {
    part parts[PARTS];
    tn_desc y, x;
    const void *add; /* like y, or NULL */
    int64_t add_row, add_column;
    int64_t rows, in, out;
};

template <typename C> __device__ __forceinline__ C widen(int8_t x) {
    return (C)x;
}
template <typename C, typename T> __device__ __forceinline__ C widen(T x) {
    return tn__load(x);
}

/* sum[r] += the shares of V elements. */
template <typename T, typename W, int ROWS, int V, typename C>
__device__ __forceinline__ void add_packs(C (&sum)[ROWS], const few &f, const W *w, int64_t at) {
    tn__elements<W, V> own = *(const tn__elements<W, V> *)(w + at);
    TN_UNROLL
    for (int r = 0; r < ROWS; r++) {
        if (ROWS == 1 || r < f.rows) {
            const T *x = (const T *)f.x.data + r * f.x.stride[0] + at;
            tn__elements<T, V> other = *(const tn__elements<T, V> *)x;
            TN_UNROLL
            for (int k = 0; k < V; k++) {
                sum[r] += widen<C>(own.at[k]) * tn__load(other.at[k]);
            }
        }
    }
}

/* The same for one element, with any strides. */
template <typename T, typename W, int ROWS, typename C>
__device__ __forceinline__ void add_single(C (&sum)[ROWS], const few &f, const W *w, int64_t column,
                                           int64_t at) {
    C own = widen<C>(w[at * column]);
    TN_UNROLL
    for (int r = 0; r < ROWS; r++) {
        if (ROWS == 1 || r < f.rows) {
            sum[r] += own * tn__load(((const T *)f.x.data)[r * f.x.stride[0] + at * f.x.stride[1]]);
        }
    }
}

/* PACKED: rows of x and of the weights are whole packs. */
template <typename T, typename W, int ROWS, bool PACKED>
__global__ void __launch_bounds__(THREADS) few_rows_kernel(few f) {
    typedef typename tn__compute<T>::type C;
    const int V = 16 / sizeof(W);
    int64_t column = tn__team_number<32>();
    if (column >= f.out) { return; }
    part p = column >= f.parts[2].first   ? f.parts[2]
             : column >= f.parts[1].first ? f.parts[1]
                                          : f.parts[0];
    int64_t j = column - p.first;
    const W *w = (const W *)p.w + j * p.row;
    C sum[ROWS] = {0};
    if (PACKED) {
        TN_UNROLL_BY(ROWS == 1 ? 4 : 1) /* more rows need the registers */
        for (int64_t at = tn__team_lane<32>() * V; at < f.in; at += 32 * V) {
            add_packs<T, W, ROWS, V>(sum, f, w, at);
        }
    } else {
        for (int64_t at = tn__team_lane<32>() * V; at < f.in; at += 32 * V) {
            for (int64_t k = at; k < at + V && k < f.in; k++) { /* in the packs' order */
                add_single<T>(sum, f, w, p.column, k);
            }
        }
    }
    C scale = p.scale ? (C)tn__get_float(p.scale, p.scale_dtype, j * p.scale_stride) : (C)1;
    TN_UNROLL
    for (int r = 0; r < ROWS; r++) {
        C total = tn__team_reduce<32>(sum[r], (C *)NULL, tn__join_sum()) * scale;
        if (tn__team_lane<32>() == r && r < f.rows) {
            const T *add = (const T *)f.add;
            total += add ? tn__load(add[r * f.add_row + column * f.add_column]) : (C)0;
            ((T *)f.y.data)[r * f.y.stride[0] + column * f.y.stride[1]] = tn__store<T>(total);
        }
    }
}

/* Whether rows of `in` elements of size `bytes` with these strides are whole packs of 16 bytes. */
bool whole_packs(const void *data, int64_t row, int64_t column, int64_t in, size_t bytes) {
    return column == 1 && in * (int64_t)bytes % 16 == 0 && row * (int64_t)bytes % 16 == 0 &&
           (uintptr_t)data % 16 == 0;
}

template <typename T, typename W> tn_status launch_few(tn_context *ctx, const few &f) {
    bool packed = f.in % (int64_t)(16 / sizeof(W)) == 0 &&
                  whole_packs(f.x.data, f.x.stride[0], f.x.stride[1], f.in, sizeof(T));
    for (int i = 0; i < PARTS && f.parts[i].w; i++) {
        packed =
            packed && whole_packs(f.parts[i].w, f.parts[i].row, f.parts[i].column, f.in, sizeof(W));
    }
    unsigned grid = (unsigned)tn__ceil_div(f.out, THREADS / 32);
    return packed && f.rows == 1
               ? TN_LAUNCH(ctx, (few_rows_kernel<T, W, 1, true>), grid, THREADS, 0, f)
           : packed
               ? TN_LAUNCH(ctx, (few_rows_kernel<T, W, TN__FEW_ROWS, true>), grid, THREADS, 0, f)
               : TN_LAUNCH(ctx, (few_rows_kernel<T, W, TN__FEW_ROWS, false>), grid, THREADS, 0, f);
}

tn_status run_few(tn_context *ctx, const few &f, tn_dtype weights) {
    if (f.rows > TN__FEW_ROWS) { return TN_EUNSUPPORTED; }
    if (f.rows == 0 || f.out == 0) { return TN_OK; }
    if (weights == f.x.dtype) { TN_FLOATS(weights, return launch_few<T, T>(ctx, f)); }
    switch (weights == TN_I8 ? f.x.dtype : TN_BOOL) {
    case TN_F32:
        return launch_few<float, int8_t>(ctx, f);
    case TN_BF16:
        return launch_few<tn__bf16, int8_t>(ctx, f);
    case TN_F16:
        return launch_few<tn__half, int8_t>(ctx, f);
    default:
        return TN_EUNSUPPORTED;
    }
}

/* A weight's part behind those before it. */
void add_part(few *f, int i, const tn_desc *w, const tn_desc *scale) {
    part *p = &f->parts[i];
    p->first = f->out;
    p->w = w->data;
    p->row = w->stride[0];
    p->column = w->size[1] == 1 ? 1 : w->stride[1];
    p->scale = scale ? scale->data : NULL;
    p->scale_stride = scale ? scale->stride[0] : 0;
    p->scale_dtype = scale ? scale->dtype : TN_F32;
    f->out += w->size[0];
}

/* Without parts. `add` has y's rows, or is one row (a bias), or NULL. */
few begin_few(const tn_desc *y, const tn_desc *x, const tn_desc *add) {
    few f = {};
    f.y = *y;
    f.x = *x;
    f.rows = x->size[0];
    f.in = x->size[1];
    f.add = add ? add->data : NULL;
    f.add_row = add && add->ndim == 2 ? add->stride[0] : 0;
    f.add_column = add ? add->stride[add->ndim - 1] : 0;
    for (int i = 0; i < PARTS; i++) {
        f.parts[i].first = INT64_MAX;
    }
    return f;
}

} // namespace

static tn_status linear_cat_forward(const tn_op_call *c) {
    few f = begin_few(c->y[0], c->x[0], c->x[7]);
    int n = 0;
    for (int i = 0; i < PARTS; i++) {
        const tn_desc *w = c->x[1 + i];
        if (w && w->dtype != c->x[1]->dtype) { return TN_EUNSUPPORTED; }
        if (w) { add_part(&f, n++, w, c->x[4 + i]); }
    }
    return run_few(c->ctx, f, c->x[1]->dtype);
}
const tn_op_kernel tn__cuda_op_linear_cat = {linear_cat_forward, NULL};

static tn_status linear_q8_forward(const tn_op_call *c) {
    few f = begin_few(c->y[0], c->x[0], c->x[3]);
    add_part(&f, 0, c->x[1], c->x[2]);
    return run_few(c->ctx, f, TN_I8);
}
const tn_op_kernel tn__cuda_op_linear_q8 = {linear_q8_forward, NULL};
