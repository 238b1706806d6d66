/* Which elements of a parameter a rank has (tn_layout), as runs: elements that are adjacent both in
 * the flattened whole and here. A layout has its runs in ascending order, so the elements that two
 * layouts share are found by merging two sorted lists. Saving, loading onto other ranks and writing
 * whole weights are just such merges:
 *
 *     for (tn__common c = {0}; tn__layouts_next(&file, &mine, &c);) {
 *         memcpy(to + c.b * size, from + c.a * size, c.length * size);
 *     }
 */
#ifndef TERN_NN_LAYOUT_H
#define TERN_NN_LAYOUT_H

#include "tern/nn.h"

/* All of a tensor of this shape. */
TN_API tn_layout tn__layout_whole(tn_dims whole);

/* Whether a layout from a file or a peer is valid: sizes whose product fits, cuts that divide (with
 * one piece they need not), a range within the block. */
TN_API bool tn__layout_sound(const tn_layout *l);

/* The shape of the block of a valid layout. */
TN_API tn_dims tn__layout_block(const tn_layout *l);

/* The indices of dimension `dim` of the whole that a block has: of each piece `count`, from `first`
 * on. Slices of one piece that does not divide have ceil(n / slices) each, the last the rest.
 */
typedef struct tn__slice {
    int64_t first, count;
} tn__slice;
TN_API tn__slice tn__layout_slice(const tn_layout *l);

/* Canonical form: layouts of the same elements in the same order become equal; members without a
 * meaning (the pieces of an uncut one) are as in tn__layout_whole. */
TN_API tn_layout tn__layout_plain(const tn_layout *l);
TN_API bool tn__layout_equal(const tn_layout *a, const tn_layout *b); /* of plain ones */

/* The elements from the `here`-th of l on, 0 <= here < l->length, up to the end of their run. */
typedef struct tn__layout_span {
    int64_t whole, here, length; /* begins at element `whole` of the whole, at `here` of l */
} tn__layout_span;
TN_API tn__layout_span tn__layout_run(const tn_layout *l, int64_t here);

/* Elements that two layouts of one whole both have: `length` from the a-th of one and from the b-th
 * of the other on. */
typedef struct tn__common {
    int64_t a, b, length;
} tn__common;

/* Steps to the next run, from zeros at first; false at the end. Both a and b ascend. */
TN_API bool tn__layouts_next(const tn_layout *a, const tn_layout *b, tn__common *c);

#endif
