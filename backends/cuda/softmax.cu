/* Softmax and log-softmax over the last dimension,
 * and their gradients (ops/nn/softmax.c has the formulas).
 *
 * A team of threads takes one row. Up to 4096 elements stay in registers between the passes; other
 * rows are read with a running maximum, and read again when the result is written.
 */
#include "backends/cuda/rows.cuh"
#include "backends/softmax.h"

/* ---- Forward --------------------------------------------------------------------------------- */

template <typename T, int TEAM, int ITEMS>
__global__ void __launch_bounds__(tn__team_block<TEAM>())
    softmax_kernel(tn__rows y_rows, tn__rows x_rows, int64_t rows, int64_t n, bool log_form) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__per_load<T>;
    TN_SHARED(tn__exps<C>, shared, 32);
    int64_t row = tn__team_number<TEAM>();
    if (row >= rows) { return; }
    tn__line<T> x = tn__rows_line<T>(x_rows, row), y = tn__rows_line<T>(y_rows, row);
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
    tn_desc x = tn__softmax_rows(c->x[0], c->args), y = tn__softmax_rows(c->y[0], c->args);
    int64_t rows = tn__desc_row_count(&x), n = tn__row_length(&x);
    if (rows == 0 || n == 0) { return TN_OK; }
    bool whole = tn__whole_rows(&y) && tn__whole_rows(&x);
    TN_FLOATS(y.dtype,
              TN_BY_LENGTH(T, n, whole,
                           return TN_LAUNCH(c->ctx, (softmax_kernel<T, TEAM, ITEMS>),
                                            tn__team_grid<TEAM>(rows), tn__team_block<TEAM>(), 0,
                                            tn__rows_from(&y), tn__rows_from(&x), rows, n, LOG)));
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy). */
template <typename T, int TEAM, int ITEMS>
__global__ void __launch_bounds__(tn__team_block<TEAM>())
    softmax_backward_kernel(tn__rows dx_rows, tn__rows y_rows, tn__rows dy_rows, int64_t rows,
                            int64_t n, bool log_form) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__per_load<T>;
    TN_SHARED(C, shared, 32);
    int64_t row = tn__team_number<TEAM>();
    if (row >= rows) { return; }
    tn__line<T> y = tn__rows_line<T>(y_rows, row), dy = tn__rows_line<T>(dy_rows, row),
                dx = tn__rows_line<T>(dx_rows, row);
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
    tn_desc dx = tn__softmax_rows(b->dx[0], b->args), y = tn__softmax_rows(b->y[0], b->args),
            dy = tn__softmax_rows(b->dy[0], b->args);
    int64_t rows = tn__desc_row_count(&dx), n = tn__row_length(&dx);
    if (rows == 0 || n == 0) { return TN_OK; }
    bool whole = tn__whole_rows(&dx) && tn__whole_rows(&y) && tn__whole_rows(&dy);
    TN_FLOATS(dx.dtype,
              TN_BY_LENGTH(T, n, whole,
                           return TN_LAUNCH(b->ctx, (softmax_backward_kernel<T, TEAM, ITEMS>),
                                            tn__team_grid<TEAM>(rows), tn__team_block<TEAM>(), 0,
                                            tn__rows_from(&dx), tn__rows_from(&y),
                                            tn__rows_from(&dy), rows, n, LOG)));
}

const tn_op_kernel tn__cuda_op_softmax = {run_forward<false>, run_backward<false>};
const tn_op_kernel tn__cuda_op_log_softmax = {run_forward<true>, run_backward<true>};
