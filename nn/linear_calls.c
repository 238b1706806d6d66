/* Calls of linears with what follows them, or of several with one input, as one operation where the
 * device has a kernel for it (attention.h). */
#include "autograd/mode.h"
#include "backends/few_rows.h"
#include "nn/attention.h"
#include "nn/module.h"
#include "ops/linalg/linear.h"

/* A call of m as part of an operation of the same dtype: neither quantised nor converted. */
static bool may_fuse(const tn_linear *m, const tn_tensor *x, const tn_op *op) {
    return tn__linear_may_fuse(m, m->weight, x, op);
}

tn_tensor *tn__linear_gelu_linear(tn_linear *m, tn_linear *next, tn_tensor *x) {
    bool first = may_fuse(m, x, &tn__op_linear_gelu);
    if (first && may_fuse(next, x, &tn__op_mlp)) {
        return tn_mlp_op(x, m->weight, m->bias, next->weight, next->bias);
    }
    return tn_call(next,
                   first ? tn_linear_gelu(x, m->weight, m->bias) : tn_gelu_tanh(tn_call(m, x)));
}

/* ---- Of few rows: linear_cat ----------------------------------------------------------------- */

bool tn__few_rows(const tn_tensor *x) {
    return !tn_is_inert(x) && x->dims.ndim > 0 && !tn__will_record() &&
           tn__row_count(x->dims) <= TN__FEW_ROWS;
}

/* Whether calls of m with x, and nothing else, are one operation. */
static bool may_cat(tn_linear *const *m, int n, const tn_tensor *x) {
    bool fits = tn__few_rows(x);
    for (int i = 0; fits && i < n; i++) {
        const tn_tensor *w = m[i]->weight, *scale = m[i]->weight_scale;
        fits = tn__linear_may_fuse(m[i], scale ? x : w, x, &tn__op_linear_cat) && w &&
               w->dims.ndim == 2 && w->dims.size[1] == x->dims.size[x->dims.ndim - 1] &&
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
