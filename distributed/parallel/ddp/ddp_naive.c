/* Data parallelism at its plainest: what ddp.c does, without what makes it fast.
 *
 * Every rank has the same module and sees its own batch. The gradient of the whole batch is the
 * mean of the ranks' gradients. So: at the start all take rank 0's parameters; before the first
 * forward of a step, its buffers; after each backward every gradient is replaced by its mean over
 * the ranks. Then all optimisers take the same step, and the parameters stay equal.
 *
 * This is slow: backward and sending do not overlap, and each small gradient is sent alone. ddp.c
 * fixes both, with buckets. tn__parallel_rules (base.h) says who calls these functions.
 */
#include "distributed/group/agree.h"
#include "distributed/parallel/base.h"

static bool average_grad(const tn_entry *entry, void *user) {
    const tn__parallel *p = user;
    tn_tensor *leaf = *entry->field;
    return !tn_requires_grad(leaf) ||
           tn__parallel_wait(tn_all_reduce(p->group, tn_grad_of(leaf), TN_MEAN)) == TN_OK;
}

static void average_grads(tn__parallel *p) {
    if (tn__parallel_all_ready(p)) { tn_module_each(p->module, (tn_walk){0}, average_grad, p); }
}

tn_status tn_ddp_naive(void *m, tn_group *g) {
    static const tn__parallel_rules rules = {
        .name = "data parallelism",
        .operation = "ddp_naive",
        .state_size = sizeof(tn__parallel),
        .param_size = sizeof(tn__parallel_param),
        .forward = tn__parallel_take_buffers,
        .ended = average_grads,
    };
    if (tn__agree_begin(g, rules.operation)) {
        tn__parallel_attach(m, g, NULL, &rules, "of ddp_naive", NULL);
    }
    return tn_error();
}
