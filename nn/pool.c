/* Pooling layers: sliding windows (tn_pool), and windows chosen for a result's size
 * (tn_adaptive_pool). They differ in the function they call.
 */
#include "nn/layer.h"
#include "tensor/tensor.h"

/* ---- Windows that slide ---------------------------------------------------------------------- */

static tn_tensor *pool_forward(tn_module *self, tn_tensor *x) {
    const tn_pool *m = (const tn_pool *)self;
    return m->f(x, m->kernel, m->options);
}

static const tn_field pool_fields[] = {
    TN_FIELD(tn_pool, kernel),
    TN_FIELD_OPTION(tn_pool, stride),
    TN_FIELD_OPTION(tn_pool, padding),
    TN_FIELD_OPTION(tn_pool, dilation),
    {0},
};

static void pool_init(tn_pool *m, const char *kind,
                      tn_tensor *(*f)(tn_tensor *x, tn_dims kernel, tn_pool_options options),
                      tn_dims kernel, tn_pool_options options) {
    if (!tn__layer_begin(m, sizeof(*m), kind, pool_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_pool")) {
        return;
    }
    m->base.fields = pool_fields;
    m->f = f;
    m->kernel = kernel;
    m->options = options;
    m->options.stride = options.stride.ndim ? options.stride : kernel;
    if (kernel.ndim < 1 || kernel.size[0] < 1) {
        tn__layer_refuse(m, TN_EVALUE,
                         "kernel is %s (one size or one for each dimension, at least 1)",
                         tn__dims_text(kernel));
    }
}

/* ---- Windows for a size ---------------------------------------------------------------------- */

static tn_tensor *adaptive_forward(tn_module *self, tn_tensor *x) {
    const tn_adaptive_pool *m = (const tn_adaptive_pool *)self;
    return m->f(x, m->size);
}

static const tn_field adaptive_fields[] = {TN_FIELD(tn_adaptive_pool, size), {0}};

static void adaptive_init(tn_adaptive_pool *m, const char *kind,
                          tn_tensor *(*f)(tn_tensor *x, tn_dims size), tn_dims size) {
    if (!tn__layer_begin(m, sizeof(*m), kind, adaptive_forward, NULL)) { return; }
    m->base.fields = adaptive_fields;
    m->f = f;
    m->size = size;
    if (size.ndim < 1 || size.size[0] < 0) {
        tn__layer_refuse(m, TN_EVALUE,
                         "size is %s (one size or one for each dimension, at least 0)",
                         tn__dims_text(size));
    }
}

/* ---- Their names ----------------------------------------------------------------------------- */

#define POOL(name)                                                                           \
    void tn_##name##_init(tn_##name *m, tn_dims kernel, tn_pool_options options) {           \
        pool_init(m, #name, tn_##name##_op, kernel, options);                                \
    }                                                                                        \
    TN__LAYER_HEAP(tn_##name, tn_##name##_new_with(tn_dims kernel, tn_pool_options options), \
                   tn_##name##_init(m, kernel, options))                                     \
    tn_##name *tn_##name##_new(int64_t kernel) {                                             \
        return tn_##name##_new_with(TN_DIMS(kernel), tn_pool_defaults());                    \
    }
POOL(max_pool1d)
POOL(max_pool2d)
POOL(max_pool3d)
POOL(avg_pool1d)
POOL(avg_pool2d)
POOL(avg_pool3d)

#define ADAPTIVE_POOL(name)                             \
    void tn_##name##_init(tn_##name *m, tn_dims size) { \
        adaptive_init(m, #name, tn_##name##_op, size);  \
    }                                                   \
    TN__LAYER_HEAP(tn_##name, tn_##name##_new(tn_dims size), tn_##name##_init(m, size))
ADAPTIVE_POOL(adaptive_max_pool1d)
ADAPTIVE_POOL(adaptive_max_pool2d)
ADAPTIVE_POOL(adaptive_max_pool3d)
ADAPTIVE_POOL(adaptive_avg_pool1d)
ADAPTIVE_POOL(adaptive_avg_pool2d)
ADAPTIVE_POOL(adaptive_avg_pool3d)
