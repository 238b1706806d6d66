/* What the kernels of operations along one dimension read: cumsum and cumprod (ops/reduce/),
 * argsort and topk (ops/sort/). A negative dim counts from the end; a 0-dimensional x is one line
 * of one. */
#ifndef TERN_BACKENDS_LINES_H
#define TERN_BACKENDS_LINES_H

#include "tern/sys/backend.h"

typedef struct tn__cumulative_args {
    int dim;
    bool reverse; /* from the last element to the first */
} tn__cumulative_args;

typedef struct tn__argsort_args {
    int dim;
    bool descending;
} tn__argsort_args;

typedef struct tn__topk_args {
    int64_t k;
    int dim;
    bool largest;
} tn__topk_args;

#endif
