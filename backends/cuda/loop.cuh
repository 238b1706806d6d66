/* Walks over strided operands, for kernels that process elements one by one.
 *
 * A tn__loop goes over up to four operands in whatever order suits memory: dimensions are sorted by
 * the output's strides and merged where one continues the other in every operand. Most operands end
 * up with one dimension; a bias row or a slice with two. Offsets have 32 bits: the host cuts larger
 * loops into pieces.
 *
 *     struct scale {                                        a body: what is done for V elements
 *         float k;
 *         template <int V> __device__ void run(const tn__loop_place &at) const {
 *             tn__elements<float, V> x = at.read<float, V>(1), y;
 *             for (int i = 0; i < V; i++) {
 *                 y.at[i] = k * x.at[i];
 *             }
 *             at.write(0, y);
 *         }
 *     };
 *     return tn__loop_run<4>(ctx, 2, {y, x}, scale{k});
 *
 * The body runs for V adjacent elements if each operand's inner dimension is dense (or a broadcast
 * input) and its runs are aligned, and for single elements otherwise. y may be the memory of an
 * input: a body reads its elements before it writes.
 *
 * A tn__walk goes in row-major order, for kernels to which an element's number matters (random
 * numbers, indices). Its offsets have 64 bits.
 */
#ifndef TERN_BACKENDS_CUDA_LOOP_CUH
#define TERN_BACKENDS_CUDA_LOOP_CUH

#include "backends/cuda/kernel.h"
#include "backends/cuda/loop.h"

enum { TN__LOOP_BLOCK = 256 };

/* Blocks for this many threads' work: at most a few waves, since kernels loop over the rest. */
static inline unsigned tn__loop_grid(tn_context *ctx, int64_t threads) {
    int64_t blocks = tn__ceil_div(threads, TN__LOOP_BLOCK);
    int64_t most = (int64_t)tn__cuda_device_of(ctx)->processors * 16;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* ---- Loops ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t tn__divide(uint32_t n, const tn__divisor &d) {
    return ((uint32_t)((uint64_t)n * d.factor >> 32) + n) >> d.shift;
}

/* The position of a body in the operands. */
struct tn__loop_place {
    const tn__plan &plan;
    uint32_t at[TN__OPERANDS]; /* in elements */

    __device__ __forceinline__ tn__loop_place(const tn__plan &p, uint32_t pack)
        : plan(p), at{0, 0, 0, 0} {
        TN_NO_UNROLL
        for (int d = 0; d < plan.ndim; d++) {
            uint32_t rest = d + 1 < plan.ndim ? tn__divide(pack, plan.size[d]) : 0;
            uint32_t index = pack - rest * plan.size[d].size;
            for (int k = 0; k < TN__OPERANDS; k++) {
                at[k] += index * plan.stride[k][d];
            }
            pack = rest;
        }
    }
    template <typename T> __device__ __forceinline__ T *address(int operand) const {
        return (T *)plan.data[operand] + at[operand];
    }
    template <typename T, int V>
    __device__ __forceinline__ tn__elements<T, V> read(int operand) const {
        if (V == 1 || !plan.same[operand]) {
            return *(const tn__elements<T, V> *)address<T>(operand);
        }
        tn__elements<T, V> pack;
        T value = *address<T>(operand);
        for (int i = 0; i < V; i++) {
            pack.at[i] = value;
        }
        return pack;
    }
    template <typename T, int V>
    __device__ __forceinline__ void write(int operand, const tn__elements<T, V> &pack) const {
        *(tn__elements<T, V> *)address<T>(operand) = pack;
    }
};

template <int V, typename Body>
__global__ void __launch_bounds__(TN__LOOP_BLOCK) tn__loop_kernel(tn__plan plan, Body body) {
    uint32_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    TN_NO_UNROLL
    for (uint32_t pack = first; pack < plan.count; pack += step) {
        body.template run<V>(tn__loop_place(plan, pack));
    }
    if (V > 1 && first < plan.rest) {
        tn__loop_place place(plan, plan.count);
        for (int k = 0; k < TN__OPERANDS; k++) {
            place.at[k] += plan.same[k] ? 0 : first;
        }
        body.template run<1>(place);
    }
}

/* Runs the body over the whole loop, V elements at a time. V > 1: tn__cuda_loop_packs(&loop, V). */
template <int V, typename Body>
static tn_status tn__loop_launch(tn_context *ctx, tn__loop loop, const Body &body) {
    if (tn__cuda_loop_count(&loop) == 0) { return TN_OK; }
    while (!tn__cuda_loop_fits(&loop)) {
        tn__loop first = loop;
        loop = tn__cuda_loop_cut(&first);
        tn_status status = tn__loop_launch<V>(ctx, first, body);
        if (status != TN_OK) { return status; }
    }
    tn__plan plan = tn__cuda_loop_plan(&loop, V);
    return TN_LAUNCH(ctx, (tn__loop_kernel<V, Body>), tn__loop_grid(ctx, plan.count),
                     TN__LOOP_BLOCK, 0, plan, body);
}

/* V elements at a time if they can be, else one by one. */
template <int V, typename Body>
static tn_status tn__loop_packed(tn_context *ctx, const tn__loop &loop, const Body &body) {
    return V > 1 && tn__cuda_loop_packs(&loop, V) ? tn__loop_launch<V>(ctx, loop, body)
                                                  : tn__loop_launch<1>(ctx, loop, body);
}

typedef const tn_desc *const tn__operands[TN__OPERANDS];

/* Runs the body over these operands, the first of which is written. */
template <int V, typename Body>
static tn_status tn__loop_run(tn_context *ctx, int operands, tn__operands &op, const Body &body) {
    return tn__loop_packed<V>(ctx, tn__cuda_loop(operands, op), body);
}

/* ---- Walks ----------------------------------------------------------------------------------- */

/* The offsets of element `number` in the first N operands. */
template <int N>
static __device__ __forceinline__ void tn__walk_to(const tn__walk &walk, int64_t number,
                                                   int64_t (&at)[N]) {
    for (int k = 0; k < N; k++) {
        at[k] = 0;
    }
    TN_NO_UNROLL
    for (int d = 0; d < walk.ndim; d++) {
        int64_t rest = 0;
        if (d + 1 < walk.ndim) {
            rest = walk.narrow ? (uint32_t)number / (uint32_t)walk.size[d] : number / walk.size[d];
        }
        int64_t index = number - rest * walk.size[d];
        for (int k = 0; k < N; k++) {
            at[k] += index * walk.stride[k][d];
        }
        number = rest;
    }
}

#endif
