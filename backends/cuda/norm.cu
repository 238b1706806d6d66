/* Layer norm and RMS norm, forward and backward, also with the residual sum before it (the
 * operations of these names have the formulas).
 *
 * A team of threads takes one row (rows.cuh). Backward reads x and dy once: a team that has done
 * one row continues with a later one and keeps its share of dw and db in registers; each block's
 * share then goes to scratch memory, where a second kernel adds them up in order. The number of
 * blocks depends on the shape alone. For rows that are not held in registers, dw and db are
 * accumulated directly in scratch memory.
 */
#include "backends/cuda/rows.cuh"
#include "backends/norm.h"

/* A pack of a vector, or `missing` when there is none. */
template <typename T, bool WHOLE, typename C>
static __device__ __forceinline__ void load_vector(C *out, const tn_desc &v, int64_t at, int64_t n,
                                                   C missing) {
    if (v.data) {
        tn__pack_load<WHOLE>(out, tn__line_of(static_cast<T *>(v.data), v.stride[0]), at, n, (C)0);
    } else {
        TN_UNROLL
        for (int k = 0; k < tn__per_load<T>; k++) {
            out[k] = missing;
        }
    }
}

/* Whether the rows of all given operands are whole packs. */
static bool all_whole(int count, const tn_desc *const *d) {
    for (int i = 0; i < count; i++) {
        if (!tn__whole_rows(d[i])) { return false; }
    }
    return true;
}

/* Whether all given operands have this dtype. */
static bool all_of(tn_dtype dtype, int count, const tn_desc *const *d) {
    for (int i = 0; i < count; i++) {
        if (d[i] && d[i]->dtype != dtype) { return false; }
    }
    return true;
}

/* ---- Forward --------------------------------------------------------------------------------- */

struct forward {
    tn_desc sum, y, mean, rstd, x, other, w, b; /* with other: sum = x + other is normalised */
    double eps;
    bool centred; /* else RMS norm */
};

/* sum = x + other, rounded; the rounded row is normalised. */
template <typename T, int TEAM, int ITEMS, typename C>
static __device__ __forceinline__ void add_rows(tn__held<T, TEAM, ITEMS> &held, tn__line<T> sum,
                                                tn__line<T> x, tn__line<T> other, int64_t c) {
    const int V = tn__per_load<T>;
    tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
        C *v = held.value + (ITEMS > 0 ? p * V : 0), u[V];
        tn__pack_load<(ITEMS > 0)>(v, x, at, c, (C)0);
        tn__pack_load<(ITEMS > 0)>(u, other, at, c, (C)0);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            v[k] = tn__load(tn__store<T>(v[k] + u[k]));
        }
        tn__pack_store<(ITEMS > 0)>(sum, at, c, v);
    });
}

/* A warp that holds its row has 64 registers a thread: ptxas stops below that, and spills on
 * sm_100. */
template <typename T, int TEAM, int ITEMS>
__global__ void __launch_bounds__(tn__team_block<TEAM>(), ITEMS == 32 ? 8 : 0)
    norm_kernel(forward f) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__per_load<T>;
    TN_SHARED(C, shared, 32);
    int64_t row = tn__team_number<TEAM>(), c = f.x.size[1];
    if (row >= f.x.size[0]) { return; }
    tn__line<T> x = tn__line_at<T>(f.x, row), y = tn__line_at<T>(f.y, row);
    tn__held<T, TEAM, ITEMS> held;
    C first = c > 0 ? tn__load(x.data[0]) : 0;
    if (f.other.data) {
        tn__line<T> sum = tn__line_at<T>(f.sum, row), other = tn__line_at<T>(f.other, row);
        first = c > 0 ? tn__load(tn__store<T>(first + tn__load(other.data[0]))) : 0;
        add_rows<T, TEAM, ITEMS, C>(held, sum, x, other, c);
        x = sum;
    } else {
        held.open(x, c, (C)0);
    }
    C mean = 0, squares = 0;
    if (f.centred) {
        tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
            const C *v = held.pack(x, at, p, c, first);
            C part = 0;
            TN_UNROLL
            for (int k = 0; k < V; k++) {
                part += v[k] - first; /* 0 in a constant row: its mean is then exact */
            }
            mean += part;
        });
        mean = first + tn__team_reduce<TEAM>(mean, shared, tn__join_sum()) / (C)c;
    }
    tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
        const C *v = held.pack(x, at, p, c, mean); /* beyond the end: no deviation */
        C part = 0;
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            part += ITEMS > 0 || at + k < c ? (v[k] - mean) * (v[k] - mean) : 0;
        }
        squares += part;
    });
    squares = tn__team_reduce<TEAM>(squares, shared, tn__join_sum());
    C rstd = 1 / sqrt(squares / (C)c + (C)f.eps);
    tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
        C *v = held.pack(x, at, p, c, (C)0), w[V], b[V];
        load_vector<T, (ITEMS > 0)>(w, f.w, at, c, (C)1);
        load_vector<T, (ITEMS > 0)>(b, f.b, at, c, (C)0);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            v[k] = (v[k] - mean) * rstd * w[k] + b[k];
        }
        tn__pack_store<(ITEMS > 0)>(y, at, c, v);
    });
    if (tn__team_lane<TEAM>() == 0) {
        if (f.mean.data) { tn__at<C>(f.mean, row) = mean; }
        if (f.rstd.data) { tn__at<C>(f.rstd, row) = rstd; }
    }
}

/* ADDS: the norm of a residual sum, whose operands and results come before the others. Without
 * CENTRED: RMS norm, which has no mean and no bias. */
template <bool ADDS, bool CENTRED> static tn_status norm_forward(const tn_op_call *c) {
    const tn_desc *x = c->x[0], *other = ADDS ? c->x[1] : NULL, *w = c->x[ADDS + 1],
                  *b = CENTRED ? c->x[ADDS + 2] : NULL, *y = c->y[0], *sum = ADDS ? c->y[1] : NULL,
                  *mean = CENTRED ? c->y[ADDS + 1] : NULL, *rstd = c->y[ADDS + 1 + CENTRED];
    const tn_desc *same[] = {x, sum, y, other, w, b}, *wide[] = {mean, rstd};
    if (!all_of(x->dtype, 6, same) || !all_of(tn__wide(x->dtype), 2, wide)) {
        return TN_EUNSUPPORTED;
    }
    if (x->size[0] == 0) { return tn__is_float(x->dtype) ? TN_OK : TN_EUNSUPPORTED; }
    forward f = {};
    f.sum = tn__given(sum);
    f.y = tn__given(y);
    f.mean = tn__given(mean);
    f.rstd = tn__given(rstd);
    f.x = tn__given(x);
    f.other = tn__given(other);
    f.w = tn__given(w);
    f.b = tn__given(b);
    f.eps = ((const tn_norm_args *)c->args)->eps;
    f.centred = CENTRED;
    bool whole = all_whole(6, same);
    TN_FLOATS(x->dtype, TN_BY_LENGTH(T, x->size[1], whole,
                                     return TN_LAUNCH(c->ctx, (norm_kernel<T, TEAM, ITEMS>),
                                                      tn__team_grid<TEAM>(x->size[0]),
                                                      tn__team_block<TEAM>(), 0, f)));
}

/* ---- Backward -------------------------------------------------------------------------------- */

struct backward {
    tn_desc dx, dsum, dy, x, mean, rstd, w; /* without a mean: RMS norm */
    void *partial; /* (blocks, 2, c): dw and db of each block's rows; NULL: not wanted */
};

/* sum + dx as an addition of its own would be: dx is rounded before, and nothing is contracted. So
 * the bits do not depend on whether the kernel or the engine adds. */
static __device__ __forceinline__ float add_rounded(float sum, float dx) {
    return __fadd_rn(sum, dx);
}
static __device__ __forceinline__ double add_rounded(double sum, double dx) {
    return __dadd_rn(sum, dx);
}

/* Stores a team's registers to (2, c) elements; `adds`: adds them to what is there. */
template <int TEAM, int ITEMS, int V, typename C>
static __device__ __forceinline__ void put_columns(C *to, int64_t c, const C *dw, const C *db,
                                                   bool adds) {
    TN_UNROLL
    for (int i = 0; i < ITEMS; i++) {
        int64_t at = (i / V * TEAM + tn__team_lane<TEAM>()) * V + i % V;
        if (at < c) {
            to[at] = adds ? to[at] + dw[i] : dw[i];
            to[c + at] = adds ? to[c + at] + db[i] : db[i];
        }
    }
}

/* Stores the block's part of `partial`. Several teams of a block first add up theirs in shared
 * memory, one after another. */
template <int TEAM, int ITEMS, int V, typename C>
static __device__ __forceinline__ void flush_partial(C *partial, int64_t c, const C *dw,
                                                     const C *db) {
    if constexpr (TEAM > 32) {
        put_columns<TEAM, ITEMS, V>(partial, c, dw, db, false);
    } else {
        TN_DYNAMIC(C, columns); /* (2, c) */
        for (int team = 0; team < (int)blockDim.x / TEAM; team++) {
            if (team == (int)threadIdx.x / TEAM) {
                put_columns<TEAM, ITEMS, V>(columns, c, dw, db, team > 0);
            }
            __syncthreads();
        }
        for (int64_t at = threadIdx.x; at < 2 * c; at += blockDim.x) {
            partial[at] = columns[at];
        }
    }
}

template <typename T, int TEAM, int ITEMS>
__global__ void __launch_bounds__(tn__team_block<TEAM>()) norm_backward_kernel(backward f) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__per_load<T>, KEPT = ITEMS > 0 ? ITEMS : 1;
    TN_SHARED(tn__two<C>, shared, 32);
    int64_t c = f.x.size[1], teams = (int64_t)gridDim.x * (blockDim.x / TEAM);
    C *partial = f.partial ? static_cast<C *>(f.partial) + (int64_t)blockIdx.x * 2 * c : NULL;
    C dw[KEPT] = {0}, db[KEPT] = {0};
    bool first = true;
    for (int64_t row = tn__team_number<TEAM>(); row < f.x.size[0]; row += teams) {
        tn__line<T> x = tn__line_at<T>(f.x, row), dy = tn__line_at<T>(f.dy, row);
        C mean = f.mean.data ? tn__at<C>(f.mean, row) : (C)0, rstd = tn__at<C>(f.rstd, row);
        tn__held<T, TEAM, ITEMS> held_x, held_dy;
        held_x.open(x, c, mean);
        held_dy.open(dy, c, (C)0);
        tn__two<C> sums = {0, 0}; /* of g = dy w, and of g h */
        tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
            C *v = held_x.pack(x, at, p, c, mean), *g = held_dy.pack(dy, at, p, c, (C)0), w[V];
            load_vector<T, (ITEMS > 0)>(w, f.w, at, c, (C)1);
            tn__two<C> part = {0, 0};
            TN_UNROLL
            for (int k = 0; k < V; k++) {
                C h = (v[k] - mean) * rstd, share = g[k] * h;
                part.a += g[k] * w[k];
                part.b += share * w[k];
                if (ITEMS > 0) {
                    v[k] = h;
                    dw[(p * V + k) % KEPT] += share;
                    db[(p * V + k) % KEPT] += g[k];
                } else if (partial && at + k < c) {
                    partial[at + k] = first ? share : partial[at + k] + share;
                    partial[c + at + k] = first ? g[k] : partial[c + at + k] + g[k];
                }
            }
            sums = sums + part;
        });
        first = false;
        if (!f.dx.data) { continue; }
        sums = tn__team_reduce<TEAM>(sums, shared, tn__join_sum());
        C mean_g = f.mean.data ? sums.a / (C)c : 0, mean_gh = sums.b / (C)c;
        tn__line<T> dx = tn__line_at<T>(f.dx, row), dsum = tn__line_at<T>(f.dsum, row);
        tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
            const C *v = held_x.pack(x, at, p, c, mean);
            C *g = held_dy.pack(dy, at, p, c, (C)0), w[V];
            load_vector<T, (ITEMS > 0)>(w, f.w, at, c, (C)1);
            TN_UNROLL
            for (int k = 0; k < V; k++) {
                C h = ITEMS > 0 ? v[k] : (v[k] - mean) * rstd;
                g[k] = rstd * (g[k] * w[k] - mean_g - h * mean_gh);
            }
            if (f.dsum.data) {
                C sum[V];
                tn__pack_load<(ITEMS > 0)>(sum, dsum, at, c, (C)0);
                TN_UNROLL
                for (int k = 0; k < V; k++) {
                    g[k] = add_rounded(sum[k], tn__load(tn__store<T>(g[k])));
                }
            }
            tn__pack_store<(ITEMS > 0)>(dx, at, c, g);
        });
    }
    if (ITEMS > 0 && partial) { flush_partial<TEAM, ITEMS, V>(partial, c, dw, db); }
}

/* Adds up the blocks' parts of dw and db: each strip in order, then the strips in order. */
enum { STRIPS = 16 };
template <typename C>
__global__ void __launch_bounds__(32 * STRIPS)
    add_partials_kernel(tn_desc dw, tn_desc db, const C *partial, int64_t blocks, int64_t c) {
    TN_SHARED(double, strips, 32 * STRIPS);
    int lane = threadIdx.x % 32, strip = threadIdx.x / 32;
    int64_t at = (int64_t)blockIdx.x * 32 + lane, which = blockIdx.y;
    double sum = 0;
    for (int64_t block = strip; block < blocks && at < c; block += STRIPS) {
        sum += (double)partial[(block * 2 + which) * c + at];
    }
    strips[threadIdx.x] = sum;
    __syncthreads();
    void *to = which ? db.data : dw.data;
    if (strip > 0 || at >= c || !to) { return; }
    for (int i = 1; i < STRIPS; i++) {
        sum += strips[i * 32 + lane];
    }
    tn__put(to, which ? db.dtype : dw.dtype, at * (which ? db.stride[0] : dw.stride[0]), sum);
}

/* At most so many blocks: enough for every processor of a large GPU to have work, few enough that
 * adding up their parts costs little and that an A100, H200 or B200 has room for all at once. */
static inline int64_t most_blocks(unsigned block) {
    return block > 256 ? 144 : block > 128 ? 384 : 320;
}

/* Blocks of `block` threads, TEAM of them a row, and then the sums of their parts of dw and db. */
template <typename T, int TEAM, int ITEMS>
static tn_status launch_backward(tn_context *ctx, backward f, const tn_desc *dw, const tn_desc *db,
                                 unsigned block) {
    typedef typename tn__compute<T>::type C;
    int64_t c = f.x.size[1], blocks = tn__ceil_div(f.x.size[0], block / TEAM);
    bool columns = (dw || db) && c > 0;
    blocks = columns && blocks > most_blocks(block) ? most_blocks(block) : blocks;
    TN__SCRATCH_IF(columns, C, partial, ctx, blocks * 2 * c);
    if (columns && !partial) { return TN_ENOMEM; }
    f.partial = partial;
    size_t shared = columns && ITEMS > 0 && TEAM == 32 ? (size_t)(2 * c) * sizeof(C) : 0;
    tn_status status = blocks > 0 ? TN_LAUNCH(ctx, (norm_backward_kernel<T, TEAM, ITEMS>),
                                              (unsigned)blocks, block, shared, f)
                                  : TN_OK;
    if (status != TN_OK || !columns) { return status; }
    return TN_LAUNCH(ctx, (add_partials_kernel<C>), dim3((unsigned)tn__ceil_div(c, 32), 2),
                     32 * STRIPS, 0, tn__given(dw), tn__given(db), partial, blocks, c);
}

/* As TN_BY_LENGTH, but a thread keeps four numbers for each element that it holds: of rows for a
 * block it has 8 elements instead of 16, and a processor has room for twice as many rows. */
template <typename T>
static tn_status backward_rows(tn_context *ctx, const backward &f, const tn_desc *dw,
                               const tn_desc *db, bool whole) {
    int64_t c = f.x.size[1];
    if constexpr (sizeof(T) < 8) {
        if (whole && c <= 1024) {
            return launch_backward<T, 32, 32>(ctx, f, dw, db, TN_WARP_BLOCK);
        }
        if (whole && c <= 2048) { return launch_backward<T, 256, 8>(ctx, f, dw, db, 256); }
        if (whole && c <= 4096) { return launch_backward<T, 512, 8>(ctx, f, dw, db, 512); }
    }
    return c <= 1024 ? launch_backward<T, 32, 0>(ctx, f, dw, db, 32)
                     : launch_backward<T, 256, 0>(ctx, f, dw, db, 256);
}

template <bool ADDS, bool CENTRED> static tn_status norm_backward(const tn_op_back *b) {
    /* both operands of a sum share one gradient */
    const tn_desc *dx = ADDS && !b->dx[0] ? b->dx[1] : b->dx[0], *dw = b->dx[ADDS + 1],
                  *db = CENTRED ? b->dx[ADDS + 2] : NULL, *dy = b->dy[0],
                  *x = ADDS ? b->y[1] : b->x[0], *mean = CENTRED ? b->y[ADDS + 1] : NULL,
                  *rstd = b->y[ADDS + 1 + CENTRED], *w = b->x[ADDS + 1];
    /* what dx is added to: the gradient of a residual sum, before the norm or around it */
    const tn_desc *dsum = ADDS ? b->dy[1] : b->adds & 1 ? dx : NULL;
    const tn_desc *same[] = {x, dx, dsum, dy, w}, *wide[] = {mean, rstd};
    if (!all_of(x->dtype, 5, same) || !all_of(tn__wide(x->dtype), 2, wide) ||
        (dw && !tn__is_float(dw->dtype)) || (db && !tn__is_float(db->dtype))) {
        return TN_EUNSUPPORTED;
    }
    backward f = {};
    f.dx = tn__given(dx);
    f.dsum = tn__given(dsum);
    f.dy = tn__given(dy);
    f.x = tn__given(x);
    f.mean = tn__given(mean);
    f.rstd = tn__given(rstd);
    f.w = tn__given(w);
    TN_FLOATS(x->dtype, return backward_rows<T>(b->ctx, f, dw, db, all_whole(5, same)));
}

const tn_op_kernel tn__cuda_op_layer_norm = {norm_forward<false, true>, norm_backward<false, true>};
const tn_op_kernel tn__cuda_op_rms_norm = {norm_forward<false, false>, norm_backward<false, false>};
/* outputs y, s, mean (not RMS norm), rstd */
const tn_op_kernel tn__cuda_op_add_layer_norm = {norm_forward<true, true>,
                                                 norm_backward<true, true>};
const tn_op_kernel tn__cuda_op_add_rms_norm = {norm_forward<true, false>,
                                               norm_backward<true, false>};
