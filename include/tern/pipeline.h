/* A model's layers on different ranks, and micro-batches that pass through them (Huang et al. 2019,
 * arXiv:1811.06965).
 *
 *     tn_pipeline *pipe = tn_pipeline_new(&gpt, pp, tn_pipeline_defaults());
 *     ...
 *     double loss = tn_pipeline_step(pipe, batches, 8, NULL);   // forward and backward of 8
 *     tn_optim_step(opt);
 *
 * A *stage* is some consecutive parts of the model. The parts of a language model are its
 * embedding, its blocks and its head (tn_lm_parts); those of a tn_sequential are its modules. Each
 * rank has one stage, or several; the parameters of the others have no elements here. The order in
 * which a rank takes its micro-batches is a *schedule*. It is data: it can be read, drawn and
 * simulated without a model.
 *
 * Read next: docs/splitting.md, distributed/parallel/pipeline/schedule.c.
 */
#ifndef TERN_PIPELINE_H
#define TERN_PIPELINE_H

#include "data.h"
#include "optim.h"
#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Schedules ------------------------------------------------------------------------------- */

typedef enum tn_pipe_kind {
    /* Forwards as needed to keep later stages busy, then one forward and one backward in turn
     * (Narayanan et al. 2021, arXiv:2104.04473): at most as many graphs alive as ranks. */
    TN_PIPE_1F1B,
    TN_PIPE_GPIPE, /* all forwards, then all backwards: equally fast, all graphs alive */
    /* Stages s, s + ranks, … on one rank, so that the pipeline fills in smaller steps: a shorter
     * wait, more messages. The number of micro-batches is a multiple of the number of ranks. */
    TN_PIPE_INTERLEAVED,
    /* 1F1B in which backward is two actions, so that the gradients of weights fill the gaps (ZB-H1;
     * Qi et al. 2023, arXiv:2401.10241): a third of its bubble. What the second reads stays until
     * then, also of modules that are recomputed, and whole parameters (tn_fsdp) to the step's end.
     */
    TN_PIPE_ZERO_BUBBLE
} tn_pipe_kind;

/* 'F': forward; 'B': backward, or its halves, 'I': of the stage's input, 'W': of its weights. The
 * first stage's input has no gradient: there W is all of it. */
typedef struct tn_pipe_action {
    char what;
    int stage, micro;
} tn_pipe_action;

/* rows[r][counts[r]]: what rank r does, in turn. Stage s is on rank s % ranks. Each stage has a
 * forward and a backward of each micro-batch: functions that take a schedule check that. */
typedef struct tn_pipe_schedule {
    int ranks, stages, micros;
    int *counts;
    tn_pipe_action **rows;
} tn_pipe_schedule;

/* chunks: stages per rank, 1 except for INTERLEAVED. NULL after TN_EVALUE: a number below 1, chunks
 * that the kind does not have, a number of micro-batches that is not a multiple. */
TN_API tn_pipe_schedule *tn_pipe_schedule_new(tn_pipe_kind kind, int ranks, int chunks, int micros);
/* Your own schedule: a line for each rank, "F0.0 F0.1 B0.0 B0.1": stage 0, micro-batches 0 and 1.
 * NULL after TN_EVALUE, which names the word: no such action, a stage on another rank, an action
 * that is missing or occurs twice. */
TN_API tn_pipe_schedule *tn_pipe_schedule_read(const char *text);
TN_API void tn_pipe_schedule_free(tn_pipe_schedule *s);

/* Seconds that a stage needs for one micro-batch: its forward, the two halves of its backward, and
 * a message to another rank. */
typedef struct tn_pipe_cost {
    double forward, inputs, weights, link;
} tn_pipe_cost;
typedef struct tn_pipe_outcome {
    double seconds; /* of a step */
    double bubble;  /* the share of it in which ranks wait */
    int alive;      /* graphs on rank 0, at most: forwards whose backward is still to come */
} tn_pipe_outcome;

/* Runs the schedule without a model. Every stage costs the same. TN_EVALUE: it is not complete, as
 * for tn_pipe_schedule_read; TN_ESTATE: it cannot end, since two actions wait for each other; names
 * both. drawing: NULL, or where to draw the step as text, a line for each rank. */
TN_API tn_status tn_pipe_simulate(const tn_pipe_schedule *s, tn_pipe_cost cost,
                                  tn_pipe_outcome *outcome, FILE *drawing);

/* ---- Running a model ------------------------------------------------------------------------- */

typedef struct tn_pipeline_options {
    tn_pipe_kind kind; /* TN_PIPE_1F1B */
    int chunks;        /* 1; stages per rank, more with TN_PIPE_INTERLEAVED */
    /* [stages - 1] the first part of each stage but the first. NULL: so that the largest stage has
     * as few multiplications as possible, counted in elements of matrices. */
    const int *cuts;
    const tn_pipe_schedule *schedule; /* NULL: that of `kind`; for one rank, of one stage */
    /* The loss of a micro-batch from the last part's output; NULL: that of tn_lm_loss. */
    tn_tensor *(*loss)(tn_tensor *out, tn_tensor *y, void *user);
    /* Called before and after each action of this rank; NULL. It may put other weights into the
     * fields of this rank's stage, for the forwards to come (examples/25_pipedream.c). */
    void (*on_action)(tn_pipe_action a, bool done, void *user);
    void *user; /* passed to both */
    bool from_defaults;
} tn_pipeline_options;
TN_API tn_pipeline_options tn_pipeline_defaults(void);

/* Distributes the parts of m, a language model or a tn_sequential, over the ranks of pp, until m is
 * finished. Compares modules and options, gives every rank rank 0's parameters and buffers, and
 * frees the parameters that only other ranks' stages use; if m was built under TN_DEFER_INIT, each
 * rank makes only its own. A parameter that stages share (a tied embedding) stays on each of their
 * ranks, and its gradients are summed. Names, tn_module_count, checkpoints and folders of weights
 * are those of the whole model.
 *
 * Under TN_NO_GRAD m is called like any model, also by tn_generate and tn_evaluate: every rank
 * calls, with the same input, and gets the last stage's output (tn_lm_loss: the loss). The others
 * wait while a stage computes. TN_EMISMATCH, in the first call of training and of each evaluation,
 * and while generating: tokens differ; TN_ESTATE: the call would record.
 *
 * Every rank calls, before anything else is attached: then tn_tensor_parallel, tn_context_parallel,
 * tn_fsdp or tn_ddp, the optimiser. pp NULL: one rank, which runs the micro-batches in turn. pp,
 * and the options' schedule and user, must live as long as m, to which the result belongs.
 *
 * NULL after an error. TN_EVALUE: m has no parts, fewer parts than stages, cuts that do not ascend,
 * a parameter outside all parts, a schedule that is not complete; TN_ESTATE: m is cut or parallel
 * already, an optimiser holds a parameter, or a schedule cannot end; TN_EMISMATCH. */
typedef struct tn_pipeline tn_pipeline;
TN_API tn_pipeline *tn_pipeline_new(void *m, tn_group *pp, tn_pipeline_options options);

/* Forward and backward of n micro-batches, all of one shape; n is the same on every rank. The rank
 * of the first stage reads their x, that of the last their y; the others may be NULL. Adds the
 * gradients of the mean loss, scaled by the scaler (NULL: not), and sends them as a backward does.
 * Returns the mean loss, on every rank; NaN after an error, which ends the step on every rank.
 * Everything attached to m sees n micro-batches, and random numbers are drawn for n: the results
 * are those of one rank that accumulates them, bit for bit, except that a tied parameter's
 * gradients are added in a different order. On a device f32 sums of micro-batches are equal up to
 * rounding. */
TN_API double tn_pipeline_step(tn_pipeline *p, const tn_batch *batches, int n, tn_scaler *scaler);
/* The mean loss of n micro-batches, without gradients: for validation. */
TN_API double tn_pipeline_loss(tn_pipeline *p, const tn_batch *batches, int n);
TN_API int tn_pipeline_parts(const tn_pipeline *p);           /* of the whole model */
TN_API int tn_pipeline_stage(const tn_pipeline *p, int part); /* the one with this part */
TN_API int tn_pipeline_alive(const tn_pipeline *p); /* most graphs at once here, in the last step */

#ifdef __cplusplus
}
#endif
#endif
