/* Datasets of rows in memory, as tn_tensor_dataset makes them, from what was read of files. */
#ifndef TERN_DATA_ROWS_H
#define TERN_DATA_ROWS_H

#include "tern/data.h"

/* The block whose address is in `block` (any T **) as a tensor, which frees it; *block is NULL
 * then. Inert after raising: it stays the caller's. */
tn_tensor *tn__rows_adopt(void *block, tn_dims dims, tn_dtype dtype);

/* Rows of x and y (may be NULL), with the names of classes (NULL after the last; NULL: none), which
 * are copied. An x of u8 is pictures: f32 in [0, 1]; a y of u8 is classes: i64. NULL after
 * raising. */
tn_dataset *tn__rows_dataset(const char *kind, tn_tensor *x, tn_tensor *y,
                             const char *const *classes);

#endif
