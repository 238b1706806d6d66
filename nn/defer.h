/* Parameters of modules built under TN_DEFER_INIT, which have no elements yet. For code that makes
 * them in parts. */
#ifndef TERN_NN_DEFER_H
#define TERN_NN_DEFER_H

#include "nn/layout.h"
#include "ops/deferred.h"

/* Elements [start, start + length) of the flattened parameter `leaf`, which is deferred
 * (tn__deferred), into out, which has `length` elements: the same bits as in the whole. The leaf
 * stays deferred; tn__recipe_drop ends that when its elements are elsewhere. */
TN_API tn_status tn__draw_part(const tn_tensor *leaf, int64_t start, int64_t length,
                               tn_tensor *out);

/* The elements of `whole`, a parameter, that a layout of it has: into `part`, which has as many.
 * Copied, or, where the whole is deferred, only these are made. False after raising. */
bool tn__fill_part(tn_tensor *whole, const tn_layout *layout, tn_tensor *part);

#endif
