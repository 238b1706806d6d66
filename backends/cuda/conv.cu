/* Convolutions that cuDNN does not take: each thread sums one element of the result at a time, as
 * ref (ref/conv.c) does. Correct on every device, fast on none. The gradient of the bias, the sums
 * of the channels, is always computed here: one block per channel.
 */
#include "backends/cuda/block.cuh"
#include "backends/cuda/conv.h"
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"

/* The operands of conv, y, x and the weight w, one of which is the result. */
struct sliding {
    tn_desc y, x, w, b;
    tn_conv_args args;
    bool with_bias;
};

/* An index of 5 dimensions from its row-major number. */
static __device__ __forceinline__ void index_of(const tn_desc &d, int64_t number, int64_t *index) {
    for (int i = 4; i >= 0; i--) {
        index[i] = number % d.size[i];
        number /= d.size[i];
    }
}

static __device__ __forceinline__ int64_t offset_of(const tn_desc &d, int64_t first, int64_t second,
                                                    const int64_t *place) {
    return first * d.stride[0] + second * d.stride[1] + place[0] * d.stride[2] +
           place[1] * d.stride[3] + place[2] * d.stride[4];
}

/* Where offset i of the kernel at place p is in x; false: outside. */
static __device__ __forceinline__ bool place_in_x(const sliding &s, const int64_t *p,
                                                  const int64_t *i, int64_t *at) {
    bool inside = true;
    for (int d = 0; d < 3; d++) {
        at[d] = p[d] * s.args.stride[d] - s.args.padding[d] + i[d] * s.args.dilation[d];
        inside = inside && at[d] >= 0 && at[d] < s.x.size[d + 2];
    }
    return inside;
}

/* The place of the kernel at which its offset i is at place `at` of x; false: there is none. */
static __device__ __forceinline__ bool place_of_kernel(const sliding &s, const int64_t *at,
                                                       const int64_t *i, int64_t *p) {
    bool inside = true;
    for (int d = 0; d < 3; d++) {
        int64_t from = at[d] + s.args.padding[d] - i[d] * s.args.dilation[d];
        p[d] = from / s.args.stride[d];
        inside = inside && from >= 0 && from % s.args.stride[d] == 0 && p[d] < s.y.size[d + 2];
    }
    return inside;
}

/* Offset number `number` of the kernel. */
static __device__ __forceinline__ void kernel_offset(const tn_desc &w, int64_t number, int64_t *i) {
    i[2] = number % w.size[4];
    i[1] = number / w.size[4] % w.size[3];
    i[0] = number / w.size[4] / w.size[3];
}

static __host__ __device__ __forceinline__ int64_t places_of(const tn_desc &d) {
    return d.size[2] * d.size[3] * d.size[4];
}

template <typename T> struct conv_body {
    typedef typename tn__compute<T>::type C;
    static __device__ C run(const sliding &s, const int64_t *k) {
        int64_t in = s.w.size[1], c0 = k[1] / (s.w.size[0] / s.args.groups) * in, i[3], at[3];
        C sum = 0;
        for (int64_t t = 0; t < places_of(s.w); t++) {
            kernel_offset(s.w, t, i);
            if (!place_in_x(s, k + 2, i, at)) { continue; }
            const T *x = (const T *)s.x.data + offset_of(s.x, k[0], c0, at);
            const T *w = (const T *)s.w.data + offset_of(s.w, k[1], 0, i);
            for (int64_t c = 0; c < in; c++) {
                sum += tn__load(x[c * s.x.stride[1]]) * tn__load(w[c * s.w.stride[1]]);
            }
        }
        return sum;
    }
};

template <typename T> struct input_body {
    typedef typename tn__compute<T>::type C;
    static __device__ C run(const sliding &s, const int64_t *k) {
        int64_t in = s.w.size[1], out = s.w.size[0] / s.args.groups, o0 = k[1] / in * out;
        int64_t i[3], p[3];
        C sum = 0;
        for (int64_t t = 0; t < places_of(s.w); t++) {
            kernel_offset(s.w, t, i);
            if (!place_of_kernel(s, k + 2, i, p)) { continue; }
            const T *y = (const T *)s.y.data + offset_of(s.y, k[0], o0, p);
            const T *w = (const T *)s.w.data + offset_of(s.w, o0, k[1] % in, i);
            for (int64_t o = 0; o < out; o++) {
                sum += tn__load(y[o * s.y.stride[1]]) * tn__load(w[o * s.w.stride[0]]);
            }
        }
        return sum;
    }
};

template <typename T> struct weight_body {
    typedef typename tn__compute<T>::type C;
    static __device__ C run(const sliding &s, const int64_t *k) {
        int64_t c = k[0] / (s.w.size[0] / s.args.groups) * s.w.size[1] + k[1], p[3], at[3];
        C sum = 0;
        for (int64_t n = 0; n < s.y.size[0]; n++) {
            for (int64_t t = 0; t < places_of(s.y); t++) {
                kernel_offset(s.y, t, p);
                if (place_in_x(s, p, k + 2, at)) {
                    sum += tn__load(((const T *)s.y.data)[offset_of(s.y, n, k[0], p)]) *
                           tn__load(((const T *)s.x.data)[offset_of(s.x, n, c, at)]);
                }
            }
        }
        return sum;
    }
};

/* Each element of `to`, of type R, is the body's sum, plus the bias if there is one. */
template <typename T, typename R, typename Body>
__global__ void __launch_bounds__(TN__LOOP_BLOCK) conv_kernel(sliding s, tn_desc to) {
    typedef typename tn__compute<T>::type C;
    int64_t count = to.size[0] * to.size[1] * places_of(to), k[5];
    int64_t n = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x;
    for (; n < count; n += (int64_t)gridDim.x * TN__LOOP_BLOCK) {
        index_of(to, n, k);
        C sum = Body::run(s, k);
        if (s.with_bias) { sum += tn__load(((const T *)s.b.data)[k[1] * s.b.stride[0]]); }
        ((R *)to.data)[offset_of(to, k[0], k[1], k + 2)] = tn__store<R, C>(sum);
    }
}

template <typename T, typename R, template <typename> class Body>
static tn_status run_sums(tn_context *ctx, const sliding &s, const tn_desc *to) {
    int64_t count = to->size[0] * to->size[1] * places_of(*to);
    return count == 0 ? TN_OK
                      : TN_LAUNCH(ctx, (conv_kernel<T, R, Body<T>>), tn__loop_grid(ctx, count),
                                  TN__LOOP_BLOCK, 0, s, *to);
}

template <typename T>
static tn_status run_own(tn_context *ctx, const sliding &s, tn__conv_result result) {
    switch (result) {
    case TN__CONV_Y:
        return run_sums<T, T, conv_body>(ctx, s, &s.y);
    case TN__CONV_X:
        return run_sums<T, T, input_body>(ctx, s, &s.x);
    default:
        return s.w.dtype == s.y.dtype
                   ? run_sums<T, T, weight_body>(ctx, s, &s.w)
                   : run_sums<T, typename tn__compute<T>::type, weight_body>(ctx, s, &s.w);
    }
}

extern "C" tn_status tn__cuda_own_conv(tn_context *ctx, const tn__cuda_conv_call *c) {
    sliding s = {*c->y, *c->x, *c->w, {}, *c->args, c->b != NULL};
    if (c->b) { s.b = *c->b; }
    TN_FLOATS(c->y->dtype, return run_own<T>(ctx, s, c->result));
}

/* ---- The bias -------------------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(TN__LOOP_BLOCK) bias_kernel(tn_desc y, tn_desc db) {
    TN_SHARED(double, shared, 32);
    int64_t o = blockIdx.x, count = y.size[0] * places_of(y), k[5];
    tn_desc channel = y;
    channel.size[1] = 1;
    double sum = 0;
    TN_NO_UNROLL
    for (int64_t i = threadIdx.x; i < count; i += TN__LOOP_BLOCK) {
        index_of(channel, i, k);
        sum += (double)tn__load(((const T *)y.data)[offset_of(y, k[0], o, k + 2)]);
    }
    sum = tn__team_reduce<TN__LOOP_BLOCK>(sum, shared, tn__join_sum());
    if (threadIdx.x == 0) { tn__put(db.data, db.dtype, o * db.stride[0], sum); }
}

extern "C" tn_status tn__cuda_conv_bias(tn_context *ctx, const tn_desc *db, const tn_desc *y) {
    TN_FLOATS(y->dtype, return db->size[0] == 0
                                   ? TN_OK
                                   : TN_LAUNCH(ctx, (bias_kernel<T>), (unsigned)db->size[0],
                                               TN__LOOP_BLOCK, 0, *y, *db));
}
