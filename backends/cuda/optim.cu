/* Steps of optimisers and sums of squares over many spans in one launch: the spans' descriptors are
 * the kernel's arguments, and each block works out from its number which piece of which span it
 * handles. One launch takes up to SPANS of them.
 *
 * dtypes of parameters and gradients may differ from span to span. f32, bf16 and f16 parameters are
 * computed in float, f64 ones in double, in separate launches. A step is a template of its formula.
 */
#include "backends/cuda/block.cuh"
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/steps.h"

enum { PIECE = 8192, THREADS = 256, V = 4 };

/* Kernel arguments: at most 4096 bytes, with the factors of a step, or the addresses of sums. */
template <typename SPAN, int SPANS> struct list_of {
    enum { MOST = SPANS };
    SPAN span[SPANS];
    int first[SPANS + 1]; /* the first block of each; after the last, the number of blocks */
    int count;

    /* The span of which this block has a piece: the last with first <= block. */
    __device__ int of_block(int block) const {
        int low = 0;
        for (int high = count; high - low > 1;) {
            int middle = (low + high) / 2;
            low = first[middle] <= block ? middle : low;
            high = first[middle] <= block ? high : middle;
        }
        return low;
    }
    /* Whether a span of `blocks` goes into this launch; blocks are counted in an int. */
    bool has_place(int64_t blocks) const {
        return count == 0 || (count < SPANS && first[count] + blocks <= INT32_MAX);
    }
    void add(const SPAN &next, int64_t blocks) {
        span[count] = next;
        first[count + 1] = first[count] + (int)blocks;
        count++;
    }
};

/* A tn_optim_span in fewer bytes. */
struct step_span {
    void *param;
    const void *grad;
    float *state[TN_SPAN_STATES], *master;
    int64_t count;
    uint8_t param_dtype, grad_dtype;
};
typedef list_of<step_span, 56> span_list;

/* ---- V elements of an array of any float dtype ----------------------------------------------- */

/* V elements from `at` on, a multiple of V; n of them exist, the others are 0. */
template <typename T, typename C>
static __device__ __forceinline__ void read_as(C *out, const void *data, int64_t at, int n) {
    const T *from = static_cast<const T *>(data) + at;
    if (n >= V && (uintptr_t)from % alignof(tn__elements<T, V>) == 0) {
        tn__elements<T, V> pack = *reinterpret_cast<const tn__elements<T, V> *>(from);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            out[k] = (C)tn__load(pack.at[k]);
        }
    } else {
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            out[k] = k < n ? (C)tn__load(from[k]) : 0;
        }
    }
}

template <typename T, typename C>
static __device__ __forceinline__ void write_as(void *data, int64_t at, int n, const C *value) {
    T *to = static_cast<T *>(data) + at;
    tn__elements<T, V> pack;
    TN_UNROLL
    for (int k = 0; k < V; k++) {
        pack.at[k] = tn__store<T>((typename tn__compute<T>::type)value[k]);
    }
    if (n >= V && (uintptr_t)to % alignof(tn__elements<T, V>) == 0) {
        *reinterpret_cast<tn__elements<T, V> *>(to) = pack;
    } else {
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            if (k < n) { to[k] = pack.at[k]; }
        }
    }
}

template <typename C>
static __device__ __forceinline__ void read_values(C *out, const void *data, tn_dtype dtype,
                                                   int64_t at, int n) {
    TN_FLOATS_ONLY(dtype, return read_as<T>(out, data, at, n));
}

template <typename C>
static __device__ __forceinline__ void write_values(void *data, tn_dtype dtype, int64_t at, int n,
                                                    const C *value) {
    TN_FLOATS_ONLY(dtype, return write_as<T>(data, at, n, value));
}

/* ---- The steps ------------------------------------------------------------------------------- */

template <typename C> struct factors_of;
template <> struct factors_of<float> {
    typedef tn__step_factors_float type;
    static type get(const tn_step *s) { return tn__step_factors_of_float(s); }
};
template <> struct factors_of<double> {
    typedef tn__step_factors_double type;
    static type get(const tn_step *s) { return tn__step_factors_of_double(s); }
};

/* Each rule's formula, and the number of its states. */
#define RULE(code, name, states, ...)                                       \
    template <typename C> struct name##_rule {                              \
        static const int STATES = states;                                   \
        static __device__ void run(C &x, C g, C &a, C &b, C &c,             \
                                   const typename factors_of<C>::type &k) { \
            __VA_ARGS__;                                                    \
        }                                                                   \
    };
TN_STEP_FORMULAS(RULE, )
#undef RULE

template <typename C, template <typename> class RULE>
__global__ void __launch_bounds__(THREADS)
    step_kernel(span_list list, typename factors_of<C>::type k, double grad_scale,
                const double *clip) {
    const tn_dtype wide = sizeof(C) == 8 ? TN_F64 : TN_F32;
    int block = blockIdx.x, at_span = list.of_block(block);
    const step_span &span = list.span[at_span];
    tn_dtype param_dtype = (tn_dtype)span.param_dtype, grad_dtype = (tn_dtype)span.grad_dtype;
    int64_t from = (int64_t)(block - list.first[at_span]) * PIECE, end = span.count;
    end = end - from < PIECE ? end : from + PIECE;
    C scale = (C)(clip ? grad_scale * *clip : grad_scale);
    for (int64_t at = from + threadIdx.x * V; at < end; at += THREADS * V) {
        int n = end - at < V ? (int)(end - at) : V;
        C x[V], g[V], s[3][V] = {{0}, {0}, {0}};
        read_values(g, span.grad, grad_dtype, at, n);
        if (span.master) {
            read_values(x, span.master, TN_F32, at, n);
        } else {
            read_values(x, span.param, param_dtype, at, n);
        }
        TN_UNROLL
        for (int i = 0; i < RULE<C>::STATES; i++) {
            if (span.state[i]) { read_values(s[i], span.state[i], wide, at, n); }
        }
        TN_UNROLL
        for (int i = 0; i < V; i++) {
            g[i] = g[i] * scale + k.add * x[i];
            x[i] *= k.shrink;
            RULE<C>::run(x[i], g[i], s[0][i], s[1][i], s[2][i], k);
        }
        TN_UNROLL
        for (int i = 0; i < RULE<C>::STATES; i++) {
            if (span.state[i]) { write_values(span.state[i], wide, at, n, s[i]); }
        }
        if (span.master) { write_values(span.master, TN_F32, at, n, x); }
        write_values(span.param, param_dtype, at, n, x);
    }
}

/* ---- Launches -------------------------------------------------------------------------------- */

static bool all_floats(const tn_optim_span *spans, int count) {
    for (int i = 0; i < count; i++) {
        if (!tn__is_float(spans[i].param_dtype) || !tn__is_float(spans[i].grad_dtype)) {
            return false;
        }
    }
    return true;
}

template <typename C, template <typename> class RULE>
static tn_status flush_spans(tn_context *ctx, span_list *list, const tn_step *step) {
    typename factors_of<C>::type k = factors_of<C>::get(step);
    static_assert(sizeof(span_list) + sizeof(k) + 2 * sizeof(double) <= 4096,
                  "the arguments of a launch");
    if (list->count == 0) { return TN_OK; }
    unsigned blocks = (unsigned)list->first[list->count];
    tn_status status = TN_LAUNCH(ctx, (step_kernel<C, RULE>), blocks, THREADS, 0, *list, k,
                                 step->grad_scale, step->clip);
    *list = span_list{};
    return status;
}

/* Steps the spans whose parameters are computed in C. */
template <typename C, template <typename> class RULE>
static tn_status run_spans(tn_context *ctx, const tn_optim_span *spans, int count,
                           const tn_step *step) {
    span_list list = {};
    for (int i = 0; i < count; i++) {
        int64_t blocks = tn__ceil_div(spans[i].count, PIECE);
        if (blocks == 0 || (spans[i].param_dtype == TN_F64) != (sizeof(C) == 8)) { continue; }
        if (!list.has_place(blocks)) {
            tn_status status = flush_spans<C, RULE>(ctx, &list, step);
            if (status != TN_OK) { return status; }
        }
        step_span span = {spans[i].param,
                          spans[i].grad,
                          {},
                          spans[i].master,
                          spans[i].count,
                          (uint8_t)spans[i].param_dtype,
                          (uint8_t)spans[i].grad_dtype};
        memcpy(span.state, spans[i].state, sizeof(span.state));
        list.add(span, blocks);
    }
    return flush_spans<C, RULE>(ctx, &list, step);
}

template <template <typename> class RULE>
static tn_status run_rule(tn_context *ctx, const tn_optim_span *spans, int count,
                          const tn_step *step) {
    tn_status status = run_spans<float, RULE>(ctx, spans, count, step);
    return status == TN_OK ? run_spans<double, RULE>(ctx, spans, count, step) : status;
}

extern "C" tn_status tn__cuda_step(tn_context *ctx, const tn_optim_span *spans, int count,
                                   const tn_step *step) {
    if (!all_floats(spans, count)) { return TN_EUNSUPPORTED; }
    switch (step->rule) {
#define CASE(code, name, states, ...) \
    case code:                        \
        return run_rule<name##_rule>(ctx, spans, count, step);
        TN_STEP_FORMULAS(CASE, )
#undef CASE
    default:
        return TN_EUNSUPPORTED;
    }
}

/* ---- Sums of squares ------------------------------------------------------------------------- */

/* A span without elements has one piece, too: its sum is set. */
typedef list_of<tn_span, 128> square_list;

static int64_t pieces_of(int64_t count) {
    return count > 0 ? tn__ceil_div(count, PIECE) : 1;
}

/* partial[block] = the sum of squares of its piece */
static __global__ void __launch_bounds__(THREADS)
    squares_kernel(square_list list, double *partial) {
    TN_SHARED(double, shared, 32);
    int block = blockIdx.x, at_span = list.of_block(block);
    const tn_span &span = list.span[at_span];
    int64_t from = (int64_t)(block - list.first[at_span]) * PIECE, end = span.count;
    end = end - from < PIECE ? end : from + PIECE;
    double sum = 0;
    for (int64_t at = from + threadIdx.x * V; at < end; at += THREADS * V) {
        double x[V];
        read_values(x, span.data, span.dtype, at, end - at < V ? (int)(end - at) : V);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            sum += x[k] * x[k];
        }
    }
    sum = tn__team_reduce<THREADS>(sum, shared, tn__join_sum());
    if (threadIdx.x == 0) { partial[block] = sum; }
}

/* The first piece of each span, and the number of pieces. */
struct square_pieces {
    int first[square_list::MOST + 1];
};

/* sums[i] = those of span i's pieces together; a block a span. */
static __global__ void __launch_bounds__(THREADS)
    add_squares_kernel(square_pieces pieces, const double *partial, double *sums) {
    TN_SHARED(double, shared, 32);
    double sum = 0;
    for (int at = pieces.first[blockIdx.x] + threadIdx.x; at < pieces.first[blockIdx.x + 1];
         at += THREADS) {
        sum += partial[at];
    }
    sum = tn__team_reduce<THREADS>(sum, shared, tn__join_sum());
    if (threadIdx.x == 0) { sums[blockIdx.x] = sum; }
}

static tn_status launch_squares(tn_context *ctx, const square_list &list, double *sums) {
    unsigned blocks = (unsigned)list.first[list.count];
    TN__SCRATCH(double, partial, ctx, blocks);
    if (!partial) { return TN_ENOMEM; }
    tn_status status = TN_LAUNCH(ctx, squares_kernel, blocks, THREADS, 0, list, partial);
    if (status != TN_OK) { return status; }
    square_pieces pieces;
    memcpy(pieces.first, list.first, sizeof(pieces.first));
    return TN_LAUNCH(ctx, add_squares_kernel, (unsigned)list.count, THREADS, 0, pieces, partial,
                     sums);
}

extern "C" tn_status tn__cuda_sum_squares(tn_context *ctx, const tn_span *spans, int count,
                                          double *sums) {
    static_assert(sizeof(square_list) + 2 * sizeof(double *) <= 4096, "the arguments of a launch");
    for (int i = 0; i < count; i++) {
        if (!tn__is_float(spans[i].dtype)) { return TN_EUNSUPPORTED; }
    }
    tn_status status = TN_OK;
    for (int i = 0, from = 0; i < count && status == TN_OK; from = i) {
        square_list list = {};
        while (i < count && list.has_place(pieces_of(spans[i].count))) {
            list.add(spans[i], pieces_of(spans[i].count));
            i++;
        }
        status = launch_squares(ctx, list, sums + from);
    }
    return status;
}

/* One thread, so that the sum is the host's; 148 numbers for GPT-2 124M, which are a few
 * microseconds. */
static __global__ void clip_kernel(const double *sums, int count, double most, double *clip) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += sums[i];
    }
    double norm = sqrt(sum), scale = most / (norm + 1e-6);
    clip[0] = norm;
    clip[1] = norm - norm == 0 && scale < 1 ? scale : 1;
}

extern "C" tn_status tn__cuda_clip(tn_context *ctx, const double *sums, int count, double most,
                                   double *clip) {
    return TN_LAUNCH(ctx, clip_kernel, 1, 1, 0, sums, count, most, clip);
}
