/* Batch norm and its gradient (ops/nn/batch_norm.c has the formulas).
 *
 * A channel's elements, in row-major order whatever the strides, are cut into bands, so that few
 * channels fill the device too. Forward and backward are two launches: the first leaves each band's
 * sums in scratch memory, the second joins its channel's in order and goes over the elements again.
 * If one band is enough, a single launch does both. The bands depend only on shapes and strides.
 *
 * Elements are read as packs of 16 bytes where a channel's rows are whole packs, one by one
 * otherwise; a thread adds those of a pack in f32 (f64 for f64) and continues in double. Where
 * channels are denser than a channel's elements, neighbouring threads take neighbouring channels.
 */
#include "backends/batch_norm.h"
#include "backends/cuda/loop.cuh"
#include "backends/cuda/rows.cuh"
#include "backends/desc.h"

enum { CHANNEL_BLOCK = 256, CHANNEL_LANES = 32, CHANNEL_OPERANDS = 3, CHANNEL_BATCH = 4 };

/* A number of each channel, of any float dtype; `otherwise` where there are none. */
static __device__ __forceinline__ double channel_get(const tn_desc &d, int64_t channel,
                                                     double otherwise) {
    return d.data ? tn__get_float(d.data, d.dtype, channel * d.stride[0]) : otherwise;
}
static __device__ __forceinline__ void channel_put(const tn_desc &d, int64_t channel,
                                                   double value) {
    if (d.data) { tn__put(d.data, d.dtype, channel * d.stride[0], value); }
}

typedef tn__two<double> channel_sums;

/* A walk over a channel's packs in up to three operands, whose channels are `step` apart.
 * Forward: x and y; backward: x, dy and, if wanted, dx. */
struct channel_job {
    tn__walk walk;
    int64_t step[CHANNEL_OPERANDS], channels, elements;
    int lanes;                       /* channels of a block: 1 or CHANNEL_LANES */
    int64_t bands, height;           /* of the packs */
    channel_sums *partial;           /* (bands, channels); NULL for one band */
    tn_desc mean, var, w, b, dw, db; /* (channels), or without data */
    double eps;
    bool given, sums, wants_dx; /* sums: over the channel are needed */
};

enum { X, Y, DY = Y, DX };

/* ---- A thread's part ------------------------------------------------------------------------- */

/* Packs at, at + strips, … before end of a channel; none of a channel that is not there. */
struct channel_part {
    int64_t channel, band, at, end;
    int strips;
    bool there;
};

static __device__ __forceinline__ channel_part part_of_thread(const channel_job &j) {
    int64_t pieces = tn__ceil_div(j.channels, j.lanes);
    channel_part p;
    p.channel = blockIdx.x % pieces * j.lanes + threadIdx.x % j.lanes;
    p.band = blockIdx.x / pieces;
    p.strips = CHANNEL_BLOCK / j.lanes;
    p.there = p.channel < j.channels;
    int64_t from = p.band * j.height, end = from + j.height;
    p.at = from + threadIdx.x / j.lanes;
    p.end = !p.there ? 0 : end < j.walk.count ? end : j.walk.count;
    return p;
}

/* f(x, second, place) for each pack of the part: those of the first READS operands, and the place
 * in operand READS. As many packs are read before they are used as memory needs to stay busy. */
template <typename T, int V, int READS, typename F>
static __device__ __forceinline__ void each_pack(const channel_job &j, const channel_part &p, F f) {
    const int count = V == 1 ? CHANNEL_BATCH : CHANNEL_BATCH / (2 * READS);
    typedef tn__elements<T, V> pack;
    TN_NO_UNROLL
    for (int64_t i = p.at; i < p.end; i += count * p.strips) {
        pack x[count], second[count];
        pack *place[count];
        TN_UNROLL
        for (int u = 0; u < count; u++) {
            if (i + u * p.strips < p.end) {
                int64_t at[CHANNEL_OPERANDS];
                tn__walk_to(j.walk, i + u * p.strips, at);
                T *to[CHANNEL_OPERANDS];
                for (int k = 0; k < CHANNEL_OPERANDS; k++) {
                    to[k] = (T *)j.walk.data[k] + p.channel * j.step[k] + at[k];
                }
                x[u] = *(const pack *)to[X];
                second[u] = READS > 1 ? *(const pack *)to[DY] : x[u];
                place[u] = (pack *)to[READS];
            }
        }
        TN_UNROLL
        for (int u = 0; u < count; u++) {
            if (i + u * p.strips < p.end) { f(x[u], second[u], place[u]); }
        }
    }
}

/* The sum over the block's strips of a channel, in a fixed order. All threads call. */
static __device__ channel_sums join_strips(const channel_job &j, channel_sums mine,
                                           channel_sums *shared) {
    shared[threadIdx.x] = mine;
    for (int half = CHANNEL_BLOCK / 2; half >= j.lanes; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            shared[threadIdx.x] = shared[threadIdx.x] + shared[threadIdx.x + half];
        }
    }
    __syncthreads();
    return shared[threadIdx.x % j.lanes];
}

/* A band's sums go to scratch memory. */
static __device__ __forceinline__ void keep_band(const channel_job &j, const channel_part &p,
                                                 channel_sums sums) {
    if (p.there && (int)threadIdx.x < j.lanes) {
        j.partial[p.band * j.channels + p.channel] = sums;
    }
}

/* This thread's share of the sums of all bands. */
static __device__ __forceinline__ channel_sums read_bands(const channel_job &j,
                                                          const channel_part &p) {
    channel_sums sums = {0, 0};
    TN_NO_UNROLL
    for (int64_t band = threadIdx.x / j.lanes; p.there && band < j.bands; band += p.strips) {
        sums = sums + j.partial[band * j.channels + p.channel];
    }
    return sums;
}

/* Whether this thread writes its channel's statistics or gradients. */
static __device__ __forceinline__ bool gives_channel(const channel_job &j, const channel_part &p) {
    return p.there && p.band == 0 && (int)threadIdx.x < j.lanes;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* The channel's first element, from which the others are measured: the mean of equal elements is
 * exact, and squares do not cancel because the mean is far from 0. 0 if it is not finite: what
 * differs from infinity is no number. */
template <typename T, typename C>
static __device__ __forceinline__ C first_of(const channel_job &j, const channel_part &p) {
    bool any = p.there && j.walk.count > 0;
    C first = any ? tn__load(((const T *)j.walk.data[X])[p.channel * j.step[X]]) : (C)0;
    return isfinite(first) ? first : (C)0;
}

/* Of x - first, and of its square. */
template <typename T, int V, typename C>
static __device__ __forceinline__ channel_sums sum_moments(const channel_job &j,
                                                           const channel_part &p, C first) {
    typedef tn__elements<T, V> pack;
    channel_sums sums = {0, 0};
    each_pack<T, V, 1>(j, p, [&](const pack &x, const pack &, pack *) {
        C m = 0; /* the pack's mean; squares of what differs from it are small */
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            m += (tn__load(x.at[k]) - first) / V;
        }
        tn__two<C> rest = {0, 0};
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            C d = tn__load(x.at[k]) - first - m;
            rest = rest + tn__two<C>{d, d * d};
        }
        double all = V * (double)m, a = isfinite(m) ? (double)rest.a : 0;
        sums = sums + channel_sums{all + a, (double)rest.b + (double)m * (2 * a + all)};
    });
    return sums;
}

template <typename T, int V>
__global__ void __launch_bounds__(CHANNEL_BLOCK, 4) batch_moments_kernel(channel_job j) {
    typedef typename tn__compute<T>::type C;
    TN_SHARED(channel_sums, shared, CHANNEL_BLOCK);
    channel_part p = part_of_thread(j);
    channel_sums sums = sum_moments<T, V>(j, p, first_of<T, C>(j, p));
    keep_band(j, p, join_strips(j, sums, shared));
}

template <typename T, int V>
__global__ void __launch_bounds__(CHANNEL_BLOCK) batch_norm_kernel(channel_job j) {
    typedef typename tn__compute<T>::type C;
    typedef tn__elements<T, V> pack;
    TN_SHARED(channel_sums, shared, CHANNEL_BLOCK);
    channel_part p = part_of_thread(j);
    double mean = 0, var = 0;
    if (j.sums) {
        C first = first_of<T, C>(j, p);
        channel_sums sums = j.partial ? read_bands(j, p) : sum_moments<T, V>(j, p, first);
        sums = join_strips(j, sums, shared);
        double shift = sums.a / (double)j.elements;
        mean = (double)first + shift;
        var = sums.b / (double)j.elements - shift * shift;
        var = var < 0 ? 0 : var;
        if (gives_channel(j, p)) {
            channel_put(j.mean, p.channel, mean);
            channel_put(j.var, p.channel, var);
        }
    } else if (p.there) {
        mean = channel_get(j.mean, p.channel, 0);
        var = channel_get(j.var, p.channel, 0);
    }
    C m = (C)mean, w = p.there ? (C)channel_get(j.w, p.channel, 1) : (C)0;
    C scale = w / sqrt((C)var + (C)j.eps), b = p.there ? (C)channel_get(j.b, p.channel, 0) : (C)0;
    each_pack<T, V, 1>(j, p, [&](const pack &x, const pack &, pack *y) {
        pack out;
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            out.at[k] = tn__store<T>((tn__load(x.at[k]) - m) * scale + b);
        }
        *y = out;
    });
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* mean and 1 / sqrt(var + eps) */
template <typename C>
static __device__ __forceinline__ tn__two<C> moments_of(const channel_job &j,
                                                        const channel_part &p) {
    tn__two<C> none = {0, 0};
    return p.there ? tn__two<C>{(C)channel_get(j.mean, p.channel, 0),
                                1 / sqrt((C)channel_get(j.var, p.channel, 0) + (C)j.eps)}
                   : none;
}

/* Of dy, and of dy h. */
template <typename T, int V, typename C>
static __device__ __forceinline__ channel_sums sum_gradients(const channel_job &j,
                                                             const channel_part &p, C mean,
                                                             C rstd) {
    typedef tn__elements<T, V> pack;
    channel_sums sums = {0, 0};
    each_pack<T, V, 2>(j, p, [&](const pack &x, const pack &dy, pack *) {
        tn__two<C> part = {0, 0};
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            C g = tn__load(dy.at[k]);
            part = part + tn__two<C>{g, g * (tn__load(x.at[k]) - mean) * rstd};
        }
        sums = sums + channel_sums{(double)part.a, (double)part.b};
    });
    return sums;
}

template <typename T, int V>
__global__ void __launch_bounds__(CHANNEL_BLOCK) batch_gradients_kernel(channel_job j) {
    typedef typename tn__compute<T>::type C;
    TN_SHARED(channel_sums, shared, CHANNEL_BLOCK);
    channel_part p = part_of_thread(j);
    tn__two<C> moments = moments_of<C>(j, p);
    channel_sums sums = sum_gradients<T, V>(j, p, moments.a, moments.b);
    keep_band(j, p, join_strips(j, sums, shared));
}

template <typename T, int V>
__global__ void __launch_bounds__(CHANNEL_BLOCK) batch_norm_backward_kernel(channel_job j) {
    typedef typename tn__compute<T>::type C;
    typedef tn__elements<T, V> pack;
    TN_SHARED(channel_sums, shared, CHANNEL_BLOCK);
    channel_part p = part_of_thread(j);
    tn__two<C> moments = moments_of<C>(j, p);
    C mean = moments.a, rstd = moments.b;
    channel_sums sums = {0, 0};
    if (j.sums) {
        sums = j.partial ? read_bands(j, p) : sum_gradients<T, V>(j, p, mean, rstd);
        sums = join_strips(j, sums, shared);
    }
    if (gives_channel(j, p)) {
        channel_put(j.db, p.channel, sums.a);
        channel_put(j.dw, p.channel, sums.b);
    }
    if (!j.wants_dx) { return; }
    C share = j.given ? (C)0 : (C)(sums.a / (double)j.elements);
    C share_h = j.given ? (C)0 : (C)(sums.b / (double)j.elements);
    C scale = p.there ? (C)channel_get(j.w, p.channel, 1) * rstd : (C)0;
    each_pack<T, V, 2>(j, p, [&](const pack &x, const pack &dy, pack *dx) {
        pack out;
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            C h = (tn__load(x.at[k]) - mean) * rstd;
            out.at[k] = tn__store<T>(scale * (tn__load(dy.at[k]) - share - h * share_h));
        }
        *dx = out;
    });
}

/* ---- Entries --------------------------------------------------------------------------------- */

static channel_job channel_job_of(const tn_desc *x, const tn_desc *second, const tn_desc *third) {
    const tn_desc *operand[CHANNEL_OPERANDS] = {x, second, third};
    tn_desc places[CHANNEL_OPERANDS];
    const tn_desc *op[CHANNEL_OPERANDS];
    channel_job job = {};
    for (int i = 0; i < CHANNEL_OPERANDS; i++) {
        places[i] = tn__desc_without(operand[i], 1);
        op[i] = &places[i];
        job.step[i] = operand[i]->stride[1];
    }
    job.walk = tn__cuda_walk(CHANNEL_OPERANDS, op);
    job.channels = x->size[1];
    job.elements = job.walk.count;
    job.lanes = 1;
    job.bands = 1;
    job.height = job.walk.count;
    return job;
}

/* Whether each operand's runs of adjacent elements are whole packs of this many, and aligned. */
static bool comes_in_packs(const channel_job &j, int64_t size, size_t element) {
    bool fits = j.walk.size[0] % size == 0;
    for (int k = 0; k < CHANNEL_OPERANDS; k++) {
        fits = fits && j.walk.stride[k][0] == 1 && j.step[k] % size == 0 &&
               (uintptr_t)j.walk.data[k] % (size * element) == 0;
        for (int d = 1; d < j.walk.ndim; d++) {
            fits = fits && j.walk.stride[k][d] % size == 0;
        }
    }
    return fits;
}

static void walk_in_packs(channel_job *j, int64_t size) {
    j->walk.count /= size;
    j->walk.size[0] /= size;
    for (int k = 0; k < CHANNEL_OPERANDS; k++) {
        j->walk.stride[k][0] = size;
    }
}

/* Sets lanes, bands and height: about `wanted` blocks, some waves of a large GPU, in which each
 * thread has `least` packs or more. */
static void job_cut(channel_job *j) {
    const int64_t wanted = 2048, least = 4;
    bool dense = j->step[X] < j->walk.stride[X][0] && j->walk.count > 1;
    j->lanes = dense && j->channels > CHANNEL_LANES / 4 ? CHANNEL_LANES : 1;
    int64_t pieces = tn__ceil_div(j->channels, j->lanes), strips = CHANNEL_BLOCK / j->lanes;
    int64_t bands = tn__ceil_div(wanted, pieces), limit = j->walk.count / (strips * least);
    bands = bands < limit ? bands : limit;
    if (pieces < wanted / 2 && bands > 1) {
        j->height = tn__ceil_div(tn__ceil_div(j->walk.count, bands), strips) * strips;
        j->bands = tn__ceil_div(j->walk.count, j->height);
    }
}

/* The bands' sums, if there are several, and then the results. */
template <typename T, int V>
static tn_status launch_job(tn_context *ctx, channel_job j, bool backward) {
    job_cut(&j);
    bool joins = j.sums && j.bands > 1;
    TN__SCRATCH_IF(joins, channel_sums, partial, ctx, j.channels * j.bands);
    if (joins && !partial) { return TN_ENOMEM; }
    j.partial = partial;
    unsigned pieces = (unsigned)tn__ceil_div(j.channels, j.lanes),
             blocks = pieces * (unsigned)j.bands;
    tn_status status =
        !joins     ? TN_OK
        : backward ? TN_LAUNCH(ctx, (batch_gradients_kernel<T, V>), blocks, CHANNEL_BLOCK, 0, j)
                   : TN_LAUNCH(ctx, (batch_moments_kernel<T, V>), blocks, CHANNEL_BLOCK, 0, j);
    if (status != TN_OK) { return status; }
    if (!backward) {
        return TN_LAUNCH(ctx, (batch_norm_kernel<T, V>), blocks, CHANNEL_BLOCK, 0, j);
    }
    /* without dx the first band's block is enough, which joins the others' */
    return TN_LAUNCH(ctx, (batch_norm_backward_kernel<T, V>), j.wants_dx ? blocks : pieces,
                     CHANNEL_BLOCK, 0, j);
}

/* Runs the statement with V as the elements of a pack. */
#define BY_PACK(T, j, ...)                                                \
    if (sizeof(T) < 8 && comes_in_packs(j, tn__per_load<T>, sizeof(T))) { \
        constexpr int V = sizeof(T) < 8 ? tn__per_load<T> : 1;            \
        walk_in_packs(&(j), V);                                           \
        __VA_ARGS__;                                                      \
    } else {                                                              \
        constexpr int V = 1;                                              \
        __VA_ARGS__;                                                      \
    }

/* All operands given have float dtypes. */
static tn_status run_job(tn_context *ctx, channel_job j, const tn__batch_moments &s,
                         const tn_desc *x, const tn_desc *w, bool backward) {
    j.mean = tn__given(s.mean);
    j.var = tn__given(s.var);
    j.w = tn__given(w);
    j.eps = s.eps;
    j.given = s.given;
    j.sums = !s.given || j.dw.data || j.db.data;
    if (j.channels == 0) { return TN_OK; }
    TN_FLOATS(x->dtype, BY_PACK(T, j, return launch_job<T, V>(ctx, j, backward)));
}

static tn_status batch_norm_forward(const tn_op_call *c) {
    channel_job job = channel_job_of(c->x[0], c->y[0], c->y[0]);
    job.b = tn__given(c->x[2]);
    return run_job(c->ctx, job, tn__batch_moments_of(c->x, c->y, c->args), c->x[0], c->x[1], false);
}

static tn_status batch_norm_backward(const tn_op_back *b) {
    if (tn__batch_norm_refuses(b)) { return TN_EUNSUPPORTED; }
    const tn_desc *x = b->x[0], *dx = b->dx[0];
    channel_job job = channel_job_of(x, b->dy[0], dx ? dx : x);
    job.dw = tn__given(b->dx[1]);
    job.db = tn__given(b->dx[2]);
    job.wants_dx = dx != NULL;
    return run_job(b->ctx, job, tn__batch_moments_of(b->x, b->y, b->args), x, b->x[1], true);
}

const tn_op_kernel tn__cuda_op_batch_norm = {batch_norm_forward, batch_norm_backward};
const tn_op_kernel tn__cuda_op_batch_norm_given = {batch_norm_forward, batch_norm_backward};
