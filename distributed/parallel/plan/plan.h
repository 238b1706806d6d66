/* Planning: what its files share. The public side is tern/plan.h.
 *
 *     model.c     what a model has, for one micro-batch's position: read it first
 *     memory.c    bytes of a rank
 *     time.c      seconds of a step
 *     plan.c      options, sizes, the whole plan
 *     search.c    all meshes
 *     measure.c   what this machine reaches
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_PLAN_H
#define TERN_DISTRIBUTED_PARALLEL_PLAN_H

#include "distributed/parallel/base.h"
#include "tern/plan.h"

/* A parameter. */
typedef struct tn__plan_param {
    tn_dims whole;
    int dim, pieces; /* how tensor parallelism cuts it; dim -1: not at all */
    int first, last; /* parts of the model that use it */
    bool block;      /* in a block, which is a unit of sharding; else in the rest */
} tn__plan_param;

/* What a part computes and keeps for each position; cut: what the ranks of tp divide. */
typedef struct tn__plan_work {
    double products, products_cut; /* elements of matrices: one multiplication each */
    double kept, kept_cut;         /* numbers in the compute dtype: under `sequence` divided, too */
    double read;                   /* by linears that are cut by rows: whole on each rank */
    double sums;                   /* f32 numbers: of norms */
    double widest;                 /* numbers of the largest result */
    double matrix, matrix_cut;     /* elements of the largest matrix, one of the two */
} tn__plan_work;

typedef struct tn__plan_model {
    tn_lm_shape shape;
    int64_t attended, attended_kv; /* heads times their width: of queries; of keys, or values */
    tn__plan_param *params;
    int count;
    int64_t capacity;
    int parts;
    tn_module **part;
    double *costs; /* [parts] of a stage, for cutting (tn__pipe_cost) */
    tn__plan_work block, top;
} tn__plan_model;

/* False after raising; tn__plan_model_free in any case. */
bool tn__plan_read_model(void *m, tn__plan_model *model);
void tn__plan_model_free(tn__plan_model *model);

/* A mesh that fits the model, and which parts its stages have. */
typedef struct tn__plan_case {
    const tn__plan_model *model;
    tn_plan_options o; /* all sizes are known */
    int parts;         /* ranks that share what a rank of tp and pp has: shard and cp; 1: DDP */
    int stage;         /* of sharding; 0: DDP */
    int stages;        /* of the pipeline */
    int *first;        /* [stages + 1] parts */
    int micros;
    int64_t positions;          /* of a sequence, on a rank of cp */
    tn_pipe_schedule *schedule; /* NULL: one rank, which accumulates */
    bool halves;                /* backward is in halves */
} tn__plan_case;

/* As tn_plan_of. */
tn_status tn__plan_make(const tn__plan_model *model, tn_plan_options options, tn_plan *plan);

/* The bytes of the rank with these places along pp, along `parts`, and along tp. */
void tn__plan_memory(const tn__plan_case *c, int pp, int part, int tp, tn_plan *plan);

/* Seconds, and where they go. False after raising. */
bool tn__plan_time(const tn__plan_case *c, tn_plan *plan);

/* What a block's forward takes for one micro-batch. */
typedef struct tn__plan_load {
    double operations, bytes;
} tn__plan_load;
tn__plan_load tn__plan_block(const tn__plan_case *c);

/* Elements of a parameter on rank tp of the options' mesh. */
int64_t tn__plan_elements(const tn__plan_case *c, const tn__plan_param *p, int tp);
/* Whether a rank of pp has a part. */
bool tn__plan_has(const tn__plan_case *c, int pp, int part);
/* Bytes that one forward of the stage keeps until its backward. */
double tn__plan_kept(const tn__plan_case *c, int stage);

#endif
