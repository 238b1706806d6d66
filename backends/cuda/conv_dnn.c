/* The entries conv, conv_backward_input and conv_backward_weight: cuDNN if it takes the call, our
 * own kernels (conv.cu) otherwise. cuDNN takes f32, bf16 and f16; operands that are neither dense
 * nor all with their channels last are copied first.
 *
 * cuDNN 9.19 has no engine for f32 gradients of bf16 or f16, nor for the bias of a transposed
 * convolution in these. Both are computed from f32 copies: TF32 holds bf16 and f16 exactly, so the
 * tensor cores' products are exact, too.
 *
 * f32 is computed in TF32 if the context allows it.
 */
#include "backends/cuda/choices.h"
#include "backends/cuda/conv.h"
#include "backends/cuda/conv_graph.h"
#include "backends/cuda/dnn.h"

#if TN_HAVE_CUDNN

/* ---- The call -------------------------------------------------------------------------------- */

/* The i-th dimension from within, of ndim: row-major, or with the channels last. */
static int dim_from_within(int i, int ndim, bool channels_last) {
    int place = ndim - 1 - i;
    return !channels_last || place == 0 ? place : i == 0 ? 1 : place + 1;
}

/* Dense in that order, and aligned. */
static bool is_dense(const tn_desc *d, bool channels_last) {
    int64_t count = 1;
    bool dense = (uintptr_t)d->data % 16 == 0;
    for (int i = 0; i < d->ndim; i++) {
        int dim = dim_from_within(i, d->ndim, channels_last);
        dense = dense && (d->size[dim] == 1 || d->stride[dim] == count);
        count *= d->size[dim];
    }
    return dense;
}

/* All three operands have their channels last, and at least one is not row-major as well. */
static bool is_channels_last(const tn__cuda_conv_call *c) {
    return is_dense(c->y, true) && is_dense(c->x, true) && is_dense(c->w, true) &&
           !(is_dense(c->y, false) && is_dense(c->x, false) && is_dense(c->w, false));
}

static bool is_empty(const tn_desc *d) {
    bool empty = false;
    for (int i = 0; i < d->ndim; i++) {
        empty = empty || d->size[i] == 0;
    }
    return empty;
}

static bool conv_fits(const tn__cuda_conv_call *c) {
    return c->y->dtype != TN_F64 && !is_empty(c->y) && !is_empty(c->x) && !is_empty(c->w);
}

static int64_t type_of(tn_dtype dtype) {
    return dtype == TN_F32    ? CUDNN_DATA_FLOAT
           : dtype == TN_BF16 ? CUDNN_DATA_BFLOAT16
                              : CUDNN_DATA_HALF;
}

/* (N, C) and the last ndim - 2 dimensions; those left out have size 1. */
static tn__conv_extent extent_of(const tn_desc *d, int ndim, bool channels_last) {
    tn__conv_extent e = {{0}, {0}};
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        int dim = dim_from_within(i, ndim, channels_last);
        e.size[dim] = d->size[dim < 2 ? dim : dim + d->ndim - ndim];
        e.stride[dim] = count;
        count *= e.size[dim];
    }
    return e;
}

/* The padding after x with which the convolution has exactly y's places: that before x if possible.
 * Negative: part of x is not read, and cuDNN may refuse. */
static int64_t padding_behind(const tn__cuda_conv_call *c, int dim) {
    const tn_conv_args *a = c->args;
    int64_t stride = a->stride[dim], before = a->padding[dim], x = c->x->size[2 + dim],
            places = c->y->size[2 + dim], reach = a->dilation[dim] * (c->w->size[2 + dim] - 1) + 1;
    bool same = x + 2 * before >= reach && (x + 2 * before - reach) / stride + 1 == places;
    return same ? before : (places - 1) * stride + reach - x - before;
}

/* cuDNN takes two or three spatial dimensions; conv's missing ones come first. */
static tn__conv_shape shape_of(const tn_context *ctx, const tn__cuda_conv_call *c, bool with_bias,
                               bool tf32) {
    bool flat =
        c->y->size[2] == 1 && c->x->size[2] == 1 && c->w->size[2] == 1 && c->args->padding[0] == 0;
    int ndim = flat ? 4 : 5, skipped = 5 - ndim;
    bool last = is_channels_last(c);
    tn__conv_shape s = {
        .result = c->result,
        .ndim = ndim,
        .type = type_of(c->y->dtype),
        .with_bias = with_bias,
        .deterministic = ctx->deterministic,
        .tf32 = tf32,
        .y = extent_of(c->y, ndim, last),
        .x = extent_of(c->x, ndim, last),
        .w = extent_of(c->w, ndim, last),
    };
    for (int i = skipped; i < 3; i++) {
        s.stride[i - skipped] = c->args->stride[i];
        s.dilation[i - skipped] = c->args->dilation[i];
        s.before[i - skipped] = c->args->padding[i];
        s.after[i - skipped] = padding_behind(c, i);
    }
    return s;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static tn_status run_plan(tn_context *ctx, tn__dnn *dnn, const tn__dnn_work *work,
                          const tn__dnn_plan *plan) {
    TN__SCRATCH(char, workspace, ctx, plan->workspace);
    if (!workspace) { return TN_ENOMEM; }
    cudnnStatus_t status = tn__conv_run(tn__cudnn(), dnn->handle, plan, work->data, workspace);
    return tn__dnn_status(ctx, status, "cuDNN's convolution");
}

static void say_refused(const void *shape, const char *why) {
    static bool said;
    tn__cuda_say_once(&said, "cuDNN refuses a convolution, which runs on a slower kernel: %s", why);
}

static tn_status run_shape(tn_context *ctx, tn__dnn *dnn, const tn__conv_shape *shape,
                           const tn__conv_data *data) {
    tn__dnn_work work = {shape, data, sizeof(*shape), tn__conv_plans, run_plan, say_refused};
    const tn__dnn_plan *plan;
    tn_status status = tn__dnn_find(ctx, dnn, &work, &plan);
    return status == TN_OK ? run_plan(ctx, dnn, &work, plan) : status;
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* y += b in f32. The sum before it is in f32 as well, so adding the bias later rounds no more. */
static tn_status add_bias(tn_context *ctx, const tn_desc *y, const tn_desc *b) {
    tn_desc channels = *y;
    channels.data = b->data;
    for (int i = 0; i < y->ndim; i++) {
        channels.stride[i] = i == 1 ? b->stride[0] : 0;
    }
    return tn__cuda_binary(ctx, TN_ADD, y, y, &channels);
}

/* The call with dense operands of one dtype. */
static tn_status run_dense(tn_context *ctx, tn__dnn *state, const tn__cuda_conv_call *c,
                           bool tf32) {
    bool apart = c->b && c->y->dtype == TN_F32;
    tn__conv_shape shape = shape_of(ctx, c, c->b && !apart, tf32);
    tn__conv_data data = {c->y->data, c->x->data, c->w->data, c->b && !apart ? c->b->data : NULL};
    tn_status status = run_shape(ctx, state, &shape, &data);
    return status == TN_OK && apart ? add_bias(ctx, c->result == TN__CONV_Y ? c->y : c->x, c->b)
                                    : status;
}

/* last: operands that all have their channels last may stay so; else row-major copies are made. */
static tn_status run_standing_in(tn_context *ctx, tn__dnn *state, const tn__cuda_conv_call *c,
                                 bool last) {
    const tn_desc *operand[] = {
        [TN__CONV_Y] = c->y, [TN__CONV_X] = c->x, [TN__CONV_W] = c->w, c->b};
    const tn_desc *result = operand[c->result];
    tn_dtype dtype = c->result == TN__CONV_Y ? c->x->dtype : c->y->dtype;
    bool widens =
        dtype != TN_F32 && ((result->dtype != dtype && !tn__cuda_chosen()->rounded_gradients) ||
                            (c->b && c->result == TN__CONV_X));
    last = last && !widens && result->dtype == dtype;
    dtype = widens ? TN_F32 : dtype;
    tn_desc d[4];
    tn__workspace scratch[4] = {{NULL}}; /* without memory: d is the operand itself */
    tn_status status = TN_OK;
    for (int i = 0; i < 4 && status == TN_OK; i++) {
        if (!operand[i]) { continue; }
        d[i] = *operand[i];
        if (d[i].dtype != dtype || !((last && i < 3) || is_dense(&d[i], false))) {
            bool is_read = i != (int)c->result;
            status = tn__cuda_stand_in(ctx, &d[i], dtype, is_read, &scratch[i]);
        }
    }
    if (status == TN_OK) {
        tn__cuda_conv_call dense = {c->result, &d[0], &d[1], &d[2], c->b ? &d[3] : NULL, c->args};
        status = run_dense(ctx, state, &dense, widens || ctx->conv_tf32);
    }
    if (status == TN_OK && scratch[c->result].memory) {
        status = tn__cuda_copy(ctx, result, &d[c->result]);
    }
    for (int i = 0; i < 4; i++) {
        tn__workspace_end(&scratch[i]);
    }
    return status;
}

/* TN_EUNSUPPORTED: cuDNN is missing or does not take this call, and nothing was queued. */
static tn_status run_dnn(tn_context *ctx, const tn__cuda_conv_call *c) {
    if (!conv_fits(c)) { return TN_EUNSUPPORTED; }
    tn__dnn *state = tn__dnn_open(ctx);
    if (!state) { return TN_ENOMEM; }
    bool last = is_channels_last(c);
    tn_status status = state->handle ? run_standing_in(ctx, state, c, last) : TN_EUNSUPPORTED;
    if (state->handle && last && status == TN_EUNSUPPORTED) { /* no plan for this order */
        status = run_standing_in(ctx, state, c, false);
    }
    tn__dnn_close(state);
    return status;
}

#else

static tn_status run_dnn(tn_context *ctx, const tn__cuda_conv_call *c) {
    return TN_EUNSUPPORTED;
}

#endif

/* ---- Entries --------------------------------------------------------------------------------- */

static tn_status run_conv(tn_context *ctx, const tn__cuda_conv_call *c) {
    tn_status status = run_dnn(ctx, c);
    return status == TN_EUNSUPPORTED ? tn__cuda_own_conv(ctx, c) : status;
}

static bool one_dtype(const tn__cuda_conv_call *c) {
    tn_dtype dtype = c->y->dtype;
    return tn__is_float(dtype) && c->x->dtype == dtype && c->w->dtype == dtype &&
           (!c->b || c->b->dtype == dtype);
}

tn_status tn__cuda_conv(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                        const tn_desc *b, const tn_conv_args *args) {
    tn__cuda_conv_call c = {TN__CONV_Y, y, x, w, b, args};
    return one_dtype(&c) ? run_conv(ctx, &c) : TN_EUNSUPPORTED;
}

tn_status tn__cuda_conv_backward_input(tn_context *ctx, const tn_desc *dx, const tn_desc *dy,
                                       const tn_desc *w, const tn_desc *b,
                                       const tn_conv_args *args) {
    tn__cuda_conv_call c = {TN__CONV_X, dy, dx, w, b, args};
    return one_dtype(&c) ? run_conv(ctx, &c) : TN_EUNSUPPORTED;
}

/* Whether a gradient of the weight or bias, if wanted, has dy's dtype, or f32 if that is bf16 or
 * f16. */
static bool result_fits(const tn_desc *d, tn_dtype dy) {
    return !d || d->dtype == dy || (d->dtype == TN_F32 && (dy == TN_BF16 || dy == TN_F16));
}

tn_status tn__cuda_conv_backward_weight(tn_context *ctx, const tn_desc *dw, const tn_desc *db,
                                        const tn_desc *dy, const tn_desc *x,
                                        const tn_conv_args *args) {
    if (!tn__is_float(dy->dtype) || (dw && x->dtype != dy->dtype) || !result_fits(dw, dy->dtype) ||
        !result_fits(db, dy->dtype)) {
        return TN_EUNSUPPORTED;
    }
    tn__cuda_conv_call c = {TN__CONV_W, dy, x, dw, NULL, args};
    tn_status status = dw ? run_conv(ctx, &c) : TN_OK;
    return status == TN_OK && db ? tn__cuda_conv_bias(ctx, db, dy) : status;
}
