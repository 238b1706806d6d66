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

/* A result is the sum of weight[k] x[place[k]] over `count` elements, 1, 2 or 4 for all results. */
typedef struct tn__tap {
    int count;
    int64_t place[RESAMPLE_TAPS];
    double weight[RESAMPLE_TAPS];
} tn__tap;
tn__tap tn__tap_of(const tn__resample_args *args, int64_t result, tn_dtype dtype);

/* Runs piece over a call's lines along args->dim. */
typedef struct tn__resample_job {
    const tn__resample_args *args;
    const tn__tap *taps; /* of each result */
    tn__lines x, y;
} tn__resample_job;
tn_status tn__resample_host(const tn_op_call *c, tn__host_piece *piece);

/* Makes the result, with `size` at args->dim, if the input has `from` there. */
bool tn__resample_shape(tn_op_call *c, int64_t from, int64_t size);

extern const char *const tn__resample_modes[];
#define TN__RESAMPLE_FIELDS                                                                        \
    TN_FIELD(tn__resample_args, dim),                                                              \
        TN_FIELD_AS("mode", tn__resample_args, how, .names = tn__resample_modes),                  \
        TN_FIELD(tn__resample_args, align_corners), TN_FIELD_AS("step", tn__resample_args, scale), \
        TN_FIELD_AS("given", tn__resample_args, in), TN_FIELD_AS("size", tn__resample_args, out)

/* Up and down, by factors of 2 and fractions, with a step other than the sizes'; from and to one
 * element; a dimension with others around it. of(x, y) chooses between the shape of resample's
 * input, and of its gradient's. */
/* clang-format off */
#define TN__RESAMPLE_SAMPLES(of) \
    "{-2:2} " \
    of("[3, 4]", "[3, 8]") " dim=1, mode='nearest', given=4, size=8; " \
    of("[2, 7, 3]", "[2, 3, 3]") " dim=1, mode='nearest', given=7, size=3; " \
    of("[3, 5]", "[3, 7]") " dim=1, mode='nearest-exact', given=5, size=7; " \
    of("[4, 3]", "[7, 3]") " dim=0, mode='linear', given=4, size=7; " \
    of("[2, 6]", "[2, 4]") " dim=1, mode='linear', given=6, size=4, align_corners=True; " \
    of("[2, 5, 2]", "[2, 8, 2]") " dim=1, mode='linear', given=5, size=8, " \
    "step=0.58823529411764708; " \
    of("[3, 1]", "[3, 3]") " dim=1, mode='linear', given=1, size=3, align_corners=True; " \
    of("[3, 4]", "[3, 1]") " dim=1, mode='linear', given=4, size=1, align_corners=True; " \
    of("[3, 5]", "[3, 9]") " dim=1, mode='bicubic', given=5, size=9; " \
    of("[2, 6, 2]", "[2, 4, 2]") " dim=1, mode='bicubic', given=6, size=4, align_corners=True; " \
    of("[0, 4]", "[0, 8]") " dim=1, mode='linear', given=4, size=8"
/* clang-format on */

#endif
