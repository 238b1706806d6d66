/* Batch norm and its gradient (ops/nn/batch_norm.c has the formulas): a block takes one channel
 * after another, its threads that channel's elements in row-major order, whatever the strides.
 *
 * x is read three times, for the mean, the variance and y; the gradient reads x and dy twice. With
 * few channels a large GPU is partly idle.
 */
#include "backends/batch_norm.h"
#include "backends/cuda/block.cuh"
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"

enum { CHANNEL_BLOCK = 256, CHANNEL_OPERANDS = 3 };

/* One number for each channel, of any float dtype; data NULL: absent. */
struct channel_vector {
    void *data;
    tn_dtype dtype;
    int64_t stride;

    __device__ __forceinline__ double get(int64_t channel, double otherwise) const {
        return data ? tn__get_float(data, dtype, channel * stride) : otherwise;
    }
    __device__ __forceinline__ void put(int64_t channel, double value) const {
        if (data) {
            tn__put(data, dtype, channel * stride, value);
        }
    }
};

/* A walk over a channel's elements in up to three operands, whose channels are `step` apart.
 * Forward: x and y; backward: x, dy and, if wanted, dx. */
struct channel_job {
    tn__walk walk;
    int64_t step[CHANNEL_OPERANDS], channels;
    channel_vector mean, var, w, b, dw, db;
    double eps;
    bool given, wants_dx;
};

enum { X, Y, DY = Y, DX };

/* f(x, second, third) for each of this thread's elements of the channel. */
template <typename T, typename F>
static __device__ __forceinline__ void each_element(const channel_job &j, int64_t channel, F f) {
    T *first[CHANNEL_OPERANDS];
    for (int k = 0; k < CHANNEL_OPERANDS; k++) {
        first[k] = (T *)j.walk.data[k] + channel * j.step[k];
    }
    TN_ROLLED
    for (int64_t i = threadIdx.x; i < j.walk.count; i += CHANNEL_BLOCK) {
        int64_t at[CHANNEL_OPERANDS];
        tn__walk_to(j.walk, i, at);
        f(first[X] + at[X], first[Y] + at[Y], first[DX] + at[DX]);
    }
}

/* Of x. Its first element is subtracted before summing: the mean of equal elements is exact. */
template <typename T, typename C>
static __device__ void channel_moments(const channel_job &j, int64_t channel, C *shared, C *mean,
                                       C *var) {
    C first = j.walk.count > 0 ? tn__load(((const T *)j.walk.data[X])[channel * j.step[X]]) : 0;
    C sum = 0, squares = 0;
    each_element<T>(j, channel, [&](const T *x, T *, T *) { sum += tn__load(*x) - first; });
    *mean = first + tn__team_reduce<CHANNEL_BLOCK>(sum, shared, tn__join_sum()) / (C)j.walk.count;
    each_element<T>(j, channel, [&](const T *x, T *, T *) {
        C centred = tn__load(*x) - *mean;
        squares += centred * centred;
    });
    *var = tn__team_reduce<CHANNEL_BLOCK>(squares, shared, tn__join_sum()) / (C)j.walk.count;
}

template <typename T>
__global__ void __launch_bounds__(CHANNEL_BLOCK) batch_norm_kernel(channel_job j) {
    typedef typename tn__compute<T>::type C;
    TN_SHARED(C, shared, 32);
    for (int64_t channel = blockIdx.x; channel < j.channels; channel += gridDim.x) {
        C mean, var;
        if (j.given) {
            mean = (C)j.mean.get(channel, 0);
            var = (C)j.var.get(channel, 0);
        } else {
            channel_moments<T>(j, channel, shared, &mean, &var);
        }
        C scale = (C)j.w.get(channel, 1) / tn__sqrt(var + (C)j.eps), b = (C)j.b.get(channel, 0);
        each_element<T>(j, channel, [&](const T *x, T *y, T *) {
            *y = tn__store<T>((tn__load(*x) - mean) * scale + b);
        });
        if (!j.given && threadIdx.x == 0) {
            j.mean.put(channel, mean);
            j.var.put(channel, var);
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(CHANNEL_BLOCK) batch_norm_backward_kernel(channel_job j) {
    typedef typename tn__compute<T>::type C;
    TN_SHARED(tn__two<C>, shared, 32);
    for (int64_t channel = blockIdx.x; channel < j.channels; channel += gridDim.x) {
        C mean = (C)j.mean.get(channel, 0);
        C rstd = 1 / tn__sqrt((C)j.var.get(channel, 0) + (C)j.eps);
        tn__two<C> sums = {0, 0}; /* of dy, and of dy h */
        each_element<T>(j, channel, [&](const T *x, const T *dy, T *) {
            C g = tn__load(*dy);
            sums = sums + tn__two<C>{g, g * (tn__load(*x) - mean) * rstd};
        });
        sums = tn__team_reduce<CHANNEL_BLOCK>(sums, shared, tn__join_sum());
        if (threadIdx.x == 0) {
            j.db.put(channel, sums.a);
            j.dw.put(channel, sums.b);
        }
        if (!j.wants_dx) {
            continue;
        }
        C share = j.given ? 0 : sums.a / (C)j.walk.count;
        C share_h = j.given ? 0 : sums.b / (C)j.walk.count;
        C scale = (C)j.w.get(channel, 1) * rstd;
        each_element<T>(j, channel, [&](const T *x, const T *dy, T *dx) {
            C h = (tn__load(*x) - mean) * rstd;
            *dx = tn__store<T>(scale * (tn__load(*dy) - share - h * share_h));
        });
    }
}

/* ---- Entries --------------------------------------------------------------------------------- */

static channel_vector channel_vector_of(const tn_desc *d) {
    return d ? channel_vector{d->data, d->dtype, d->stride[0]} : channel_vector{NULL, TN_F32, 0};
}

/* An operand (n, c, …) without its channel dimension. */
static tn_desc without_channels(const tn_desc *d) {
    tn_desc places = *d;
    places.ndim--;
    for (int i = 1; i < places.ndim; i++) {
        places.size[i] = d->size[i + 1];
        places.stride[i] = d->stride[i + 1];
    }
    return places;
}

static channel_job channel_job_of(const tn_desc *x, const tn_desc *second, const tn_desc *third) {
    const tn_desc *operand[CHANNEL_OPERANDS] = {x, second, third};
    tn_desc places[CHANNEL_OPERANDS];
    const tn_desc *op[CHANNEL_OPERANDS];
    channel_job job = {};
    for (int i = 0; i < CHANNEL_OPERANDS; i++) {
        places[i] = without_channels(operand[i]);
        op[i] = &places[i];
        job.step[i] = operand[i]->stride[1];
    }
    job.walk = tn__cuda_walk(CHANNEL_OPERANDS, op);
    job.channels = x->size[1];
    return job;
}

/* All operands given have float dtypes. */
static tn_status batch_norm_forward(const tn_op_call *c) {
    const tn_desc *x = c->x[0];
    tn__batch_moments s = tn__batch_moments_of(c->x, c->y, c->args);
    channel_job job = channel_job_of(x, c->y[0], c->y[0]);
    job.mean = channel_vector_of(s.mean);
    job.var = channel_vector_of(s.var);
    job.w = channel_vector_of(c->x[1]);
    job.b = channel_vector_of(c->x[2]);
    job.eps = s.eps;
    job.given = s.given;
    TN_FLOATS(x->dtype, return job.channels == 0
                                   ? TN_OK
                                   : TN_LAUNCH(c->ctx, (batch_norm_kernel<T>),
                                               (unsigned)job.channels, CHANNEL_BLOCK, 0, job));
}

static tn_status batch_norm_backward(const tn_op_back *b) {
    const tn_desc *x = b->x[0], *dx = b->dx[0];
    tn__batch_moments s = tn__batch_moments_of(b->x, b->y, b->args);
    if (tn__batch_norm_refuses(b)) {
        return TN_EUNSUPPORTED;
    }
    channel_job job = channel_job_of(x, b->dy[0], dx ? dx : x);
    job.mean = channel_vector_of(s.mean);
    job.var = channel_vector_of(s.var);
    job.w = channel_vector_of(b->x[1]);
    job.dw = channel_vector_of(b->dx[1]);
    job.db = channel_vector_of(b->dx[2]);
    job.eps = s.eps;
    job.given = s.given;
    job.wants_dx = dx != NULL;
    TN_FLOATS(x->dtype, return job.channels == 0
                                   ? TN_OK
                                   : TN_LAUNCH(b->ctx, (batch_norm_backward_kernel<T>),
                                               (unsigned)job.channels, CHANNEL_BLOCK, 0, job));
}

const tn_op_kernel tn__cuda_op_batch_norm = {batch_norm_forward, batch_norm_backward};
const tn_op_kernel tn__cuda_op_batch_norm_given = {batch_norm_forward, batch_norm_backward};
