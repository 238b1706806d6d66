/* Where x is not 0: one row of indices for each such element, in row-major order. Their number
 * depends on x's elements, so x is copied to the host.
 */
#include "ops/op.h"
#include "tern/sys/device.h"

static int64_t count_true(const bool *x, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        count += x[i];
    }
    return count;
}

/* The indices of all true elements of x, which has shape dims. */
static void write_places(int64_t *place, const bool *x, tn_dims dims) {
    int64_t n = tn_dims_count(dims), index[TN_MAX_DIMS] = {0};
    for (int64_t i = 0; i < n; i++) {
        for (int d = 0; x[i] && d < dims.ndim; d++) {
            *place++ = index[d];
        }
        for (int d = dims.ndim - 1; d >= 0 && ++index[d] == dims.size[d]; d--) {
            index[d] = 0;
        }
    }
}

tn_tensor *tn_nonzero(tn_tensor *x) {
    if (!tn__usable(x, "nonzero")) {
        return tn_inert();
    }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_device host = {TN_CPU, 0};
    tn_tensor *set = tn_contiguous(tn_to(tn_cast(tn_detach(x), TN_BOOL), host));
    if (tn_is_inert(set)) {
        return tn_inert();
    }
    int64_t count = count_true(tn_data(set), tn_count(set));
    tn_tensor *y = tn_empty_on(host, TN_DIMS(count, tn_ndim(x)), TN_I64);
    if (tn_count(y) > 0) {
        write_places(tn_data_mut(y), tn_data(set), tn_shape(x));
    }
    return tn_return(tn_to(y, tn_device_of(x)));
}
