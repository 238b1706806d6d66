/* mlp: c_proj(activation(c_fc(x)))              x (…, width) -> (…, hidden) -> (…, width) */
#include "nn/attention.h"
#include "nn/describe.h"
#include "nn/layer.h"

#include <stdio.h>

tn_tensor *tn__activate(tn_activation activation, tn_tensor *x) {
    switch (activation) {
    case TN_ACT_GELU:
        return tn_gelu(x);
    case TN_ACT_GELU_TANH:
        return tn_gelu_tanh(x);
    case TN_ACT_RELU:
        return tn_relu(x);
    case TN_ACT_SILU:
        return tn_silu(x);
    }
    return tn_inert(); /* init refuses all others */
}

const char *const tn__activation_names[] = {
    [TN_ACT_GELU] = "gelu",
    [TN_ACT_GELU_TANH] = "gelu_tanh",
    [TN_ACT_RELU] = "relu",
    [TN_ACT_SILU] = "silu",
    NULL,
};

static tn_tensor *mlp_forward(tn_module *self, tn_tensor *x) {
    tn_mlp *m = (tn_mlp *)self;
    tn_tensor *y = m->activation == TN_ACT_GELU_TANH
                       ? tn__linear_gelu_linear(&m->c_fc, &m->c_proj, x)
                       : tn_call(&m->c_proj, tn__activate(m->activation, tn_call(&m->c_fc, x)));
    return tn_call(&m->drop, y);
}

static const tn_field mlp_fields[] = {
    TN_FIELD_AS("activation", tn_mlp, activation, .names = tn__activation_names),
    {0},
};

tn_mlp_options tn_mlp_defaults(void) {
    return (tn_mlp_options){
        .bias = true, .activation = TN_ACT_GELU_TANH, .dtype = TN_F32, .from_defaults = true};
}

void tn_mlp_init(tn_mlp *m, int64_t width, tn_mlp_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "mlp", mlp_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_mlp")) {
        return;
    }
    int64_t hidden = options.hidden;
    if (hidden == 0 && __builtin_mul_overflow(4, width, &hidden)) { hidden = -1; }
    if (!TN__LAYER_FITS(m, {"width", width, 1, 0}, {"hidden", hidden, 1, 0},
                        {"activation", (int)options.activation, 0, TN_ACT_SILU})) {
        return;
    }
    m->base.fields = mlp_fields;
    m->activation = options.activation;
    tn_linear_options linear = TN_WITH(tn_linear, .bias = options.bias, .dtype = options.dtype);
    tn_linear_init(&m->c_fc, width, hidden, linear);
    tn_linear_init(&m->c_proj, hidden, width, linear);
    tn_dropout_init(&m->drop, options.dropout);
    tn_module_add(m, "c_fc", &m->c_fc);
    tn_module_add(m, "c_proj", &m->c_proj);
    tn_module_add(m, "drop", &m->drop);
}
