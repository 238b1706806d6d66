/* Adam and SGD over many spans in one launch: the spans' descriptors are the kernel's arguments,
 * and each block works out from its number which piece of which span it handles. One launch takes
 * up to SPANS of them.
 *
 * dtypes of parameters and gradients may differ from span to span. f32, bf16 and f16 parameters are
 * computed in float, f64 ones in double, in separate launches.
 */
#include "backends/cuda/block.cuh"
#include "backends/cuda/convert.cuh"

enum { SPANS = 56, PIECE = 8192, THREADS = 256, V = 4 };

/* Kernel arguments: at most 4096 bytes, with the step's factors. */
struct span_list {
    tn_optim_span span[SPANS];
    int first[SPANS + 1]; /* the first block of each; after the last, the number of blocks */
    int count;
};

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
    int block = blockIdx.x, low = 0;
    for (int high = list.count; high - low > 1;) { /* the last span with first <= block */
        int middle = (low + high) / 2;
        low = list.first[middle] <= block ? middle : low;
        high = list.first[middle] <= block ? high : middle;
    }
    const tn_optim_span &span = list.span[low];
    int64_t from = (int64_t)(block - list.first[low]) * PIECE, end = span.count;
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
    list->count = 0;
    return status;
}

/* Steps the spans whose parameters are computed in C. */
template <typename C, typename S>
static tn_status run_spans(tn_context *ctx, const tn_optim_span *spans, int count, const S &step) {
    const int64_t most = INT32_MAX; /* blocks of a launch */
    span_list list;
    list.count = 0;
    list.first[0] = 0;
    for (int i = 0; i < count; i++) {
        int64_t blocks = tn__ceil_div(spans[i].count, PIECE);
        if (blocks == 0 || (spans[i].param_dtype == TN_F64) != (sizeof(C) == 8)) {
            continue;
        }
        if (list.count == SPANS || (list.count > 0 && list.first[list.count] + blocks > most)) {
            tn_status status = flush_spans<C>(ctx, &list, step);
            if (status != TN_OK) {
                return status;
            }
        }
        list.span[list.count] = spans[i];
        list.first[list.count + 1] = list.first[list.count] + (int)blocks;
        list.count++;
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
