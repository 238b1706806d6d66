/* A rank's share of an order: PyTorch's DistributedSampler.
 * The rule itself is in data/sampler.c. */
#include "core/error.h"
#include "tern/parallel.h"

tn_sampler tn_distributed_sampler(tn_group *g, tn_sampler order, bool drop_last) {
    if (order.parts != 1) {
        tn__raise(
            TN_EVALUE, "distributed_sampler",
            "the order is shared among %lld parts already (begin with the order of one process)",
            (long long)order.parts);
    } else if (tn_group_rank(g) < 0) {
        tn__raise(TN_ESTATE, "distributed_sampler", "this rank is not a member of group %s",
                  tn_group_name(g));
    } else {
        order.part = tn_group_rank(g);
        order.parts = tn_group_size(g);
        order.rule = drop_last ? TN_PARTS_DROP : TN_PARTS_PAD;
    }
    return order;
}
