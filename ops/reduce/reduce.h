/* What reductions share: which dimensions are reduced, the resulting shape, and expanding to x's
 * shape in backward.
 *
 * A mask has bit i set when dimension i of x is reduced. "Kept" dims are x's with 1 where it is
 * reduced: what kernels take, and keepdim gives.
 */
#ifndef TERN_OPS_REDUCE_H
#define TERN_OPS_REDUCE_H

#include "ops/op.h"

typedef struct tn__reduce_args {
    /* as the caller gave them: negative counts from the end, none means all */
    tn_dims dims;
    bool keepdim;
} tn__reduce_args;

/* Whether input 0 has these dimensions, each of them named once; otherwise raises. */
bool tn__reduce_checked(const tn_op_call *c, tn_dims dims);

/* Checks the dimensions and makes the output. args begin with tn__reduce_args. */
bool tn__reduce_out(tn_op_call *c, tn_dtype dtype);

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

/* Scratch memory for a contiguous operand; data is NULL if there is none left. */
tn_desc tn__scratch(tn_context *ctx, tn_dims dims, tn_dtype dtype);
void tn__scratch_free(tn_context *ctx, const tn_desc *scratch);

/* One input over many choices of dims; `empty`: also with no elements to reduce. Values are
 * distinct, to avoid ties. */
void tn__sample_reduce(tn_op_samples *s, double low, double high, bool empty);

/* These values, in shape dims, where there is no second derivative. */
void tn__sample_flat(tn_op_samples *s, const void *args, const char *text, tn_dims dims,
                     const double *values);

/* ---- argmax and argmin (argmax.c) ------------------------------------------------------------ */

typedef struct tn__argmax_args {
    int dim;
    bool keepdim;
} tn__argmax_args;

bool tn__argmax_shape(tn_op_call *c);
/* x: input 0, or a tensor of its shape. */
tn_status tn__argmax_along(const tn_op_call *c, const tn_desc *x);
extern const char tn__argmax_samples[];

/* ---- max and min (max.c), any and all (any.c) ------------------------------------------------ */

bool tn__max_shape(tn_op_call *c);
void tn__max_backward(tn_op_grad *g); /* to the chosen elements: where x equals y */
void tn__max_samples(tn_op_samples *s);

extern const char tn__any_samples[];

#endif
