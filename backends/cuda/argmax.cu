/* argmax over one dimension of any dtype but bool: the first of the largest; NaN counts as
 * the largest (block.cuh: tn__join_place). */
#include "backends/cuda/axes.cuh"

/* With fewer than `few` elements per result, each thread computes one,
 * and adjacent threads take adjacent results. */
static const int64_t few = 32;
enum { THREADS = 256 };

struct search {
    tn__axes stays;
    int64_t length, stride;
    const void *x;
    tn_dtype dtype;
    int64_t *y;
};

/* One team per result; TEAM 1: a thread. V: elements are read as double or as 64-bit integers. */
template <typename V, int TEAM> __global__ void __launch_bounds__(THREADS) search_kernel(search s) {
    int64_t o = tn__team_number<TEAM>();
    if (o >= s.stays.total) {
        return;
    }
    int64_t x = tn__axes_offset(s.stays, s.stays.x, o);
    tn__place<V> best = {0, INT64_MAX};
    tn__set_lowest(&best.value);
    for (int64_t at = tn__team_lane<TEAM>(); at < s.length; at += TEAM) {
        tn__place<V> here = {0, at};
        tn__get(&here.value, s.x, s.dtype, x + at * s.stride);
        best = tn__join_place()(best, here);
    }
    if constexpr (TEAM > 1) {
        TN_SHARED(tn__place<V>, shared, 32);
        best = tn__team_reduce<TEAM>(best, shared, tn__join_place());
    }
    if (tn__team_lane<TEAM>() == 0) { /* no elements: 0 */
        s.y[tn__axes_offset(s.stays, s.stays.y, o)] = best.at == INT64_MAX ? 0 : best.at;
    }
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
    if (s.stays.total == 0) {
        return TN_OK;
    }
    return tn__is_float(x->dtype) ? run_search<double>(ctx, s) : run_search<long long>(ctx, s);
}
