/* argmax over one dimension of any dtype but bool: the first of the largest; NaN counts as
 * the largest (block.cuh: tn__join_place).
 *
 * A few long rows (logits) are cut in bands, one for each block, whose winners a second kernel
 * compares. */
#include "backends/cuda/axes.cuh"

/* With fewer than `few` elements per result, each thread computes one,
 * and adjacent threads take adjacent results. */
static const int64_t few = 32;
enum { THREADS = 256, BAND = 4096 };

struct search {
    tn__axes stays;
    int64_t length, stride;
    const void *x;
    tn_dtype dtype;
    int64_t *y;
};

/* The winner of elements [from, end) of row o, in every thread of the team. */
template <typename V, int TEAM>
static __device__ __forceinline__ tn__place<V> best_of(const search &s, int64_t o, int64_t from,
                                                       int64_t end) {
    int64_t x = tn__axes_offset(s.stays, s.stays.x, o);
    tn__place<V> best = {0, INT64_MAX};
    tn__set_lowest(&best.value);
    for (int64_t at = from + tn__team_lane<TEAM>(); at < end; at += TEAM) {
        tn__place<V> here = {0, at};
        tn__get(&here.value, s.x, s.dtype, x + at * s.stride);
        best = tn__join_place()(best, here);
    }
    if constexpr (TEAM > 1) {
        TN_SHARED(tn__place<V>, shared, 32);
        best = tn__team_reduce<TEAM>(best, shared, tn__join_place());
    }
    return best;
}

template <typename V>
static __device__ __forceinline__ void put_place(const search &s, int64_t o, tn__place<V> best) {
    s.y[tn__axes_offset(s.stays, s.stays.y, o)] = best.at == INT64_MAX ? 0 : best.at; /* empty: 0 */
}

/* One team per result; TEAM 1: a thread. V: elements are read as double or as 64-bit integers. */
template <typename V, int TEAM> __global__ void __launch_bounds__(THREADS) search_kernel(search s) {
    int64_t o = tn__team_number<TEAM>();
    if (o >= s.stays.total) { return; }
    tn__place<V> best = best_of<V, TEAM>(s, o, 0, s.length);
    if (tn__team_lane<TEAM>() == 0) { put_place(s, o, best); }
}

/* A block per band of a row. found: (results, bands) */
template <typename V>
__global__ void __launch_bounds__(THREADS)
    search_bands(search s, int64_t bands, tn__place<V> *found) {
    int64_t from = blockIdx.x % bands * BAND;
    tn__place<V> best = best_of<V, THREADS>(s, blockIdx.x / bands, from,
                                            from + BAND < s.length ? from + BAND : s.length);
    if (threadIdx.x == 0) { found[blockIdx.x] = best; }
}

/* A block per row. */
template <typename V>
__global__ void __launch_bounds__(THREADS)
    join_bands(search s, int64_t bands, const tn__place<V> *found) {
    TN_SHARED(tn__place<V>, shared, 32);
    tn__place<V> best = {0, INT64_MAX};
    tn__set_lowest(&best.value);
    for (int64_t i = threadIdx.x; i < bands; i += THREADS) {
        best = tn__join_place()(best, found[blockIdx.x * bands + i]);
    }
    best = tn__team_reduce<THREADS>(best, shared, tn__join_place());
    if (threadIdx.x == 0) { put_place(s, blockIdx.x, best); }
}

template <typename V> static tn_status run_bands(tn_context *ctx, const search &s) {
    int64_t bands = tn__ceil_div(s.length, BAND), blocks = bands * s.stays.total;
    TN__SCRATCH(tn__place<V>, found, ctx, blocks);
    if (!found) { return TN_ENOMEM; }
    tn_status status =
        TN_LAUNCH(ctx, (search_bands<V>), (unsigned)blocks, THREADS, 0, s, bands, found);
    return status != TN_OK ? status
                           : TN_LAUNCH(ctx, (join_bands<V>), (unsigned)s.stays.total, THREADS, 0, s,
                                       bands, (const tn__place<V> *)found);
}

template <typename V> static tn_status run_search(tn_context *ctx, const search &s) {
    int64_t results = s.stays.total;
    bool apart = s.stride != 1 && results >= 4096; /* adjacent results read adjacent elements */
    if (s.length < few || apart) {
        unsigned grid = (unsigned)tn__ceil_div(results, THREADS);
        return TN_LAUNCH(ctx, (search_kernel<V, 1>), grid, THREADS, 0, s);
    }
    if (s.length <= 2048) {
        unsigned grid = (unsigned)tn__ceil_div(results, THREADS / 32);
        return TN_LAUNCH(ctx, (search_kernel<V, 32>), grid, THREADS, 0, s);
    }
    if (s.length > 2 * BAND && results < 4 * tn__cuda_device_of(ctx)->processors) {
        return run_bands<V>(ctx, s);
    }
    return TN_LAUNCH(ctx, (search_kernel<V, THREADS>), (unsigned)results, THREADS, 0, s);
}

extern "C" tn_status tn__cuda_argmax(tn_context *ctx, const tn_desc *y, const tn_desc *x, int dim) {
    if (y->dtype != TN_I64 || !(tn__is_float(x->dtype) || tn__is_integer(x->dtype))) {
        return TN_EUNSUPPORTED;
    }
    search s;
    s.stays = tn__axes_beside(x, y, dim);
    s.length = x->size[dim];
    s.stride = x->stride[dim];
    s.x = x->data;
    s.dtype = x->dtype;
    s.y = static_cast<int64_t *>(y->data);
    if (s.stays.total == 0) { return TN_OK; }
    return tn__is_float(x->dtype) ? run_search<double>(ctx, s) : run_search<long long>(ctx, s);
}
