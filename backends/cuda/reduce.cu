/* Reductions over any dimensions and strides: sum, mean, max, min, sum of squares, any, all; argmax.
 *
 * x's dimensions are dropped, sorted by stride and merged. If the innermost one is reduced, a team of threads folds each
 * result's elements (fold_rows); if it stays, neighbouring threads fold neighbouring columns (fold_columns). Where there
 * are fewer results than the device has room for, the reduced range is cut in bands, whose partial results go to scratch
 * memory and are joined in order by a second kernel. All of that depends on the shape alone. Reduced dimensions that do
 * not merge to one are rare: x is then copied to scratch memory with them last.
 *
 * A thread adds up to eight f32 and goes on in double, so a sum's error is that of its last rounding. Integers are folded
 * in 64 bits.
 */
#include "backends/cuda/rows.cuh"

/* ---- What is folded ------------------------------------------------------------------------------ */

/* What elements are read as, and what they are folded in. */
template <typename T> struct kind {
    typedef typename tn__compute<T>::type value;
    typedef double total;
};
struct whole_kind {
    typedef long long value, total;
};
template <> struct kind<int64_t> : whole_kind {};
template <> struct kind<int32_t> : whole_kind {};
template <> struct kind<uint8_t> : whole_kind {};
template <> struct kind<tn__truth> : whole_kind {};

static __device__ __forceinline__ double add(double a, double b) {
    return a + b;
}
static __device__ __forceinline__ float add(float a, float b) {
    return a + b;
}
static __device__ __forceinline__ long long add(long long a, long long b) { /* wraps */
    return (long long)((unsigned long long)a + (unsigned long long)b);
}

/* The values that lose against all others. */
static __device__ __forceinline__ void lowest(float *x) {
    *x = -INFINITY;
}
static __device__ __forceinline__ void lowest(double *x) {
    *x = -INFINITY;
}
static __device__ __forceinline__ void lowest(long long *x) {
    *x = INT64_MIN;
}
static __device__ __forceinline__ void highest(float *x) {
    *x = INFINITY;
}
static __device__ __forceinline__ void highest(double *x) {
    *x = INFINITY;
}
static __device__ __forceinline__ void highest(long long *x) {
    *x = INT64_MAX;
}

enum fold { SUM, SQUARES, MOST, LEAST };

template <int F, typename V> static __device__ __forceinline__ V neutral() {
    V x = 0;
    if (F == MOST) {
        lowest(&x);
    } else if (F == LEAST) {
        highest(&x);
    }
    return x;
}

template <int F> struct joined {
    template <typename V> __device__ __forceinline__ V operator()(V a, V b) const {
        if (F == MOST) {
            return a > b || a != a ? a : b; /* NaN wins */
        }
        if (F == LEAST) {
            return a < b || a != a ? a : b;
        }
        return add(a, b);
    }
};

/* total takes in `count` values, which come `step` apart. */
template <int F, int count, int step, typename A, typename V>
static __device__ __forceinline__ void take(A &total, const V *value) {
    joined<F> join;
    V part = neutral<F, V>();
    TN_UNROLL
    for (int k = 0; k < count; k++) {
        if (F == SQUARES) {
            total += (A)value[k * step] * (A)value[k * step];
        } else {
            part = join(part, value[k * step]);
        }
    }
    if (F != SQUARES) {
        total = join(total, (A)part);
    }
}

/* ---- The plan, made on the host --------------------------------------------------------------------- */

/* Some dimensions, as one range. */
struct axes {
    int count;
    int64_t total, size[TN_MAX_DIMS], x[TN_MAX_DIMS], y[TN_MAX_DIMS]; /* strides */
};

struct plan {
    axes stays; /* without the inner dimension */
    int64_t inner, inner_x, inner_y;
    bool inner_goes;
    int64_t length, step;  /* rows of a column's result, and their stride; or inner */
    int64_t bands, height; /* of length */
    const void *x;
    void *y;
    tn_dtype y_dtype;
    double divisor; /* of the results: MEAN */
    void *partial;  /* (stays, bands, inner or 1); NULL for one band */
};

static __device__ __forceinline__ int64_t offset_in(const axes &a, const int64_t *stride, int64_t i) {
    int64_t offset = 0;
    for (int k = a.count - 1; k > 0; k--) {
        offset += i % a.size[k] * stride[k];
        i /= a.size[k];
    }
    return a.count > 0 ? offset + i * stride[0] : 0;
}

static void push_axis(axes *a, int64_t size, int64_t x, int64_t y) {
    int k = a->count;
    if (k > 0 && a->x[k - 1] == x * size && a->y[k - 1] == y * size) {
        a->size[k - 1] *= size;
        a->x[k - 1] = x;
        a->y[k - 1] = y;
    } else {
        a->size[k] = size;
        a->x[k] = x;
        a->y[k] = y;
        a->count++;
    }
    a->total *= size;
}

/* x's dimensions by stride, the largest first. */
static int sorted(const tn_desc *x, int *order) {
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (x->size[d] == 1) {
            continue;
        }
        int k = n++;
        for (; k > 0 && x->stride[order[k - 1]] < x->stride[d]; k--) {
            order[k] = order[k - 1];
        }
        order[k] = d;
    }
    return n;
}

/* x with the dimensions of `stays` and `goes`, in this order, copied to dense memory: *scratch. */
static tn_status make_dense(tn_context *ctx, const tn_desc *x, axes *stays, axes *goes,
                            void **scratch, size_t *bytes) {
    tn_desc from = *x, to = *x;
    int64_t count = 1;
    from.ndim = to.ndim = stays->count + goes->count;
    for (int k = from.ndim - 1; k >= 0; k--) {
        axes *a = k < stays->count ? stays : goes;
        int i = k < stays->count ? k : k - stays->count;
        from.size[k] = to.size[k] = a->size[i];
        from.stride[k] = a->x[i];
        to.stride[k] = a->x[i] = count;
        count *= a->size[i];
    }
    *bytes = (size_t)count * (size_t)tn__size_of(x->dtype);
    *scratch = to.data = tn__cuda_scratch(ctx, *bytes);
    goes->count = 1;
    goes->size[0] = goes->total;
    goes->x[0] = 1;
    return *scratch ? tn__cuda_copy(ctx, &to, &from) : TN_ENOMEM;
}

/* With less than `few` elements to a result, these are one thread's, and neighbouring threads have neighbouring results. */
static const int64_t few = 32;

static plan plan_of(const tn_desc *y, const void *x, const axes *stays, const axes *goes) {
    plan p;
    p.x = x;
    p.y = y->data;
    p.y_dtype = y->dtype;
    p.partial = NULL;
    p.divisor = 1;
    p.inner = p.inner_x = p.inner_y = 1;
    p.length = goes->total;
    p.step = goes->count > 0 ? goes->x[0] : 1;
    p.stays = *stays;
    int last = stays->count - 1;
    p.inner_goes = last < 0 || (p.step < stays->x[last] && p.length >= few);
    if (p.inner_goes) {
        p.inner = p.length;
        p.inner_x = p.step;
    } else {
        p.inner = stays->size[last];
        p.inner_x = stays->x[last];
        p.inner_y = stays->y[last];
        p.stays.count = last;
        p.stays.total = 1;
        for (int i = 0; i < last; i++) {
            p.stays.total *= stays->size[i];
        }
    }
    return p;
}

/* Cuts length in bands when `items` teams would leave most of the device idle. */
static void cut(plan *p, int64_t items, int64_t least, int64_t unit) {
    const int64_t wanted = 1024;
    p->bands = 1;
    p->height = p->length;
    if (items < wanted / 2 && p->length > 2 * least) {
        int64_t bands = tn__ceil_div(wanted, items), most = tn__ceil_div(p->length, least);
        p->height = tn__ceil_div(tn__ceil_div(p->length, bands < most ? bands : most), unit) * unit;
        p->bands = tn__ceil_div(p->length, p->height);
    }
}

/* ---- Results ------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ void store_total(const plan &p, int64_t at, double total) {
    tn__put(p.y, p.y_dtype, at, total / p.divisor);
}
static __device__ __forceinline__ void store_total(const plan &p, int64_t at, long long total) {
    tn__put_integer(p.y, p.y_dtype, at, total);
}

/* The result of a band for result (o, column): to y when there is only one. */
template <typename A>
static __device__ __forceinline__ void give(const plan &p, int64_t o, int64_t column, int64_t band,
                                            A total) {
    if (p.partial) {
        int64_t width = p.inner_goes ? 1 : p.inner;
        static_cast<A *>(p.partial)[(o * p.bands + band) * width + column] = total;
    } else {
        int64_t at = offset_in(p.stays, p.stays.y, o);
        store_total(p, at + (p.inner_goes ? 0 : column * p.inner_y), total);
    }
}

enum { THREADS = 256, LANES = 32, STRIPS = THREADS / LANES };

/* shared[strip * lanes + lane], joined over the strips (a power of two) in order, to shared[lane]. */
template <int F, typename A>
static __device__ __forceinline__ void join_strips(A *shared, int strips, int lanes) {
    joined<F> join;
    int thread = threadIdx.x;
    __syncthreads();
    for (int half = strips / 2; half > 0; half /= 2) {
        if (thread < half * lanes) {
            shared[thread] = join(shared[thread], shared[thread + half * lanes]);
        }
        __syncthreads();
    }
}

/* Joins the bands: a block for a number, or for LANES columns. */
template <int F, typename A> __global__ void __launch_bounds__(THREADS) join_bands(plan p) {
    TN_SHARED(A, shared, THREADS);
    joined<F> join;
    int64_t width = p.inner_goes ? 1 : p.inner;
    int lanes = width == 1 ? 1 : LANES, strips = THREADS / lanes;
    int64_t pieces = tn__ceil_div(width, lanes), o = blockIdx.x / pieces;
    int64_t column = blockIdx.x % pieces * lanes + threadIdx.x % lanes;
    const A *partial = static_cast<const A *>(p.partial) + o * p.bands * width + column;
    A total = neutral<F, A>();
    for (int64_t band = threadIdx.x / lanes; band < p.bands && column < width; band += strips) {
        total = join(total, partial[band * width]);
    }
    shared[threadIdx.x] = total;
    join_strips<F>(shared, strips, lanes);
    if (threadIdx.x < (unsigned)lanes && column < width) {
        int64_t at = offset_in(p.stays, p.stays.y, o) + (p.inner_goes ? 0 : column * p.inner_y);
        store_total(p, at, shared[threadIdx.x]);
    }
}

/* ---- Folds ---------------------------------------------------------------------------------------------- */

/* A team folds a band of one result's elements. */
template <int F, typename T, int TEAM>
__global__ void __launch_bounds__(THREADS) fold_rows(plan p) {
    typedef typename kind<T>::value C;
    typedef typename kind<T>::total A;
    const int V = tn__pack<T>::size;
    TN_SHARED(A, shared, 32);
    int64_t item = tn__team_number<TEAM>(), o = item / p.bands, band = item % p.bands;
    if (o >= p.stays.total) {
        return;
    }
    T *x = static_cast<T *>(const_cast<void *>(p.x)) + offset_in(p.stays, p.stays.x, o);
    int64_t from = band * p.height, end = from + p.height < p.length ? from + p.height : p.length;
    tn__line<T> line = tn__line_of(x, p.inner_x);
    A total = neutral<F, A>();
    for (int64_t at = from + tn__team_lane<TEAM>() * V; at < end; at += TEAM * V) {
        C value[V];
        tn__pack_load(value, line, at, end, neutral<F, C>());
        take<F, V, 1>(total, value);
    }
    total = tn__team_reduce<TEAM>(total, shared, joined<F>());
    if (tn__team_lane<TEAM>() == 0) {
        give(p, o, 0, band, total);
    }
}

/* A block folds a band of LANES W columns, W of them a thread; its strips take rows in turn. */
enum { STEPS = 4 }; /* rows that a thread reads before it goes on to double */
template <int F, typename T, int W>
__global__ void __launch_bounds__(THREADS) fold_columns(plan p) {
    typedef typename kind<T>::value C;
    typedef typename kind<T>::total A;
    TN_SHARED(A, shared, THREADS);
    int64_t pieces = tn__ceil_div(p.inner, LANES * W), rest = blockIdx.x / pieces;
    int64_t band = rest % p.bands, o = rest / p.bands;
    int lane = threadIdx.x % LANES, strip = threadIdx.x / LANES;
    int64_t first = (blockIdx.x % pieces * LANES + lane) * W;
    T *x = static_cast<T *>(const_cast<void *>(p.x)) + offset_in(p.stays, p.stays.x, o);
    int64_t from = band * p.height, end = from + p.height < p.length ? from + p.height : p.length;
    A total[W];
    for (int w = 0; w < W; w++) {
        total[w] = neutral<F, A>();
    }
    for (int64_t row = from + strip; row < end && first < p.inner; row += STRIPS * STEPS) {
        C value[STEPS * W];
        TN_UNROLL
        for (int s = 0; s < STEPS; s++) {
            bool there = row + s * STRIPS < end;
            T *here = x + (there ? (row + s * STRIPS) * p.step : 0);
            if (W == 1) {
                value[s] = there ? (C)tn__load(here[first * p.inner_x]) : neutral<F, C>();
            } else {
                tn__pack_load(value + s * W, tn__line_of(here, p.inner_x), first,
                              there ? p.inner : 0, neutral<F, C>());
            }
        }
        TN_UNROLL
        for (int w = 0; w < W; w++) {
            take<F, STEPS, W>(total[w], value + w);
        }
    }
    TN_UNROLL
    for (int w = 0; w < W; w++) {
        __syncthreads();
        shared[threadIdx.x] = total[w];
        join_strips<F>(shared, STRIPS, LANES);
        if (strip == 0 && first + w < p.inner) {
            give(p, o, first + w, band, shared[lane]);
        }
    }
}

/* The others have only the kernels that they need. */
template <typename T> static constexpr bool is_quick() {
    return std::is_same<T, float>::value || std::is_same<T, tn__bf16>::value ||
           std::is_same<T, tn__half>::value;
}

template <int F, typename T>
static tn_status launch_fold(tn_context *ctx, const plan &p, bool packs) {
    int64_t results = p.stays.total * p.bands;
    if constexpr (is_quick<T>()) {
        const int V = tn__pack<T>::size;
        if (p.inner_goes && (p.bands > 1 || p.length > 2048)) {
            return TN_LAUNCH(ctx, (fold_rows<F, T, THREADS>), (unsigned)results, THREADS, 0, p);
        }
        if (packs) {
            unsigned grid = (unsigned)(results * tn__ceil_div(p.inner, LANES * V));
            return TN_LAUNCH(ctx, (fold_columns<F, T, V>), grid, THREADS, 0, p);
        }
    }
    if (p.inner_goes) {
        unsigned grid = (unsigned)tn__ceil_div(results, THREADS / 32);
        return TN_LAUNCH(ctx, (fold_rows<F, T, 32>), grid, THREADS, 0, p);
    }
    unsigned grid = (unsigned)(results * tn__ceil_div(p.inner, LANES));
    return TN_LAUNCH(ctx, (fold_columns<F, T, 1>), grid, THREADS, 0, p);
}

template <int F, typename T> static tn_status run(tn_context *ctx, plan p) {
    typedef typename kind<T>::total A;
    const int V = tn__pack<T>::size;
    bool packs = is_quick<T>() && !p.inner_goes && p.inner_x == 1 && p.inner >= LANES * V;
    int64_t width = p.inner_goes ? 1 : p.inner;
    if (p.inner_goes) {
        cut(&p, p.stays.total, 8192, THREADS * V);
    } else {
        int64_t pieces = tn__ceil_div(p.inner, LANES * (packs ? V : 1));
        cut(&p, p.stays.total * pieces, STRIPS * STEPS, STRIPS * STEPS);
    }
    size_t bytes = p.bands > 1 ? (size_t)(p.stays.total * p.bands * width) * sizeof(A) : 0;
    if (bytes > 0) {
        p.partial = tn__cuda_scratch(ctx, bytes);
        if (!p.partial) {
            return TN_ENOMEM;
        }
    }
    tn_status status = launch_fold<F, T>(ctx, p, packs);
    if (status == TN_OK && bytes > 0) {
        int64_t pieces = tn__ceil_div(width, width == 1 ? 1 : LANES);
        status =
            TN_LAUNCH(ctx, (join_bands<F, A>), (unsigned)(p.stays.total * pieces), THREADS, 0, p);
    }
    tn__cuda_scratch_free(ctx, p.partial, bytes);
    return status;
}

/* ---- reduce ----------------------------------------------------------------------------------------------- */

static bool reduces(tn_reduction f, tn_dtype y, tn_dtype x) {
    switch (f) {
    case TN_RED_SUM:
        return (tn__is_float(x) && tn__is_float(y)) || (tn__is_integer(x) && y == TN_I64);
    case TN_RED_MEAN:
    case TN_RED_SUM_SQUARES:
        return tn__is_float(x) && tn__is_float(y);
    case TN_RED_MAX:
    case TN_RED_MIN:
        return (tn__is_float(x) || tn__is_integer(x)) && y == x;
    default:
        return x == TN_BOOL && y == TN_BOOL;
    }
}

template <typename T>
static tn_status reduce_floats(tn_context *ctx, tn_reduction f, const plan &p) {
    switch (f) {
    case TN_RED_MAX:
        return run<MOST, T>(ctx, p);
    case TN_RED_MIN:
        return run<LEAST, T>(ctx, p);
    case TN_RED_SUM_SQUARES:
        return run<SQUARES, T>(ctx, p);
    default:
        return run<SUM, T>(ctx, p);
    }
}

template <typename T>
static tn_status reduce_whole(tn_context *ctx, tn_reduction f, const plan &p) {
    switch (f) {
    case TN_RED_MAX:
        return run<MOST, T>(ctx, p);
    case TN_RED_MIN:
        return run<LEAST, T>(ctx, p);
    default:
        return run<SUM, T>(ctx, p);
    }
}

static tn_status reduce(tn_context *ctx, tn_reduction f, tn_dtype dtype, const plan &p) {
    switch (dtype) {
    case TN_I64:
        return reduce_whole<int64_t>(ctx, f, p);
    case TN_I32:
        return reduce_whole<int32_t>(ctx, f, p);
    case TN_U8:
        return reduce_whole<uint8_t>(ctx, f, p);
    case TN_BOOL: /* any is the largest of 0 and 1, all the smallest */
        return f == TN_RED_ANY ? run<MOST, tn__truth>(ctx, p) : run<LEAST, tn__truth>(ctx, p);
    default:
        TN_FLOATS(dtype, return reduce_floats<T>(ctx, f, p));
    }
}

extern "C" tn_status tn__cuda_reduce(tn_context *ctx, tn_reduction f, const tn_desc *y,
                                     const tn_desc *x) {
    if (!reduces(f, y->dtype, x->dtype)) {
        return TN_EUNSUPPORTED;
    }
    axes stays = {}, goes = {};
    stays.total = goes.total = 1;
    int order[TN_MAX_DIMS], n = sorted(x, order);
    for (int k = 0; k < n; k++) {
        int d = order[k];
        bool leaves = y->size[d] == 1;
        push_axis(leaves ? &goes : &stays, x->size[d], x->stride[d], leaves ? 0 : y->stride[d]);
    }
    if (stays.total == 0) {
        return TN_OK;
    }
    void *scratch = NULL;
    size_t bytes = 0;
    tn_status status = TN_OK;
    if (goes.count > 1 && goes.total > 0) {
        status = make_dense(ctx, x, &stays, &goes, &scratch, &bytes);
    }
    if (status == TN_OK) {
        plan p = plan_of(y, scratch ? scratch : x->data, &stays, &goes);
        p.divisor = f == TN_RED_MEAN ? (double)p.length : 1;
        status = reduce(ctx, f, x->dtype, p);
    }
    tn__cuda_scratch_free(ctx, scratch, bytes);
    return status;
}

/* ---- argmax ------------------------------------------------------------------------------------------------ */

struct search {
    axes stays;
    int64_t length, stride;
    const void *x;
    int64_t *y;
};

template <typename V> static __device__ __forceinline__ tn__place<V> nowhere() {
    return {neutral<MOST, V>(), INT64_MAX};
}

static __device__ __forceinline__ void store_place(const search &s, int64_t o, long long at) {
    s.y[offset_in(s.stays, s.stays.y, o)] = at == INT64_MAX ? 0 : at; /* no elements: 0 */
}

/* A team a result; TEAM 1: a thread. */
template <typename T, int TEAM> __global__ void __launch_bounds__(THREADS) search_kernel(search s) {
    typedef typename kind<T>::value C;
    TN_SHARED(tn__place<C>, shared, 32);
    int64_t o = tn__team_number<TEAM>();
    if (o >= s.stays.total) {
        return;
    }
    const T *x = static_cast<const T *>(s.x) + offset_in(s.stays, s.stays.x, o);
    tn__place<C> best = nowhere<C>();
    for (int64_t at = tn__team_lane<TEAM>(); at < s.length; at += TEAM) {
        best = tn__join_place()(best, tn__place<C>{tn__load(x[at * s.stride]), at});
    }
    if constexpr (TEAM > 1) {
        best = tn__team_reduce<TEAM>(best, shared, tn__join_place());
    }
    if (tn__team_lane<TEAM>() == 0) {
        store_place(s, o, best.at);
    }
}

template <typename T> static tn_status run_search(tn_context *ctx, const search &s) {
    int64_t results = s.stays.total;
    bool apart = s.stride != 1 && results >= 4096; /* neighbouring results, neighbouring elements */
    if (s.length < few || apart) {
        unsigned grid = (unsigned)tn__ceil_div(results, THREADS);
        return TN_LAUNCH(ctx, (search_kernel<T, 1>), grid, THREADS, 0, s);
    }
    if (s.length <= 2048) {
        unsigned grid = (unsigned)tn__ceil_div(results, THREADS / 32);
        return TN_LAUNCH(ctx, (search_kernel<T, 32>), grid, THREADS, 0, s);
    }
    return TN_LAUNCH(ctx, (search_kernel<T, THREADS>), (unsigned)results, THREADS, 0, s);
}

extern "C" tn_status tn__cuda_argmax(tn_context *ctx, const tn_desc *y, const tn_desc *x, int dim) {
    if (y->dtype != TN_I64) {
        return TN_EUNSUPPORTED;
    }
    search s;
    s.stays.count = 0;
    s.stays.total = 1;
    s.length = x->size[dim];
    s.stride = x->stride[dim];
    s.x = x->data;
    s.y = static_cast<int64_t *>(y->data);
    for (int d = 0; d < x->ndim; d++) {
        if (d != dim && x->size[d] != 1) {
            push_axis(&s.stays, x->size[d], x->stride[d], y->stride[d]);
        }
    }
    if (s.stays.total == 0) {
        return x->dtype == TN_BOOL ? TN_EUNSUPPORTED : TN_OK;
    }
    switch (x->dtype) {
    case TN_I64:
        return run_search<int64_t>(ctx, s);
    case TN_I32:
        return run_search<int32_t>(ctx, s);
    case TN_U8:
        return run_search<uint8_t>(ctx, s);
    default:
        TN_FLOATS(x->dtype, return run_search<T>(ctx, s));
    }
}
