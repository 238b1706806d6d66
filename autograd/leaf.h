/* What a leaf carries: whether it needs a gradient, the gradient, and hooks. */
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
    tn_tensor *lent; /* an alias of its buffer while a backward sums there (tn__leaf_lend); or NULL
                      */
    tn__hook *hooks;
    tn_tensor *copy;      /* the elements in another dtype (low_precision.c), or NULL */
    uint32_t copied_from; /* the version of the leaf in `copy` */
    bool copy_given;      /* filled by others (tn__low_precision_set) */
};

void tn__leaf_free(tn_leaf *leaf);

/* Makes t, which replaces `like` from now on, a leaf like it: whether it requires a gradient, and
 * in which dtype. False after raising. */
bool tn__leaf_like(tn_tensor *t, const tn_tensor *like);

static inline bool tn__wants_grad(const tn_tensor *t) {
    return t->leaf && t->leaf->requires_grad;
}

/* t's leaf; NULL after raising if t is not a leaf that requires a gradient. */
tn_leaf *tn__usable_leaf(tn_tensor *t, const char *operation);

/* Adds a complete gradient to the leaf's, after its hooks have seen it. *grad is the caller's
 * reference; hooks may replace it. The first gradient is not copied when that reference is the only
 * one. */
tn_status tn__leaf_accumulate(tn_tensor *t, tn_tensor **grad);

/* Where the leaf's gradient will be stored, if a backward may write it there directly, without a
 * copy: the caller's buffer (tn_set_grad_buffer), if its gradient is stale. An alias, or NULL. If
 * another backward or the program writes first, the alias gets its own elements. */
tn_tensor *tn__leaf_lend(tn_tensor *t);

/* Whether `sum` is that alias, still in place, and only the backward that sums there refers to
 * it. */
bool tn__leaf_lent(const tn_tensor *t, const tn_tensor *sum);

/* t's elements in another dtype: a recorded result, whose gradient reaches t in t's dtype. It views
 * a copy that is refilled in place, once for each version of t: a graph that still reads the old
 * elements then raises as if t itself had been saved. autograd/low_precision.c. */
tn_tensor *tn__low_precision(tn_tensor *t, tn_dtype dtype);

/* Makes `copy` the leaf t's copy in that dtype. The caller fills it: it may be empty, and nothing
 * is copied into it. t itself may be empty. For sharding. */
void tn__low_precision_set(tn_tensor *t, tn_tensor *copy);

/* Drops the copy. */
void tn__low_precision_drop(tn_tensor *t);

/* The bf16 or f16 copy that the f32 leaf t has for its calls, row-major as t is: a step that writes
 * t may write it too, and then says so with tn__low_precision_filled after touching t. NULL: there
 * is none, or others fill it. */
tn_tensor *tn__low_precision_copy(const tn_tensor *t);
void tn__low_precision_filled(const tn_tensor *t);

/* Whether no one else can see the elements of t: one reference to it, one to its storage, dense. */
bool tn__exclusive(const tn_tensor *t);

#endif
