/* Adafactor (Shazeer and Stern 2018, arXiv:1804.04235): a matrix's second moments as one number per
 * row and one per column. The form is PyTorch's, without momentum.
 *
 *     b = t^beta2_decay,  r = min(lr, 1 / sqrt(t)),  a = r max(eps2, rms(p))
 *     p = p - lr weight_decay p
 *     R = R + b (mean of g g over columns - R)          C = C + b (mean of g g over rows - C)
 *     V = R C / max(mean of R, eps1)                    of a vector: V = V + b (g g - V)
 *     u = g / sqrt(max(V, eps1^2))
 *     p = p - a u / max(1, rms(u) / d)
 *
 * More than two dimensions are a batch of matrices. State: R (…, n, 1) as row_var and C (…, 1, m)
 * as col_var, or V as variance, and t, the number of this parameter's steps. Ranks that have parts
 * of a matrix gather its gradient, and all keep R and C.
 */
#include "optim/reference.h"

#include <float.h>

/* (1 - b) old + b x */
static tn_tensor *move_toward(tn_tensor *old, tn_tensor *x, double b) {
    return tn_add(old, tn_mul_scalar(tn_sub(x, old), b));
}

/* The estimate V for the whole gradient; R and C become *row and *column. */
static tn_tensor *estimate_by_factors(tn_tensor *g, double b, double eps1, tn_tensor **row,
                                      tn_tensor **column) {
    tn_tensor *square = tn_square(g);
    *row = move_toward(*row, tn_mean(square, TN_DIMS(-1), true), b);
    *column = move_toward(*column, tn_mean(square, TN_DIMS(-2), true), b);
    tn_tensor *mean = tn_clamp(tn_mean(*row, TN_DIMS(-2), true), eps1, INFINITY);
    return tn_div(tn_mul(*row, *column), mean);
}

static void adafactor_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                                tn_tensor *const *state) {
    const tn_adafactor_options *o = c->options;
    double count = (double)tn_dims_count(c->entry->layout.whole), t = (double)c->step;
    double eps1 = o->eps1 > 0.0 ? o->eps1 : tn_dtype_of(p) == TN_F64 ? DBL_EPSILON : FLT_EPSILON;
    double b = pow(t, o->beta2_decay), rate = fmin(c->lr, 1.0 / sqrt(t));
    double size = fmax(o->eps2, tn_optim_norm(c, p) / sqrt(count));
    tn_tensor *row = state[0], *column = state[1], *v;
    if (row) {
        v = tn_optim_part(c, estimate_by_factors(tn_optim_gather(c, g), b, eps1, &row, &column));
    } else {
        v = move_toward(state[2], tn_square(g), b);
    }
    tn_tensor *u = tn_mul(g, tn_rsqrt(tn_clamp(v, eps1 * eps1, INFINITY)));
    double clip = fmax(1.0, tn_optim_norm(c, u) / (sqrt(count) * o->d));
    tn_copy_(p, tn_sub(tn__shrunk(c, p), tn_mul_scalar(u, rate * size / clip)));
    if (row) {
        tn_copy_(state[0], row);
        tn_copy_(state[1], column);
    } else {
        tn_copy_(state[2], v);
    }
}

static tn_state_kind adafactor_state(const void *options, int i, const tn_entry *entry,
                                     tn_dims *dims) {
    bool matrix = dims->ndim > 1;
    if (i == 2) { return matrix ? TN_STATE_NONE : TN_STATE_LIKE_PARAM; }
    if (matrix) { dims->size[dims->ndim - (i == 0 ? 1 : 2)] = 1; }
    return matrix ? TN_STATE_WHOLE : TN_STATE_NONE;
}

static const tn_field adafactor_fields[] = {
    TN_FIELD(tn_adafactor_options, beta2_decay, .least = -INFINITY),
    TN_FIELD(tn_adafactor_options, eps1, TN__NOT_NEGATIVE),
    TN_FIELD(tn_adafactor_options, eps2, TN__NOT_NEGATIVE),
    TN_FIELD(tn_adafactor_options, d, .least = 1, .most = INFINITY),
    {0},
};

tn_adafactor_options tn_adafactor_defaults(void) {
    return (tn_adafactor_options){
        .lr = 1e-2, .beta2_decay = -0.8, .eps2 = 1e-3, .d = 1.0, .from_defaults = true};
}

TN__OPTIM(adafactor, .states = {"row_var", "col_var", "variance"}, .state_kind = adafactor_state)
