/* max_pool(x): the largest element of each window, of 1, 2 or 3 dimensions
 *
 *     x: (N, C, in…), f32 f64 bf16 f16       y: (N, C, out…)       index: (N, C, out…) i32
 *     index: the position of each in its plane, in row-major order
 *     dx: dy at index, added up where windows overlap, and 0 elsewhere
 *
 * NaN wins, and the first of equal elements. A window that is all padding (a dilated one may be)
 * gives -inf, and -1.
 *
 * Adaptive pooling is the same with other windows. The index is made if a gradient may be needed. A
 * task is a plane, so no two tasks add to the same element.
 */
#include "ops/index/index.h"
#include "ops/pool/pool.h"

#include <math.h>
#include <string.h>

static bool max_pool_shape(tn_op_call *c) {
    const tn__pool_args *args = c->args;
    if (!tn__pool_shape(c, args->in, args->out)) { return false; }
    return !c->record || tn_op_out(c, tn_shape(c->out[0]), TN_I32);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Computes PLACES results of a row at a time, tap by tap: neighbouring results read elements one
 * step apart, and a loop over them has no branches. Adaptive windows have no such step, and are
 * computed one by one. */
enum { PLACES = 64 };

typedef struct some_places {
    int64_t from, count;
    union {
        float f32[PLACES];
        double f64[PLACES];
    } best;
    int32_t index[PLACES];
} some_places;

/* Compares n results with elements `step` apart, whose indices are `skip` apart from `number` on.
 * NaN wins, and the first of equal elements; any element wins over none. */
#define TAKE_LARGEST(type)                                                                       \
    static inline void take_##type(const type *x, int64_t step, int64_t n, int32_t number,       \
                                   int32_t skip, type *restrict best, int32_t *restrict index) { \
        for (int64_t k = 0; k < n; k++, number += skip) {                                        \
            type v = x[k * step];                                                                \
            if (v > best[k] || v != v || index[k] < 0) {                                         \
                best[k] = v;                                                                     \
                index[k] = number;                                                               \
            }                                                                                    \
        }                                                                                        \
    }
TAKE_LARGEST(float)
TAKE_LARGEST(double)

typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t four_ints __attribute__((vector_size(16), aligned(4), may_alias));

/* take_float for four results at a time, without branches. */
static inline void take_fours(const float *x, int64_t step, int64_t n, int32_t number, int32_t skip,
                              float *best, int32_t *index) {
    four_ints after = {number, number + skip, number + 2 * skip, number + 3 * skip};
    int64_t k = 0;
    for (; k + 4 <= n; k += 4, after += 4 * skip) {
        const float *from = x + k * step;
        four_floats v = {from[0], from[step], from[2 * step], from[3 * step]}, itself = v,
                    largest = *(four_floats *)(best + k);
        four_ints before = *(four_ints *)(index + k),
                  wins = (v > largest) | (v != itself) | (before < 0); /* NaN != NaN */
        *(four_ints *)(index + k) = (after & wins) | (before & ~wins);
        *(four_floats *)(best + k) =
            (four_floats)(((four_ints)v & wins) | ((four_ints)largest & ~wins));
    }
    number += (int32_t)k * skip;
    take_float(x + k * step, step, n - k, number, skip, best + k, index + k);
}

/* n results from number `low` on, at one tap: elements from x[at] on, with index `number` in its
 * plane. The usual steps are constants, so that it is vectorised. */
static void take_tap(const tn__pool_job *job, const void *x, int64_t at, int64_t number, int64_t n,
                     some_places *p, int64_t low) {
    /* a single result has no next one, whose index could be out of range */
    int32_t first = (int32_t)number, skip = n > 1 ? (int32_t)job->args->stride[2] : 0,
            *index = p->index + low;
    int64_t step = job->args->stride[2] * job->x.stride[2];
    const float *from = (const float *)x + at;
    if (job->x.dtype == TN_F64) {
        take_double((const double *)x + at, step, n, first, skip, p->best.f64 + low, index);
    } else {
        take_fours(from, step, n, first, skip, p->best.f32 + low, index);
    }
}

/* Compares these results with one row of elements, at the taps that are inside. */
static void take_row(const tn__pool_job *job, const void *x, int64_t at, int64_t number,
                     some_places *p) {
    const tn__pool_args *a = job->args;
    int64_t stride = a->stride[2], in = a->in[2], step = job->x.stride[2];
    if (a->adaptive) {
        tn__window w = tn__window_at(a, 2, p->from);
        for (int64_t i = w.first; i < w.first + w.count; i++) {
            take_tap(job, x, at + i * step, number + i, 1, p, 0);
        }
        return;
    }
    for (int64_t t = 0; t < a->kernel[2]; t++) { /* the first result's element may be outside */
        int64_t first = p->from * stride - a->padding[2] + t * a->dilation[2], low = 0,
                high = p->count;
        if (first < 0) { low = (stride - 1 - first) / stride; }
        if (first + (high - 1) * stride >= in) {
            high = first < in ? (in - 1 - first) / stride + 1 : 0;
        }
        if (low < high) {
            int64_t i = first + low * stride;
            take_tap(job, x, at + i * step, number + i, high - low, p, low);
        }
    }
}

/* Computes some of a row's results; w: the windows in the other dimensions. */
static void take_places(const tn__pool_job *job, const void *x, const tn__window *w,
                        some_places *p) {
    const tn__pool_args *a = job->args;
    for (int64_t k = 0; k < p->count; k++) {
        p->index[k] = -1;
        if (job->x.dtype == TN_F64) {
            p->best.f64[k] = -(double)INFINITY;
        } else {
            p->best.f32[k] = -INFINITY;
        }
    }
    for (int64_t i = 0; i < w[0].count; i++) {
        int64_t z = w[0].first + i * a->dilation[0];
        for (int64_t j = 0; j < w[1].count; j++) {
            int64_t h = w[1].first + j * a->dilation[1];
            take_row(job, x, z * job->x.stride[0] + h * job->x.stride[1],
                     (z * a->in[1] + h) * a->in[2], p);
        }
    }
}

/* Computes row `row` of all results, from the plane at x. */
static void max_pool_row(const tn__pool_job *job, const void *x, const tn__window *w, int64_t row) {
    const tn__pool_args *a = job->args;
    size_t size = tn_dtype_size(job->x.dtype);
    int64_t max = a->adaptive ? 1 : PLACES;
    some_places p;
    for (p.from = 0; p.from < a->out[2]; p.from += p.count) {
        int64_t to = row * a->out[2] + p.from, left = a->out[2] - p.from;
        p.count = left < max ? left : max;
        take_places(job, x, w, &p);
        memcpy((char *)job->y.data + (size_t)to * size, &p.best, (size_t)p.count * size);
        if (job->index.data) {
            memcpy((int32_t *)job->index.data + to, p.index, (size_t)p.count * sizeof(int32_t));
        }
    }
}

static void max_pool_piece(const void *user, int64_t first, int64_t end) {
    const tn__pool_job *job = user;
    const tn__pool_args *a = job->args;
    size_t size = tn_dtype_size(job->x.dtype);
    for (int64_t p = first; p < end; p++) {
        const char *x = (const char *)job->x.data + (size_t)tn__plane_at(&job->x, p) * size;
        for (int64_t i = 0; i < a->out[0]; i++) {
            tn__window w[2] = {tn__window_at(a, 0, i)};
            for (int64_t j = 0; j < a->out[1]; j++) {
                w[1] = tn__window_at(a, 1, j);
                max_pool_row(job, x, w, (p * a->out[0] + i) * a->out[1] + j);
            }
        }
    }
}

static tn_status max_pool_host(const tn_op_call *c) {
    return tn__pool_host(c->args, c->x[0], c->y[0], c->y[1], max_pool_piece);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Of job, x is dy and y is dx. */
static inline void unpool_planes(const tn__pool_job *job, int64_t first, int64_t end,
                                 tn_dtype dtype) {
    const tn__pool_args *a = job->args;
    int64_t in = tn__pool_volume(a->in), out = tn__pool_volume(a->out);
    for (int64_t p = first; p < end; p++) {
        const int32_t *index = (const int32_t *)job->index.data + p * out;
        int64_t dy = tn__plane_at(&job->x, p), dx = p * in;
        for (int64_t i = 0; i < in; i++) {
            tn__host_store(job->y.data, dtype, dx + i, 0);
        }
        for (int64_t i = 0; i < a->out[0]; i++) {
            for (int64_t j = 0; j < a->out[1]; j++) {
                int64_t row = dy + i * job->x.stride[0] + j * job->x.stride[1];
                for (int64_t k = 0; k < a->out[2]; k++, index++) {
                    if (*index < 0) { continue; }
                    double sum = tn__host_load(job->y.data, dtype, dx + *index) +
                                 tn__host_load(job->x.data, dtype, row + k * job->x.stride[2]);
                    tn__host_store(job->y.data, dtype, dx + *index, sum);
                }
            }
        }
    }
}
TN__PIECE(max_unpool_piece, unpool_planes, tn__pool_job)

static tn_status max_pool_host_backward(const tn_op_back *b) {
    return tn__pool_host(b->args, b->dy[0], b->dx[0], b->y[1], max_unpool_piece);
}

static void max_pool_backward(tn_op_grad *g) {
    tn_dims x = tn_op_input_dims(g, 0), dy = tn_shape(g->dout[0]);
    tn_dims flat = {.ndim = 3, .size = {x.size[0], x.size[1], 1}}, flat_dy = flat;
    for (int i = 2; i < x.ndim; i++) {
        flat.size[2] *= x.size[i];
        flat_dy.size[2] *= dy.size[i];
    }
    tn_tensor *index = tn_reshape(tn_op_saved_output(g, 1), flat_dy);
    tn_tensor *none = tn__filled(index, TN_DIMS(), 0);
    tn_tensor *dense = tn_masked_fill(tn_reshape(g->dout[0], flat_dy), tn_lt(index, none), 0);
    tn_tensor *dx = tn__scatter_add(dense, 2, tn_maximum(index, none), flat);
    tn_op_give(g, 0, tn_reshape(dx, x));
}

const tn_op tn__op_max_pool = {
    .name = "max_pool",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .fields = {TN__POOL_FIELDS},
    .saves = TN_SAVES_OUTPUT(1),
    .shape = max_pool_shape,
    .kernel = TN_FUSED(max_pool),
    .host = {max_pool_host, max_pool_host_backward},
    .backward = max_pool_backward,
    /* Windows that overlap, leave gaps, hang over the edge, are dilated, and have one element; each
     * number of dimensions. test_pool.c has ties and NaN. */
    .samples = "{distinct -5:5} [2, 3, 6, 4] kernel_size=[2, 2], stride=[2, 2], given=[6, 4], "
               "size=[3, 2]; "
               "[1, 2, 7, 5] kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], given=[7, 5], "
               "size=[4, 3]; "
               "[2, 1, 6, 7] kernel_size=[2, 3], stride=[3, 1], padding=[0, 1], dilation=[1, 2], "
               "given=[6, 7], size=[2, 5]; "
               "[1, 1, 5, 6] kernel_size=[2, 2], stride=[2, 2], given=[5, 6], size=[3, 3]; "
               "[1, 2, 3, 4] kernel_size=[5, 5], stride=[5, 5], given=[3, 4], size=[1, 1]; "
               "[2, 3, 9] spatial=1, kernel_size=[3], given=[9], size=[7]; "
               "[1, 2, 4, 3, 4] spatial=3, kernel_size=[2, 2, 2], stride=[2, 1, 2], padding=[1, "
               "0, 0], given=[4, 3, 4], size=[3, 2, 2]; "
               "[0, 2, 4, 4] kernel_size=[2, 2], stride=[2, 2], given=[4, 4], size=[2, 2]; "
               "[2, 2, 7, 5] adaptive=True, given=[7, 5], size=[3, 2]; "
               "[1, 2, 3] spatial=1, adaptive=True, given=[3], size=[5]",
    .sample_args = &tn__pool_plain,
};

/* ---- Calling --------------------------------------------------------------------------------- */

tn_tensor *tn_max_pool1d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return tn__pool_call(&tn__op_max_pool, "max_pool1d", 1, x, kernel, &options);
}
tn_tensor *tn_max_pool2d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return tn__pool_call(&tn__op_max_pool, "max_pool2d", 2, x, kernel, &options);
}
tn_tensor *tn_max_pool3d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return tn__pool_call(&tn__op_max_pool, "max_pool3d", 3, x, kernel, &options);
}
tn_tensor *tn_adaptive_max_pool1d_op(tn_tensor *x, tn_dims size) {
    return tn__pool_call(&tn__op_max_pool, "adaptive_max_pool1d", 1, x, size, NULL);
}
tn_tensor *tn_adaptive_max_pool2d_op(tn_tensor *x, tn_dims size) {
    return tn__pool_call(&tn__op_max_pool, "adaptive_max_pool2d", 2, x, size, NULL);
}
tn_tensor *tn_adaptive_max_pool3d_op(tn_tensor *x, tn_dims size) {
    return tn__pool_call(&tn__op_max_pool, "adaptive_max_pool3d", 3, x, size, NULL);
}
