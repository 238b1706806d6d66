/* group_norm and instance_norm1d, 2d, 3d: over each sample separately, so the same in training and
 * evaluation.
 */
#include "nn/layer.h"

/* False after raising. */
static bool channels_fit(void *m, int64_t groups, int64_t channels, double eps) {
    return TN__LAYER_FITS(m, {"channels", channels, 1, 0}, {"groups", groups, 1, 0}) &&
           tn__layer_multiple(m, "channels", channels, "groups", groups) && tn__layer_eps(m, eps);
}

static void register_affine(tn_module *m, tn_tensor **weight, tn_tensor **bias, int64_t channels,
                            const tn_norm_options *o) {
    tn_dims dims = TN_DIMS(channels);
    tn_module_param(m, "weight", weight, o->weight ? tn_ones(dims, o->dtype) : NULL);
    tn_module_param(m, "bias", bias, o->bias ? tn_zeros(dims, o->dtype) : NULL);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static tn_tensor *group_norm_forward(tn_module *self, tn_tensor *x) {
    tn_group_norm *m = (tn_group_norm *)self;
    return tn_group_norm_op(x, m->groups, m->weight, m->bias, m->eps);
}

static const tn_field group_norm_fields[] = {
    TN_FIELD(tn_group_norm, groups),
    TN_FIELD(tn_group_norm, eps),
    {0},
};

void tn_group_norm_init(tn_group_norm *m, int64_t groups, int64_t channels,
                        tn_norm_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "group_norm", group_norm_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_norm") ||
        !channels_fit(m, groups, channels, options.eps)) {
        return;
    }
    TN_SCOPE;
    m->base.fields = group_norm_fields;
    m->groups = groups;
    m->eps = options.eps;
    register_affine(&m->base, &m->weight, &m->bias, channels, &options);
}

TN__LAYER_NEW(group_norm, tn_norm, (int64_t groups, int64_t channels), (groups, channels))

/* ---- Each channel ---------------------------------------------------------------------------- */

static tn_tensor *instance_norm_forward(tn_module *self, tn_tensor *x) {
    tn_instance_norm_layer *m = (tn_instance_norm_layer *)self;
    int ndim = tn_ndim(x);
    if (!tn_is_inert(x) && ndim != m->ndim && ndim != m->ndim - 1) {
        tn__raise(TN_ESHAPE, self->kind, "x is %s (it needs %d dimensions, or one less without N)",
                  tn_shape_text(x), m->ndim);
        return tn_inert();
    }
    bool single = ndim == m->ndim - 1;
    tn_tensor *y = tn_instance_norm(single ? tn_unsqueeze(x, 0) : x, m->weight, m->bias, m->eps);
    return single ? tn_squeeze(y, 0) : y;
}

static const tn_field instance_norm_fields[] = {TN_FIELD(tn_instance_norm_layer, eps), {0}};

static void instance_norm_init(tn_instance_norm_layer *m, const char *kind, int ndim,
                               int64_t channels, tn_norm_options options) {
    if (!tn__layer_begin(m, sizeof(*m), kind, instance_norm_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_norm") ||
        !channels_fit(m, 1, channels, options.eps)) {
        return;
    }
    TN_SCOPE;
    m->base.fields = instance_norm_fields;
    m->ndim = ndim;
    m->eps = options.eps;
    register_affine(&m->base, &m->weight, &m->bias, channels, &options);
}

static tn_norm_options without_affine(void) {
    tn_norm_options options = tn_norm_defaults();
    options.weight = options.bias = false;
    return options;
}

#define INSTANCE_NORM(name, ndim)                                                              \
    void tn_##name##_init(tn_##name *m, int64_t channels, tn_norm_options options) {           \
        instance_norm_init(m, #name, ndim, channels, options);                                 \
    }                                                                                          \
    TN__LAYER_HEAP(tn_##name, tn_##name##_new_with(int64_t channels, tn_norm_options options), \
                   tn_##name##_init(m, channels, options))                                     \
    tn_##name *tn_##name##_new(int64_t channels) {                                             \
        return tn_##name##_new_with(channels, without_affine());                               \
    }
INSTANCE_NORM(instance_norm1d, 3)
INSTANCE_NORM(instance_norm2d, 4)
INSTANCE_NORM(instance_norm3d, 5)
