/* A file in DeepSpeed's format: the keys that do something here, as a struct, checked one by one
 * and together.
 */
#ifndef TERN_TRAIN_DEEPSPEED_FILE_H
#define TERN_TRAIN_DEEPSPEED_FILE_H

#include "core/error.h"

/* Of words in the file, by their numbers; -1: it does not say. */
enum { TN__DS_ADAM, TN__DS_ADAMW, TN__DS_SGD };
enum { TN__DS_WARMUP_LR, TN__DS_WARMUP_DECAY_LR, TN__DS_WARMUP_COSINE_LR };

typedef struct tn__ds_schedule {
    int kind;                    /* one of these */
    int linear;                  /* the warm-up; 0: logarithmic */
    double low, high;            /* rates before and after the warm-up; NaN: the optimiser's */
    double low_ratio, end_ratio; /* WarmupCosineLR: before it and at the end, of the optimiser's */
    int64_t warmup, total;       /* steps until then */
} tn__ds_schedule;

/* The learning rate of the step after `steps` others, for an optimiser of this rate. */
TN_API double tn__ds_lr(const tn__ds_schedule *s, double rate, int64_t steps);

typedef struct tn__ds_file {
    int64_t batch, micro_batch, accumulation;
    int sum; /* gradients are summed over the ranks, not averaged */
    double clipping;
    struct {
        int kind; /* TN__DS_ADAM, … */
        double lr, betas[2], eps, weight_decay, momentum, dampening;
        bool adam_w_mode, nesterov;
    } optimizer;
    tn__ds_schedule schedule;
    struct {
        bool enabled;
        double scale, least;   /* scale 0: dynamic, from 2^power on, and not below `least` */
        int64_t power, window; /* window: steps until it doubles */
    } fp16;
    struct {
        bool enabled;
    } bf16;
    int64_t stage;
    int offload_optimizer, offload_param; /* 1: to the CPU */
    bool find_unused;
    char unread[1024]; /* other keys, separated by ", " */
} tn__ds_file;

/* Reads the text of the file at `path`, for a job of `ranks` ranks, with DeepSpeed's defaults.
 * False after raising: TN_EFORMAT (not JSON), TN_EVALUE, TN_EUNSUPPORTED, TN_ENOMEM. */
TN_API bool tn__ds_read(tn__ds_file *f, const char *operation, const char *path, const char *text,
                        size_t bytes, int ranks);

#endif
