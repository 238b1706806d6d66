/* Files: safetensors, and checkpoints made of them.
 *
 * Writing: the bytes go to PATH.tmp beside the target, are synced and read back, and the name is
 * changed when they are what was to be written. Whatever happens, a full disk, no memory or a
 * killed process, the target is the old file or the new one, whole. What a killed process left
 * behind is used up by the next save; a second process that saves to the same path at the same time
 * gets an error. A file that is replaced keeps its mode, and its owner where that is allowed; what
 * is no regular file is not replaced. A symbolic link to a file becomes a file, and where it led is
 * not touched. Reading back has its price: saving a large file takes a quarter to three quarters
 * longer than without.
 *
 * Reading trusts nothing: sizes, offsets, names and numbers are checked before they are used, and
 * what is loaded is checked completely before the first weight changes.
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
 * Headers of more than 16 MiB are not read. Another file may be renamed over it while it is open,
 * as writing here does. */
TN_API tn_safetensors *tn_safetensors_open(const char *path);

/* The same, but the file is mapped, and tn_safetensors_get gives views of it: nothing is copied,
 * and processes that map one file share its memory. Writing to such a tensor, as an optimiser does,
 * is allowed: the pages that are written to become this process's own, the file stays as it is, and
 * other tensors that were got under the same name see the change. A tensor whose place in the file
 * does not suit its dtype is a copy all the same.
 *
 * The file has to stay as long as one of its tensors does. To rename another over it, as writing
 * here does, or to remove it, is fine; who writes to it in place changes what is read, and who cuts
 * it short kills every process (SIGBUS) that touches what is no more. */
TN_API tn_safetensors *tn_safetensors_map(const char *path);

/* tensors got from it stay valid */
TN_API void tn_safetensors_close(tn_safetensors *f);

TN_API int tn_safetensors_count(const tn_safetensors *f);
/* in the order of the file's data; NULL outside */
TN_API const char *tn_safetensors_name(const tn_safetensors *f, int i);
TN_API bool tn_safetensors_has(const tn_safetensors *f, const char *name);
/* NULL when there is none */
TN_API const char *tn_safetensors_metadata(const tn_safetensors *f, const char *key);

/* What the header says of a tensor: its shape, and its dtype as the format names it ("F32",
 * "F8_E4M3"). TN_EVALUE when there is no such name. */
TN_API tn_dims tn_safetensors_shape(const tn_safetensors *f, const char *name);
TN_API const char *tn_safetensors_dtype(const tn_safetensors *f, const char *name);

/* Reads one tensor into its own memory: later changes of the file do not affect it. (Of a mapped
 * file: a view.) A file that was cut short since it was opened is TN_EIO. TN_EVALUE when there is
 * no such name, TN_EUNSUPPORTED when we have no such dtype; the file's other tensors can be read
 * all the same. */
TN_API tn_tensor *tn_safetensors_get(const tn_safetensors *f, const char *name);

/* What is to be written. Tensors are kept, and read when tn_safetensors_writer_save is called. A
 * name used twice is TN_EVALUE. What could not be added would be missing in the file, so after such
 * an error tn_safetensors_writer_save is TN_ESTATE, even when the error was cleared. The file is
 * laid out as the reference implementation does it: wider dtypes first, then by name. */
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

/* Parameters and buffers by name; tied ones once. Load: the names must be the same on both sides
 * and so must the shapes (TN_EMISMATCH, TN_ESHAPE: nothing has changed); dtypes are converted. m: a
 * struct that begins with a tn_module.
 *
 * The file also has the modules' options (tn_module.fields), as JSON under the key `model`. Load
 * compares those with which trained weights compute: with other heads, or another activation, they
 * are worth nothing, and no shape tells. An option that both sides have in modules of the same path
 * and kind must be the same (TN_EMISMATCH). Dropout and precision may differ, and so may kinds:
 * weights are put to other uses. For more than that, make the module as it was, load, and change
 * its fields. Files from elsewhere have no such text, and nothing is compared. */
TN_API tn_status tn_save(void *m, const char *path);
TN_API tn_status tn_load(void *m, const char *path);

/* ---- Checkpoints: everything a run needs to go on, bit for bit ------------------------------- */

/* What a checkpoint holds; NULL members are left out. Loading fills the same members: model, optim,
 * loader, generator, scaler, plateau and average are objects made with the same options as before,
 * and get the state that was saved; step and note are results.
 *
 * A file also says which run it is of, and loading compares: kind and options of every module and
 * its policy of precision, options of the optimiser and the scaler, the schedule, the data (kind,
 * size, examples, digest: data.h) and how the loader draws from them. What differs is TN_EMISMATCH,
 * which names it: "h.0.attn: heads was 4 but is 8". Device, threads and the number of ranks may
 * change; learning rate and weight decays are state, and become those of the file. Without an
 * optimiser nothing is trained on: then the model is compared as tn_load does it. */
typedef struct tn_checkpoint {
    void *model;                 /* a module */
    tn_optim *optim;             /* state, step count, learning rate, groups */
    const tn_schedule *schedule; /* has no state: it is compared */
    tn_loader *loader;           /* the next batch */
    tn_generator *generator;     /* usually tn_default_generator() */
    tn_scaler *scaler;           /* its scale and streak */
    tn_plateau *plateau;         /* its state */
    tn_average *average;         /* of weights, and its count of updates */
    int64_t step;                /* steps done, from 0 on */
    char note[256];              /* the program's own */
    /* load: what the file has beyond these members is ignored, otherwise TN_EMISMATCH */
    bool partial;
    /* load: go on although it is another run. Each difference is logged as a warning (tn_log_to,
     * TERN_LOG=warn), and what is saved next is the program's. Still an error: what does not fit
     * (names, shapes, dtypes, kind and groups of the optimiser). A place that other data have not
     * becomes the beginning of its epoch. */
    bool other_run;
    /* load, unless NULL: the schedule may have become longer, its warm-up too, and be the same
     * otherwise. Gets the number of steps that it had. */
    int64_t *longer_than;
    /* load, unless NULL: gets how many examples a batch of all ranks had; 0: no loader was saved */
    int64_t *batch_before;
} tn_checkpoint;

/* One safetensors file: model.NAME, optim.NAME, average.NAME, the rest as metadata, and a digest
 * (XXH3, 128 bits) over the whole. Load reads the whole file into memory and checks digest, names,
 * shapes, dtypes and kinds first: after an error nothing has changed. */
TN_API tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path);
TN_API tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path);

/* ---- Any file -------------------------------------------------------------------------------- */

/* Writes `bytes` to `path` as described at the top. */
TN_API tn_status tn_write_file(const char *path, const void *data, size_t bytes);

/* images (N, C, H, W), numbers of any dtype from 0 (black) to 1, C 1 (grey) or 3 (red, green,
 * blue), as one PNG file: `columns` of them side by side, 2 pixels apart. What is outside [0, 1] is
 * cut off. TN_ESHAPE, TN_EVALUE, TN_EIO. */
TN_API tn_status tn_save_image(tn_tensor *images, const char *path, int columns);

#ifdef __cplusplus
}
#endif
#endif
