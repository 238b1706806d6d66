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

template <typename T> struct matrix {
    T *data;
    int64_t row, column; /* strides */
};

template <typename T> static matrix<T> matrix_of(const tn_desc *d) {
    return d ? matrix<T>{static_cast<T *>(d->data), d->stride[0], d->stride[1]}
             : matrix<T>{NULL, 0, 0};
}

template <typename T> struct vector {
    T *data;
    int64_t stride;
};

template <typename T> static vector<T> vector_of(const tn_desc *d) {
    return d ? vector<T>{static_cast<T *>(d->data), d->stride[0]} : vector<T>{NULL, 0};
}

template <typename T>
static __device__ __forceinline__ tn__line<T> line_at(const matrix<T> &m, int64_t row) {
    return tn__line_of(m.data + row * m.row, m.column);
}

/* A pack of a vector, or `missing` when there is none. */
template <bool WHOLE, typename T, typename C>
static __device__ __forceinline__ void load_vector(C *out, const vector<T> &v, int64_t at,
                                                   int64_t n, C missing) {
    if (v.data) {
        tn__pack_load<WHOLE>(out, tn__line_of(v.data, v.stride), at, n, (C)0);
    } else {
        TN_UNROLL
        for (int k = 0; k < tn__pack<T>::size; k++) {
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

template <typename T> struct forward {
    typedef typename tn__compute<T>::type C;
    matrix<T> x, other, sum, y; /* with other: sum = x + other is normalised */
    vector<T> w, b;
    vector<C> mean, rstd;
    int64_t rows, c;
    C eps;
    bool centred; /* else RMS norm */
};

/* sum = x + other, rounded; the rounded row is normalised. */
template <typename T, int TEAM, int ITEMS, typename C>
static __device__ __forceinline__ void add_rows(tn__held<T, TEAM, ITEMS> &held, tn__line<T> sum,
                                                tn__line<T> x, tn__line<T> other, int64_t c) {
    const int V = tn__pack<T>::size;
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
    norm_kernel(forward<T> f) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__pack<T>::size;
    TN_SHARED(C, shared, 32);
    int64_t row = tn__team_number<TEAM>(), c = f.c;
    if (row >= f.rows) { return; }
    tn__line<T> x = line_at(f.x, row), y = line_at(f.y, row);
    tn__held<T, TEAM, ITEMS> held;
    C first = c > 0 ? tn__load(x.data[0]) : 0;
    if (f.other.data) {
        tn__line<T> sum = line_at(f.sum, row), other = line_at(f.other, row);
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
    C rstd = 1 / tn__sqrt(squares / (C)c + f.eps);
    tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
        C *v = held.pack(x, at, p, c, (C)0), w[V], b[V];
        load_vector<(ITEMS > 0)>(w, f.w, at, c, (C)1);
        load_vector<(ITEMS > 0)>(b, f.b, at, c, (C)0);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            v[k] = (v[k] - mean) * rstd * w[k] + b[k];
        }
        tn__pack_store<(ITEMS > 0)>(y, at, c, v);
    });
    if (tn__team_lane<TEAM>() == 0) {
        if (f.mean.data) { f.mean.data[row * f.mean.stride] = mean; }
        if (f.rstd.data) { f.rstd.data[row * f.rstd.stride] = rstd; }
    }
}

template <typename T>
static tn_status launch_norm(tn_context *ctx, const forward<T> &f, bool whole) {
    TN_BY_LENGTH(T, f.c, whole,
                 return TN_LAUNCH(ctx, (norm_kernel<T, TEAM, ITEMS>), tn__team_grid<TEAM>(f.rows),
                                  tn__team_block<TEAM>(), 0, f));
}

/* Any of the norms. `other` and `sum` are NULL without a residual sum. */
static tn_status run_norm(tn_context *ctx, const tn_desc *sum, const tn_desc *y,
                          const tn_desc *mean, const tn_desc *rstd, const tn_desc *x,
                          const tn_desc *other, const tn_desc *w, const tn_desc *b, double eps,
                          bool centred) {
    const tn_desc *same[] = {x, sum, y, other, w, b}, *wide[] = {mean, rstd};
    if (!all_of(x->dtype, 6, same) || !all_of(tn__wide(x->dtype), 2, wide)) {
        return TN_EUNSUPPORTED;
    }
    if (x->size[0] == 0) { return tn__is_float(x->dtype) ? TN_OK : TN_EUNSUPPORTED; }
    TN_FLOATS(x->dtype, typedef typename tn__compute<T>::type C; forward<T> f;
              f.x = matrix_of<T>(x); f.other = matrix_of<T>(other); f.sum = matrix_of<T>(sum);
              f.y = matrix_of<T>(y); f.w = vector_of<T>(w); f.b = vector_of<T>(b);
              f.mean = vector_of<C>(mean); f.rstd = vector_of<C>(rstd); f.rows = x->size[0];
              f.c = x->size[1]; f.eps = (C)eps; f.centred = centred;
              return launch_norm<T>(ctx, f, all_whole(6, same)));
}

/* ---- Backward -------------------------------------------------------------------------------- */

template <typename T> struct backward {
    typedef typename tn__compute<T>::type C;
    matrix<T> dx, dsum, dy, x;
    vector<T> w;
    vector<C> mean, rstd; /* without a mean: RMS norm */
    C *partial;           /* (blocks, 2, c): dw and db of each block's rows; NULL: not wanted */
    int64_t rows, c;
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
__global__ void __launch_bounds__(tn__team_block<TEAM>()) norm_backward_kernel(backward<T> f) {
    typedef typename tn__compute<T>::type C;
    const int V = tn__pack<T>::size, KEPT = ITEMS > 0 ? ITEMS : 1;
    TN_SHARED(tn__two<C>, shared, 32);
    int64_t c = f.c, teams = (int64_t)gridDim.x * (blockDim.x / TEAM);
    C *partial = f.partial ? f.partial + (int64_t)blockIdx.x * 2 * c : NULL;
    C dw[KEPT] = {0}, db[KEPT] = {0};
    bool first = true;
    for (int64_t row = tn__team_number<TEAM>(); row < f.rows; row += teams) {
        tn__line<T> x = line_at(f.x, row), dy = line_at(f.dy, row);
        C mean = f.mean.data ? f.mean.data[row * f.mean.stride] : 0,
          rstd = f.rstd.data[row * f.rstd.stride];
        tn__held<T, TEAM, ITEMS> held_x, held_dy;
        held_x.open(x, c, mean);
        held_dy.open(dy, c, (C)0);
        tn__two<C> sums = {0, 0}; /* of g = dy w, and of g h */
        tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
            C *v = held_x.pack(x, at, p, c, mean), *g = held_dy.pack(dy, at, p, c, (C)0), w[V];
            load_vector<(ITEMS > 0)>(w, f.w, at, c, (C)1);
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
        tn__line<T> dx = line_at(f.dx, row), dsum = line_at(f.dsum, row);
        tn__each_pack<T, TEAM, ITEMS>(c, [&](int64_t at, int p) {
            const C *v = held_x.pack(x, at, p, c, mean);
            C *g = held_dy.pack(dy, at, p, c, (C)0), w[V];
            load_vector<(ITEMS > 0)>(w, f.w, at, c, (C)1);
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
    add_partials_kernel(void *dw, int64_t dw_stride, tn_dtype dw_dtype, void *db, int64_t db_stride,
                        tn_dtype db_dtype, const C *partial, int64_t blocks, int64_t c) {
    TN_SHARED(double, strips, 32 * STRIPS);
    int lane = threadIdx.x % 32, strip = threadIdx.x / 32;
    int64_t at = (int64_t)blockIdx.x * 32 + lane, which = blockIdx.y;
    double sum = 0;
    for (int64_t block = strip; block < blocks && at < c; block += STRIPS) {
        sum += (double)partial[(block * 2 + which) * c + at];
    }
    strips[threadIdx.x] = sum;
    __syncthreads();
    void *to = which ? db : dw;
    if (strip > 0 || at >= c || !to) { return; }
    for (int i = 1; i < STRIPS; i++) {
        sum += strips[i * 32 + lane];
    }
    tn__put(to, which ? db_dtype : dw_dtype, at * (which ? db_stride : dw_stride), sum);
}

/* At most so many blocks: enough for every processor of a large GPU to have work, few enough that
 * adding up their parts costs little and that an A100, H200 or B200 has room for all at once. */
static inline int64_t most_blocks(unsigned block) {
    return block > 256 ? 144 : block > 128 ? 384 : 320;
}

/* Blocks of `block` threads, TEAM of them a row, and then the sums of their parts of dw and db. */
template <typename T, int TEAM, int ITEMS>
static tn_status launch_backward(tn_context *ctx, backward<T> f, const tn_desc *dw,
                                 const tn_desc *db, unsigned block) {
    typedef typename tn__compute<T>::type C;
    bool columns = (dw || db) && f.c > 0;
    int64_t blocks = tn__ceil_div(f.rows, block / TEAM);
    blocks = columns && blocks > most_blocks(block) ? most_blocks(block) : blocks;
    TN__SCRATCH_IF(columns, C, partial, ctx, blocks * 2 * f.c);
    if (columns && !partial) { return TN_ENOMEM; }
    f.partial = partial;
    size_t shared = columns && ITEMS > 0 && TEAM == 32 ? (size_t)(2 * f.c) * sizeof(C) : 0;
    tn_status status = blocks > 0 ? TN_LAUNCH(ctx, (norm_backward_kernel<T, TEAM, ITEMS>),
                                              (unsigned)blocks, block, shared, f)
                                  : TN_OK;
    if (status != TN_OK || !columns) { return status; }
    return TN_LAUNCH(ctx, (add_partials_kernel<C>), dim3((unsigned)tn__ceil_div(f.c, 32), 2),
                     32 * STRIPS, 0, dw ? dw->data : NULL, dw ? dw->stride[0] : 0,
                     dw ? dw->dtype : TN_F32, db ? db->data : NULL, db ? db->stride[0] : 0,
                     db ? db->dtype : TN_F32, f.partial, blocks, f.c);
}

/* As TN_BY_LENGTH, but a thread keeps four numbers for each element that it holds: of rows for a
 * block it has 8 elements instead of 16, and a processor has room for twice as many rows. */
template <typename T>
static tn_status backward_rows(tn_context *ctx, const backward<T> &f, const tn_desc *dw,
                               const tn_desc *db, bool whole) {
    if constexpr (sizeof(T) < 8) {
        if (whole && f.c <= 1024) {
            return launch_backward<T, 32, 32>(ctx, f, dw, db, TN_WARP_BLOCK);
        }
        if (whole && f.c <= 2048) { return launch_backward<T, 256, 8>(ctx, f, dw, db, 256); }
        if (whole && f.c <= 4096) { return launch_backward<T, 512, 8>(ctx, f, dw, db, 512); }
    }
    return f.c <= 1024 ? launch_backward<T, 32, 0>(ctx, f, dw, db, 32)
                       : launch_backward<T, 256, 0>(ctx, f, dw, db, 256);
}

static tn_status norm_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *dw,
                               const tn_desc *db, const tn_desc *dsum, const tn_desc *dy,
                               const tn_desc *x, const tn_desc *mean, const tn_desc *rstd,
                               const tn_desc *w) {
    const tn_desc *same[] = {x, dx, dsum, dy, w}, *wide[] = {mean, rstd};
    if (!all_of(x->dtype, 5, same) || !all_of(tn__wide(x->dtype), 2, wide) ||
        (dw && !tn__is_float(dw->dtype)) || (db && !tn__is_float(db->dtype))) {
        return TN_EUNSUPPORTED;
    }
    TN_FLOATS(x->dtype, typedef typename tn__compute<T>::type C; backward<T> f;
              f.dx = matrix_of<T>(dx); f.dsum = matrix_of<T>(dsum); f.dy = matrix_of<T>(dy);
              f.x = matrix_of<T>(x); f.w = vector_of<T>(w); f.mean = vector_of<C>(mean);
              f.rstd = vector_of<C>(rstd); f.partial = NULL; f.rows = x->size[0]; f.c = x->size[1];
              return backward_rows<T>(ctx, f, dw, db, all_whole(5, same)));
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static double eps_of(const void *args) {
    return ((const tn_norm_args *)args)->eps;
}

static tn_status layer_norm_forward(const tn_op_call *c) {
    return run_norm(c->ctx, NULL, c->y[0], c->y[1], c->y[2], c->x[0], NULL, c->x[1], c->x[2],
                    eps_of(c->args), true);
}
/* What dx is added to: it has the gradient of a residual sum around the norm. */
static const tn_desc *sum_under(const tn_op_back *b) {
    return b->adds & 1 ? b->dx[0] : NULL;
}
static tn_status layer_norm_backward(const tn_op_back *b) {
    return norm_backward(b->ctx, b->dx[0], b->dx[1], b->dx[2], sum_under(b), b->dy[0], b->x[0],
                         b->y[1], b->y[2], b->x[1]);
}
const tn_op_kernel tn__cuda_op_layer_norm = {layer_norm_forward, layer_norm_backward};

static tn_status rms_norm_forward(const tn_op_call *c) {
    return run_norm(c->ctx, NULL, c->y[0], NULL, c->y[1], c->x[0], NULL, c->x[1], NULL,
                    eps_of(c->args), false);
}
static tn_status rms_norm_backward(const tn_op_back *b) {
    return norm_backward(b->ctx, b->dx[0], b->dx[1], NULL, sum_under(b), b->dy[0], b->x[0], NULL,
                         b->y[1], b->x[1]);
}
const tn_op_kernel tn__cuda_op_rms_norm = {rms_norm_forward, rms_norm_backward};

/* Outputs y, s, mean, rstd; a and b share one gradient. */
static tn_status add_layer_norm_forward(const tn_op_call *c) {
    return run_norm(c->ctx, c->y[1], c->y[0], c->y[2], c->y[3], c->x[0], c->x[1], c->x[2], c->x[3],
                    eps_of(c->args), true);
}
static tn_status add_layer_norm_backward(const tn_op_back *b) {
    return norm_backward(b->ctx, b->dx[0] ? b->dx[0] : b->dx[1], b->dx[2], b->dx[3], b->dy[1],
                         b->dy[0], b->y[1], b->y[2], b->y[3], b->x[2]);
}
const tn_op_kernel tn__cuda_op_add_layer_norm = {add_layer_norm_forward, add_layer_norm_backward};

/* Outputs y, s, rstd. */
static tn_status add_rms_norm_forward(const tn_op_call *c) {
    return run_norm(c->ctx, c->y[1], c->y[0], NULL, c->y[2], c->x[0], c->x[1], c->x[2], NULL,
                    eps_of(c->args), false);
}
static tn_status add_rms_norm_backward(const tn_op_back *b) {
    return norm_backward(b->ctx, b->dx[0] ? b->dx[0] : b->dx[1], b->dx[2], NULL, b->dy[1], b->dy[0],
                         b->y[1], NULL, b->y[2], b->x[2]);
}
const tn_op_kernel tn__cuda_op_add_rms_norm = {add_rms_norm_forward, add_rms_norm_backward};
