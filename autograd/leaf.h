/* What a leaf carries: whether it wants a gradient, the gradient, and hooks. */
#ifndef TERN_AUTOGRAD_LEAF_H
#define TERN_AUTOGRAD_LEAF_H

#include "autograd/hooks.h"
#include "tensor/tensor.h"
#include "tern/autograd.h"

struct tn_leaf {
    bool requires_grad;
    bool stale; /* the gradient counts as none: the next write overwrites it */
    tn_dtype grad_dtype;
    tn_tensor *grad; /* one reference, or NULL */
    bool preset;     /* grad is the caller's buffer */
    tn_tensor *lent; /* its place, while a backward sums there (tn__leaf_lend); or NULL */
    tn__hook *hooks;
    tn_tensor *copy;      /* the elements in another dtype, for tn__lend; one reference, or NULL */
    uint32_t copied_from; /* the version that copy shows */
    bool copy_given;      /* somebody else fills it (tn__lend_give) */
};

void tn__leaf_free(tn_leaf *leaf);

static inline bool tn__wants_grad(const tn_tensor *t) {
    return t->leaf && t->leaf->requires_grad;
}

/* t's leaf; NULL after raising when t is no leaf that requires a gradient. */
tn_leaf *tn__usable_leaf(tn_tensor *t, const char *operation);

/* Adds a complete gradient to the leaf's, after its hooks have seen it. *grad is a reference of the
 * caller's; hooks may exchange it. The first gradient is not copied when that reference is the only
 * one. */
tn_status tn__leaf_accumulate(tn_tensor *t, tn_tensor **grad);

/* The place where the leaf's gradient will lie, if a backward may make it there at once and so need
 * not copy it: a buffer of the caller's (tn_set_grad_buffer) whose gradient is stale. An alias, or
 * NULL. When another backward writes first, or the program, the alias gets elements of its own. */
tn_tensor *tn__leaf_lend(tn_tensor *t);

/* Whether `sum` is that alias, still at its place, and only the run that sums there has it. */
bool tn__leaf_lent(const tn_tensor *t, const tn_tensor *sum);

/* t's elements in another dtype: a result that leads to t, whose gradients arrive in t's dtype. The
 * copy behind it is made once for each version of t and is filled anew in place: a graph that still
 * reads the old elements then raises as if t itself had been saved. autograd/lend.c. */
tn_tensor *tn__lend(tn_tensor *t, tn_dtype dtype);

/* From now on `copy`, which somebody else fills, is what is lent of the leaf t in copy's dtype: as
 * it is, empty or not, and nothing is copied into it. t itself may be empty. For sharding. */
void tn__lend_give(tn_tensor *t, tn_tensor *copy);

/* Lets go of the copy. */
void tn__lend_forget(tn_tensor *t);

/* Whether nobody else can see the elements of t: one reference to it, one to its storage, dense. */
bool tn__exclusive(const tn_tensor *t);

#endif
