/* GPT-2 and its training step, for gpt2, ddp and fsdp: AdamW, one batch of random tokens.
 */
#ifndef TERN_BENCH_TRAINER_H
#define TERN_BENCH_TRAINER_H

#include "bench/bench.h"

typedef struct trainer {
    tn_gpt gpt;
    tn_optim *opt;
    tn_tensor *x, *y;
} trainer;

/* Sets the sizes of the model called `name`; false if there is none. */
static inline bool trainer_size(const char *name, tn_gpt_options *g) {
    static const struct {
        const char *name;
        int layers, heads;
        int64_t width;
    } sizes[] = {{"tiny", 4, 4, 256},
                 {"124M", 12, 12, 768},
                 {"350M", 24, 16, 1024},
                 {"774M", 36, 20, 1280},
                 {"1.5B", 48, 25, 1600}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (strcmp(sizes[i].name, name) == 0) {
            g->layers = sizes[i].layers;
            g->heads = sizes[i].heads;
            g->width = sizes[i].width;
            return true;
        }
    }
    return false;
}

/* Tokens and their targets, each (batch, T). */
static inline void trainer_draw(trainer *t, int64_t batch, int64_t T, int64_t vocab) {
    t->x = tn_randint(0, vocab, TN_DIMS(batch, T), TN_I64);
    t->y = tn_randint(0, vocab, TN_DIMS(batch, T), TN_I64);
}

static inline void trainer_optimise(trainer *t) {
    tn_adamw_options a = tn_adamw_defaults();
    a.lr = 1e-4;
    t->opt = tn_adamw(&t->gpt, a);
}

/* For bench_serve: a step, and its loss. */
static inline double trainer_step(void *user) {
    trainer *t = user;
    TN_SCOPE;
    tn_tensor *loss = tn_lm_loss(&t->gpt, t->x, t->y);
    tn_backward(loss);
    tn_optim_step(t->opt);
    tn_optim_zero_grad(t->opt);
    return tn_item(loss);
}

static inline void trainer_finish(trainer *t) {
    tn_optim_free(t->opt);
    tn_module_finish(&t->gpt);
}

#endif
