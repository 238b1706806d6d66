/* What tn_save writes besides tensors, for others that write a module's weights. */
#ifndef TERN_IO_MODULE_H
#define TERN_IO_MODULE_H

#include "tern/io.h"

/* A writer that says what m is made of, and has no tensors yet. NULL after raising. */
tn_safetensors_writer *tn__module_writer(void *m, const char *operation);

/* Whether weights of a model that is made of `theirs`, from the file at `path`, compute the same in
 * m. False after raising what differs. */
bool tn__module_fits(void *m, const char *theirs, const char *path, const char *operation);

#endif
