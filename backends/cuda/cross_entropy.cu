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

#include <algorithm>

struct losses {
    tn_desc x, dx, label;
    tn_desc loss, top, log_sum; /* loss: dloss in backward */
    tn_desc ahead;              /* dloss of all rows for a gradient that the forward makes */
    tn_cross_entropy_args args;
    tn__cuda_fault *fault;
};

/* The column of the row's label. The first bad label is recorded; the row of any bad one is
 * ignored. */
static __device__ __forceinline__ int64_t read_target(const losses &l, int64_t row, bool notes) {
    int64_t label = tn__get_integer(l.label.data, l.label.dtype, row * l.label.stride[0]);
    int64_t target = tn__target_of(&l.args, label, l.x.size[1]);
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
static __device__ __forceinline__ double sum_below(tn__line<T> x, int64_t c, double top) {
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
static __device__ __forceinline__ void write_gradient(const losses &l, int64_t row, int64_t target,
                                                      C g, C top, C log_sum) {
    tn__line<T> x = tn__line_at<T>(l.x, row), dx = tn__line_at<T>(l.dx, row);
    int64_t c = l.x.size[1];
    bool ignored = target == TN__IGNORED;
    C even = (C)(l.args.label_smoothing / (double)c),
      sure = (C)(1 - l.args.label_smoothing + l.args.label_smoothing / (double)c);
    tn__row_map<TEAM>(dx, x, c, [&](int64_t at, C v) {
        return ignored ? (C)0 : g * (exp(v - top - log_sum) - (at == target ? sure : even));
    });
}

/* AHEAD: writes the gradient, too. */
template <typename T, int TEAM, bool AHEAD>
__global__ void __launch_bounds__(tn__team_block<TEAM>()) loss_kernel(losses l) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__per_load<T>;
    TN_SHARED(tn__exps<C>, shared, 32);
    TN_SHARED(double, shared_sum, 32);
    TN_SHARED(C, shared_log, 1);
    int64_t row = tn__team_number<TEAM>();
    if (row >= l.x.size[0]) { return; }
    int64_t target = read_target(l, row, tn__team_lane<TEAM>() == 0);
    tn__line<T> x = tn__line_at<T>(l.x, row);
    int64_t c = l.x.size[1];
    tn__exps<C> total = tn__no_exps<C>();
    tn__each_pack<T, TEAM, 0>(c, [&](int64_t at, int) {
        C v[V];
        tn__pack_load<false>(v, x, at, c, -(C)INFINITY);
        tn__exps_take<V>(total, v);
    });
    total = tn__team_reduce<TEAM>(total, shared, tn__join_exps());
    double top = (double)total.most, below = 0;
    if (l.args.label_smoothing > 0) {
        below = tn__team_reduce<TEAM>(sum_below<T, TEAM>(x, c, top), shared_sum, tn__join_sum());
    }
    C log_total = 0;
    if (tn__team_lane<TEAM>() == 0) {
        double log_sum = log((double)total.sum), value = 0, s = l.args.label_smoothing;
        if (total.most == -(C)INFINITY && c > 0) { log_sum = NAN; /* nothing but -inf */ }
        if (target >= 0) {
            value = (1 - s) * (log_sum - ((double)tn__load(x.data[target * x.stride]) - top));
            value += s > 0 ? s * (log_sum - below / (double)c) : 0; /* 0 times infinity is NaN */
        }
        log_total = (C)log_sum;
        tn__at<C>(l.loss, row) = (C)value;
        tn__at<C>(l.top, row) = total.most;
        tn__at<C>(l.log_sum, row) = log_total;
    }
    if (AHEAD) {
        log_total = from_first<TEAM>(log_total, shared_log);
        write_gradient<T, TEAM>(l, row, target, *static_cast<const C *>(l.ahead.data), total.most,
                                log_total);
    }
}

template <typename T, int TEAM>
__global__ void __launch_bounds__(tn__team_block<TEAM>()) gradient_kernel(losses l) {
    typedef typename tn__compute<T>::type C;
    int64_t row = tn__team_number<TEAM>();
    if (row >= l.x.size[0]) { return; }
    int64_t target = read_target(l, row, tn__team_lane<TEAM>() == 0);
    write_gradient<T, TEAM>(l, row, target, tn__at<C>(l.loss, row), tn__at<C>(l.top, row),
                            tn__at<C>(l.log_sum, row));
}

/* dx = dx dloss / ahead. As a rule the factor is 1, which each block sees for itself: the host does
 * not know. */
template <typename T, int TEAM>
__global__ void __launch_bounds__(tn__team_block<TEAM>())
    rescale_kernel(tn_desc dx, const typename tn__compute<T>::type *dloss, double ahead) {
    typedef typename tn__compute<T>::type C;
    C factor = *dloss / (C)ahead;
    int64_t teams = (int64_t)gridDim.x * (blockDim.x / TEAM);
    TN_NO_UNROLL
    for (int64_t i = tn__team_number<TEAM>(); factor != 1 && i < dx.size[0]; i += teams) {
        tn__line<T> line = tn__line_at<T>(dx, i);
        tn__row_map<TEAM>(line, line, dx.size[1], [&](int64_t, C v) { return v * factor; });
    }
}

/* Runs the statement with TEAM as the threads of a row of c elements. */
#define BY_LENGTH(c, ...)         \
    if ((c) <= 1024) {            \
        constexpr int TEAM = 32;  \
        __VA_ARGS__;              \
    } else {                      \
        constexpr int TEAM = 512; \
        __VA_ARGS__;              \
    }

template <typename T> static tn_status run_forward(tn_context *ctx, const losses &l) {
    int64_t rows = l.x.size[0];
    if (rows == 0) { return TN_OK; }
    BY_LENGTH(l.x.size[1], unsigned grid = tn__team_grid<TEAM>(rows);
              return l.ahead.data ? TN_LAUNCH(ctx, (loss_kernel<T, TEAM, true>), grid,
                                              tn__team_block<TEAM>(), 0, l)
                                  : TN_LAUNCH(ctx, (loss_kernel<T, TEAM, false>), grid,
                                              tn__team_block<TEAM>(), 0, l));
}

template <typename T> static tn_status run_backward(tn_context *ctx, const losses &l) {
    if (l.x.size[0] == 0) { return TN_OK; }
    BY_LENGTH(l.x.size[1],
              return TN_LAUNCH(ctx, (gradient_kernel<T, TEAM>), tn__team_grid<TEAM>(l.x.size[0]),
                               tn__team_block<TEAM>(), 0, l));
}

template <typename T>
static tn_status run_rescale(tn_context *ctx, const tn_desc *dx, const tn_desc *dloss,
                             double ahead) {
    typedef typename tn__compute<T>::type C;
    const unsigned MOST = 1024; /* blocks: what starts only to end must be quick */
    int64_t rows = dx->size[0];
    if (rows == 0 || dx->size[1] == 0) { return TN_OK; }
    BY_LENGTH(dx->size[1],
              return TN_LAUNCH(ctx, (rescale_kernel<T, TEAM>),
                               std::min(tn__team_grid<TEAM>(rows), MOST), tn__team_block<TEAM>(), 0,
                               *dx, static_cast<const C *>(dloss->data), ahead));
}

/* With dloss for the loss in backward. */
static losses losses_of(tn_context *ctx, const tn_desc *dx, const tn_desc *loss,
                        const tn_desc *const *y, const tn_desc *const *x, const void *args) {
    losses l = {};
    l.x = tn__given(x[0]);
    l.dx = tn__given(dx);
    l.label = tn__given(x[1]);
    l.loss = tn__given(loss);
    l.top = tn__given(y[1]);
    l.log_sum = tn__given(y[2]);
    l.args = *(const tn_cross_entropy_args *)args;
    l.fault = tn__cuda_device_of(ctx)->fault_on_device;
    return l;
}

static tn_status cross_entropy_forward(const tn_op_call *c) {
    bool ahead = ((const tn_cross_entropy_args *)c->args)->ahead != 0;
    losses l = losses_of(c->ctx, ahead ? c->y[3] : NULL, c->y[0], c->y, c->x, c->args);
    l.ahead = tn__given(ahead ? c->y[4] : NULL);
    TN_FLOATS(l.x.dtype, return run_forward<T>(c->ctx, l));
}

static tn_status cross_entropy_backward(const tn_op_back *b) {
    double ahead = ((const tn_cross_entropy_args *)b->args)->ahead;
    if (ahead != 0) {
        TN_FLOATS(b->dx[0]->dtype, return run_rescale<T>(b->ctx, b->dx[0], b->dy[0], ahead));
    }
    losses l = losses_of(b->ctx, b->dx[0], b->dy[0], b->y, b->x, b->args);
    TN_FLOATS(l.x.dtype, return run_backward<T>(b->ctx, l));
}

const tn_op_kernel tn__cuda_op_cross_entropy = {cross_entropy_forward, cross_entropy_backward};
