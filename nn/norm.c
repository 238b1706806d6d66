/* layer_norm and rms_norm: over the last dimension, with a weight that starts at 1 and (layer_norm)
 * a bias that starts at 0. */
#include "nn/attention.h"
#include "nn/call.h"
#include "nn/describe.h"
#include "nn/layer.h"
#include "ops/op.h"

tn_norm_options tn_norm_defaults(void) {
    return (tn_norm_options){
        .eps = 1e-5, .weight = true, .bias = true, .dtype = TN_F32, .from_defaults = true};
}

const tn_field tn__layer_norm_fields[] = {TN_FIELD(tn_layer_norm, eps), {0}};
const tn_field tn__rms_norm_fields[] = {TN_FIELD(tn_rms_norm, eps), {0}};

static tn_tensor *layer_norm_forward(tn_module *self, tn_tensor *x) {
    tn_layer_norm *m = (tn_layer_norm *)self;
    return tn_layer_norm_op(x, m->weight, m->bias, m->eps);
}

/* Whether x + branch and the call of a norm with it are op. */
static bool sum_fuses(const tn_module *m, tn_module_forward forward, const tn_tensor *weight,
                      const tn_tensor *x, const tn_tensor *branch, const tn_op *op) {
    return tn__may_fuse(m, forward, weight, x, op) && !tn_is_inert(branch) &&
           branch->dtype == x->dtype && tn_dims_equal(x->dims, branch->dims);
}

tn_tensor *tn__add_norm(tn_layer_norm *m, tn_tensor *x, tn_tensor *branch, tn_tensor **sum) {
    if (!sum_fuses(&m->base, layer_norm_forward, m->weight, x, branch, &tn__op_add_layer_norm)) {
        *sum = tn__add_branch(x, branch);
        return tn_call(m, *sum);
    }
    tn_tensor *y = tn_add_layer_norm(x, branch, m->weight, m->bias, m->eps, sum);
    tn_drop(branch);
    return y;
}

void tn_layer_norm_init(tn_layer_norm *m, int64_t width, tn_norm_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "layer_norm", layer_norm_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_norm") ||
        !TN__LAYER_FITS(m, {"width", width, 1, 0}) || !tn__layer_eps(m, options.eps)) {
        return;
    }
    TN_SCOPE;
    m->base.fields = tn__layer_norm_fields;
    m->eps = options.eps;
    tn_module_param(m, "weight", &m->weight,
                    options.weight ? tn_ones(TN_DIMS(width), options.dtype) : NULL);
    tn_module_param(m, "bias", &m->bias,
                    options.bias ? tn_zeros(TN_DIMS(width), options.dtype) : NULL);
}

TN__LAYER_NEW(layer_norm, tn_norm, (int64_t width), (width))

static tn_tensor *rms_norm_forward(tn_module *self, tn_tensor *x) {
    tn_rms_norm *m = (tn_rms_norm *)self;
    return tn_rms_norm_op(x, m->weight, m->eps);
}

tn_tensor *tn__add_rms_norm(tn_rms_norm *m, tn_tensor *x, tn_tensor *branch, tn_tensor **sum) {
    if (!sum_fuses(&m->base, rms_norm_forward, m->weight, x, branch, &tn__op_add_rms_norm)) {
        *sum = tn__add_branch(x, branch);
        return tn_call(m, *sum);
    }
    tn_tensor *y = tn_add_rms_norm(x, branch, m->weight, m->eps, sum);
    tn_drop(branch);
    return y;
}

void tn_rms_norm_init(tn_rms_norm *m, int64_t width, tn_norm_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "rms_norm", rms_norm_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_norm") ||
        !TN__LAYER_FITS(m, {"width", width, 1, 0}) || !tn__layer_eps(m, options.eps)) {
        return;
    }
    TN_SCOPE;
    m->base.fields = tn__rms_norm_fields;
    m->eps = options.eps;
    tn_module_param(m, "weight", &m->weight,
                    options.weight ? tn_ones(TN_DIMS(width), options.dtype) : NULL);
}

TN__LAYER_NEW(rms_norm, tn_norm, (int64_t width), (width))
