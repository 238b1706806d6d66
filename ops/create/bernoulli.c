/* 1 with probability p, else 0, for each element of p: one draw of this thread's default generator.
 * No gradient. */
#include "ops/op.h"

/* 24-bit uniforms for bf16 and f16 too: rounded ones would be below p too rarely. */
tn_tensor *tn_bernoulli(tn_tensor *p) {
    if (!tn__usable(p, "bernoulli")) { return tn_inert(); }
    if (!tn_dtype_is_float(p->dtype)) {
        return tn__refused(TN_EDTYPE, "bernoulli", "p is %s (floating point is needed; cast it)",
                           tn_dtype_name(p->dtype));
    }
    TN_SCOPE;
    TN_NO_GRAD;
    if (!tn__probabilities(p, "p", "", "bernoulli")) { return tn_inert(); }
    tn_dtype dtype = p->dtype == TN_F64 ? TN_F64 : TN_F32;
    tn_tensor *u = tn_empty_on(tn_device_of(p), p->dims, dtype);
    tn_uniform_(u, 0.0, 1.0, NULL);
    return tn_return(tn_cast(tn_lt(u, tn_cast(p, dtype)), p->dtype));
}
