/* linear: y = x weight^T + bias                 x (…, in) -> (…, out), weight (out, in), bias (out)
 *
 * The smallest module: a struct, a forward,
 * and an init that makes and registers the parameters. */
#include "autograd/mode.h"
#include "backends/entries.h"
#include "backends/few_rows.h"
#include "nn/attention.h"
#include "nn/module.h"
#include "ops/linalg/linear.h"

#include <math.h>

static tn_tensor *linear_forward(tn_module *self, tn_tensor *x) {
    tn_linear *m = (tn_linear *)self;
    tn_tensor *w = m->weight, *scale = m->weight_scale;
    return scale ? tn_linear_q8(x, w, scale, m->bias) : tn_linear_op(x, w, m->bias);
}

/* A call of m as part of an operation of the same dtype: neither quantised nor converted. */
static bool may_fuse(const tn_linear *m, const tn_tensor *x, int fused) {
    return tn__may_fuse(&m->base, linear_forward, m->weight, x, fused);
}

tn_tensor *tn__linear_gelu_linear(tn_linear *m, tn_linear *next, tn_tensor *x) {
    bool first = may_fuse(m, x, TN_FUSED(linear_gelu));
    if (first && may_fuse(next, x, TN_FUSED(mlp))) {
        return tn_mlp_op(x, m->weight, m->bias, next->weight, next->bias);
    }
    return tn_call(next,
                   first ? tn_linear_gelu(x, m->weight, m->bias) : tn_gelu_tanh(tn_call(m, x)));
}

/* ---- Few rows: linear_cat -------------------------------------------------------------------- */

/* Whether calls of m with x, and nothing else, are one operation. */
static bool may_cat(tn_linear *const *m, int n, const tn_tensor *x) {
    bool fits = !tn_is_inert(x) && x->dims.ndim > 0 && !tn__will_record() &&
                tn__row_count(x->dims) <= TN__FEW_ROWS;
    for (int i = 0; fits && i < n; i++) {
        const tn_tensor *w = m[i]->weight, *scale = m[i]->weight_scale;
        fits = tn__may_fuse(&m[i]->base, linear_forward, scale ? x : w, x, TN_FUSED(linear_cat)) &&
               w && w->dims.ndim == 2 && w->dims.size[1] == x->dims.size[x->dims.ndim - 1] &&
               !m[i]->bias && !scale == !m[0]->weight_scale;
    }
    return fits;
}

static tn_tensor *call_together(tn_linear *const *m, int n, tn_tensor *x, tn_tensor *add) {
    tn_tensor *weights[3], *scales[3];
    for (int i = 0; i < n; i++) {
        weights[i] = m[i]->weight;
        scales[i] = m[i]->weight_scale;
    }
    return tn__linear_cat(x, n, weights, scales, add);
}

void tn__linears(tn_linear *const *m, int n, tn_tensor *x, tn_tensor **y) {
    if (!may_cat(m, n, x)) {
        for (int i = 0; i < n; i++) {
            y[i] = tn_call(m[i], x);
        }
        return;
    }
    tn_tensor *all = call_together(m, n, x, NULL);
    int64_t first = 0;
    for (int i = 0; i < n; i++) {
        int64_t out = m[i]->weight->dims.size[0];
        y[i] = tn_narrow(all, -1, first, out);
        first += out;
    }
}

tn_tensor *tn__add_linear(tn_linear *m, tn_tensor *h, tn_tensor *x) {
    bool together = may_cat(&m, 1, h) && !tn_is_inert(x) && x->dtype == h->dtype &&
                    tn_dims_equal(x->dims, tn__dims_with_last(h->dims, m->weight->dims.size[0]));
    return together ? call_together(&m, 1, h, x) : tn__add_branch(x, tn_call(m, h));
}

tn_linear_options tn_linear_defaults(void) {
    return (tn_linear_options){.bias = true, .dtype = TN_F32, .from_defaults = true};
}

void tn_linear_init(tn_linear *m, int64_t in, int64_t out, tn_linear_options options) {
    if (!tn__layer_begin(m, sizeof(*m), "linear", linear_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_linear")) {
        return;
    }
    if (in < 1 || out < 1) {
        tn__layer_refuse(m, TN_EVALUE, "in is %lld and out is %lld (both must be at least 1)",
                         (long long)in, (long long)out);
        return;
    }
    TN_SCOPE;
    double bound = 1.0 / sqrt((double)in);
    tn_tensor *weight = tn_empty(TN_DIMS(out, in), options.dtype);
    tn_init_uniform(weight, -bound, bound);
    tn_module_param(m, "weight", &m->weight, weight);
    tn_tensor *bias = options.bias ? tn_empty(TN_DIMS(out), options.dtype) : NULL;
    if (bias) {
        tn_init_uniform(bias, -bound, bound);
    }
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
