/* One training run of a small GPT, on any number of ranks and with any strategy: what tests of
 * sharding compare bit for bit.
 *
 * Weights are tied, there are norms and dropout, and sizes are irregular: cuts go through rows,
 * and with several ranks some have nothing of a parameter. Data and random numbers depend on the
 * global micro-batch, so N ranks can be compared with one that accumulates N micro-batches.
 */
#ifndef TERN_TESTS_PARALLEL_TRAIN_H
#define TERN_TESTS_PARALLEL_TRAIN_H

#include "nn/layout.h"
#include "tests/parallel/bits.h"

#include <tern/tern.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRAIN_BATCH = 2, TRAIN_CONTEXT = 7, TRAIN_TOKENS = TRAIN_BATCH * TRAIN_CONTEXT };
enum { TRAIN_MOST_MICROS = 64 };

/* By hand: whole models, whose gradients are summed over the shards and then over the replicas. */
typedef enum train_how {
    TRAIN_ALONE,
    TRAIN_BY_HAND,
    TRAIN_DDP,
    TRAIN_FSDP,
    TRAIN_NAIVE,
} train_how;

/* What is recomputed: parts of a unit, a unit, or a module around two units. */
typedef enum train_recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_INSIDE,
    RECOMPUTE_OVER,
    RECOMPUTE_AROUND,
} train_recompute;

typedef struct train_run {
    train_how how;
    train_recompute recompute;
    int micros; /* per step, on all ranks together */
    int steps;
    int replicas;  /* of the shards; hybrid if more than 1 */
    bool bf16;     /* mixed precision: f32 parameters, computed in bf16 */
    bool mean;     /* gradients are averaged; false: summed, and the loss divided by all tokens */
    bool no_sync;  /* only a rank's last micro-batch of a step is synchronised */
    bool frozen;   /* the token embedding */
    bool deferred; /* built without elements, which are made when it is sharded */
    bool evaluate; /* forwards without a graph before, between and after forward and backward */
    double clip;
    tn_fsdp_options options;
    tn_gpt_options model;
} train_run;

static inline train_run train_run_of(train_how how, int micros) {
    train_run run = {
        .how = how, .micros = micros, .steps = 2, .replicas = 1, .options = tn_fsdp_defaults()};
    run.options.sum = true;
    run.model = tn_gpt_defaults();
    run.model.vocab = 37;
    run.model.context = TRAIN_CONTEXT;
    run.model.layers = 3;
    run.model.heads = 2;
    run.model.width = 10;
    run.model.dropout = 0.1;
    return run;
}

static inline const char *train_text(const train_run *run) {
    static _Thread_local char text[256];
    static const char *const hows[] = {"alone", "by hand", "ddp", "fsdp", "naive"};
    static const char *const recomputes[] = {"none", "inside", "over", "around"};
    snprintf(text, sizeof(text),
             "%s: %d micro-batches, %s, recompute %s, stage %d, prefetch %d, keep_last %d, no_sync "
             "%d, clip %g, replicas %d, offload %d",
             hows[run->how], run->micros, run->bf16 ? "bf16" : "f32", recomputes[run->recompute],
             run->options.stage, run->options.prefetch, run->options.keep_last, run->no_sync,
             run->clip, run->replicas, run->options.offload);
    return text;
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static inline void *train_grow(train_bits *bits, size_t bytes) {
    bits->data = realloc(bits->data, bits->bytes + bytes);
    bits->bytes += bytes;
    return bits->data + bits->bytes - bytes;
}

/* Appends `more` and frees it. */
static inline void train_join(train_bits *bits, train_bits more) {
    if (more.bytes > 0) { /* none after an error */
        memcpy(train_grow(bits, more.bytes), more.data, more.bytes);
    }
    free(more.data);
}

/* ---- Gathering from all ranks ---------------------------------------------------------------- */

static inline bool train_append(const tn_entry *entry, void *user) {
    train_bits *bits = user;
    TN_SCOPE;
    tn_layout layout = entry->layout;
    layout.length = entry->absent ? 0 : layout.length;
    memcpy(train_grow(bits, sizeof(layout)), &layout, sizeof(layout));
    if (layout.length > 0) {
        size_t bytes = (size_t)layout.length * tn_dtype_size(tn_dtype_of(entry->stored));
        tn_copy_out(entry->stored, train_grow(bits, bytes));
    }
    return true;
}

typedef struct train_pieces {
    train_bits all;
    char **at; /* [ranks]: each rank's next piece */
    int ranks;
} train_pieces;

/* One whole parameter, from pieces that cover it; ranks that have the same elements must agree. */
static inline bool train_assemble(const tn_entry *entry, void *user) {
    train_pieces *p = user;
    size_t size = tn_dtype_size(tn_dtype_of(entry->stored));
    int64_t count = tn_dims_count(entry->layout.whole);
    char *whole = train_grow(&p->all, (size_t)count * size);
    memset(whole, 0xEE, (size_t)count * size);
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < p->ranks; r++) {
            tn_layout l;
            memcpy(&l, p->at[r], sizeof(l));
            const char *piece = p->at[r] + sizeof(l);
            for (tn__layout_span run = {0}; run.here < l.length; run.here += run.length) {
                run = tn__layout_run(&l, run.here);
                char *place = whole + (size_t)run.whole * size;
                const char *mine = piece + (size_t)run.here * size;
                if (pass == 0) {
                    memcpy(place, mine, (size_t)run.length * size);
                } else if (memcmp(place, mine, (size_t)run.length * size) != 0) {
                    tn_raise(TN_EMISMATCH, "ranks differ in %s (rank %d)", entry->path, r);
                }
            }
            p->at[r] += pass * (int64_t)(sizeof(l) + (size_t)l.length * size);
        }
    }
    return true;
}

/* Every parameter, whole, from what all ranks store of it; on every rank, malloc'ed. */
static inline train_bits train_whole(void *m, tn_group *g) {
    train_bits mine = {0};
    int ranks = tn_group_size(g);
    void **data = calloc((size_t)ranks, sizeof(*data));
    size_t *bytes = calloc((size_t)ranks, sizeof(*bytes));
    tn_module_each(m, (tn_walk){.absent = true}, train_append, &mine);
    train_pieces pieces = {.ranks = ranks, .at = calloc((size_t)ranks, sizeof(char *))};
    if (tn_all_gather_bytes(g, mine.data, mine.bytes, data, bytes) == TN_OK) {
        memcpy(pieces.at, data, (size_t)ranks * sizeof(*data));
        tn_module_each(m, (tn_walk){.absent = true}, train_assemble, &pieces);
    }
    for (int r = 0; r < ranks; r++) {
        tn_bytes_free(data[r]);
    }
    free(data);
    free(bytes);
    free(pieces.at);
    free(mine.data);
    return pieces.all;
}

/* The losses of all micro-batches of a step, gathered from the ranks; NaN: not this rank's. */
static inline void train_share_losses(tn_group *g, double *losses, int n) {
    double *all[TRAIN_MOST_MICROS];
    size_t bytes[TRAIN_MOST_MICROS];
    if (tn_all_gather_bytes(g, losses, (size_t)n * sizeof(double), (void **)all, bytes) != TN_OK) {
        return;
    }
    for (int r = 0; r < tn_group_size(g); r++) {
        for (int i = 0; i < n; i++) {
            losses[i] = isnan(all[r][i]) ? losses[i] : all[r][i];
        }
        tn_bytes_free(all[r]);
    }
}

/* ---- The run --------------------------------------------------------------------------------- */

/* Tokens and targets of global micro-batch `number`, the same on any rank. */
static inline tn_tensor *train_tokens(const train_run *run, int64_t number) {
    int64_t tokens[TRAIN_TOKENS];
    tn_generator g = {.seed = 11, .stream = (uint64_t)number};
    for (int i = 0; i < TRAIN_TOKENS; i++) {
        tokens[i] = tn_random_below(&g, run->model.vocab);
    }
    return TN_FROM(tokens, TN_DIMS(TRAIN_BATCH, TRAIN_CONTEXT), TN_I64);
}

static inline void train_model(tn_gpt *gpt, const train_run *run, uint64_t seed) {
    tn_seed(seed);
    if (run->deferred) {
        TN_DEFER_INIT;
        tn_gpt_init(gpt, run->model);
    } else {
        tn_gpt_init(gpt, run->model);
    }
    for (int i = 0; i < run->model.layers; i++) {
        tn_module_set_recompute(&gpt->h[i], run->recompute >= RECOMPUTE_OVER);
        tn_module_set_recompute(&gpt->h[i].attn, run->recompute == RECOMPUTE_INSIDE);
        tn_module_set_recompute(&gpt->h[i].mlp, run->recompute == RECOMPUTE_INSIDE);
    }
    if (run->bf16) {
        tn_module_set_precision(gpt, tn_precision_defaults());
    }
    tn_module_requires_grad(&gpt->stem.wte, !run->frozen);
    tn_seed(5);
}

/* The group, and its two dimensions when there are replicas. */
typedef struct train_groups {
    tn_group *all, *shard, *replicate;
    tn_mesh *mesh;
} train_groups;

static inline train_groups train_groups_of(tn_group *g, const train_run *run) {
    train_groups groups = {.all = g, .shard = g};
    if (run->replicas > 1) {
        int sizes[] = {run->replicas, tn_group_size(g) / run->replicas};
        groups.mesh = tn_mesh_new(g, 2, sizes, (const char *[]){"replicate", "shard"});
        groups.replicate = tn_mesh_group(groups.mesh, "replicate");
        groups.shard = tn_mesh_group(groups.mesh, "shard");
    }
    return groups;
}

/* Attaches the strategy, as a program would. NULL except for FSDP. */
static inline tn_fsdp_state *train_spread(tn_gpt *gpt, const train_run *run,
                                          const train_groups *groups) {
    tn_group *g = groups->shard;
    if (run->how == TRAIN_DDP) {
        tn_ddp_options o = tn_ddp_defaults();
        o.sum = run->options.sum;
        o.first_bucket = o.bucket_bytes = 2 << 10;
        tn_ddp(gpt, g, o);
    } else if (run->how == TRAIN_NAIVE) {
        tn_fsdp_naive(gpt, g);
    } else if (run->how == TRAIN_FSDP) {
        tn_fsdp_options o = run->options;
        if (!o.units) {
            o.units = run->recompute == RECOMPUTE_AROUND ? "h.*.attn h.*.mlp" : "h.*";
        }
        return tn_fsdp(gpt, g, groups->replicate, o);
    }
    return NULL;
}

/* A forward that must not change anything: neither the weights nor the random numbers. */
static inline void train_evaluate(tn_gpt *gpt, const train_run *run) {
    if (!run->evaluate) {
        return;
    }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_generator before = *tn_default_generator();
    tn_module_train(gpt, false);
    tn_tensor *y = tn_call(gpt, train_tokens(run, 7));
    if (!isfinite(tn_item(tn_sum_all(y)))) {
        tn_raise(TN_EVALUE, "an evaluation is not finite");
    }
    tn_module_train(gpt, true);
    *tn_default_generator() = before;
}

static inline double train_backward(tn_gpt *gpt, const train_run *run, int ranks, int64_t number) {
    TN_SCOPE;
    tn_tensor *x = train_tokens(run, 2 * number), *y = train_tokens(run, 2 * number + 1);
    if (run->how <= TRAIN_BY_HAND) {
        *tn_default_generator() = (tn_generator){.seed = 5, .stream = (uint64_t)number + 1};
    }
    /* averaged over the ranks; the rest is divided here */
    double share = run->mean ? (double)ranks / run->micros : 1.0 / (run->micros * TRAIN_TOKENS);
    tn_tensor *loss = tn_cross_entropy(tn_call(gpt, x), y, run->mean ? TN_MEAN : TN_SUM);
    train_evaluate(gpt, run);
    tn_backward(tn_mul_scalar(loss, share));
    return tn_item(loss);
}

static inline bool train_reduce(const tn_entry *entry, void *user) {
    const train_groups *groups = user;
    TN_SCOPE;
    tn_tensor *grad = tn_grad_of(*entry->field);
    return tn_work_wait(tn_all_reduce(groups->shard, grad, TN_SUM), 0) == TN_OK &&
           tn_work_wait(tn_all_reduce(groups->replicate, grad, TN_SUM), 0) == TN_OK;
}

static inline void train_step(tn_gpt *gpt, const train_run *run, train_groups *groups, int64_t step,
                              double *losses) {
    tn_group *g = groups->all;
    int ranks = tn_group_size(g), mine = run->micros / ranks;
    for (int i = 0; i < mine && tn_error() == TN_OK; i++) {
        int at = i * ranks + tn_group_rank(g);
        int64_t number = step * run->micros + at;
        if (run->no_sync && i < mine - 1) {
            TN_NO_SYNC(gpt);
            losses[at] = train_backward(gpt, run, ranks, number);
        } else {
            losses[at] = train_backward(gpt, run, ranks, number);
        }
    }
    if (run->how == TRAIN_BY_HAND && tn_error() == TN_OK) {
        tn_module_each(gpt, (tn_walk){0}, train_reduce, groups);
    }
}

/* One rank with offload: the optimiser steps a second model on the CPU, which receives the first
 * one's gradients and returns its weights. */
static inline bool train_offloads_by_hand(const train_run *run) {
    return run->how == TRAIN_ALONE && run->options.offload;
}

static inline void train_model_on_cpu(tn_gpt *twin, const train_run *run, uint64_t seed) {
    tn_device device = tn_default_device();
    train_run plain = *run;
    plain.bf16 = false;
    tn_set_default_device(tn_cpu());
    train_model(twin, &plain, seed);
    tn_set_default_device(device);
}

static inline bool train_bring_grad(const tn_entry *entry, void *user) {
    TN_SCOPE;
    tn_tensor *grad = tn_grad_of(tn_module_get(user, entry->path));
    return tn_set_grad(*entry->field, tn_to(grad, tn_cpu())) == TN_OK;
}

static inline bool train_take_back(const tn_entry *entry, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    return !tn_is_inert(tn_copy_(tn_module_get(user, entry->path), *entry->field));
}

/* twin: the model that opt steps; NULL: opt steps gpt. */
static inline void train_optimise(tn_gpt *gpt, tn_gpt *twin, tn_optim *opt, double clip) {
    if (twin) {
        tn_module_each(twin, (tn_walk){0}, train_bring_grad, gpt);
    }
    if (clip > 0) {
        tn_optim_clip(opt, clip);
    }
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    if (twin) {
        tn_module_each(twin, (tn_walk){0}, train_take_back, gpt);
        tn_module_zero_grad(gpt);
    }
}

static inline tn_optim *train_optimiser(tn_gpt *gpt) {
    tn_adamw_options a = tn_adamw_defaults();
    a.lr = 1e-2;
    a.no_decay = tn_match_vectors;
    return tn_adamw(gpt, a);
}

/* Trains as a rank of g (NULL: alone); returns all losses and all parameters, whole, malloc'ed. */
static inline train_bits train_as_rank(tn_group *g, const train_run *run) {
    TN_SCOPE;
    tn_gpt gpt, on_cpu, *twin = train_offloads_by_hand(run) ? &on_cpu : NULL;
    train_groups groups = train_groups_of(g, run);
    /* rank 0's weights are used */
    uint64_t seed = 100 + (run->how > TRAIN_BY_HAND ? (uint64_t)tn_group_rank(g) : 0);
    if (twin) {
        train_model_on_cpu(twin, run, seed);
    }
    train_model(&gpt, run, seed);
    train_spread(&gpt, run, &groups);
    tn_optim *opt = train_optimiser(twin ? twin : &gpt);
    train_bits bits = {0};
    for (int step = 0; step < run->steps && tn_error() == TN_OK; step++) {
        double losses[TRAIN_MOST_MICROS];
        for (int i = 0; i < run->micros; i++) {
            losses[i] = NAN;
        }
        train_evaluate(&gpt, run);
        train_step(&gpt, run, &groups, step, losses);
        train_evaluate(&gpt, run);
        train_optimise(&gpt, twin, opt, run->clip);
        size_t bytes = (size_t)run->micros * sizeof(double);
        train_share_losses(g, losses, run->micros);
        memcpy(train_grow(&bits, bytes), losses, bytes);
    }
    train_join(&bits, train_whole(&gpt, g));
    tn_optim_free(opt);
    tn_module_finish(twin);
    tn_module_finish(&gpt);
    tn_mesh_free(groups.mesh);
    return bits;
}

/* ---- The matrix: stages 1 to 3, f32 and bf16, recompute, prefetch 0 to 2 --------------------- */

enum { TRAIN_MATRIX = 3 * 2 * 4 * 3 };

static inline train_run train_matrix_run(int ranks, int i) {
    train_run run = train_run_of(TRAIN_FSDP, ranks);
    run.options.stage = 3 - i % 3;
    run.bf16 = i / 3 % 2;
    run.recompute = (train_recompute)(i / 6 % 4);
    run.options.prefetch = i / 24 % 3;
    run.options.keep_last = run.options.prefetch > 0;
    return run;
}

/* In every rank of a job: whether every nth run of the matrix matches one rank that accumulates. An
 * n without a common factor with TRAIN_MATRIX still covers every value of every option. */
static inline bool train_matrix_agrees(tn_group *world, int nth) {
    train_bits alone[2];
    bool good = true;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        train_run run = train_run_of(TRAIN_ALONE, tn_group_size(world));
        run.bf16 = bf16;
        alone[bf16] = train_as_rank(NULL, &run);
    }
    for (int i = 0; i < TRAIN_MATRIX && tn_error() == TN_OK; i += nth) {
        train_run run = train_matrix_run(tn_group_size(world), i);
        train_bits together = train_as_rank(world, &run);
        if (tn_error() != TN_OK || !train_same(together, alone[run.bf16])) {
            fprintf(stderr, "%s: not one rank's bits (%s)\n", train_text(&run), tn_error_message());
            good = false;
        }
        free(together.data);
    }
    free(alone[0].data);
    free(alone[1].data);
    return good && tn_error() == TN_OK;
}

#endif
