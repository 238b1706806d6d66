/* x with values at the positions that the indices together name: y[index[0][..], index[1][..], ..]
 * = values[..], or += with accumulate. Composed of operations on rows: the first dimensions of x
 * are merged, and the indices are row numbers. */
#include "ops/index/index.h"
#include "ops/shape/shape.h"

/* Whether the n indices fit their dimensions, and the shape to which they broadcast. */
static bool check_indices(tn_tensor *x, tn_tensor *const *index, int n, tn_dims *dims) {
    *dims = TN_DIMS();
    if (!tn__usable(x, "index_put") || n < 1 || n > x->dims.ndim || !index) {
        return tn__fail(TN_EVALUE, "index_put", "x is %s but there are %d indices",
                        tn_shape_text(x), n);
    }
    for (int i = 0; i < n; i++) {
        tn_dims all;
        if (!tn__usable(index[i], "index_put")) { return false; }
        if (index[i]->dtype != TN_I64 && index[i]->dtype != TN_I32) {
            return tn__fail(TN_EDTYPE, "index_put", "index %d is %s (i64 or i32 is needed)", i,
                            tn_dtype_name(index[i]->dtype));
        }
        if (!tn_dims_broadcast(*dims, index[i]->dims, &all)) {
            return tn__fail(TN_ESHAPE, "index_put", "index %d is %s but those before it are %s", i,
                            tn_shape_text(index[i]), tn__dims_text(*dims));
        }
        *dims = all;
        if (!tn__index_within(index[i], x->dims.size[i], "index_put")) { return false; }
    }
    return true;
}

/* The indices, of shape dims, as one vector of row numbers. */
static tn_tensor *row_numbers(tn_tensor *x, tn_tensor *const *index, int n, tn_dims dims) {
    tn_tensor *number = NULL;
    for (int i = 0; i < n; i++) {
        tn_tensor *each = tn_cast(index[i], TN_I64);
        number = number ? tn_add(tn_mul_scalar(number, (double)x->dims.size[i]), each) : each;
    }
    return tn_reshape(tn_expand(number, dims), TN_DIMS(tn_dims_count(dims)));
}

tn_tensor *tn_index_put(tn_tensor *x, tn_tensor *const *index, int n, tn_tensor *values,
                        bool accumulate) {
    TN_SCOPE;
    tn_dims places;
    if (!check_indices(x, index, n, &places) || !tn__usable(values, "index_put")) {
        return tn_inert();
    }
    tn_dims shape = x->dims, all = places;
    int64_t rows = 1, width = 1;
    for (int i = 0; i < shape.ndim; i++) {
        *(i < n ? &rows : &width) *= shape.size[i];
        if (i >= n && all.ndim == TN_MAX_DIMS) {
            return tn__refused(TN_ESHAPE, "index_put",
                               "x is %s and the indices are %s: too many dimensions",
                               tn_shape_text(x), tn__dims_text(places));
        }
        if (i >= n) { all.size[all.ndim++] = shape.size[i]; }
    }
    int64_t count = tn_dims_count(places);
    tn_tensor *number = row_numbers(x, index, n, places);
    tn_tensor *put = tn_reshape(tn_expand(values, all), TN_DIMS(count, width));
    tn_tensor *y = tn_reshape(x, TN_DIMS(rows, width));
    y = accumulate ? tn_add(y, tn__scatter_rows(put, 0, number, rows))
                   : tn__put_rows(y, number, put);
    return tn_return(tn_reshape(y, shape));
}
