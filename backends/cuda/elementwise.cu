/* unary, binary, compare, where: the formulas of backends/formulas.h over strided operands.
 *
 * Formulas that models spend their time in have their own kernels for f32, bf16 and f16, with eight
 * or four elements per thread, for operands with a dense inner dimension. Everything else (other
 * formulas, f64, integers, odd strides) has one kernel per dtype, which calls a function with the
 * formula's number for each element. That is rare, or bound by memory anyway, and takes a fraction
 * of the compile time and code size of a kernel per formula.
 */
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/formulas.h"

/* ---- Formulas as functions ------------------------------------------------------------------- */

/* One formula in float. */
template <int F> struct unary_one;
template <int F> struct binary_one;
#define UNARY_ONE(code, name, formula)                                                 \
    template <> struct unary_one<code> {                                               \
        float k0, k1;                                                                  \
        __device__ __forceinline__ float operator()(float x) const { return formula; } \
    };
#define BINARY_ONE(code, name, formula)                                                         \
    template <> struct binary_one<code> {                                                       \
        __device__ __forceinline__ float operator()(float a, float b) const { return formula; } \
    };
TN_UNARY_FORMULAS(UNARY_ONE, float, TN_LIBM_F)
TN_BINARY_FORMULAS(BINARY_ONE, float, TN_LIBM_F)

#define RETURN(code, name, formula) \
    case code:                      \
        return formula;

/* Any of them, by its number, in the compute type C: float, double, or int64_t for integers. All
 * kernels call one function per type. */
template <typename C> struct unary_any;
template <typename C> struct binary_any;
#define ANY(C, unary, binary)                                                                   \
    static __device__ TN_NOINLINE C unary_##C(int f, C x, C k0, C k1) {                         \
        switch (f) { unary default : return x; }                                                \
    }                                                                                           \
    static __device__ TN_NOINLINE C binary_##C(int f, C a, C b) {                               \
        switch (f) { binary default : return a; }                                               \
    }                                                                                           \
    template <> struct unary_any<C> {                                                           \
        int f;                                                                                  \
        C k0, k1;                                                                               \
        __device__ __forceinline__ C operator()(C x) const { return unary_##C(f, x, k0, k1); }  \
    };                                                                                          \
    template <> struct binary_any<C> {                                                          \
        int f;                                                                                  \
        __device__ __forceinline__ C operator()(C a, C b) const { return binary_##C(f, a, b); } \
    };
ANY(float, TN_UNARY_FORMULAS(RETURN, float, TN_LIBM_F),
    TN_BINARY_FORMULAS(RETURN, float, TN_LIBM_F))
ANY(double, TN_UNARY_FORMULAS(RETURN, double, TN_LIBM_D),
    TN_BINARY_FORMULAS(RETURN, double, TN_LIBM_D))
ANY(int64_t, TN_UNARY_INTEGER_FORMULAS(RETURN), TN_BINARY_INTEGER_FORMULAS(RETURN))

/* The formulas with their own kernels. */
static constexpr bool is_hot(tn_unary f) {
    return f == TN_SQUARE || f == TN_RELU || f == TN_GELU_TANH || f == TN_SILU || f == TN_ADD_K ||
           f == TN_MUL_K;
}
static constexpr bool is_hot(tn_binary f) {
    return f == TN_ADD || f == TN_SUB || f == TN_MUL || f == TN_RELU_GRAD ||
           f == TN_GELU_TANH_GRAD || f == TN_SILU_GRAD || f == TN_SILU_MUL;
}

#define KNOWN(code, name, formula) \
    case code:                     \
        return true;

static bool has_integer_form(tn_unary f) {
    switch (f) {
        TN_UNARY_INTEGER_FORMULAS(KNOWN)
    default:
        return false;
    }
}

static bool has_integer_form(tn_binary f) {
    switch (f) {
        TN_BINARY_INTEGER_FORMULAS(KNOWN)
    default:
        return false;
    }
}

/* ---- Bodies ---------------------------------------------------------------------------------- */

/* Integers are computed in int64_t and cut to their width when stored. */
#define INTEGER(T)                                                              \
    template <> struct tn__compute<T> { typedef int64_t type; };                \
    static __device__ __forceinline__ int64_t tn__load(T x) {                   \
        return x;                                                               \
    }                                                                           \
    template <> __device__ __forceinline__ T tn__store<T, int64_t>(int64_t x) { \
        return (T)x;                                                            \
    }
INTEGER(int64_t)
INTEGER(int32_t)
INTEGER(uint8_t)
INTEGER(int8_t)

template <typename T, typename F> struct unary_body {
    F f;
    template <int V> __device__ __forceinline__ void run(const tn__loop_place &at) const {
        tn__elements<T, V> x = at.read<T, V>(1), y;
        for (int i = 0; i < V; i++) {
            y.at[i] = tn__store<T>(f(tn__load(x.at[i])));
        }
        at.write(0, y);
    }
};

template <typename T, typename F> struct binary_body {
    F f;
    template <int V> __device__ __forceinline__ void run(const tn__loop_place &at) const {
        tn__elements<T, V> a = at.read<T, V>(1), b = at.read<T, V>(2), y;
        for (int i = 0; i < V; i++) {
            y.at[i] = tn__store<T>(f(tn__load(a.at[i]), tn__load(b.at[i])));
        }
        at.write(0, y);
    }
};

template <typename T> struct compare_body {
    tn_compare f;
    template <typename C> __device__ __forceinline__ bool holds(C a, C b) const {
        switch (f) {
            TN_COMPARE_FORMULAS(RETURN)
        default:
            return false;
        }
    }
    template <int V> __device__ __forceinline__ void run(const tn__loop_place &at) const {
        tn__elements<T, V> a = at.read<T, V>(1), b = at.read<T, V>(2);
        tn__elements<uint8_t, V> y;
        for (int i = 0; i < V; i++) {
            y.at[i] = holds(tn__load(a.at[i]), tn__load(b.at[i]));
        }
        at.write(0, y);
    }
};

template <typename U> struct where_body { /* U: an integer as wide as an element */
    template <int V> __device__ __forceinline__ void run(const tn__loop_place &at) const {
        tn__elements<uint8_t, V> c = at.read<uint8_t, V>(1);
        tn__elements<U, V> a = at.read<U, V>(2), b = at.read<U, V>(3), y;
        for (int i = 0; i < V; i++) {
            y.at[i] = c.at[i] ? a.at[i] : b.at[i];
        }
        at.write(0, y);
    }
};

/* ---- Entries --------------------------------------------------------------------------------- */

/* Whether the formulas that models spend their time in have their own kernels for T. */
template <typename T>
constexpr bool is_fast = std::is_same<typename tn__compute<T>::type, float>::value;

template <typename C> static C constant_of(double k) {
    return (C)k;
}
template <> int64_t constant_of<int64_t>(double k) {
    return tn__to_integer(k);
}

template <typename T>
static tn_status run_unary(tn_context *ctx, tn_unary f, const tn__loop &loop, double k0,
                           double k1) {
    typedef typename tn__compute<T>::type C;
    C c0 = constant_of<C>(k0), c1 = constant_of<C>(k1);
    unary_body<T, unary_any<C>> any = {{f, c0, c1}};
    if constexpr (is_fast<T>) {
        const int v = tn__per_load<T>;
        if (!tn__cuda_loop_packs(&loop, v)) { return tn__loop_launch<1>(ctx, loop, any); }
#define LAUNCH(code, name, formula)                                                         \
    case code:                                                                              \
        if constexpr (is_hot(code)) {                                                       \
            return tn__loop_launch<v>(ctx, loop, unary_body<T, unary_one<code>>{{c0, c1}}); \
        }                                                                                   \
        break;
        switch (f) {
            TN_UNARY_FORMULAS(LAUNCH, float, TN_LIBM_F)
        default:
            return TN_EUNSUPPORTED;
        }
#undef LAUNCH
        return tn__loop_launch<v>(ctx, loop, any);
    }
    return tn__loop_launch<1>(ctx, loop, any);
}

template <typename T>
static tn_status run_binary(tn_context *ctx, tn_binary f, const tn__loop &loop) {
    binary_body<T, binary_any<typename tn__compute<T>::type>> any = {{f}};
    if constexpr (is_fast<T>) {
        const int v = tn__per_load<T>;
        if (!tn__cuda_loop_packs(&loop, v)) { return tn__loop_launch<1>(ctx, loop, any); }
#define LAUNCH(code, name, formula)                                                   \
    case code:                                                                        \
        if constexpr (is_hot(code)) {                                                 \
            return tn__loop_launch<v>(ctx, loop, binary_body<T, binary_one<code>>{}); \
        }                                                                             \
        break;
        switch (f) {
            TN_BINARY_FORMULAS(LAUNCH, float, TN_LIBM_F)
        default:
            return TN_EUNSUPPORTED;
        }
#undef LAUNCH
        return tn__loop_launch<v>(ctx, loop, any);
    }
    return tn__loop_launch<1>(ctx, loop, any);
}

tn_status tn__cuda_unary(tn_context *ctx, tn_unary f, const tn_desc *y, const tn_desc *x, double k0,
                         double k1) {
    tn_dtype dtype = x->dtype;
    if (y->dtype != dtype || dtype == TN_BOOL || (tn__is_integer(dtype) && !has_integer_form(f))) {
        return TN_EUNSUPPORTED;
    }
    tn__operands op = {y, x};
    tn__loop loop = tn__cuda_loop(2, op);
    TN_TYPES(dtype, return run_unary<T>(ctx, f, loop, k0, k1));
}

tn_status tn__cuda_binary(tn_context *ctx, tn_binary f, const tn_desc *y, const tn_desc *a,
                          const tn_desc *b) {
    tn_dtype dtype = y->dtype;
    if (a->dtype != dtype || b->dtype != dtype || dtype == TN_BOOL ||
        (tn__is_integer(dtype) && !has_integer_form(f))) {
        return TN_EUNSUPPORTED;
    }
    tn__operands op = {y, a, b};
    tn__loop loop = tn__cuda_loop(3, op);
    TN_TYPES(dtype, return run_binary<T>(ctx, f, loop));
}

tn_status tn__cuda_compare(tn_context *ctx, tn_compare f, const tn_desc *y, const tn_desc *a,
                           const tn_desc *b) {
    if (y->dtype != TN_BOOL || a->dtype != b->dtype) { return TN_EUNSUPPORTED; }
    tn__operands op = {y, a, b};
    TN_TYPES(a->dtype, return tn__loop_run<tn__per_load<T>>(ctx, 3, op, compare_body<T>{f}));
}

tn_status tn__cuda_where(tn_context *ctx, const tn_desc *y, const tn_desc *c, const tn_desc *a,
                         const tn_desc *b) {
    if (c->dtype != TN_BOOL || y->dtype != a->dtype || y->dtype != b->dtype) {
        return TN_EUNSUPPORTED;
    }
    tn__operands op = {y, c, a, b};
    TN_WIDTHS(y->dtype, return tn__loop_run<tn__per_load<T>>(ctx, 4, op, where_body<T>{}));
}
