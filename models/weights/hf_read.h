/* One rank's elements of a tensor in a file. */
#ifndef TERN_MODELS_WEIGHTS_HF_READ_H
#define TERN_MODELS_WEIGHTS_HF_READ_H

#include "io/safetensors.h"

/* Reads the elements that `layout` names, in their order and the file's dtype, to `to`. With
 * `transposed` the layout is that of a matrix whose transpose is in the file. False after raising.
 */
TN_API bool tn__hf_read(const tn_safetensors *f, const char *name, const tn_layout *layout,
                        bool transposed, void *to);

#endif
