/* The kernels of attention: cuDNN's flash attention if it takes the call, our own otherwise, and
 * for a few queries. */
#include "backends/cuda/attention.h"

#include "backends/cuda/choices.h"

static tn_status attention_forward(const tn_op_call *c) {
    tn_desc seen;
    const tn__attention a = tn__attention_of(c->x, c->y, c->args, &seen);
    bool few = a.q->size[2] <= tn__cuda_chosen()->few_queries;
    tn_status status = few ? TN_EUNSUPPORTED : tn__cuda_sdpa(c->ctx, &a);
    return status == TN_EUNSUPPORTED ? tn__cuda_own_attention(c->ctx, &a) : status;
}

static tn_status attention_backward(const tn_op_back *b) {
    tn_desc seen;
    const tn__attention a = tn__attention_back_of(b, &seen);
    tn_status status = tn__cuda_sdpa(b->ctx, &a);
    return status == TN_EUNSUPPORTED ? tn__cuda_own_attention_backward(b->ctx, &a) : status;
}

const tn_op_kernel tn__cuda_op_attention = {attention_forward, attention_backward};
