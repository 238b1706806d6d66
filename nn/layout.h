/* Which elements of a parameter a rank has (tn_layout), as runs: elements that are neighbours both
 * in the flattened whole and here. A layout has its runs in ascending order, so what two layouts
 * have in common is a merge of two sorted lists. Saving, loading onto other ranks and writing whole
 * weights are such merges and nothing else:
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

/* Whether it is valid, for one read from a file or a peer: sizes whose product fits, cuts that
 * divide (with one piece they need not), a range within the block. */
TN_API bool tn__layout_sound(const tn_layout *l);

/* The shape of the block that it is in; for a valid one. */
TN_API tn_dims tn__layout_block(const tn_layout *l);

/* The indices of dimension `dim` of the whole that a block has: of each piece `count`, from `first`
 * on. Slices of one piece that does not divide have ceil(n / slices) each, the last what is left.
 */
typedef struct tn__slice {
    int64_t first, count;
} tn__slice;
TN_API tn__slice tn__layout_slice(const tn_layout *l);

/* Canonical form: two that have the same elements in the same order become equal; what has no
 * meaning (the pieces of an uncut one) is as in tn__layout_whole. */
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

/* Steps to the next of them, zeros at first; false when there is none. Both a and b ascend. */
TN_API bool tn__layouts_next(const tn_layout *a, const tn_layout *b, tn__common *c);

#endif
