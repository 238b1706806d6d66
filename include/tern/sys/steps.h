/* What kernels of optimisers get: spans of parameters, and the constants of a step. Part of
 * sys/backend.h, whose entry step takes them. */
#ifndef TERN_SYS_STEPS_H
#define TERN_SYS_STEPS_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TN_SPAN_STATES 3 /* maximum number of states that a kernel steps */

/* A contiguous run of `count` elements of a parameter and its state. */
typedef struct tn_optim_span {
    void *param;
    tn_dtype param_dtype;
    const void *grad;
    tn_dtype grad_dtype;
    float *state[TN_SPAN_STATES]; /* what the rule says; the others are NULL */
    float *master;                /* f32 master copy of a bf16 or f16 parameter, or NULL */
    int64_t count;
} tn_optim_span;

/* A contiguous run of `count` elements. */
typedef struct tn_span {
    const void *data;
    tn_dtype dtype;
    int64_t count;
} tn_span;

/* The rules of the optimisers that step element by element. First g = g + add p and p = shrink p,
 * from the same p; then, with m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g g, states
 * in the order of their names:
 *
 *     SGD                                                        p -= lr g
 *     MOMENTUM  b        b = beta1 b + (1 - beta2) g; extra > 0: p -= lr (g + extra b), else lr b
 *     ADAM      m v                                              p -= lr m / (sqrt(v) extra + eps)
 *     AMSGRAD   m v s    s = max(s, v)                           p -= lr m / (sqrt(s) extra + eps)
 *     RMSPROP   v b a    a = beta1 a + (1 - beta1) g, d = g / (sqrt(v - a a) + eps)
 *                        b = extra b + d                         p -= lr b
 *     ADAGRAD   s        s = s + g g + extra                     p -= lr g / (sqrt(s) + eps)
 *     ADADELTA  v u      d = g sqrt(u + eps) / sqrt(v + eps)
 *                        u = beta2 u + (1 - beta2) d d           p -= lr d
 *     ADAMAX    m u      u = max(beta2 u, |g| + eps)             p -= lr m / u
 *     RADAM     m v      extra > 0: p -= lr extra m / (sqrt(v) + eps), else p -= lr m
 *     LION      m        p -= lr sign(m), and then m is made anew from the old m with beta2
 *
 * A state of RMSPROP that a span lacks (NULL) is 0 before the step. */
typedef enum tn_step_rule {
    TN_STEP_SGD,
    TN_STEP_MOMENTUM,
    TN_STEP_ADAM,
    TN_STEP_AMSGRAD,
    TN_STEP_RMSPROP,
    TN_STEP_ADAGRAD,
    TN_STEP_ADADELTA,
    TN_STEP_ADAMAX,
    TN_STEP_RADAM,
    TN_STEP_LION
} tn_step_rule;

/* A rule and its constants. `grad_scale` multiplies each gradient as it is read (clipping), and so
 * does *clip, which is where the spans are; NULL: 1. */
typedef struct tn_step {
    tn_step_rule rule;
    double lr, beta1, beta2, eps, extra, add, shrink, grad_scale;
    const double *clip;
} tn_step;

#ifdef __cplusplus
}
#endif
#endif
