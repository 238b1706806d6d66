/* gated_mlp: down_proj(silu(gate_proj(x)) up_proj(x))     x (…, width) -> (…, hidden) -> (…, width)
 * (SwiGLU: Shazeer 2020, arXiv:2002.05202) */
#include "nn/attention.h"
#include "nn/call.h"
#include "nn/layer.h"
#include "ops/op.h"

static tn_tensor *gated_hidden(tn_gated_mlp *m, tn_tensor *x) {
    tn_linear *halves[] = {&m->gate_proj, &m->up_proj};
    tn_tensor *y[2];
    tn__linears(halves, 2, x, y);
    return tn_silu_mul(y[0], y[1]);
}

static tn_tensor *gated_mlp_forward(tn_module *self, tn_tensor *x) {
    tn_gated_mlp *m = (tn_gated_mlp *)self;
    return tn_call(&m->down_proj, gated_hidden(m, x));
}

tn_tensor *tn__add_gated_mlp(tn_gated_mlp *m, tn_tensor *y, tn_tensor *x) {
    if (tn__few_rows(y) && tn__may_fuse(&m->base, gated_mlp_forward, y, y, &tn__op_linear_cat)) {
        TN_SCOPE;
        return tn_return(tn__add_linear(&m->down_proj, gated_hidden(m, y), x));
    }
    return tn__add_branch(x, tn_call(m, y));
}

tn_gated_mlp_options tn_gated_mlp_defaults(void) {
    return (tn_gated_mlp_options){.dtype = TN_F32, .from_defaults = true};
}

void tn_gated_mlp_init(tn_gated_mlp *m, int64_t width, int64_t hidden,
                       tn_gated_mlp_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "gated_mlp", gated_mlp_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_gated_mlp") ||
        !TN__LAYER_FITS(m, {"width", width, 1, 0}, {"hidden", hidden, 1, 0})) {
        return;
    }
    tn_linear_options linear = TN_WITH(tn_linear, .bias = options.bias, .dtype = options.dtype);
    tn_linear_init(&m->gate_proj, width, hidden, linear);
    tn_linear_init(&m->up_proj, width, hidden, linear);
    tn_linear_init(&m->down_proj, hidden, width, linear);
    tn_module_add(m, "gate_proj", &m->gate_proj);
    tn_module_add(m, "up_proj", &m->up_proj);
    tn_module_add(m, "down_proj", &m->down_proj);
}
