/* Resample's arguments, and the elements that each result is a sum of: for exporters. */
#ifndef TERN_OPS_RESAMPLE_H
#define TERN_OPS_RESAMPLE_H

#include "ops/op.h"

/* Along dimension dim, `in` elements become `out`. scale: elements of x per element of the result,
 * 0: from the sizes. */
typedef struct tn__resample_args {
    int dim;
    tn_interpolation how;
    bool align_corners;
    double scale;
    int64_t in, out;
} tn__resample_args;

enum { RESAMPLE_TAPS = 4 };

/* A result is the sum of weight[k] x[place[k]] over `count` elements, 1, 2 or 4 for all results. */
typedef struct tn__tap {
    int count;
    int64_t place[RESAMPLE_TAPS];
    double weight[RESAMPLE_TAPS];
} tn__tap;
tn__tap tn__tap_of(const tn__resample_args *args, int64_t result, tn_dtype dtype);

#endif
