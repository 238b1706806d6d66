/* What resample and its gradient share: which elements a place of the result is made of. */
#ifndef TERN_OPS_RESAMPLE_H
#define TERN_OPS_RESAMPLE_H

#include "ops/host.h"

/* Along dimension dim, `in` elements become `out`. scale: how many elements of x there are to one
 * of the result, 0: as the sizes say. */
typedef struct tn__resample_args {
    int dim;
    tn_interpolation how;
    bool align_corners;
    double scale;
    int64_t in, out;
} tn__resample_args;

enum { RESAMPLE_TAPS = 4 };

/* Place o is the sum of weight[o][k] x[place[o][k]]. */
typedef struct tn__taps {
    int count;
    int64_t (*place)[RESAMPLE_TAPS];
    double (*weight)[RESAMPLE_TAPS];
} tn__taps;
/* False if there is no memory; taps then need no free. */
bool tn__taps_make(tn__taps *taps, const tn__resample_args *args, tn_dtype dtype);
void tn__taps_free(tn__taps *taps);

/* Runs piece over the lines of a call along args->dim. */
typedef struct tn__resample_job {
    const tn__resample_args *args;
    tn__taps taps;
    tn__lines x, y;
} tn__resample_job;
tn_status tn__resample_host(const tn_op_call *c, tn__host_piece *piece);

/* The result, with `size` at args->dim, from an input with `from` there. */
bool tn__resample_shape(tn_op_call *c, int64_t from, int64_t size);

/* of_result: over what resample makes, for its gradient. */
void tn__resample_samples(tn_op_samples *s, bool of_result);

#endif
