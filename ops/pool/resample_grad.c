/* resample_grad(x): each element added to those that it came from; resample's gradient
 *
 *     x: any shape, `out` elements along dim, f32 f64 bf16 f16       y: like x, `in` elements there
 *     dx = resample(dy)
 */
#include "ops/pool/resample.h"

static bool resample_grad_shape(tn_op_call *c) {
    const tn__resample_args *args = c->args;
    return tn__resample_shape(c, args->out, args->in);
}

static inline void scatter_lines(const tn__resample_job *job, int64_t first, int64_t end,
                                 tn_dtype dtype) {
    for (int64_t i = first; i < end; i++) {
        int64_t x = tn__line_at(&job->x, i), y = tn__line_at(&job->y, i), step = job->y.step;
        for (int64_t k = 0; k < job->y.length; k++) {
            tn__host_store(job->y.data, dtype, y + k * step, 0);
        }
        for (int64_t o = 0; o < job->x.length; o++, x += job->x.step) {
            double value = tn__host_load(job->x.data, dtype, x);
            for (int k = 0; k < job->taps[o].count; k++) {
                int64_t at = y + job->taps[o].place[k] * step;
                double sum = tn__host_load(job->y.data, dtype, at);
                tn__host_store(job->y.data, dtype, at, sum + job->taps[o].weight[k] * value);
            }
        }
    }
}

TN__PIECE(scatter_piece, scatter_lines, tn__resample_job)

static tn_status resample_grad_host(const tn_op_call *c) {
    return tn__resample_host(c, scatter_piece);
}

static void resample_grad_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_resample, g->args, g->dout[0]));
}

#define OF_Y(x, y) y
const tn_op tn__op_resample_grad = {
    .name = "resample_grad",
    .inputs = {"x"},
    .args_size = sizeof(tn__resample_args),
    .fields = {TN__RESAMPLE_FIELDS},
    .shape = resample_grad_shape,
    .host = {.forward = resample_grad_host},
    .backward = resample_grad_backward,
    .samples = TN__RESAMPLE_SAMPLES(OF_Y),
};
