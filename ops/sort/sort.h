/* What sorting operations share: keys that compare as PyTorch sorts, and buffers for lines of
 * them. */
#ifndef TERN_OPS_SORT_H
#define TERN_OPS_SORT_H

#include "backends/lines.h"
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

static inline uint64_t tn__float_key(double value) {
    union {
        double d;
        uint64_t u;
    } bits = {.d = value + 0.0}; /* -0 becomes 0 */
    uint64_t sign = UINT64_C(1) << 63;
    return value != value ? UINT64_MAX : bits.u & sign ? ~bits.u : bits.u | sign;
}

static inline int64_t tn__integer_at(const void *data, tn_dtype dtype, int64_t at) {
    switch (dtype) {
    case TN_I64:
        return ((const int64_t *)data)[at];
    case TN_I32:
        return ((const int32_t *)data)[at];
    case TN_I8:
        return ((const int8_t *)data)[at];
    default: /* u8 and bool */
        return ((const uint8_t *)data)[at];
    }
}

/* Element k of the line that begins at `at`: keys ascend (descend), 0 equals -0, NaN is the
 * largest. `dtype` is j->x.dtype, a constant in a loop that should be fast. */
static inline tn__sort_item tn__sort_item_of(const tn__sort_job *j, tn_dtype dtype, int64_t at,
                                             int64_t k) {
    int64_t place = at + k * j->x.step;
    uint64_t key = dtype == TN_F32 || dtype == TN_F64
                       ? tn__float_key(tn__host_load(j->x.data, dtype, place))
                       : (uint64_t)tn__integer_at(j->x.data, dtype, place) ^ UINT64_C(1) << 63;
    return (tn__sort_item){j->descending ? ~key : key, k};
}

/* Calls line for each line of the job, in any thread, with the line's buffer. */
typedef void tn__sort_line(const tn__sort_job *j, int64_t line, tn__sort_item *buffer);
tn_status tn__sort_lines(const tn_op_call *c, tn__sort_job *j, tn__sort_line *line);

#endif
