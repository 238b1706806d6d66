/* Pooling and its gradients (ops/pool/): a thread computes one element of the result at a time. In
 * a gradient it visits the windows that may contain its element one after another, so no two
 * threads add to one element.
 */
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/pool.h"

/* An operand (N, C, …) with three spatial dimensions; missing ones come first. */
struct planes {
    void *data;
    int64_t sample, channel, stride[3];

    template <typename T> __device__ __forceinline__ T *plane(int64_t n, int64_t c) const {
        return (T *)data + n * sample + c * channel;
    }
    __device__ __forceinline__ int64_t offset(const int64_t *at) const {
        return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
    }
};

/* `to` is computed from `from`. */
struct pooling {
    planes to, from, index;
    bool has_index;
    int64_t channels, count; /* elements of `to` */
    tn_pool_args args;
};

/* Element `number` of `to`, whose planes have these sizes. */
struct pool_place {
    int64_t n, c, at[3];
};
static __device__ __forceinline__ pool_place pool_place_at(const pooling &p, const int64_t *size,
                                                           int64_t number) {
    pool_place place;
    for (int d = 2; d >= 0; d--) {
        place.at[d] = number % size[d];
        number /= size[d];
    }
    place.c = number % p.channels;
    place.n = number / p.channels;
    return place;
}

/* Loops over the elements of `to` that this thread computes. */
#define EACH_NUMBER(number, count)                                                              \
    for (int64_t number = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x; number < (count); \
         number += (int64_t)gridDim.x * TN__LOOP_BLOCK)

/* f(at) for each place of three ranges, in row-major order; their elements are `step` apart. */
template <typename R, typename F>
static __device__ __forceinline__ void each_place(const R (&range)[3], const int64_t (&step)[3],
                                                  F f) {
    for (int64_t i = 0; i < range[0].count; i++) {
        for (int64_t j = 0; j < range[1].count; j++) {
            for (int64_t k = 0; k < range[2].count; k++) {
                int64_t at[] = {range[0].first + i * step[0], range[1].first + j * step[1],
                                range[2].first + k * step[2]};
                f(at);
            }
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(TN__LOOP_BLOCK, 2) max_pool_kernel(pooling p) {
    typedef typename tn__compute<T>::type C;
    const tn_pool_args &a = p.args;
    EACH_NUMBER(number, p.count) {
        pool_place to = pool_place_at(p, a.out, number);
        const T *x = p.from.plane<T>(to.n, to.c);
        tn__window w[3];
        for (int d = 0; d < 3; d++) {
            w[d] = tn__window_at(&a, d, to.at[d]);
        }
        C best = -(C)INFINITY;
        int64_t found = -1;
        each_place(w, a.dilation, [&](const int64_t *at) {
            C v = tn__load(x[p.from.offset(at)]);
            if (v > best || v != v || found < 0) {
                best = v;
                found = (at[0] * a.in[1] + at[1]) * a.in[2] + at[2];
            }
        });
        p.to.plane<T>(to.n, to.c)[p.to.offset(to.at)] = tn__store<T>(best);
        if (p.has_index) {
            p.index.plane<int32_t>(to.n, to.c)[p.index.offset(to.at)] = (int32_t)found;
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(TN__LOOP_BLOCK, 2) avg_pool_kernel(pooling p) {
    typedef typename tn__compute<T>::type C;
    EACH_NUMBER(number, p.count) {
        pool_place to = pool_place_at(p, p.args.out, number);
        const T *x = p.from.plane<T>(to.n, to.c);
        tn__window w[3];
        for (int d = 0; d < 3; d++) {
            w[d] = tn__window_at(&p.args, d, to.at[d]);
        }
        C sum = 0;
        each_place(w, {1, 1, 1}, [&](const int64_t *at) { sum += tn__load(x[p.from.offset(at)]); });
        p.to.plane<T>(to.n, to.c)[p.to.offset(to.at)] =
            tn__store<T>(sum * (C)tn__window_share(&p.args, w));
    }
}

/* The share of a window's dy that belongs to element `number` of its plane. */
struct largest_share {
    template <typename C>
    static __device__ __forceinline__ C of(const pooling &p, const pool_place &to, int64_t number,
                                           const int64_t *at, C dy) {
        const int32_t *index = p.index.plane<int32_t>(to.n, to.c);
        return index[p.index.offset(at)] == number ? dy : 0;
    }
};
struct mean_share {
    template <typename C>
    static __device__ __forceinline__ C of(const pooling &p, const pool_place &, int64_t,
                                           const int64_t *at, C dy) {
        tn__window w[3];
        for (int d = 0; d < 3; d++) {
            w[d] = tn__window_at(&p.args, d, at[d]);
        }
        return dy * (C)tn__window_share(&p.args, w);
    }
};

template <typename T, typename Share>
__global__ void __launch_bounds__(TN__LOOP_BLOCK, 2) pool_backward_kernel(pooling p) {
    typedef typename tn__compute<T>::type C;
    EACH_NUMBER(number, p.count) {
        pool_place to = pool_place_at(p, p.args.in, number);
        int64_t in_plane = (to.at[0] * p.args.in[1] + to.at[1]) * p.args.in[2] + to.at[2];
        const T *dy = p.from.plane<T>(to.n, to.c);
        tn__places has[3];
        for (int d = 0; d < 3; d++) {
            has[d] = tn__places_of(&p.args, d, to.at[d]);
        }
        C sum = 0;
        each_place(has, {1, 1, 1}, [&](const int64_t *at) {
            C part = tn__load(dy[p.from.offset(at)]);
            sum += Share::of(p, to, in_plane, at, part);
        });
        p.to.plane<T>(to.n, to.c)[p.to.offset(to.at)] = tn__store<T>(sum);
    }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static planes planes_of(const tn_desc *d, int spatial) {
    planes p = {d->data, d->stride[0], d->stride[1], {0, 0, 0}};
    for (int i = 0; i < spatial; i++) {
        p.stride[3 - spatial + i] = d->stride[2 + i];
    }
    return p;
}

static pooling pooling_of(const tn_desc *to, const tn_desc *from, const tn_desc *index,
                          const void *args) {
    const tn_pool_args *a = (const tn_pool_args *)args;
    pooling p = {planes_of(to, a->spatial),
                 planes_of(from, a->spatial),
                 {},
                 index != NULL,
                 to->size[1],
                 1,
                 *a};
    if (index) { p.index = planes_of(index, a->spatial); }
    for (int i = 0; i < to->ndim; i++) {
        p.count *= to->size[i];
    }
    return p;
}

#define POOL_LAUNCH(ctx, kernel, p) \
    ((p).count == 0 ? TN_OK         \
                    : TN_LAUNCH(ctx, kernel, tn__loop_grid(ctx, (p).count), TN__LOOP_BLOCK, 0, p))

static tn_status max_pool_forward(const tn_op_call *c) {
    pooling p = pooling_of(c->y[0], c->x[0], c->y[1], c->args);
    TN_FLOATS(c->y[0]->dtype, return POOL_LAUNCH(c->ctx, (max_pool_kernel<T>), p));
}

static tn_status max_pool_backward(const tn_op_back *b) {
    pooling p = pooling_of(b->dx[0], b->dy[0], b->y[1], b->args);
    TN_FLOATS(b->dx[0]->dtype,
              return POOL_LAUNCH(b->ctx, (pool_backward_kernel<T, largest_share>), p));
}

static tn_status avg_pool_forward(const tn_op_call *c) {
    pooling p = pooling_of(c->y[0], c->x[0], NULL, c->args);
    TN_FLOATS(c->y[0]->dtype, return POOL_LAUNCH(c->ctx, (avg_pool_kernel<T>), p));
}

static tn_status avg_unpool_forward(const tn_op_call *c) {
    pooling p = pooling_of(c->y[0], c->x[0], NULL, c->args);
    TN_FLOATS(c->y[0]->dtype, return POOL_LAUNCH(c->ctx, (pool_backward_kernel<T, mean_share>), p));
}

const tn_op_kernel tn__cuda_op_max_pool = {max_pool_forward, max_pool_backward};
const tn_op_kernel tn__cuda_op_avg_pool = {avg_pool_forward, NULL};
const tn_op_kernel tn__cuda_op_avg_unpool = {avg_unpool_forward, NULL};
