/* flatten and unflatten: several dimensions as one, and one as several. */
#include "nn/layer.h"

static tn_tensor *flatten_forward(tn_module *self, tn_tensor *x) {
    const tn_flatten_layer *m = (const tn_flatten_layer *)self;
    return tn_flatten(x, m->first, m->last);
}

void tn_flatten_init(tn_flatten_layer *m, int first, int last) {
    if (tn__layer_begin(m, sizeof(*m), "flatten", flatten_forward, NULL)) {
        m->first = first;
        m->last = last;
    }
}

TN__LAYER_HEAP(tn_flatten_layer, tn_flatten_new(int first, int last),
               tn_flatten_init(m, first, last))

static tn_tensor *unflatten_forward(tn_module *self, tn_tensor *x) {
    const tn_unflatten_layer *m = (const tn_unflatten_layer *)self;
    if (tn_is_inert(x)) { return tn_inert(); }
    tn_dims from = tn_shape(x), to = {.ndim = from.ndim - 1 + m->sizes.ndim};
    int dim = m->dim < 0 ? m->dim + from.ndim : m->dim;
    if (dim < 0 || dim >= from.ndim || to.ndim > TN_MAX_DIMS ||
        tn_dims_count(m->sizes) != from.size[dim]) {
        tn__raise(TN_ESHAPE, self->kind,
                  "x is %s, of which dimension %d cannot become %lld elements", tn_shape_text(x),
                  m->dim, (long long)tn_dims_count(m->sizes));
        return tn_inert();
    }
    for (int i = 0; i < to.ndim; i++) {
        to.size[i] = i < dim                   ? from.size[i]
                     : i < dim + m->sizes.ndim ? m->sizes.size[i - dim]
                                               : from.size[i - m->sizes.ndim + 1];
    }
    return tn_reshape(x, to);
}

void tn_unflatten_init(tn_unflatten_layer *m, int dim, tn_dims sizes) {
    if (!tn__layer_begin(m, sizeof(*m), "unflatten", unflatten_forward, NULL)) { return; }
    m->dim = dim;
    m->sizes = sizes;
    if (tn_dims_count(sizes) < 0 || sizes.ndim < 1) {
        tn__layer_refuse(m, TN_EVALUE, "there are %d sizes (at least one is needed)", sizes.ndim);
    }
}

TN__LAYER_HEAP(tn_unflatten_layer, tn_unflatten_new(int dim, tn_dims sizes),
               tn_unflatten_init(m, dim, sizes))
