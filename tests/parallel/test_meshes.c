/* On every mesh, and whatever a training program does on it, a model trains as on one rank: in its
 * bits where nothing is summed in another order, else up to rounding. Ranks are threads. */
#include "distributed/parallel/spread.h"
#include "tests/parallel/train.h"
#include "tests/support/pairs.h"

#include <stdlib.h>
#include <string.h>

static const char *const meshes[] = {
    "tp=2", "tp=4", "tp=2,sequence", "tp=4,sequence", "cp=2", "cp=4", "cp=2,keys", "cp=4,keys",
    /* two of them and more, among others all of 8 ranks */
    "dp=4", "dp=2,shard=2", "shard=8,stage=2", "tp=2,dp=2", "tp=2,shard=2,stage=1", "tp=2,cp=2",
    "cp=2,dp=2,keys", "cp=2,shard=2,stage=2", "cp=2,keys,shard=4,stage=2", "tp=8,sequence", "cp=8",
    "cp=8,keys", "tp=4,cp=2,sequence", "tp=2,cp=4", "tp=2,cp=2,keys,sequence,shard=2",
    "tp=4,shard=2,sequence", "tp=2,shard=4,sequence", "tp=2,dp=2,shard=2,stage=1", "cp=4,shard=2",
    "tp=2,cp=2,dp=2",
    /* pipelines */
    "pp=2", "pp=3,gpipe", "pp=2,chunks=2", "pp=4,zb_h1", "pp=8", "pp=2,dp=2,zb_h1",
    "pp=2,shard=2,stage=1", "pp=4,shard=2,stage=2,gpipe", "pp=2,shard=4,chunks=2", "pp=4,tp=2",
    "pp=4,zb_h1,tp=2,sequence", "pp=4,cp=2,keys", "pp=4,cp=2,zb_h1", "pp=2,tp=4,sequence",
    "pp=2,cp=4,gpipe", "pp=2,chunks=2,cp=4,keys", "pp=2,tp=2,cp=2,sequence,zb_h1",
    "pp=2,cp=2,keys,tp=2,sequence", "pp=2,tp=2,shard=2,stage=1", "pp=2,shard=2,cp=2,stage=2",
    "pp=2,chunks=2,dp=2,tp=2,sequence", "pp=2,dp=2,shard=2,stage=3"};

typedef enum axis {
    MESH,
    MODEL,
    BF16,
    RECOMPUTE,
    LOOKED,
    SENDING,
    SCALED,
    FROZEN,
    OPTIMISER,
    DEFERRED,
    LOSS,
    AVERAGED,
    LOADER,
    DROPOUT,
    AXES,
} axis;

static const int sizes[AXES] = {
    [MESH] = sizeof(meshes) / sizeof(*meshes),
    [MODEL] = 3,
    [BF16] = 2,
    [RECOMPUTE] = 3,
    [LOOKED] = 3,
    [SENDING] = 3,
    [SCALED] = 2,
    [FROZEN] = 3,
    [OPTIMISER] = 3,
    [DEFERRED] = 2,
    [LOSS] = 3,
    [AVERAGED] = 2,
    [LOADER] = 2,
    [DROPOUT] = 2,
};

/* ---- Optimisers ------------------------------------------------------------------------------ */

static tn_optim *make_sgd(void *m) {
    return tn_sgd(m, TN_WITH(tn_sgd, .lr = 0.5, .momentum = 0.9));
}

static tn_optim *make_adamw(void *m) {
    return tn_adamw(m, TN_WITH(tn_adamw, .eps = 1e-6));
}

static tn_optim *make_lamb(void *m) {
    return tn_lamb(m, TN_WITH(tn_lamb, .lr = 1e-2));
}

static tn_optim *make_adafactor(void *m) {
    return tn_adafactor(m, tn_adafactor_defaults());
}

static tn_optim *make_muon(void *m) {
    return tn_muon(m, TN_WITH(tn_muon, .lr = 1e-2, .adamw_eps = 1e-6));
}

/* Of what the model returns: of this rank's positions. */
static tn_tensor *own_loss(mesh_model *m, const train_groups *g, tn_tensor *x, tn_tensor *y) {
    if (g->spread) {
        y = tn_context_slice(tn_spread_group(g->spread, "cp"), g->spread->options.context, y, 1);
    }
    return tn_cross_entropy(tn_call(m, x), y, TN_MEAN);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* Of a gpt and a llama: parts of a block, and a matrix with two names or whole blocks. */
static const char *const frozen[][2] = {{NULL, NULL},
                                        {"h.0.mlp h.2 wpe", "layers.0.mlp layers.2 norm"},
                                        {"wte", "layers.0 layers.1 embed_tokens"}};

/* Nothing is added in another order: neither products of cut matrices, nor parts of a loss, nor
 * both uses of a tied weight. */
static bool is_exact(const train_run *run) {
    bool tied = !run->model.llama || run->model.tied;
    return !strstr(run->mesh, "tp=") && !strstr(run->mesh, "cp=") &&
           !(tied && strstr(run->mesh, "pp="));
}

static double within_of(const train_run *run) {
    return is_exact(run) ? 0 : run->optimiser == make_sgd ? 2e-6 : 1e-5;
}

static void choose_model(train_run *run, const unsigned char *row) {
    static tn_optim *(*const optimisers[])(void *m) = {make_sgd, make_adamw, make_lamb, make_muon,
                                                       make_adafactor};
    bool eight = strstr(run->mesh, "tp=8") || strstr(run->mesh, "cp=8") ||
                 strstr(run->mesh, "tp=4,cp=2") || strstr(run->mesh, "tp=2,cp=4");
    run->model.tied = row[MODEL] == 2;
    run->model.layers = strstr(run->mesh, "pp=") ? 6 : 3;
    run->model.heads = 8;
    run->model.kv_heads = eight ? 8 : 4;
    run->model.width = 32;
    run->model.length = 16;
    /* not adafactor, which divides gradients by their own sizes, after the longest sums */
    int other = strstr(run->mesh, "pp=") ? 2 + row[MESH] % 2 : 2 + row[MESH] % 3;
    run->optimiser = optimisers[row[OPTIMISER] == 2 ? other : row[OPTIMISER]];
    /* the gradients of the keys' biases are rounding errors, of which most make whole steps */
    run->model.bias = run->optimiser == make_sgd;
    bool same_masks = !strstr(run->mesh, "cp=") && !strstr(run->mesh, "sequence");
    run->model.dropout = same_masks && row[DROPOUT] ? 0.1 : 0;
}

static train_run run_of_row(const unsigned char *row) {
    static const train_recompute recomputes[] = {RECOMPUTE_NONE, RECOMPUTE_OVER, RECOMPUTE_WHOLE};
    static const int ignored[] = {1, 7, 0};
    train_run run =
        train_on_mesh(meshes[row[MESH]], row[MODEL] > 0, strstr(meshes[row[MESH]], "pp=") ? 4 : 2);
    run.steps = 2;
    choose_model(&run, row);
    run.bf16 = row[BF16] && is_exact(&run);
    run.recompute = recomputes[row[RECOMPUTE]];
    run.looks = (train_looks)row[LOOKED];
    run.no_sync = row[SENDING] == 0 || strstr(run.mesh, "pp="); /* a pipeline's step sends once */
    run.flushes = row[SENDING] == 2;
    run.scaled = row[SCALED];
    run.frozen = frozen[row[FROZEN]][run.model.llama];
    run.deferred = row[DEFERRED];
    run.ignored = ignored[row[LOSS]];
    run.loss = row[LOSS] == 2 && !strstr(run.mesh, "pp=") ? own_loss : NULL;
    run.averaged = row[AVERAGED];
    run.loader = row[LOADER] && !run.loss;
    if (run.loader) { /* as tn_spread_step does it */
        run.no_sync = run.shards == 1 || run.sharding.stage < 2 || strstr(run.mesh, "pp=");
        run.flushes = false;
        run.looks = run.looks ? LOOKS : LOOKS_NEVER;
    }
    return run;
}

static void expect_half(int half) {
    static pairs p;
    pairs_make(&p, sizes, AXES);
    for (int i = half; i < p.count; i += 2) {
        train_run run = run_of_row(p.rows[i]);
        train_expect_alone(run, within_of(&run));
    }
}

PLAIN_TEST(every_mesh) {
    expect_half(0);
}

PLAIN_TEST(every_mesh_again) {
    expect_half(1);
}
