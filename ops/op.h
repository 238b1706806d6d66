/* What the files under ops/ share: shape rules and forwards that many operations have in common,
 * small helpers for backwards, and samples. sys/op.h says what an operation is made of; this is
 * only shorthand for it.
 *
 * An operation's file holds the rest: mathematics, gradient rule, samples. `ops/elementwise/exp.c`
 * is the shortest complete example.
 */
#ifndef TERN_OPS_OP_H
#define TERN_OPS_OP_H

#include "backends/entries.h"
#include "tensor/tensor.h"
#include "tern/ops.h"
#include "tern/sys/op.h"

/* The operations of list.h. */
#define TN_OP(folder, name, ...) extern const tn_op tn__op_##name;
#include "ops/list.h"
#undef TN_OP

/* ---- Shape rules: false after raising -------------------------------------------------------- */

/* One input of floats, or of numbers (all but bool); one output like it. With tn__scalar_args: a
 * number and, if it is an integer, a whole constant that it can hold. */
bool tn__shape_float(tn_op_call *c);
bool tn__shape_number(tn_op_call *c);
bool tn__shape_scalar(tn_op_call *c);

/* Input 0 is floating point; is all but bool. */
bool tn__needs_float(const tn_op_call *c);
bool tn__needs_number(const tn_op_call *c);

/* The argument of this name is not NaN. */
bool tn__not_nan(const tn_op_call *c, const char *name, double value);

/* eps, which is added to a variance before its square root, is not negative. */
bool tn__eps_fits(const tn_op_call *c, double eps);

/* Two inputs of one dtype that broadcast; the result has that dtype, or is bool (then the inputs
 * may be bool too). */
bool tn__shape_float2(tn_op_call *c);
bool tn__shape_number2(tn_op_call *c);
bool tn__shape_compare(tn_op_call *c);

/* ---- Forwards and backwards: one kernel over the descriptors --------------------------------- */

/* Arguments of operations with one constant. */
typedef struct tn__scalar_args {
    double k;
} tn__scalar_args;

/* Of operations with one dimension, which may count from the end, and with sizes or dimensions. */
typedef struct tn__dim_args {
    int dim;
} tn__dim_args;
typedef struct tn__dims_args {
    tn_dims dims;
} tn__dims_args;

/* y = f(x); y = f(x, k) with tn__scalar_args; y = f(a, b) and y = a ? b, broadcast. */
tn_status tn__unary(const tn_op_call *c, tn_unary f);
tn_status tn__unary_k(const tn_op_call *c, tn_unary f);
tn_status tn__binary(const tn_op_call *c, tn_binary f);
tn_status tn__compare(const tn_op_call *c, tn_compare f);

/* For fmod and remainder (fmod.c): trunc(a / b), and the k of x % k. Samples: all signs; below the
 * divisor, and several times as large. */
tn_tensor *tn__fmod_times(tn_tensor *a, tn_tensor *b);
tn_tensor *tn__filled_divisor(const tn_tensor *x, double k, const char *operation);
#define TN__FMOD_SAMPLES                                     \
    "{0.1:0.9, 1.1:1.9} ** **; {-0.9:-0.1, 1.1:1.9} ** **; " \
    "[7]=(5.25, -5.25, 5.25, -5.25, 0.75, -0.75, 100.25) [7]=(2, 2, -2, -2, 4, 4, -3)"

/* y = x, elements of another dtype or order too. dx = dy. */
tn_status tn__copy_forward(const tn_op_call *c);
void tn__pass_backward(tn_op_grad *g);

/* dx = f(a, dy), for kernels of backward; a is one of b's operands. */
tn_status tn__binary_back(const tn_op_back *b, tn_binary f, const tn_desc *a);

/* dx = slope(x, k0, k1) dy, in the same way. */
tn_status tn__slope_back(const tn_op_back *b, tn_unary slope, double k0, double k1);

/* ---- Work, for the profiler ------------------------------------------------------------------ */

/* Multiplications and additions of one product; in backward, of one for each of these inputs (bits)
 * that needs a gradient. */
void tn__work_product(tn_op_work *w, double multiplications, uint32_t inputs);
double tn__work_count(const tn_dims *dims); /* 0 for NULL */
/* Only as many elements of input 0 are read as there are results (gather). */
void tn__work_picked(tn_op_work *w);

/* ---- Outside of tn_apply --------------------------------------------------------------------- */

/* Like tn__fail, for a function that returns a tensor. */
#define tn__refused(...) (tn__raise(__VA_ARGS__), tn_inert())

/* Whether a kernel succeeded; if not, raises its status for `operation`. */
bool tn__kernel_ok(tn_status status, const char *operation);

/* The next draw of a generator. */
static inline tn_random_key tn__draw_key(tn_generator *g) {
    return (tn_random_key){.seed = g->seed, .stream = g->stream, .call = g->call++};
}

/* Whether all elements of p, floats, are between 0 and 1; false after raising; the message calls p
 * `name` and ends with `advice`. Waits for p's device. */
bool tn__probabilities(tn_tensor *p, const char *name, const char *advice, const char *operation);

/* t's integers, on the host, for free(); NULL after raising. Waits for t's device. */
int64_t *tn__read_indices(tn_tensor *t, const char *operation);

/* A 0-dimensional tensor with this value, t's dtype and device. */
tn_tensor *tn__constant(const tn_tensor *t, double value);

/* The same for the k of operation(x, k); inert after raising if an integer x cannot hold it. */
tn_tensor *tn__scalar_like(const tn_tensor *x, double k, const char *operation);

/* tn_arange on a device. */
tn_tensor *tn__arange(tn_device device, double start, double end, double step, tn_dtype dtype);

/* A tensor of these dims, filled with value, of t's dtype and device. */
tn_tensor *tn__filled(const tn_tensor *t, tn_dims dims, double value);

/* The dimension that `dim` names (negative counts from the end), or -1 after raising TN_EINDEX. For
 * a 0-dimensional x 0 and -1 are valid too, as in PyTorch. */
int tn__dim_of_any(const tn_tensor *x, int dim, const char *operation);

/* x minus the first of the elements that a reduction over dims combines: 0 where they are equal,
 * near 0 where they are close. For statistics that do not depend on a shift. */
tn_tensor *tn__from_first(tn_tensor *x, tn_dims dims);

/* Whether `value` can be stored in `dtype`: integers truncate, but must be in range; bool takes
 * anything. */
bool tn__fits(double value, tn_dtype dtype);

/* clamp's bounds for an integer dtype: whole, and within its range (an infinite bound is no bound).
 * For floats they stay. */
void tn__clamp_bounds(tn_dtype dtype, double *low, double *high);

#endif
