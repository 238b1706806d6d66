/* Attention by our own kernels: any float dtype, any strides, masks, grouped heads,
 * width up to 256.
 *
 * The mathematics is in ops/nn/attention.c. No Tq x Tk matrix is stored: a block owns a tile of
 * rows of one operand and meets those of the other in tiles of 32, one row per lane.
 *
 *     forward        a block owns queries, meets keys: scores, a running maximum and sum, and y
 *     query_gradient a block owns queries, meets keys: dq
 *     key_gradient   a block owns keys, meets the queries of all heads of its group: dk and dv
 *
 * So each result is summed by one thread in a fixed order. A warp owns ROWS rows; a lane holds
 * their scores with its row of the tile, and columns lane, lane + 32, … of their results. The tile
 * is reloaded for each use (k, then v, …) into one buffer, which leaves space for wide heads.
 *
 * A masked pair is skipped entirely: what it would read may be NaN.
 *
 * A few queries (decoding) are one tile, and with few sequences too few blocks for a GPU: then
 * several blocks share a row's keys, and attention_join adds up what they found.
 */
#include "backends/cuda/attention.h"
#include "backends/cuda/rows.cuh"

namespace {

const int LANES = 32, WARPS = 4, THREADS = LANES * WARPS;
const int64_t SPLIT = 128;  /* the least keys of a block that shares them */
const int64_t ENOUGH = 512; /* blocks that occupy a large GPU: so the bits depend on shapes alone */

struct problem {
    tn_desc q, k, v, y, dy, dq, dk, dv; /* (B, heads, rows, width); without data: not there */
    tn_desc lse, delta;                 /* (B, H, Tq) */
    tn_desc mask;                       /* (B, H, Tq, Tk), or without data */
    int64_t heads, groups, per_group, queries, keys, tiles; /* tiles: of owned rows per head */
    int64_t ahead; /* causal: query i sees keys up to i + ahead */
    int width, causal;
    double scale;
    int64_t split;  /* keys that a block meets */
    int64_t splits; /* 1: the block's result is final; else it goes to `parts` (part_of) */
    void *parts;
};

/* The head and the first owned row of this block. */
struct place {
    int64_t b, h, first;
};
__device__ place place_of(int64_t tiles, int64_t heads, int tile) {
    int64_t block = blockIdx.x, head = block / tiles;
    return {head / heads, head % heads, block % tiles * tile};
}

__device__ bool key_visible(const problem &p, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (i >= p.queries || j >= p.keys || (p.causal && j > i + p.ahead)) { return false; }
    const unsigned char *mask = static_cast<const unsigned char *>(p.mask.data);
    const int64_t *stride = p.mask.stride;
    return !mask || mask[b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]] != 0;
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Types and sizes of a kernel for heads of up to 32 COLUMNS. Elements are converted to `number`
 * when loaded, so bf16 and f16 share the kernels of f32. A row is padded by one element, so that
 * the lanes' rows are in different banks. */
template <typename N, int C> struct shape {
    typedef N number;
    static const int COLUMNS = C;
    static const int ROWS = sizeof(number) == 8 ? 4 : 8; /* of a warp */
    static const int OWN = ROWS * WARPS;                 /* of a block */
    static const int PITCH = LANES * C + 1;
    /* Blocks that share a multiprocessor's registers: ptxas, left alone, spills to fit one more. */
    static const int BLOCKS = C == 2 ? 3 : 2;
    /* Shared memory: the met tile, `owned` tiles of the block's own, each warp's weights. */
    static size_t bytes(int owned) {
        return sizeof(number) * (size_t)(LANES * PITCH + owned * OWN * PITCH + OWN * LANES);
    }
};

/* Runs the statement with E as the type of an operand's elements, which are converted to type
 * N. */
#define BY_ELEMENT(N, dtype, statement) \
    if constexpr (sizeof(N) == 8) {     \
        typedef double E;               \
        statement;                      \
    } else if ((dtype) == TN_BF16) {    \
        typedef tn__bf16 E;             \
        statement;                      \
    } else if ((dtype) == TN_F16) {     \
        typedef tn__half E;             \
        statement;                      \
    } else {                            \
        typedef float E;                \
        statement;                      \
    }

template <typename S, typename E>
__device__ void load_elements(typename S::number *tile, const E *from, const tn_desc &x, int count,
                              int64_t left, int width) {
    for (int at = (int)threadIdx.x; at < count * (S::PITCH - 1); at += THREADS) {
        int r = at / (S::PITCH - 1), d = at % (S::PITCH - 1);
        bool inside = r < left && d < width;
        tile[r * S::PITCH + d] = inside ? tn__load(from[r * x.stride[2] + d * x.stride[3]]) : 0;
    }
}

/* Rows first … first + count - 1 of one head into shared memory; zeros beyond the operand. */
template <typename S>
__device__ void load_rows(typename S::number *tile, const tn_desc &x, int64_t b, int64_t h,
                          int64_t first, int count, int64_t limit, int width) {
    int64_t start = b * x.stride[0] + h * x.stride[1] + first * x.stride[2];
    BY_ELEMENT(typename S::number, x.dtype,
               load_elements<S>(tile, static_cast<const E *>(x.data) + start, x, count,
                                limit - first, width))
}

/* The same for a tile that other threads may still be reading; it is complete on return. */
template <typename S>
__device__ void meet_rows(typename S::number *tile, const tn_desc &x, int64_t b, int64_t h,
                          int64_t first, int64_t limit, int width) {
    __syncthreads();
    load_rows<S>(tile, x, b, h, first, LANES, limit, width);
    __syncthreads();
}

/* dot[r] = owned row r of this warp times this lane's row of the tile */
template <typename S>
__device__ void multiply_rows(typename S::number (&dot)[S::ROWS], const typename S::number *own,
                              const typename S::number *tile, int width) {
    const typename S::number *other = tile + threadIdx.x % LANES * S::PITCH;
    TN_UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        dot[r] = 0;
    }
    for (int d = 0; d < width; d++) {
        typename S::number x = other[d];
        TN_UNROLL
        for (int r = 0; r < S::ROWS; r++) {
            dot[r] += own[r * S::PITCH + d] * x;
        }
    }
}

/* total[r] += the tile's rows, each times weight[r][row]; only those whose bit is set in seen[r] */
template <typename S>
__device__ void add_rows(typename S::number (&total)[S::ROWS][S::COLUMNS],
                         const typename S::number *weight, const unsigned (&seen)[S::ROWS],
                         const typename S::number *tile) {
    const typename S::number *columns = tile + threadIdx.x % LANES;
    TN_UNROLL_BY(4)
    for (int j = 0; j < LANES; j++) {
        typename S::number x[S::COLUMNS];
        TN_UNROLL
        for (int c = 0; c < S::COLUMNS; c++) {
            x[c] = columns[j * S::PITCH + c * LANES];
        }
        TN_UNROLL
        for (int r = 0; r < S::ROWS; r++) {
            if (seen[r] >> j & 1) {
                TN_UNROLL
                for (int c = 0; c < S::COLUMNS; c++) {
                    total[r][c] += weight[r * LANES + j] * x[c];
                }
            }
        }
    }
}

/* Row `row` of x = factor * total, in columns lane, lane + 32, … */
template <typename S>
__device__ void store_row(const tn_desc &x, int64_t b, int64_t h, int64_t row,
                          const typename S::number (&total)[S::COLUMNS], typename S::number factor,
                          int width) {
    int64_t start = b * x.stride[0] + h * x.stride[1] + row * x.stride[2];
    TN_UNROLL
    for (int c = 0; c < S::COLUMNS; c++) {
        int d = (int)threadIdx.x % LANES + c * LANES;
        if (d < width) {
            BY_ELEMENT(typename S::number, x.dtype,
                       static_cast<E *>(x.data)[start + d * x.stride[3]] =
                           tn__store<E>(total[c] * factor))
        }
    }
}

template <typename N>
__device__ N *row_statistic(const tn_desc &x, int64_t b, int64_t h, int64_t i) {
    return static_cast<N *>(x.data) + b * x.stride[0] + h * x.stride[1] + i * x.stride[2];
}

template <typename N> __device__ N lanes_top(N x) {
    return tn__team_reduce<LANES>(x, (N *)NULL, tn__join_top());
}
template <typename N> __device__ N lanes_sum(N x) {
    return tn__team_reduce<LANES>(x, (N *)NULL, tn__join_sum());
}

/* One past the last key that any query of the block may see. */
__device__ int64_t last_key(const problem &p, int64_t first, int own) {
    int64_t last = first + own + p.ahead;
    return p.causal && last < p.keys ? last : p.keys;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* One row's running softmax: the largest score, this lane's part of the sum of exponentials. */
template <typename N> struct running {
    N most, sum;
    bool any; /* some key was seen */
};

/* Adds a tile's scores. Returns this lane's weight; `factor` rescales what was accumulated before.
 * All lanes must call. While only -inf was seen, weights are 0. */
template <typename N> __device__ N row_take(running<N> &row, N score, bool seen, N &factor) {
    N most = fmax(row.most, lanes_top(seen ? score : -(N)INFINITY));
    N shift = most == -(N)INFINITY ? (N)0 : most;
    N weight = seen ? exp(score - shift) : (N)0;
    factor = exp(row.most - shift);
    row.sum = row.sum * factor + weight;
    row.most = most;
    row.any = true;
    return weight;
}

/* What a block found for a row in its split, row = (b H + h) Tq + i: `width` sums, then the largest
 * score, the sum of exponentials, and whether a key was seen. */
const int BESIDE = 3;
template <typename N> __device__ N *part_of(const problem &p, int64_t row, int64_t split) {
    return static_cast<N *>(p.parts) + (row * p.splits + split) * (p.width + BESIDE);
}

template <typename S>
__device__ void store_part(const problem &p, const place &at, int64_t i,
                           const typename S::number (&total)[S::COLUMNS],
                           const running<typename S::number> &row, typename S::number sum) {
    typedef typename S::number N;
    N *part = part_of<N>(p, (at.b * p.heads + at.h) * p.queries + i, blockIdx.y);
    int lane = (int)threadIdx.x % LANES;
    TN_UNROLL
    for (int c = 0; c < S::COLUMNS; c++) {
        if (lane + c * LANES < p.width) { part[lane + c * LANES] = total[c]; }
    }
    if (lane == 0) {
        part[p.width] = row.most;
        part[p.width + 1] = sum;
        part[p.width + 2] = row.any;
    }
}

/* Row i of y, and its lse. If only -inf was seen, the sum is 0, and both are NaN. */
template <typename S>
__device__ void store_result(const problem &p, int64_t b, int64_t h, int64_t i,
                             const typename S::number (&total)[S::COLUMNS],
                             const running<typename S::number> &row, typename S::number sum) {
    typedef typename S::number N;
    store_row<S>(p.y, b, h, i, total, row.any ? 1 / sum : (N)0, p.width);
    if (threadIdx.x % LANES == 0) {
        N lse = sum == 0 ? (N)NAN : row.most + log(sum);
        *row_statistic<N>(p.lse, b, h, i) = row.any ? lse : -(N)INFINITY;
    }
}

/* Adds up a row's parts, a warp a row. */
template <typename S> __global__ void __launch_bounds__(THREADS) attention_join(problem p) {
    typedef typename S::number N;
    int lane = (int)threadIdx.x % LANES;
    int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES, head = at / p.queries;
    if (head >= p.tiles) { /* here: the number of heads in the batch */
        return;
    }
    running<N> row = {-(N)INFINITY, 0, false};
    for (int64_t s = 0; s < p.splits; s++) {
        row.most = fmax(row.most, part_of<N>(p, at, s)[p.width]);
        row.any = row.any || part_of<N>(p, at, s)[p.width + 2] != 0;
    }
    N total[S::COLUMNS] = {}, sum = 0, shift = row.most == -(N)INFINITY ? (N)0 : row.most;
    for (int64_t s = 0; s < p.splits; s++) {
        const N *part = part_of<N>(p, at, s);
        if (part[p.width + 2] != 0) {
            N factor = exp(part[p.width] - shift);
            sum += part[p.width + 1] * factor;
            TN_UNROLL
            for (int c = 0; c < S::COLUMNS; c++) {
                int d = lane + c * LANES;
                total[c] += d < p.width ? part[d] * factor : 0;
            }
        }
    }
    store_result<S>(p, head / p.heads, head % p.heads, at % p.queries, total, row, sum);
}

template <typename S>
__global__ void __launch_bounds__(THREADS, S::BLOCKS) attention_kernel(problem p) {
    typedef typename S::number N;
    TN_DYNAMIC(N, memory);
    N *tile = memory, *queries = tile + LANES * S::PITCH;
    int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    N *weight = queries + S::OWN * S::PITCH + warp * S::ROWS * LANES;
    const N *own = queries + warp * S::ROWS * S::PITCH;
    place at = place_of(p.tiles, p.heads, S::OWN);
    int64_t top = at.first + warp * S::ROWS, g = at.h / p.per_group;
    N total[S::ROWS][S::COLUMNS] = {};
    running<N> row[S::ROWS];
    TN_UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        row[r] = {-(N)INFINITY, 0, false};
    }
    load_rows<S>(queries, p.q, at.b, at.h, at.first, S::OWN, p.queries, p.width);
    int64_t start = blockIdx.y * p.split, last = last_key(p, at.first, S::OWN);
    last = last - start < p.split ? last : start + p.split;
    for (int64_t first = start; first < last; first += LANES) {
        N score[S::ROWS];
        unsigned seen[S::ROWS];
        meet_rows<S>(tile, p.k, at.b, g, first, p.keys, p.width);
        multiply_rows<S>(score, own, tile, p.width);
        TN_UNROLL
        for (int r = 0; r < S::ROWS; r++) {
            bool mine = key_visible(p, at.b, at.h, top + r, first + lane);
            seen[r] = __ballot_sync(TN_FULL, mine);
            if (seen[r]) {
                N factor, w = row_take(row[r], score[r] * (N)p.scale, mine, factor);
                weight[r * LANES + lane] = w;
                TN_UNROLL
                for (int c = 0; c < S::COLUMNS; c++) {
                    total[r][c] *= factor;
                }
            }
        }
        meet_rows<S>(tile, p.v, at.b, g, first, p.keys, p.width);
        add_rows<S>(total, weight, seen, tile);
    }
    TN_UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        N sum = lanes_sum(row[r].sum);
        if (top + r < p.queries && p.splits == 1) {
            store_result<S>(p, at.b, at.h, top + r, total[r], row[r], sum);
        } else if (top + r < p.queries) {
            store_part<S>(p, at, top + r, total[r], row[r], sum);
        }
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* The sum of a[d] b[d] over every 32nd column from `first` on. */
template <typename N, typename E>
__device__ N part_product(const E *a, const E *b, int64_t a_column, int64_t b_column, int first,
                          int width) {
    N sum = 0;
    for (int d = first; d < width; d += LANES) {
        sum += (N)tn__load(a[d * a_column]) * (N)tn__load(b[d * b_column]);
    }
    return sum;
}

/* delta[i] = dy[i] . y[i], one warp per row */
template <typename N> __global__ void __launch_bounds__(THREADS) attention_row_products(problem p) {
    int lane = (int)threadIdx.x % LANES;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES, head = row / p.queries;
    int64_t i = row % p.queries, b = head / p.heads, h = head % p.heads;
    if (head >= p.tiles) { /* here: the number of heads in the batch */
        return;
    }
    int64_t dy = b * p.dy.stride[0] + h * p.dy.stride[1] + i * p.dy.stride[2];
    int64_t y = b * p.y.stride[0] + h * p.y.stride[1] + i * p.y.stride[2];
    N sum = 0;
    BY_ELEMENT(N, p.y.dtype,
               sum = part_product<N>(static_cast<const E *>(p.dy.data) + dy,
                                     static_cast<const E *>(p.y.data) + y, p.dy.stride[3],
                                     p.y.stride[3], lane, p.width))
    sum = lanes_sum(sum);
    if (lane == 0) { *row_statistic<N>(p.delta, b, h, i) = sum; }
}

template <typename S>
__global__ void __launch_bounds__(THREADS, S::BLOCKS) attention_query_gradient(problem p) {
    typedef typename S::number N;
    TN_DYNAMIC(N, memory);
    N *tile = memory, *queries = tile + LANES * S::PITCH, *gradients = queries + S::OWN * S::PITCH;
    int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    N *weight = gradients + S::OWN * S::PITCH + warp * S::ROWS * LANES;
    const N *own_q = queries + warp * S::ROWS * S::PITCH;
    const N *own_dy = gradients + warp * S::ROWS * S::PITCH;
    place at = place_of(p.tiles, p.heads, S::OWN);
    int64_t top = at.first + warp * S::ROWS, g = at.h / p.per_group;
    N total[S::ROWS][S::COLUMNS] = {}, lse[S::ROWS], delta[S::ROWS];
    TN_UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        bool inside = top + r < p.queries;
        lse[r] = inside ? *row_statistic<N>(p.lse, at.b, at.h, top + r) : 0;
        delta[r] = inside ? *row_statistic<N>(p.delta, at.b, at.h, top + r) : 0;
    }
    load_rows<S>(queries, p.q, at.b, at.h, at.first, S::OWN, p.queries, p.width);
    load_rows<S>(gradients, p.dy, at.b, at.h, at.first, S::OWN, p.queries, p.width);
    int64_t last = last_key(p, at.first, S::OWN);
    for (int64_t first = 0; first < last; first += LANES) {
        N score[S::ROWS], slope[S::ROWS];
        unsigned seen[S::ROWS];
        meet_rows<S>(tile, p.v, at.b, g, first, p.keys, p.width);
        multiply_rows<S>(slope, own_dy, tile, p.width);
        meet_rows<S>(tile, p.k, at.b, g, first, p.keys, p.width);
        multiply_rows<S>(score, own_q, tile, p.width);
        TN_UNROLL
        for (int r = 0; r < S::ROWS; r++) {
            bool mine = key_visible(p, at.b, at.h, top + r, first + lane);
            seen[r] = __ballot_sync(TN_FULL, mine);
            N probability = exp(score[r] * (N)p.scale - lse[r]);
            weight[r * LANES + lane] = mine ? probability * (slope[r] - delta[r]) : (N)0;
        }
        __syncwarp();
        add_rows<S>(total, weight, seen, tile);
    }
    TN_UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        if (top + r < p.queries) {
            store_row<S>(p.dq, at.b, at.h, top + r, total[r], (N)p.scale, p.width);
        }
    }
}

/* What key_gradient accumulates for the rows of one warp. */
template <typename S> struct key_sums {
    typename S::number k[S::ROWS][S::COLUMNS], v[S::ROWS][S::COLUMNS];
};

/* Adds queries first … first + 31 of head h: this lane's query with the warp's keys, from `top`
 * on. */
template <typename S>
__device__ void add_queries(const problem &p, key_sums<S> &total, int64_t b, int64_t h,
                            int64_t first, int64_t top, const typename S::number *own_k,
                            const typename S::number *own_v, typename S::number *weight,
                            typename S::number *tile) {
    typedef typename S::number N;
    int lane = (int)threadIdx.x % LANES;
    bool inside = first + lane < p.queries;
    N lse = inside ? *row_statistic<N>(p.lse, b, h, first + lane) : 0;
    N delta = inside ? *row_statistic<N>(p.delta, b, h, first + lane) : 0;
    N score[S::ROWS], slope[S::ROWS];
    unsigned seen[S::ROWS];
    meet_rows<S>(tile, p.q, b, h, first, p.queries, p.width);
    multiply_rows<S>(score, own_k, tile, p.width);
    meet_rows<S>(tile, p.dy, b, h, first, p.queries, p.width);
    multiply_rows<S>(slope, own_v, tile, p.width);
    TN_UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        bool mine = key_visible(p, b, h, first + lane, top + r);
        seen[r] = __ballot_sync(TN_FULL, mine);
        N probability = mine ? exp(score[r] * (N)p.scale - lse) : (N)0;
        slope[r] = mine ? probability * (slope[r] - delta) : (N)0;
        weight[r * LANES + lane] = probability;
    }
    __syncwarp();
    add_rows<S>(total.v, weight, seen, tile);
    meet_rows<S>(tile, p.q, b, h, first, p.queries, p.width);
    TN_UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        weight[r * LANES + lane] = slope[r];
    }
    __syncwarp();
    add_rows<S>(total.k, weight, seen, tile);
}

template <typename S>
__global__ void __launch_bounds__(THREADS, S::BLOCKS) attention_key_gradient(problem p) {
    typedef typename S::number N;
    TN_DYNAMIC(N, memory);
    N *tile = memory, *keys = tile + LANES * S::PITCH, *values = keys + S::OWN * S::PITCH;
    int warp = (int)threadIdx.x / LANES;
    N *weight = values + S::OWN * S::PITCH + warp * S::ROWS * LANES;
    place at = place_of(p.tiles, p.groups, S::OWN);
    int64_t top = at.first + warp * S::ROWS;
    key_sums<S> total = {};
    load_rows<S>(keys, p.k, at.b, at.h, at.first, S::OWN, p.keys, p.width);
    load_rows<S>(values, p.v, at.b, at.h, at.first, S::OWN, p.keys, p.width);
    int64_t start = p.causal && at.first > p.ahead ? (at.first - p.ahead) / LANES * LANES : 0;
    for (int64_t h = at.h * p.per_group; h < (at.h + 1) * p.per_group; h++) {
        for (int64_t first = start; first < p.queries; first += LANES) {
            add_queries<S>(p, total, at.b, h, first, top, keys + warp * S::ROWS * S::PITCH,
                           values + warp * S::ROWS * S::PITCH, weight, tile);
        }
    }
    TN_UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        if (top + r < p.keys) {
            store_row<S>(p.dk, at.b, at.h, top + r, total.k[r], (N)p.scale, p.width);
            store_row<S>(p.dv, at.b, at.h, top + r, total.v[r], (N)1, p.width);
        }
    }
}

/* ---- Launches -------------------------------------------------------------------------------- */

problem problem_of(const tn__attention *a) {
    problem p = {};
    p.q = tn__given(a->q);
    p.k = tn__given(a->k);
    p.v = tn__given(a->v);
    p.y = tn__given(a->y);
    p.dy = tn__given(a->dy);
    p.dq = tn__given(a->dq);
    p.dk = tn__given(a->dk);
    p.dv = tn__given(a->dv);
    p.lse = tn__given(a->lse);
    p.mask = tn__given(a->mask);
    p.heads = a->q->size[1];
    p.groups = a->k->size[1];
    p.per_group = p.groups > 0 ? p.heads / p.groups : 1;
    p.queries = a->q->size[2];
    p.keys = a->k->size[2];
    p.ahead = p.keys - p.queries;
    p.width = (int)a->q->size[3];
    p.causal = a->causal;
    p.scale = a->scale;
    return p;
}

/* Whether one launch can have this many blocks with this much shared memory each. */
tn_status launchable(tn_context *ctx, int64_t blocks, size_t bytes) {
    int most = tn__cuda_device_of(ctx)->shared_most;
    if (blocks > INT32_MAX) {
        tn__cuda_note("attention has too many rows for one launch");
        return TN_EUNSUPPORTED;
    }
    if (bytes > (size_t)most) {
        tn__cuda_note(
            "attention's heads are too wide: a block needs %zu bytes of shared memory, this "
            "device has %d",
            bytes, most);
        return TN_EUNSUPPORTED;
    }
    return TN_OK;
}

/* The keys of each row over several blocks, and then the join. */
template <typename S> tn_status launch_splits(tn_context *ctx, problem p, unsigned heads) {
    typedef typename S::number N;
    TN__SCRATCH(N, parts, ctx, heads * p.queries * p.splits * (p.width + BESIDE));
    if (!parts) { return TN_ENOMEM; }
    p.parts = parts;
    tn_status status = TN_LAUNCH(ctx, (attention_kernel<S>), dim3(heads, (unsigned)p.splits),
                                 THREADS, S::bytes(1), p);
    if (status != TN_OK) { return status; }
    p.tiles = heads;
    return TN_LAUNCH(ctx, (attention_join<S>), (unsigned)tn__ceil_div(heads * p.queries, WARPS),
                     THREADS, 0, p);
}

template <typename S> tn_status launch_forward(tn_context *ctx, const tn__attention *a) {
    problem p = problem_of(a);
    p.tiles = tn__ceil_div(p.queries, S::OWN);
    int64_t blocks = p.tiles * a->q->size[0] * p.heads;
    tn_status status = launchable(ctx, blocks, S::bytes(1));
    if (blocks == 0 || status != TN_OK) { return status; }
    int64_t wanted = p.tiles == 1 ? tn__ceil_div(ENOUGH, blocks) : 1;
    int64_t share = tn__ceil_div(tn__ceil_div(p.keys, wanted), LANES) * LANES;
    p.split = share > SPLIT ? share : SPLIT;
    p.splits = p.keys > p.split ? tn__ceil_div(p.keys, p.split) : 1;
    if (p.splits > 1) { return launch_splits<S>(ctx, p, (unsigned)blocks); }
    return TN_LAUNCH(ctx, (attention_kernel<S>), (unsigned)blocks, THREADS, S::bytes(1), p);
}

/* The three kernels of backward; delta is scratch memory. */
template <typename S>
tn_status launch_gradients(tn_context *ctx, problem p, int64_t heads, int64_t groups) {
    tn_status status = TN_OK;
    if (heads * p.queries > 0) {
        p.tiles = heads;
        status = TN_LAUNCH(ctx, (attention_row_products<typename S::number>),
                           (unsigned)tn__ceil_div(heads * p.queries, WARPS), THREADS, 0, p);
    }
    p.tiles = tn__ceil_div(p.queries, S::OWN);
    if (status == TN_OK && p.tiles * heads > 0) {
        status = TN_LAUNCH(ctx, (attention_query_gradient<S>), (unsigned)(p.tiles * heads), THREADS,
                           S::bytes(2), p);
    }
    p.tiles = tn__ceil_div(p.keys, S::OWN);
    if (status == TN_OK && p.tiles * groups > 0) {
        status = TN_LAUNCH(ctx, (attention_key_gradient<S>), (unsigned)(p.tiles * groups), THREADS,
                           S::bytes(2), p);
    }
    return status;
}

template <typename S> tn_status launch_backward(tn_context *ctx, const tn__attention *a) {
    problem p = problem_of(a);
    int64_t heads = a->q->size[0] * p.heads, groups = a->k->size[0] * p.groups;
    int64_t blocks[] = {tn__ceil_div(heads * p.queries, WARPS),
                        tn__ceil_div(p.queries, S::OWN) * heads,
                        tn__ceil_div(p.keys, S::OWN) * groups};
    for (int i = 0; i < 3; i++) {
        tn_status status = launchable(ctx, blocks[i], S::bytes(2));
        if (status != TN_OK) { return status; }
    }
    TN__SCRATCH(typename S::number, delta, ctx, heads * p.queries);
    if (!delta) { return TN_ENOMEM; }
    p.delta = p.lse; /* dense, of the same shape */
    p.delta.data = delta;
    p.delta.stride[0] = p.heads * p.queries;
    p.delta.stride[1] = p.queries;
    p.delta.stride[2] = 1;
    return launch_gradients<S>(ctx, p, heads, groups);
}

const int WIDEST = 256;

/* Calls one of the templates above with the shape for these operands. */
#define WITH_SHAPE(launch, ctx, a)                                                             \
    ((a)->q->dtype == TN_F64  ? ((a)->q->size[3] <= 64 ? launch<shape<double, 2>>((ctx), (a))  \
                                                       : launch<shape<double, 8>>((ctx), (a))) \
     : (a)->q->size[3] <= 64  ? launch<shape<float, 2>>((ctx), (a))                            \
     : (a)->q->size[3] <= 128 ? launch<shape<float, 4>>((ctx), (a))                            \
                              : launch<shape<float, 8>>((ctx), (a)))

bool fits(const tn__attention *a) {
    if (a->q->size[3] > WIDEST) {
        tn__cuda_note("attention's heads are %lld wide (at most %d on a device)",
                      (long long)a->q->size[3], WIDEST);
        return false;
    }
    return true;
}

} // namespace

tn_status tn__cuda_own_attention(tn_context *ctx, const tn__attention *a) {
    return fits(a) ? WITH_SHAPE(launch_forward, ctx, a) : TN_EUNSUPPORTED;
}

tn_status tn__cuda_own_attention_backward(tn_context *ctx, const tn__attention *a) {
    return fits(a) ? WITH_SHAPE(launch_backward, ctx, a) : TN_EUNSUPPORTED;
}
