/* triplet_margin(a, p, n) = max(0, d(a, p) - d(a, n) + margin), d(u, v) = |u - v + eps|, the p-norm
 * of the last dimension (Balntas et al. 2016); with `swap` min(d(a, n), d(p, n)) instead of d(a, n)
 *
 *     anchor, positive, negative: (…, C), the same; f32 f64 bf16 f16
 *     y: 0-dimensional, or (…) with TN_NONE
 */
#include "ops/loss/loss.h"

#include "ops/dims.h"

#include <math.h>

static bool triplet_margin_shape(tn_op_call *c) {
    const tn_triplet_options *o = c->args;
    if (!tn_op_shapes(c, "... n, ... n, ... n")) { return false; }
    if (!(o->p > 0.0)) { return tn_op_fail(c, TN_EVALUE, "p is %g (more than 0)", o->p); }
    return tn__not_nan(c, "margin", o->margin) && tn__not_nan(c, "eps", o->eps) &&
           tn__loss_out(c, o->reduction, tn__dims_leading(tn_shape(c->in[0])));
}

static tn_tensor *distance_of(tn_tensor *u, tn_tensor *v, const tn_triplet_options *o) {
    tn_tensor *d = tn_add_scalar(tn_sub(u, v), o->eps);
    if (o->p == 2.0) { return tn__sqrt_or_zero(tn_sum(tn_square(d), TN_DIMS(-1), false)); }
    if (isinf(o->p)) { return tn_max(tn_abs(d), TN_DIMS(-1), false); }
    tn_tensor *sum = tn_sum(tn_pow_scalar(tn_abs(d), o->p), TN_DIMS(-1), false);
    return o->p == 1.0 ? sum : tn_pow_scalar(sum, 1.0 / o->p);
}

static tn_tensor *triplet_margin_compose(tn_op_call *c) {
    const tn_triplet_options *o = c->args;
    tn_tensor *far = distance_of(c->in[0], c->in[2], o);
    if (o->swap) { far = tn_minimum(far, distance_of(c->in[1], c->in[2], o)); }
    tn_tensor *lead = tn_sub(distance_of(c->in[0], c->in[1], o), far);
    return tn__loss_reduced(tn_relu(tn_add_scalar(lead, o->margin)), o->reduction);
}

const tn_op tn__op_triplet_margin = {
    .name = "triplet_margin",
    .inputs = {"anchor", "positive", "negative"},
    .args_size = sizeof(tn_triplet_options),
    .fields = {TN__REDUCTION(tn_triplet_options, reduction), TN_FIELD(tn_triplet_options, margin),
               TN_FIELD(tn_triplet_options, p), TN_FIELD(tn_triplet_options, swap)},
    .shape = triplet_margin_shape,
    .compose = triplet_margin_compose,
    .flags = TN_OP_WIDE,
    .samples = "{-1:1} [5, 4] [5, 4] [5, 4]; "
               "[5, 4] [5, 4] [5, 4] reduction='sum', margin=0.5, p=1.0; "
               "[5, 4] [5, 4] [5, 4] reduction='none', margin=2.0, p=3.0, swap=True; "
               "[5, 4] [5, 4] [5, 4] margin=1.5, swap=True",
    .sample_args = &(const tn_triplet_options){TN_MEAN, 1.0, 2.0, 1e-6, false, true},
};

tn_triplet_options tn_triplet_defaults(void) {
    return (tn_triplet_options){
        .reduction = TN_MEAN, .margin = 1.0, .p = 2.0, .eps = 1e-6, .from_defaults = true};
}

tn_tensor *tn_triplet_margin(tn_tensor *anchor, tn_tensor *positive, tn_tensor *negative,
                             tn_triplet_options options) {
    if (!tn__options_made(options.from_defaults, "triplet_margin", "tn_triplet")) {
        return tn_inert();
    }
    return tn_apply3(&tn__op_triplet_margin, &options, anchor, positive, negative);
}
