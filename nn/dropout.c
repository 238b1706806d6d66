/* dropout: in training, zero with probability p and the rest scaled by 1 / (1 - p). Otherwise x
 * itself. Of whole channels (Tompson et al. 2015, arXiv:1411.4280) where x has `spatial` dimensions
 * after them: neighbours in a channel carry nearly the same information, and a single dropped one
 * could be guessed from the others.
 */
#include "nn/layer.h"

/* Ones, (N, C, 1…), or (C, 1…) without a batch; inert after raising. */
static tn_tensor *channel_ones(const tn_dropout *m, const tn_tensor *x) {
    tn_dims dims = tn_shape(x);
    int first = dims.ndim - m->spatial; /* of a channel's dimensions */
    if (first != 1 && first != 2) {
        tn__raise(TN_ESHAPE, m->base.kind,
                  "x is %s; it must be (N, C, …) or (C, …) with %d dimension%s of a channel",
                  tn_shape_text(x), m->spatial, m->spatial == 1 ? "" : "s");
        return tn_inert();
    }
    for (int i = first; i < dims.ndim; i++) {
        dims.size[i] = 1;
    }
    return tn_to(tn_ones(dims, tn_dtype_of(x)), tn_device_of(x));
}

static tn_tensor *dropout_forward(tn_module *self, tn_tensor *x) {
    const tn_dropout *m = (const tn_dropout *)self;
    if (tn_is_inert(x) || !self->training || m->p == 0.0) { return x; }
    return m->spatial == 0 ? tn_dropout_op(x, m->p)
                           : tn_mul(x, tn_dropout_op(channel_ones(m, x), m->p));
}

static const tn_field dropout_fields[] = {
    TN_FIELD_AS("p", tn_dropout, p, .training = true),
    {0},
};

static void dropout_init(tn_dropout *m, const char *kind, int spatial, double p) {
    if (!tn__layer_begin(m, sizeof(*m), kind, dropout_forward, NULL)) { return; }
    m->base.fields = dropout_fields;
    m->p = p;
    m->spatial = spatial;
    tn__layer_probability(m, "p", p);
}

/* One kind's functions. */
#define DROPOUT_KIND(kind, spatial)                 \
    void tn_##kind##_init(tn_##kind *m, double p) { \
        dropout_init(m, #kind, spatial, p);         \
    }                                               \
    TN__LAYER_HEAP(tn_##kind, tn_##kind##_new(double p), tn_##kind##_init(m, p))

DROPOUT_KIND(dropout, 0)
DROPOUT_KIND(dropout1d, 1)
DROPOUT_KIND(dropout2d, 2)
DROPOUT_KIND(dropout3d, 3)
