/* What reductions share: which dimensions are reduced, the resulting shape, and expanding to x's
 * shape in backward.
 *
 * A mask has bit i set when dimension i of x is reduced. "Kept" dims are x's with 1 where it is
 * reduced: what kernels take, and keepdim gives.
 */
#ifndef TERN_OPS_REDUCE_H
#define TERN_OPS_REDUCE_H

#include "ops/dims.h"

typedef struct tn__reduce_args {
    /* as the caller gave them: negative counts from the end, none means all */
    tn_dims dims;
    bool keepdim;
} tn__reduce_args;

/* Whether input 0 has these dimensions, each of them named once; otherwise raises. */
bool tn__reduce_checked(const tn_op_call *c, tn_dims dims);

/* Checks the dimensions and makes the output. args begin with tn__reduce_args. */
bool tn__reduce_out(tn_op_call *c, tn_dtype dtype);

/* The same for floats, with an output of their dtype. */
bool tn__reduce_float(tn_op_call *c);

/* False after raising TN_ESHAPE if elements of the output would come from no element: that has no
 * largest. */
bool tn__reduce_nonempty(const tn_op_call *c);

/* For dimensions that tn__reduce_out has checked. Left: the result's dims. */
tn_dims tn__reduce_left(tn_dims x, unsigned mask, bool keepdim);
unsigned tn__reduce_mask(tn_dims dims, int ndim);
tn_dims tn__reduce_kept(tn_dims x, unsigned mask);
int64_t tn__reduce_count(tn_dims x, unsigned mask); /* elements of x per element of y */

/* Output 0, which is contiguous, with other sizes of the same count. */
tn_desc tn__reduce_desc(const tn_op_call *c, tn_dims dims);

/* y = f of x over the dimensions of args. */
tn_status tn__reduce(const tn_op_call *c, tn_reduction f);

/* x, with bools as 0 and 1 of this dtype, for sums. */
tn_tensor *tn__counted(tn_tensor *x, tn_dtype dtype, const char *operation);

/* A tensor of the output's shape, repeated to input 0's shape. */
tn_tensor *tn__spread(const tn_op_grad *g, tn_tensor *t);

/* sqrt(x) for x >= 0, whose gradient is 0 where x is 0: deviations and lengths. */
tn_tensor *tn__sqrt_or_zero(tn_tensor *x);

/* Samples of many choices of dims, and without elements to reduce. Values are distinct and in
 * `range`, which is text: no ties. */
#define TN__REDUCE_SAMPLES(range)                                                      \
    "{distinct " range "} [7]; [3, 4] dim=[1]; [3, 4] dim=[0], keepdim=True; "         \
    "[3, 4] keepdim=True; [2, 3, 4] dim=[0, 2]; [2, 3, 4] dim=[-1, 0], keepdim=True; " \
    "[2, 3, 4] dim=[1]; [2, 2, 3, 2] dim=[1, 2]; []; [] dim=[-1], keepdim=True; "      \
    "[1, 3] dim=[0]; [0, 3] dim=[1]; [2, 300] dim=[1]; [300, 2] dim=[0]; "
#define TN__REDUCE_NOTHING "[2, 0, 3] dim=[1]; [0] keepdim=True; "

/* The fields of args that begin with tn__reduce_args. */
#define TN__REDUCE_FIELDS \
    TN_FIELD_AS("dim", tn__reduce_args, dims), TN_FIELD(tn__reduce_args, keepdim)

/* A reduction as a row: its shape rule, its samples, and what else its descriptor has. */
#define TN_REDUCTION(op_, shape_, samples_, ...)                      \
    const tn_op tn__op_##op_ = {.name = #op_,                         \
                                .inputs = {"x"},                      \
                                .args_size = sizeof(tn__reduce_args), \
                                .fields = {TN__REDUCE_FIELDS},        \
                                .shape = shape_,                      \
                                .samples = samples_,                  \
                                __VA_ARGS__};

#endif
