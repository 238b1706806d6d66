/* Convolutions: x (N, C, in…) -> (N, O, out…), weight (O, C / groups, k…), bias (O); transposed
 * ones: weight (C, O / groups, k…).
 *
 * One struct for all six: they differ in the function that is called and in the first two sizes of
 * the weight.
 */
#include "nn/layer.h"

#include <math.h>
#include <stdio.h>

typedef tn_tensor *(*conv_function)(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                    tn_conv_options options);

static tn_tensor *conv_forward(tn_module *self, tn_tensor *x) {
    static const conv_function all[2][3] = {
        {tn_conv1d_op, tn_conv2d_op, tn_conv3d_op},
        {tn_conv_transpose1d_op, tn_conv_transpose2d_op, tn_conv_transpose3d_op},
    };
    tn_conv *m = (tn_conv *)self;
    return all[m->transposed][m->spatial - 1](x, m->weight, m->bias, m->options);
}

static const tn_field conv_fields[] = {
    TN_FIELD_OPTION(tn_conv, output_padding), /* of transposed ones */
    TN_FIELD_OPTION(tn_conv, stride),
    TN_FIELD_OPTION(tn_conv, padding, .unless = TN_UNLESS(tn_conv, options.same)),
    TN_FIELD_OPTION(tn_conv, same, .optional = true),
    TN_FIELD_OPTION(tn_conv, dilation),
    TN_FIELD_OPTION(tn_conv, groups),
    {0},
};

/* The weight's sizes. False after raising. */
static bool weight_dims(tn_conv *m, int64_t in, int64_t out, tn_dims kernel, tn_dims *dims) {
    int64_t groups = m->options.groups;
    if (!TN__LAYER_FITS(m, {"in", in, 1, 0}, {"out", out, 1, 0}, {"groups", groups, 1, 0}) ||
        !tn__layer_multiple(m, "in", in, "groups", groups) ||
        !tn__layer_multiple(m, "out", out, "groups", groups)) {
        return false;
    }
    if (kernel.ndim != 1 && kernel.ndim != m->spatial) {
        return tn__layer_refuse(m, TN_EVALUE, "the kernel has %d sizes (must be 1 or %d)",
                                kernel.ndim, m->spatial);
    }
    *dims = m->transposed ? TN_DIMS(in, out / groups) : TN_DIMS(out, in / groups);
    for (int i = 0; i < m->spatial; i++) {
        int64_t size = kernel.size[kernel.ndim == 1 ? 0 : i];
        if (size < 1) {
            return tn__layer_refuse(m, TN_EVALUE,
                                    "a size of the kernel is %lld (it must be at least 1)",
                                    (long long)size);
        }
        dims->size[dims->ndim++] = size;
    }
    return true;
}

static void conv_init(tn_conv *m, const char *kind, int spatial, bool transposed, int64_t in,
                      int64_t out, tn_dims kernel, tn_conv_options options) {
    if (!tn__layer_begin(m, sizeof(*m), kind, conv_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_conv")) {
        return;
    }
    m->base.fields = transposed ? conv_fields : conv_fields + 1;
    m->options = options;
    m->spatial = spatial;
    m->transposed = transposed;
    tn_dims dims = {0};
    if (!weight_dims(m, in, out, kernel, &dims)) { return; }
    TN_SCOPE;
    tn_tensor *weight = tn_empty(dims, options.dtype);
    tn_init_kaiming_uniform(weight, sqrt(5.0));
    tn_module_param(m, "weight", &m->weight, weight);
    tn_tensor *bias = options.bias ? tn_empty(TN_DIMS(out), options.dtype) : NULL;
    if (bias) { /* PyTorch's fan-in, even when transposed: all but the weight's first size
                 */
        int64_t fan = tn_dims_count(tn_dims_from(dims.ndim - 1, dims.size + 1));
        double bound = 1.0 / sqrt((double)fan);
        tn_init_uniform(bias, -bound, bound);
    }
    tn_module_param(m, "bias", &m->bias, bias);
}

/* One kind's functions. */
#define CONV_KIND(kind, spatial, transposed)                                                    \
    void tn_##kind##_init(tn_##kind *m, int64_t in, int64_t out, tn_dims kernel,                \
                          tn_conv_options options) {                                            \
        conv_init(m, #kind, spatial, transposed, in, out, kernel, options);                     \
    }                                                                                           \
    TN__LAYER_HEAP(                                                                             \
        tn_##kind,                                                                              \
        tn_##kind##_new_with(int64_t in, int64_t out, tn_dims kernel, tn_conv_options options), \
        tn_##kind##_init(m, in, out, kernel, options))                                          \
    tn_##kind *tn_##kind##_new(int64_t in, int64_t out, int64_t kernel) {                       \
        return tn_##kind##_new_with(in, out, TN_DIMS(kernel), tn_conv_defaults());              \
    }

CONV_KIND(conv1d, 1, false)
CONV_KIND(conv2d, 2, false)
CONV_KIND(conv3d, 3, false)
CONV_KIND(conv_transpose1d, 1, true)
CONV_KIND(conv_transpose2d, 2, true)
CONV_KIND(conv_transpose3d, 3, true)
