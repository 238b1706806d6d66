/* argsort and topk: the lines of x along a dimension, all at once in one stable sort of keys
 * (sort.cuh). A key has the element's bits so that they ascend as numbers do, NaN above all and -0
 * equal to 0, and the number of its line above them; where both do not fit in 64 bits, a second
 * sort by lines follows. topk takes the first k of each line.
 */
#include "backends/cuda/axes.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/cuda/sort.cuh"
#include "backends/lines.h"

#ifndef TN_CUDA_EMULATOR /* which has its own */
#include <cub/device/device_radix_sort.cuh>
#endif

/* ---- Any keys -------------------------------------------------------------------------------- */

/* By the lowest `bits` of a key. Without scratch memory: sets how much of it is needed. */
static cudaError_t sort_pairs(tn__sort *s, int bits, cudaStream_t stream) {
    cub::DoubleBuffer<uint64_t> keys(s->keys[0], s->keys[1]);
    cub::DoubleBuffer<uint32_t> at(s->at[0], s->at[1]);
    cudaError_t error = cub::DeviceRadixSort::SortPairs(s->scratch, s->bytes, keys, at,
                                                        (int)s->count, 0, bits, stream);
    s->keys[0] = keys.Current();
    s->keys[1] = keys.Alternate();
    s->at[0] = at.Current();
    s->at[1] = at.Alternate();
    return error;
}

/* What CUB needs besides: asked for without memory. */
static tn__sort sort_of(int64_t count) {
    tn__sort s = {};
    s.count = (uint32_t)count;
    (void)sort_pairs(&s, 64, NULL);
    return s;
}

tn__sort tn__sort_in(void *memory, int64_t count) {
    tn__sort s = sort_of(count);
    s.keys[0] = (uint64_t *)memory;
    s.keys[1] = s.keys[0] + count;
    s.at[0] = (uint32_t *)(s.keys[1] + count);
    s.at[1] = s.at[0] + count;
    s.scratch = s.at[1] + count;
    return s;
}

size_t tn__sort_bytes(int64_t count) {
    return (size_t)count * 2 * (sizeof(uint64_t) + sizeof(uint32_t)) + sort_of(count).bytes;
}

tn_status tn__sort_run(tn_context *ctx, tn__sort *s, uint64_t limit) {
    int bits = 1;
    while (bits < 64 && (limit - 1) >> bits > 0) {
        bits++;
    }
    cudaError_t error = sort_pairs(s, bits, tn__cuda_stream(ctx));
    return error == cudaSuccess ? tn__cuda_launched(ctx, "cub::DeviceRadixSort")
                                : tn__cuda_check(error, "cub::DeviceRadixSort");
}

/* ---- Lines ----------------------------------------------------------------------------------- */

struct line_sort {
    tn__axes lines;
    int64_t length, kept, x_step, y_step; /* elements of a line, in x and in y */
    const void *x;
    tn_dtype dtype;
    int64_t *y;
    int bits; /* of an element's key */
    bool descending;
};

/* From the bits of a float: those of a negative one reversed, the sign above the others. */
static __device__ __forceinline__ uint64_t float_key(uint64_t raw, int bits, uint64_t infinity) {
    uint64_t sign = (uint64_t)1 << (bits - 1), rest = sign - 1, magnitude = raw & rest;
    if (magnitude > infinity) { return sign | rest; }
    return magnitude == 0 || !(raw & sign) ? magnitude | sign : rest - magnitude;
}

static __device__ __forceinline__ uint64_t element_key(const line_sort &s, int64_t at) {
    switch (s.dtype) {
    case TN_F32:
        return float_key(((const uint32_t *)s.x)[at], 32, 0x7f800000);
    case TN_F64:
        return float_key(((const uint64_t *)s.x)[at], 64, 0x7ff0000000000000);
    case TN_BF16:
        return float_key(((const uint16_t *)s.x)[at], 16, 0x7f80);
    case TN_F16:
        return float_key(((const uint16_t *)s.x)[at], 16, 0x7c00);
    case TN_U8:
    case TN_BOOL:
        return (uint64_t)tn__get_integer(s.x, s.dtype, at);
    default:
        return (uint64_t)tn__get_integer(s.x, s.dtype, at) + ((uint64_t)1 << (s.bits - 1));
    }
}

static __global__ void __launch_bounds__(TN__LOOP_BLOCK)
    line_keys_kernel(line_sort s, tn__sort sort) {
    uint64_t mask = UINT64_MAX >> (64 - s.bits);
    int64_t step = (int64_t)gridDim.x * TN__LOOP_BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x; i < sort.count;
         i += step) {
        int64_t line = i / s.length;
        int64_t at = tn__axes_offset(s.lines, s.lines.x, line) + i % s.length * s.x_step;
        uint64_t key = element_key(s, at);
        key = (s.descending ? ~key : key) & mask;
        sort.keys[0][i] = s.bits < 64 ? (uint64_t)line << s.bits | key : key;
        sort.at[0][i] = (uint32_t)i;
    }
}

/* The keys of the second sort. */
static __global__ void __launch_bounds__(TN__LOOP_BLOCK)
    line_numbers_kernel(tn__sort sort, int64_t length) {
    int64_t step = (int64_t)gridDim.x * TN__LOOP_BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x; i < sort.count;
         i += step) {
        sort.keys[0][i] = sort.at[0][i] / (uint64_t)length;
    }
}

static __global__ void __launch_bounds__(TN__LOOP_BLOCK)
    line_places_kernel(line_sort s, const uint32_t *sorted) {
    int64_t step = (int64_t)gridDim.x * TN__LOOP_BLOCK, count = s.lines.total * s.kept;
    for (int64_t i = (int64_t)blockIdx.x * TN__LOOP_BLOCK + threadIdx.x; i < count; i += step) {
        int64_t line = i / s.kept, k = i % s.kept, first = line * s.length;
        s.y[tn__axes_offset(s.lines, s.lines.y, line) + k * s.y_step] = sorted[first + k] - first;
    }
}

/* Fills, sorts, and gives the places. */
static tn_status sort_lines(tn_context *ctx, const line_sort &s, tn__sort sort) {
    unsigned grid = tn__loop_grid(ctx, sort.count);
    uint64_t lines = (uint64_t)s.lines.total;
    tn_status status = TN_LAUNCH(ctx, line_keys_kernel, grid, TN__LOOP_BLOCK, 0, s, sort);
    if (status == TN_OK) { /* 64 bits: the limit is 2^64, as 0 */
        status = tn__sort_run(ctx, &sort, s.bits < 64 ? lines << s.bits : 0);
    }
    if (status == TN_OK && s.bits == 64 && lines > 1) {
        status = TN_LAUNCH(ctx, line_numbers_kernel, grid, TN__LOOP_BLOCK, 0, sort, s.length);
        status = status == TN_OK ? tn__sort_run(ctx, &sort, lines) : status;
    }
    if (status == TN_OK) {
        status = TN_LAUNCH(ctx, line_places_kernel, tn__loop_grid(ctx, s.lines.total * s.kept),
                           TN__LOOP_BLOCK, 0, s, sort.at[0]);
    }
    return status;
}

static tn_status run_sort(const tn_op_call *c, int dim, bool descending) {
    const tn_desc *x = c->x[0], *y = c->y[0];
    line_sort s;
    dim = dim < 0 ? dim + x->ndim : dim;
    s.lines = tn__axes_beside(x, y, dim);
    s.length = x->ndim > 0 ? x->size[dim] : 1;
    s.kept = x->ndim > 0 ? y->size[dim] : 1;
    s.x_step = x->ndim > 0 ? x->stride[dim] : 1;
    s.y_step = x->ndim > 0 ? y->stride[dim] : 1;
    s.x = x->data;
    s.dtype = x->dtype;
    s.y = (int64_t *)y->data;
    s.bits = 8 * (int)tn__cuda_element(x->dtype);
    s.descending = descending;
    int64_t count = s.lines.total * s.length;
    if (count == 0 || s.kept == 0) { return TN_OK; }
    if (count > INT32_MAX) { return TN_EUNSUPPORTED; }
    TN__SCRATCH(char, memory, c->ctx, tn__sort_bytes(count));
    return memory ? sort_lines(c->ctx, s, tn__sort_in(memory, count)) : TN_ENOMEM;
}

static tn_status argsort_forward(const tn_op_call *c) {
    const tn__argsort_args *args = (const tn__argsort_args *)c->args;
    return run_sort(c, args->dim, args->descending);
}

static tn_status topk_forward(const tn_op_call *c) {
    const tn__topk_args *args = (const tn__topk_args *)c->args;
    return run_sort(c, args->dim, args->largest);
}

const tn_op_kernel tn__cuda_op_argsort = {argsort_forward, NULL};
const tn_op_kernel tn__cuda_op_topk = {topk_forward, NULL};
