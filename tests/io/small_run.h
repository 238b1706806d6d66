/* A training run small enough for tests of checkpoints: a linear layer, AdamW, a shuffled loader
 * with `seed % 3` threads, dropout's generator. */
#ifndef TERN_TESTS_IO_SMALL_RUN_H
#define TERN_TESTS_IO_SMALL_RUN_H

#include "tests/support/test.h"

#include "tern/tern.h"

typedef struct small_run {
    tn_linear model;
    tn_optim *optim;
    tn_schedule schedule;
    tn_loader *loader;
    tn_generator generator;
    int64_t step;
} small_run;

static inline void small_run_open(small_run *r, uint64_t seed) {
    TN_SCOPE;
    tn_seed(seed);
    tn_linear_init(&r->model, 4, 2, tn_linear_defaults());
    tn_adamw_options a = TN_WITH(tn_adamw, .no_decay = tn_match_vectors);
    r->optim = tn_adamw(&r->model, a);
    r->schedule = tn_schedule_cosine(1e-2, 1e-3, 3, 50);
    tn_loader_options o = TN_WITH(tn_loader, .batch = 3, .epochs = 0, .threads = (int)(seed % 3));
    tn_seed(99);
    r->loader = tn_loader_new(
        tn_tensor_dataset(tn_randn(TN_DIMS(10, 4), TN_F32), tn_randn(TN_DIMS(10, 2), TN_F32)),
        tn_random_sampler(5), o);
    r->generator = (tn_generator){.seed = seed};
    r->step = 0;
}

/* One step; returns its loss. */
static inline double small_run_step(small_run *r) {
    TN_SCOPE;
    tn_batch b;
    if (!tn_loader_next(r->loader, &b)) { return 0; }
    tn_tensor *x = tn_uniform_(tn_empty_like(b.x), 0, 0.1, &r->generator);
    tn_tensor *loss = tn_mse(tn_call(&r->model, tn_add(b.x, x)), b.y, TN_MEAN);
    tn_backward(loss);
    tn_optim_set_lr(r->optim, tn_schedule_at(r->schedule, r->step));
    tn_optim_step(r->optim);
    tn_optim_zero_grad(r->optim);
    r->step++;
    return tn_item(loss);
}

static inline tn_checkpoint small_run_checkpoint(small_run *r) {
    return (tn_checkpoint){.model = &r->model,
                           .optim = r->optim,
                           .schedule = &r->schedule,
                           .loader = r->loader,
                           .generator = &r->generator,
                           .step = r->step,
                           .note = "small"};
}

static inline void small_run_close(small_run *r) {
    tn_optim_free(r->optim);
    tn_loader_free(r->loader);
    tn_module_finish(&r->model);
}

#endif
