/* avg_unpool(x): each element spread over its window; avg_pool's gradient
 *
 *     x: (N, C, out…), f32 f64 bf16 f16       y: (N, C, in…), avg_pool's arguments
 *     y = sum of x / divisor over the windows that contain the element
 *     dx = avg_pool(dy)
 */
#include "ops/pool/pool.h"

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
    return tn__pool_host(c->args, c->x[0], c->y[0], NULL, avg_unpool_piece);
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
    /* Those of avg_pool.c, with its results as x. */
    .samples = "{-2:2} [2, 3, 3, 2] kernel_size=[2, 2], stride=[2, 2], given=[6, 4], size=[3, 2]; "
               "[1, 2, 4, 3] kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], given=[7, 5], "
               "size=[4, 3]; "
               "[1, 2, 4, 3] kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], "
               "count_include_pad=False, given=[7, 5], size=[4, 3]; "
               "[2, 1, 2, 7] kernel_size=[2, 3], stride=[3, 1], padding=[0, 1], "
               "divisor_override=5, given=[6, 7], size=[2, 7]; "
               "[1, 1, 3, 4] kernel_size=[3, 2], stride=[2, 2], padding=[1, 1], given=[5, 6], "
               "size=[3, 4]; "
               "[1, 2, 1, 1] kernel_size=[5, 5], stride=[5, 5], given=[3, 4], size=[1, 1]; "
               "[2, 3, 7] spatial=1, kernel_size=[3], given=[9], size=[7]; "
               "[1, 2, 3, 2, 2] spatial=3, kernel_size=[2, 2, 2], stride=[2, 1, 2], padding=[1, "
               "0, 0], given=[4, 3, 4], size=[3, 2, 2]; "
               "[0, 2, 2, 2] kernel_size=[2, 2], stride=[2, 2], given=[4, 4], size=[2, 2]; "
               "[2, 2, 3, 2] adaptive=True, given=[7, 5], size=[3, 2]; "
               "[3, 2, 1, 1] adaptive=True, given=[4, 4], size=[1, 1]; "
               "[1, 2, 5] spatial=1, adaptive=True, given=[3], size=[5]",
    .sample_args = &tn__pool_plain,
};
