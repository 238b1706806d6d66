/* embedding: y = weight[index]                  index (…) i64 or i32 -> (…, width), weight (count,
 * width) */
#include "nn/layer.h"

/* The same rows; no gradient reaches the weight from padding. */
static tn_tensor *without_padding(const tn_embedding *m, tn_tensor *rows, tn_tensor *index) {
    if (tn_is_inert(rows) || !tn_requires_grad(rows)) { return rows; }
    tn_tensor *padding = tn_scalar((double)m->padding_idx, tn_dtype_of(index));
    tn_tensor *is_padding = tn_eq(index, tn_to(padding, tn_device_of(index)));
    return tn_where(tn_unsqueeze(is_padding, -1), tn_detach(rows), rows);
}

static tn_tensor *embedding_forward(tn_module *self, tn_tensor *index) {
    const tn_embedding *m = (tn_embedding *)self;
    tn_tensor *rows = tn_embedding_op(m->weight, index);
    if (m->padding_idx >= 0) { rows = without_padding(m, rows, index); }
    if (!m->weight_scale) { return rows; }
    tn_tensor *scale = tn_embedding_op(tn_unsqueeze(m->weight_scale, 1), index); /* (…, 1) */
    return tn_cast(tn_mul(tn_cast(rows, TN_F32), scale), m->dtype);
}

tn_embedding_options tn_embedding_defaults(void) {
    return (tn_embedding_options){.padding_idx = -1, .dtype = TN_F32, .from_defaults = true};
}

void tn_embedding_init(tn_embedding *m, int64_t count, int64_t width,
                       tn_embedding_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "embedding", embedding_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_embedding") ||
        !TN__LAYER_FITS(m, {"count", count, 1, 0}, {"width", width, 1, 0})) {
        return;
    }
    if (options.padding_idx < -1 || options.padding_idx >= count) {
        tn__layer_refuse(m, TN_EVALUE, "padding_idx is %lld but there are %lld rows (-1: none)",
                         (long long)options.padding_idx, (long long)count);
        return;
    }
    TN_SCOPE;
    m->dtype = options.dtype;
    m->padding_idx = options.padding_idx;
    tn_tensor *weight = tn_empty(TN_DIMS(count, width), options.dtype);
    tn_init_normal(weight, 0.0, 1.0);
    if (options.padding_idx >= 0) {
        TN_NO_GRAD;
        tn_fill_(tn_select(weight, 0, options.padding_idx), 0.0);
    }
    tn_module_param(m, "weight", &m->weight, weight);
    tn_module_buffer(m, "weight_scale", &m->weight_scale, NULL);
}

TN__LAYER_NEW(embedding, tn_embedding, (int64_t count, int64_t width), (count, width))
