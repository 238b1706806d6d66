/* cumsum and cumprod: every element becomes the sum or product of those before it and itself.
 *
 * A line along the dimension is cut into bands if there are few lines: the first launch leaves each
 * band's total in scratch memory, the second joins those of the bands before its own in order and
 * goes over the band. A team of threads takes a band; where neighbouring lines are neighbours in
 * memory, or lines are short, a thread does. Which order things are joined in depends only on
 * shapes and strides.
 *
 * Floats are joined in double and rounded once, integers are i64 and wrap.
 */
#include "backends/cuda/axes.cuh"
#include "backends/lines.h"

struct scan {
    tn__axes lines;
    int64_t length, x_step, y_step; /* elements of a line, from its first in scanning order */
    int64_t bands, height;          /* of length */
    const void *x;
    void *y, *totals; /* totals: (bands, lines) */
    tn_dtype dtype;
};

/* ---- What is joined -------------------------------------------------------------------------- */

/* A product with an exponent of its own: 0 times parts that are too large for double stays 0, as it
 * does one by one. (One by one, a product that has left double's range stays infinite; here it may
 * come back.) */
struct product {
    double part;
    long long exponent;
};

static __device__ __forceinline__ product product_of(double part, long long exponent) {
    int more = 0;
    if (isfinite(part) && part != 0) { part = frexp(part, &more); }
    return {part, part == 0 ? 0 : exponent + more};
}

struct sum_floats {
    typedef double value;
    static __device__ __forceinline__ value none() { return 0; }
    static __device__ __forceinline__ value join(value a, value b) { return a + b; }
    static __device__ __forceinline__ value read(const scan &s, int64_t at) {
        return tn__get_float(s.x, s.dtype, at);
    }
    static __device__ __forceinline__ void write(const scan &s, int64_t at, value v) {
        tn__put(s.y, s.dtype, at, v);
    }
};

struct sum_integers {
    typedef unsigned long long value;
    static __device__ __forceinline__ value none() { return 0; }
    static __device__ __forceinline__ value join(value a, value b) { return a + b; }
    static __device__ __forceinline__ value read(const scan &s, int64_t at) {
        return (value)((const int64_t *)s.x)[at];
    }
    static __device__ __forceinline__ void write(const scan &s, int64_t at, value v) {
        ((int64_t *)s.y)[at] = (int64_t)v;
    }
};

struct multiply_floats {
    typedef product value;
    static __device__ __forceinline__ value none() { return {1, 0}; }
    static __device__ __forceinline__ value join(value a, value b) {
        return product_of(a.part * b.part, a.exponent + b.exponent);
    }
    static __device__ __forceinline__ value read(const scan &s, int64_t at) {
        return product_of(tn__get_float(s.x, s.dtype, at), 0);
    }
    static __device__ __forceinline__ void write(const scan &s, int64_t at, value v) {
        long long most = 4000, e = v.exponent;
        e = e > most ? most : e < -most ? -most : e;
        tn__put(s.y, s.dtype, at, ldexp(v.part, (int)e));
    }
};

struct multiply_integers : sum_integers {
    static __device__ __forceinline__ value none() { return 1; }
    static __device__ __forceinline__ value join(value a, value b) { return a * b; }
};

/* ---- Teams ----------------------------------------------------------------------------------- */

template <typename V> static __device__ __forceinline__ V lane_before(V v, unsigned step) {
    return __shfl_up_sync(TN_FULL, v, step);
}
static __device__ __forceinline__ product lane_before(product v, unsigned step) {
    return {lane_before(v.part, step), lane_before(v.exponent, step)};
}

template <typename M> struct joined {
    typedef typename M::value V;
    __device__ __forceinline__ V operator()(V a, V b) const { return M::join(a, b); }
};

/* Joins the values of the team's threads: *before those of the threads before this one, *all of
 * them. `shared` has an element for each warp. */
template <typename M, int TEAM>
static __device__ __forceinline__ void team_scan(typename M::value mine, typename M::value *shared,
                                                 typename M::value *before,
                                                 typename M::value *all) {
    typedef typename M::value V;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    V sum = mine;
    for (unsigned step = 1; step < 32; step *= 2) {
        V other = lane_before(sum, step);
        sum = lane >= step ? M::join(other, sum) : sum;
    }
    V shifted = lane_before(sum, 1);
    *before = lane > 0 ? shifted : M::none();
    __syncthreads();
    if (lane == 31) { shared[warp] = sum; }
    __syncthreads();
    const int warps = TEAM / 32;
    const V *own = shared + warp / warps * warps;
    V others = M::none(), total = M::none();
    for (int w = 0; w < warps; w++) {
        others = w == (int)warp % warps ? total : others;
        total = M::join(total, own[w]);
    }
    *before = M::join(others, *before);
    *all = total;
}

/* A team's band of a line; there: false for teams beyond the last. */
struct scan_part {
    int64_t line, band, from, end, x, y;
    bool there;
};

template <int TEAM> static __device__ __forceinline__ scan_part part_of_team(const scan &s) {
    scan_part p;
    int64_t item = (int64_t)blockIdx.x * (blockDim.x / TEAM) + threadIdx.x / TEAM;
    p.line = item % s.lines.total;
    p.band = item / s.lines.total;
    p.there = p.band < s.bands;
    p.from = p.band * s.height;
    p.end = p.from + s.height < s.length ? p.from + s.height : s.length;
    p.end = p.there ? p.end : p.from;
    p.x = tn__axes_offset(s.lines, s.lines.x, p.line);
    p.y = tn__axes_offset(s.lines, s.lines.y, p.line);
    return p;
}

enum { SCAN_BLOCK = 256, SCAN_ITEMS = 4 };

template <typename M, int TEAM>
__global__ void __launch_bounds__(SCAN_BLOCK) scan_totals_kernel(scan s) {
    typedef typename M::value V;
    scan_part p = part_of_team<TEAM>(s);
    V total = M::none();
    for (int64_t at = p.from + threadIdx.x % TEAM; at < p.end; at += TEAM) {
        total = M::join(total, M::read(s, p.x + at * s.x_step));
    }
    if constexpr (TEAM > 1) {
        TN_SHARED(V, shared, 32);
        total = tn__team_reduce<TEAM>(total, shared, joined<M>());
    }
    if (p.there && threadIdx.x % TEAM == 0) {
        static_cast<V *>(s.totals)[p.band * s.lines.total + p.line] = total;
    }
}

/* What the bands before this one come to. */
template <typename M, int TEAM>
static __device__ __forceinline__ typename M::value join_before(const scan &s, const scan_part &p,
                                                                typename M::value *shared) {
    typedef typename M::value V;
    V total = M::none();
    for (int64_t band = threadIdx.x % TEAM; p.there && band < p.band; band += TEAM) {
        total = M::join(total, static_cast<const V *>(s.totals)[band * s.lines.total + p.line]);
    }
    if constexpr (TEAM > 1) { total = tn__team_reduce<TEAM>(total, shared, joined<M>()); }
    return total;
}

/* A team goes over its band, tile by tile. All teams of a block go as many rounds, since their
 * bands have one height. */
template <typename M, int TEAM>
static __device__ __forceinline__ void scan_band(const scan &s, const scan_part &p,
                                                 typename M::value carry,
                                                 typename M::value *shared) {
    typedef typename M::value V;
    TN_NO_UNROLL
    for (int64_t tile = 0; tile < s.height; tile += TEAM * SCAN_ITEMS) {
        int64_t at = p.from + tile + threadIdx.x % TEAM * SCAN_ITEMS;
        V value[SCAN_ITEMS], mine = M::none(), before, all;
        TN_UNROLL
        for (int i = 0; i < SCAN_ITEMS; i++) {
            if (at + i < p.end) { mine = M::join(mine, M::read(s, p.x + (at + i) * s.x_step)); }
            value[i] = mine;
        }
        team_scan<M, TEAM>(mine, shared, &before, &all);
        before = M::join(carry, before);
        carry = M::join(carry, all);
        TN_UNROLL
        for (int i = 0; i < SCAN_ITEMS; i++) {
            if (at + i < p.end) {
                M::write(s, p.y + (at + i) * s.y_step, M::join(before, value[i]));
            }
        }
    }
}

template <typename M, int TEAM> __global__ void __launch_bounds__(SCAN_BLOCK) scan_kernel(scan s) {
    typedef typename M::value V;
    TN_SHARED(V, shared, 32);
    scan_part p = part_of_team<TEAM>(s);
    V carry = s.totals ? join_before<M, TEAM>(s, p, shared) : M::none();
    if constexpr (TEAM == 1) {
        TN_NO_UNROLL
        for (int64_t at = p.from; at < p.end; at++) {
            carry = M::join(carry, M::read(s, p.x + at * s.x_step));
            M::write(s, p.y + at * s.y_step, carry);
        }
    } else {
        scan_band<M, TEAM>(s, p, carry, shared);
    }
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Cuts lines into bands of at least this length if `teams` would leave most of the device idle. */
static void scan_cut(scan *s, int64_t teams, int64_t least) {
    const int64_t wanted = 1024;
    int64_t limit = s->length / least, bands = tn__ceil_div(wanted, teams);
    bands = bands < limit ? bands : limit;
    if (teams < wanted / 2 && bands > 1) {
        s->height = tn__ceil_div(s->length, bands);
        s->bands = tn__ceil_div(s->length, s->height);
    }
}

template <typename M, int TEAM> static tn_status launch_scan(tn_context *ctx, scan s) {
    typedef typename M::value V;
    int64_t teams = SCAN_BLOCK / TEAM;
    scan_cut(&s, tn__ceil_div(s.lines.total, teams), TEAM == 1 ? 64 : 8 * TEAM * SCAN_ITEMS);
    unsigned grid = (unsigned)tn__ceil_div(s.lines.total * s.bands, teams);
    TN__SCRATCH_IF(s.bands > 1, V, totals, ctx, s.lines.total * s.bands);
    if (s.bands > 1 && !totals) { return TN_ENOMEM; }
    s.totals = totals;
    tn_status status =
        totals ? TN_LAUNCH(ctx, (scan_totals_kernel<M, TEAM>), grid, SCAN_BLOCK, 0, s) : TN_OK;
    return status == TN_OK ? TN_LAUNCH(ctx, (scan_kernel<M, TEAM>), grid, SCAN_BLOCK, 0, s)
                           : status;
}

template <typename M> static tn_status run_scan(tn_context *ctx, const scan &s) {
    const int64_t few = 32;
    int last = s.lines.count - 1;
    int64_t step = s.x_step < 0 ? -s.x_step : s.x_step;
    bool beside = last >= 0 && s.lines.x[last] < step && s.lines.size[last] >= few;
    if (beside || s.length < few) { return launch_scan<M, 1>(ctx, s); }
    return s.length <= 2048 ? launch_scan<M, 32>(ctx, s) : launch_scan<M, SCAN_BLOCK>(ctx, s);
}

/* The lines of x and y; y has x's dtype. In reverse a line begins at its end. */
static scan scan_of(const tn_op_call *c) {
    const tn__cumulative_args *args = (const tn__cumulative_args *)c->args;
    const tn_desc *x = c->x[0], *y = c->y[0];
    int dim = args->dim < 0 ? args->dim + x->ndim : args->dim;
    scan s = {};
    s.lines = tn__axes_beside(x, y, dim);
    s.length = x->ndim > 0 ? x->size[dim] : 1;
    s.x_step = x->ndim > 0 ? x->stride[dim] : 1;
    s.y_step = x->ndim > 0 ? y->stride[dim] : 1;
    s.bands = 1;
    s.height = s.length;
    s.x = x->data;
    s.y = y->data;
    s.dtype = x->dtype;
    if (args->reverse && s.length > 0) {
        int64_t bytes = (int64_t)tn__cuda_element(x->dtype) * (s.length - 1);
        s.x = (const char *)s.x + bytes * s.x_step;
        s.y = (char *)s.y + bytes * s.y_step;
        s.x_step = -s.x_step;
        s.y_step = -s.y_step;
    }
    return s;
}

template <typename Floats, typename Integers> static tn_status run_lines(const tn_op_call *c) {
    const tn_desc *x = c->x[0];
    scan s = scan_of(c);
    if (c->y[0]->dtype != x->dtype || (!tn__is_float(x->dtype) && x->dtype != TN_I64)) {
        return TN_EUNSUPPORTED;
    }
    if (s.lines.total * s.length == 0) { return TN_OK; }
    return tn__is_float(x->dtype) ? run_scan<Floats>(c->ctx, s) : run_scan<Integers>(c->ctx, s);
}

const tn_op_kernel tn__cuda_op_cumsum = {run_lines<sum_floats, sum_integers>, NULL};
const tn_op_kernel tn__cuda_op_cumprod = {run_lines<multiply_floats, multiply_integers>, NULL};
