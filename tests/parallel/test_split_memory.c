/* What splitting saves: bytes at rest exactly, activations with `sequence` and cp exactly, and
 * training, and reading for generation, a model that no rank could hold alone. */
#include "tests/distributed/rank_check.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"

enum { BATCH = 2, LENGTH = 32, WIDTH = 64, HEADS = 4, VOCAB = 101 };

typedef struct setting {
    const char *mesh;
    int layers;
    int64_t bytes; /* on all ranks */
} setting;

static void init_model(tn_gpt *m, int layers, int64_t width) {
    tn_gpt_options o = TN_WITH(tn_gpt, .vocab = VOCAB, .context = LENGTH, .layers = layers,
                               .heads = HEADS, .width = width);
    tn_seed(1);
    TN_DEFER_INIT;
    tn_gpt_init(m, o);
    for (int i = 0; i < layers; i++) {
        tn_module_set_recompute(&m->h[i], true);
    }
}

static tn_spread *spread_model(tn_gpt *m, tn_group *world, const char *mesh) {
    tn_spread_options o = tn_spread_defaults();
    o.data.bucket_bytes = 1; /* a group of one needs no buckets */
    tn_spread_read(&o, mesh);
    return tn_spread_new(m, world, o);
}

/* ---- At rest --------------------------------------------------------------------------------- */

/* Elements on a rank: cut matrices and the biases of columns are divided, the rest is not. */
static int64_t elements_of(int rank, int ranks, int layers) {
    int64_t C = WIDTH, cut = 12 * C * C + 3 * C + 4 * C, whole = C + C + 4 * C;
    int64_t each = (VOCAB + ranks - 1) / ranks, left = VOCAB - rank * each;
    return layers * (cut / ranks + whole) + (left < each ? left : each) * C + LENGTH * C + 2 * C;
}

/* Bytes of weights, Adam's two states and its step counts, on all ranks together. */
static int64_t cut_bytes(int ranks, int layers) {
    int64_t bytes = 0;
    for (int r = 0; r < ranks; r++) {
        bytes += 12 * elements_of(r, ranks, layers) + 8 * (12 * layers + 4);
    }
    return bytes;
}

/* Together the stages have the model once, and the tied embedding twice. */
static int64_t staged_bytes(tn_gpt *m, int layers) {
    return 12 * (tn_module_count(m) + VOCAB * WIDTH) + 8 * (12 * layers + 4 + 1);
}

static void take_step(tn_gpt *m, tn_pipeline *p) {
    TN_SCOPE;
    tn_tensor *x = tn_zeros(TN_DIMS(BATCH, LENGTH), TN_I64);
    tn_batch b[2] = {{.x = x, .y = x}, {.x = x, .y = x}};
    if (p) {
        CHECK(tn_pipeline_step(p, b, 2, NULL) > 0);
    } else {
        tn_backward(tn_lm_loss(m, x, x));
    }
}

/* In stages, or cut. */
static void rests_between_steps(tn_group *world, void *user) {
    static int64_t before;
    enum { LAYERS = 3 };
    bool stages = *(bool *)user;
    tn_barrier(world);
    if (tn_group_rank(world) == 0) { before = tn_memory().allocated; }
    tn_barrier(world);
    tn_gpt m;
    init_model(&m, LAYERS, WIDTH);
    tn_pipeline *p = stages ? tn_pipeline_new(&m, world, tn_pipeline_defaults()) : NULL;
    CHECK(p || tn_tensor_parallel(&m, world, tn_tp_defaults()) == TN_OK);
    tn_module_materialize(&m);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    for (int step = 0; step < 2; step++) {
        take_step(&m, p);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    tn_barrier(world);
    if (tn_group_rank(world) == 0) {
        int64_t is = tn_memory().allocated - before;
        CHECK(is == (stages ? staged_bytes(&m, LAYERS) : cut_bytes(tn_group_size(world), LAYERS)));
    }
    tn_barrier(world);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(test_bytes_at_rest) {
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        run_ok(ranks, rests_between_steps, &(bool){false});
    }
    for (int ranks = 2; ranks <= 4; ranks++) {
        run_ok(ranks, rests_between_steps, &(bool){true});
    }
}

/* ---- Activations ----------------------------------------------------------------------------- */

/* The bytes that all ranks hold for backward, with blocks that keep only their inputs. */
static void runs_forward(tn_group *world, void *user) {
    setting *s = user;
    tn_gpt m;
    init_model(&m, s->layers, WIDTH);
    tn_spread *spread = spread_model(&m, world, s->mesh);
    tn_optim *opt = tn_sgd(&m, tn_sgd_defaults());
    tn_barrier(world);
    int64_t before = tn_memory().allocated;
    tn_barrier(world);
    TN_SCOPE;
    tn_tensor *x = tn_zeros(TN_DIMS(BATCH, LENGTH), TN_I64);
    tn_tensor *loss = tn_lm_loss(&m, x, x);
    tn_barrier(world);
    if (tn_group_rank(world) == 0) { s->bytes = tn_memory().allocated - before; }
    tn_barrier(world);
    tn_backward(loss);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

/* Bytes of one block, on all ranks. */
static int64_t block_bytes(int ranks, const char *mesh) {
    setting few = {.mesh = mesh, .layers = 1}, many = {.mesh = mesh, .layers = 3};
    run_ok(ranks, runs_forward, &few);
    run_ok(ranks, runs_forward, &many);
    return (many.bytes - few.bytes) / 2;
}

TEST(test_activations) {
    int64_t one = BATCH * LENGTH * WIDTH * 4;
    assert_int_equal(block_bytes(1, "tp=1"), one);
    assert_int_equal(block_bytes(2, "tp=2"), 2 * one); /* each rank has the whole */
    assert_int_equal(block_bytes(2, "tp=2,sequence"), one);
    assert_int_equal(block_bytes(4, "tp=4,sequence"), one);
    assert_int_equal(block_bytes(2, "cp=2"), one);
    assert_int_equal(block_bytes(4, "tp=2,cp=2,sequence"), one);
}

/* ---- What one rank cannot hold: processes with a memory limit -------------------------------- */

enum { LARGE = 256 };

/* The argument is the mesh; the limit is 12 of the 16 bytes that a parameter needs on one rank. */
RANK(trains_within) {
    tn_gpt m;
    init_model(&m, 2, LARGE);
    tn_memory_set_limit(tn_memory().allocated + 12 * tn_module_count(&m));
    tn_spread *spread = spread_model(&m, world, argument);
    tn_optim *opt = tn_error() ? NULL : tn_adamw(&m, tn_adamw_defaults());
    tn_tensor *x = tn_zeros(TN_DIMS(4, LENGTH), TN_I64);
    tn_loader *data = tn_loader_new(tn_tensor_dataset(x, x), tn_sequential_sampler(),
                                    TN_WITH(tn_loader, .batch = 1, .epochs = 0));
    double first = 0, last = 0;
    for (int step = 0; step < 3 && !tn_error(); step++) {
        last = tn_spread_step(spread, data, 2, NULL);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        first = step == 0 ? last : first;
    }
    bool fits = strchr(argument, ',') != NULL;
    rank_assert(fits ? tn_error() == TN_OK && last < first
                     : tn_error() == TN_ENOMEM || tn_error() == TN_EPEER);
    tn_error_clear();
    tn_loader_free(data);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(spread);
    return 0;
}

PLAIN_TEST(test_what_one_rank_cannot_hold) {
    ranks_pass(4, "trains_within", "dp=4");
    ranks_pass(4, "trains_within", "tp=2,shard=2");
    ranks_pass(4, "trains_within", "pp=2,tp=2");
}

enum { WRITTEN = 12 };

/* The argument: the mesh and a folder. The limit is three quarters of what the weights take on one
 * rank; "dp=2" has the whole on each. */
RANK(writes_within) {
    char mesh[64], folder[256];
    rank_assert(sscanf(argument, "%63s %255s", mesh, folder) == 2);
    tn_spread_options o = TN_WITH(tn_spread, .inference = true);
    tn_spread_read(&o, mesh);
    tn_module *m;
    {
        TN_DEFER_INIT;
        m = tn_lm_load(folder, tn_lm_load_defaults());
    }
    tn_memory_set_limit(tn_memory().allocated + 3 * tn_module_count(m));
    tn_spread *spread = tn_spread_new(m, world, o);
    tn_lm_load_weights(m, folder);
    tn_module_train(m, false);
    tn_prompt prompt = {(const int32_t[]){3, 4}, 2};
    tn_generated out = {0};
    tn_generate(m, &prompt, 1, TN_WITH(tn_generate, .max_new = WRITTEN, .temperature = 0), &out);
    bool fits = strcmp(mesh, "dp=2") != 0;
    rank_assert(fits ? out.tokens.count == WRITTEN : tn_error() == TN_ENOMEM);
    tn_error_clear();
    tn_generated_free(&out, 1);
    tn_module_free(m);
    tn_spread_free(spread);
    return 0;
}

PLAIN_TEST(test_what_one_rank_cannot_read) {
    static const char *const meshes[] = {"dp=2", "pp=2", "tp=2", "pp=2,tp=2", "shard=4"};
    tn_gpt m;
    init_model(&m, 4, LARGE);
    tn_module_materialize(&m);
    const char *folder = temp_path("large");
    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    tn_module_finish(&m);
    for (size_t i = 0; i < sizeof(meshes) / sizeof(*meshes); i++) {
        char argument[384];
        snprintf(argument, sizeof(argument), "%s %s", meshes[i], folder);
        ranks_pass(i < 3 ? 2 : 4, "writes_within", argument);
    }
}
