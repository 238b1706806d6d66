/* Where x is not 0: one row of indices for each such element, in row-major order. Their number
 * depends on x's elements, so the host waits for it. On the CPU the elements are walked; on a
 * device a stable sort brings the ones that are set to the front.
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

static tn_tensor *nonzero_on_host(tn_tensor *set) {
    int64_t count = count_true(tn_data(set), tn_count(set));
    tn_tensor *y = tn_empty_on(tn_device_of(set), TN_DIMS(count, tn_ndim(set)), TN_I64);
    if (tn_count(y) > 0) { write_places(tn_data_mut(y), tn_data(set), tn_shape(set)); }
    return y;
}

/* Places are divided in f64, which is exact below 2^52. */
static tn_tensor *nonzero_on_device(tn_tensor *set) {
    tn_dims dims = tn_shape(set);
    tn_tensor *all = tn_reshape(set, TN_DIMS(tn_count(set)));
    int64_t count = (int64_t)tn_item(tn_sum_all(all));
    tn_tensor *place = tn_narrow(tn_argsort(all, 0, true), 0, 0, count);
    tn_tensor *index[TN_MAX_DIMS] = {NULL}, *rest = tn_cast(place, TN_F64);
    for (int d = dims.ndim - 1; d >= 0; d--) {
        double size = dims.size[d] > 0 ? (double)dims.size[d] : 1.0;
        tn_tensor *next = tn_floor(tn_div_scalar(rest, size));
        index[d] = tn_cast(tn_sub(rest, tn_mul_scalar(next, size)), TN_I64);
        rest = next;
    }
    return dims.ndim > 0 ? tn_stack(index, dims.ndim, 1)
                         : tn_narrow(tn_unsqueeze(place, 1), 1, 0, 0);
}

tn_tensor *tn_nonzero(tn_tensor *x) {
    if (!tn__usable(x, "nonzero")) { return tn_inert(); }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *set = tn_contiguous(tn_cast(tn_detach(x), TN_BOOL));
    if (tn_is_inert(set)) { return tn_inert(); }
    return tn_return(tn_device_of(x).kind == TN_CPU ? nonzero_on_host(set)
                                                    : nonzero_on_device(set));
}
