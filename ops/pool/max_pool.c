/* max_pool(x): the largest element of each window, of 1, 2 or 3 dimensions
 *
 *     x: (N, C, in…), f32 f64 bf16 f16       y: (N, C, out…)       index: (N, C, out…) i32
 *     index: which element of its plane each is, in row-major order; NaN wins, and of equal ones
 *     the first. A window that has nothing but padding (dilated ones may) gives -inf, and -1.
 *     dx: dy at index, added up where windows overlap, and 0 elsewhere
 *
 * Adaptive pooling is the same with other windows. The index is made where a gradient may be asked
 * for. A task is a plane, so nothing is added up by two.
 */
#include "ops/index/index.h"
#include "ops/pool/pool.h"

#include "core/error.h"

#include <math.h>
#include <string.h>

static bool max_pool_shape(tn_op_call *c) {
    const tn__pool_args *args = c->args;
    if (!tn__pool_shape(c, args->in, args->out)) {
        return false;
    }
    return !c->record || tn_op_out(c, tn_shape(c->out[0]), TN_I32);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Defines pool_window_TYPE, the largest of one window, and pool_planes_TYPE. Written once for each
 * type, since the comparison of NaN and of equals is the whole of the loop. */
#define MAX_POOL(type)                                                                            \
    static inline type pool_window_##type(const type *x, const int64_t *stride,                   \
                                          const tn__pool_args *a, const tn__window *w,            \
                                          int32_t *place) {                                       \
        bool empty = w[0].count < 1 || w[1].count < 1 || w[2].count < 1;                          \
        int64_t at = empty ? -1 : (w[0].first * a->in[1] + w[1].first) * a->in[2] + w[2].first;   \
        type best = -(type)INFINITY;                                                              \
        for (int64_t i = 0; i < w[0].count; i++) {                                                \
            for (int64_t j = 0; j < w[1].count; j++) {                                            \
                int64_t d = i * a->dilation[0], h = j * a->dilation[1];                           \
                const type *row = x + (w[0].first + d) * stride[0] +                              \
                                  (w[1].first + h) * stride[1] + w[2].first * stride[2];          \
                int64_t from =                                                                    \
                    ((w[0].first + d) * a->in[1] + w[1].first + h) * a->in[2] + w[2].first;       \
                for (int64_t k = 0; k < w[2].count; k++) {                                        \
                    type v = row[k * a->dilation[2] * stride[2]];                                 \
                    if (v > best || v != v) {                                                     \
                        best = v;                                                                 \
                        at = from + k * a->dilation[2];                                           \
                    }                                                                             \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
        *place = (int32_t)at;                                                                     \
        return best;                                                                              \
    }                                                                                             \
    static void pool_planes_##type(const tn__pool_job *job, int64_t first, int64_t end) {         \
        const tn__pool_args *a = job->args;                                                       \
        for (int64_t p = first; p < end; p++) {                                                   \
            const type *x = (const type *)job->x.data + tn__plane_at(&job->x, p);                 \
            type *y = (type *)job->y.data + p * tn__pool_volume(a->out);                          \
            int32_t *index =                                                                      \
                job->has_index ? (int32_t *)job->index.data + p * tn__pool_volume(a->out) : NULL; \
            for (int64_t i = 0; i < a->out[0]; i++) {                                             \
                tn__window w[3] = {tn__window_at(a, 0, i)};                                       \
                for (int64_t j = 0; j < a->out[1]; j++) {                                         \
                    w[1] = tn__window_at(a, 1, j);                                                \
                    for (int64_t k = 0; k < a->out[2]; k++) {                                     \
                        w[2] = tn__window_at(a, 2, k);                                            \
                        int32_t place;                                                            \
                        *y++ = pool_window_##type(x, job->x.stride, a, w, &place);                \
                        if (index) {                                                              \
                            *index++ = place;                                                     \
                        }                                                                         \
                    }                                                                             \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
    }
MAX_POOL(float)
MAX_POOL(double)

static void max_pool_piece(const void *user, int64_t first, int64_t end) {
    const tn__pool_job *job = user;
    if (job->x.dtype == TN_F64) {
        pool_planes_double(job, first, end);
    } else {
        pool_planes_float(job, first, end);
    }
}

static tn_status max_pool_host(const tn_op_call *c) {
    const tn__pool_args *args = c->args;
    const tn_desc *index = tn_op_y(c, 1);
    tn__pool_job job = {.args = args,
                        .x = tn__planes_of(&c->x[0], args->spatial),
                        .y = tn__planes_of(&c->y[0], args->spatial)};
    if (index) {
        job.index = tn__planes_of(index, args->spatial);
        job.has_index = true;
    }
    int64_t each = tn__pool_volume(args->in) + tn__pool_volume(args->out);
    tn__host_pieces(c->x[0].size[0] * c->x[0].size[1], each, max_pool_piece, &job);
    return TN_OK;
}

/* ---- Backward -------------------------------------------------------------------------------- */

#define MAX_POOL_BACK(type)                                                                 \
    static void unpool_planes_##type(const tn__pool_job *job, int64_t first, int64_t end) { \
        const tn__pool_args *a = job->args;                                                 \
        int64_t in = tn__pool_volume(a->in), out = tn__pool_volume(a->out);                 \
        for (int64_t p = first; p < end; p++) {                                             \
            const type *dy = (const type *)job->x.data + tn__plane_at(&job->x, p);          \
            type *dx = (type *)job->y.data + p * in;                                        \
            const int32_t *index = (const int32_t *)job->index.data + p * out;              \
            memset(dx, 0, (size_t)in * sizeof(type));                                       \
            for (int64_t i = 0; i < a->out[0]; i++) {                                       \
                for (int64_t j = 0; j < a->out[1]; j++) {                                   \
                    const type *row = dy + i * job->x.stride[0] + j * job->x.stride[1];     \
                    for (int64_t k = 0; k < a->out[2]; k++, index++) {                      \
                        if (*index >= 0) {                                                  \
                            dx[*index] += row[k * job->x.stride[2]];                        \
                        }                                                                   \
                    }                                                                       \
                }                                                                           \
            }                                                                               \
        }                                                                                   \
    }
MAX_POOL_BACK(float)
MAX_POOL_BACK(double)

static void max_unpool_piece(const void *user, int64_t first, int64_t end) {
    const tn__pool_job *job = user;
    if (job->x.dtype == TN_F64) {
        unpool_planes_double(job, first, end);
    } else {
        unpool_planes_float(job, first, end);
    }
}

static tn_status max_pool_host_backward(const tn_op_back *b) {
    const tn__pool_args *args = b->args;
    tn__pool_job job = {.args = args,
                        .x = tn__planes_of(b->dy[0], args->spatial),
                        .y = tn__planes_of(b->dx[0], args->spatial),
                        .index = tn__planes_of(b->y[1], args->spatial)};
    int64_t each = tn__pool_volume(args->in) + tn__pool_volume(args->out);
    tn__host_pieces(b->dx[0]->size[0] * b->dx[0]->size[1], each, max_unpool_piece, &job);
    return TN_OK;
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

/* ---- Samples --------------------------------------------------------------------------------- */

/* Windows that overlap, leave gaps, hang over the edge, are dilated, and of one element; each
 * number of dimensions. Ties and NaN are test_pool.c's. */
static void max_pool_samples(tn_op_samples *s) {
    static const struct {
        tn_dims x;
        tn__pool_args args;
        const char *text;
    } cases[] = {
        {{4, {2, 3, 6, 4}},
         {2, false, false, 0, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, {1, 6, 4}, {1, 3, 2}},
         "kernel_size=(2, 2)"},
        {{4, {1, 2, 7, 5}},
         {2, false, false, 0, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, {1, 7, 5}, {1, 4, 3}},
         "kernel_size=3, stride=2, padding=1"},
        {{4, {2, 1, 6, 7}},
         {2, false, false, 0, {1, 2, 3}, {1, 3, 1}, {0, 0, 1}, {1, 1, 2}, {1, 6, 7}, {1, 2, 5}},
         "kernel_size=(2, 3), stride=(3, 1), padding=(0, 1), dilation=(1, 2)"},
        {{4, {1, 1, 5, 6}},
         {2, false, false, 0, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, {1, 5, 6}, {1, 3, 3}},
         "kernel_size=2, ceil_mode=True"},
        {{3, {2, 3, 9}},
         {1, false, false, 0, {1, 1, 3}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 9}, {1, 1, 7}},
         "kernel_size=3, stride=1"},
        {{5, {1, 2, 4, 3, 4}},
         {3, false, false, 0, {2, 2, 2}, {2, 1, 2}, {1, 0, 0}, {1, 1, 1}, {4, 3, 4}, {3, 2, 2}},
         "kernel_size=2, stride=(2, 1, 2), padding=(1, 0, 0)"},
        {{4, {0, 2, 4, 4}},
         {2, false, false, 0, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, {1, 4, 4}, {1, 2, 2}},
         "kernel_size=2"},
        {{4, {2, 2, 7, 5}},
         {2, true, false, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 7, 5}, {1, 3, 2}},
         "output_size=(3, 2)"},
        {{3, {1, 2, 3}},
         {1, true, false, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 3}, {1, 1, 5}},
         "output_size=5"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tn_sample sample = {
            .text = cases[i].text,
            .args = &cases[i].args,
            .inputs = 1,
            .in = {tn_spec_distinct(cases[i].x, -5.0, 5.0)},
        };
        tn_sample_add(s, &sample);
    }
}

const tn_op tn__op_max_pool = {
    .name = "max_pool",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .saves = TN_SAVES_OUTPUT(1),
    .shape = max_pool_shape,
    .host = max_pool_host,
    .host_backward = max_pool_host_backward,
    .backward = max_pool_backward,
    .samples = max_pool_samples,
};

/* ---- Calling --------------------------------------------------------------------------------- */

/* The last step of each function: on samples, or on one. */
static tn_tensor *pool_max(const char *name, int spatial, tn_tensor *x, tn_dims kernel,
                           const tn_pool_options *options) {
    if (!tn__usable(x, name)) {
        return tn_inert();
    }
    bool single = tn_ndim(x) == spatial + 1;
    tn__pool_args args = {.spatial = spatial};
    x = single ? tn_unsqueeze(x, 0) : x;
    bool ok = options ? tn__pool_begin(name, &args, x, kernel, options)
                      : tn__pool_adaptive(name, &args, x, kernel);
    if (!ok) {
        return tn_inert();
    }
    tn_tensor *y = tn_apply1(&tn__op_max_pool, &args, x);
    return single ? tn_squeeze(y, 0) : y;
}

tn_tensor *tn_max_pool1d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return pool_max("max_pool1d", 1, x, kernel, &options);
}
tn_tensor *tn_max_pool2d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return pool_max("max_pool2d", 2, x, kernel, &options);
}
tn_tensor *tn_max_pool3d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return pool_max("max_pool3d", 3, x, kernel, &options);
}
tn_tensor *tn_adaptive_max_pool1d_op(tn_tensor *x, tn_dims size) {
    return pool_max("adaptive_max_pool1d", 1, x, size, NULL);
}
tn_tensor *tn_adaptive_max_pool2d_op(tn_tensor *x, tn_dims size) {
    return pool_max("adaptive_max_pool2d", 2, x, size, NULL);
}
tn_tensor *tn_adaptive_max_pool3d_op(tn_tensor *x, tn_dims size) {
    return pool_max("adaptive_max_pool3d", 3, x, size, NULL);
}
