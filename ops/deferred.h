/* Steps of recipes (tensor/recipe.h): what fills, draws and unary functions do to a deferred
 * tensor, and how its elements are made. */
#ifndef TERN_OPS_DEFERRED_H
#define TERN_OPS_DEFERRED_H

#include "ops/op.h"
#include "tensor/recipe.h"

/* Add the step to the recipe of x, which is deferred, and return x. Inert after TN_EUNSUPPORTED: x
 * is a part of a tensor, or the recipe is full. A step that sets all elements restarts the
 * recipe. */
tn_tensor *tn__defer_fill(tn_tensor *x, double value, const char *operation);
tn_tensor *tn__defer_draw(tn_tensor *x, tn_random_kind kind, tn_random_key key, double a, double b,
                          const char *operation);
tn_tensor *tn__defer_unary(tn_tensor *x, tn_unary f, double a, double b, const char *operation);

/* Whether x is all of its storage, so that setting x's elements sets all. */
bool tn__defer_covers(const tn_tensor *x);

/* x's elements will be those of `from`, made in from's dtype and on its device; both are deferred.
 */
tn_tensor *tn__defer_copy(tn_tensor *x, const tn_tensor *from, const char *operation);

/* The same in another shape, where all elements will be equal; NULL: t is not deferred, or its
 * elements are drawn. */
tn_tensor *tn__deferred_even(const tn_tensor *t, tn_dims dims);

/* A deferred tensor with t's recipe and name, in another dtype or on another device. */
tn_tensor *tn__deferred_like(const tn_tensor *t, tn_dtype dtype, tn_device device);

/* Makes all elements of the deferred t's storage and drops the recipe. After raising nothing has
 * changed. */
tn_status tn__deferred_make(const tn_tensor *t);

/* Elements [start, start + tn_count(out)) of the flattened t, which stays deferred, into `out`: bit
 * for bit as if all of t were made. */
tn_status tn__deferred_part(const tn_tensor *t, int64_t start, tn_tensor *out);

#endif
