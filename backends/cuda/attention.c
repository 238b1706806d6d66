/* The entries attention and attention_backward: cuDNN's flash attention where it takes the call,
 * our own kernels otherwise. */
#include "backends/cuda/attention.h"

static bool all_floats(int count, const tn_desc *const *d, const tn_desc *lse) {
    tn_dtype dtype = d[0]->dtype;
    for (int i = 1; i < count; i++) {
        if (d[i]->dtype != dtype) {
            return false;
        }
    }
    bool narrow = dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F16;
    return (narrow && lse->dtype == TN_F32) || (dtype == TN_F64 && lse->dtype == TN_F64);
}

tn_status tn__cuda_attention(tn_context *ctx, const tn_desc *y, const tn_desc *lse,
                             const tn_desc *q, const tn_desc *k, const tn_desc *v,
                             const tn_attention_args *args) {
    if (!all_floats(4, (const tn_desc *[]){q, k, v, y}, lse)) {
        return TN_EUNSUPPORTED;
    }
    tn__attention a = {.q = q, .k = k, .v = v, .y = y, .lse = lse, .args = args};
    tn_status status = tn__cuda_sdpa(ctx, &a);
    return status == TN_EUNSUPPORTED ? tn__cuda_own_attention(ctx, &a) : status;
}

tn_status tn__cuda_attention_backward(tn_context *ctx, const tn_desc *dq, const tn_desc *dk,
                                      const tn_desc *dv, const tn_desc *dy, const tn_desc *y,
                                      const tn_desc *lse, const tn_desc *q, const tn_desc *k,
                                      const tn_desc *v, const tn_attention_args *args) {
    if (!all_floats(8, (const tn_desc *[]){q, k, v, y, dy, dq, dk, dv}, lse)) {
        return TN_EUNSUPPORTED;
    }
    tn__attention a = {.q = q,
                       .k = k,
                       .v = v,
                       .y = y,
                       .lse = lse,
                       .dy = dy,
                       .dq = dq,
                       .dk = dk,
                       .dv = dv,
                       .args = args};
    tn_status status = tn__cuda_sdpa(ctx, &a);
    return status == TN_EUNSUPPORTED ? tn__cuda_own_attention_backward(ctx, &a) : status;
}
