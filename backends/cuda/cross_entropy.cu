/* Cross-entropy of logits with labels, forward and backward (ops/loss/cross_entropy.c has the
 * formulas).
 *
 * A team of threads takes one row. Forward reads it once, with a running maximum, and once more
 * when labels are smoothed. Backward reads it once and writes the gradient, in place if requested.
 * A forward that makes the gradient, too, reads the row again to write it; by then it is in a
 * cache, as the rows of all blocks that run together (512 threads, 100 KB for bf16 of GPT-2) fit
 * there. A bad label is recorded in the device's fault cell and its row is treated as ignored, so
 * that a step which runs before the error is noticed does no harm.
 */
#include "backends/cross_entropy.h"
#include "backends/cuda/rows.cuh"

template <typename T> struct losses {
    typedef typename tn__compute<T>::type C;
    const T *x;
    T *dx;
    int64_t row, column, dx_row, dx_column; /* strides */
    const void *label;
    bool wide_label; /* i64, else i32 */
    int64_t label_stride;
    C *loss, *top, *log_sum; /* loss: dloss in backward */
    const C *ahead;          /* dloss of all rows for a gradient that the forward makes; or NULL */
    int64_t loss_stride, top_stride, log_sum_stride;
    int64_t rows, c;
    tn_cross_entropy_args args;
    bool backward;
    tn__cuda_fault *fault;
};

/* The column of the row's label. The first bad label is recorded; the row of any bad one is
 * ignored. */
template <typename T>
static __device__ __forceinline__ int64_t read_target(const losses<T> &l, int64_t row, bool notes) {
    int64_t at = row * l.label_stride;
    int64_t label = l.wide_label ? static_cast<const int64_t *>(l.label)[at]
                                 : static_cast<const int32_t *>(l.label)[at];
    int64_t target = tn__target_of(&l.args, label, l.c);
    if (target != TN__OUTSIDE) { return target; }
    if (notes && atomicCAS(&l.fault->raised, 0, 1) == 0) {
        l.fault->position = row;
        l.fault->value = label;
    }
    return TN__IGNORED;
}

/* This thread's part of the sum of x - top, in double: next to a large logit f32 would lose the
 * others. */
template <typename T, int TEAM>
static __device__ __forceinline__ double sum_below(tn__line<const T> x, int64_t c, double top) {
    double sum = 0;
    TN_NO_UNROLL
    for (int64_t i = tn__team_lane<TEAM>(); i < c; i += TEAM) {
        sum += (double)tn__load(x.data[i * x.stride]) - top;
    }
    return sum;
}

/* Lane 0's v for every lane. What a lane has read before, another may write after. */
template <int TEAM, typename V> static __device__ __forceinline__ V from_first(V v, V *shared) {
    if (TEAM == 32) {
        __syncwarp();
        return __shfl_sync(TN_FULL, v, 0);
    }
    if (threadIdx.x == 0) { *shared = v; }
    __syncthreads();
    return *shared;
}

/* dx = dloss (exp(x - top - log_sum) - (1 - s) [at the label] - s / c) */
template <typename T, int TEAM, typename C>
static __device__ __forceinline__ void write_gradient(const losses<T> &l, int64_t row,
                                                      int64_t target, C g, C top, C log_sum) {
    tn__line<T> x = tn__line_of(const_cast<T *>(l.x) + row * l.row, l.column),
                dx = tn__line_of(l.dx + row * l.dx_row, l.dx_column);
    bool ignored = target == TN__IGNORED;
    C even = (C)(l.args.label_smoothing / (double)l.c),
      sure = (C)(1 - l.args.label_smoothing + l.args.label_smoothing / (double)l.c);
    tn__row_map<TEAM>(dx, x, l.c, [&](int64_t at, C v) {
        return ignored ? (C)0 : g * (tn__exp(v - top - log_sum) - (at == target ? sure : even));
    });
}

/* AHEAD: writes the gradient, too. */
template <typename T, int TEAM, bool AHEAD>
__global__ void __launch_bounds__(tn__team_block<TEAM>()) loss_kernel(losses<T> l) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__pack<T>::size;
    TN_SHARED(tn__exps<C>, shared, 32);
    TN_SHARED(double, shared_sum, 32);
    TN_SHARED(C, shared_log, 1);
    int64_t row = tn__team_number<TEAM>();
    if (row >= l.rows) { return; }
    int64_t target = read_target(l, row, tn__team_lane<TEAM>() == 0);
    tn__line<const T> x = tn__line_of(l.x + row * l.row, l.column);
    tn__exps<C> total = tn__no_exps<C>();
    tn__each_pack<T, TEAM, 0>(l.c, [&](int64_t at, int) {
        C v[V];
        tn__pack_load<false>(v, x, at, l.c, -(C)INFINITY);
        tn__exps_take<V>(total, v);
    });
    total = tn__team_reduce<TEAM>(total, shared, tn__join_exps());
    double top = (double)total.most, below = 0;
    if (l.args.label_smoothing > 0) {
        below = tn__team_reduce<TEAM>(sum_below<T, TEAM>(x, l.c, top), shared_sum, tn__join_sum());
    }
    C log_total = 0;
    if (tn__team_lane<TEAM>() == 0) {
        double log_sum = log((double)total.sum), value = 0, s = l.args.label_smoothing;
        if (total.most == -(C)INFINITY && l.c > 0) { log_sum = NAN; /* nothing but -inf */ }
        if (target >= 0) {
            value = (1 - s) * (log_sum - ((double)tn__load(x.data[target * x.stride]) - top));
            value += s > 0 ? s * (log_sum - below / (double)l.c) : 0; /* 0 times infinity is NaN */
        }
        log_total = (C)log_sum;
        l.loss[row * l.loss_stride] = (C)value;
        l.top[row * l.top_stride] = total.most;
        l.log_sum[row * l.log_sum_stride] = log_total;
    }
    if (AHEAD) {
        log_total = from_first<TEAM>(log_total, shared_log);
        write_gradient<T, TEAM>(l, row, target, *l.ahead, total.most, log_total);
    }
}

template <typename T, int TEAM>
__global__ void __launch_bounds__(tn__team_block<TEAM>()) gradient_kernel(losses<T> l) {
    typedef typename tn__compute<T>::type C;
    int64_t row = tn__team_number<TEAM>();
    if (row >= l.rows) { return; }
    int64_t target = read_target(l, row, tn__team_lane<TEAM>() == 0);
    C g = l.loss[row * l.loss_stride], top = l.top[row * l.top_stride],
      log_sum = l.log_sum[row * l.log_sum_stride];
    write_gradient<T, TEAM>(l, row, target, g, top, log_sum);
}

/* dx = dx dloss / ahead. As a rule the factor is 1, which each block sees for itself: the host does
 * not know. */
template <typename T, int TEAM, typename C>
__global__ void __launch_bounds__(tn__team_block<TEAM>())
    rescale_kernel(T *dx, int64_t row, int64_t column, int64_t rows, int64_t c, const C *dloss,
                   C ahead) {
    C factor = *dloss / ahead;
    int64_t teams = (int64_t)gridDim.x * (blockDim.x / TEAM);
    TN_NO_UNROLL
    for (int64_t i = tn__team_number<TEAM>(); factor != 1 && i < rows; i += teams) {
        tn__line<T> line = tn__line_of(dx + i * row, column);
        tn__row_map<TEAM>(line, line, c, [&](int64_t, C v) { return v * factor; });
    }
}

template <typename T>
static losses<T> losses_of(tn_context *ctx, const tn_desc *dx, const tn_desc *loss,
                           const tn_desc *top, const tn_desc *log_sum, const tn_desc *x,
                           const tn_desc *label, const void *arguments) {
    typedef typename tn__compute<T>::type C;
    const tn_cross_entropy_args *args = (const tn_cross_entropy_args *)arguments;
    losses<T> l;
    l.x = static_cast<const T *>(x->data);
    l.row = x->stride[0];
    l.column = x->stride[1];
    l.backward = dx != NULL;
    l.dx = dx ? static_cast<T *>(dx->data) : NULL;
    l.dx_row = dx ? dx->stride[0] : 0;
    l.dx_column = dx ? dx->stride[1] : 0;
    l.label = label->data;
    l.wide_label = label->dtype == TN_I64;
    l.label_stride = label->stride[0];
    l.loss = static_cast<C *>(loss->data);
    l.loss_stride = loss->stride[0];
    l.top = static_cast<C *>(top->data);
    l.top_stride = top->stride[0];
    l.log_sum = static_cast<C *>(log_sum->data);
    l.log_sum_stride = log_sum->stride[0];
    l.rows = x->size[0];
    l.c = x->size[1];
    l.args = *args;
    l.ahead = NULL;
    l.fault = tn__cuda_device_of(ctx)->fault_on_device;
    return l;
}

enum { LONG = 512 }; /* threads of a long row */

template <typename T, int TEAM>
static tn_status launch_losses(tn_context *ctx, const losses<T> &l) {
    unsigned grid = tn__team_grid<TEAM>(l.rows), block = tn__team_block<TEAM>();
    return l.backward ? TN_LAUNCH(ctx, (gradient_kernel<T, TEAM>), grid, block, 0, l)
           : l.ahead  ? TN_LAUNCH(ctx, (loss_kernel<T, TEAM, true>), grid, block, 0, l)
                      : TN_LAUNCH(ctx, (loss_kernel<T, TEAM, false>), grid, block, 0, l);
}

template <typename T> static tn_status run_losses(tn_context *ctx, const losses<T> &l) {
    if (l.rows == 0) { return TN_OK; }
    return l.c <= 1024 ? launch_losses<T, 32>(ctx, l) : launch_losses<T, LONG>(ctx, l);
}

template <typename T, int TEAM>
static tn_status launch_rescale(tn_context *ctx, const tn_desc *dx, const tn_desc *dloss,
                                double ahead) {
    typedef typename tn__compute<T>::type C;
    const unsigned MOST = 1024; /* blocks: what starts only to end must be quick */
    unsigned blocks = tn__team_grid<TEAM>(dx->size[0]);
    return TN_LAUNCH(ctx, (rescale_kernel<T, TEAM, C>), blocks < MOST ? blocks : MOST,
                     tn__team_block<TEAM>(), 0, static_cast<T *>(dx->data), dx->stride[0],
                     dx->stride[1], dx->size[0], dx->size[1], static_cast<const C *>(dloss->data),
                     (C)ahead);
}

template <typename T>
static tn_status run_rescale(tn_context *ctx, const tn_desc *dx, const tn_desc *dloss,
                             double ahead) {
    if (dx->size[0] == 0 || dx->size[1] == 0) { return TN_OK; }
    return dx->size[1] <= 1024 ? launch_rescale<T, 32>(ctx, dx, dloss, ahead)
                               : launch_rescale<T, LONG>(ctx, dx, dloss, ahead);
}

template <typename T> static tn_status run_forward(const tn_op_call *c) {
    typedef typename tn__compute<T>::type C;
    const tn_cross_entropy_args *args = (const tn_cross_entropy_args *)c->args;
    bool ahead = args->ahead != 0;
    losses<T> l = losses_of<T>(c->ctx, ahead ? c->y[3] : NULL, c->y[0], c->y[1], c->y[2], c->x[0],
                               c->x[1], args);
    l.backward = false;
    l.ahead = ahead ? static_cast<const C *>(c->y[4]->data) : NULL;
    return run_losses(c->ctx, l);
}

static tn_status cross_entropy_forward(const tn_op_call *c) {
    TN_FLOATS(c->x[0]->dtype, return run_forward<T>(c));
}

static tn_status cross_entropy_backward(const tn_op_back *b) {
    double ahead = ((const tn_cross_entropy_args *)b->args)->ahead;
    if (ahead != 0) {
        TN_FLOATS(b->dx[0]->dtype, return run_rescale<T>(b->ctx, b->dx[0], b->dy[0], ahead));
    }
    TN_FLOATS(b->x[0]->dtype,
              return run_losses(b->ctx, losses_of<T>(b->ctx, b->dx[0], b->dy[0], b->y[1], b->y[2],
                                                     b->x[0], b->x[1], b->args)));
}

const tn_op_kernel tn__cuda_op_cross_entropy = {cross_entropy_forward, cross_entropy_backward};
