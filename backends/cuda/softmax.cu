/* Softmax and log-softmax over the last dimension,
 * and their gradients (ops/nn/softmax.c has the formulas).
 *
 * A team of threads takes one row. Up to 4096 elements stay in registers between the passes; other
 * rows are read with a running maximum, and read again when the result is written.
 */
#include "backends/cuda/loop.cuh"
#include "backends/cuda/rows.cuh"
#include "backends/softmax.h"

/* Rows of up to three operands along a dimension, visited in step. */
struct softmax_rows {
    tn__walk walk;        /* over the rows */
    int64_t n, stride[3]; /* elements of a row */
    bool whole;           /* every row is whole packs */

    template <typename T, int N>
    __device__ __forceinline__ void lines(int64_t row, tn__line<T> (&line)[N]) const {
        int64_t at[N];
        tn__walk_to(walk, row, at);
        TN_UNROLL
        for (int k = 0; k < N; k++) {
            line[k] = tn__line_of((T *)walk.data[k] + at[k], stride[k]);
        }
    }
};

template <int N> static softmax_rows rows_of(const tn_desc *const (&operand)[N], const void *args) {
    tn_desc start[N];
    const tn_desc *op[N];
    softmax_rows r = {};
    r.n = 1;
    r.whole = true;
    for (int k = 0; k < N; k++) {
        start[k] = tn__softmax_rows(operand[k], args);
        op[k] = &start[k];
        r.whole = r.whole && tn__whole_rows(&start[k]);
        if (start[k].ndim > 0) {
            int last = --start[k].ndim;
            r.n = start[k].size[last];
            r.stride[k] = start[k].stride[last];
        }
    }
    r.walk = tn__cuda_walk(N, op);
    return r;
}

/* ---- Forward --------------------------------------------------------------------------------- */

template <typename T, int TEAM, int ITEMS>
__global__ void __launch_bounds__(tn__team_block<TEAM>())
    softmax_kernel(softmax_rows r, bool log_form) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__per_load<T>;
    TN_SHARED(tn__exps<C>, shared, 32);
    int64_t row = tn__team_number<TEAM>(), n = r.n;
    if (row >= r.walk.count) { return; }
    tn__line<T> line[2];
    r.lines(row, line);
    tn__line<T> y = line[0], x = line[1];
    tn__held<T, TEAM, ITEMS> held;
    held.open(x, n, -(C)INFINITY);
    tn__exps<C> mine = tn__no_exps<C>();
    tn__each_pack<T, TEAM, ITEMS>(n, [&](int64_t at, int p) {
        tn__exps_take<V>(mine, held.pack(x, at, p, n, -(C)INFINITY));
    });
    tn__exps<C> total = tn__team_reduce<TEAM>(mine, shared, tn__join_exps());
    C shift = total.most, lost = log_form ? log(total.sum) : 0, scale = 1 / total.sum;
    if (shift == -(C)INFINITY) { scale = lost = (C)NAN; /* all -inf */ }
    tn__each_pack<T, TEAM, ITEMS>(n, [&](int64_t at, int p) {
        C *v = held.pack(x, at, p, n, -(C)INFINITY);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            v[k] = log_form ? v[k] - shift - lost : exp(v[k] - shift) * scale;
        }
        tn__pack_store<(ITEMS > 0)>(y, at, n, v);
    });
}

template <bool LOG> static tn_status run_forward(const tn_op_call *c) {
    softmax_rows r = rows_of<2>({c->y[0], c->x[0]}, c->args);
    if (r.walk.count == 0 || r.n == 0) { return TN_OK; }
    TN_FLOATS(c->y[0]->dtype,
              TN_BY_LENGTH(T, r.n, r.whole,
                           return TN_LAUNCH(c->ctx, (softmax_kernel<T, TEAM, ITEMS>),
                                            tn__team_grid<TEAM>(r.walk.count),
                                            tn__team_block<TEAM>(), 0, r, LOG)));
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy). */
template <typename T, int TEAM, int ITEMS>
__global__ void __launch_bounds__(tn__team_block<TEAM>())
    softmax_backward_kernel(softmax_rows r, bool log_form) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__per_load<T>;
    TN_SHARED(C, shared, 32);
    int64_t row = tn__team_number<TEAM>(), n = r.n;
    if (row >= r.walk.count) { return; }
    tn__line<T> line[3];
    r.lines(row, line);
    tn__line<T> dx = line[0], y = line[1], dy = line[2];
    tn__held<T, TEAM, ITEMS> held_y, held_dy;
    held_y.open(y, n, (C)0);
    held_dy.open(dy, n, (C)0);
    C sum = 0;
    tn__each_pack<T, TEAM, ITEMS>(n, [&](int64_t at, int p) {
        const C *g = held_dy.pack(dy, at, p, n, (C)0), *value = held_y.pack(y, at, p, n, (C)0);
        C part = 0;
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            part += log_form ? g[k] : g[k] * value[k];
        }
        sum += part;
    });
    sum = tn__team_reduce<TEAM>(sum, shared, tn__join_sum());
    tn__each_pack<T, TEAM, ITEMS>(n, [&](int64_t at, int p) {
        C *g = held_dy.pack(dy, at, p, n, (C)0);
        const C *value = held_y.pack(y, at, p, n, (C)0);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            g[k] = log_form ? g[k] - exp(value[k]) * sum : value[k] * (g[k] - sum);
        }
        tn__pack_store<(ITEMS > 0)>(dx, at, n, g);
    });
}

template <bool LOG> static tn_status run_backward(const tn_op_back *b) {
    softmax_rows r = rows_of<3>({b->dx[0], b->y[0], b->dy[0]}, b->args);
    if (r.walk.count == 0 || r.n == 0) { return TN_OK; }
    TN_FLOATS(b->dx[0]->dtype,
              TN_BY_LENGTH(T, r.n, r.whole,
                           return TN_LAUNCH(b->ctx, (softmax_backward_kernel<T, TEAM, ITEMS>),
                                            tn__team_grid<TEAM>(r.walk.count),
                                            tn__team_block<TEAM>(), 0, r, LOG)));
}

const tn_op_kernel tn__cuda_op_softmax = {run_forward<false>, run_backward<false>};
const tn_op_kernel tn__cuda_op_log_softmax = {run_forward<true>, run_backward<true>};
