/* Gradients: what is recorded, how backward runs, and the hooks on it.
 *
 * An operation on a tensor that requires a gradient records a node; nodes point at the nodes of
 * their inputs. Backward visits them from the youngest to the oldest and adds what reaches a leaf
 * (a tensor that the program made) to the leaf's gradient. A node holds what its rule needs, and
 * frees it once it has run.
 *
 *     tn_tensor *w = tn_set_requires_grad(tn_randn(TN_DIMS(3), TN_F32), true);
 *     tn_backward(tn_sum_all(tn_mul(w, w)));
 *     tn_print(tn_grad_of(w));                                // 2 w
 *
 * Threads may run backward at the same time, each through its own graph. A leaf's gradient and
 * hooks have no lock: leaves that such graphs share must not require a gradient.
 *
 * Read next: autograd/engine.c, docs/tour.md.
 */
#ifndef TERN_AUTOGRAD_H
#define TERN_AUTOGRAD_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A few tensors passed together, by value. */
#define TN_MAX_VALUES 8
typedef struct tn_values {
    int n;
    tn_tensor *v[TN_MAX_VALUES];
} tn_values;

/* ---- Recording ------------------------------------------------------------------------------- */

/* Sets whether a leaf requires a gradient (TN_ESTATE for a recorded result, TN_EDTYPE for
 * integers). Returns t. */
TN_API tn_tensor *tn_set_requires_grad(tn_tensor *t, bool requires_grad);
TN_API bool tn_requires_grad(const tn_tensor *t); /* a leaf that requires one, or a result */
TN_API bool tn_is_leaf(const tn_tensor *t);       /* no recorded operation made it */

/* The same elements without history. */
TN_API tn_tensor *tn_detach(const tn_tensor *t);

/* Nothing is recorded until the enclosing block's `}`. */
#define TN_NO_GRAD                                                                  \
    __attribute__((cleanup(tn_grad_mode_end), unused)) bool TN__UNIQUE(tn__mode_) = \
        tn_grad_mode_begin(false)
TN_API bool tn_grad_mode_begin(bool record); /* returns the mode before */
TN_API void tn_grad_mode_end(const bool *before);
TN_API bool tn_grad_mode(void);

/* ---- Backward -------------------------------------------------------------------------------- */

/* d(loss)/d(leaf) is added to the gradient of every leaf that loss depends on. loss has one
 * element. The graph is freed: a second backward through it is TN_ESTATE. Hooks may call backward
 * and tn_grad; more than 100 nested runs in a thread are TN_ESTATE. */
TN_API tn_status tn_backward(tn_tensor *loss);

/* From n roots with given gradients (grads[i] NULL: 1, for a root of one element). retain_graph
 * keeps the graph. */
TN_API tn_status tn_backward_from(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                                  bool retain_graph);

typedef struct tn_grad_options {
    /* the gradients are recorded, so they can be differentiated again; implies retain_graph */
    bool create_graph;
    bool retain_graph;
    /* true: NULL for an input that the roots do not depend on; false: TN_EVALUE */
    bool allow_unused;
    bool from_defaults;
} tn_grad_options;
TN_API tn_grad_options tn_grad_defaults(void); /* all false */

/* d(sum of roots . grads)/d(inputs[i]) into results[i], owned by the current scope. Inputs may be
 * leaves or intermediate results. No gradient is accumulated and no leaf hook runs. */
TN_API tn_status tn_grad(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                         tn_tensor *const *inputs, int inputs_n, tn_tensor **results,
                         tn_grad_options options);

/* ---- The gradient of a leaf ------------------------------------------------------------------ */

/* The accumulated gradient; NULL if there is none. Owned by the leaf. */
TN_API tn_tensor *tn_grad_of(const tn_tensor *leaf);

/* Forgets the gradient: the next backward writes instead of adding. A preset buffer stays. */
TN_API void tn_zero_grad(tn_tensor *leaf);

/* Gradients accumulate in this dtype (f32 for a bf16 parameter, say). Call before the first
 * backward. */
TN_API tn_status tn_set_grad_dtype(tn_tensor *leaf, tn_dtype dtype);

/* Gradients are written into `buffer` (the leaf's shape; kept until replaced; NULL: none), for
 * example a view of a bucket. While the leaf has no gradient, a backward may write there from the
 * start: where possible the first gradient is made in place, and not copied. */
TN_API tn_status tn_set_grad_buffer(tn_tensor *leaf, tn_tensor *buffer);

/* Replaces the gradient (the leaf's shape and gradient dtype); NULL forgets it. */
TN_API tn_status tn_set_grad(tn_tensor *leaf, tn_tensor *grad);

/* ---- Hooks ----------------------------------------------------------------------------------- */

typedef int64_t tn_hook; /* identifies a hook for removal; 0 if it could not be added */

/* Called with the complete gradient of t; returns a replacement of the same shape, or NULL to keep
 * it. For a result, before the gradient is passed on; for a leaf, before it is accumulated. */
typedef tn_tensor *(*tn_grad_hook)(tn_tensor *grad, void *user);
TN_API tn_hook tn_on_grad(tn_tensor *t, tn_grad_hook hook, void *user);

/* Called once in each outermost backward after the leaf's gradient has been accumulated. */
typedef void (*tn_accumulated_hook)(tn_tensor *leaf, void *user);
TN_API tn_hook tn_on_accumulated(tn_tensor *leaf, tn_accumulated_hook hook, void *user);

/* Removes a hook of t; does nothing if t does not have it. */
TN_API void tn_remove_hook(tn_tensor *t, tn_hook hook);

/* Inside a backward: calls f(user) when the outermost run on this thread ends, even if it fails.
 * Outside: TN_ESTATE. */
TN_API tn_status tn_after_backward(void (*f)(void *user), void *user);

TN_API bool tn_in_backward(void);  /* in this thread */
TN_API bool tn_in_recompute(void); /* inside a forward that backward runs again */

/* ---- Recompute (gradient checkpointing; Chen et al. 2016, arXiv:1604.06174) ------------------ */

/* Runs f(user, in) without recording, keeps only the inputs, and runs it again in backward with the
 * same random numbers. `params`: every other leaf that f reads and that requires a gradient. user
 * must live until backward; free_user (may be NULL) is called when the node is freed. */
typedef tn_values (*tn_forward)(void *user, tn_values in);
TN_API tn_values tn_recompute(tn_forward f, void *user, void (*free_user)(void *user), tn_values in,
                              tn_tensor *const *params, int params_n);

/* ---- Debugging ------------------------------------------------------------------------------- */

typedef struct tn_gradcheck_options {
    double eps;  /* step of the central difference: 1e-6 */
    double atol; /* 1e-5 */
    double rtol; /* 1e-3 */
    bool second; /* also check the gradient of the gradient */
    bool from_defaults;
} tn_gradcheck_options;
TN_API tn_gradcheck_options tn_gradcheck_defaults(void);

/* Compares the gradients of f (any outputs) at f64 inputs with central differences. TN_OK, or
 * TN_EVALUE naming input, element and both numbers.
 * Inputs that do not require a gradient are held fixed. */
TN_API tn_status tn_gradcheck(tn_forward f, void *user, tn_values inputs,
                              tn_gradcheck_options options);

/* Writes the graph of t as Graphviz DOT: operations with the shape of their result, and leaves.
 * `name` (may be NULL) returns a leaf's name or NULL; its string is used before the next call. A
 * leaf without one is named as in errors, by the operation that takes it: "weight".
 * tn_module_graph_dot (module.h) names parameters by their paths. docs/debugging.md. */
typedef const char *(*tn_leaf_name)(const tn_tensor *leaf, void *user);
TN_API tn_status tn_graph_dot(const tn_tensor *t, const char *path, tn_leaf_name name, void *user);

/* Checks every operation's result and every gradient for NaN; the first is TN_EVALUE naming the
 * operation, and in backward also where its forward was called. Slow. */
TN_API void tn_set_anomaly(bool on);

#ifdef __cplusplus
}
#endif
#endif
