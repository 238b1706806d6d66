/* An elementwise operation as a row: its kernel, the dtypes it takes, its samples, and what else
 * its descriptor has. The file keeps the head, the gradient rule NAME_backward, and the row.
 *
 *     TN_UNARY(sqrt, TN_SQRT, float, "{0.1:4} *; [2]=(1e-2, 1)", .saves = TN_SAVES_OUTPUT(0))
 *
 * defines tn__op_sqrt and tn_sqrt. The dtypes are those of tn__shape_float, tn__shape_number, ….
 */
#ifndef TERN_OPS_ELEMENTWISE_ROWS_H
#define TERN_OPS_ELEMENTWISE_ROWS_H

#include "ops/op.h"

/* y = f(x) */
#define TN_UNARY(op_, kernel_, dtypes_, samples_, ...)                                    \
    TN__ROW(op_, tn__unary(c, kernel_), dtypes_, samples_, .inputs = {"x"}, __VA_ARGS__); \
    tn_tensor *tn_##op_(tn_tensor *x) {                                                   \
        return tn_apply1(&tn__op_##op_, NULL, x);                                         \
    }

/* y = f(x, k) for a number k */
#define TN_UNARY_K(op_, kernel_, dtypes_, samples_, ...)                                    \
    TN__ROW(op_, tn__unary_k(c, kernel_), dtypes_, samples_, .inputs = {"x"},               \
            .args_size = sizeof(tn__scalar_args), .fields = {TN_FIELD(tn__scalar_args, k)}, \
            __VA_ARGS__);                                                                   \
    tn_tensor *tn_##op_(tn_tensor *x, double k) {                                           \
        tn__scalar_args args = {k};                                                         \
        return tn_apply1(&tn__op_##op_, &args, x);                                          \
    }

/* y = f(x, k0, k1) for two numbers, members of the file's NAME_args; in the gradient a kernel
 * multiplies dy by the slope at x. The file has the check NAME_shape, and the function. */
#define TN_UNARY_K2(op_, kernel_, slope_, k0_, k1_, samples_, ...)                                \
    static tn_status op_##_forward(const tn_op_call *c) {                                         \
        const op_##_args *args = c->args;                                                         \
        return c->kernels->unary(c->ctx, kernel_, c->y[0], c->x[0], args->k0_, args->k1_);        \
    }                                                                                             \
    static tn_status op_##_backward_kernel(const tn_op_back *b) {                                 \
        const op_##_args *args = b->args;                                                         \
        return tn__slope_back(b, slope_, args->k0_, args->k1_);                                   \
    }                                                                                             \
    const tn_op tn__op_##op_ = {.name = #op_,                                                     \
                                .inputs = {"x"},                                                  \
                                .args_size = sizeof(op_##_args),                                  \
                                .fields = {TN_FIELD(op_##_args, k0_), TN_FIELD(op_##_args, k1_)}, \
                                .saves = TN_SAVES_INPUT(0),                                       \
                                .shape = op_##_shape,                                             \
                                .forward = op_##_forward,                                         \
                                .backward = op_##_backward,                                       \
                                .backward_kernel = op_##_backward_kernel,                         \
                                .samples = samples_,                                              \
                                __VA_ARGS__};

/* y = f(a, b), which broadcast */
#define TN_BINARY(op_, kernel_, dtypes_, samples_, ...)                                         \
    TN__ROW(op_, tn__binary(c, kernel_), dtypes_, samples_, .inputs = {"a", "b"}, __VA_ARGS__); \
    tn_tensor *tn_##op_(tn_tensor *a, tn_tensor *b) {                                           \
        return tn_apply2(&tn__op_##op_, NULL, a, b);                                            \
    }

/* What they share. */
#define TN__ROW(op_, run_, dtypes_, samples_, ...)            \
    static tn_status op_##_forward(const tn_op_call *c) {     \
        return run_;                                          \
    }                                                         \
    const tn_op tn__op_##op_ = {.name = #op_,                 \
                                .shape = tn__shape_##dtypes_, \
                                .forward = op_##_forward,     \
                                .backward = op_##_backward,   \
                                .samples = samples_,          \
                                __VA_ARGS__}

#endif
