/* An elementwise operation as a row: its kernel, the dtypes it takes, its samples, and what else
 * its descriptor has. The file keeps the head, the gradient rule NAME_backward, and the row.
 *
 *     TN_UNARY(sqrt, TN_SQRT, float, BETWEEN(0.1, 4.0) AT(1e-2, 1.0), .saves = TN_SAVES_OUTPUT(0))
 *
 * defines tn__op_sqrt and tn_sqrt. The dtypes are those of tn__shape_float, tn__shape_number, ….
 */
#ifndef TERN_OPS_ELEMENTWISE_ROWS_H
#define TERN_OPS_ELEMENTWISE_ROWS_H

#include "ops/op.h"

/* Samples: random elements of the shapes that break most things, within [low, high); these elements
 * (ONCE: a second derivative does not exist there); the same of two inputs, AT2((1, 2), (3, 4)). */
#define BETWEEN(low, high) tn_sample_unary(s, low, high);
#define BETWEEN2(low, high, low2, high2) tn_sample_binary(s, low, high, low2, high2);
#define AT(...) TN__SAMPLE_AT(true, __VA_ARGS__)
#define AT_ONCE(...) TN__SAMPLE_AT(false, __VA_ARGS__)
#define AT2(a, b) TN__SAMPLE_AT2(true, a, b)
#define AT2_ONCE(a, b) TN__SAMPLE_AT2(false, a, b)
#define WITH_K(k_, low, high)                                  \
    {                                                          \
        static const tn__scalar_args args_ = {k_};             \
        tn__sample_unary_with(s, low, high, "k=" #k_, &args_); \
    }
#define TN__SAMPLE_AT(second, ...)                                          \
    {                                                                       \
        static const double at_[] = {__VA_ARGS__};                          \
        tn__sample_values(s, at_, (int)(sizeof at_ / sizeof *at_), second); \
    }
#define TN__SAMPLE_AT2(second, a, b)                                          \
    {                                                                         \
        static const double a_[] = TN__LIST a, b_[] = TN__LIST b;             \
        tn__sample_values2(s, a_, b_, (int)(sizeof a_ / sizeof *a_), second); \
    }
#define TN__LIST(...) \
    { __VA_ARGS__ }

/* y = f(x) */
#define TN_UNARY(op_, kernel_, dtypes_, samples_, ...)                          \
    static void op_##_samples(tn_op_samples *s) {                               \
        samples_;                                                               \
    }                                                                           \
    TN__ROW(op_, tn__unary(c, kernel_), dtypes_, .inputs = {"x"}, __VA_ARGS__); \
    tn_tensor *tn_##op_(tn_tensor *x) {                                         \
        return tn_apply1(&tn__op_##op_, NULL, x);                               \
    }

/* y = f(x, k) for a number k */
#define TN_UNARY_K(op_, kernel_, dtypes_, samples_, ...)                                    \
    static void op_##_samples(tn_op_samples *s) {                                           \
        samples_;                                                                           \
    }                                                                                       \
    TN__ROW(op_, tn__unary_k(c, kernel_), dtypes_, .inputs = {"x"},                         \
            .args_size = sizeof(tn__scalar_args), .fields = {TN_FIELD(tn__scalar_args, k)}, \
            __VA_ARGS__);                                                                   \
    tn_tensor *tn_##op_(tn_tensor *x, double k) {                                           \
        tn__scalar_args args = {k};                                                         \
        return tn_apply1(&tn__op_##op_, &args, x);                                          \
    }

/* y = f(a, b), which broadcast */
#define TN_BINARY(op_, kernel_, dtypes_, samples_, ...)                               \
    static void op_##_samples(tn_op_samples *s) {                                     \
        samples_;                                                                     \
    }                                                                                 \
    TN__ROW(op_, tn__binary(c, kernel_), dtypes_, .inputs = {"a", "b"}, __VA_ARGS__); \
    tn_tensor *tn_##op_(tn_tensor *a, tn_tensor *b) {                                 \
        return tn_apply2(&tn__op_##op_, NULL, a, b);                                  \
    }

/* What they share. (The samples' braces have commas, so they cannot be handed on to here.) */
#define TN__ROW(op_, run_, dtypes_, ...)                      \
    static tn_status op_##_forward(const tn_op_call *c) {     \
        return run_;                                          \
    }                                                         \
    const tn_op tn__op_##op_ = {.name = #op_,                 \
                                .shape = tn__shape_##dtypes_, \
                                .forward = op_##_forward,     \
                                .backward = op_##_backward,   \
                                .add_samples = op_##_samples, \
                                __VA_ARGS__}

#endif
