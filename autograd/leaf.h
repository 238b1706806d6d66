/* What a leaf carries: whether it wants a gradient, the gradient, and hooks. */
#ifndef TERN_AUTOGRAD_LEAF_H
#define TERN_AUTOGRAD_LEAF_H

#include "tensor/tensor.h"
#include "tern/autograd.h"

typedef struct tn__leaf_hook {
    struct tn__leaf_hook *next;
    tn_hook id;
    tn_grad_hook before;       /* on the gradient … */
    tn_accumulated_hook after; /* … or after it was accumulated */
    void *user;
} tn__leaf_hook;

struct tn_leaf {
    bool requires_grad;
    bool stale; /* the gradient counts as none: the next write overwrites it */
    tn_dtype grad_dtype;
    tn_tensor *grad; /* one reference, or NULL */
    bool preset;     /* grad is the caller's buffer */
    tn__leaf_hook *hooks;
};

void tn__leaf_free(tn_leaf *leaf);

static inline bool tn__wants_grad(const tn_tensor *t) {
    return t->leaf && t->leaf->requires_grad;
}

/* Adds a complete gradient to the leaf's, after its hooks have seen it. The first gradient is not copied when the caller's
 * reference is the only one. */
tn_status tn__leaf_accumulate(tn_tensor *t, tn_tensor *grad);

/* Whether nobody else can see the elements of t: one reference to it, one to its storage, dense. */
bool tn__exclusive(const tn_tensor *t);

tn_hook tn__next_hook(void);

#endif
