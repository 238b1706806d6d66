/* Slurm's node lists: "gpu5,n[1-3,07-09],rack[0-1]n[1-4]" is gpu5, n1, n2, n3, n07, … */
#ifndef TERN_DISTRIBUTED_INIT_NODELIST_H
#define TERN_DISTRIBUTED_INIT_NODELIST_H

#include "tern/core.h"

enum { TN__NODES_MOST = 1 << 20 };

/* How many nodes; -1 for what is not a list, or for more than TN__NODES_MOST. */
TN_API int64_t tn__nodelist_count(const char *list);

/* The name of node `index`, in the order of the list; the last of several brackets varies fastest.
 * False when there is no such node, the list is invalid, or the name does not fit into `size`
 * bytes. */
TN_API bool tn__nodelist_name(const char *list, int64_t index, char *name, size_t size);

#endif
