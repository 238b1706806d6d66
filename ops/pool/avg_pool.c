/* avg_pool(x): the mean of each window, of 1, 2 or 3 dimensions
 *
 *     x: (N, C, in…), f32 f64 bf16 f16       y: (N, C, out…)
 *     y = sum of the window / divisor
 *     divisor: the window's number of elements, with or without the padding, or a given number
 *     dx = avg_unpool(dy)
 */
#include "ops/pool/avg_pool.h"

#include "core/error.h"

static bool avg_pool_shape(tn_op_call *c) {
    const tn__pool_args *args = c->args;
    return tn__pool_shape(c, args->in, args->out);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Defines window_mean_TYPE and mean_planes_TYPE. */
#define AVG_POOL(type)                                                                          \
    static inline type window_mean_##type(const type *x, const int64_t *stride,                 \
                                          const tn__window *w, double share) {                  \
        double sum = 0;                                                                         \
        for (int64_t i = 0; i < w[0].count; i++) {                                              \
            for (int64_t j = 0; j < w[1].count; j++) {                                          \
                const type *row = x + (w[0].first + i) * stride[0] +                            \
                                  (w[1].first + j) * stride[1] + w[2].first * stride[2];        \
                for (int64_t k = 0; k < w[2].count; k++) {                                      \
                    sum += (double)row[k * stride[2]];                                          \
                }                                                                               \
            }                                                                                   \
        }                                                                                       \
        return (type)(sum * share);                                                             \
    }                                                                                           \
    static void mean_planes_##type(const tn__pool_job *job, int64_t first, int64_t end) {       \
        const tn__pool_args *a = job->args;                                                     \
        for (int64_t p = first; p < end; p++) {                                                 \
            const type *x = (const type *)job->x.data + tn__plane_at(&job->x, p);               \
            type *y = (type *)job->y.data + p * tn__pool_volume(a->out);                        \
            for (int64_t i = 0; i < a->out[0]; i++) {                                           \
                tn__window w[3] = {tn__window_at(a, 0, i)};                                     \
                for (int64_t j = 0; j < a->out[1]; j++) {                                       \
                    w[1] = tn__window_at(a, 1, j);                                              \
                    for (int64_t k = 0; k < a->out[2]; k++) {                                   \
                        w[2] = tn__window_at(a, 2, k);                                          \
                        *y++ = window_mean_##type(x, job->x.stride, w, tn__window_share(a, w)); \
                    }                                                                           \
                }                                                                               \
            }                                                                                   \
        }                                                                                       \
    }
AVG_POOL(float)
AVG_POOL(double)

static void avg_pool_piece(const void *user, int64_t first, int64_t end) {
    const tn__pool_job *job = user;
    if (job->x.dtype == TN_F64) {
        mean_planes_double(job, first, end);
    } else {
        mean_planes_float(job, first, end);
    }
}

tn_status tn__avg_pool_host(const tn_op_call *c, tn__host_piece *piece) {
    const tn__pool_args *args = c->args;
    tn__pool_job job = {.args = args,
                        .x = tn__planes_of(c->x[0], args->spatial),
                        .y = tn__planes_of(c->y[0], args->spatial)};
    int64_t each = tn__pool_volume(args->in) + tn__pool_volume(args->out);
    tn__host_pieces(c->x[0]->size[0] * c->x[0]->size[1], each, piece, &job);
    return TN_OK;
}

static tn_status avg_pool_host(const tn_op_call *c) {
    return tn__avg_pool_host(c, avg_pool_piece);
}

static void avg_pool_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_avg_unpool, g->args, g->dout[0]));
}

/* ---- Samples --------------------------------------------------------------------------------- */

/* Windows that overlap, leave gaps and hang over the edge, with each divisor; each number of
 * dimensions; adaptive windows, for results larger and smaller than x. */
static const struct {
    tn_dims x;
    tn__pool_args args;
    const char *text, *back; /* PyTorch's keywords; the same after x's sizes */
} cases[] = {
    {{4, {2, 3, 6, 4}},
     {2, false, true, 0, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, {1, 6, 4}, {1, 3, 2}},
     "kernel_size=(2, 2)",
     "size=(6, 4,), kernel_size=(2, 2)"},
    {{4, {1, 2, 7, 5}},
     {2, false, true, 0, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, {1, 7, 5}, {1, 4, 3}},
     "kernel_size=3, stride=2, padding=1",
     "size=(7, 5,), kernel_size=3, stride=2, padding=1"},
    {{4, {1, 2, 7, 5}},
     {2, false, false, 0, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, {1, 7, 5}, {1, 4, 3}},
     "kernel_size=3, stride=2, padding=1, count_include_pad=False",
     "size=(7, 5,), kernel_size=3, stride=2, padding=1, count_include_pad=False"},
    {{4, {2, 1, 6, 7}},
     {2, false, true, 5, {1, 2, 3}, {1, 3, 1}, {0, 0, 1}, {1, 1, 1}, {1, 6, 7}, {1, 2, 7}},
     "kernel_size=(2, 3), stride=(3, 1), padding=(0, 1), divisor_override=5",
     "size=(6, 7,), kernel_size=(2, 3), stride=(3, 1), padding=(0, 1), divisor_override=5"},
    {{4, {1, 1, 5, 6}},
     {2, false, true, 0, {1, 3, 2}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, {1, 5, 6}, {1, 3, 4}},
     "kernel_size=(3, 2), stride=2, padding=1, ceil_mode=True",
     "size=(5, 6,), kernel_size=(3, 2), stride=2, padding=1, ceil_mode=True"},
    {{4, {1, 2, 3, 4}},
     {2, false, true, 0, {1, 5, 5}, {1, 5, 5}, {0, 0, 0}, {1, 1, 1}, {1, 3, 4}, {1, 1, 1}},
     "kernel_size=5, ceil_mode=True",
     "size=(3, 4,), kernel_size=5, ceil_mode=True"},
    {{3, {2, 3, 9}},
     {1, false, true, 0, {1, 1, 3}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 9}, {1, 1, 7}},
     "kernel_size=3, stride=1",
     "size=(9,), kernel_size=3, stride=1"},
    {{5, {1, 2, 4, 3, 4}},
     {3, false, true, 0, {2, 2, 2}, {2, 1, 2}, {1, 0, 0}, {1, 1, 1}, {4, 3, 4}, {3, 2, 2}},
     "kernel_size=2, stride=(2, 1, 2), padding=(1, 0, 0)",
     "size=(4, 3, 4,), kernel_size=2, stride=(2, 1, 2), padding=(1, 0, 0)"},
    {{4, {0, 2, 4, 4}},
     {2, false, true, 0, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, {1, 4, 4}, {1, 2, 2}},
     "kernel_size=2",
     "size=(4, 4,), kernel_size=2"},
    {{4, {2, 2, 7, 5}},
     {2, true, false, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 7, 5}, {1, 3, 2}},
     "output_size=(3, 2)",
     "size=(7, 5,), output_size=(3, 2)"},
    {{4, {3, 2, 4, 4}},
     {2, true, false, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 4, 4}, {1, 1, 1}},
     "output_size=1",
     "size=(4, 4,), output_size=1"},
    {{3, {1, 2, 3}},
     {1, true, false, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 3}, {1, 1, 5}},
     "output_size=5",
     "size=(3,), output_size=5"},
};

void tn__avg_pool_samples(tn_op_samples *s, bool of_result) {
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const tn__pool_args *a = &cases[i].args;
        tn_dims x = of_result ? tn__pool_dims(cases[i].x, a->spatial, a->out) : cases[i].x;
        tn_sample sample = {
            .text = of_result ? cases[i].back : cases[i].text,
            .args = a,
            .inputs = 1,
            .in = {tn_spec_real(x, -2.0, 2.0)},
        };
        tn_sample_add(s, &sample);
    }
}

static void avg_pool_samples(tn_op_samples *s) {
    tn__avg_pool_samples(s, false);
}

const tn_op tn__op_avg_pool = {
    .name = "avg_pool",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .shape = avg_pool_shape,
    .kernel = TN_FUSED(avg_pool),
    .host = {.forward = avg_pool_host},
    .backward = avg_pool_backward,
    .add_samples = avg_pool_samples,
};

/* ---- Calling --------------------------------------------------------------------------------- */

static tn_tensor *slide_mean(const char *name, int spatial, tn_tensor *x, tn_dims kernel,
                             const tn_pool_options *o) {
    bool dilated = false;
    for (int i = 0; i < o->dilation.ndim && i < TN_MAX_DIMS; i++) {
        dilated |= o->dilation.size[i] != 1;
    }
    if (o->divisor_override < 0 || dilated) {
        tn__raise(TN_EVALUE, name,
                  "divisor is %lld and dilation %s (they must be at least 0, and 1)",
                  (long long)o->divisor_override, tn__dims_text(o->dilation));
        return tn_inert();
    }
    return tn__pool_call(&tn__op_avg_pool, name, spatial, x, kernel, o);
}

tn_tensor *tn_avg_pool1d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return slide_mean("avg_pool1d", 1, x, kernel, &options);
}
tn_tensor *tn_avg_pool2d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return slide_mean("avg_pool2d", 2, x, kernel, &options);
}
tn_tensor *tn_avg_pool3d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options) {
    return slide_mean("avg_pool3d", 3, x, kernel, &options);
}
tn_tensor *tn_adaptive_avg_pool1d_op(tn_tensor *x, tn_dims size) {
    return tn__pool_call(&tn__op_avg_pool, "adaptive_avg_pool1d", 1, x, size, NULL);
}
tn_tensor *tn_adaptive_avg_pool2d_op(tn_tensor *x, tn_dims size) {
    return tn__pool_call(&tn__op_avg_pool, "adaptive_avg_pool2d", 2, x, size, NULL);
}
tn_tensor *tn_adaptive_avg_pool3d_op(tn_tensor *x, tn_dims size) {
    return tn__pool_call(&tn__op_avg_pool, "adaptive_avg_pool3d", 3, x, size, NULL);
}
