/* Comparing whole tensors, as one bool: composed of operations, nothing recorded. */
#include "ops/op.h"
#include "tern/sys/device.h"

#include <math.h>

static bool tensors_comparable(const tn_tensor *a, const tn_tensor *b, const char *name) {
    if (!tn__usable(a, name) || !tn__usable(b, name)) { return false; }
    if (!tn__same_device(a->storage->device, b->storage->device)) {
        return tn__fail(TN_EDEVICE, name, "a %s is on %s but b %s is on %s (tn_to one of them)",
                        tn_shape_text(a), tn_device_text(a->storage->device), tn_shape_text(b),
                        tn_device_text(b->storage->device));
    }
    return tn_dims_equal(a->dims, b->dims);
}

bool tn_equal(tn_tensor *a, tn_tensor *b) {
    if (!tensors_comparable(a, b, "equal") || a->dtype != b->dtype) { return false; }
    TN_NO_GRAD;
    TN_SCOPE;
    tn_tensor *all = tn_all(tn_eq(a, b));
    return !tn_is_inert(all) && tn_item(all) != 0.0;
}

/* In f64, so that any two dtypes can be compared. Infinities are close only to their equals, a
 * separate case: their difference is NaN, and any difference from them is within rtol times
 * infinity. */
bool tn_all_close(tn_tensor *a, tn_tensor *b, double rtol, double atol) {
    if (!tensors_comparable(a, b, "all_close")) { return false; }
    TN_NO_GRAD;
    TN_SCOPE;
    tn_tensor *p = tn_cast(a, TN_F64), *q = tn_cast(b, TN_F64);
    tn_tensor *same = tn_eq(p, q);
    tn_tensor *bound = tn_add_scalar(tn_mul_scalar(tn_abs(q), rtol), atol);
    tn_tensor *diff = tn_abs(tn_sub(p, q)), *finite = tn_lt(diff, tn__constant(diff, INFINITY));
    tn_tensor *near = tn_where(finite, tn_le(diff, bound), finite);
    tn_tensor *all = tn_all(tn_where(same, same, near));
    return !tn_is_inert(all) && tn_item(all) != 0.0;
}

bool tn_allclose(tn_tensor *a, tn_tensor *b) {
    return tn_all_close(a, b, 1e-5, 1e-8);
}
