/* A few values of each rank, in memory of the program. Tensors on the CPU carry them, whatever the
 * default device is. All ranks of a group call; values stay as they are after an error, which is
 * raised and returned. */
#ifndef TERN_DISTRIBUTED_GROUP_VALUES_H
#define TERN_DISTRIBUTED_GROUP_VALUES_H

#include "tern/distributed.h"

/* values[n] become the reduction of all ranks', or those of rank `root`. */
tn_status tn__reduce_values(tn_group *g, void *values, int64_t n, tn_dtype dtype, tn_reduction how);
tn_status tn__broadcast_values(tn_group *g, void *values, int64_t n, tn_dtype dtype, int root);
/* all[ranks][n]: everyone's, rank 0's first. */
tn_status tn__gather_values(tn_group *g, const void *mine, int64_t n, tn_dtype dtype, void *all);

#endif
