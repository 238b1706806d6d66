/* fold(x): patches summed into the picture that they come from (col2im); unfold's gradient
 *
 *     x: (N, C kh kw, positions), f32 f64 bf16 f16       y: (N, C, H, W), unfold's arguments
 *     dx = unfold(dy)
 */
#include "ops/pool/unfold.h"

static bool fold_shape(tn_op_call *c) {
    const tn__pool_args *a = c->args;
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_float(c, 0)) { return false; }
    if (x.ndim != 3 || x.size[1] % tn__unfold_kernel(a) != 0 || x.size[2] != tn__unfold_places(a)) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s (it needs (N, C %lld, %lld) for this kernel and this size)",
                          tn_shape_text(c->in[0]), (long long)tn__unfold_kernel(a),
                          (long long)tn__unfold_places(a));
    }
    return tn_op_out(c, TN_DIMS(x.size[0], x.size[1] / tn__unfold_kernel(a), a->in[1], a->in[2]),
                     tn_dtype_of(c->in[0]));
}

/* job->x.stride: of rows, kernel elements, and positions. */
static inline void fold_planes(const tn__pool_job *job, int64_t first, int64_t end,
                               tn_dtype dtype) {
    const tn__pool_args *a = job->args;
    int64_t plane = a->in[1] * a->in[2], kernel = tn__unfold_kernel(a);
    for (int64_t p = first; p < end; p++) {
        int64_t y = p * plane;
        for (int64_t k = 0; k < plane; k++) {
            tn__host_store(job->y.data, dtype, y + k, 0);
        }
        for (int64_t i = 0; i < kernel; i++) {
            int64_t x = tn__plane_at(&job->x, p) + i * job->x.stride[1];
            int64_t down = i / a->kernel[2] * a->dilation[1] - a->padding[1];
            int64_t across = i % a->kernel[2] * a->dilation[2] - a->padding[2];
            for (int64_t oh = 0; oh < a->out[1]; oh++) {
                int64_t h = oh * a->stride[1] + down;
                for (int64_t ow = 0; ow < a->out[2]; ow++, x += job->x.stride[2]) {
                    int64_t w = ow * a->stride[2] + across, at = y + h * a->in[2] + w;
                    if (h >= 0 && h < a->in[1] && w >= 0 && w < a->in[2]) {
                        double sum = tn__host_load(job->y.data, dtype, at);
                        sum += tn__host_load(job->x.data, dtype, x);
                        tn__host_store(job->y.data, dtype, at, sum);
                    }
                }
            }
        }
    }
}

TN__PIECE(fold_piece, fold_planes, tn__pool_job)

static tn_status fold_host(const tn_op_call *c) {
    const tn__pool_args *a = c->args;
    const tn_desc *x = c->x[0], *y = c->y[0];
    int64_t kernel = tn__unfold_kernel(a);
    tn__pool_job job = {.args = a};
    job.x = (tn__planes){.data = x->data,
                         .dtype = x->dtype,
                         .channels = y->size[1],
                         .sample = x->stride[0],
                         .channel = kernel * x->stride[1],
                         .stride = {0, x->stride[1], x->stride[2]}};
    job.y.data = y->data;
    tn__host_pieces(y->size[0] * y->size[1], kernel * tn__unfold_places(a), fold_piece, &job);
    return TN_OK;
}

static void fold_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_unfold, g->args, g->dout[0]));
}

const tn_op tn__op_fold = {
    .name = "fold",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .fields = {TN__POOL_FIELDS},
    .shape = fold_shape,
    .host = {.forward = fold_host},
    .backward = fold_backward,
    /* Those of unfold.c, with its results as x. */
    .samples = "{-2:2} [2, 18, 9] kernel_size=[2, 3], given=[4, 5], size=[3, 3]; "
               "[1, 12, 18] kernel_size=[3, 2], stride=[2, 1], padding=[1, 2], dilation=[1, 2], "
               "given=[6, 4], size=[3, 6]; "
               "[2, 4, 4] kernel_size=[2, 2], stride=[3, 3], given=[5, 5], size=[2, 2]; "
               "[0, 8, 4] kernel_size=[2, 2], given=[3, 3], size=[2, 2]",
    .sample_args = &tn__pool_plain,
};
