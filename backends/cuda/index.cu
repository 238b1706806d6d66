/* Gathers and scatter-adds: reading and adding at indexed places.
 *
 * A bad index is recorded in the device's fault cell (the first is kept); its element is skipped.
 *
 * Sums keep the order of the indices, so their bits are always the same: a stable sort (sort.cuh)
 * puts the elements for one place next to each other, in order, and one warp per place sums them.
 * scatter_add_rows and scatter_add differ only in their rows: many elements, or one.
 */
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/cuda/sort.cuh"
#include "backends/desc.h"

/* An index operand and the upper bound of its values. */
struct indices {
    const void *data;
    tn_dtype dtype;
    int64_t limit;
    tn__cuda_fault *fault;
};

/* The index at `at`, the `position`-th of all; if it is out of range, records it and returns -1. */
static __device__ __forceinline__ int64_t index_at(const indices &index, int64_t at,
                                                   int64_t position) {
    int64_t value = tn__get_integer(index.data, index.dtype, at);
    if (value >= 0 && value < index.limit) { return value; }
    if (atomicCAS(&index.fault->raised, 0, 1) == 0) {
        index.fault->position = position;
        index.fault->value = value;
    }
    return -1;
}

static indices indices_of(tn_context *ctx, const tn_desc *index, int64_t limit) {
    return indices{index->data, index->dtype, limit, tn__cuda_device_of(ctx)->fault_on_device};
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Rows of two operands, visited in step: the dimensions after the first, in elements or in packs of
 * them. */
struct rows {
    tn__walk walk;    /* over one row */
    bool dense;       /* each row is contiguous in both */
    int64_t apart[2]; /* from row to row, in elements (or packs) */
};

static rows rows_of(const tn_desc *y, const tn_desc *x) {
    tn_desc row_y = tn__desc_without(y, 0), row_x = tn__desc_without(x, 0);
    const tn_desc *op[] = {&row_y, &row_x};
    rows r = {tn__cuda_walk(2, op), false, {y->stride[0], x->stride[0]}};
    r.dense = r.walk.ndim == 1 && r.walk.stride[0][0] == 1 && r.walk.stride[1][0] == 1;
    return r;
}

/* Turns rows of elements into rows of packs of v, if they can be. */
static bool pack_rows(rows *r, int v, size_t element) {
    bool fits = r->dense && r->walk.count % v == 0;
    for (int k = 0; k < 2; k++) {
        fits =
            fits && r->apart[k] % v == 0 && (uintptr_t)r->walk.data[k] % (element * (size_t)v) == 0;
    }
    if (fits) {
        r->walk.count /= v;
        r->walk.size[0] /= v;
        r->apart[0] /= v;
        r->apart[1] /= v;
    }
    return fits;
}

/* How many of a block's 256 threads share a row of this length: a power of two. */
static int width_for(int64_t length) {
    int width = 1;
    while (width < TN__LOOP_BLOCK && width < length) {
        width *= 2;
    }
    return width;
}

static __device__ __forceinline__ void place_in_row(const rows &r, int64_t j, int64_t (&at)[2]) {
    if (r.dense) {
        at[0] = at[1] = j;
    } else {
        tn__walk_to(r.walk, j, at);
    }
}

/* ---- Gathers --------------------------------------------------------------------------------- */

template <typename U> /* as wide as an element or pack */
__global__ void __launch_bounds__(TN__LOOP_BLOCK)
    gather_rows_kernel(rows r, indices index, int64_t index_stride, int64_t count, int width) {
    int height = TN__LOOP_BLOCK / width;
    int64_t i = (int64_t)blockIdx.x * height + threadIdx.x / width;
    for (; i < count; i += (int64_t)gridDim.x * height) {
        int64_t row = index_at(index, i * index_stride, i);
        U *y = (U *)r.walk.data[0] + i * r.apart[0];
        const U *x = (const U *)r.walk.data[1] + row * r.apart[1];
        for (int64_t j = threadIdx.x % width; row >= 0 && j < r.walk.count; j += width) {
            int64_t at[2];
            place_in_row(r, j, at);
            y[at[0]] = x[at[1]];
        }
    }
}

template <typename U>
static tn_status gather_rows(tn_context *ctx, const rows &r, const tn_desc *index, int64_t limit) {
    int width = width_for(r.walk.count);
    int64_t count = index->size[0];
    unsigned grid =
        tn__loop_grid(ctx, tn__ceil_div(count, TN__LOOP_BLOCK / width) * TN__LOOP_BLOCK);
    return TN_LAUNCH(ctx, (gather_rows_kernel<U>), grid, TN__LOOP_BLOCK, 0, r,
                     indices_of(ctx, index, limit), index->stride[0], count, width);
}

tn_status tn__cuda_gather_rows(tn_context *ctx, const tn_desc *y, const tn_desc *x,
                               const tn_desc *index) {
    if (y->dtype != x->dtype || !tn__is_index(index->dtype)) { return TN_EUNSUPPORTED; }
    size_t size = tn__cuda_element(y->dtype);
    rows r = rows_of(y, x);
    if (index->size[0] == 0) { return TN_OK; }
    if (r.walk.count > 0 && pack_rows(&r, (int)(16 / size), size)) {
        return gather_rows<uint4>(ctx, r, index, x->size[0]);
    }
    TN_WIDTHS(y->dtype, return gather_rows<T>(ctx, r, index, x->size[0]));
}

/* Operands y, index, x; x has stride 0 along the dimension, and `along` is the real stride. */
template <typename U>
__global__ void __launch_bounds__(TN__LOOP_BLOCK)
    gather_kernel(tn__walk walk, indices index, int64_t along) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < walk.count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at[3];
        tn__walk_to(walk, i, at);
        int64_t value = index_at(index, at[1], i);
        if (value >= 0) {
            ((U *)walk.data[0])[at[0]] = ((const U *)walk.data[2])[at[2] + value * along];
        }
    }
}

tn_status tn__cuda_gather(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *index,
                          int dim) {
    if (y->dtype != x->dtype || !tn__is_index(index->dtype)) { return TN_EUNSUPPORTED; }
    tn_desc from = *x;
    from.stride[dim] = 0;
    const tn_desc *op[] = {y, index, &from};
    tn__walk walk = tn__cuda_walk(3, op);
    indices checked = indices_of(ctx, index, x->size[dim]);
    if (walk.count == 0) { return TN_OK; }
    TN_WIDTHS(y->dtype, return TN_LAUNCH(ctx, (gather_kernel<T>), tn__loop_grid(ctx, walk.count),
                                         TN__LOOP_BLOCK, 0, walk, checked, x->stride[dim]));
}

/* ---- Scatter-adds ---------------------------------------------------------------------------- */

/* A key is the row of y (scatter_add_rows) or the row-major number of an element of y
 * (scatter_add); a bad index gets `limit`, which comes after all others. Operands of the walk:
 * index, and the element's number at index 0, to which an index adds `along` times its value. */
static __global__ void __launch_bounds__(TN__LOOP_BLOCK)
    key_kernel(tn__sort s, tn__walk walk, indices index, int64_t along, uint64_t limit) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < s.count; i += gridDim.x * blockDim.x) {
        int64_t at[2];
        tn__walk_to(walk, i, at);
        int64_t value = index_at(index, at[0], i);
        s.keys[0][i] = value < 0 ? limit : (uint64_t)(at[1] + value * along);
        s.at[0][i] = i;
    }
}

/* Where item i of a sorted list comes from and goes to: rows, or single elements of any layout. */
struct sums {
    const uint64_t *keys;
    const uint32_t *at;
    uint32_t count;
    uint64_t limit;
    rows row;          /* y, src */
    tn__walk to, from; /* the starts of rows: operand 0 of each */
};

/* Where row `number` starts. Only whole rows are read in packs, and these have a single stride. */
template <int V>
static __device__ __forceinline__ int64_t start_of(const tn__walk &walk, int64_t number) {
    int64_t at[1] = {number * walk.stride[0][0]};
    if (V == 1) { tn__walk_to(walk, number, at); }
    return at[0];
}

/* Adds column `at` of N items from n on to sum[V], in order. All are read first. */
template <typename T, int V, int N, typename C>
static __device__ __forceinline__ void add_items(const sums &s, uint32_t n, int64_t at,
                                                 C (&sum)[V]) {
    tn__elements<T, V> item[N];
    for (int k = 0; k < N; k++) {
        int64_t from = start_of<V>(s.from, s.at[n + k]);
        item[k] = *(const tn__elements<T, V> *)((const T *)s.row.walk.data[1] + from + at);
    }
    for (int k = 0; k < N; k++) {
        for (int v = 0; v < V; v++) {
            sum[v] += tn__load(item[k].at[v]);
        }
    }
}

/* One warp per item and 32 packs of its row; that of a place's first item sums for the place. */
template <typename T, int V>
__global__ void __launch_bounds__(TN__LOOP_BLOCK, 4) sum_kernel(sums s) {
    enum { AT_ONCE = V > 1 ? 8 : 2 };
    uint32_t warps = gridDim.x * (TN__LOOP_BLOCK / 32), lane = threadIdx.x % 32;
    uint32_t first = blockIdx.x * (TN__LOOP_BLOCK / 32) + threadIdx.x / 32;
    for (uint32_t i = first; i < s.count; i += warps) {
        uint64_t key = s.keys[i];
        if (key == s.limit || (i > 0 && s.keys[i - 1] == key)) { continue; }
        int64_t start = start_of<V>(s.to, (int64_t)key);
        for (int64_t j = (int64_t)blockIdx.y * 32 + lane; j < s.row.walk.count;
             j += (int64_t)gridDim.y * 32) {
            int64_t at[2];
            place_in_row(s.row, j, at);
            T *y = (T *)s.row.walk.data[0] + start + at[0] * V;
            tn__elements<T, V> total = *(const tn__elements<T, V> *)y;
            typename tn__compute<T>::type sum[V];
            for (int v = 0; v < V; v++) {
                sum[v] = tn__load(total.at[v]);
            }
            uint32_t n = i;
            TN_NO_UNROLL
            for (; n + AT_ONCE <= s.count && s.keys[n + AT_ONCE - 1] == key; n += AT_ONCE) {
                add_items<T, V, AT_ONCE>(s, n, at[1] * V, sum);
            }
            TN_NO_UNROLL
            for (; n < s.count && s.keys[n] == key; n++) {
                add_items<T, V, 1>(s, n, at[1] * V, sum);
            }
            for (int v = 0; v < V; v++) {
                total.at[v] = tn__store<T>(sum[v]);
            }
            *(tn__elements<T, V> *)y = total;
        }
    }
}

template <typename T, int V> static tn_status launch_sums(tn_context *ctx, const sums &s) {
    int64_t slices = tn__ceil_div(s.row.walk.count, 32);
    dim3 grid(tn__loop_grid(ctx, (int64_t)s.count * 32), (unsigned)(slices < 64 ? slices : 64));
    return TN_LAUNCH(ctx, (sum_kernel<T, V>), grid, TN__LOOP_BLOCK, 0, s);
}

template <typename T> static tn_status add_up(tn_context *ctx, sums s) {
    return pack_rows(&s.row, tn__per_load<T>, sizeof(T)) ? launch_sums<T, tn__per_load<T>>(ctx, s)
                                                         : launch_sums<T, 1>(ctx, s);
}

/* `order`: the walk of key_kernel, with the index as its first operand. */
static tn_status scatter_sorted(tn_context *ctx, tn_dtype dtype, sums *s, const tn__walk *order,
                                const indices &index, int64_t along) {
    if (order->count == 0 || s->row.walk.count == 0) { return TN_OK; }
    if (order->count > INT32_MAX) { return TN_EUNSUPPORTED; }
    TN__SCRATCH(char, memory, ctx, tn__sort_bytes(order->count));
    if (!memory) { return TN_ENOMEM; }
    tn__sort sort = tn__sort_in(memory, order->count);
    tn_status status = TN_LAUNCH(ctx, key_kernel, tn__loop_grid(ctx, order->count), TN__LOOP_BLOCK,
                                 0, sort, *order, index, along, s->limit);
    if (status == TN_OK) { status = tn__sort_run(ctx, &sort, s->limit + 1); }
    s->keys = sort.keys[0];
    s->at = sort.at[0];
    s->count = sort.count;
    if (status != TN_OK) { return status; }
    TN_FLOATS(dtype, return add_up<T>(ctx, *s));
}

/* d's first dimension only. */
static tn_desc column_of(const tn_desc *d) {
    tn_desc column = *d;
    column.ndim = 1;
    return column;
}

tn_status tn__cuda_scatter_add_rows(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                                    const tn_desc *src) {
    if (!tn__is_float(y->dtype) || src->dtype != y->dtype || !tn__is_index(index->dtype)) {
        return TN_EUNSUPPORTED;
    }
    tn_desc to = column_of(y), from = column_of(src), nothing = *index;
    nothing.stride[0] = 0;
    const tn_desc *to_op[] = {&to}, *from_op[] = {&from}, *op[] = {index, &nothing};
    sums s = {};
    s.limit = (uint64_t)y->size[0];
    s.row = rows_of(y, src);
    s.to = tn__cuda_walk(1, to_op);
    s.from = tn__cuda_walk(1, from_op);
    tn__walk order = tn__cuda_walk(2, op);
    return scatter_sorted(ctx, y->dtype, &s, &order, indices_of(ctx, index, y->size[0]), 1);
}

tn_status tn__cuda_scatter_add(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                               const tn_desc *src, int dim) {
    if (!tn__is_float(y->dtype) || src->dtype != y->dtype || !tn__is_index(index->dtype)) {
        return TN_EUNSUPPORTED;
    }
    tn_desc number = *y, element_y = *y, element_src = *src;
    int64_t count = tn__desc_densify(&number), along = number.stride[dim];
    number.stride[dim] = 0;
    element_y.ndim = element_src.ndim = 1;
    element_y.stride[0] = element_src.stride[0] = 1; /* a row of one element, wherever it starts */
    element_y.size[0] = element_src.size[0] = 1;
    const tn_desc *to_op[] = {y}, *from_op[] = {src}, *op[] = {index, &number};
    sums s = {};
    s.limit = (uint64_t)count;
    s.row = rows_of(&element_y, &element_src);
    s.to = tn__cuda_walk(1, to_op);
    s.from = tn__cuda_walk(1, from_op);
    tn__walk order = tn__cuda_walk(2, op);
    return scatter_sorted(ctx, y->dtype, &s, &order, indices_of(ctx, index, y->size[dim]), along);
}
