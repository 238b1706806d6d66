/* The distinct elements of x, ascending; the index of each element of x among them; how often each
 * occurs. Composed of operations on the sorted elements: an element is new where it differs from
 * the one before. Every NaN is distinct. */
#include "ops/index/index.h"

/* sorted[i] != sorted[i - 1]; the first is new. */
static tn_tensor *find_new(tn_tensor *sorted) {
    int64_t n = tn_count(sorted);
    if (n == 0) { return tn_cast(sorted, TN_BOOL); }
    tn_tensor *differs = tn_ne(tn_narrow(sorted, 0, 1, n - 1), tn_narrow(sorted, 0, 0, n - 1));
    return tn_cat((tn_tensor *[]){tn__filled(differs, TN_DIMS(1), 1.0), differs}, 2, 0);
}

/* The distance from one first position to the next. */
static tn_tensor *count_each(tn_tensor *first, int64_t n) {
    int64_t found = tn_count(first);
    tn_tensor *end = tn__filled(first, TN_DIMS(found > 0), (double)n);
    tn_tensor *next[2] = {found > 0 ? tn_narrow(first, 0, 1, found - 1) : first, end};
    return tn_sub(tn_cat(next, 2, 0), first);
}

tn_tensor *tn_unique(tn_tensor *x, tn_tensor **inverse, tn_tensor **counts) {
    tn_tensor *none = tn_inert(), **into[2] = {inverse, counts};
    for (int i = 0; i < 2; i++) {
        if (into[i]) { *into[i] = none; }
    }
    if (!tn__usable(x, "unique")) { return none; }
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t n = tn_count(x);
    tn_tensor *order, *sorted = tn_sort(tn_reshape(tn_detach(x), TN_DIMS(n)), 0, false, &order);
    tn_tensor *is_new = find_new(sorted);
    tn_tensor *first = tn_reshape(tn_nonzero(is_new), TN_DIMS(-1));
    tn_tensor *y = tn_index_select(sorted, 0, first);
    if (inverse) {
        tn_tensor *rank = tn_sub_scalar(tn_cumsum(is_new, 0), 1.0);
        tn_tensor *place = tn__put_rows(tn__filled(order, TN_DIMS(n, 1), 0.0), order,
                                        tn_reshape(rank, TN_DIMS(n, 1)));
        *inverse = tn_return(tn_reshape(place, tn_shape(x)));
    }
    if (counts) { *counts = tn_return(count_each(first, n)); }
    return tn_return(y);
}
