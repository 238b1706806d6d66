/* Reductions over any dimensions and strides: sum, mean, max, min, sum of squares, any, all.
 *
 * x's dimensions of size 1 are dropped, the others sorted by stride and merged. If the innermost
 * one is reduced, a team of threads folds each result's elements (fold_rows); if it stays,
 * neighbouring threads fold neighbouring results (fold_columns). If there are too few results to
 * fill the device, the reduced range is cut into bands, whose partial results go to scratch memory
 * and are joined in order by a second kernel. All of this depends only on the operands' shapes,
 * strides and alignment. Reduced dimensions that do not merge into one are rare: x is then copied
 * to scratch memory with them last.
 *
 * What is folded is chosen when the kernel runs, which costs nothing: it waits for memory. f32,
 * bf16 and f16 that are dense and aligned are read as packs: a thread adds up to eight in f32 and
 * continues in double, so a sum's error is that of its last rounding. All others are read one by
 * one: floats as double, integers and bools as 64-bit integers.
 */
#include "backends/cuda/axes.cuh"
#include "backends/cuda/rows.cuh"

/* ---- What is folded -------------------------------------------------------------------------- */

enum fold { SUM, SQUARES, MOST };

template <typename V> static __device__ __forceinline__ V add_values(V a, V b) {
    if constexpr (std::is_integral<V>::value) { /* wraps */
        return (V)((unsigned long long)a + (unsigned long long)b);
    } else {
        return a + b;
    }
}

template <typename V> static __device__ __forceinline__ V larger_of(V a, V b) {
    return a > b || a != a ? a : b; /* NaN wins */
}

/* Reverses the order of numbers; applied twice, it returns x. */
template <typename V> static __device__ __forceinline__ V reverse_order(V x) {
    if constexpr (std::is_integral<V>::value) {
        return ~x;
    } else {
        return -x;
    }
}

struct joined {
    bool most_wins;
    template <typename V> __device__ __forceinline__ V operator()(V a, V b) const {
        return most_wins ? larger_of(a, b) : add_values(a, b);
    }
};

/* ---- The plan, made on the host -------------------------------------------------------------- */

struct plan {
    tn__axes stays;        /* the results */
    bool rows;             /* a result's elements are closer together than the results */
    int64_t length, step;  /* elements of a result */
    int64_t bands, height; /* of length */
    fold f;
    bool reversed; /* MOST of the reversed numbers: the least */
    const void *x;
    void *y;
    tn_dtype x_dtype, y_dtype;
    double divisor; /* of the results: MEAN */
    int strips;     /* of a block of fold_columns */
    void *partial;  /* (bands, results); NULL for one band */
};

/* Copies x to dense memory, with the dimensions of `stays` and then those of `goes`. */
static tn_status make_dense(tn_context *ctx, const tn_desc *x, tn__axes *stays, tn__axes *goes,
                            void *memory) {
    tn_desc from = *x, to = *x;
    int64_t count = 1;
    to.data = memory;
    from.ndim = to.ndim = stays->count + goes->count;
    for (int k = from.ndim - 1; k >= 0; k--) {
        tn__axes *a = k < stays->count ? stays : goes;
        int i = k < stays->count ? k : k - stays->count;
        from.size[k] = to.size[k] = a->size[i];
        from.stride[k] = a->x[i];
        to.stride[k] = a->x[i] = count;
        count *= a->size[i];
    }
    goes->count = 1;
    goes->size[0] = goes->total;
    goes->x[0] = 1;
    return tn__cuda_copy(ctx, &to, &from);
}

/* With fewer than `few` elements per result, each thread computes one, and neighbouring threads
 * take neighbouring results. */
static const int64_t few = 32;
enum { THREADS = 256, STRIPS = 8 };

static plan plan_of(const tn_desc *y, tn_dtype x_dtype, const void *x, const tn__axes *stays,
                    const tn__axes *goes) {
    plan p;
    p.stays = *stays;
    p.length = goes->total;
    p.step = goes->count > 0 ? goes->x[0] : 1;
    p.rows = stays->count == 0 || (p.step < stays->x[stays->count - 1] && p.length >= few);
    p.bands = 1;
    p.height = p.length;
    p.f = SUM;
    p.reversed = false;
    p.x = x;
    p.y = y->data;
    p.x_dtype = x_dtype;
    p.y_dtype = y->dtype;
    p.divisor = 1;
    p.strips = p.length < few ? 1 : STRIPS;
    p.partial = NULL;
    return p;
}

/* Whether x can be read in packs of 16 bytes: along the reduced elements, or along the results. */
static bool comes_in_packs(const plan &p) {
    int64_t bytes = (int64_t)tn__cuda_element(p.x_dtype), size = 16 / bytes;
    int outer = p.rows ? p.stays.count : p.stays.count - 1;
    bool fits = (uintptr_t)p.x % 16 == 0;
    for (int k = 0; k < outer; k++) {
        fits = fits && p.stays.x[k] * bytes % 16 == 0;
    }
    if (p.rows) { return fits && p.step == 1; }
    return fits && p.stays.x[outer] == 1 && p.stays.size[outer] % size == 0 &&
           p.stays.total >= 32 * size && p.step * bytes % 16 == 0;
}

/* Cuts length into bands if `items` teams would leave most of the device idle. */
static void plan_cut(plan *p, int64_t items, int64_t least, int64_t unit) {
    const int64_t wanted = 1024;
    if (items < wanted / 2 && p->length > 2 * least) {
        int64_t bands = tn__ceil_div(wanted, items), limit = tn__ceil_div(p->length, least);
        p->height =
            tn__ceil_div(tn__ceil_div(p->length, bands < limit ? bands : limit), unit) * unit;
        p->bands = tn__ceil_div(p->length, p->height);
    }
}

/* ---- Elements as a kernel reads them --------------------------------------------------------- */

template <typename T> struct packs {
    typedef typename tn__compute<T>::type value;
    typedef double total;
    static const int size = tn__per_load<T>;

    static __device__ __forceinline__ value one(const plan &p, int64_t at) {
        return tn__load(static_cast<const T *>(p.x)[at]);
    }
    static __device__ __forceinline__ void read(value *out, const plan &p, int64_t at) {
        const T *from = static_cast<const T *>(p.x) + at;
        tn__pack<T> pack = *reinterpret_cast<const tn__pack<T> *>(from);
        TN_UNROLL
        for (int k = 0; k < size; k++) {
            out[k] = tn__load(pack.at[k]);
        }
    }
};

template <typename V> struct singles {
    typedef V value, total;
    static const int size = 1;

    static __device__ __forceinline__ V one(const plan &p, int64_t at) {
        V x;
        tn__get(&x, p.x, p.x_dtype, at);
        return x;
    }
    static __device__ __forceinline__ void read(V *out, const plan &p, int64_t at) {
        *out = one(p, at);
    }
};

/* ---- Totals ---------------------------------------------------------------------------------- */

template <typename A> static __device__ __forceinline__ A total_nothing(const plan &p) {
    A total = 0;
    if (p.f == MOST) { tn__set_lowest(&total); }
    return total;
}

/* Adds `count` values, `step` apart, to the total. */
template <int count, int step, typename A, typename V>
static __device__ __forceinline__ void total_take(const plan &p, A &total, const V *value) {
    if (p.f == SQUARES) {
        TN_UNROLL
        for (int k = 0; k < count; k++) {
            total += (A)value[k * step] * (A)value[k * step];
        }
    } else if (p.f == SUM) {
        V part = value[0];
        TN_UNROLL
        for (int k = 1; k < count; k++) {
            part = add_values(part, value[k * step]);
        }
        total = add_values(total, (A)part);
    } else {
        TN_UNROLL
        for (int k = 0; k < count; k++) {
            V x = value[k * step];
            total = larger_of(total, (A)(p.reversed ? reverse_order(x) : x));
        }
    }
}

static __device__ __forceinline__ void put_total(const plan &p, int64_t at, double total) {
    tn__put(p.y, p.y_dtype, at, total / p.divisor);
}
static __device__ __forceinline__ void put_total(const plan &p, int64_t at, long long total) {
    tn__put_integer(p.y, p.y_dtype, at, total);
}

template <typename A>
static __device__ __forceinline__ void total_finish(const plan &p, int64_t result, A total) {
    put_total(p, tn__axes_offset(p.stays, p.stays.y, result),
              p.reversed ? reverse_order(total) : total);
}

/* Stores a band's share of a result: in y if there is only one band. */
template <typename A>
static __device__ __forceinline__ void total_give(const plan &p, int64_t result, int64_t band,
                                                  A total) {
    if (p.partial) {
        static_cast<A *>(p.partial)[band * p.stays.total + result] = total;
    } else {
        total_finish(p, result, total);
    }
}

/* Joins the bands: a block for one result, or for 32. */
template <typename A> __global__ void __launch_bounds__(THREADS) join_bands(plan p, int lanes) {
    TN_SHARED(A, shared, THREADS);
    joined join = {p.f == MOST};
    int thread = threadIdx.x, strips = THREADS / lanes;
    int64_t results = p.stays.total, result = (int64_t)blockIdx.x * lanes + thread % lanes;
    A total = total_nothing<A>(p);
    for (int64_t band = thread / lanes; band < p.bands && result < results; band += strips) {
        total = join(total, static_cast<const A *>(p.partial)[band * results + result]);
    }
    shared[thread] = total;
    __syncthreads();
    for (int half = strips / 2; half > 0; half /= 2) {
        if (thread < half * lanes) {
            shared[thread] = join(shared[thread], shared[thread + half * lanes]);
        }
        __syncthreads();
    }
    if (thread < lanes && result < results) { total_finish(p, result, shared[thread]); }
}

/* ---- Folds ----------------------------------------------------------------------------------- */

/* A team folds a band of one result's elements. */
template <typename R, int TEAM> __global__ void __launch_bounds__(THREADS) fold_rows(plan p) {
    typedef typename R::value C;
    typedef typename R::total A;
    TN_SHARED(A, shared, 32);
    int64_t item = tn__team_number<TEAM>(), result = item % p.stays.total,
            band = item / p.stays.total;
    if (band >= p.bands) { return; }
    int64_t from = band * p.height, end = from + p.height < p.length ? from + p.height : p.length;
    int64_t rest = end - (end - from) % R::size, x = tn__axes_offset(p.stays, p.stays.x, result);
    A total = total_nothing<A>(p);
    for (int64_t at = from + tn__team_lane<TEAM>() * R::size; at < rest; at += TEAM * R::size) {
        C value[R::size];
        R::read(value, p, x + at * p.step);
        total_take<R::size, 1>(p, total, value);
    }
    if (rest + tn__team_lane<TEAM>() < end) {
        C value = R::one(p, x + (rest + tn__team_lane<TEAM>()) * p.step);
        total_take<1, 1>(p, total, &value);
    }
    total = tn__team_reduce<TEAM>(total, shared, joined{p.f == MOST});
    if (tn__team_lane<TEAM>() == 0) { total_give(p, result, band, total); }
}

/* A block folds a band of neighbouring results, one pack of them per thread; its strips of threads
 * take elements in turn. */
enum { STEPS = 4 }; /* elements that a thread reads before it adds them in double */
template <typename R> __global__ void __launch_bounds__(THREADS) fold_columns(plan p) {
    typedef typename R::value C;
    typedef typename R::total A;
    const int W = R::size;
    TN_SHARED(A, shared, THREADS * W);
    int lanes = THREADS / p.strips, wide = lanes * W;
    int64_t results = p.stays.total, pieces = tn__ceil_div(results, wide);
    int64_t band = blockIdx.x / pieces, first = blockIdx.x % pieces * wide;
    int64_t from = band * p.height, end = from + p.height < p.length ? from + p.height : p.length;
    int64_t result = first + threadIdx.x % lanes * W, at = from + threadIdx.x / lanes;
    A total[W];
    TN_UNROLL
    for (int w = 0; w < W; w++) {
        total[w] = total_nothing<A>(p);
    }
    if (result < results) {
        int64_t x = tn__axes_offset(p.stays, p.stays.x, result);
        C value[STEPS * W];
        for (; at + (STEPS - 1) * p.strips < end; at += STEPS * p.strips) {
            TN_UNROLL
            for (int s = 0; s < STEPS; s++) {
                R::read(value + s * W, p, x + (at + s * p.strips) * p.step);
            }
            TN_UNROLL
            for (int w = 0; w < W; w++) {
                total_take<STEPS, W>(p, total[w], value + w);
            }
        }
        for (; at < end; at += p.strips) {
            R::read(value, p, x + at * p.step);
            TN_UNROLL
            for (int w = 0; w < W; w++) {
                total_take<1, 1>(p, total[w], value + w);
            }
        }
    }
    TN_UNROLL
    for (int w = 0; w < W; w++) {
        shared[threadIdx.x * W + w] = total[w];
    }
    __syncthreads();
    joined join = {p.f == MOST};
    for (int i = threadIdx.x; i < wide && first + i < results; i += THREADS) {
        A sum = shared[i];
        for (int strip = 1; strip < p.strips; strip++) {
            sum = join(sum, shared[strip * wide + i]);
        }
        total_give(p, first + i, band, sum);
    }
}

template <typename R> static tn_status launch_fold(tn_context *ctx, const plan &p) {
    int64_t items = p.stays.total * p.bands;
    if (!p.rows) {
        int64_t pieces = tn__ceil_div(p.stays.total, THREADS / p.strips * R::size);
        return TN_LAUNCH(ctx, (fold_columns<R>), (unsigned)(pieces * p.bands), THREADS, 0, p);
    }
    if (p.bands > 1 || p.length > 2048) {
        return TN_LAUNCH(ctx, (fold_rows<R, THREADS>), (unsigned)items, THREADS, 0, p);
    }
    unsigned grid = (unsigned)tn__ceil_div(items, THREADS / 32);
    return TN_LAUNCH(ctx, (fold_rows<R, 32>), grid, THREADS, 0, p);
}

template <typename R> static tn_status run_plan(tn_context *ctx, plan p) {
    typedef typename R::total A;
    int64_t results = p.stays.total;
    if (p.rows) {
        plan_cut(&p, results, 8192, THREADS * R::size);
    } else {
        int64_t pieces = tn__ceil_div(results, THREADS / p.strips * R::size);
        plan_cut(&p, pieces, p.strips * STEPS, p.strips * STEPS);
    }
    TN__SCRATCH_IF(p.bands > 1, A, partial, ctx, results * p.bands);
    if (p.bands > 1 && !partial) { return TN_ENOMEM; }
    p.partial = partial;
    tn_status status = launch_fold<R>(ctx, p);
    if (status != TN_OK || !partial) { return status; }
    int lanes = results < 32 ? 1 : 32;
    unsigned grid = (unsigned)tn__ceil_div(results, lanes);
    return TN_LAUNCH(ctx, join_bands<A>, grid, THREADS, 0, p, lanes);
}

/* ---- reduce ---------------------------------------------------------------------------------- */

static bool reduce_handles(tn_reduction f, tn_dtype y, tn_dtype x) {
    switch (f) {
    case TN_SUM:
        return (tn__is_float(x) && tn__is_float(y)) || (tn__is_integer(x) && y == TN_I64);
    case TN_MEAN:
    case TN_SUM_SQUARES:
        return tn__is_float(x) && tn__is_float(y);
    case TN_MAX:
    case TN_MIN:
        return (tn__is_float(x) || tn__is_integer(x)) && y == x;
    case TN_ANY:
    case TN_ALL:
        return x == TN_BOOL && y == TN_BOOL;
    default:
        return false;
    }
}

/* The fold for f. TN_ANY is a sum of ones: false if there are no elements. TN_ALL is the least. */
static void set_fold(plan *p, tn_reduction f) {
    bool least = f == TN_MIN || f == TN_ALL;
    p->f = f == TN_SUM_SQUARES ? SQUARES : f == TN_MAX || least ? MOST : SUM;
    p->reversed = least;
    p->divisor = f == TN_MEAN ? (double)p->length : 1;
}

static tn_status reduce_plan(tn_context *ctx, const plan &p) {
    if (!tn__is_float(p.x_dtype)) { return run_plan<singles<long long>>(ctx, p); }
    if (p.x_dtype == TN_F64 || !comes_in_packs(p)) { return run_plan<singles<double>>(ctx, p); }
    return p.x_dtype == TN_F32    ? run_plan<packs<float>>(ctx, p)
           : p.x_dtype == TN_BF16 ? run_plan<packs<tn__bf16>>(ctx, p)
                                  : run_plan<packs<tn__half>>(ctx, p);
}

extern "C" tn_status tn__cuda_reduce(tn_context *ctx, tn_reduction f, const tn_desc *y,
                                     const tn_desc *x) {
    if (!reduce_handles(f, y->dtype, x->dtype)) { return TN_EUNSUPPORTED; }
    tn__axes stays = {}, goes = {};
    stays.total = goes.total = 1;
    int order[TN_MAX_DIMS], n = tn__axes_order(x, order);
    for (int k = 0; k < n; k++) {
        int d = order[k];
        bool leaves = y->size[d] == 1;
        tn__axes_push(leaves ? &goes : &stays, x->size[d], x->stride[d], leaves ? 0 : y->stride[d]);
    }
    if (stays.total == 0) { return TN_OK; }
    bool copies = goes.count > 1 && goes.total > 0;
    TN__SCRATCH_IF(copies, char, dense, ctx,
                   (stays.total * goes.total * (int64_t)tn__cuda_element(x->dtype)));
    if (copies && !dense) { return TN_ENOMEM; }
    tn_status status = copies ? make_dense(ctx, x, &stays, &goes, dense) : TN_OK;
    if (status != TN_OK) { return status; }
    plan p = plan_of(y, x->dtype, copies ? dense : x->data, &stays, &goes);
    set_fold(&p, f);
    return reduce_plan(ctx, p);
}
