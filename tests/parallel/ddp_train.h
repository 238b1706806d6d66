/* One training run of a small GPT with dropout and tied weights, on any number of ranks: what tests
 * of data parallelism compare bit for bit. */
#ifndef TERN_TESTS_DDP_TRAIN_H
#define TERN_TESTS_DDP_TRAIN_H

#include "tests/parallel/bits.h"

#include <tern/tern.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GPT_VOCAB = 61, GPT_CONTEXT = 16, GPT_BATCH = 4, GPT_TOKENS = GPT_BATCH * GPT_CONTEXT };

typedef struct ddp_run {
    int micro_batches; /* per step, on all ranks together */
    int steps;
    /* gradients are averaged; false: summed, and the loss divided by all tokens of a step */
    bool mean;
    bool naive;
    bool recompute;
    bool bf16;  /* mixed precision: f32 parameters, computed in bf16 */
    bool low;   /* parameters and their gradients are bf16 */
    bool plain; /* one rank without data parallelism, with the random streams set by hand */
    double clip;
    tn_ddp_options options;
} ddp_run;

static inline ddp_run ddp_run_of(int micro_batches) {
    ddp_run run = {.micro_batches = micro_batches, .steps = 3, .options = tn_ddp_defaults()};
    run.options.sum = true;
    run.options.first_bucket = 4 << 10;
    run.options.bucket_bytes = 20 << 10;
    return run;
}

static inline bool ddp_append(const tn_entry *entry, void *user) {
    train_bits *bits = user;
    size_t bytes = (size_t)tn_count(*entry->field) * tn_dtype_size(tn_dtype_of(*entry->field));
    bits->data = realloc(bits->data, bits->bytes + bytes);
    tn_copy_out(*entry->field, bits->data + bits->bytes);
    bits->bytes += bytes;
    return true;
}

/* Tokens and targets of global micro-batch `number`, the same on any rank. */
static inline tn_tensor *ddp_tokens(int64_t number) {
    int64_t tokens[GPT_TOKENS];
    tn_generator g = {.seed = 11, .stream = (uint64_t)number};
    for (int i = 0; i < GPT_TOKENS; i++) {
        tokens[i] = tn_random_below(&g, GPT_VOCAB);
    }
    return TN_FROM(tokens, TN_DIMS(GPT_BATCH, GPT_CONTEXT), TN_I64);
}

static inline void ddp_backward(tn_gpt *gpt, const ddp_run *run, int ranks, int64_t number) {
    TN_SCOPE;
    tn_tensor *x = ddp_tokens(2 * number), *y = ddp_tokens(2 * number + 1);
    if (run->plain) {
        *tn_default_generator() = (tn_generator){.seed = 5, .stream = (uint64_t)number + 1};
    }
    if (run->mean) { /* over micro-batches: ranks average theirs; the rest is divided here */
        tn_tensor *loss = tn_lm_loss(gpt, x, y);
        tn_backward(tn_mul_scalar(loss, (double)ranks / run->micro_batches));
    } else {
        tn_tensor *loss = tn_cross_entropy(tn_call(gpt, x), y, TN_SUM);
        tn_backward(tn_mul_scalar(loss, 1.0 / (run->micro_batches * GPT_TOKENS)));
    }
}

static inline void ddp_step(tn_gpt *gpt, const ddp_run *run, tn_group *g, int64_t step) {
    int ranks = tn_group_size(g), mine = run->micro_batches / ranks;
    for (int i = 0; i < mine; i++) {
        int64_t number = step * run->micro_batches + i * ranks + tn_group_rank(g);
        if (i < mine - 1) {
            TN_NO_SYNC(gpt);
            ddp_backward(gpt, run, ranks, number);
        } else {
            ddp_backward(gpt, run, ranks, number);
        }
    }
}

/* Trains as a rank of g (NULL: alone); returns the parameters, malloc'ed. */
static inline train_bits ddp_train(tn_group *g, const ddp_run *run) {
    TN_SCOPE;
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = GPT_VOCAB;
    o.context = GPT_CONTEXT;
    o.layers = 2;
    o.heads = 2;
    o.width = 32;
    o.dropout = 0.1;
    tn_gpt gpt;
    tn_seed(100 + (uint64_t)tn_group_rank(g)); /* rank 0's weights are used */
    tn_gpt_init(&gpt, o);
    if (run->bf16) {
        tn_module_set_precision(&gpt, tn_precision_defaults());
    }
    if (run->low) {
        tn_module_set_precision(&gpt, TN_WITH(tn_precision, .param = TN_BF16, .reduce = TN_BF16));
    }
    tn_seed(5);
    for (int i = 0; i < o.layers; i++) {
        tn_module_set_recompute(&gpt.h[i], run->recompute);
    }
    if (run->naive) {
        tn_ddp_naive(&gpt, g);
    } else if (!run->plain) {
        tn_ddp(&gpt, g, run->options);
    }
    tn_adamw_options a = tn_adamw_defaults();
    a.lr = 1e-2;
    tn_optim *opt = tn_adamw(&gpt, a);
    for (int step = 0; step < run->steps; step++) {
        tn_optim_zero_grad(opt);
        ddp_step(&gpt, run, g, step);
        if (run->clip > 0) {
            tn_clip_grad_norm(&gpt, run->clip);
        }
        tn_optim_step(opt);
    }
    train_bits bits = {0};
    tn_module_each(&gpt, (tn_walk){0}, ddp_append, &bits);
    tn_optim_free(opt);
    tn_module_finish(&gpt);
    return bits;
}

#endif
