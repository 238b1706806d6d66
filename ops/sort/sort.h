/* What sorting operations share: keys that compare as PyTorch sorts, and buffers for lines of
 * them. */
#ifndef TERN_OPS_SORT_H
#define TERN_OPS_SORT_H

#include "ops/host.h"

/* An element of a line: a smaller key comes first. */
typedef struct tn__sort_item {
    uint64_t key;
    int64_t index; /* its position in the line */
} tn__sort_item;

/* Lines of x along a dimension, a batch of which has buffers for `items` at a time. */
typedef struct tn__sort_job {
    tn__lines x, y; /* y: i64 */
    bool descending;
    int64_t items;
    tn__sort_item *buffers;
    int64_t first; /* the first buffer's line */
} tn__sort_job;

/* Element k of the line that begins at `at`: keys ascend (descend), 0 equals -0, NaN is the
 * largest. */
tn__sort_item tn__sort_item_of(const tn__sort_job *j, int64_t at, int64_t k);

/* Calls line for each line of the job, in any thread, with the line's buffer. */
typedef void tn__sort_line(const tn__sort_job *j, int64_t line, tn__sort_item *buffer);
tn_status tn__sort_lines(const tn_op_call *c, tn__sort_job *j, tn__sort_line *line);

#endif
