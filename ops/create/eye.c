/* Ones on the diagonal, zeros elsewhere: a new matrix. */
#include "ops/shape/shape.h"

tn_tensor *tn_eye(int64_t rows, int64_t columns, tn_dtype dtype) {
    if (rows < 0 || columns < 0) {
        return tn__refused(TN_ESHAPE, "eye", "%lld rows and %lld columns are wanted",
                           (long long)rows, (long long)columns);
    }
    TN_SCOPE;
    tn_tensor *diagonal = tn__by_diagonal(tn_default_device(), rows, columns, 0, tn_eq);
    return tn_return(tn_cast(diagonal, dtype));
}
