/* avg_pool(x): the mean of each window, of 1, 2 or 3 dimensions; avg_unpool(y): its gradient, each
 * element spread over its window
 *
 *     x: (N, C, in…), f32 f64 bf16 f16       y: (N, C, out…)
 *     avg_pool: y = sum of the window / divisor
 *     divisor: the window's number of elements, with or without the padding, or a given number
 *     avg_unpool: x = sum of y / divisor over the windows that contain the element
 *     dx = avg_unpool(dy), and dy = avg_pool(dx)
 */
#include "ops/pool/pool.h"

#include "core/error.h"

/* ---- Windows --------------------------------------------------------------------------------- */

static inline double window_mean(const tn__planes *x, tn_dtype dtype, int64_t plane,
                                 const tn__window *w, double share) {
    double sum = 0;
    for (int64_t i = 0; i < w[0].count; i++) {
        for (int64_t j = 0; j < w[1].count; j++) {
            int64_t row = plane + (w[0].first + i) * x->stride[0] +
                          (w[1].first + j) * x->stride[1] + w[2].first * x->stride[2];
            for (int64_t k = 0; k < w[2].count; k++) {
                sum += tn__host_load(x->data, dtype, row + k * x->stride[2]);
            }
        }
    }
    return sum * share;
}

/* Adds value to the window's elements. Rows of results are dense. */
static inline void spread_window(const tn__planes *y, tn_dtype dtype, int64_t plane,
                                 const tn__window *w, double value) {
    for (int64_t i = 0; i < w[0].count; i++) {
        for (int64_t j = 0; j < w[1].count; j++) {
            int64_t row = plane + (w[0].first + i) * y->stride[0] +
                          (w[1].first + j) * y->stride[1] + w[2].first;
            for (int64_t at = row; at < row + w[2].count; at++) {
                tn__host_store(y->data, dtype, at, tn__host_load(y->data, dtype, at) + value);
            }
        }
    }
}

/* Over all windows of the planes of `whole`: the mean goes to the window's place in `places`, or
 * what is there is spread. */
static inline void walk_windows(const tn__pool_args *a, const tn__planes *whole,
                                const tn__planes *places, int64_t first, int64_t end,
                                tn_dtype dtype, bool spread) {
    for (int64_t p = first; p < end; p++) {
        int64_t plane = tn__plane_at(whole, p);
        for (int64_t i = 0; i < a->out[0]; i++) {
            tn__window w[3] = {tn__window_at(a, 0, i)};
            for (int64_t j = 0; j < a->out[1]; j++) {
                w[1] = tn__window_at(a, 1, j);
                int64_t at =
                    tn__plane_at(places, p) + i * places->stride[0] + j * places->stride[1];
                for (int64_t k = 0; k < a->out[2]; k++, at += places->stride[2]) {
                    w[2] = tn__window_at(a, 2, k);
                    double share = tn__window_share(a, w);
                    if (spread) {
                        double value = tn__host_load(places->data, dtype, at) * share;
                        value = dtype == TN_F64 ? value : (double)(float)value;
                        spread_window(whole, dtype, plane, w, value);
                    } else {
                        double mean = window_mean(whole, dtype, plane, w, share);
                        tn__host_store(places->data, dtype, at, mean);
                    }
                }
            }
        }
    }
}

/* ---- avg_pool -------------------------------------------------------------------------------- */

static bool avg_pool_shape(tn_op_call *c) {
    const tn__pool_args *args = c->args;
    return tn__pool_shape(c, args->in, args->out);
}

static inline void mean_planes(const tn__pool_job *job, int64_t first, int64_t end,
                               tn_dtype dtype) {
    walk_windows(job->args, &job->x, &job->y, first, end, dtype, false);
}
TN__PIECE(avg_pool_piece, mean_planes, tn__pool_job)

static tn_status avg_pool_host(const tn_op_call *c) {
    return tn__pool_host(c->args, c->x[0], c->y[0], NULL, avg_pool_piece);
}

static void avg_pool_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_avg_unpool, g->args, g->dout[0]));
}

/* Windows that overlap, leave gaps and hang over the edge, with each divisor; each number of
 * dimensions; adaptive windows, for results larger and smaller than x. of(x, y) chooses between the
 * shape of avg_pool's input and avg_unpool's. */
/* clang-format off */
#define SAMPLES(of) \
    "{-2:2} " \
    of("[2, 3, 6, 4]", "[2, 3, 3, 2]") " kernel_size=[2, 2], stride=[2, 2], given=[6, 4], " \
    "size=[3, 2]; " \
    of("[1, 2, 7, 5]", "[1, 2, 4, 3]") " kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], " \
    "given=[7, 5], size=[4, 3]; " \
    of("[1, 2, 7, 5]", "[1, 2, 4, 3]") " kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], " \
    "count_include_pad=False, given=[7, 5], size=[4, 3]; " \
    of("[2, 1, 6, 7]", "[2, 1, 2, 7]") " kernel_size=[2, 3], stride=[3, 1], padding=[0, 1], " \
    "divisor_override=5, given=[6, 7], size=[2, 7]; " \
    of("[1, 1, 5, 6]", "[1, 1, 3, 4]") " kernel_size=[3, 2], stride=[2, 2], padding=[1, 1], " \
    "given=[5, 6], size=[3, 4]; " \
    of("[1, 2, 3, 4]", "[1, 2, 1, 1]") " kernel_size=[5, 5], stride=[5, 5], given=[3, 4], " \
    "size=[1, 1]; " \
    of("[2, 3, 9]", "[2, 3, 7]") " spatial=1, kernel_size=[3], given=[9], size=[7]; " \
    of("[1, 2, 4, 3, 4]", "[1, 2, 3, 2, 2]") " spatial=3, kernel_size=[2, 2, 2], stride=[2, 1, " \
    "2], padding=[1, 0, 0], given=[4, 3, 4], size=[3, 2, 2]; " \
    of("[0, 2, 4, 4]", "[0, 2, 2, 2]") " kernel_size=[2, 2], stride=[2, 2], given=[4, 4], " \
    "size=[2, 2]; " \
    of("[2, 2, 7, 5]", "[2, 2, 3, 2]") " adaptive=True, given=[7, 5], size=[3, 2]; " \
    of("[3, 2, 4, 4]", "[3, 2, 1, 1]") " adaptive=True, given=[4, 4], size=[1, 1]; " \
    of("[1, 2, 3]", "[1, 2, 5]") " spatial=1, adaptive=True, given=[3], size=[5]"
#define OF_X(x, y) x
#define OF_Y(x, y) y
/* clang-format on */

const tn_op tn__op_avg_pool = {
    .name = "avg_pool",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .fields = {TN__POOL_FIELDS},
    .shape = avg_pool_shape,
    .kernel = TN_FUSED(avg_pool),
    .host = {.forward = avg_pool_host},
    .backward = avg_pool_backward,
    .samples = SAMPLES(OF_X),
    .sample_args = &tn__pool_plain,
};

/* ---- avg_unpool ------------------------------------------------------------------------------ */

static bool avg_unpool_shape(tn_op_call *c) {
    const tn__pool_args *args = c->args;
    return tn__pool_shape(c, args->out, args->in);
}

static inline void spread_planes(const tn__pool_job *job, int64_t first, int64_t end,
                                 tn_dtype dtype) {
    walk_windows(job->args, &job->y, &job->x, first, end, dtype, true);
}
TN__PIECE(avg_unpool_piece, spread_planes, tn__pool_job)

static tn_status avg_unpool_host(const tn_op_call *c) {
    tn_status status = c->kernels->fill(c->ctx, c->y[0], 0.0);
    return status == TN_OK ? tn__pool_host(c->args, c->x[0], c->y[0], NULL, avg_unpool_piece)
                           : status;
}

static void avg_unpool_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_avg_pool, g->args, g->dout[0]));
}

const tn_op tn__op_avg_unpool = {
    .name = "avg_unpool",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .fields = {TN__POOL_FIELDS},
    .shape = avg_unpool_shape,
    .kernel = TN_FUSED(avg_unpool),
    .host = {.forward = avg_unpool_host},
    .backward = avg_unpool_backward,
    .samples = SAMPLES(OF_Y),
    .sample_args = &tn__pool_plain,
};

/* ---- Calling --------------------------------------------------------------------------------- */

static tn_tensor *slide_mean(const char *name, int spatial, tn_tensor *x, tn_dims kernel,
                             const tn_pool_options *o) {
    bool dilated = false;
    for (int i = 0; i < o->dilation.ndim && i < TN_MAX_DIMS; i++) {
        dilated |= o->dilation.size[i] != 1;
    }
    if (o->divisor_override < 0 || dilated) {
        return tn__refused(TN_EVALUE, name,
                           "divisor is %lld and dilation %s (they must be at least 0, and 1)",
                           (long long)o->divisor_override, tn__dims_text(o->dilation));
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
