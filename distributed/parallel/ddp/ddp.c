/* Data parallelism: a step. Read ddp_naive.c first.
 *
 *     forward     buckets are laid out again when the first backward has shown a better order; in a
 *                 step's first forward, buffers come from rank 0 (not in later ones: by then the
 *                 backward may have saved the buffers)
 *     backward    each gradient is written into its bucket; a bucket that is complete is sent,
 *                 while backward continues with the layers below
 *     its end     a missing gradient is an error, or zeros are sent; waits for all buckets
 */
#include "distributed/group/agree.h"
#include "distributed/parallel/ddp/ddp.h"

#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- A step, from its beginning to its end --------------------------------------------------- */

static void before_forward(tn__parallel *p) {
    tn_ddp_state *d = (tn_ddp_state *)p;
    bool relayout = tn__ddp_relayout_due(d);
    bool buffers = d->options.broadcast_buffers && p->buffers_due && p->module->training;
    int root = tn__ddp_join_forward(d, relayout, buffers);
    if (root >= 0 && (!relayout || tn__ddp_relayout(d, root)) && buffers) {
        p->buffers_due = tn__parallel_share(p->module, p->group, root, false) != TN_OK;
    }
}

static bool backward_begins(tn__parallel *p) {
    if (!p->sync) { return true; }
    tn__ddp_expect((tn_ddp_state *)p);
    return tn__ddp_join_backward((tn_ddp_state *)p);
}

/* Refuses to add to a sum over the ranks, which the next sum would count N times. Adding to an
 * average is fine: averaging equal values changes nothing. */
static tn_tensor *gradient_coming(tn_tensor *grad, void *user) {
    tn__ddp_param *p = user;
    const tn_ddp_state *d = (tn_ddp_state *)p->base.of;
    if (!tn__parallel_reach(p->base.of)) { return NULL; }
    p->reduced = p->reduced && tn_grad_of(p->base.leaf);
    if (p->reduced && d->options.sum && tn_group_size(d->base.group) > 1) {
        tn__raise(TN_ESTATE, "ddp",
                  "%s has a gradient that is summed over the ranks already, and a second backward "
                  "adds to it (zero the gradients first, or put all backwards but the last under "
                  "TN_NO_SYNC)",
                  p->base.path);
    }
    return NULL;
}

static void gradient_added(tn_tensor *leaf, void *user) {
    tn__ddp_param *p = user;
    tn_ddp_state *d = (tn_ddp_state *)p->base.of;
    p->base.kept |= !d->base.sync;
    if (tn__pending() || !d->base.running || !d->base.sync || p->bucket < 0) { return; }
    if (p->base.ready) {
        tn__raise(TN_ESTATE, "ddp", "%s got two gradients: a hook has run its own backward",
                  p->base.path);
    } else if (tn_grad_of(leaf) != p->view) {
        tn__raise(TN_ESTATE, "ddp", "the gradient buffer of %s was replaced (tn_set_grad_buffer)",
                  p->base.path);
    } else {
        tn__ddp_ready(d, p);
    }
}

/* A parameter that was thawed since the last synchronised forward is in no bucket. False after
 * raising if one has a gradient, which would not be shared. */
static bool all_in_buckets(const tn_ddp_state *d) {
    for (int i = 0; i < d->base.count; i++) {
        const tn__ddp_param *p = &d->params[i];
        if (p->bucket < 0 && tn_requires_grad(p->base.leaf) && tn_grad_of(p->base.leaf)) {
            return tn__fail(TN_ESTATE, "ddp",
                            "%s has a gradient but no bucket: it was frozen until after the last "
                            "synchronised forward (a forward outside of TN_NO_SYNC gives it one)",
                            p->base.path);
        }
    }
    return true;
}

static void backward_ended(tn__parallel *p) {
    tn_ddp_state *d = (tn_ddp_state *)p;
    if (all_in_buckets(d) && tn__ddp_join_ended(d)) { tn__ddp_complete(d); }
}

/* With find_unused ranks may differ, so all ranks count. */
static bool has_grad(const tn__parallel_param *param) {
    const tn_ddp_state *d = (const tn_ddp_state *)param->of;
    return !d->options.find_unused && tn_grad_of(param->leaf);
}

/* ---- Attaching ------------------------------------------------------------------------------- */

static bool start_steps(tn__parallel *p, const void *options) {
    tn_ddp_state *d = (tn_ddp_state *)p;
    d->options = *(const tn_ddp_options *)options;
    d->params = p->params;
    for (int i = 0; i < p->count; i++) {
        d->params[i].bucket = -1;
    }
    d->order = tn__calloc_for((size_t)p->count + 1, sizeof(*d->order), "ddp");
    d->ready = tn__calloc_for((size_t)p->count + 1, sizeof(*d->ready), "ddp");
    return !tn__pending() && tn__ddp_first_layout(d) && tn__ddp_join_start(d);
}

static void finish_steps(tn__parallel *p) {
    tn_ddp_state *d = (tn_ddp_state *)p;
    tn__ddp_drop_buckets(d);
    tn__ddp_join_finish(d);
    free(d->order);
    free(d->ready);
}

tn_ddp_options tn_ddp_defaults(void) {
    return (tn_ddp_options){.bucket_bytes = 25 << 20,
                            .broadcast_buffers = true,
                            .overlap = true,
                            .from_defaults = true};
}

tn_ddp_state *tn_ddp(void *m, tn_group *g, tn_ddp_options o) {
    static const tn__parallel_rules rules = {
        .name = "data parallelism",
        .operation = "ddp",
        .state_size = sizeof(tn_ddp_state),
        .param_size = sizeof(tn__ddp_param),
        .start = start_steps,
        .forward = before_forward,
        .reached = backward_begins,
        .coming = gradient_coming,
        .added = gradient_added,
        .has_grad = has_grad,
        .ended = backward_ended,
        .abandon = tn__ddp_abandon,
        .finish = finish_steps,
    };
    if (!tn__agree_begin(g, rules.operation)) { return NULL; }
    tn__options_made(o.from_defaults, "ddp", "tn_ddp");
    const char *wrong = TN__BEYOND({"bucket_bytes", o.bucket_bytes, 1, 0});
    if (wrong) { tn__raise(TN_EVALUE, "ddp", "%s", wrong); }
    char text[256];
    snprintf(
        text, sizeof(text),
        "bucket_bytes %lld\nsum %d\nfind_unused %d\nbroadcast_buffers %d\njoin %d\noverlap %d\n%s",
        (long long)o.bucket_bytes, o.sum, o.find_unused, o.broadcast_buffers, o.join, o.overlap,
        o.hook ? "a hook" : "no hook");
    return (tn_ddp_state *)tn__parallel_attach(m, g, NULL, &rules, text, &o);
}

/* ---- For the program ------------------------------------------------------------------------- */

tn_ddp_stats tn_ddp_statistics(const tn_ddp_state *ddp) {
    return ddp ? ddp->stats : (tn_ddp_stats){0};
}

/* Hooks for tn_ddp_options. The result is cast into the bucket. */
tn_work *tn_ddp_bf16(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user) {
    if (!bucket) {
        tn__raise(TN_EVALUE, "ddp_bf16", "the bucket is NULL");
    } else if (stage == 0) {
        return tn_all_reduce(g, tn_cast(bucket->flat, TN_BF16), bucket->how);
    } else if (bucket->arrived) {
        tn_copy_(bucket->flat, bucket->arrived);
    }
    return NULL;
}

tn_work *tn_ddp_f16(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user) {
    if (!bucket) {
        tn__raise(TN_EVALUE, "ddp_f16", "the bucket is NULL");
    } else if (stage == 0) {
        tn_tensor *share = tn_mul_scalar(tn_cast(bucket->flat, TN_F32), 1.0 / tn_group_size(g));
        return tn_all_reduce(g, tn_cast(share, TN_F16), TN_SUM);
    } else if (bucket->arrived) {
        tn_copy_(bucket->flat, bucket->arrived);
        if (bucket->how == TN_SUM) { tn_mul_scalar_(bucket->flat, tn_group_size(g)); }
    }
    return NULL;
}
