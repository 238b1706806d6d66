/* linear: y = x weight^T + bias                 x (…, in) -> (…, out), weight (out, in), bias (out)
 *
 * The smallest module: a struct, a forward,
 * and an init that makes and registers the parameters. */
#include "nn/attention.h"
#include "nn/call.h"
#include "nn/layer.h"

#include <math.h>

static tn_tensor *linear_forward(tn_module *self, tn_tensor *x) {
    tn_linear *m = (tn_linear *)self;
    tn_tensor *w = m->weight, *scale = m->weight_scale;
    return scale ? tn_linear_q8(x, w, scale, m->bias) : tn_linear_op(x, w, m->bias);
}

bool tn__linear_may_fuse(const tn_linear *m, const tn_tensor *weight, const tn_tensor *x,
                         const tn_op *op) {
    return tn__may_fuse(&m->base, linear_forward, weight, x, op);
}

tn_linear_options tn_linear_defaults(void) {
    return (tn_linear_options){.bias = true, .dtype = TN_F32, .from_defaults = true};
}

void tn_linear_init(tn_linear *m, int64_t in, int64_t out, tn_linear_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "linear", linear_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_linear") ||
        !TN__LAYER_FITS(m, {"in", in, 1, 0}, {"out", out, 1, 0})) {
        return;
    }
    TN_SCOPE;
    double bound = 1.0 / sqrt((double)in);
    tn_tensor *weight = tn_empty(TN_DIMS(out, in), options.dtype);
    tn_init_uniform(weight, -bound, bound);
    tn_module_param(m, "weight", &m->weight, weight);
    tn_tensor *bias = options.bias ? tn_empty(TN_DIMS(out), options.dtype) : NULL;
    if (bias) { tn_init_uniform(bias, -bound, bound); }
    tn_module_param(m, "bias", &m->bias, bias);
    tn_module_buffer(m, "weight_scale", &m->weight_scale, NULL);
}

TN__LAYER_NEW(linear, tn_linear, (int64_t in, int64_t out), (in, out))

void tn__linear_share(tn_linear *m, tn_tensor *weight) {
    if (tn__layer_begin(m, sizeof(*m), "linear", linear_forward, NULL)) {
        tn_module_param(m, "weight", &m->weight, weight);
        tn_module_buffer(m, "weight_scale", &m->weight_scale, NULL);
    }
}
