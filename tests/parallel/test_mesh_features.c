/* Loss scaling and dropout on each mesh. What else a program does is in test_meshes.c, and in
 * test_pipeline_generate.c. Ranks are threads. */
#include "tests/parallel/train.h"

#include "tests/support/temp.h"

enum { ROWS = 2, MOST_RANKS = 4 };

static const char *const meshes[] = {
    "tp=2",         "tp=2,sequence", "cp=2",      "cp=2,keys",
    "tp=2,shard=2", "tp=2,dp=2",     "tp=2,cp=2", "shard=4",
};
enum { MESHES = sizeof(meshes) / sizeof(*meshes) };

/* ---- The loss scale -------------------------------------------------------------------------- */

/* Two steps, in the first of which the last rank overflows, so all skip it. */
typedef struct overflow {
    const char *mesh;
    tn_dtype compute;
    bool clips;
    bool in_part; /* not its loss: one gradient that no other rank has, which they see in the norm
                   */
} overflow;

static bool spoil_part(const tn_entry *entry, void *user) {
    tn_tensor *g = tn_grad_of(entry->stored);
    bool whole = entry->layout.dim < 0 && tn_count(g) == tn_dims_count(entry->layout.whole);
    if (strncmp(entry->path, "h.1.", 4) != 0 || whole || tn_count(g) == 0) { return true; }
    ((float *)tn_data_mut(g))[tn_count(g) - 1] = INFINITY;
    return false;
}

static void take_scaled_steps(tn_group *world, void *user) {
    TN_SCOPE;
    const overflow *o = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 3, false);
    tn_module_set_precision(&m, TN_WITH(tn_precision, .compute = o->compute));
    tn_spread *spread = mesh_spread(&m, world, o->mesh);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_scaler *scaler = tn_scaler_new(TN_WITH(tn_scaler, .scale = 1024));
    train_bits before = train_whole(&m, world);
    for (int step = 0; step < 2 && !tn_error(); step++) {
        TN_SCOPE;
        bool here = step == 0 && tn_group_rank(world) == tn_group_size(world) - 1;
        tn_tensor *loss =
            tn_lm_loss(&m, mesh_tokens(29, ROWS, 2 * step), mesh_tokens(29, ROWS, 2 * step + 1));
        loss = tn_mul_scalar(loss, here && !o->in_part ? INFINITY : 1);
        tn_backward(tn_scaler_scale(scaler, loss));
        if (here && o->in_part) { tn_module_each(&m, (tn_walk){0}, spoil_part, NULL); }
        CHECK(!o->clips || isfinite(tn_scaler_clip(scaler, opt, 1.0)) == (step == 1));
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

TEST(overflow_on_one_rank) {
    for (int k = 0; k < 2 * MESHES; k++) {
        const char *mesh = meshes[k / 2];
        bool copied = strstr(mesh, "dp") || strstr(mesh, "cp");
        overflow o = {mesh, k % 4 < 2 ? TN_F16 : TN_BF16, k % 3, k % 2 && !copied};
        run_ok(mesh_ranks(mesh), take_scaled_steps, &o);
    }
}

/* ---- Dropout --------------------------------------------------------------------------------- */

/* What dropout left of ones, as a number: equal for equal masks. */
static tn_values note_mask(tn_module *m, tn_values in, tn_values out, void *user) {
    TN_NO_GRAD;
    tn_tensor *kept = tn_cast(tn_ne_scalar(tn_detach(out.v[0]), 0), TN_F64);
    tn_tensor *place =
        tn_reshape(tn_arange(1, (double)tn_count(kept) + 1, 1, TN_F64), tn_shape(kept));
    *(double *)user = tn_item(tn_sum_all(tn_mul(kept, tn_mul(place, place))));
    return out;
}

/* How many ranks of a group have the mask of this one. */
static int count_same(tn_group *g, double mask) {
    void *all[MOST_RANKS];
    size_t bytes[MOST_RANKS];
    int same = 0;
    CHECK(tn_all_gather_bytes(g, &mask, sizeof(mask), all, bytes) == TN_OK);
    for (int i = 0; i < tn_group_size(g) && !tn_error(); i++) {
        same += memcmp(all[i], &mask, sizeof(mask)) == 0;
        tn_bytes_free(all[i]);
    }
    return same;
}

/* Each step and each rank's positions and batches have masks of their own; the ranks of tp, which
 * hold the same activations, have one, even if the program seeds each rank's generator apart. */
static void drop_apart(tn_group *world, void *user) {
    TN_SCOPE;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    shape.dropout = 0.5;
    mesh_init(&m, &shape, 3, false);
    tn_seed(100 + (uint64_t)tn_group_rank(world));
    tn_spread *spread = mesh_spread(&m, world, user);
    if (strstr(user, "dp")) { tn_seed(200 + (uint64_t)tn_group_rank(world)); }
    tn_tensor *x = mesh_tokens(29, ROWS, 1);
    double mask = 0, before = 0;
    tn_module_hook(&m.gpt.stem.drop, (tn_module_hooks){.after = note_mask, .user = &mask});
    uint64_t calls = tn_default_generator()->call;
    int alike = strstr(user, "sequence") ? 1 : tn_group_size(tn_spread_group(spread, "tp"));
    for (int step = 0; step < 3; step++, before = mask) {
        TN_SCOPE;
        tn_backward(tn_lm_loss(&m, x, x));
        CHECK(mask > 0 && mask != before);
        CHECK(count_same(world, mask) == alike);
    }
    CHECK(tn_default_generator()->call < calls + (1 << 20)); /* no further than on one rank */
    tn_module_finish(&m);
    tn_spread_free(spread);
}

TEST(dropout_masks) {
    for (int k = 0; k < MESHES; k++) {
        run_ok(mesh_ranks(meshes[k]), drop_apart, meshes[k]);
    }
}
