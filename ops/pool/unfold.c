/* unfold(x): the patches of a picture as columns (im2col)
 *
 *     x: (N, C, H, W), f32 f64 bf16 f16       y: (N, C kh kw, positions)
 *     y[n, (c, i, j), (oh, ow)] = x[n, c, oh stride - padding + i dilation, …], 0 in the padding
 *     dx = fold(dy)
 *
 * fold is the transposed map, so the gradient of each is the other.
 */
#include "ops/pool/unfold.h"

/* (N, C k, positions) */
static bool unfold_shape(tn_op_call *c) {
    const tn__pool_args *a = c->args;
    tn_dims x = tn_shape(c->in[0]);
    return tn__pool_fits(c, a->in) &&
           tn_op_out(c,
                     TN_DIMS(x.size[0], tn_dims_count(TN_DIMS(x.size[1], tn__unfold_kernel(a))),
                             tn__unfold_places(a)),
                     tn_dtype_of(c->in[0]));
}

static inline void unfold_planes(const tn__pool_job *job, int64_t first, int64_t end,
                                 tn_dtype dtype) {
    const tn__pool_args *a = job->args;
    int64_t each = tn__unfold_kernel(a) * tn__unfold_places(a);
    for (int64_t p = first; p < end; p++) {
        int64_t x = tn__plane_at(&job->x, p), y = p * each;
        for (int64_t i = 0; i < tn__unfold_kernel(a); i++) {
            int64_t down = i / a->kernel[2] * a->dilation[1] - a->padding[1];
            int64_t across = i % a->kernel[2] * a->dilation[2] - a->padding[2];
            for (int64_t oh = 0; oh < a->out[1]; oh++) {
                int64_t h = oh * a->stride[1] + down;
                for (int64_t ow = 0; ow < a->out[2]; ow++, y++) {
                    int64_t w = ow * a->stride[2] + across;
                    bool inside = h >= 0 && h < a->in[1] && w >= 0 && w < a->in[2];
                    int64_t at = x + h * job->x.stride[1] + w * job->x.stride[2];
                    double v = inside ? tn__host_load(job->x.data, dtype, at) : 0;
                    tn__host_store(job->y.data, dtype, y, v);
                }
            }
        }
    }
}

TN__PIECE(unfold_piece, unfold_planes, tn__pool_job)

static tn_status unfold_host(const tn_op_call *c) {
    const tn__pool_args *a = c->args;
    tn__pool_job job = {.args = a, .x = tn__planes_of(c->x[0], 2)};
    job.y.data = c->y[0]->data;
    tn__host_pieces(c->x[0]->size[0] * c->x[0]->size[1],
                    tn__unfold_kernel(a) * tn__unfold_places(a), unfold_piece, &job);
    return TN_OK;
}

static void unfold_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_fold, g->args, g->dout[0]));
}

const tn_op tn__op_unfold = {
    .name = "unfold",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .fields = {TN__POOL_FIELDS},
    .shape = unfold_shape,
    .host = {.forward = unfold_host},
    .backward = unfold_backward,
    /* Patches that overlap, leave gaps, are dilated, and reach into the padding. */
    .samples = "{-2:2} [2, 3, 4, 5] kernel_size=[2, 3], given=[4, 5], size=[3, 3]; "
               "[1, 2, 6, 4] kernel_size=[3, 2], stride=[2, 1], padding=[1, 2], dilation=[1, 2], "
               "given=[6, 4], size=[3, 6]; "
               "[2, 1, 5, 5] kernel_size=[2, 2], stride=[3, 3], given=[5, 5], size=[2, 2]; "
               "[0, 2, 3, 3] kernel_size=[2, 2], given=[3, 3], size=[2, 2]",
    .sample_args = &tn__pool_plain,
};

/* ---- Calling --------------------------------------------------------------------------------- */

tn_unfold_options tn_unfold_defaults(void) {
    return (tn_unfold_options){
        .dilation = TN_DIMS(1), .padding = TN_DIMS(0), .stride = TN_DIMS(1), .from_defaults = true};
}

/* The window of a call, if its options are made. False after raising. */
static bool begin_patches(const char *name, const tn_unfold_options *o, tn_pool_options *window) {
    *window = TN_WITH(tn_pool, .stride = o->stride, .padding = o->padding, .dilation = o->dilation);
    return tn__options_made(o->from_defaults, name, "tn_unfold");
}

tn_tensor *tn_unfold(tn_tensor *x, tn_dims kernel, tn_unfold_options o) {
    tn__pool_args args = tn__pool_plain;
    tn_pool_options window;
    if (!tn__usable(x, "unfold") || !begin_patches("unfold", &o, &window)) { return tn_inert(); }
    bool single = tn_ndim(x) == 3;
    x = single ? tn_unsqueeze(x, 0) : x;
    if (!tn__pool_sizes("unfold", &args, x) || !tn__pool_window("unfold", &args, kernel, &window)) {
        return tn_inert();
    }
    tn_tensor *y = tn_apply1(&tn__op_unfold, &args, x);
    return single ? tn_squeeze(y, 0) : y;
}

tn_tensor *tn_fold(tn_tensor *x, tn_dims size, tn_dims kernel, tn_unfold_options o) {
    tn__pool_args args = tn__pool_plain;
    tn_pool_options window;
    if (!tn__usable(x, "fold") || !begin_patches("fold", &o, &window) ||
        !tn__spread_numbers("fold", "size", 2, size, 1, args.in)) {
        return tn_inert();
    }
    bool single = tn_ndim(x) == 2;
    x = single ? tn_unsqueeze(x, 0) : x;
    if (!tn__pool_window("fold", &args, kernel, &window)) { return tn_inert(); }
    tn_tensor *y = tn_apply1(&tn__op_fold, &args, x);
    return single ? tn_squeeze(y, 0) : y;
}
