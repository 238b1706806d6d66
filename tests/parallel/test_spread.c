/* Meshes as texts, what they refuse, and their steps beside the data. That models train on them as
 * on one rank is in test_meshes.c. Ranks are threads. */
#include "tests/parallel/mesh_model.h"

static void init_model(mesh_model *m, double dropout) {
    mesh_shape shape = mesh_shape_of(false);
    shape.layers = 6;
    shape.heads = 8;
    shape.width = 32;
    shape.dropout = dropout;
    mesh_init(m, &shape, 3, true);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

TEST(test_texts) {
    tn_spread_options o = tn_spread_defaults();
    assert_int_equal(
        tn_spread_read(&o, "pp=2,chunks=3,tp=2,shard=all,sequence,cp=4,keys,stage=2,dp=3"), TN_OK);
    assert_true(o.pp == 2 && o.pipeline.chunks == 3 && o.pipeline.kind == TN_PIPE_INTERLEAVED);
    assert_true(o.tp == 2 && o.shard == 0 && o.cp == 4 && o.dp == 3 && o.tensor.sequence &&
                o.context == TN_CP_KEYS && o.sharding.stage == 2);
    assert_int_equal(tn_spread_read(&o, "pp=4,zb_h1"), TN_OK);
    assert_true(o.pp == 4 && o.pipeline.kind == TN_PIPE_ZERO_BUBBLE);
    static const char *const bad[] = {
        "",     "tp",     "tp=",     "tp=0",  "tp=all", "pp=all",     "chunks=0", "ep=2",
        "tp=x", "tp=2,,", "stage=4", "tp=-1", "cp=2 ",  "sequence=1", "tp=1e3",   "tp=99999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tn_spread_options before = tn_spread_defaults(), after = before;
        assert_fails(tn_spread_read(&after, bad[i]), TN_EVALUE, "is not one of pp=N");
        assert_memory_equal(&before, &after, sizeof(before));
    }
    tn_spread_read(NULL, "tp=2");
    assert_error(TN_EVALUE, "options are NULL");
    tn_spread_read(&o, NULL);
    assert_error(TN_EVALUE, "mesh is NULL");
}

/* user: the mesh; after a space, that of the last rank */
static void spreads_badly(tn_group *world, void *user) {
    mesh_model m;
    init_model(&m, 0);
    char text[64];
    snprintf(text, sizeof(text), "%s", (const char *)user);
    char *first = strtok(text, " "), *last = strtok(NULL, " ");
    bool other = last && tn_group_rank(world) == tn_group_size(world) - 1;
    CHECK(!mesh_spread(&m, world, other ? last : first));
    tn_module_finish(&m);
}

/* Rank 1 would only use the model. */
static void uses_apart(tn_group *world, void *user) {
    mesh_model m;
    init_model(&m, 0);
    CHECK(!tn_spread_new(&m, world, TN_WITH(tn_spread, .inference = tn_group_rank(world) == 1)));
    tn_module_finish(&m);
}

TEST(test_meshes_that_do_not_fit) {
    assert_contains(run_failing(4, spreads_badly, "tp=3", TN_EVALUE), "tern run -n 6");
    assert_contains(run_failing(4, spreads_badly, "dp=2,tp=4", TN_EVALUE), "-n 8");
    assert_contains(run_failing(3, spreads_badly, "tp=3", TN_ESHAPE), "8 heads");
    assert_contains(
        run_failing(4, spreads_badly, "tp=2,shard=2 tp=2,dp=2", TN_EMISMATCH),
        "spread: rank 0 has options pp=1,dp=0,shard=2,cp=1,tp=2,stage=3,chunks=1, but rank 3 "
        "has options pp=1,dp=2,shard=1");
    assert_contains(run_failing(2, spreads_badly, "tp=2 tp=3", TN_EMISMATCH), "tp=3");
    static const char *const kinds[] = {"pp=2,zb_h1,chunks=2", "pp=2,chunks=2,gpipe"};
    for (int i = 0; i < 2; i++) {
        const char *said = run_failing(2, spreads_badly, kinds[i], TN_EVALUE);
        assert_contains(said, "only with TN_PIPE_INTERLEAVED");
    }
    assert_contains(run_failing(2, uses_apart, NULL, TN_EMISMATCH), "inference");
}

static void prints_mesh(tn_group *world, void *user) {
    TN_SCOPE;
    mesh_model m;
    init_model(&m, 0);
    tn_spread *s = mesh_spread(&m, world, "tp=2,shard=2");
    CHECK(s && tn_group_size(tn_spread_group(s, "tp")) == 2);
    if (tn_group_rank(world) == 0) { tn_spread_print(s, user); }
    tn_module_finish(&m);
    tn_spread_free(s);
}

TEST(test_print) {
    char text[2048] = "";
    FILE *f = fmemopen(text, sizeof(text), "w");
    run_ok(4, prints_mesh, f);
    fclose(f);
    assert_contains(text, "pp 1 x dp 1 x shard 2 x cp 1 x tp 2\n");
    assert_contains(text, "     3     0    0      1    0    1  batch 2 of 2, rows 15 to 28 of "
                          "wte.weight, part 2 of 2\n");
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* A model that trains is measured as one that does not. */
static void measure_twice(tn_group *world, void *user) {
    mesh_model m;
    init_model(&m, 0.2);
    tn_spread *s = mesh_spread(&m, world, user);
    tn_loader *loader = mesh_loader(tn_spread_data(s), 1);
    tn_module_train(&m.gpt.stem.drop, false);
    double loss = tn_spread_loss(s, loader, 2);
    CHECK(m.base.training && !m.gpt.stem.drop.base.training && m.gpt.h[3].base.training);
    tn_module_train(&m, false);
    tn_loader_seek(loader, (tn_loader_place){0, 0});
    CHECK(loss == tn_spread_loss(s, loader, 2));
    tn_loader_free(loader);
    tn_module_finish(&m);
    tn_spread_free(s);
}

TEST(dropout_in_training_alone) {
    static char meshes[][8] = {"dp=2", "pp=2"};
    run_ok(2, measure_twice, meshes[0]);
    run_ok(2, measure_twice, meshes[1]);
}

enum { ROWS_HERE = 5 };

static tn_loader *finite_loader(tn_group *data) {
    int rows = ROWS_HERE * tn_group_size(data);
    return tn_loader_new(tn_tensor_dataset(mesh_tokens(29, rows, 1), mesh_tokens(29, rows, 2)),
                         tn_distributed_sampler(data, tn_sequential_sampler(), true),
                         TN_WITH(tn_loader, .batch = 1, .epochs = 1));
}

/* Data may end between two steps, but not in one. */
static void read_to_the_end(tn_group *world, void *user) {
    TN_SCOPE;
    mesh_model m;
    init_model(&m, 0);
    tn_spread *s = mesh_spread(&m, world, user);
    tn_loader *loader = finite_loader(tn_spread_data(s));
    CHECK(tn_spread_step(s, loader, ROWS_HERE, NULL) > 0);
    CHECK(isnan(tn_spread_step(s, loader, ROWS_HERE, NULL)) && tn_error() == TN_OK);
    CHECK(isnan(tn_spread_loss(s, loader, (int64_t)INT32_MAX + 1)) &&
          failed_with(TN_EVALUE, "n is above 2147483647"));
    for (int measures = 0; measures < 2; measures++) {
        tn_loader_seek(loader, (tn_loader_place){0, 1});
        CHECK(isnan(measures ? tn_spread_loss(s, loader, ROWS_HERE)
                             : tn_spread_step(s, loader, ROWS_HERE, NULL)) &&
              failed_with(TN_EVALUE, "the data end after 4 of 5 micro-batches"));
    }
    tn_loader_free(loader);
    tn_module_finish(&m);
    tn_spread_free(s);
}

TEST(data_that_end) {
    static char meshes[][8] = {"dp=2", "shard=2", "tp=2", "pp=2"};
    for (int i = 0; i < 4; i++) {
        run_ok(2, read_to_the_end, meshes[i]);
    }
}
