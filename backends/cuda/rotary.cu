/* Rotary positions (ops/nn/rotary.c has the formulas): a thread turns one pair of a time step, with
 * the same cosine and sine in all heads. */
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/rotary.h"

struct turning {
    tn_desc y, x, positions; /* (B, H, T, D), (B, H, T, D), (B, T) */
    tn_rotary_args args;
};

template <typename T> __global__ void __launch_bounds__(TN__LOOP_BLOCK) rotary_kernel(turning r) {
    typedef typename tn__compute<T>::type C;
    int64_t columns = r.x.size[2], half = r.x.size[3] / 2, pairs = r.x.size[0] * columns * half;
    int64_t n = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x;
    for (; n < pairs; n += (int64_t)gridDim.x * TN__LOOP_BLOCK) {
        int64_t i = n % half, t = n / half % columns, b = n / half / columns;
        int64_t at = b * r.positions.stride[0] + t * r.positions.stride[1];
        double angle = (double)tn__get_integer(r.positions.data, r.positions.dtype, at) *
                       tn__rotary_frequency(&r.args, i, half);
        C cosine = (C)cos(angle), sine = (C)(r.args.inverse ? -sin(angle) : sin(angle));
        const T *x = (const T *)r.x.data + b * r.x.stride[0] + t * r.x.stride[2];
        T *y = (T *)r.y.data + b * r.y.stride[0] + t * r.y.stride[2];
        int64_t from = half * r.x.stride[3], to = half * r.y.stride[3];
        for (int64_t h = 0; h < r.x.size[1]; h++) {
            const T *p = x + h * r.x.stride[1] + i * r.x.stride[3];
            T *q = y + h * r.y.stride[1] + i * r.y.stride[3];
            C first = tn__load(p[0]), second = tn__load(p[from]);
            q[0] = tn__store<T, C>(first * cosine - second * sine);
            q[to] = tn__store<T, C>(second * cosine + first * sine);
        }
    }
}

static tn_status rotary_forward(const tn_op_call *c) {
    turning r = {*c->y[0], *c->x[0], tn__rotary_positions(c), *(const tn_rotary_args *)c->args};
    int64_t pairs = r.x.size[0] * r.x.size[2] * (r.x.size[3] / 2);
    if (pairs == 0 || r.x.size[1] == 0) {
        return TN_OK;
    }
    TN_FLOATS(r.x.dtype, return TN_LAUNCH(c->ctx, (rotary_kernel<T>), tn__loop_grid(c->ctx, pairs),
                                          TN__LOOP_BLOCK, 0, r));
}

const tn_op_kernel tn__cuda_op_rotary = {rotary_forward, NULL};
