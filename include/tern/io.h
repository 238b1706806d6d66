/* Files: safetensors, and checkpoints made of them.
 *
 * A file is written to a temporary name beside its target, synced and renamed: whatever happens, the target is the old file or the new
 * one, whole. Reading trusts nothing: sizes, offsets and names are checked before they are used.
 */
#ifndef TERN_IO_H
#define TERN_IO_H

#include "data.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors: names, shapes, bytes ---------------------------------------------------------------------------------------------- */

typedef struct tn_safetensors tn_safetensors;

/* Maps a file for reading. NULL after TN_EIO or TN_EFORMAT (the message says what is wrong and where). */
TN_API tn_safetensors *tn_safetensors_open(const char *path);
TN_API void tn_safetensors_close(tn_safetensors *f); /* tensors read from it stay valid: they hold the map */

TN_API int tn_safetensors_count(const tn_safetensors *f);
TN_API const char *tn_safetensors_name(const tn_safetensors *f, int i); /* in the order of the file's data */

/* A tensor over the file's mapped pages, private to this process (changes do not reach the file). TN_EVALUE when there is no such name. */
TN_API tn_tensor *tn_safetensors_get(const tn_safetensors *f, const char *name);
TN_API bool tn_safetensors_has(const tn_safetensors *f, const char *name);
TN_API const char *tn_safetensors_metadata(const tn_safetensors *f, const char *key); /* NULL when there is none */

/* What is to be written; tensors are kept until tn_safetensors_write or _discard. */
typedef struct tn_safetensors_writer tn_safetensors_writer;
TN_API tn_safetensors_writer *tn_safetensors_new(void);
TN_API tn_status tn_safetensors_add(tn_safetensors_writer *w, const char *name, tn_tensor *t);
TN_API tn_status tn_safetensors_add_metadata(tn_safetensors_writer *w, const char *key, const char *value);
TN_API tn_status tn_safetensors_write(tn_safetensors_writer *w, const char *path) TN_MUST_USE; /* and frees w */
TN_API void tn_safetensors_discard(tn_safetensors_writer *w);

/* ---- A module's weights ------------------------------------------------------------------------------------------------------------ */

/* Parameters and buffers by name. Load: names and shapes must agree, both ways, and are all checked before the first weight changes; dtypes are
 * converted. `prefix` (may be NULL) is put before each name of the module. */
TN_API tn_status tn_save(void *m, const char *path) TN_MUST_USE;
TN_API tn_status tn_load(void *m, const char *path) TN_MUST_USE;

/* ---- Checkpoints: everything a run needs to go on, bit for bit ------------------------------------------------------------------------ */

/* NULL members are not saved, and must not be in a file that is loaded. */
typedef struct tn_checkpoint {
    void *model; /* a module */
    tn_optim *optim;
    const tn_schedule *schedule; /* load: must be the one that was saved (TN_EMISMATCH) */
    tn_loader *loader;
    tn_generator *generator;
    int64_t step;
    char note[256]; /* the program's own: loss history file, options, … */
} tn_checkpoint;

/* One file with a digest over all of it. Save is atomic. Load checks digest, names, shapes and kinds first; on error nothing has changed. */
TN_API tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path) TN_MUST_USE;
TN_API tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path) TN_MUST_USE;

/* Writes `bytes` to `path` as described at the top of this file. */
TN_API tn_status tn_write_file(const char *path, const void *data, size_t bytes) TN_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
