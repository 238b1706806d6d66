/* Batch norm over all ranks: the sums for its statistics are over a group.
 *
 * Sums are the differentiable all-reduce, so each rank's gradient includes its effect through the
 * others' statistics. Ranks may have different numbers of samples: these are summed too.
 */
#include "tern/parallel.h"

static tn_tensor *total_of_group(tn_tensor *x, void *group) {
    return tn_dist_all_reduce(group, x);
}

tn_status tn_sync_batch_norm(void *m, tn_group *g) {
    return tn_batch_norm_share(m, total_of_group, g);
}
