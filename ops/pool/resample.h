/* What resample and its gradient share: the elements that each result is a sum of. */
#ifndef TERN_OPS_RESAMPLE_H
#define TERN_OPS_RESAMPLE_H

#include "ops/host.h"

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

/* Result o is the sum of weight[o][k] x[place[o][k]]. */
typedef struct tn__taps {
    int count;
    int64_t (*place)[RESAMPLE_TAPS];
    double (*weight)[RESAMPLE_TAPS];
} tn__taps;
/* False if out of memory; then there is nothing to free. */
bool tn__taps_make(tn__taps *taps, const tn__resample_args *args, tn_dtype dtype);
void tn__taps_free(tn__taps *taps);

/* Runs piece over a call's lines along args->dim. */
typedef struct tn__resample_job {
    const tn__resample_args *args;
    tn__taps taps;
    tn__lines x, y;
} tn__resample_job;
tn_status tn__resample_host(const tn_op_call *c, tn__host_piece *piece);

/* Makes the result, with `size` at args->dim, if the input has `from` there. */
bool tn__resample_shape(tn_op_call *c, int64_t from, int64_t size);

/* of_result: with resample's results as inputs, for its gradient. */
void tn__resample_samples(tn_op_samples *s, bool of_result);

#endif
