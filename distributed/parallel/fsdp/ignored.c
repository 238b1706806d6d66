/* Sharding: parameters that are ignored stay whole on every rank, as with data parallelism. At the
 * end of a synchronised backward their gradients are summed over all ranks, one by one.
 *
 * A sum is not summed again: it is put aside when more comes, and added once that is summed too. So
 * micro-batches add up as for parts.
 */
#include "distributed/parallel/fsdp/fsdp.h"

void tn__fsdp_put_aside(tn__fsdp_param *p) {
    tn_tensor *grad = tn_grad_of(p->base.leaf);
    if (grad && !p->summed) {
        return; /* unsynchronised, from under TN_NO_SYNC: more is added to it */
    }
    tn_release(p->aside);
    p->aside = tn_keep(grad); /* NULL: it was zeroed */
    tn_zero_grad(p->base.leaf);
    p->summed = false;
}

/* Another rank may have a gradient when this one has none. */
static tn_tensor *grad_or_zeros(const tn__fsdp_param *p) {
    tn_tensor *leaf = p->base.leaf;
    if (!tn_grad_of(leaf)) {
        tn_set_grad(leaf, tn_zero_(tn_empty_on(tn_device_of(leaf), tn_shape(leaf), p->kind.grad)));
    }
    return tn_grad_of(leaf);
}

static void sum_over(tn_group *g, tn_fsdp_state *s) {
    for (int i = 0; i < s->base.count && !tn__pending(); i++) {
        tn__fsdp_param *p = &s->params[i];
        if (!p->set && p->base.ready) {
            p->sum = tn_all_reduce(g, tn_grad_of(p->base.leaf), s->options.sum ? TN_SUM : TN_MEAN);
        }
    }
    for (int i = 0; i < s->base.count; i++) {
        tn__parallel_wait(s->params[i].sum);
        s->params[i].sum = NULL;
    }
}

void tn__fsdp_sum_ignored(tn_fsdp_state *s) {
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < s->base.count && !tn__pending(); i++) {
        tn__fsdp_param *p = &s->params[i];
        if (!p->set && p->base.ready) {
            tn__fsdp_put_aside(p);
            grad_or_zeros(p);
        }
    }
    sum_over(s->base.group, s);
    sum_over(s->base.outer, s);
    for (int i = 0; i < s->base.count && !tn__pending(); i++) {
        tn__fsdp_param *p = &s->params[i];
        if (!p->set && p->base.ready) {
            if (p->aside) { tn_add_(tn_grad_of(p->base.leaf), p->aside); }
            tn_release(p->aside);
            p->aside = NULL;
            p->summed = true;
        }
    }
}
