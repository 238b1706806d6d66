/* Meshes: on every mesh, a model trains as on one rank. Ranks are threads. */
#include "mesh_program.h"

enum { RANKS = 8 };

static mesh_program program_of(const char *mesh) {
    mesh_program p = mesh_program_of(false);
    p.shape.heads = 8;
    p.shape.width = 32;
    p.shape.length = 16;
    p.deferred = p.keep = true;
    p.micros = RANKS;
    p.steps = 3;
    p.mesh = mesh;
    return p;
}

static void expect_mesh(const mesh_program *alone, const char *mesh) {
    mesh_program p = mesh_program_end(program_of(mesh), RANKS);
    mesh_expect_close(alone, &p, 1e-5);
    free(p.bits.data);
}

TEST(test_every_mesh_of_eight) {
    mesh_program alone = mesh_program_alone(program_of("none"));
    for (int tp = 1; tp <= RANKS; tp *= 2) {
        for (int cp = 1; cp * tp <= RANKS; cp *= 2) {
            for (int shard = 1; shard * cp * tp <= RANKS; shard *= 2) {
                char mesh[128];
                snprintf(mesh, sizeof(mesh), "tp=%d,cp=%d,shard=%d%s", tp, cp, shard,
                         tp > 1 && cp < 4 ? ",sequence" : "");
                expect_mesh(&alone, mesh);
            }
        }
    }
    expect_mesh(&alone, "cp=2,keys,shard=all,stage=2");
    expect_mesh(&alone, "tp=2,dp=2,shard=2,stage=1");
    free(alone.bits.data);
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
        assert_int_equal(tn_spread_read(&after, bad[i]), TN_EVALUE);
        assert_error(TN_EVALUE, "is not one of pp=N");
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
    mesh_program p = program_of(NULL);
    mesh_program_init(&m, &p, 0);
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
    mesh_program p = program_of(NULL);
    mesh_program_init(&m, &p, 0);
    tn_spread_options o = TN_WITH(tn_spread, .inference = tn_group_rank(world) == 1);
    CHECK(!tn_spread_new(&m, world, o));
    tn_module_finish(&m);
}

TEST(test_meshes_that_do_not_fit) {
    assert_non_null(strstr(run_failing(4, spreads_badly, "tp=3", TN_EVALUE), "tern run -n 6"));
    assert_non_null(strstr(run_failing(4, spreads_badly, "dp=2,tp=4", TN_EVALUE), "-n 8"));
    assert_non_null(strstr(run_failing(3, spreads_badly, "tp=3", TN_ESHAPE), "8 heads"));
    assert_non_null(strstr(
        run_failing(4, spreads_badly, "tp=2,shard=2 tp=2,dp=2", TN_EMISMATCH),
        "spread: rank 0 has options pp=1,dp=0,shard=2,cp=1,tp=2,stage=3,chunks=1, but rank 3 "
        "has options pp=1,dp=2,shard=1"));
    assert_non_null(strstr(run_failing(2, spreads_badly, "tp=2 tp=3", TN_EMISMATCH), "tp=3"));
    static const char *const kinds[] = {"pp=2,zb_h1,chunks=2", "pp=2,chunks=2,gpipe"};
    for (int i = 0; i < 2; i++) {
        const char *said = run_failing(2, spreads_badly, (void *)kinds[i], TN_EVALUE);
        assert_non_null(strstr(said, "only with TN_PIPE_INTERLEAVED"));
    }
    assert_non_null(strstr(run_failing(2, uses_apart, NULL, TN_EMISMATCH), "inference"));
}

static void prints_mesh(tn_group *world, void *user) {
    TN_SCOPE;
    mesh_model m;
    mesh_program p = program_of(NULL);
    mesh_program_init(&m, &p, 0);
    tn_spread *s = mesh_spread(&m, world, "tp=2,shard=2");
    CHECK(s && tn_group_size(tn_spread_group(s, "tp")) == 2);
    if (tn_group_rank(world) == 0) {
        tn_spread_print(s, user);
    }
    tn_module_finish(&m);
    tn_spread_free(s);
}

TEST(test_print) {
    char text[2048] = "";
    FILE *f = fmemopen(text, sizeof(text), "w");
    run_ok(4, prints_mesh, f);
    fclose(f);
    assert_non_null(strstr(text, "pp 1 x dp 1 x shard 2 x cp 1 x tp 2\n"));
    assert_non_null(strstr(text,
                           "     3     0    0      1    0    1  batch 2 of 2, rows 15 to 28 of "
                           "wte.weight, part 2 of 2\n"));
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
