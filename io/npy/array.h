/* One NumPy array, as in a .npy file or in an archive. */
#ifndef TERN_IO_NPY_ARRAY_H
#define TERN_IO_NPY_ARRAY_H

#include "tern/tensor.h"

/* The header before an array's elements. */
typedef struct tn__npy_about {
    tn_dims dims;
    tn_dtype dtype; /* ours */
    size_t begin;   /* of the elements, in bytes */
    size_t each;    /* bytes of an element in the file */
    bool sign, big, fortran;
} tn__npy_about;

/* The number of bytes before the elements, from the first TN__NPY_FIRST bytes (or all, if there are
 * fewer). 0 after raising. */
enum { TN__NPY_FIRST = 12 };
size_t tn__npy_before(const unsigned char *at, size_t all, const char *what, const char *operation);

/* Parses the header in these bytes, for an array of `all` bytes in total. False after raising, also
 * if the rest does not fit the shape. */
bool tn__npy_look(const unsigned char *at, size_t before, size_t all, tn__npy_about *a,
                  const char *what, const char *operation);

/* Converts `count` of the file's elements to our dtype. */
void tn__npy_convert(const tn__npy_about *a, const unsigned char *from, size_t count, void *to);

/* The array in these bytes, all of them; `what` names it in errors. Inert after raising. */
tn_tensor *tn__npy_read(const unsigned char *at, size_t bytes, const char *what,
                        const char *operation);

/* Writes the header before the elements: at most TN__NPY_HEAD bytes. 0 after raising TN_EDTYPE. */
enum { TN__NPY_HEAD = 320 };
size_t tn__npy_head(const tn_tensor *t, unsigned char *head, const char *what,
                    const char *operation);

#endif
