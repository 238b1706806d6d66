/* Adam, SGD and sums of squares over many spans in one launch: the spans' descriptors are the
 * kernel's arguments, and each block works out from its number which piece of which span it
 * handles. One launch takes up to SPANS of them.
 *
 * dtypes of parameters and gradients may differ from span to span. f32, bf16 and f16 parameters are
 * computed in float, f64 ones in double, in separate launches.
 */
#include "backends/cuda/block.cuh"
#include "backends/cuda/convert.cuh"

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
typedef list_of<tn_optim_span, 56> span_list;

/* ---- V elements of an array of any float dtype ----------------------------------------------- */

template <typename T> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) elements {
    T element[V];
};

/* V elements from `at` on, a multiple of V; n of them exist, the others are 0. */
template <typename T, typename C>
static __device__ __forceinline__ void read_as(C *out, const void *data, int64_t at, int n) {
    const T *from = static_cast<const T *>(data) + at;
    if (n >= V && (uintptr_t)from % alignof(elements<T>) == 0) {
        elements<T> pack = *reinterpret_cast<const elements<T> *>(from);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            out[k] = (C)tn__load(pack.element[k]);
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
    elements<T> pack;
    TN_UNROLL
    for (int k = 0; k < V; k++) {
        pack.element[k] = tn__store<T>((typename tn__compute<T>::type)value[k]);
    }
    if (n >= V && (uintptr_t)to % alignof(elements<T>) == 0) {
        *reinterpret_cast<elements<T> *>(to) = pack;
    } else {
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            if (k < n) {
                to[k] = pack.element[k];
            }
        }
    }
}

template <typename C>
static __device__ __forceinline__ void read_values(C *out, const void *data, tn_dtype dtype,
                                                   int64_t at, int n) {
    switch (dtype) {
    case TN_F32:
        return read_as<float>(out, data, at, n);
    case TN_BF16:
        return read_as<tn__bf16>(out, data, at, n);
    case TN_F16:
        return read_as<tn__half>(out, data, at, n);
    default:
        return read_as<double>(out, data, at, n);
    }
}

template <typename C>
static __device__ __forceinline__ void write_values(void *data, tn_dtype dtype, int64_t at, int n,
                                                    const C *value) {
    switch (dtype) {
    case TN_F32:
        return write_as<float>(data, at, n, value);
    case TN_BF16:
        return write_as<tn__bf16>(data, at, n, value);
    case TN_F16:
        return write_as<tn__half>(data, at, n, value);
    default:
        return write_as<double>(data, at, n, value);
    }
}

/* ---- The steps ------------------------------------------------------------------------------- */

/* The factors of a step, rounded once. A step changes the parameter x and its state m, v; g is the
 * gradient. */
template <typename C> struct adam {
    C beta1, beta2, rest1, rest2, eps, decay, add, scale, size, root;
    static const bool second = true;

    __device__ void operator()(C &x, C g, C &m, C &v, bool) const {
        g = g * scale + add * x;
        m = beta1 * m + rest1 * g;
        v = beta2 * v + rest2 * (g * g);
        x = x * decay - size * m / (tn__sqrt(v) * root + eps);
    }
};

template <typename C> struct sgd {
    C lr, keep, add, decay, scale, ahead, now;
    bool first; /* sets the buffer, which may hold anything before */
    static const bool second = false;

    __device__ void operator()(C &x, C g, C &m, C &, bool has_state) const {
        g = g * scale + decay * x;
        m = first ? g : keep * m + add * g;
        x -= lr * (has_state ? now * g + ahead * m : g);
    }
};

template <typename C, typename S>
__global__ void __launch_bounds__(THREADS) step_kernel(span_list list, S step) {
    const tn_dtype wide = sizeof(C) == 8 ? TN_F64 : TN_F32;
    int block = blockIdx.x, at_span = list.of_block(block);
    const tn_optim_span &span = list.span[at_span];
    int64_t from = (int64_t)(block - list.first[at_span]) * PIECE, end = span.count;
    end = end - from < PIECE ? end : from + PIECE;
    bool has_state = span.state[0] != NULL;
    for (int64_t at = from + threadIdx.x * V; at < end; at += THREADS * V) {
        int n = end - at < V ? (int)(end - at) : V;
        C x[V], g[V], m[V] = {0}, v[V] = {0};
        read_values(g, span.grad, span.grad_dtype, at, n);
        if (span.master) {
            read_values(x, span.master, TN_F32, at, n);
        } else {
            read_values(x, span.param, span.param_dtype, at, n);
        }
        if (has_state) {
            read_values(m, span.state[0], wide, at, n);
        }
        if (S::second) {
            read_values(v, span.state[1], wide, at, n);
        }
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            step(x[k], g[k], m[k], v[k], has_state);
        }
        if (has_state) {
            write_values(span.state[0], wide, at, n, m);
        }
        if (S::second) {
            write_values(span.state[1], wide, at, n, v);
        }
        if (span.master) {
            write_values(span.master, TN_F32, at, n, x);
        }
        write_values(span.param, span.param_dtype, at, n, x);
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

template <typename C, typename S>
static tn_status flush_spans(tn_context *ctx, span_list *list, const S &step) {
    static_assert(sizeof(span_list) + sizeof(S) <= 4096, "the arguments of a launch");
    if (list->count == 0) {
        return TN_OK;
    }
    unsigned blocks = (unsigned)list->first[list->count];
    tn_status status = TN_LAUNCH(ctx, (step_kernel<C, S>), blocks, THREADS, 0, *list, step);
    *list = span_list{};
    return status;
}

/* Steps the spans whose parameters are computed in C. */
template <typename C, typename S>
static tn_status run_spans(tn_context *ctx, const tn_optim_span *spans, int count, const S &step) {
    span_list list = {};
    for (int i = 0; i < count; i++) {
        int64_t blocks = tn__ceil_div(spans[i].count, PIECE);
        if (blocks == 0 || (spans[i].param_dtype == TN_F64) != (sizeof(C) == 8)) {
            continue;
        }
        if (!list.has_place(blocks)) {
            tn_status status = flush_spans<C>(ctx, &list, step);
            if (status != TN_OK) {
                return status;
            }
        }
        list.add(spans[i], blocks);
    }
    return flush_spans<C>(ctx, &list, step);
}

template <typename C> static adam<C> adam_of(const tn_adam_step *s) {
    double correct1 = 1 - pow(s->beta1, (double)s->step),
           correct2 = 1 - pow(s->beta2, (double)s->step);
    adam<C> step;
    step.beta1 = (C)s->beta1;
    step.beta2 = (C)s->beta2;
    step.rest1 = (C)(1 - s->beta1);
    step.rest2 = (C)(1 - s->beta2);
    step.eps = (C)s->eps;
    step.decay = s->decoupled ? (C)(1 - s->lr * s->weight_decay) : 1;
    step.add = s->decoupled ? 0 : (C)s->weight_decay;
    step.scale = (C)s->grad_scale;
    step.size = (C)(s->lr / correct1);
    step.root = (C)(1 / sqrt(correct2));
    return step;
}

template <typename C> static sgd<C> sgd_of(const tn_sgd_step *s) {
    sgd<C> step;
    step.lr = (C)s->lr;
    step.keep = (C)s->momentum;
    step.add = (C)(1 - s->dampening);
    step.decay = (C)s->weight_decay;
    step.scale = (C)s->grad_scale;
    step.ahead = s->nesterov ? (C)s->momentum : 1;
    step.now = s->nesterov ? 1 : 0;
    step.first = s->first;
    return step;
}

extern "C" tn_status tn__cuda_adam(tn_context *ctx, const tn_optim_span *spans, int count,
                                   const tn_adam_step *step) {
    if (!all_floats(spans, count)) {
        return TN_EUNSUPPORTED;
    }
    tn_status status = run_spans<float>(ctx, spans, count, adam_of<float>(step));
    return status == TN_OK ? run_spans<double>(ctx, spans, count, adam_of<double>(step)) : status;
}

extern "C" tn_status tn__cuda_sgd(tn_context *ctx, const tn_optim_span *spans, int count,
                                  const tn_sgd_step *step) {
    if (!all_floats(spans, count)) {
        return TN_EUNSUPPORTED;
    }
    tn_status status = run_spans<float>(ctx, spans, count, sgd_of<float>(step));
    return status == TN_OK ? run_spans<double>(ctx, spans, count, sgd_of<double>(step)) : status;
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
    if (threadIdx.x == 0) {
        partial[block] = sum;
    }
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
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
    }
}

static tn_status launch_squares(tn_context *ctx, const square_list &list, double *sums) {
    unsigned blocks = (unsigned)list.first[list.count];
    size_t bytes = blocks * sizeof(double);
    double *partial = static_cast<double *>(tn__cuda_scratch(ctx, bytes));
    if (!partial) {
        return TN_ENOMEM;
    }
    tn_status status = TN_LAUNCH(ctx, squares_kernel, blocks, THREADS, 0, list, partial);
    if (status == TN_OK) {
        square_pieces pieces;
        memcpy(pieces.first, list.first, sizeof(pieces.first));
        status = TN_LAUNCH(ctx, add_squares_kernel, (unsigned)list.count, THREADS, 0, pieces,
                           partial, sums);
    }
    tn__cuda_scratch_free(ctx, partial, bytes);
    return status;
}

extern "C" tn_status tn__cuda_sum_squares(tn_context *ctx, const tn_span *spans, int count,
                                          double *sums) {
    static_assert(sizeof(square_list) + 2 * sizeof(double *) <= 4096, "the arguments of a launch");
    for (int i = 0; i < count; i++) {
        if (!tn__is_float(spans[i].dtype)) {
            return TN_EUNSUPPORTED;
        }
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
