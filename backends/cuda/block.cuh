/* Reductions over the threads of a warp or a block, in a fixed order.
 *
 * A team is the threads that work on one row: a warp (TEAM 32, several teams per block) or a whole
 * block (TEAM 64 … 1024, a power of two). Lanes exchange values in butterflies, warps through
 * `shared`, so every thread of the team gets the result, and the same one if the join is bitwise
 * commutative. All threads of a team must call.
 *
 *     TN_SHARED(float, shared, 32);
 *     float sum = tn__team_reduce<TEAM>(mine, shared, tn__join_sum());
 */
#ifndef TERN_BACKENDS_CUDA_BLOCK_CUH
#define TERN_BACKENDS_CUDA_BLOCK_CUH

#include "backends/cuda/kernel.h"

#include <math.h>
#include <string.h>

/* ---- Joins: two partial results into one ----------------------------------------------------- */

struct tn__join_sum {
    template <typename V> __device__ __forceinline__ V operator()(V a, V b) const { return a + b; }
};

/* Two sums at once. */
template <typename C> struct tn__two {
    C a, b;
    __device__ __forceinline__ tn__two operator+(tn__two other) const {
        return {a + other.a, b + other.b};
    }
};

/* The larger one; NaN loses. A softmax subtracts this. */
struct tn__join_top {
    template <typename V> __device__ __forceinline__ V operator()(V a, V b) const {
        return fmax(a, b);
    }
};

/* The largest of some numbers x and the sum of exp(x - most): log sum exp(x) = most + log(sum). NaN
 * and infinities go into the sum. */
template <typename C> struct tn__exps { C most, sum; };

template <typename C> static __device__ __forceinline__ tn__exps<C> tn__no_exps() {
    return {-(C)INFINITY, 0};
}

/* Adds V numbers to the total. */
template <int V, typename C>
static __device__ __forceinline__ void tn__exps_take(tn__exps<C> &total, const C *x) {
    C most = total.most, sum = 0;
    TN_UNROLL
    for (int k = 0; k < V; k++) {
        most = fmax(most, x[k]);
    }
    C shift = most == -(C)INFINITY ? (C)0 : most;
    TN_UNROLL
    for (int k = 0; k < V; k++) {
        sum += exp(x[k] - shift);
    }
    C scale = total.most == most ? (C)1 : exp(total.most - shift);
    total = {most, total.sum * scale + sum};
}

struct tn__join_exps {
    template <typename C>
    __device__ __forceinline__ tn__exps<C> operator()(tn__exps<C> a, tn__exps<C> b) const {
        bool first = a.most >= b.most;
        tn__exps<C> high = first ? a : b, low = first ? b : a;
        C scale = low.most == -(C)INFINITY ? (C)1 : exp(low.most - high.most);
        return {high.most, high.sum + low.sum * scale};
    }
};

/* A number and its position: the largest wins, NaN above all, and the first of equal ones. */
template <typename V> struct tn__place {
    V value;
    long long at;
};

struct tn__join_place {
    template <typename V>
    __device__ __forceinline__ tn__place<V> operator()(tn__place<V> a, tn__place<V> b) const {
        bool odd_a = a.value != a.value, odd_b = b.value != b.value;
        bool same = (odd_a && odd_b) || a.value == b.value;
        bool larger = (odd_a && !odd_b) || a.value > b.value;
        return larger || (same && a.at < b.at) ? a : b;
    }
};

/* ---- Teams ----------------------------------------------------------------------------------- */

/* Another lane's v: a number, or a struct of them, of whole 32-bit words. */
template <typename V> static __device__ __forceinline__ V tn__lane_xor(V v, int mask) {
    uint32_t word[sizeof(V) / 4];
    memcpy(word, &v, sizeof(v));
    for (uint32_t &w : word) {
        w = __shfl_xor_sync(TN_FULL, w, mask);
    }
    memcpy(&v, word, sizeof(v));
    return v;
}

/* This thread's number in its team, and the team's in the grid. */
template <int TEAM> static __device__ __forceinline__ int tn__team_lane() {
    return (int)(threadIdx.x % TEAM);
}
template <int TEAM> static __device__ __forceinline__ int64_t tn__team_number() {
    return (int64_t)blockIdx.x * (blockDim.x / TEAM) + threadIdx.x / TEAM;
}

/* shared: TEAM / 32 elements, unused if the team is one warp. It may be reused at once. */
template <int TEAM, typename V, typename Join>
static __device__ __forceinline__ V tn__team_reduce(V v, V *shared, Join join) {
    for (int mask = 16; mask > 0; mask /= 2) {
        v = join(v, tn__lane_xor(v, mask));
    }
    if (TEAM > 32) {
        const int warps = TEAM / 32;
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        __syncthreads();
        if (lane == 0) { shared[warp] = v; }
        __syncthreads();
        v = shared[lane % warps];
        for (int mask = warps / 2; mask > 0; mask /= 2) {
            v = join(v, tn__lane_xor(v, mask));
        }
    }
    return v;
}

#endif
