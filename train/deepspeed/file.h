/* The contents of a file in DeepSpeed's format: its keys as a struct, checked one by one and
 * together. Their tables are in file.c.
 */
#ifndef TERN_TRAIN_DEEPSPEED_FILE_H
#define TERN_TRAIN_DEEPSPEED_FILE_H

#include "train/deepspeed/json_keys.h"

typedef enum tn__ds_optimizer { TN__DS_ADAM, TN__DS_ADAMW, TN__DS_SGD } tn__ds_optimizer;
typedef enum tn__ds_scheduler {
    TN__DS_WARMUP_LR,
    TN__DS_WARMUP_DECAY_LR,
    TN__DS_WARMUP_COSINE_LR,
    TN__DS_NO_SCHEDULER
} tn__ds_scheduler;

typedef struct tn__ds_schedule {
    int kind;              /* tn__ds_scheduler */
    int linear;            /* the warm-up; 0: logarithmic */
    double low, high, end; /* rates at the start, after the warm-up, at the end */
    int64_t warmup, total; /* steps until then */
} tn__ds_schedule;

/* The learning rate of the step after `steps` others. */
TN_API double tn__ds_lr(const tn__ds_schedule *s, int64_t steps);

typedef struct tn__ds_file {
    int64_t batch, micro_batch, accumulation;
    int sum; /* gradients are summed over the ranks, not averaged */
    double clipping;
    struct {
        int kind; /* tn__ds_optimizer */
        double lr, betas[2], eps, weight_decay, momentum, dampening;
        bool adam_w_mode, torch_adam, nesterov;
    } optimizer;
    tn__ds_schedule schedule;
    struct {
        bool enabled;
        double scale;                      /* 0: dynamic, … */
        int64_t power, window, hysteresis; /* … starting at 2^power */
        bool refill; /* resets the hysteresis after each step without overflow */
        double least;
    } fp16;
    struct {
        bool enabled, check_overflow;
    } bf16;
    int64_t stage;
    int offload_optimizer, offload_param; /* 1: to the CPU */
    bool find_unused;
} tn__ds_file;

/* Reads the text of the file k->file, for a job of `ranks` ranks, with DeepSpeed's defaults.
 * k->idle: keys without effect. False after raising. */
TN_API bool tn__ds_read(tn__ds_file *f, tn__keys *k, const char *text, size_t bytes, int ranks);

#endif
