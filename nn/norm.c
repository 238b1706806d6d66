/* layer_norm and rms_norm: over the last dimension, with a weight that starts at 1 and (layer_norm)
 * a bias that starts at 0. */
#include "core/number.h"
#include "nn/module.h"

tn_norm_options tn_norm_defaults(void) {
    return (tn_norm_options){
        .eps = 1e-5, .weight = true, .bias = true, .dtype = TN_F32, .from_defaults = true};
}

/* False after raising. */
static bool width_fits(void *m, int64_t width, double eps) {
    if (width < 1 || !(eps >= 0.0)) {
        tn__layer_refuse(m, TN_EVALUE, "width is %lld and eps is %g (at least 1; not negative)",
                         (long long)width, eps);
        return false;
    }
    return true;
}

static int describe_eps(double eps, char *text, size_t room) {
    return snprintf(text, room, "eps %s", tn__number_of(eps).text);
}

static tn_tensor *layer_norm_forward(tn_module *self, tn_tensor *x) {
    tn_layer_norm *m = (tn_layer_norm *)self;
    return tn_layer_norm_op(x, m->weight, m->bias, m->eps);
}

static int layer_norm_describe(const tn_module *self, char *text, size_t room) {
    return describe_eps(((const tn_layer_norm *)self)->eps, text, room);
}

void tn_layer_norm_init(tn_layer_norm *m, int64_t width, tn_norm_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "layer_norm", layer_norm_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_norm") ||
        !width_fits(m, width, options.eps)) {
        return;
    }
    TN_SCOPE;
    m->base.describe = layer_norm_describe;
    m->eps = options.eps;
    tn_module_param(m, "weight", &m->weight,
                    options.weight ? tn_ones(TN_DIMS(width), options.dtype) : NULL);
    tn_module_param(m, "bias", &m->bias,
                    options.bias ? tn_zeros(TN_DIMS(width), options.dtype) : NULL);
}

tn_layer_norm *tn_layer_norm_new_with(int64_t width, tn_norm_options options) {
    tn_layer_norm *m = tn__layer_alloc(sizeof(*m));
    tn_layer_norm_init(m, width, options);
    return tn__layer_on_heap(m);
}

tn_layer_norm *tn_layer_norm_new(int64_t width) {
    return tn_layer_norm_new_with(width, tn_norm_defaults());
}

static tn_tensor *rms_norm_forward(tn_module *self, tn_tensor *x) {
    tn_rms_norm *m = (tn_rms_norm *)self;
    return tn_rms_norm_op(x, m->weight, m->eps);
}

static int rms_norm_describe(const tn_module *self, char *text, size_t room) {
    return describe_eps(((const tn_rms_norm *)self)->eps, text, room);
}

void tn_rms_norm_init(tn_rms_norm *m, int64_t width, tn_norm_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "rms_norm", rms_norm_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_norm") ||
        !width_fits(m, width, options.eps)) {
        return;
    }
    TN_SCOPE;
    m->base.describe = rms_norm_describe;
    m->eps = options.eps;
    tn_module_param(m, "weight", &m->weight,
                    options.weight ? tn_ones(TN_DIMS(width), options.dtype) : NULL);
}

tn_rms_norm *tn_rms_norm_new_with(int64_t width, tn_norm_options options) {
    tn_rms_norm *m = tn__layer_alloc(sizeof(*m));
    tn_rms_norm_init(m, width, options);
    return tn__layer_on_heap(m);
}

tn_rms_norm *tn_rms_norm_new(int64_t width) {
    return tn_rms_norm_new_with(width, tn_norm_defaults());
}
