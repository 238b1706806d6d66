/* A few values of each rank (values.h). */
#include "distributed/group/values.h"

#include "distributed/on_cpu.h"
#include "tern/sys/tensor.h"

/* What was refused has no work, and has failed even if a handler has cleared the error. */
static tn_status wait_for(const tn_group *g, tn_work *w) {
    bool refused = !w && tn_group_size(g) > 1;
    tn_status status = tn_work_wait(w, 0);
    return refused && status == TN_OK ? TN_ESTATE : status;
}

tn_status tn__reduce_values(tn_group *g, void *values, int64_t n, tn_dtype dtype,
                            tn_reduction how) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *t = tn_from_data(values, TN_DIMS(n), dtype);
    tn_status status = wait_for(g, tn_all_reduce(g, t, how));
    return status == TN_OK ? tn_copy_out(t, values) : status;
}

tn_status tn__broadcast_values(tn_group *g, void *values, int64_t n, tn_dtype dtype, int root) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *t = tn_from_data(values, TN_DIMS(n), dtype);
    tn_status status = wait_for(g, tn_broadcast(g, t, root));
    return status == TN_OK ? tn_copy_out(t, values) : status;
}

tn_status tn__gather_values(tn_group *g, const void *mine, int64_t n, tn_dtype dtype, void *all) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *one = tn_from_data(mine, TN_DIMS(n), dtype);
    tn_tensor *every = tn_empty(TN_DIMS(tn_group_size(g), n), dtype);
    tn_status status = wait_for(g, tn_all_gather(g, every, one));
    return status == TN_OK ? tn_copy_out(every, all) : status;
}
