/* What the kernels of linear_cat (ops/linalg/linear_cat.c) and, on a GPU, of linear_q8 are for. */
#ifndef TERN_BACKENDS_FEW_ROWS_H
#define TERN_BACKENDS_FEW_ROWS_H

#define TN__FEW_ROWS 8 /* of x, at most: then reading the weights takes the time */

#endif
