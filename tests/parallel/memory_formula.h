/* The memory that sharding needs, as a formula, for tests that measure it.
 *
 * With psi parameters on N ranks, in f32 with AdamW, a rank has at rest, in bytes:
 *
 *     parts, gradients, two states    16 psi / N
 *     mixed precision: the parts once more, in the compute dtype
 *     stages 1 and 2: the whole model in the compute dtype
 *     buffers for gradients           4 N S of the rest, and twice that of the largest unit;
 *                                     stage 1: of all units
 *     the optimiser's step counts     8 per parameter tensor
 *
 * where a unit's parameters begin at multiples of 64 bytes, and so does S, a rank's part of a unit.
 * Frozen parameters are a unit of their own, which has parts and nothing else.
 */
#ifndef TERN_TESTS_PARALLEL_MEMORY_FORMULA_H
#define TERN_TESTS_PARALLEL_MEMORY_FORMULA_H

#include "train.h"

enum { MOST_UNITS = 16, UNIT_ALIGN = 16 /* elements: 64 bytes */ };

typedef struct formula {
    int ranks, stage, units; /* the last unit is the rest; frozen parameters come after it */
    int64_t elements[MOST_UNITS + 1]; /* of a unit, with padding between its parameters */
    int64_t psi, parameters, largest;
    int64_t compute; /* bytes per element in the compute dtype */
    bool low;
} formula;

static inline bool sum_entry(const tn_entry *entry, void *user) {
    formula *f = user;
    int unit = f->units - 1, block;
    if (sscanf(entry->path, "h.%d.", &block) == 1) { unit = block; }
    bool frozen = !tn_requires_grad(*entry->field);
    int64_t count = tn_dims_count(entry->layout.whole);
    f->elements[frozen ? f->units : unit] += (count + UNIT_ALIGN - 1) / UNIT_ALIGN * UNIT_ALIGN;
    if (frozen) { return true; }
    f->psi += count;
    f->parameters++;
    f->largest = count > f->largest ? count : f->largest;
    return true;
}

static inline formula formula_of(mesh_model *m, const train_run *run, int ranks) {
    formula f = {.ranks = ranks,
                 .stage = run->sharding.stage,
                 .units = m->gpt.options.layers + 1,
                 .compute = run->bf16 ? 2 : 4,
                 .low = run->bf16};
    tn_module_each(m, (tn_walk){0}, sum_entry, &f);
    return f;
}

/* S: the elements of a unit that each rank has. */
static inline int64_t part_of(const formula *f, int unit) {
    int64_t step = (int64_t)f->ranks * UNIT_ALIGN;
    return (f->elements[unit] + step - 1) / step * UNIT_ALIGN;
}

static inline int64_t parts_of(const formula *f) {
    int64_t parts = 0;
    for (int i = 0; i < f->units; i++) {
        parts += part_of(f, i);
    }
    return parts;
}

static inline int64_t largest_unit(const formula *f) {
    int64_t most = 0;
    for (int i = 0; i < f->units - 1; i++) {
        most = part_of(f, i) > most ? part_of(f, i) : most;
    }
    return most * f->ranks;
}

static inline int64_t rest_of(const formula *f) {
    return part_of(f, f->units - 1) * f->ranks;
}

static inline int64_t buffers_of(const formula *f) {
    return 4 * (f->stage < 2 ? parts_of(f) * f->ranks : rest_of(f) + 2 * largest_unit(f));
}

/* Bytes at rest on all ranks together. The optimiser's states have no padding. */
static inline int64_t at_rest(const formula *f) {
    int64_t stored = parts_of(f) + part_of(f, f->units), whole = stored * f->ranks;
    int64_t rank = (4 + (f->low ? f->compute : 0)) * stored + 4 * parts_of(f) + buffers_of(f) +
                   8 * f->parameters + (f->stage < 3 ? f->compute * whole : 0);
    return f->ranks * rank + 8 * f->psi;
}

/* ---- The peak -------------------------------------------------------------------------------- */

/* A model that is large compared with its activations. */
static inline train_run large_run(train_how how, int ranks) {
    train_run run = train_run_of(how, ranks);
    run.model.width = 64;
    run.model.layers = 6;
    run.model.vocab = 300;
    return run;
}

static inline void train_some(mesh_model *m, const train_run *run, train_groups *groups) {
    tn_optim *opt = tn_adamw(m, tn_adamw_defaults());
    for (int step = 0; step < 3 && tn_error() == TN_OK; step++) {
        if (step == 2) { tn_device_memory_reset_peak(tn_default_device()); }
        train_step(m, run, groups, step, NULL);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    tn_optim_free(opt);
}

/* Bytes that a step needs on one rank besides parameters, gradients and optimiser states. */
static inline int64_t activations_of(const train_run *run) {
    train_run alone = *run;
    alone.how = TRAIN_DDP;
    alone.micros = alone.shards = 1;
    mesh_model m;
    train_model(&m, &alone, 1);
    train_groups groups = train_attach(&m, &alone, NULL);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    int64_t rest = 0;
    for (int step = 0; step < 2; step++) {
        rest = tn_device_memory(tn_default_device()).allocated;
        tn_device_memory_reset_peak(tn_default_device());
        train_step(&m, &alone, &groups, step, NULL);
        tn_module_zero_grad(&m);
    }
    int64_t most = tn_device_memory(tn_default_device()).peak - rest;
    tn_optim_free(opt);
    tn_module_finish(&m);
    return most;
}

/* Peak bytes on the default device. */
typedef struct most {
    double bytes, formula;
    bool whole_is_right;
    char text[320];
} most;

static inline bool most_is_right(const most *m) {
    fprintf(stderr, "%s: most %.0f bytes, formula %.0f (%.3f)\n", m->text, m->bytes, m->formula,
            m->bytes / m->formula);
    return tn_error() == TN_OK && m->whole_is_right &&
           fabs(m->bytes - m->formula) <= 0.05 * m->formula;
}

/* `argument`: STAGE BF16 PREFETCH. */
static inline most measure_most(tn_group *world, const char *argument) {
    int ranks = tn_group_size(world), bf16 = 0;
    train_run run = large_run(TRAIN_FSDP, ranks);
    sscanf(argument, "%d %d %d", &run.sharding.stage, &bf16, &run.sharding.prefetch);
    run.bf16 = bf16;
    int64_t activations = activations_of(&run);
    int64_t before = tn_device_memory(tn_default_device()).allocated;
    mesh_model model;
    train_model(&model, &run, 1);
    formula f = formula_of(&model, &run, ranks);
    train_groups groups = train_attach(&model, &run, world);
    tn_fsdp_state *s = groups.fsdp;
    train_some(&model, &run, &groups);
    tn_fsdp_stats stats = tn_fsdp_statistics(s);
    int64_t whole = f.compute * (rest_of(&f) + (1 + run.sharding.prefetch) * largest_unit(&f));
    int64_t all = f.compute * parts_of(&f) * ranks;
    whole = run.sharding.stage == 3 && whole < all ? whole : all;
    most m = {.whole_is_right = stats.most_whole <= whole,
              .formula = (double)(at_rest(&f) / ranks + 4 * f.largest + activations)};
    m.formula += run.sharding.stage == 3 ? (double)whole : 0;
    m.bytes = (double)(tn_device_memory(tn_default_device()).peak - before);
    snprintf(m.text, sizeof(m.text), "%d ranks, %s", ranks, train_text(&run));
    tn_module_finish(&model);
    return m;
}

#endif
