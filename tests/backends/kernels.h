/* Calls of operations' kernels on descriptors, as an operation's forward makes them: the table's
 * own kernel or, on the CPU, the host loops, which are all that "ref" has. NULL operands are absent
 * or not needed. If an operation has neither (a device fuses what is two calls elsewhere), ref's
 * result comes from those two calls. */
#ifndef TERN_TESTS_BACKENDS_KERNELS_H
#define TERN_TESTS_BACKENDS_KERNELS_H

#include "backends/attention.h"
#include "backends/batch_norm.h"
#include "backends/cross_entropy.h"
#include "backends/norm.h"
#include "backends/rotary.h"
#include "backends/softmax.h"
#include <string.h>
#include <tern/sys/op.h>

static inline tn_context *kernel_context(const tn_backend *t) {
    return tn_context_of(strcmp(t->name, "cuda") == 0 ? tn_cuda(0) : tn_cpu());
}

/* KERNEL_CALL(t, softmax, .args = &args, .x = {&x.d}, .y = {&y.d}) */
#define KERNEL_CALL(t, name, ...) \
    tn_op_run(tn_op_named(#name), \
              &(tn_op_call){      \
                  .op = tn_op_named(#name), .kernels = t, .ctx = kernel_context(t), __VA_ARGS__})
#define KERNEL_BACK(t, name, ...)      \
    tn_op_run_back(tn_op_named(#name), \
                   &(tn_op_back){.kernels = t, .ctx = kernel_context(t), __VA_ARGS__})

/* Whether the table has its own kernel. */
#define KERNEL_OWN(t, name) ((t)->fused && (t)->fused[tn_op_named(#name)->kernel] != NULL)

static inline tn_status run_softmax(const tn_backend *t, const tn_desc *y, const tn_desc *x,
                                    bool log_form) {
    tn_softmax_args args = {-1};
    return log_form ? KERNEL_CALL(t, log_softmax, .args = &args, .x = {x}, .y = {y})
                    : KERNEL_CALL(t, softmax, .args = &args, .x = {x}, .y = {y});
}

static inline tn_status run_softmax_backward(const tn_backend *t, const tn_desc *dx,
                                             const tn_desc *y, const tn_desc *dy, bool log_form) {
    tn_softmax_args args = {-1};
    return log_form ? KERNEL_BACK(t, log_softmax, .args = &args, .dx = {dx}, .y = {y}, .dy = {dy})
                    : KERNEL_BACK(t, softmax, .args = &args, .dx = {dx}, .y = {y}, .dy = {dy});
}

static inline tn_status run_layer_norm(const tn_backend *t, const tn_desc *y, const tn_desc *mean,
                                       const tn_desc *rstd, const tn_desc *x, const tn_desc *w,
                                       const tn_desc *b, double eps) {
    tn_norm_args args = {eps};
    return KERNEL_CALL(t, layer_norm, .args = &args, .x = {x, w, b}, .y = {y, mean, rstd});
}

static inline tn_status run_layer_norm_backward(const tn_backend *t, const tn_desc *dx,
                                                const tn_desc *dw, const tn_desc *db,
                                                const tn_desc *dy, const tn_desc *x,
                                                const tn_desc *mean, const tn_desc *rstd,
                                                const tn_desc *w) {
    return KERNEL_BACK(t, layer_norm, .dx = {dx, dw, db}, .dy = {dy}, .x = {x, w},
                       .y = {[1] = mean, rstd});
}

static inline tn_status run_rms_norm(const tn_backend *t, const tn_desc *y, const tn_desc *rstd,
                                     const tn_desc *x, const tn_desc *w, double eps) {
    tn_norm_args args = {eps};
    return KERNEL_CALL(t, rms_norm, .args = &args, .x = {x, w}, .y = {y, rstd});
}

static inline tn_status run_rms_norm_backward(const tn_backend *t, const tn_desc *dx,
                                              const tn_desc *dw, const tn_desc *dy,
                                              const tn_desc *x, const tn_desc *rstd,
                                              const tn_desc *w) {
    return KERNEL_BACK(t, rms_norm, .dx = {dx, dw}, .dy = {dy}, .x = {x, w}, .y = {[1] = rstd});
}

static inline tn_status run_add_layer_norm(const tn_backend *t, const tn_desc *s, const tn_desc *y,
                                           const tn_desc *mean, const tn_desc *rstd,
                                           const tn_desc *a, const tn_desc *b, const tn_desc *w,
                                           const tn_desc *bias, double eps) {
    tn_norm_args args = {eps};
    if (KERNEL_OWN(t, add_layer_norm)) {
        return KERNEL_CALL(t, add_layer_norm, .args = &args, .x = {a, b, w, bias},
                           .y = {y, s, mean, rstd});
    }
    tn_status status = t->binary(kernel_context(t), TN_ADD, s, a, b);
    return status == TN_OK ? run_layer_norm(t, y, mean, rstd, s, w, bias, eps) : status;
}

static inline tn_status run_batch_norm(const tn_backend *t, const tn_desc *y, const tn_desc *mean,
                                       const tn_desc *var, const tn_desc *x, const tn_desc *w,
                                       const tn_desc *b, double eps, bool given) {
    tn_batch_norm_args args = {eps};
    return given ? KERNEL_CALL(t, batch_norm_given, .args = &args, .x = {x, w, b, mean, var},
                               .y = {y})
                 : KERNEL_CALL(t, batch_norm, .args = &args, .x = {x, w, b}, .y = {y, mean, var});
}

static inline tn_status run_attention(const tn_backend *t, const tn_desc *y, const tn_desc *lse,
                                      const tn_desc *q, const tn_desc *k, const tn_desc *v,
                                      const tn_desc *mask, const tn_attention_args *args) {
    return KERNEL_CALL(t, attention, .args = args, .x = {q, k, v, mask}, .y = {y, lse});
}

static inline tn_status run_attention_backward(const tn_backend *t, const tn_desc *dq,
                                               const tn_desc *dk, const tn_desc *dv,
                                               const tn_desc *dy, const tn_desc *y,
                                               const tn_desc *lse, const tn_desc *q,
                                               const tn_desc *k, const tn_desc *v,
                                               const tn_desc *mask, const tn_attention_args *args) {
    return KERNEL_BACK(t, attention, .args = args, .dx = {dq, dk, dv}, .dy = {dy},
                       .x = {q, k, v, mask}, .y = {y, lse});
}

static inline tn_status run_cross_entropy(const tn_backend *t, const tn_desc *loss,
                                          const tn_desc *top, const tn_desc *log_sum,
                                          const tn_desc *x, const tn_desc *label,
                                          const tn_cross_entropy_args *args) {
    return KERNEL_CALL(t, cross_entropy, .args = args, .x = {x, label}, .y = {loss, top, log_sum});
}

static inline tn_status run_cross_entropy_backward(const tn_backend *t, const tn_desc *dx,
                                                   const tn_desc *dloss, const tn_desc *top,
                                                   const tn_desc *log_sum, const tn_desc *x,
                                                   const tn_desc *label,
                                                   const tn_cross_entropy_args *args) {
    return KERNEL_BACK(t, cross_entropy, .args = args, .dx = {dx}, .dy = {dloss}, .x = {x, label},
                       .y = {NULL, top, log_sum});
}

static inline tn_status run_linear_q8(const tn_backend *t, const tn_desc *y, const tn_desc *x,
                                      const tn_desc *w, const tn_desc *scale, const tn_desc *b) {
    return KERNEL_CALL(t, linear_q8, .x = {x, w, scale, b}, .y = {y});
}

static inline tn_status run_linear_gelu(const tn_backend *t, const tn_desc *y, const tn_desc *pre,
                                        const tn_desc *x, const tn_desc *w, const tn_desc *b) {
    tn_status status = KERNEL_CALL(t, linear_gelu, .x = {x, w, b}, .y = {y, pre});
    if (status != TN_EUNSUPPORTED) { return status; }
    pre = pre ? pre : y;
    status = t->linear(kernel_context(t), pre, x, w, b);
    return status == TN_OK ? t->unary(kernel_context(t), TN_GELU_TANH, y, pre, 0, 0) : status;
}

#endif
