/* upsample: tn_interpolate in a sequential. */
#include "core/number.h"
#include "nn/describe.h"
#include "nn/module.h"
#include "tensor/tensor.h"

static tn_tensor *upsample_forward(tn_module *self, tn_tensor *x) {
    return tn_interpolate(x, ((const tn_upsample *)self)->options);
}

static int upsample_describe(const tn_module *self, char *text, size_t room) {
    const tn_interpolate_options *o = &((const tn_upsample *)self)->options;
    int length = snprintf(text, room, "scale_factor %s, mode %d, align_corners %d",
                          tn__number_of(o->scale_factor).text, (int)o->mode, o->align_corners);
    return tn__describe_dims(text, room, length, "size", o->size);
}

void tn_upsample_init(tn_upsample *m, tn_interpolate_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "upsample", upsample_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_interpolate")) {
        return;
    }
    m->base.describe = upsample_describe;
    m->options = options;
    bool sized = options.size.ndim > 0, scaled = options.scale_factor > 0;
    if (sized == scaled || tn_dims_count(options.size) < 1) {
        tn__layer_refuse(m, TN_EVALUE, "size is %s and scale_factor %g (one of them)",
                         tn__dims_text(options.size), options.scale_factor);
    }
}

tn_upsample *tn_upsample_new_with(tn_interpolate_options options) {
    tn_upsample *m = tn__layer_alloc(sizeof(*m));
    tn_upsample_init(m, options);
    return tn__layer_on_heap(m);
}

tn_upsample *tn_upsample_new(double scale_factor) {
    tn_interpolate_options options = tn_interpolate_defaults();
    options.scale_factor = scale_factor;
    return tn_upsample_new_with(options);
}
