/* Tensors one after the other in one flat buffer. Each begins at a cache line. Offsets count
 * elements, so that buffers of other dtypes can be laid out alike; graphs see views of a buffer
 * (tn_alias), never the buffer. */
#ifndef TERN_DISTRIBUTED_PARALLEL_FLAT_H
#define TERN_DISTRIBUTED_PARALLEL_FLAT_H

#include "tern/tensor.h"

/* The elements that fill a cache line, 64 bytes. */
TN_API int64_t tn__flat_line(tn_dtype dtype);

/* Reserves `count` elements after the *total elements in use: returns where they begin. Adds whole
 * lines of `line` elements to *total. */
TN_API int64_t tn__flat_place(int64_t *total, int64_t count, int64_t line);

/* A buffer of at least `total` elements is split into N equal parts of whole lines, one per rank.
 * Returns the elements of a part; rank r's begin at r times this. */
TN_API int64_t tn__flat_each(int64_t total, int ranks, int64_t line);

/* The overlap of rank r's part with a tensor of `count` elements that begins at `offset`. */
typedef struct tn__flat_cut {
    int64_t start, length; /* in the flattened tensor; 0 and 0: nothing */
    int64_t at;            /* where they are in the part */
} tn__flat_cut;
TN_API tn__flat_cut tn__flat_cut_of(int64_t offset, int64_t count, int64_t each, int rank);

#endif
