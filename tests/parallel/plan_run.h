/* A few steps of a small language model on a mesh, as a plan describes them. */
#ifndef TERN_TESTS_PARALLEL_PLAN_RUN_H
#define TERN_TESTS_PARALLEL_PLAN_RUN_H

#include "distributed/parallel/plan/plan.h"
#include "distributed/parallel/spread.h"
#include "tests/parallel/mesh_model.h"

/* A plan's options as text for a process: MESH LLAMA BF16 RECOMPUTE MICROS WIDTH. */
typedef struct plan_run {
    mesh_shape shape;
    char mesh[64];
    int bf16, recompute, micros;
    int64_t batch;
    int64_t bytes; /* of a test */
} plan_run;

static inline tn__plan_options plan_options(const plan_run *r, int ranks) {
    tn__plan_options o = TN_WITH(tn__plan, .ranks = ranks, .batch = r->batch,
                                 .compute = r->bf16 ? TN_BF16 : TN_F32, .recompute = r->recompute);
    tn_spread_read(&o.mesh, r->mesh);
    int data = ranks / o.mesh.pp / o.mesh.tp / o.mesh.cp;
    o.tokens = r->batch * r->shape.length * r->micros * data;
    return o;
}

/* What a rank of a mesh has. */
typedef struct plan_rank {
    mesh_model m;
    tn_pipeline *pipe;
    tn_spread *spread;
    tn_optim *opt;
    bool keeps; /* gradients, until the last micro-batch */
} plan_rank;

static inline void plan_begin(plan_rank *k, tn_group *world, const plan_run *r) {
    int ranks = tn_group_size(world);
    tn__plan_options o = plan_options(r, ranks);
    *k = (plan_rank){.keeps = o.mesh.shard == 1 || o.mesh.sharding.stage < 2};
    mesh_init(&k->m, &r->shape, 1, true);
    if (r->bf16) { tn_module_set_precision(&k->m, tn_precision_defaults()); }
    for (int i = 0; i < r->shape.layers && r->recompute; i++) {
        tn_module *parts[16];
        tn_lm_parts(&k->m, parts, 16);
        tn_module_set_recompute(parts[i + 1], true);
    }
    k->spread = tn_spread_new(&k->m, world, o.mesh);
    k->pipe = k->spread ? k->spread->pipeline : NULL; /* tn_spread_step needs a loader */
    k->opt = tn_adamw(&k->m, tn_adamw_defaults());
}

static inline void plan_backward(plan_rank *k, const plan_run *r) {
    TN_SCOPE;
    tn_batch b[16];
    for (int i = 0; i < r->micros; i++) {
        tn_tensor *x = tn_zeros(TN_DIMS(r->batch, r->shape.length), TN_I64);
        b[i] = (tn_batch){.x = x, .y = x};
    }
    if (k->pipe) { tn_pipeline_step(k->pipe, b, r->micros, NULL); }
    for (int i = 0; i < r->micros && !k->pipe; i++) {
        TN_SCOPE;
        TN_NO_SYNC(i + 1 < r->micros && k->keeps ? &k->m : NULL);
        tn_backward(tn_lm_loss(&k->m, b[i].x, b[i].y));
    }
}

static inline void plan_step(plan_rank *k) {
    TN_SCOPE;
    tn_optim_step(k->opt);
    tn_optim_zero_grad(k->opt);
}

static inline void plan_end(plan_rank *k) {
    tn_optim_free(k->opt);
    tn_module_finish(&k->m);
    tn_spread_free(k->spread);
}

#endif
