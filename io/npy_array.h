/* One array of NumPy's, as it lies in a .npy file or in an archive. */
#ifndef TERN_IO_NPY_ARRAY_H
#define TERN_IO_NPY_ARRAY_H

#include "tern/tensor.h"

/* The array in these bytes, all of them; `what` names it in errors. Inert after raising. */
tn_tensor *tn__npy_read(const unsigned char *at, size_t bytes, const char *what,
                        const char *operation);

/* What stands before the elements: at most TN__NPY_HEAD bytes. 0 after raising TN_EDTYPE. */
enum { TN__NPY_HEAD = 320 };
size_t tn__npy_head(const tn_tensor *t, unsigned char *head, const char *what,
                    const char *operation);

#endif
