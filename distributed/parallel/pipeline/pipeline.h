/* Pipelines: what their files share. The public side is tern/pipeline.h.
 *
 *     schedule.c   in what order a rank runs forwards and backwards: read it first
 *     simulate.c   how long that takes
 *     pipeline.c   attaching: which stage has which parts, what is absent, what is shared
 *     links.c      messages between neighbours
 *     step.c       a step: runs the schedule's row of this rank
 *     forward.c    a forward outside steps: evaluation, generation
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_PIPELINE_H
#define TERN_DISTRIBUTED_PARALLEL_PIPELINE_H

#include "distributed/parallel/base.h"
#include "models/language.h"
#include "tern/pipeline.h"

/* What a stage gives the next one, in this step: known once the first micro-batch has arrived. */
typedef struct tn__pipe_boundary {
    bool known;
    tn_dims dims;
    tn_dtype dtype;
    uint64_t draws;    /* of random numbers, by the stages up to here */
    int64_t positions; /* of the sequence, of which x may be a part (tn_tensor_parallel); 0: none */
} tn__pipe_boundary;

/* Messages from one neighbour, in the order in which it sends them. */
typedef struct tn__pipe_inbox {
    tn_group *group;       /* this rank and the neighbour */
    tn_pipe_action *order; /* [count] the boundary, as `stage`, and the micro-batch */
    tn_work **works;       /* [count] of those that are posted and not taken yet … */
    tn_tensor **tensors;   /* … and where they arrive, one reference each */
    int count, posted, taken;
} tn__pipe_inbox;

/* A parameter that this rank's stages share with those of other ranks. */
typedef struct tn__pipe_tie {
    char *path;
    tn_group *group;  /* of the ranks that have it */
    tn_tensor *aside; /* its gradient from before the step; one reference, or NULL */
} tn__pipe_tie;

/* Belongs to the module: freed with the root's hook. */
struct tn_pipeline {
    tn_module *module;
    tn_group *group;
    tn_pipeline_options options;
    const tn__lm_family *family; /* NULL: a tn_sequential */
    int parts, stages;
    int *first;           /* [stages + 1] the first part of each stage, and the number of parts */
    tn_parts chain;       /* of a parameter that only this rank has */
    tn_parts tied, again; /* of one that others have too: it counts here, or there */
    tn__pipe_tie *ties;
    int tie_count;
    /* Groups of two ranks, each for one direction: a message never waits for one that comes the
     * other way. NULL: there is no such neighbour. */
    tn_group *outputs_to, *gradients_to;
    tn__pipe_inbox outputs, gradients;
    tn__pipe_boundary *boundaries;    /* [stages] between a stage and the next */
    tn_pipe_schedule *schedule;       /* the last one used, or the options'; NULL: none yet */
    tn_device device;                 /* tn__pipe_device */
    bool running;                     /* a step is running */
    tn_module_forward_values forward; /* the module's own, of some parts */
    tn__compared compared;            /* inputs of calls outside steps */
    bool backward;                    /* with gradients */
    int alive;                        /* most graphs at once in the last step */
};

/* Part i of the model; NULL after raising that it has moved. */
tn_module *tn__pipe_part(const tn_pipeline *p, int i);

/* What a micro-batch costs in a part; the first part of each stage, so that the most expensive one
 * is as cheap as possible. */
double tn__pipe_cost(tn_module *part);
void tn__pipe_cut(const double *costs, int parts, int stages, int *first);

/* Whether every micro-batch goes forward once through every stage, on the stage's rank, and back
 * once, whole or in halves. False after raising. */
bool tn__pipe_schedule_complete(const tn_pipe_schedule *s);

/* ---- forward.c ------------------------------------------------------------------------------- */

/* Makes calls without gradients ones of all stages, on every rank. */
void tn__pipe_set_forward(tn_pipeline *p);
/* The root's hook `before`. */
tn_values tn__pipe_begin_call(tn_module *m, tn_values in, void *user);

/* ---- links.c --------------------------------------------------------------------------------- */

enum { TN__PIPE_AHEAD = 2 }; /* receives beyond the one that is needed */

/* A step's messages that are on their way from this rank. */
typedef struct tn__pipe_sends {
    tn_work **works; /* [count] of which `done` are over */
    int count, done;
} tn__pipe_sends;

/* Makes the groups; every rank calls. False after raising. */
bool tn__pipe_links_make(tn_pipeline *p);
void tn__pipe_links_free(tn_pipeline *p);
/* Of this rank's parameters; without any, the default. */
tn_device tn__pipe_device(const tn_pipeline *p);
/* After an error: no other rank waits for what this one will not do. */
void tn__pipe_abort(const tn_pipeline *p);

/* Before and after the actions of a step. False after raising. */
bool tn__pipe_links_begin(tn_pipeline *p, tn__pipe_sends *sends);
void tn__pipe_links_end(tn_pipeline *p, tn__pipe_sends *sends);

/* Sends stage `boundary`'s output to the next, or its gradient back. Returns at once. */
void tn__pipe_send_output(tn_pipeline *p, tn__pipe_sends *sends, int boundary, tn_tensor *y);
void tn__pipe_send_gradient(tn_pipeline *p, tn__pipe_sends *sends, tn_tensor *dy);
/* Waits for one of p's `outputs` or `gradients`; inert after raising. */
tn_tensor *tn__pipe_take(tn_pipeline *p, tn__pipe_inbox *b, int boundary, int micro);

#endif
