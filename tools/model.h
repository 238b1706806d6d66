/* The model of `tern eval` and `tern generate`: a folder, on one rank or on those of a mesh. */
#ifndef TERN_TOOLS_MODEL_H
#define TERN_TOOLS_MODEL_H

#include <tern/tern.h>

/* The choices of --dtype, for tn_option.choices; below 0: as in the files. */
extern const char *const model_dtypes[];

/* Loads the folder. mesh, of tn_spread_read: every rank of world gets its part, which is all that
 * it reads, and *spread is to be freed after the model; NULL: this process gets all of it. NULL
 * after an error. */
tn_module *model_load(const char *folder, int dtype, const char *mesh, tn_group *world,
                      tn_spread **spread);

#endif
