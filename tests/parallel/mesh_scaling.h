/* Two steps with a loss scale on a mesh: in the first one rank overflows, so all skip it. */
#ifndef TERN_TESTS_PARALLEL_MESH_SCALING_H
#define TERN_TESTS_PARALLEL_MESH_SCALING_H

#include "tests/parallel/mesh_model.h"
#include "tests/parallel/train.h"

typedef struct mesh_scaling {
    const char *mesh;
    tn_dtype compute;
    bool clips;
    int rank; /* the one that overflows: its loss, or with a path … */
    /* … only the first gradient of a cut matrix with this path, or beginning of a path, that has
     * elements here */
    const char *path;
} mesh_scaling;

static inline bool mesh_overflow_at(const tn_entry *entry, void *user) {
    const mesh_scaling *s = user;
    tn_tensor *g = tn_grad_of(entry->stored);
    if (strncmp(entry->path, s->path, strlen(s->path)) != 0 || entry->layout.dim < 0 ||
        tn_count(g) == 0) {
        return true;
    }
    ((float *)tn_data_mut(g))[tn_count(g) - 1] = INFINITY;
    return false;
}

static inline void mesh_scaled_steps(tn_group *world, void *user) {
    enum { ROWS_EACH = 2 };
    TN_SCOPE;
    const mesh_scaling *s = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 3, false);
    tn_module_set_precision(&m, TN_WITH(tn_precision, .compute = s->compute));
    tn_spread *spread = mesh_spread(&m, world, s->mesh);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_scaler *scaler = tn_scaler_new(TN_WITH(tn_scaler, .scale = 1024));
    train_bits before = train_whole(&m, world);
    for (int step = 0; step < 2 && !tn_error(); step++) {
        TN_SCOPE;
        bool overflows = step == 0 && tn_group_rank(world) == s->rank;
        tn_tensor *loss = tn_lm_loss(&m, mesh_tokens(29, ROWS_EACH, 2 * step),
                                     mesh_tokens(29, ROWS_EACH, 2 * step + 1));
        loss = tn_mul_scalar(loss, overflows && !s->path ? INFINITY : 1);
        tn_backward(tn_scaler_scale(scaler, loss));
        if (overflows && s->path) { tn_module_each(&m, (tn_walk){0}, mesh_overflow_at, user); }
        CHECK(!s->clips || isfinite(tn_scaler_clip(scaler, opt, 1.0)) == (step == 1));
        tn_scaler_step(scaler, opt);
        tn_optim_zero_grad(opt);
        tn_scaler_update(scaler);
        CHECK(tn_scaler_skipped(scaler) == (step == 0) && tn_scaler_where(scaler).scale == 512);
        train_bits after = train_whole(&m, world); /* also checks that ranks agree */
        CHECK(train_same(before, after) == (step == 0));
        free(after.data);
    }
    free(before.data);
    tn_scaler_free(scaler);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

#endif
