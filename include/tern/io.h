/* Files: safetensors, and checkpoints made of them.
 *
 * Writing: the bytes go to PATH.tmp beside the target, are synced and read back, and the file is
 * renamed if they are right. Whatever happens (a full disk, no memory, a killed process), the
 * target is the old file or the new one, whole. The next save reuses what a killed process left
 * behind; a second process that saves to the same path at the same time gets an error. A file that
 * is replaced keeps its mode, and its owner if that is allowed; only regular files are replaced. A
 * symbolic link to a file becomes a file, and its target is not touched. Reading back has its
 * price: saving a large file takes a quarter to three quarters longer.
 *
 * Reading trusts nothing: sizes, offsets, names and numbers are checked before they are used, and
 * everything is checked before the first weight changes.
 *
 * Read next: io/safetensors.c, core/file.c, io/checkpoint/checkpoint.c.
 */
#ifndef TERN_IO_H
#define TERN_IO_H

#include "data.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors: names, shapes, bytes (huggingface.co/docs/safetensors) --------------------- */

typedef struct tn_safetensors tn_safetensors;

/* Opens a file and reads its header. NULL after TN_EIO, or TN_EFORMAT with what is wrong and where.
 * Headers of more than 16 MiB are not read. While it is open another file may be renamed over it,
 * as the writers here do. */
TN_API tn_safetensors *tn_safetensors_open(const char *path);

/* The same, but the file is mapped, and tn_safetensors_get gives views of it: nothing is copied,
 * and processes that map one file share its memory. Writing to such a tensor, as an optimiser does,
 * is allowed: the pages written to become private to this process, the file does not change, and
 * other tensors obtained under the same name see the change. A tensor that is not aligned for its
 * dtype in the file is a copy all the same.
 *
 * The file must remain as long as one of its tensors does. Renaming another over it, as the writers
 * here do, or removing it is fine. Writing to it in place changes what is read, and truncating it
 * kills every process that touches the missing part (SIGBUS). */
TN_API tn_safetensors *tn_safetensors_map(const char *path);

/* tensors obtained from it stay valid */
TN_API void tn_safetensors_close(tn_safetensors *f);

TN_API int tn_safetensors_count(const tn_safetensors *f);
/* in the order of the file's data; NULL out of range */
TN_API const char *tn_safetensors_name(const tn_safetensors *f, int i);
TN_API bool tn_safetensors_has(const tn_safetensors *f, const char *name);
/* NULL if there is none */
TN_API const char *tn_safetensors_metadata(const tn_safetensors *f, const char *key);

/* What the header says about a tensor: its shape, and its dtype as the format names it ("F32",
 * "F8_E4M3"). TN_EVALUE if there is no such name; TN_EUNSUPPORTED for a shape of more than 8
 * dimensions, which is then (). */
TN_API tn_dims tn_safetensors_shape(const tn_safetensors *f, const char *name);
TN_API const char *tn_safetensors_dtype(const tn_safetensors *f, const char *name);

/* Reads one tensor into its own memory: later changes of the file do not affect it. (From a mapped
 * file: a view.) A file truncated since it was opened is TN_EIO. TN_EVALUE if there is no such
 * name, TN_EUNSUPPORTED if Tern has no such dtype or the tensor has more than 8 dimensions; the
 * file's other tensors can still be read. */
TN_API tn_tensor *tn_safetensors_get(const tn_safetensors *f, const char *name);

/* A file to be written. Tensors are kept, and read when tn_safetensors_writer_save is called, for
 * which a name used twice is TN_EVALUE. A tensor that could not be added would be missing from the
 * file, so after such an error tn_safetensors_writer_save is TN_ESTATE, even if the error was
 * cleared. The file is laid out like the reference implementation's: wider dtypes first, then by
 * name. */
typedef struct tn_safetensors_writer tn_safetensors_writer;
/* NULL after TN_ENOMEM; the calls below then do nothing */
TN_API tn_safetensors_writer *tn_safetensors_writer_new(void);
TN_API tn_status tn_safetensors_writer_add(tn_safetensors_writer *w, const char *name,
                                           tn_tensor *t);
TN_API tn_status tn_safetensors_writer_add_metadata(tn_safetensors_writer *w, const char *key,
                                                    const char *value);
/* frees w in any case */
TN_API tn_status tn_safetensors_writer_save(tn_safetensors_writer *w, const char *path);
TN_API void tn_safetensors_writer_free(tn_safetensors_writer *w);

/* ---- A module's weights ---------------------------------------------------------------------- */

/* Parameters and buffers by name; tied ones once. Load: names and shapes must be the same on both
 * sides (TN_EMISMATCH, TN_ESHAPE: nothing has changed); dtypes are converted, but a finite number
 * that would become infinite is TN_EVALUE. m: a struct that begins with a tn_module.
 *
 * The file also has the modules' options (tn_module.fields), as JSON under the key `model`. Load
 * compares those that trained weights depend on: with another number of heads, or another
 * activation, they are worthless, and no shape would show it. An option that both sides have in
 * modules of the same path and kind must be the same (TN_EMISMATCH). Dropout and precision may
 * differ, and so may kinds: weights are put to other uses. To change more than that, make the
 * module as it was, load, and change its fields. Files from elsewhere have no such key, and nothing
 * is compared. */
TN_API tn_status tn_save(void *m, const char *path);
TN_API tn_status tn_load(void *m, const char *path);

/* ---- Checkpoints: everything a run needs to continue, bit for bit ---------------------------- */

/* What a checkpoint holds; NULL members are left out. Loading fills the same members: model, optim,
 * loader, generator, scaler, plateau and average are objects made with the same options as before,
 * and get the saved state; step and note are results.
 *
 * A file also identifies its run, and loading compares: kind, options and precision policy of every
 * module, options of the optimiser and the scaler, the schedule, the data (kind, size, examples,
 * digest: data.h) and how the loader draws from them. A difference is TN_EMISMATCH and named:
 * "h.0.attn: heads was 4 but is 8". Device, threads and the number of ranks may change; learning
 * rate and weight decays are state, and are taken from the file. Without an optimiser there is no
 * training to continue: then the model is compared as by tn_load. */
typedef struct tn_checkpoint {
    void *model;                 /* a module */
    tn_optim *optim;             /* state, step count, learning rate, groups */
    const tn_schedule *schedule; /* has no state; only compared */
    tn_loader *loader;           /* the next batch */
    tn_generator *generator;     /* usually tn_default_generator() */
    tn_scaler *scaler;           /* its scale and streak */
    tn_plateau *plateau;         /* its state */
    tn_average *average;         /* the average of the weights, and its number of updates */
    int64_t step;                /* steps done, from 0 on */
    char note[256];              /* for the program */
    /* load: true: ignore what the file has beyond these members; false: TN_EMISMATCH */
    bool partial;
    /* load: continue although it is another run. Each difference is logged as a warning (tn_log_to,
     * TERN_LOG=warn), and the next save has the program's values. What does not fit (names, shapes,
     * dtypes, kind and groups of the optimiser) is still an error. A loader's place that the other
     * data do not have becomes the beginning of its epoch. */
    bool other_run;
    /* load, unless NULL: the schedule and its warm-up may have become longer, but nothing else.
     * Receives the number of steps it had. */
    int64_t *longer_than;
    /* load, unless NULL: receives how many examples a batch of all ranks had; 0: no loader was
     * saved */
    int64_t *batch_before;
} tn_checkpoint;

/* One safetensors file: model.NAME, optim.NAME, average.NAME, the rest as metadata, and a digest
 * (XXH3, 128 bits) of the whole. Load reads the whole file into memory and checks digest, names,
 * shapes, dtypes and kinds first: after an error nothing has changed. */
TN_API tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path);
TN_API tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path);

/* ---- Other files ----------------------------------------------------------------------------- */

/* Writes `bytes` bytes to `path` as described at the top. */
TN_API tn_status tn_write_file(const void *data, size_t bytes, const char *path);

/* images (N, C, H, W), of any dtype, from 0 (black) to 1, C 1 (grey) or 3 (red, green, blue), as
 * one PNG file: `columns` of them side by side, 2 pixels apart. Values outside [0, 1] are clamped.
 * TN_ESHAPE, TN_EVALUE, TN_EIO. */
TN_API tn_status tn_save_image(tn_tensor *images, const char *path, int columns);

#ifdef __cplusplus
}
#endif
#endif
