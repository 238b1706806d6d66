/* embedding: y = weight[index]                  index (…) i64 or i32 -> (…, width), weight (count,
 * width) */
#include "nn/module.h"

static tn_tensor *embedding_forward(tn_module *self, tn_tensor *index) {
    const tn_embedding *m = (tn_embedding *)self;
    tn_tensor *rows = tn_embedding_op(m->weight, index);
    if (!m->weight_scale) {
        return rows;
    }
    tn_tensor *scale = tn_embedding_op(tn_unsqueeze(m->weight_scale, 1), index); /* (…, 1) */
    return tn_cast(tn_mul(tn_cast(rows, TN_F32), scale), m->dtype);
}

void tn_embedding_init(tn_embedding *m, int64_t count, int64_t width, tn_dtype dtype) {
    if (!tn__layer_begin(m, sizeof(*m), "embedding", embedding_forward, NULL)) {
        return;
    }
    if (count < 1 || width < 1) {
        tn__layer_refuse(m, TN_EVALUE, "count is %lld and width is %lld (both must be at least 1)",
                         (long long)count, (long long)width);
        return;
    }
    TN_SCOPE;
    m->dtype = dtype;
    tn_tensor *weight = tn_empty(TN_DIMS(count, width), dtype);
    tn_init_normal(weight, 0.0, 1.0);
    tn_module_param(m, "weight", &m->weight, weight);
    tn_module_buffer(m, "weight_scale", &m->weight_scale, NULL);
}

tn_embedding *tn_embedding_new(int64_t count, int64_t width) {
    tn_embedding *m = tn__layer_alloc(sizeof(*m));
    tn_embedding_init(m, count, width, TN_F32);
    return tn__layer_on_heap(m);
}
