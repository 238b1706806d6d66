/* The entries conv, conv_backward_input and conv_backward_weight: cuDNN if it takes the call, our
 * own kernels otherwise. */
#include "backends/cuda/conv.h"

static tn_status run_conv(tn_context *ctx, const tn__cuda_conv_call *c) {
    tn_status status = tn__cuda_dnn_conv(ctx, c);
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
