/* Rotary positions (ops/nn/rotary.c has the formulas): a thread turns one pair of a time step, with
 * the same cosine and sine in some heads: in all where there are many pairs, in one where there are
 * few. rotary_qkv's heads are those of q, then of k, then of v, which are only copied.
 */
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/rotary.h"

enum { PARTS = 3 };

struct turned_heads {
    tn_desc y, x;  /* (B, heads, T, D) */
    int64_t first; /* the number of the first of them */
    bool turns;
};

struct turning {
    turned_heads parts[PARTS];
    tn_desc positions;      /* (B, T) */
    int64_t heads, columns; /* in all; T */
    int64_t half, each;     /* D / 2; heads of a thread */
    int64_t threads;
    tn_rotary_args args;
};

/* A pair of head h. */
template <typename T, typename C>
static __device__ __forceinline__ void turn_pair(const turned_heads &p, int64_t b, int64_t h,
                                                 int64_t t, int64_t i, int64_t half, C cosine,
                                                 C sine) {
    const T *x = (const T *)p.x.data + b * p.x.stride[0] + h * p.x.stride[1] + t * p.x.stride[2] +
                 i * p.x.stride[3];
    T *y = (T *)p.y.data + b * p.y.stride[0] + h * p.y.stride[1] + t * p.y.stride[2] +
           i * p.y.stride[3];
    int64_t from = half * p.x.stride[3], to = half * p.y.stride[3];
    C first = tn__load(x[0]), second = tn__load(x[from]);
    y[0] = p.turns ? tn__store<T, C>(first * cosine - second * sine) : x[0];
    y[to] = p.turns ? tn__store<T, C>(second * cosine + first * sine) : x[from];
}

template <typename T> __global__ void __launch_bounds__(TN__LOOP_BLOCK) rotary_kernel(turning r) {
    typedef typename tn__compute<T>::type C;
    int64_t n = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x;
    for (; n < r.threads; n += (int64_t)gridDim.x * TN__LOOP_BLOCK) {
        int64_t i = n % r.half, t = n / r.half % r.columns, rest = n / r.half / r.columns;
        int64_t groups = tn__ceil_div(r.heads, r.each), b = rest / groups;
        int64_t at = b * r.positions.stride[0] + t * r.positions.stride[1];
        double angle = (double)tn__get_integer(r.positions.data, r.positions.dtype, at) *
                       tn__rotary_frequency(&r.args, i, r.half);
        C cosine = (C)cos(angle), sine = (C)(r.args.inverse ? -sin(angle) : sin(angle));
        int64_t h = rest % groups * r.each, end = h + r.each < r.heads ? h + r.each : r.heads;
        for (; h < end; h++) {
            const turned_heads &p = h >= r.parts[2].first   ? r.parts[2]
                                    : h >= r.parts[1].first ? r.parts[1]
                                                            : r.parts[0];
            turn_pair<T>(p, b, h - p.first, t, i, r.half, cosine, sine);
        }
    }
}

/* The first `parts` operands of c. */
template <int parts> static tn_status turn_parts(const tn_op_call *c) {
    turning r;
    r.args = *(const tn_rotary_args *)c->args;
    r.positions = tn__rotary_positions(c->x[0], c->x[parts]);
    r.heads = 0;
    r.columns = c->x[0]->size[2];
    r.half = c->x[0]->size[3] / 2;
    for (int i = 0; i < PARTS; i++) {
        int from = i < parts ? i : 0;
        r.parts[i].y = *c->y[from];
        r.parts[i].x = *c->x[from];
        r.parts[i].first = i < parts ? r.heads : INT64_MAX;
        r.parts[i].turns = i < 2;
        r.heads += i < parts ? c->x[i]->size[1] : 0;
        if (c->x[from]->dtype != c->x[0]->dtype || c->y[from]->dtype != c->x[0]->dtype) {
            return TN_EUNSUPPORTED;
        }
    }
    int64_t pairs = c->x[0]->size[0] * r.columns * r.half;
    int64_t wanted = (int64_t)tn__cuda_device_of(c->ctx)->processors * 2 * TN__LOOP_BLOCK;
    if (pairs == 0 || r.heads == 0) { return TN_OK; }
    r.each = r.heads * pairs / wanted;
    r.each = r.each < 1 ? 1 : r.each < r.heads ? r.each : r.heads;
    r.threads = pairs * tn__ceil_div(r.heads, r.each);
    TN_FLOATS(c->x[0]->dtype,
              return TN_LAUNCH(c->ctx, (rotary_kernel<T>), tn__loop_grid(c->ctx, r.threads),
                               TN__LOOP_BLOCK, 0, r));
}

const tn_op_kernel tn__cuda_op_rotary = {turn_parts<1>, NULL};
const tn_op_kernel tn__cuda_op_rotary_qkv = {turn_parts<PARTS>, NULL};
