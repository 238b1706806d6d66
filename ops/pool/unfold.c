/* unfold(x): the patches of a picture as columns (im2col)
 *
 *     x: (N, C, H, W), f32 f64 bf16 f16       y: (N, C kh kw, positions)
 *     y[n, (c, i, j), (oh, ow)] = x[n, c, oh stride - padding + i dilation, …], 0 in the padding
 *     dx = fold(dy)
 *
 * fold is the transposed map, so the gradient of each is the other.
 */
#include "ops/pool/unfold.h"

#include "core/error.h"

tn_dims tn__unfold_picture(tn_dims x, const tn__pool_args *a, int64_t channels) {
    return TN_DIMS(x.size[0], channels, a->in[1], a->in[2]);
}

/* (N, C k, positions) */
static tn_dims dims_of_patches(tn_dims x, const tn__pool_args *a, int64_t channels) {
    return TN_DIMS(x.size[0], tn_dims_count(TN_DIMS(channels, tn__unfold_kernel(a))),
                   tn__unfold_places(a));
}

static bool unfold_shape(tn_op_call *c) {
    const tn__pool_args *a = c->args;
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_float(c, 0)) { return false; }
    if (x.ndim != 4 || !tn_dims_equal(x, tn__unfold_picture(x, a, x.size[1]))) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s but the sizes after (N, C) must be %s",
                          tn_shape_text(c->in[0]), tn__dims_text(tn_dims_from(2, a->in + 1)));
    }
    return tn_op_out(c, dims_of_patches(x, a, x.size[1]), tn_dtype_of(c->in[0]));
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

static void unfold_piece(const void *user, int64_t first, int64_t end) {
    const tn__pool_job *job = user;
    if (job->x.dtype == TN_F64) {
        unfold_planes(job, first, end, TN_F64);
    } else {
        unfold_planes(job, first, end, TN_F32);
    }
}

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

/* Patches that overlap, leave gaps, are dilated, and reach into the padding. */
void tn__unfold_samples(tn_op_samples *s, bool of_patches) {
    static const struct {
        tn_dims x;
        tn__pool_args args;
        const char *text, *back;
    } cases[] = {
        {{4, {2, 3, 4, 5}},
         {2, false, false, 0, {1, 2, 3}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 4, 5}, {1, 3, 3}},
         "kernel_size=(2, 3)",
         "output_size=(4, 5), kernel_size=(2, 3)"},
        {{4, {1, 2, 6, 4}},
         {2, false, false, 0, {1, 3, 2}, {1, 2, 1}, {0, 1, 2}, {1, 1, 2}, {1, 6, 4}, {1, 3, 6}},
         "kernel_size=(3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)",
         "output_size=(6, 4), kernel_size=(3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)"},
        {{4, {2, 1, 5, 5}},
         {2, false, false, 0, {1, 2, 2}, {1, 3, 3}, {0, 0, 0}, {1, 1, 1}, {1, 5, 5}, {1, 2, 2}},
         "kernel_size=2, stride=3",
         "output_size=(5, 5), kernel_size=2, stride=3"},
        {{4, {0, 2, 3, 3}},
         {2, false, false, 0, {1, 2, 2}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 3, 3}, {1, 2, 2}},
         "kernel_size=2",
         "output_size=(3, 3), kernel_size=2"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const tn__pool_args *a = &cases[i].args;
        tn_dims x = cases[i].x;
        tn_sample sample = {
            .text = of_patches ? cases[i].back : cases[i].text,
            .args = a,
            .inputs = 1,
            .in = {tn_spec_real(of_patches ? dims_of_patches(x, a, x.size[1]) : x, -2.0, 2.0)},
        };
        tn_sample_add(s, &sample);
    }
}

static void unfold_samples(tn_op_samples *s) {
    tn__unfold_samples(s, false);
}

const tn_op tn__op_unfold = {
    .name = "unfold",
    .inputs = {"x"},
    .args_size = sizeof(tn__pool_args),
    .shape = unfold_shape,
    .host = {.forward = unfold_host},
    .backward = unfold_backward,
    .add_samples = unfold_samples,
};

/* ---- Calling --------------------------------------------------------------------------------- */

tn_unfold_options tn_unfold_defaults(void) {
    return (tn_unfold_options){
        .dilation = TN_DIMS(1), .padding = TN_DIMS(0), .stride = TN_DIMS(1), .from_defaults = true};
}

tn_tensor *tn_unfold(tn_tensor *x, tn_dims kernel, tn_unfold_options o) {
    if (!tn__usable(x, "unfold") || !tn__options_made(o.from_defaults, "unfold", "tn_unfold")) {
        return tn_inert();
    }
    bool single = tn_ndim(x) == 3;
    x = single ? tn_unsqueeze(x, 0) : x;
    tn__pool_args args = {.spatial = 2};
    tn_pool_options window =
        TN_WITH(tn_pool, .stride = o.stride, .padding = o.padding, .dilation = o.dilation);
    if (!tn__pool_sizes("unfold", &args, x) || !tn__pool_window("unfold", &args, kernel, &window)) {
        return tn_inert();
    }
    tn_tensor *y = tn_apply1(&tn__op_unfold, &args, x);
    return single ? tn_squeeze(y, 0) : y;
}

tn_tensor *tn_fold(tn_tensor *x, tn_dims size, tn_dims kernel, tn_unfold_options o) {
    if (!tn__usable(x, "fold") || !tn__options_made(o.from_defaults, "fold", "tn_unfold")) {
        return tn_inert();
    }
    if (size.ndim != 1 && size.ndim != 2) {
        tn__raise(TN_EVALUE, "fold", "size has %d numbers (1 or 2 are needed)", size.ndim);
        return tn_inert();
    }
    for (int i = 0; i < size.ndim; i++) {
        if (size.size[i] < 1 || size.size[i] > INT32_MAX) {
            tn__raise(TN_EVALUE, "fold", "size is %lld (it must be at least 1)",
                      (long long)size.size[i]);
            return tn_inert();
        }
    }
    bool single = tn_ndim(x) == 2;
    x = single ? tn_unsqueeze(x, 0) : x;
    tn__pool_args args = {.spatial = 2, .in = {1, size.size[0], size.size[size.ndim - 1]}};
    tn_pool_options window =
        TN_WITH(tn_pool, .stride = o.stride, .padding = o.padding, .dilation = o.dilation);
    if (!tn__pool_window("fold", &args, kernel, &window)) { return tn_inert(); }
    tn_tensor *y = tn_apply1(&tn__op_fold, &args, x);
    return single ? tn_squeeze(y, 0) : y;
}
