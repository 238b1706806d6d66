/* One training run of a small language model, by any strategy on any ranks, and its oracle: one
 * rank with the batches of all.
 *
 * Sizes are irregular: cuts go through rows, and with several ranks some have nothing of a
 * parameter. Data and random numbers depend on the global micro-batch. The oracle adds gradients in
 * the order in which the ranks add them, so that data parallelism, sharding, and a pipeline whose
 * weights are not tied have its bits.
 */
#ifndef TERN_TESTS_PARALLEL_TRAIN_H
#define TERN_TESTS_PARALLEL_TRAIN_H

#include "tests/parallel/mesh_model.h"

#include <tern/tern.h>

#include <stdbool.h>
#include <stddef.h>

enum { TRAIN_MOST_RANKS = 8, TRAIN_ROWS = 2, TRAIN_MOST_MICROS = 64, TRAIN_MOST_STEPS = 20 };

/* The bits that a training run ends with, for comparison. */
typedef struct train_bits {
    char *data;
    size_t bytes;
} train_bits;

typedef enum train_how {
    TRAIN_DDP, /* these four: replicas * shards ranks */
    TRAIN_DDP_NAIVE,
    TRAIN_FSDP,
    TRAIN_FSDP_NAIVE,
    TRAIN_MESH, /* tn_spread, with the text `mesh` */
} train_how;

/* What is recomputed: parts of a block, blocks, blocks whose parts are the units of sharding, or
 * the model. */
typedef enum train_recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_INSIDE,
    RECOMPUTE_OVER,
    RECOMPUTE_AROUND,
    RECOMPUTE_WHOLE,
} train_recompute;

/* Forwards in evaluation mode before, between and after forward and backward. */
typedef enum train_looks { LOOKS_NEVER, LOOKS, LOOKS_RECORDED } train_looks;

typedef struct train_groups train_groups;

typedef struct train_run {
    mesh_shape model;
    bool bf16;     /* mixed precision: f32 parameters, computed in bf16 */
    bool late;     /* that policy is set after the strategy is attached */
    bool low;      /* parameters and their gradients are bf16 */
    bool deferred; /* built without elements, which are made when it is sharded */
    train_recompute recompute;
    const char *frozen;              /* paths of tn_freeze; NULL: none */
    tn_optim *(*optimiser)(void *m); /* NULL: AdamW */
    void (*prepare)(mesh_model *m);  /* before it is attached; may be NULL */

    train_how how;
    bool alone; /* the oracle: without a strategy, but adding gradients as `how` would */
    const char *mesh;
    int replicas, shards; /* ranks with different batches */
    tn_fsdp_options sharding;
    tn_ddp_options data;
    const tn_pipe_schedule *schedule; /* NULL: as `mesh` says */
    bool sum;                         /* gradients are summed over the ranks, not averaged */

    int micros; /* per step, on all ranks together */
    int steps;
    bool no_sync; /* only a rank's last micro-batch of a step is synchronised */
    bool flushes; /* none is: tn_sync_gradients does */
    train_looks looks;
    bool loader; /* on a mesh: by tn_spread_step, and a validation at the end */
    /* NULL: tn_lm_loss */
    tn_tensor *(*loss)(mesh_model *m, const train_groups *g, tn_tensor *x, tn_tensor *y);
    int ignored;   /* of each sequence, how many targets at the beginning do not count */
    bool scaled;   /* with a loss scale */
    bool averaged; /* the weights' average, too */
    bool adds;     /* no gradient is zeroed */
    void (*after)(mesh_model *m, int step); /* may be NULL */
    double clip;                            /* 0: none */
    bool clips_grad;                        /* by tn_clip_grad_norm, not by the optimiser */
} train_run;

/* What a run ends with, the same on all ranks. */
typedef struct train_end {
    double losses[TRAIN_MOST_STEPS + 1], norms[TRAIN_MOST_STEPS]; /* means; before clipping */
    int alive[TRAIN_MOST_RANKS]; /* of each rank of a pipeline: tn_pipeline_alive */
    train_bits bits;             /* all parameters, whole; malloc'ed */
} train_end;

/* A GPT with dropout on n ranks, each with one micro-batch; gradients are summed. */
train_run train_run_of(train_how how, int ranks);
/* On a mesh with means, without dropout, each rank with `each` micro-batches. */
train_run train_on_mesh(const char *mesh, bool llama, int each);
/* One rank with the same batches; or `mesh`, whose ranks accumulate them. */
train_run train_oracle(train_run run, const char *mesh);
int train_ranks(const train_run *run); /* how many a run needs */
const char *train_text(const train_run *run);

/* ---- In a rank ------------------------------------------------------------------------------- */

/* The world, and what was made of it. */
struct train_groups {
    tn_group *all, *shard, *replicate, *data; /* data: ranks with different batches */
    tn_mesh *mesh;
    tn_spread *spread;
    tn_pipeline *pipeline;
    tn_fsdp_state *fsdp;
    tn_loader *loader;
};

/* Tokens (even numbers) and targets (odd ones), the same on any rank. */
tn_tensor *train_tokens(const train_run *run, int64_t number);
void train_model(mesh_model *m, const train_run *run, uint64_t seed);
/* Attaches the strategy, as a program would. */
train_groups train_attach(mesh_model *m, const train_run *run, tn_group *world);
void train_detach(train_groups *groups); /* after the model is finished */
tn_optim *train_optimiser(mesh_model *m, const train_run *run);
/* Forwards and backwards of a step; the loss of all. */
double train_step(mesh_model *m, const train_run *run, train_groups *g, int64_t step,
                  tn_scaler *scaler);
/* A forward that must not change anything: neither the weights nor the random numbers. */
void train_look(mesh_model *m, const train_run *run);
/* All of it, as a rank of g. */
train_end train_as_rank(tn_group *g, const train_run *run);
/* Every parameter, whole, from what all ranks store of it, on which they must agree; malloc'ed. */
train_bits train_whole(void *m, tn_group *g);

/* ---- Comparing ------------------------------------------------------------------------------- */

void *train_grow(train_bits *bits, size_t bytes);
void train_join(train_bits *bits, train_bits more); /* appends `more` and frees it */
bool train_same(train_bits a, train_bits b);
/* The largest difference of f32 numbers; NaN if the counts differ. */
double train_difference(train_bits a, train_bits b);
/* Whether b is a: in every bit with `within` 0, else up to rounding. Says what differs. */
bool train_agrees(const train_end *a, const train_end *b, const train_run *run, double within);

/* Runs it on ranks that are threads, or alone; they must agree. Fails the test after an error. */
train_end train_on_threads(train_run run);
/* Fails the test if `run` does not end so. */
void train_expect(const train_end *want, train_run run, double within);
/* … as on one rank. */
void train_expect_alone(train_run run, double within);

/* ---- The matrix: stages 1 to 3, f32 and bf16, recompute, prefetch 0 to 2, and more ------------
 */

/* Every two values of two options are together in one of the runs, unless one rules the other out.
 * Returns how many there are; they stay as they are until the next call. */
int train_matrix(const train_run **runs, int ranks);
/* In every rank of a job: whether every nth run of the matrix has the oracle's bits. once: only the
 * runs in which a rank has one micro-batch a step. */
bool train_matrix_agrees(tn_group *world, int nth, bool once);

#endif
