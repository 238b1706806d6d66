/* NumPy's files: .npy, one array, and .npz, a ZIP archive of several.
 *
 *     tn_tensor *x = tn_npy_load("x.npy");                       // numpy.save("x.npy", x)
 *
 *     tn_npz *f = tn_npz_open("data.npz");                       // numpy.savez("data.npz", x=x,
 * y=y) tn_tensor *y = tn_npz_get(f, "y"); tn_npz_close(f);
 *
 *     tn_npy_save("y.npy", y);                                   // numpy.load("y.npy")
 *
 * dtypes: f4 f8 f2 i8 i4 i1 u1 and bool are ours; i2 and u2 become i32, u4 becomes i64. Either byte
 * order and either order of dimensions is read; written is little-endian, in row-major order.
 * Objects, texts, complex numbers and u8 are TN_EUNSUPPORTED: nothing of Python's is ever executed.
 * A file is believed in nothing before it is checked; TN_EFORMAT names the place. Names in an
 * archive are UTF-8, and say so, as NumPy's do; a name that does not is taken byte by byte.
 *
 * Read next: io/npy/npy.c.
 */
#ifndef TERN_NPY_H
#define TERN_NPY_H

#include "data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* On the CPU. Inert after TN_EIO, TN_EFORMAT, TN_EUNSUPPORTED (also of more than 8 dimensions) or
 * TN_ENOMEM. */
TN_API tn_tensor *tn_npy_load(const char *path);
/* TN_EDTYPE: NumPy has no bf16 (tn_cast to f32 does). Written as io.h says. */
TN_API tn_status tn_npy_save(const char *path, const tn_tensor *t);

/* Reads the archive's contents, stored or compressed; arrays when they are asked for. NULL after an
 * error. */
typedef struct tn_npz tn_npz;
TN_API tn_npz *tn_npz_open(const char *path);
TN_API void tn_npz_close(tn_npz *f); /* NULL is fine */
TN_API int tn_npz_count(const tn_npz *f);
TN_API const char *tn_npz_name(const tn_npz *f, int i);          /* "x", of x.npy; NULL outside */
TN_API tn_tensor *tn_npz_get(const tn_npz *f, const char *name); /* TN_EVALUE: there is none */

/* n arrays under these names, as numpy.savez, or savez_compressed. TN_EVALUE: a name twice, or one
 * that is empty or too long; TN_EUNSUPPORTED: 4 GiB and more. */
TN_API tn_status tn_npz_save(const char *path, const char *const *names, tn_tensor *const *tensors,
                             int n, bool compressed);

/* ---- Datasets -------------------------------------------------------------------------------- */

/* Rows of x (n, …) and y (n, …; y_path may be NULL) from .npy files, as numpy.load(path,
 * mmap_mode="r") has them: read when they are asked for, so that the files may be larger than
 * memory, and any number of threads share one copy. dtypes become as above. The files stay open; a
 * row that is no longer there, because the file was cut short, is TN_EIO, and one that was changed
 * is read as it is now. The digest is over size, beginning, end and some pages between.
 *
 * NULL after TN_ESHAPE: no dimensions, or other numbers of rows; TN_EUNSUPPORTED, also for
 * fortran_order, where rows are in no one place; TN_EIO, TN_EFORMAT. */
TN_API tn_dataset *tn_npy_dataset(const char *x_path, const char *y_path);

/* The same of two arrays in an archive, by name (y may be NULL), which are in memory. */
TN_API tn_dataset *tn_npz_dataset(const char *path, const char *x, const char *y);

#ifdef __cplusplus
}
#endif
#endif
