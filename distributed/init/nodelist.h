/* Slurm's node lists: "gpu5,n[1-3,07-09],rack[0-1]n[1-4]" is gpu5, n1, n2, n3, n07, … */
#ifndef TERN_DISTRIBUTED_INIT_NODELIST_H
#define TERN_DISTRIBUTED_INIT_NODELIST_H

#include "tern/core.h"

/* The name of the first node, and whether there are more. False when it is not a list, or the name
 * does not fit into `size` bytes. */
TN_API bool tn__nodelist_first(const char *list, char *name, size_t size, bool *several);

#endif
