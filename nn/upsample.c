/* upsample: tn_interpolate in a sequential. */
#include "nn/layer.h"
#include "tensor/tensor.h"

static tn_tensor *upsample_forward(tn_module *self, tn_tensor *x) {
    return tn_interpolate(x, ((const tn_upsample *)self)->options);
}

static const tn_field upsample_fields[] = {
    TN_FIELD_OPTION(tn_upsample, scale_factor),
    TN_FIELD_OPTION(tn_upsample, mode),
    TN_FIELD_OPTION(tn_upsample, align_corners),
    TN_FIELD_OPTION(tn_upsample, size),
    {0},
};

void tn_upsample_init(tn_upsample *m, tn_interpolate_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "upsample", upsample_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_interpolate")) {
        return;
    }
    m->base.fields = upsample_fields;
    m->options = options;
    bool sized = options.size.ndim > 0, scaled = options.scale_factor > 0;
    if (sized == scaled || tn_dims_count(options.size) < 1) {
        tn__layer_refuse(m, TN_EVALUE, "size is %s and scale_factor is %g (set one of them)",
                         tn__dims_text(options.size), options.scale_factor);
    }
}

TN__LAYER_HEAP(tn_upsample, tn_upsample_new_with(tn_interpolate_options options),
               tn_upsample_init(m, options))

tn_upsample *tn_upsample_new(double scale_factor) {
    tn_interpolate_options options = tn_interpolate_defaults();
    options.scale_factor = scale_factor;
    return tn_upsample_new_with(options);
}
