/* avg_unpool(x): each element spread over its window; avg_pool's gradient
 *
 *     x: (N, C, out…), f32 f64 bf16 f16       y: (N, C, in…), avg_pool's arguments
 *     y = sum of x / divisor over the windows that contain the element
 *     dx = avg_pool(dy)
 */
#include "ops/pool/avg_pool.h"

#include <string.h>

static bool avg_unpool_shape(tn_op_call *c) {
    const tn__pool_args *args = c->args;
    return tn__pool_shape(c, args->out, args->in);
}

/* Defines spread_planes_TYPE. */
#define AVG_UNPOOL(type)                                                                          \
    static inline void spread_window_##type(type *y, const tn__pool_args *a, const tn__window *w, \
                                            type value) {                                         \
        for (int64_t i = 0; i < w[0].count; i++) {                                                \
            for (int64_t j = 0; j < w[1].count; j++) {                                            \
                type *row =                                                                       \
                    y + ((w[0].first + i) * a->in[1] + w[1].first + j) * a->in[2] + w[2].first;   \
                for (int64_t k = 0; k < w[2].count; k++) {                                        \
                    row[k] += value;                                                              \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
    }                                                                                             \
    static void spread_planes_##type(const tn__pool_job *job, int64_t first, int64_t end) {       \
        const tn__pool_args *a = job->args;                                                       \
        int64_t in = tn__pool_volume(a->in);                                                      \
        for (int64_t p = first; p < end; p++) {                                                   \
            const type *x = (const type *)job->x.data + tn__plane_at(&job->x, p);                 \
            type *y = (type *)job->y.data + p * in;                                               \
            memset(y, 0, (size_t)in * sizeof(type));                                              \
            for (int64_t i = 0; i < a->out[0]; i++) {                                             \
                tn__window w[3] = {tn__window_at(a, 0, i)};                                       \
                for (int64_t j = 0; j < a->out[1]; j++) {                                         \
                    w[1] = tn__window_at(a, 1, j);                                                \
                    const type *row = x + i * job->x.stride[0] + j * job->x.stride[1];            \
                    for (int64_t k = 0; k < a->out[2]; k++) {                                     \
                        w[2] = tn__window_at(a, 2, k);                                            \
                        double value = (double)row[k * job->x.stride[2]];                         \
                        spread_window_##type(y, a, w, (type)(value * tn__window_share(a, w)));    \
                    }                                                                             \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
    }
AVG_UNPOOL(float)
AVG_UNPOOL(double)

static void avg_unpool_piece(const void *user, int64_t first, int64_t end) {
    const tn__pool_job *job = user;
    if (job->x.dtype == TN_F64) {
        spread_planes_double(job, first, end);
    } else {
        spread_planes_float(job, first, end);
    }
}

static tn_status avg_unpool_host(const tn_op_call *c) {
    return tn__avg_pool_host(c, avg_unpool_piece);
}

static void avg_unpool_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_avg_pool, g->args, g->dout[0]));
}

static void avg_unpool_samples(tn_op_samples *s) {
    tn__avg_pool_samples(s, true);
}

const tn_op tn__op_avg_unpool = {
    .name = "avg_unpool",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .shape = avg_unpool_shape,
    .kernel = TN_FUSED(avg_unpool),
    .host = {.forward = avg_unpool_host},
    .backward = avg_unpool_backward,
    .add_samples = avg_unpool_samples,
};
