/* unfold(x): the patches of a picture as columns (im2col); fold(y): its gradient, patches summed
 * into the picture that they come from (col2im)
 *
 *     x: (N, C, H, W), f32 f64 bf16 f16       y: (N, C kh kw, positions)
 *     unfold: y[n, (c, i, j), (oh, ow)] = x[n, c, oh stride - padding + i dilation, …], 0 in the
 *     padding
 *     dx = fold(dy), and dy = unfold(dx)
 *
 * fold is the transposed map, so the gradient of each is the other.
 */
#include "ops/pool/pool.h"

/* The number of window positions, and of elements in a window. */
static int64_t count_places(const tn__pool_args *a) {
    return tn_dims_count(TN_DIMS(a->out[1], a->out[2]));
}

static int64_t count_kernel(const tn__pool_args *a) {
    return a->kernel[1] * a->kernel[2];
}

/* ---- Patches --------------------------------------------------------------------------------- */

/* Of the planes of pictures, job->x, and their columns, job->y, with strides of kernel elements and
 * of positions: copies patches to columns, or adds columns to patches. */
static inline void walk_patches(const tn__pool_job *job, int64_t first, int64_t end, tn_dtype dtype,
                                bool fold) {
    const tn__pool_args *a = job->args;
    const tn__planes *x = &job->x, *y = &job->y;
    for (int64_t p = first; p < end; p++) {
        for (int64_t i = 0; i < count_kernel(a); i++) {
            int64_t to = tn__plane_at(y, p) + i * y->stride[1];
            int64_t down = i / a->kernel[2] * a->dilation[1] - a->padding[1];
            int64_t across = i % a->kernel[2] * a->dilation[2] - a->padding[2];
            for (int64_t oh = 0; oh < a->out[1]; oh++) {
                int64_t h = oh * a->stride[1] + down;
                for (int64_t ow = 0; ow < a->out[2]; ow++, to += y->stride[2]) {
                    int64_t w = ow * a->stride[2] + across;
                    bool inside = h >= 0 && h < a->in[1] && w >= 0 && w < a->in[2];
                    int64_t at = tn__plane_at(x, p) + h * x->stride[1] + w * x->stride[2];
                    double value = inside ? tn__host_load(x->data, dtype, at) : 0;
                    if (!fold) {
                        tn__host_store(y->data, dtype, to, value);
                    } else if (inside) {
                        value += tn__host_load(y->data, dtype, to);
                        tn__host_store(x->data, dtype, at, value);
                    }
                }
            }
        }
    }
}

static tn_status run_patches(const tn_op_call *c, const tn_desc *x, const tn_desc *y,
                             tn__host_piece *piece) {
    const tn__pool_args *a = c->args;
    tn__pool_job job = {.args = a, .x = tn__planes_of(x, 2)};
    job.y = (tn__planes){.data = y->data,
                         .dtype = y->dtype,
                         .channels = x->size[1],
                         .sample = y->stride[0],
                         .channel = count_kernel(a) * y->stride[1],
                         .stride = {0, y->stride[1], y->stride[2]}};
    tn__host_pieces(x->size[0] * x->size[1], count_kernel(a) * count_places(a), piece, &job);
    return TN_OK;
}

/* ---- unfold ---------------------------------------------------------------------------------- */

/* (N, C k, positions) */
static bool unfold_shape(tn_op_call *c) {
    const tn__pool_args *a = c->args;
    tn_dims x = tn_shape(c->in[0]);
    return tn__pool_fits(c, a->in) &&
           tn_op_out(c,
                     TN_DIMS(x.size[0], tn_dims_count(TN_DIMS(x.size[1], count_kernel(a))),
                             count_places(a)),
                     tn_dtype_of(c->in[0]));
}

static inline void unfold_planes(const tn__pool_job *job, int64_t first, int64_t end,
                                 tn_dtype dtype) {
    walk_patches(job, first, end, dtype, false);
}
TN__PIECE(unfold_piece, unfold_planes, tn__pool_job)

static tn_status unfold_host(const tn_op_call *c) {
    return run_patches(c, c->x[0], c->y[0], unfold_piece);
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

/* ---- fold ------------------------------------------------------------------------------------ */

static bool fold_shape(tn_op_call *c) {
    const tn__pool_args *a = c->args;
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_float(c, 0)) { return false; }
    if (x.ndim != 3 || x.size[1] % count_kernel(a) != 0 || x.size[2] != count_places(a)) {
        return tn_op_fail(
            c, TN_ESHAPE, "x is %s (it needs (N, C %lld, %lld) for this kernel and this size)",
            tn_shape_text(c->in[0]), (long long)count_kernel(a), (long long)count_places(a));
    }
    return tn_op_out(c, TN_DIMS(x.size[0], x.size[1] / count_kernel(a), a->in[1], a->in[2]),
                     tn_dtype_of(c->in[0]));
}

static inline void fold_planes(const tn__pool_job *job, int64_t first, int64_t end,
                               tn_dtype dtype) {
    walk_patches(job, first, end, dtype, true);
}
TN__PIECE(fold_piece, fold_planes, tn__pool_job)

static tn_status fold_host(const tn_op_call *c) {
    tn_status status = c->kernels->fill(c->ctx, c->y[0], 0.0);
    return status == TN_OK ? run_patches(c, c->y[0], c->x[0], fold_piece) : status;
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
    /* Those of unfold, with its results as x. */
    .samples = "{-2:2} [2, 18, 9] kernel_size=[2, 3], given=[4, 5], size=[3, 3]; "
               "[1, 12, 18] kernel_size=[3, 2], stride=[2, 1], padding=[1, 2], dilation=[1, 2], "
               "given=[6, 4], size=[3, 6]; "
               "[2, 4, 4] kernel_size=[2, 2], stride=[3, 3], given=[5, 5], size=[2, 2]; "
               "[0, 8, 4] kernel_size=[2, 2], given=[3, 3], size=[2, 2]",
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
