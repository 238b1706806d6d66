/* Convolutions: the entries become jobs for the blocked kernels (conv_kernel.h).
 *
 * The gradient of the input is also a convolution, of dy with the kernel flipped. With a stride it
 * is several: the places of dx fall into classes by their remainder, each of which uses its own
 * taps of the kernel and reads dy contiguously.
 */
#include "backends/cpu/conv.h"

static bool one_dtype(const tn_desc *y, const tn_desc *a, const tn_desc *b, const tn_desc *c) {
    return is_float(y->dtype) && a->dtype == y->dtype && b->dtype == y->dtype &&
           (!c || c->dtype == y->dtype);
}

static conv_side side_of(const tn_desc *x) {
    return (conv_side){.data = x->data,
                       .dtype = x->dtype,
                       .image = x->stride[0],
                       .channel = x->stride[1],
                       .stride = {x->stride[2], x->stride[3], x->stride[4]},
                       .size = {x->size[2], x->size[3], x->size[4]}};
}

/* The job of the entry conv. */
static conv_job job_of(const tn_desc *y, const tn_desc *x, const tn_desc *w, const tn_desc *b,
                       const tn_conv_args *args) {
    conv_job job = {.images = x->size[0],
                    .groups = args->groups,
                    .rows = w->size[0] / args->groups,
                    .channels = w->size[1],
                    .x = side_of(x),
                    .y = side_of(y),
                    .w = {.data = w->data,
                          .dtype = w->dtype,
                          .row = w->stride[0],
                          .channel = w->stride[1],
                          .group = w->size[0] / args->groups * w->stride[0]},
                    .bias = b ? b->data : NULL,
                    .bias_stride = b ? b->stride[0] : 0};
    for (int d = 0; d < SPATIAL; d++) {
        job.walk[d] = (conv_walk){.places = y->size[d + 2],
                                  .step = args->stride[d],
                                  .taps = w->size[d + 2],
                                  .shift = args->dilation[d],
                                  .origin = -args->padding[d]};
        job.w.each[d] = 1;
        job.w.stride[d] = w->stride[d + 2];
    }
    return job;
}

static tn_status run_job(tn_context *ctx, const conv_job *job) {
    if (TN_CPU(conv_winograd_fits)(job)) { return TN_CPU(conv_winograd)(ctx, job); }
    return job->x.dtype == TN_F64 ? TN_CPU(conv_f64)(ctx, job) : TN_CPU(conv_f32)(ctx, job);
}

tn_status TN_CPU(conv)(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                       const tn_desc *b, const tn_conv_args *args) {
    if (!one_dtype(y, x, w, b)) { return TN_EUNSUPPORTED; }
    conv_job job = job_of(y, x, w, b, args);
    return run_job(ctx, &job);
}

/* ---- The gradient of the input --------------------------------------------------------------- */

static int64_t common_divisor(int64_t a, int64_t b) {
    return b ? common_divisor(b, a % b) : a;
}

/* Dimension d of a job for the places q of dx with (q + padding) % stride == rest. Tap i
 * contributes to them if i dilation % stride is rest too: then p = (q + padding - i dilation) /
 * stride. */
static void walk_class(conv_job *job, int d, const tn_desc *dx, const tn_desc *w,
                       const tn_conv_args *args, int64_t rest) {
    int64_t stride = args->stride[d], dilation = args->dilation[d], padding = args->padding[d];
    int64_t each = stride / common_divisor(stride, dilation), tap = 0;
    while (tap < each && tap * dilation % stride != rest) {
        tap++;
    }
    int64_t taps = tap < each && tap < w->size[d + 2] ? (w->size[d + 2] - 1 - tap) / each + 1 : 0;
    int64_t last = tap + (taps - 1) * each; /* at the origin: p grows as i falls */
    int64_t from = padding > rest ? div_up(padding - rest, stride) : 0;
    int64_t first = from * stride + rest - padding, size = dx->size[d + 2];
    job->walk[d] = (conv_walk){.places = first < size ? (size - first - 1) / stride + 1 : 0,
                               .step = 1,
                               .taps = taps,
                               .shift = each * dilation / stride,
                               .origin = taps ? from - (last * dilation - rest) / stride : 0,
                               .falls = true};
    job->w.first[d] = tap;
    job->w.each[d] = each;
    job->w.stride[d] = w->stride[d + 2];
    job->y.stride[d] = dx->stride[d + 2] * stride;
    job->y.data = (char *)job->y.data + first * dx->stride[d + 2] * (int64_t)size_of(dx->dtype);
}

/* A stride larger than the padded input has the same single place as a stride of exactly its size;
 * further classes would be empty. */
static tn_conv_args with_short_strides(const tn_conv_args *args, const tn_desc *dx) {
    tn_conv_args shorter = *args;
    for (int d = 0; d < SPATIAL; d++) {
        int64_t all = max_of(dx->size[d + 2] + 2 * args->padding[d], 1);
        shorter.stride[d] = min_of(args->stride[d], all);
    }
    return shorter;
}

tn_status TN_CPU(conv_backward_input)(tn_context *ctx, const tn_desc *dx, const tn_desc *dy,
                                      const tn_desc *w, const tn_desc *b,
                                      const tn_conv_args *args) {
    if (!one_dtype(dx, dy, w, b)) { return TN_EUNSUPPORTED; }
    tn_status status = TN_OK;
    const tn_conv_args as = with_short_strides(args, dx);
    int64_t classes = as.stride[0] * as.stride[1] * as.stride[2];
    for (int64_t i = 0; i < classes && status == TN_OK; i++) {
        int64_t rest[SPATIAL] = {i / as.stride[2] / as.stride[1], i / as.stride[2] % as.stride[1],
                                 i % as.stride[2]};
        conv_job job = {.images = dx->size[0],
                        .groups = args->groups,
                        .rows = w->size[1],
                        .channels = w->size[0] / args->groups,
                        .x = side_of(dy),
                        .y = side_of(dx),
                        .w = {.data = w->data,
                              .dtype = w->dtype,
                              .row = w->stride[1],
                              .channel = w->stride[0],
                              .group = w->size[0] / args->groups * w->stride[0]},
                        .bias = b ? b->data : NULL,
                        .bias_stride = b ? b->stride[0] : 0};
        for (int d = 0; d < SPATIAL; d++) {
            walk_class(&job, d, dx, w, &as, rest[d]);
        }
        status = run_job(ctx, &job);
    }
    return status;
}

/* ---- The gradients of the weight and the bias ------------------------------------------------ */

/* db: the sums of dy's channels, by ref if db is wider than dy. */
static tn_status sum_channels(tn_context *ctx, const tn_desc *db, const tn_desc *dy,
                              const tn_conv_args *args) {
    if (db->dtype != dy->dtype) {
        return TN_CPU(ref)->conv_backward_weight(ctx, NULL, db, dy, NULL, args);
    }
    tn_desc sums = {.data = db->data,
                    .dtype = db->dtype,
                    .ndim = dy->ndim,
                    .size = {1, dy->size[1], 1, 1, 1},
                    .stride = {1, db->stride[0], 1, 1, 1}};
    return TN_CPU(reduce)(ctx, TN_SUM, &sums, dy);
}

tn_status TN_CPU(conv_backward_weight)(tn_context *ctx, const tn_desc *dw, const tn_desc *db,
                                       const tn_desc *dy, const tn_desc *x,
                                       const tn_conv_args *args) {
    const tn_desc *to = dw ? dw : db;
    if (!to) { return TN_OK; }
    bool widens = to->dtype == TN_F32 && (dy->dtype == TN_BF16 || dy->dtype == TN_F16);
    if (!is_float(dy->dtype) || !(to->dtype == dy->dtype || widens) ||
        (dw && x->dtype != dy->dtype) || (db && db->dtype != to->dtype)) {
        return TN_EUNSUPPORTED;
    }
    tn_status status = db ? sum_channels(ctx, db, dy, args) : TN_OK;
    if (!dw || status != TN_OK) { return status; }
    conv_job job = job_of(dy, x, dw, NULL, args);
    if (TN_CPU(conv_winograd_fits)(&job)) { return TN_CPU(conv_winograd_weight)(ctx, &job); }
    return x->dtype == TN_F64 ? TN_CPU(conv_weight_f64)(ctx, &job)
                              : TN_CPU(conv_weight_f32)(ctx, &job);
}
