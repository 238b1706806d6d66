/* The options of data parallelism and sharding, every two values of two options together: see
 * train.h. */
#include "tests/parallel/train.h"

#include "tests/support/pairs.h"

#include <stdio.h>
#include <stdlib.h>

typedef enum axis {
    STRATEGY,
    REPLICAS,
    MODEL,
    BF16,
    RECOMPUTE,
    LOOKED,
    MICROS,
    SUM,
    CLIP,
    DEFERRED,
    PREFETCH,
    UNITS,
    IGNORE,
    OFFLOAD,
    FROZEN,
    SCALED,
    AXES,
} axis;

static const int sizes[AXES] = {
    [STRATEGY] = 8, [REPLICAS] = 2, [MODEL] = 3,  [BF16] = 2,     [RECOMPUTE] = 5, [LOOKED] = 3,
    [MICROS] = 4,   [SUM] = 2,      [CLIP] = 3,   [DEFERRED] = 2, [PREFETCH] = 4,  [UNITS] = 8,
    [IGNORE] = 4,   [OFFLOAD] = 2,  [FROZEN] = 5, [SCALED] = 2,
};

/* Of a gpt and of a llama. */
static const char *const units[][2] = {
    {NULL, NULL},
    {"h.0 h.2", "layers.0 layers.2"},
    {"h.*.mlp", "layers.*.mlp"},
    {"h.* ln_f", "layers.* norm"},
    {"h.1", "layers.1"},
    /* a head whose weight may be the embedding's */
    {"wte h.* lm_head", "embed_tokens layers.* lm_head"},
    {"lm_head", "lm_head"},
    {"wte", "embed_tokens"},
};
static const char *const ignored[][2] = {
    {NULL, NULL},
    {"wte.weight", "embed_tokens.weight"},
    {"h.*.ln_1.weight h.*.ln_1.bias", "layers.*.input_layernorm.weight"},
    {"h.1.mlp.c_fc.weight", "layers.1.mlp.up_proj.weight"},
};
static const char *const frozen[][2] = {{NULL, NULL}, {"wte", "embed_tokens"}, {"h.1", "layers.1"}};

static void freeze_later(mesh_model *m, int step) {
    if (step == 0) { tn_freeze(m, "*.1"); }
}

static void thaw_later(mesh_model *m, int step) {
    if (step == 0) { tn_module_requires_grad(m, true); }
}

static void choose_strategy(train_run *run, int value) {
    static const train_how hows[] = {TRAIN_FSDP, TRAIN_FSDP, TRAIN_FSDP,      TRAIN_FSDP_NAIVE,
                                     TRAIN_DDP,  TRAIN_DDP,  TRAIN_DDP_NAIVE, TRAIN_DDP};
    run->how = hows[value];
    run->sharding.stage = value < 3 ? 3 - value : 3;
    run->data.overlap = value != 5;
    run->data.bucket_bytes = value == 5 ? 25 << 20 : value == 7 ? 1 : 20 << 10;
}

/* What a step does. Averages are all that the naive versions support, and only they can be reduced
 * again. */
static void choose_program(train_run *run, const unsigned char *row) {
    static const int each[] = {1, 3, 3, 2};
    run->micros *= each[row[MICROS]];
    run->no_sync = row[MICROS] == 1;
    run->flushes = row[MICROS] == 3;
    run->sum = row[SUM] == 0 && row[MICROS] != 2;
    if (run->how == TRAIN_FSDP_NAIVE || run->how == TRAIN_DDP_NAIVE) { run->sum = false; }
    run->looks = (train_looks)row[LOOKED];
    run->clip = row[CLIP] ? 0.2 : 0;
    run->clips_grad = row[CLIP] == 2;
    run->scaled = row[SCALED];
}

static train_run run_of_row(const unsigned char *row, int ranks) {
    train_run run = train_run_of(TRAIN_FSDP, ranks);
    choose_strategy(&run, row[STRATEGY]);
    choose_program(&run, row);
    bool llama = row[MODEL] > 0;
    run.model.llama = llama;
    run.model.tied = row[MODEL] == 2;
    run.model.width = llama ? 12 : 10;
    if (run.how == TRAIN_FSDP && row[REPLICAS] && ranks % 2 == 0) {
        run.replicas = 2;
        run.shards = ranks / 2;
    }
    /* in bf16 the gradients of one weight in two units are rounded apart */
    run.bf16 = row[BF16] && row[UNITS] < 5;
    run.recompute = (train_recompute)row[RECOMPUTE];
    run.deferred = row[DEFERRED];
    run.frozen = frozen[row[FROZEN] == 4 ? 1 : row[FROZEN] % 3][llama];
    run.after = row[FROZEN] == 3 ? freeze_later : row[FROZEN] == 4 ? thaw_later : NULL;
    run.sharding.prefetch = row[PREFETCH] % 3;
    run.sharding.find_unused = run.data.find_unused = row[PREFETCH] == 3;
    run.sharding.units = units[row[UNITS]][llama];
    run.sharding.ignore = ignored[row[IGNORE]][llama];
    run.sharding.offload = row[OFFLOAD] && run.how == TRAIN_FSDP;
    return run;
}

int train_matrix(const train_run **runs, int ranks) {
    static pairs p;
    static train_run made[PAIRS_ROWS];
    if (p.count == 0) { pairs_make(&p, sizes, AXES); }
    for (int i = 0; i < p.count; i++) {
        made[i] = run_of_row(p.rows[i], ranks);
    }
    *runs = made;
    return p.count;
}

bool train_matrix_agrees(tn_group *world, int nth, bool once) {
    const train_run *runs;
    int ranks = tn_group_size(world), count = train_matrix(&runs, ranks), at = 0;
    bool good = true;
    for (int i = 0; i < count && !tn_error(); i++) {
        if ((once && runs[i].micros > ranks) || at++ % nth > 0) { continue; }
        train_run alone = train_oracle(runs[i], NULL);
        train_end want = train_as_rank(NULL, &alone), is = train_as_rank(world, &runs[i]);
        if (tn_error() || !train_agrees(&want, &is, &runs[i], 0)) {
            fprintf(stderr, "%s: not one rank's bits (%s)\n", train_text(&runs[i]),
                    tn_error_message());
            good = false;
        }
        free(want.bits.data);
        free(is.bits.data);
    }
    return good && !tn_error();
}
