/* What the reader and the writer of safetensors share: the format's dtype names, and our digest.
 *
 * A file: 8 bytes, the length of the header as a little-endian number; the header, JSON; the data.
 * The header maps each name to dtype, shape and data_offsets (from, to; counted from the end of the
 * header), and `__metadata__` to strings.
 *
 * A file with a digest has it as the first piece of metadata, so it is at a fixed position: the
 * header begins with TN__DIGEST_BEFORE and 32 hexadecimal digits. They are XXH3's 128 bits over the
 * whole file with '0' in their place.
 */
#ifndef TERN_IO_SAFETENSORS_H
#define TERN_IO_SAFETENSORS_H

#include "core/digest.h"
#include "tern/io.h"
#include "text/json.h"
#include "text/json_write.h"

#define TN__HEADER_MOST ((size_t)16 << 20) /* a JSON parser takes up to 80 times that */
#define TN__DIGEST_BEFORE "{\"__metadata__\":{\"digest\":\""
enum { TN__DIGEST_AT = 8 + sizeof(TN__DIGEST_BEFORE) - 1 };

const char *tn__safetensors_dtype_name(tn_dtype dtype); /* "F32" */
/* Its place among the dtypes: the reference implementation's order, wider ones first. */
int tn__safetensors_place(tn_dtype dtype);

/* Like tn_safetensors_writer_save, with or without a digest: w is freed in any case, and after an
 * error nothing is written. */
tn_status tn__safetensors_write(tn_safetensors_writer *w, const char *path, bool digest,
                                const char *operation);

/* Makes a tensor when its turn in the file comes: of the announced shape and dtype, on any device.
 * Called within a scope, in the file's order, and not again after an error. */
typedef tn_tensor *tn__late_tensor(const char *name, void *user);
tn_status tn__safetensors_writer_add_late(tn_safetensors_writer *w, const char *name, tn_dims dims,
                                          tn_dtype dtype, tn__late_tensor *make, void *user);

/* The dtype with this name in the format; false: we do not have it. */
bool tn__safetensors_find_dtype(const char *name, tn_dtype *dtype);

/* Reads `bytes` of the tensor's data from byte `at` on, which must exist, unconverted. An invalid
 * bool is TN_EFORMAT. False after raising. */
bool tn__safetensors_read(const tn_safetensors *f, const char *name, size_t at, void *to,
                          size_t bytes);

/* Reads the elements that `layout` names, in their order. False after raising. */
bool tn__safetensors_read_layout(const tn_safetensors *f, const char *name, const tn_layout *layout,
                                 void *to);

/* Whether the file has a correct digest. False after raising, TN_EFORMAT if not. Reads the whole
 * file, through a small buffer. */
bool tn__safetensors_check_digest(const tn_safetensors *f, const char *operation);
/* The digest of a file that has a correct one: TN__DIGEST_DIGITS characters. */
const char *tn__safetensors_digest(const tn_safetensors *f);

/* Like tn_safetensors_open for a file with these bytes, called `path` in messages. They are lent
 * until the last tensor read from them is gone. */
tn_safetensors *tn__safetensors_over(const char *path, void *data, size_t bytes);

const char *tn__safetensors_path(const tn_safetensors *f);
int64_t tn__safetensors_bytes(const tn_safetensors *f);            /* of the whole file */
const tn__json *tn__safetensors_metadata(const tn_safetensors *f); /* NULL: none */

/* Of an existing tensor's data. */
size_t tn__safetensors_tensor_bytes(const tn_safetensors *f, const char *name);

#endif
