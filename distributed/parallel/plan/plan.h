/* Planning: what its files share. The public side is tern/plan.h.
 *
 *     model.c     what a model has, for one micro-batch's position: read it first
 *     memory.c    bytes of a rank
 *     time.c      seconds of a step
 *     plan.c      options, what fits a model, the whole plan; all meshes
 *
 * Nothing is attached: a rank's parts of a large model take more memory than the machine has that
 * plans it, and a search tries hundreds of meshes. What strategies lay out is computed with the
 * functions that they use themselves (flat.h, nn/layout.h, tn__pipe_cut), and tests compare the
 * bytes at rest with those of real ranks, exactly.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_PLAN_H
#define TERN_DISTRIBUTED_PARALLEL_PLAN_H

#include "distributed/parallel/pipeline/pipeline.h"
#include "nn/layout.h"
#include "tern/plan.h"

typedef struct tn__plan_param {
    const tn_tensor *tensor;
    tn_layout layout; /* the whole, and along which dimension tp cuts it into how many pieces */
    int first, last;  /* parts of the model that use it */
    bool block;       /* in a block, which is a unit of sharding; else in the rest */
} tn__plan_param;

typedef struct tn__plan_model {
    tn_lm_shape shape;
    tn__plan_param *params; /* [count] of which at most one is tied */
    int count;
    int64_t capacity;
    int parts;     /* layers + 2 */
    double *costs; /* [parts] of a stage, for cutting (tn__pipe_cost) */

    double attended, attended_kv; /* heads times their width: of queries; of keys, or values */
    double products; /* elements of a block's matrices: one multiplication each for a position */
    double table;    /* of the matrix that makes logits */
    /* Numbers in the compute dtype that a block keeps for a position: which ranks of tp divide, or
     * only with `sequence`, or (read by linears that are cut by rows) not at all. */
    double kept_cut, kept, read;
} tn__plan_model;

/* False after raising; tn__plan_model_free in any case. */
bool tn__plan_read_model(void *m, tn__plan_model *model);
void tn__plan_model_free(tn__plan_model *model);

/* Parameters in one flat buffer, in elements. */
typedef struct tn__plan_set {
    int64_t total, each; /* of the buffer without the end that makes parts equal, and of a part */
    int64_t placed;      /* so far */
} tn__plan_set;

/* A mesh that fits the model, and which parts its stages have. */
typedef struct tn__plan_case {
    const tn__plan_model *model;
    tn_plan_options o;  /* all sizes are known */
    int parts;          /* ranks that share what a rank of tp and pp has: shard and cp; 1: DDP */
    int stage;          /* of sharding; 0: DDP */
    int stages;         /* of the pipeline */
    int row;            /* ranks of the world with the same place in it */
    int *first;         /* [stages + 1] parts */
    int *pp;            /* [model->parts] the place of the ranks that have the part */
    tn__plan_set *sets; /* [model->parts]: the rest's, the blocks', the tied parameter's; scratch */
    tn_pipe_schedule *schedule; /* NULL: one rank, which accumulates */
    int micros;
    double step;   /* tokens of all ranks and micro-batches */
    double tokens; /* of a micro-batch, on a rank */
    double slices; /* of an x between blocks: tp with `sequence`, else 1 */
    double size;   /* bytes of a number in the compute dtype; and in a micro-batch … */
    double x;      /* … of an x between blocks, … */
    double graph;  /* … of what a block keeps between forward and backward, … */
    double logits; /* … and of these */
} tn__plan_case;

/* Elements of a rank. */
typedef struct tn__plan_count {
    int tensors;     /* parameters */
    int blocks;      /* that have any */
    int64_t stepped; /* of this rank's parts … */
    int64_t stored;  /* … with the spaces between parameters */
    int64_t whole;   /* in all ranks' parts */
    int64_t block;   /* of these in the largest block; 0: there is none */
    int64_t rest;    /* of these in no block */
} tn__plan_count;

tn__plan_count tn__plan_elements(const tn__plan_case *c, int rank);
/* Elements of a parameter on rank tp of n. */
int64_t tn__plan_block(const tn__plan_param *p, int tp, int n);

/* Bytes of a rank that has n; and seconds of a step for it, and where they go. *plan stays if it
 * has more of them. */
void tn__plan_memory(const tn__plan_case *c, const tn__plan_count *n, int rank, tn_plan *plan);
void tn__plan_time(const tn__plan_case *c, const tn__plan_count *n, int rank, tn_plan *plan);

#endif
