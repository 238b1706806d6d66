/* What a kernel may use. A .cu file includes this and no CUDA header (sort.cu also one of CUB's).
 *
 * Kernels are compiled twice: by nvcc for the GPU, and by the host's C++ compiler for the emulator
 * (tests/emulator/), where a block's threads are fibres and tests run every kernel against ref. So
 * they use only what both support:
 *
 *     __global__ __device__ __launch_bounds__(n) __restrict__
 *     threadIdx blockIdx blockDim gridDim
 *     __syncthreads() __syncwarp()
 *     __shfl_sync __shfl_xor_sync __shfl_down_sync __shfl_up_sync
 *         (all 32 lanes take part: TN_FULL)
 *     __ballot_sync __any_sync __all_sync
 *     atomicAdd (int, unsigned, unsigned long long, float) atomicMax atomicMin atomicCAS atomicExch
 *     __threadfence() __ldg(p) __popc __ffs __clz
 *     the C mathematics library, as C++ overloads it for float; rsqrtf
 *     float2 float4 uint2 uint4 int4 double2
 *     __nv_bfloat16, __half and their conversions
 *
 * and instead of __shared__ and <<< >>>:
 *
 *     TN_SHARED(float, partial, 32);           float *partial: 32 elements per block
 *     TN_DYNAMIC(float, rows);                 float *rows: the bytes that the launch asked for
 *     status = TN_LAUNCH(ctx, (scale<float>), grid, block, bytes, y, x, n);
 *
 * Shared memory and scratch are uninitialised. No inline assembly, no cooperative groups. A kernel
 * gives the same bits in whatever order its blocks run: no atomicAdd of floats whose order could
 * show in the result, unless ctx->deterministic is false.
 */
#ifndef TERN_BACKENDS_CUDA_KERNEL_H
#define TERN_BACKENDS_CUDA_KERNEL_H

#include "backends/cuda/cuda.h"

#define TN_FULL 0xffffffffu /* every lane of a warp */

#ifdef TN_CUDA_EMULATOR /* the emulator has defined its own before this header */
#define TN_UNROLL
#define TN_NO_UNROLL
#define TN_UNROLL_BY(n)
#define TN_NOINLINE __attribute__((noinline))
#else
#define TN_UNROLL _Pragma("unroll")      /* before a loop whose count is a constant */
#define TN_NO_UNROLL _Pragma("unroll 1") /* before one that unrolling would only make larger */
#define TN__PRAGMA(words) _Pragma(#words)
#define TN_UNROLL_BY(n) TN__PRAGMA(unroll n)
#define TN_NOINLINE __noinline__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define TN_SHARED(type, name, count)      \
    __shared__ type name##_memory[count]; \
    type *name = name##_memory
#define TN_DYNAMIC(type, name)                                          \
    extern __shared__ __align__(16) unsigned char tn__dynamic_memory[]; \
    type *name = reinterpret_cast<type *>(tn__dynamic_memory)

/* Launches the kernel and returns a tn_status. Put `kernel` in parentheses if it has commas. More
 * than 48 KiB of dynamic shared memory are requested here. */
#define TN_LAUNCH(ctx, kernel, grid, block, bytes, ...)                                           \
    (((bytes) > 48 * 1024                                                                         \
          ? (void)cudaFuncSetAttribute((const void *)kernel,                                      \
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)) \
          : (void)0),                                                                             \
     kernel<<<(grid), (block), (bytes), tn__cuda_stream(ctx)>>>(__VA_ARGS__),                     \
     tn__cuda_launched((ctx), #kernel))
#endif

/* ---- Elements -------------------------------------------------------------------------------- */

typedef __nv_bfloat16 tn__bf16;
typedef __half tn__half;

/* The type in which a dtype is computed: float, or double for f64. */
template <typename T> struct tn__compute { typedef float type; };
template <> struct tn__compute<double> { typedef double type; };

static __device__ __forceinline__ float tn__load(float x) {
    return x;
}
static __device__ __forceinline__ double tn__load(double x) {
    return x;
}
static __device__ __forceinline__ float tn__load(tn__bf16 x) {
    return __bfloat162float(x);
}
static __device__ __forceinline__ float tn__load(tn__half x) {
    return __half2float(x);
}

/* A computed value as an element: rounded to nearest even. */
template <typename T, typename C> static __device__ __forceinline__ T tn__store(C x);
template <> __device__ __forceinline__ float tn__store<float, float>(float x) {
    return x;
}
template <> __device__ __forceinline__ double tn__store<double, double>(double x) {
    return x;
}
template <> __device__ __forceinline__ tn__bf16 tn__store<tn__bf16, float>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ tn__half tn__store<tn__half, float>(float x) {
    return __float2half_rn(x);
}

/* V elements side by side, read and written at most 16 bytes at a time. */
template <typename T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) tn__elements {
    T at[V];
};

/* How many elements of this type 16 bytes hold, and these. */
template <typename T> constexpr int tn__per_load = (int)(16 / sizeof(T));
template <typename T> using tn__pack = tn__elements<T, tn__per_load<T>>;

/* Runs the statement with T as the type of a dtype. TN_FLOATS returns TN_EUNSUPPORTED from the
 * function for dtypes that are not floats; for TN_FLOATS_ONLY the dtype is known to be one.
 *
 *     TN_FLOATS(y->dtype, return launch_softmax<T>(ctx, y, x)); */
#define TN__CASE(code, type, ...) \
    case code: {                  \
        typedef type T;           \
        __VA_ARGS__;              \
    } break;
#define TN__OTHERWISE(type, ...) \
    default: {                   \
        typedef type T;          \
        __VA_ARGS__;             \
    } break;
#define TN_FLOATS(dtype, ...)                    \
    switch (dtype) {                             \
        TN__CASE(TN_F32, float, __VA_ARGS__)     \
        TN__CASE(TN_F64, double, __VA_ARGS__)    \
        TN__CASE(TN_BF16, tn__bf16, __VA_ARGS__) \
        TN__CASE(TN_F16, tn__half, __VA_ARGS__)  \
    default:                                     \
        return TN_EUNSUPPORTED;                  \
    }
#define TN_FLOATS_ONLY(dtype, ...)               \
    switch (dtype) {                             \
        TN__CASE(TN_F32, float, __VA_ARGS__)     \
        TN__CASE(TN_BF16, tn__bf16, __VA_ARGS__) \
        TN__CASE(TN_F16, tn__half, __VA_ARGS__)  \
        TN__OTHERWISE(double, __VA_ARGS__)       \
    }
/* Any dtype; that of bool is uint8_t. */
#define TN_TYPES(dtype, ...)                     \
    switch (dtype) {                             \
        TN__CASE(TN_F32, float, __VA_ARGS__)     \
        TN__CASE(TN_F64, double, __VA_ARGS__)    \
        TN__CASE(TN_BF16, tn__bf16, __VA_ARGS__) \
        TN__CASE(TN_F16, tn__half, __VA_ARGS__)  \
        TN__CASE(TN_I64, int64_t, __VA_ARGS__)   \
        TN__CASE(TN_I32, int32_t, __VA_ARGS__)   \
        TN__CASE(TN_I8, int8_t, __VA_ARGS__)     \
        TN__OTHERWISE(uint8_t, __VA_ARGS__)      \
    }
/* T is an integer as wide as the dtype's elements: for kernels that move bits. */
#define TN_WIDTHS(dtype, ...)               \
    switch (tn__cuda_element(dtype)) {      \
        TN__CASE(8, uint64_t, __VA_ARGS__)  \
        TN__CASE(4, uint32_t, __VA_ARGS__)  \
        TN__CASE(2, uint16_t, __VA_ARGS__)  \
        TN__OTHERWISE(uint8_t, __VA_ARGS__) \
    }

static inline __host__ __device__ int64_t tn__ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

#endif
