/* What training a language model on many ranks will take, before there are any: bytes of a rank,
 * seconds of a step, and where they go.
 *
 *     TN_DEFER_INIT;                                   // a model of any size takes no memory
 *     tn_gpt_init(&gpt, options);
 *     tn_plan_options o = tn_plan_defaults();
 *     o.ranks = 16;
 *     tn_spread_read(&o.mesh, "shard=4,tp=2,pp=2");
 *     tn_plan plan;
 *     tn_plan_of(&gpt, o, &plan);
 *
 * Bytes at rest are exact: they follow from the model's parameters and from where tn_pipeline_new,
 * tn_tensor_parallel, tn_fsdp and tn_ddp lay them. The peak and all times are modelled.
 *
 * Read next: docs/planning.md, distributed/parallel/plan/memory.c.
 */
#ifndef TERN_PLAN_H
#define TERN_PLAN_H

#include "split.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's device, and how ranks reach each other. The defaults are an A100 of 80 GB among eight
 * in a host, each with a link of its own to other hosts. */
typedef struct tn_plan_machine {
    int per_host;        /* 8 ranks */
    double memory;       /* 80e9 bytes of a rank */
    double flops;        /* 312e12 per second at most, in bf16 and f16 */
    double flops_f32;    /* 19.5e12 */
    double reached;      /* 0.6: the share of them that products of matrices reach */
    double memory_speed; /* 1.6e12 bytes per second */
    double host_link;    /* 235e9 bytes per second and rank, within a host */
    double network_link; /* 20e9, between hosts */
} tn_plan_machine;

typedef struct tn_plan_options {
    int ranks;              /* 1 */
    tn_spread_options mesh; /* its pipeline's cuts, and units of sharding, are the default ones */
    int64_t batch;          /* 1: sequences of a micro-batch */
    int64_t positions;      /* 0: the model's context */
    int64_t tokens;   /* of a step, on all ranks; 0: 512K, or the next that micro-batches divide */
    tn_dtype compute; /* TN_BF16: of products, activations and gathered weights; TN_F16, TN_F32 */
    bool recompute;   /* false; blocks keep only their inputs */
    int rank;         /* -1: the first rank of the stage that needs most; else this one's bytes */
    tn_plan_machine machine;
    bool from_defaults;
} tn_plan_options;
TN_API tn_plan_options tn_plan_defaults(void);

typedef struct tn_plan {
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
} tn_plan;

/* Plans a step of m, a language model (tn_lm_shape_of), which has no split yet and may have been
 * built under TN_DEFER_INIT. After an error *plan is zeros: TN_EVALUE, options out of range, sizes
 * whose product is not the number of ranks, tokens that micro-batches do not divide; TN_ESHAPE, a
 * size of m that a dimension of the mesh does not divide. */
TN_API tn_status tn_plan_of(void *m, tn_plan_options options, tn_plan *plan);

/* Tries every mesh of dp, shard (stages 1 to 3; with pp 2 and 3), tp within a host, and pp that
 * fits, with and without recompute unless the options ask for it, and writes the `most` fastest
 * ones, fastest first. options.mesh gives the rest: cp, sequence. At most 1048576 ranks. Returns
 * how many there are; 0 after an error, or if nothing fits. */
TN_API int tn_plan_search(void *m, tn_plan_options options, tn_plan *best, int most);

#ifdef __cplusplus
}
#endif
#endif
