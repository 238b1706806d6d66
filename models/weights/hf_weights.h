/* The weights in a folder: which file has which tensor.
 *
 *     model.safetensors                one file, as Hugging Face keeps it; or else
 *     model.safetensors.index.json     which of several files has what; or else
 *     tern.safetensors                 as tn_save writes it: names and shapes are the module's own
 *
 * All headers are read when the folder is opened: files must have the tensors that the index
 * assigns to them. An index names files beside it: names that contain a '/' or begin with a '.' are
 * refused.
 */
#ifndef TERN_MODELS_WEIGHTS_HF_WEIGHTS_H
#define TERN_MODELS_WEIGHTS_HF_WEIGHTS_H

#include "io/safetensors.h"

#define TN__HF_FILE "model.safetensors"
#define TN__HF_INDEX "model.safetensors.index.json"
#define TN__HF_PLAIN "tern.safetensors"

typedef struct tn__hf_tensor {
    const char *name;
    const tn_safetensors *file;
} tn__hf_tensor;

typedef struct tn__hf_weights {
    char *path; /* of the file or the index, for messages */
    const char *operation;
    bool plain; /* tern.safetensors */
    bool mapped;
    tn_safetensors **files; /* [file_count] */
    int file_count;
    int64_t file_capacity;
    tn__hf_tensor *tensors; /* [count], by name */
    int count;
} tn__hf_weights;

/* False after raising TN_EIO, TN_EFORMAT, TN_ENOMEM; then there is nothing to free. */
bool tn__hf_weights_open(tn__hf_weights *w, const char *folder, bool mapped, const char *operation);
void tn__hf_weights_free(tn__hf_weights *w);

/* The file that has this tensor; NULL: none. */
const tn_safetensors *tn__hf_weights_find(const tn__hf_weights *w, const char *name);

#endif
