/* Loss scaling and dropout on each mesh. What else a program does is in test_meshes.c, and in
 * test_pipeline_generate.c. Ranks are threads. */
#include "mesh_scaling.h"
#include "tests/support/temp.h"

enum { ROWS = 2, MOST_RANKS = 4 };

static const struct {
    const char *mesh;
    int ranks;
} meshes[] = {
    {"tp=2", 2},         {"tp=2,sequence", 2}, {"cp=2", 2},      {"cp=2,keys", 2},
    {"tp=2,shard=2", 4}, {"tp=2,dp=2", 4},     {"tp=2,cp=2", 4},
};
enum { MESHES = sizeof(meshes) / sizeof(*meshes) };

/* ---- The loss scale, and dropout ------------------------------------------------------------- */

/* The first loss of the last rank is too large for its gradients. */
TEST(test_overflow_on_one_rank) {
    for (int k = 0; k < MESHES; k++) {
        mesh_scaling s = {.mesh = meshes[k].mesh,
                          .compute = k % 2 ? TN_F16 : TN_BF16,
                          .clips = k % 3,
                          .rank = meshes[k].ranks - 1};
        run_ok(meshes[k].ranks, mesh_scaled_steps, &s);
    }
}

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
    int alike = strstr(user, "sequence") ? 1 : tn_group_size(tn_spread_group(spread, "tp"));
    for (int step = 0; step < 3; step++, before = mask) {
        TN_SCOPE;
        tn_backward(tn_lm_loss(&m, x, x));
        CHECK(mask > 0 && mask != before);
        CHECK(count_same(world, mask) == alike);
    }
    tn_module_finish(&m);
    tn_spread_free(spread);
}

TEST(test_dropout_masks) {
    for (int k = 0; k < MESHES; k++) {
        run_ok(meshes[k].ranks, drop_apart, (void *)meshes[k].mesh);
    }
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
