/* What tn_save writes besides tensors, for other writers of a module's weights. */
#ifndef TERN_IO_MODULE_H
#define TERN_IO_MODULE_H

#include "tern/io.h"

/* A writer with m's description, and no tensors yet. NULL after raising. */
tn_safetensors_writer *tn__module_writer(void *m, const char *operation);

/* Whether weights of a model with description `theirs`, from the file at `path`, compute the same
 * in m. False after raising the differences. */
bool tn__module_fits(void *m, const char *theirs, const char *path, const char *operation);

#endif
