/* A forward without gradients of a model on stages, called like any model: evaluation, tn_generate.
 *
 *     rank 0   parts 0 to 3 ----> rank 1   parts 4 to 7 ----> …   the last stage's output
 *     all ranks  <------------------------------------------------------------ is broadcast
 *
 * Every rank makes the call, with the same input, so each knows the tokens, positions and mask, and
 * has the caches of its own blocks; only activations travel. One batch is on its way at a time: the
 * other stages wait. What a step does instead is in step.c.
 */
#include "core/memory.h"
#include "distributed/group/values.h"
#include "distributed/parallel/pipeline/pipeline.h"
#include "nn/cache.h"
#include "nn/layer.h"

static bool is_generating(const tn_pipeline *p) {
    return p->family && tn__cache_open(p->family->cache(p->module));
}

/* ---- What travels ---------------------------------------------------------------------------- */

/* x of the group's rank `root`, on all of its ranks, which then draw as if they had computed it. */
static tn_tensor *share_from(const tn_pipeline *p, tn_group *g, int root, tn_tensor *x) {
    tn_generator *generator = tn_default_generator();
    bool mine = tn_group_rank(g) == root;
    tn__pipe_boundary form = {0};
    if (mine) {
        x = tn_contiguous(tn_detach(x));
        form.dims = tn_shape(x);
        form.dtype = tn_dtype_of(x);
        form.draws = generator->call;
    }
    if (tn__pending() || tn__broadcast_values(g, &form, sizeof(form), TN_U8, root) != TN_OK) {
        return tn_inert();
    }
    if (!mine) {
        x = tn_empty_on(p->device, form.dims, form.dtype);
        generator->call = form.draws;
    }
    return tn_work_wait(tn_broadcast(g, x, root), 0) == TN_OK ? x : tn_inert();
}

/* tn__stages_rule.share */
static tn_tensor *share_last(void *state, tn_tensor *x) {
    const tn_pipeline *p = state;
    int last = (p->stages - 1) % tn_group_size(p->group);
    x = tn__pending() ? x : share_from(p, p->group, last, x);
    if (tn__pending()) {
        tn__pipe_abort(p);
        return tn_inert();
    }
    return x;
}

/* ---- The forward ----------------------------------------------------------------------------- */

static tn_tensor *run_stage(const tn_pipeline *p, int stage, tn_values x, tn__lm_context context) {
    if (stage > 0) {
        int sender = 1 - tn_group_rank(p->outputs.group); /* the group has two ranks */
        x.v[0] = share_from(p, p->outputs.group, sender, NULL);
        x.n = p->family ? x.n : 1;
    }
    context.range = (tn__range){p->first[stage], p->first[stage + 1]};
    tn_tensor *y = tn__pending() ? tn_inert() : p->forward(p->module, x, &context).v[0];
    if (stage + 1 < p->stages && !tn__pending()) {
        share_from(p, p->outputs_to, tn_group_rank(p->outputs_to), y);
    }
    return y;
}

/* This rank's stages in turn; returns its last one's output. */
static tn_tensor *run_stages(const tn_pipeline *p, tn_values x, void *context) {
    tn_module *m = p->module;
    int64_t start = is_generating(p) ? tn__cache_start(p->family->cache(m)) : 0;
    int64_t T = p->family && x.n > 0 && tn_ndim(x.v[0]) == 2 ? tn_size(x.v[0], 1) : 0;
    if (T > 0 && (x.n < 2 || !x.v[1])) { /* later stages see no tokens to count */
        x.v[1] = tn__lm_positions(m, x.v[0], start, T, p->family->shape(m).context);
        x.n = x.n < 2 ? 2 : x.n;
    }
    tn__lm_context how = p->family && context ? *(tn__lm_context *)context : (tn__lm_context){0};
    tn_tensor *y = NULL;
    int ranks = tn_group_size(p->group);
    for (int s = tn_group_rank(p->group); s < p->stages && !tn__pending(); s += ranks) {
        y = run_stage(p, s, x, how);
    }
    if (is_generating(p) && tn__pending()) {
        tn__cache_restore(m, start);
    } else if (is_generating(p)) {
        tn__cache_skip(m, T);
    }
    return y;
}

/* The module's forward. Under tn_lm_loss only the last stage's rank returns logits, for its loss is
 * what travels. */
static tn_values stages_forward(tn_module *m, tn_values in, void *context) {
    tn_pipeline *p = m->lists->stages.state;
    if (p->running) { return p->forward(m, in, context); }
    p->device = tn__pipe_device(p);
    tn_tensor *y = tn__pending() ? tn_inert() : run_stages(p, in, context);
    if (tn__pending() || !m->lists->loss.calling) {
        y = share_last(p, y);
    } else if (!m->lists->stages.last) {
        y = tn_zeros(TN_DIMS(1), TN_F32);
    }
    return tn_values_of(y, NULL);
}

/* A step calls the module for each stage; other calls are of all stages. */
tn_values tn__pipe_begin_call(tn_module *m, tn_values in, void *user) {
    tn_pipeline *p = user;
    int ranks = tn_group_size(p->group);
    if (p->running || ranks == 1) { return in; }
    if (tn__will_record()) {
        tn__raise(TN_ESTATE, m->kind,
                  "its layers are on %d ranks: tn_spread_step or tn_pipeline_step computes "
                  "gradients, and other calls are under TN_NO_GRAD",
                  ranks);
        return in;
    }
    p->compared.any &= !is_generating(p);
    tn__parallel_same_input(p->group, in.n > 0 ? in.v[0] : NULL, m, &p->compared, "pipeline");
    return in;
}

void tn__pipe_set_forward(tn_pipeline *p) {
    tn_module *m = p->module;
    int ranks = tn_group_size(p->group), last = (p->stages - 1) % ranks;
    p->forward = m->forward_values;
    m->forward_values = stages_forward;
    m->lists->stages =
        (tn__stages_rule){.share = share_last, .state = p, .last = tn_group_rank(p->group) == last};
}
