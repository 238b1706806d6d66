/* Cross-entropy of logits with labels, forward and backward (ops/loss/cross_entropy.c has the
 * formulas).
 *
 * A team of threads takes one row. Forward reads it once, with a running maximum, and once more
 * when labels are smoothed. Backward reads it once and writes the gradient, in place if requested.
 * A bad label is recorded in the device's fault cell and its row is treated as ignored, so that a
 * step which runs before the error is noticed does no harm.
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
    if (target != TN__OUTSIDE) {
        return target;
    }
    if (notes && atomicCAS(&l.fault->raised, 0, 1) == 0) {
        l.fault->position = row;
        l.fault->value = label;
    }
    return TN__IGNORED;
}

template <int TEAM> __host__ __device__ constexpr int block_of() {
    return TEAM == 32 ? TN_WARP_BLOCK : TEAM;
}

/* This thread's part of the sum of x - top, in double: next to a large logit f32 would lose the
 * others. */
template <typename T, int TEAM>
static __device__ __forceinline__ double sum_below(tn__line<const T> x, int64_t c, double top) {
    double sum = 0;
    TN_ROLLED
    for (int64_t i = tn__team_lane<TEAM>(); i < c; i += TEAM) {
        sum += (double)tn__load(x.data[i * x.stride]) - top;
    }
    return sum;
}

template <typename T, int TEAM>
__global__ void __launch_bounds__(block_of<TEAM>()) loss_kernel(losses<T> l) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__pack<T>::size;
    TN_SHARED(tn__exps<C>, shared, 32);
    TN_SHARED(double, shared_sum, 32);
    int64_t row = tn__team_number<TEAM>();
    if (row >= l.rows) {
        return;
    }
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
    if (tn__team_lane<TEAM>() > 0) {
        return;
    }
    double log_sum = log((double)total.sum), value = 0, s = l.args.label_smoothing;
    if (total.most == -(C)INFINITY && l.c > 0) {
        log_sum = NAN; /* nothing but -inf */
    }
    if (target >= 0) {
        value = (1 - s) * (log_sum - ((double)tn__load(x.data[target * x.stride]) - top));
        value += s > 0 ? s * (log_sum - below / (double)l.c) : 0; /* 0 times an infinity is NaN */
    }
    l.loss[row * l.loss_stride] = (C)value;
    l.top[row * l.top_stride] = total.most;
    l.log_sum[row * l.log_sum_stride] = (C)log_sum;
}

/* dx = dloss (exp(x - top - log_sum) - (1 - s) [at the label] - s / c) */
template <typename T, int TEAM>
__global__ void __launch_bounds__(block_of<TEAM>()) gradient_kernel(losses<T> l) {
    typedef typename tn__compute<T>::type C;
    int64_t row = tn__team_number<TEAM>();
    if (row >= l.rows) {
        return;
    }
    int64_t target = read_target(l, row, tn__team_lane<TEAM>() == 0);
    tn__line<T> x = tn__line_of(const_cast<T *>(l.x) + row * l.row, l.column),
                dx = tn__line_of(l.dx + row * l.dx_row, l.dx_column);
    bool ignored = target == TN__IGNORED;
    C g = l.loss[row * l.loss_stride], top = l.top[row * l.top_stride],
      log_sum = l.log_sum[row * l.log_sum_stride], even = (C)(l.args.label_smoothing / (double)l.c),
      sure = (C)(1 - l.args.label_smoothing + l.args.label_smoothing / (double)l.c);
    tn__row_map<TEAM>(dx, x, l.c, [&](int64_t at, C v) {
        return ignored ? (C)0 : g * (tn__exp(v - top - log_sum) - (at == target ? sure : even));
    });
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
    l.fault = tn__cuda_device_of(ctx)->fault_on_device;
    return l;
}

template <typename T> static tn_status run_losses(tn_context *ctx, const losses<T> &l) {
    const int LONG = 512;
    bool shorter = l.c <= 1024, backward = l.backward;
    unsigned grid = shorter ? tn__team_grid<32>(l.rows) : tn__team_grid<LONG>(l.rows);
    if (l.rows == 0) {
        return TN_OK;
    }
    if (backward && shorter) {
        return TN_LAUNCH(ctx, (gradient_kernel<T, 32>), grid, block_of<32>(), 0, l);
    }
    if (backward) {
        return TN_LAUNCH(ctx, (gradient_kernel<T, LONG>), grid, block_of<LONG>(), 0, l);
    }
    if (shorter) {
        return TN_LAUNCH(ctx, (loss_kernel<T, 32>), grid, block_of<32>(), 0, l);
    }
    return TN_LAUNCH(ctx, (loss_kernel<T, LONG>), grid, block_of<LONG>(), 0, l);
}

static tn_status cross_entropy_forward(const tn_op_call *c) {
    TN_FLOATS(c->x[0]->dtype,
              return run_losses(c->ctx, losses_of<T>(c->ctx, NULL, c->y[0], c->y[1], c->y[2],
                                                     c->x[0], c->x[1], c->args)));
}

static tn_status cross_entropy_backward(const tn_op_back *b) {
    TN_FLOATS(b->x[0]->dtype,
              return run_losses(b->ctx, losses_of<T>(b->ctx, b->dx[0], b->dy[0], b->y[1], b->y[2],
                                                     b->x[0], b->x[1], b->args)));
}

const tn_op_kernel tn__cuda_op_cross_entropy = {cross_entropy_forward, cross_entropy_backward};
