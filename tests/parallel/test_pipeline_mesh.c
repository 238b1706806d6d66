/* Pipelines on a mesh with every other way of splitting: a model trains as on one rank. Batches
 * come from a loader, through tn_spread_step. */
#include "models/language.h"
#include "tests/parallel/mesh_model.h"
#include "tests/support/temp.h"

#include <math.h>

enum { RANKS = 8, MICROS = 8, STEPS = 3 }; /* micro-batches of one sequence, of all ranks */

typedef struct program {
    const char *mesh;
    mesh_shape shape;
    bool recompute;
    double losses[STEPS], norms[STEPS], validation;
    char file[300];
} program;

static mesh_shape deep_shape(bool llama) {
    mesh_shape s = mesh_shape_of(llama);
    s.layers = 6;
    s.heads = 8;
    s.width = 32;
    return s;
}

static void train_program(tn_group *world, void *user) {
    program *p = user;
    mesh_model m;
    mesh_init(&m, &p->shape, 3, true);
    if (p->recompute) {
        tn__lm_recompute_blocks(&m);
    }
    tn_spread *s = mesh_spread(&m, world, p->mesh);
    CHECK(s);
    tn_group *data = tn_spread_data(s);
    tn_loader *loader = mesh_loader(data, 1);
    /* not AdamW, which makes steps of rounding: the gradient of a bias of keys is 0 but for that */
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.5, .momentum = 0.9));
    int64_t micros = MICROS / tn_group_size(data);
    for (int step = 0; step < STEPS && !tn_error(); step++) {
        double mean = tn_group_mean(data, tn_spread_step(s, loader, micros, NULL), 1);
        double norm = tn_optim_clip(opt, 0.5);
        if (tn_group_rank(world) == 0) {
            p->losses[step] = mean;
            p->norms[step] = norm;
        }
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    double validation = tn_group_mean(data, tn_spread_loss(s, loader, micros), 1);
    if (tn_group_rank(world) == 0) {
        p->validation = validation;
    }
    CHECK(tn_dist_export(world, &m, p->file) == TN_OK);
    tn_loader_free(loader);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(s);
}

static void run_program(program *p, int ranks) {
    static int files;
    snprintf(p->file, sizeof(p->file), "%s%d", temp_path("weights"), files++);
    run_ok(ranks, train_program, p);
}

static void expect_mesh(const program *alone, const char *mesh, bool recompute) {
    program p = {.mesh = mesh, .shape = alone->shape, .recompute = recompute};
    run_program(&p, RANKS);
    double far = mesh_file_difference(&p.shape, p.file, alone->file);
    for (int i = 0; i < STEPS; i++) {
        far = fmax(far, fabs(p.losses[i] - alone->losses[i]));
        far = fmax(far, fabs(p.norms[i] - alone->norms[i]));
    }
    far = fmax(far, fabs(p.validation - alone->validation));
    if (!(far <= 2e-6)) {
        fail_msg("%s: differs by %g", mesh, far);
    }
    remove(p.file);
}

/* Each dimension is a power of two, the product 8. */
TEST(every_mesh_of_eight) {
    program alone = {.mesh = "dp=1", .shape = deep_shape(false)};
    run_program(&alone, 1);
    assert_true(alone.losses[0] > 3 && alone.losses[STEPS - 1] < 4);
    int meshes = 0;
    for (int pp = 2; pp <= RANKS; pp *= 2) {
        for (int tp = 1; tp * pp <= RANKS; tp *= 2) {
            for (int cp = 1; cp * tp * pp <= RANKS; cp *= 2) {
                for (int shard = 1; shard * cp * tp * pp <= RANKS; shard *= 2) {
                    char mesh[128];
                    snprintf(mesh, sizeof(mesh), "pp=%d,tp=%d,cp=%d,shard=%d,stage=%d%s%s", pp, tp,
                             cp, shard, 1 + meshes % 3, tp > 1 && cp < 4 ? ",sequence" : "",
                             meshes % 4 == 3   ? ",gpipe"
                             : meshes % 4 == 1 ? ",zb_h1"
                                               : "");
                    expect_mesh(&alone, mesh, meshes % 2);
                    meshes++;
                }
            }
        }
    }
    assert_int_equal(meshes, 15);
    expect_mesh(&alone, "pp=2,chunks=2,dp=2,tp=2,sequence", true);
    expect_mesh(&alone, "pp=4,zb_h1,tp=2,sequence", true);
    remove(alone.file);
}

/* Rotary positions: a later stage has to know where its share of a sequence is. */
TEST(positions_of_later_stages) {
    program alone = {.mesh = "dp=1", .shape = deep_shape(true)};
    run_program(&alone, 1);
    static const char *const meshes[] = {
        "pp=2,tp=4,sequence",           "pp=4,cp=2,keys",          "pp=2,tp=2,cp=2,sequence",
        "pp=2,cp=2,keys,tp=2,sequence", "pp=2,chunks=2,cp=4,keys", "pp=2,shard=2,cp=2,stage=2",
    };
    for (size_t i = 0; i < sizeof(meshes) / sizeof(*meshes); i++) {
        expect_mesh(&alone, meshes[i], i % 2);
    }
    remove(alone.file);
}

/* A model that trains is measured as one that does not. */
static void measure_twice(tn_group *world, void *user) {
    mesh_shape shape = deep_shape(false);
    shape.dropout = 0.2;
    mesh_model m;
    mesh_init(&m, &shape, 3, true);
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
    mesh_shape shape = deep_shape(false);
    mesh_model m;
    mesh_init(&m, &shape, 3, true);
    tn_spread *s = mesh_spread(&m, world, user);
    tn_loader *loader = finite_loader(tn_spread_data(s));
    CHECK(tn_spread_step(s, loader, ROWS_HERE, NULL) > 0);
    CHECK(isnan(tn_spread_step(s, loader, ROWS_HERE, NULL)) && tn_error() == TN_OK);
    CHECK(isnan(tn_spread_loss(s, loader, (int64_t)INT32_MAX + 1)));
    CHECK(tn_error() == TN_EVALUE && strstr(tn_error_message(), "n is above 2147483647"));
    tn_error_clear();
    for (int measures = 0; measures < 2; measures++) {
        tn_loader_seek(loader, (tn_loader_place){0, 1});
        CHECK(isnan(measures ? tn_spread_loss(s, loader, ROWS_HERE)
                             : tn_spread_step(s, loader, ROWS_HERE, NULL)));
        CHECK(tn_error() == TN_EVALUE);
        CHECK(strstr(tn_error_message(), "the data end after 4 of 5 micro-batches"));
        tn_error_clear();
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

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
