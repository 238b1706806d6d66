/* What a kernel sees of the emulator, in place of CUDA's own language: it comes before
 * backends/cuda/kernel.h (kernel.cc.in). Types are the toolkit's; whatever can wait is in block.cc.
 */
#ifndef TERN_TESTS_EMULATOR_KERNEL_H
#define TERN_TESTS_EMULATOR_KERNEL_H

#include <cuda_runtime_api.h>
#include <vector_types.h>
#include <vector_functions.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <memory>
#include <tuple>
#include <type_traits>

#define __launch_bounds__(...)
#ifndef __restrict__
#define __restrict__ __restrict
#endif

#define threadIdx (tn_emulator::here.thread)
#define blockIdx (tn_emulator::here.block)
#define blockDim (tn_emulator::here.block_size)
#define gridDim (tn_emulator::here.grid_size)

namespace tn_emulator {

/* Where the running thread is. */
struct position {
    uint3 thread, block;
    dim3 block_size, grid_size;
};
extern position here;

/* A line of a kernel, for messages and to tell barriers apart. */
struct place {
    const char *file;
    int line;
};

enum operation { SYNC_WARP, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR, BALLOT, ANY, ALL };
enum barrier { PLAIN, COUNT, AND, OR };

/* Wait for the whole block, or for the lanes of `mask`. `argument` is a shuffle's lane, delta or
 * mask. */
int sync_block(barrier kind, int predicate, place at);
uint64_t sync_warp(operation what, unsigned mask, uint64_t value, unsigned argument, int width,
                   place at);

/* The block's memory: one piece for each `site`, the launch's own for NULL. */
void *shared_memory(const void *site, size_t bytes, const char *name);

/* ---- Launches -------------------------------------------------------------------------------- */

/* A kernel and its arguments, as a stream queues them. */
struct launch {
    const char *kernel = nullptr;
    dim3 grid, block;
    size_t dynamic_bytes = 0;

    virtual void thread() const = 0;                        /* runs the kernel as one thread */
    virtual size_t arguments(const void **first) const = 0; /* their bytes */
    virtual ~launch() {}
};

template <typename... P> struct bound_launch final : launch {
    void (*function)(P...);
    std::tuple<P...> given;

    template <typename... A>
    explicit bound_launch(void (*kernel_function)(P...), A &&...arguments)
        : function(kernel_function), given(static_cast<P>(arguments)...) {}
    void thread() const override { std::apply(function, given); }
    size_t arguments(const void **first) const override {
        *first = &given;
        return sizeof(given);
    }
};

/* Queues it, or leaves an error for cudaGetLastError. */
void enqueue(cudaStream_t stream, std::unique_ptr<launch> l);

template <typename... P, typename... A>
void launch_kernel(cudaStream_t stream, const char *name, void (*kernel)(P...), dim3 grid,
                   dim3 block, size_t dynamic_bytes, A &&...arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "the kernel takes a different number of arguments");
    static_assert((std::is_trivially_copyable_v<P> && ...), "arguments are copied as bytes");
    static_assert((sizeof(P) + ... + 0) <= 4096, "a launch has 4096 bytes for its arguments");
    std::unique_ptr<launch> l(new bound_launch<P...>(kernel, arguments...));
    l->kernel = name;
    l->grid = grid;
    l->block = block;
    l->dynamic_bytes = dynamic_bytes;
    enqueue(stream, std::move(l));
}

/* ---- Bits ------------------------------------------------------------------------------------ */

template <typename T> inline uint64_t to_bits(T x) {
    static_assert(std::is_trivially_copyable_v<T> &&
                      (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8),
                  "a shuffle moves 2, 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof(x));
    return bits;
}
template <typename T, typename U> inline T from_bits(U bits) {
    T x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

} // namespace tn_emulator

#define TN_LAUNCH(ctx, kernel, grid, block, bytes, ...)                                          \
    (tn_emulator::launch_kernel(tn__cuda_stream(ctx), #kernel, kernel, (grid), (block), (bytes), \
                                ##__VA_ARGS__),                                                  \
     tn__cuda_launched((ctx), #kernel))

/* The site's address tells the arrays of a kernel apart, and those of a template's instances. */
#define TN_SHARED(type, name, count)  \
    static char name##_site;          \
    type *name = static_cast<type *>( \
        tn_emulator::shared_memory(&name##_site, sizeof(type) * (count), #name))
#define TN_DYNAMIC(type, name) \
    type *name = static_cast<type *>(tn_emulator::shared_memory(nullptr, 0, #name))

/* ---- Barriers, votes, shuffles --------------------------------------------------------------- */

#define TN__HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(TN__HERE) {
    tn_emulator::sync_block(tn_emulator::PLAIN, 0, {file, line});
}
inline int __syncthreads_count(int predicate, TN__HERE) {
    return tn_emulator::sync_block(tn_emulator::COUNT, predicate, {file, line});
}
inline int __syncthreads_and(int predicate, TN__HERE) {
    return tn_emulator::sync_block(tn_emulator::AND, predicate, {file, line});
}
inline int __syncthreads_or(int predicate, TN__HERE) {
    return tn_emulator::sync_block(tn_emulator::OR, predicate, {file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffffu, TN__HERE) {
    tn_emulator::sync_warp(tn_emulator::SYNC_WARP, mask, 0, 0, 32, {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, TN__HERE) {
    return (unsigned)tn_emulator::sync_warp(tn_emulator::BALLOT, mask, predicate != 0, 0, 32,
                                            {file, line});
}
inline int __any_sync(unsigned mask, int predicate, TN__HERE) {
    return (int)tn_emulator::sync_warp(tn_emulator::ANY, mask, predicate != 0, 0, 32, {file, line});
}
inline int __all_sync(unsigned mask, int predicate, TN__HERE) {
    return (int)tn_emulator::sync_warp(tn_emulator::ALL, mask, predicate != 0, 0, 32, {file, line});
}

#define TN__SHUFFLE(name, what, argument_type)                                            \
    template <typename T>                                                                 \
    inline T name(unsigned mask, T x, argument_type argument, int width = 32, TN__HERE) { \
        return tn_emulator::from_bits<T>(                                                 \
            tn_emulator::sync_warp(tn_emulator::what, mask, tn_emulator::to_bits(x),      \
                                   (unsigned)argument, width, {file, line}));             \
    }
TN__SHUFFLE(__shfl_sync, SHUFFLE, int)
TN__SHUFFLE(__shfl_up_sync, SHUFFLE_UP, unsigned)
TN__SHUFFLE(__shfl_down_sync, SHUFFLE_DOWN, unsigned)
TN__SHUFFLE(__shfl_xor_sync, SHUFFLE_XOR, int)
#undef TN__SHUFFLE

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

/* ---- Atomics: one thread runs at a time, so a plain change is one ---------------------------- */

#define TN__ATOMIC(name, T, changed)     \
    inline T name(T *address, T value) { \
        T old = *address;                \
        *address = (changed);            \
        return old;                      \
    }
TN__ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)value))
TN__ATOMIC(atomicAdd, unsigned, old + value)
TN__ATOMIC(atomicAdd, unsigned long long, old + value)
TN__ATOMIC(atomicAdd, float, old + value)
TN__ATOMIC(atomicAdd, double, old + value)
TN__ATOMIC(atomicSub, int, (int)((unsigned)old - (unsigned)value))
TN__ATOMIC(atomicSub, unsigned, old - value)
TN__ATOMIC(atomicExch, int, value)
TN__ATOMIC(atomicExch, unsigned, value)
TN__ATOMIC(atomicExch, unsigned long long, value)
TN__ATOMIC(atomicExch, float, value)
#define TN__ATOMIC_WHOLE(T)                             \
    TN__ATOMIC(atomicMin, T, value < old ? value : old) \
    TN__ATOMIC(atomicMax, T, value > old ? value : old) \
    TN__ATOMIC(atomicAnd, T, old &value)                \
    TN__ATOMIC(atomicOr, T, old | value)                \
    TN__ATOMIC(atomicXor, T, old ^ value)
TN__ATOMIC_WHOLE(int)
TN__ATOMIC_WHOLE(unsigned)
TN__ATOMIC_WHOLE(unsigned long long)
TN__ATOMIC(atomicMin, long long, value < old ? value : old)
TN__ATOMIC(atomicMax, long long, value > old ? value : old)
TN__ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
TN__ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
#undef TN__ATOMIC_WHOLE
#undef TN__ATOMIC

#define TN__ATOMIC_CAS(T)                                 \
    inline T atomicCAS(T *address, T expected, T value) { \
        T old = *address;                                 \
        *address = old == expected ? value : old;         \
        return old;                                       \
    }
TN__ATOMIC_CAS(int)
TN__ATOMIC_CAS(unsigned)
TN__ATOMIC_CAS(unsigned long long)
#undef TN__ATOMIC_CAS

/* ---- Loads, bits, mathematics ---------------------------------------------------------------- */

template <typename T> inline T __ldg(const T *address) {
    return *address;
}
template <typename T> inline T __ldcs(const T *address) {
    return *address;
}
template <typename T> inline void __stcs(T *address, T value) {
    *address = value;
}

inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)(((uint64_t)a * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

inline int __float_as_int(float x) {
    return tn_emulator::from_bits<int>(x);
}
inline unsigned __float_as_uint(float x) {
    return tn_emulator::from_bits<unsigned>(x);
}
inline float __int_as_float(int x) {
    return tn_emulator::from_bits<float>(x);
}
inline float __uint_as_float(unsigned x) {
    return tn_emulator::from_bits<float>(x);
}
inline long long __double_as_longlong(double x) {
    return tn_emulator::from_bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return tn_emulator::from_bits<double>(x);
}

inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}
inline float __expf(float x) {
    return expf(x);
}
inline float __logf(float x) {
    return logf(x);
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}
inline double __dadd_rn(double a, double b) {
    return a + b;
}

#define TN__MIN_MAX(T)        \
    inline T min(T a, T b) {  \
        return b < a ? b : a; \
    }                         \
    inline T max(T a, T b) {  \
        return a < b ? b : a; \
    }
TN__MIN_MAX(int)
TN__MIN_MAX(unsigned)
TN__MIN_MAX(long)
TN__MIN_MAX(unsigned long)
TN__MIN_MAX(long long)
TN__MIN_MAX(unsigned long long)
#undef TN__MIN_MAX
inline float min(float a, float b) {
    return fminf(a, b);
}
inline float max(float a, float b) {
    return fmaxf(a, b);
}
inline double min(double a, double b) {
    return fmin(a, b);
}
inline double max(double a, double b) {
    return fmax(a, b);
}

#endif
