/* What training a language model on many ranks will take, before there are any: bytes of a rank,
 * seconds of a step, and where they go (docs/planning.md).
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
#include "tern/split.h"

/* One rank's device, and how ranks reach each other. The defaults are an A100 of 80 GB among eight
 * in a host, each with a link of its own to other hosts. */
typedef struct tn__plan_machine {
    int per_host;        /* 8 ranks */
    double memory;       /* 80e9 bytes of a rank */
    double flops;        /* 312e12 per second at most, in bf16 and f16 */
    double flops_f32;    /* 19.5e12 */
    double reached;      /* 0.6: the share of them that products of matrices reach */
    double memory_speed; /* 1.6e12 bytes per second */
    double host_link;    /* 235e9 bytes per second and rank, within a host */
    double network_link; /* 20e9, between hosts */
} tn__plan_machine;

typedef struct tn__plan_options {
    int ranks;              /* 1 */
    tn_spread_options mesh; /* its pipeline's cuts, and units of sharding, are the default ones */
    int64_t batch;          /* 1: sequences of a micro-batch */
    int64_t positions;      /* 0: the model's context */
    int64_t tokens;   /* of a step, on all ranks; 0: 512K, or the next that micro-batches divide */
    tn_dtype compute; /* TN_BF16: of products, activations and gathered weights; TN_F16, TN_F32 */
    bool recompute;   /* false; blocks keep only their inputs */
    int rank;         /* -1: the first rank of the stage that needs most; else this one's bytes */
    tn__plan_machine machine;
} tn__plan_options;
TN_API tn__plan_options tn__plan_defaults(void);

typedef struct tn__plan_result {
    int pp, dp, shard, cp, tp, stage; /* stage: of sharding; 0: DDP */
    bool recompute;
    int micros;         /* micro-batches of a rank in a step */
    int64_t parameters; /* of the whole model */
    int rank;           /* whose bytes these are */

    /* Bytes between two steps. With offload `host` are on the CPU, the others on the device. */
    int64_t weights;   /* parameters, or parts of them */
    int64_t copies;    /* the same in the compute dtype; gathered ones that stay (stages 1, 2) */
    int64_t gradients; /* and the buffers from which they travel */
    int64_t states;    /* of Adam, or another optimiser with two for each parameter */
    int64_t rest;      /* the sum of these */
    int64_t host;      /* of that sum, on the CPU */
    /* Modelled: bytes more in a step. */
    int64_t gathered;    /* units that are whole at once (stage 3) */
    int64_t activations; /* what forwards keep for backwards */
    int64_t working;     /* logits, gradients and results on their way */
    int64_t peak;        /* of the device: rest without host, and these three */
    bool fits;           /* in the machine's memory */

    /* Modelled: seconds of a step, and where they go. */
    double seconds;
    double compute;  /* products and the like */
    double exchange; /* sums of tp and exchanges of cp */
    double data;     /* waiting for weights and gradients of other data's ranks */
    double bubble;   /* waiting for other stages */
    double optimiser;
    double tokens;      /* of a step */
    double utilisation; /* the model's operations, without recompute, as a share of `flops` */
} tn__plan_result;

/* Plans a step of m, a language model (tn_lm_shape_of) without a split, perhaps built under
 * TN_DEFER_INIT. Numbers are in their ranges. After an error *plan is zeros: TN_EVALUE, more
 * positions than the model sees, sizes whose product is not the number of ranks, tokens that
 * micro-batches do not divide; TN_ESHAPE, a size of m that a dimension of the mesh does not divide.
 */
TN_API tn_status tn__plan_of(void *m, tn__plan_options options, tn__plan_result *plan);

/* Tries every mesh of dp, shard (stages 1 to 3; with pp 2 and 3), tp within a host, and pp that
 * fits, with and without recompute unless the options ask for it, and writes the `most` fastest
 * ones, fastest first. options.mesh gives the rest: cp, sequence. Returns how many there are; 0
 * after an error, or if nothing fits. */
TN_API int tn__plan_search(void *m, tn__plan_options options, tn__plan_result *best, int most);

/* ---- Inside ---------------------------------------------------------------------------------- */

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
    tn__plan_options o; /* all sizes are known */
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
void tn__plan_memory(const tn__plan_case *c, const tn__plan_count *n, int rank,
                     tn__plan_result *plan);
void tn__plan_time(const tn__plan_case *c, const tn__plan_count *n, int rank,
                   tn__plan_result *plan);

#endif
