/* What may travel instead of the plain bucket: hooks for tn_ddp_options.hook.
 *
 * A hook returns the work of the operation. When its tensor is another one than the bucket, as
 * here, it is cast into the bucket once it has arrived. */
#include "distributed/parallel/ddp.h"

tn_work *tn_ddp_bf16(tn_group *g, tn_tensor *bucket, tn_reduction how, void *user) {
    (void)user;
    return tn_all_reduce(g, tn_cast(bucket, TN_BF16), how);
}
