/* NumPy's files: .npy, one array, and .npz, a ZIP archive of several.
 *
 *     tn_tensor *x = tn_npy_load("x.npy");      // numpy.save("x.npy", x)
 *
 *     tn_npz *f = tn_npz_open("data.npz");      // numpy.savez("data.npz", x=x, y=y)
 *     tn_tensor *y = tn_npz_get(f, "y");
 *     tn_npz_close(f);
 *
 *     tn_npy_save(y, "y.npy");                  // numpy.load("y.npy")
 *
 * dtypes: f4 f8 f2 i8 i4 i1 u1 and b1 are ours; i2 and u2 become i32, u4 becomes i64. Reading
 * takes either byte order and either order of dimensions; writing is little-endian, in row-major
 * order. Objects, records, strings, complex numbers and u8 are TN_EUNSUPPORTED: no pickled Python
 * is ever executed. Nothing in a file is trusted before it is checked; TN_EFORMAT names the place.
 * Names in an archive are flagged as UTF-8, like NumPy's; a name without the flag is taken byte by
 * byte. Of two arrays of one name the last counts, and a .npy file with a second array is
 * TN_EFORMAT.
 *
 * Read next: io/npy/npy.c.
 */
#ifndef TERN_NPY_H
#define TERN_NPY_H

#include "data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* On the CPU. Inert after TN_EIO, TN_EFORMAT, TN_EUNSUPPORTED (more than 8 dimensions too) or
 * TN_ENOMEM. */
TN_API tn_tensor *tn_npy_load(const char *path);
/* TN_EDTYPE: NumPy has no bf16 (cast to f32 first). Written as io.h describes. */
TN_API tn_status tn_npy_save(const tn_tensor *t, const char *path);

/* Reads the archive's table of contents; each array, stored or compressed, is read when asked for.
 * NULL after an error; TN_EUNSUPPORTED: 4 GiB or more. */
typedef struct tn_npz tn_npz;
TN_API tn_npz *tn_npz_open(const char *path);
TN_API void tn_npz_close(tn_npz *f); /* NULL is fine */
TN_API int tn_npz_count(const tn_npz *f);
TN_API const char *tn_npz_name(const tn_npz *f, int i); /* "x" for x.npy; NULL out of range */
TN_API tn_tensor *tn_npz_get(const tn_npz *f, const char *name); /* TN_EVALUE: there is none */

/* n arrays under these names, like numpy.savez or savez_compressed. TN_EVALUE: a repeated name, or
 * one that is empty or too long; TN_EUNSUPPORTED: 4 GiB or more. */
TN_API tn_status tn_npz_save(const char *const *names, tn_tensor *const *tensors, int n,
                             const char *path, bool compressed);

/* ---- Datasets -------------------------------------------------------------------------------- */

/* Rows of x (n, …) and y (n, …; y_path may be NULL) from .npy files, as with numpy.load(path,
 * mmap_mode="r"): rows are read when asked for, so the files may be larger than memory, and any
 * number of threads share one copy. dtypes are converted as above. The files stay open; a row that
 * is gone because the file was truncated is TN_EIO, and one that was changed is read as it is now.
 * The digest is over size, beginning, end and some pages between.
 *
 * NULL after TN_ESHAPE: no dimensions, or different numbers of rows; TN_EUNSUPPORTED, as for
 * fortran_order, whose rows are not contiguous; TN_EIO, TN_EFORMAT. */
TN_API tn_dataset *tn_npy_dataset(const char *x_path, const char *y_path);

/* The same for two arrays in an archive, by name (y may be NULL); they are kept in memory. */
TN_API tn_dataset *tn_npz_dataset(const char *path, const char *x, const char *y);

#ifdef __cplusplus
}
#endif
#endif
