/* Training runs of a small language model: on a mesh of ranks, and on one rank with the same
 * batches. Tests of splitting compare the results. */
#ifndef TERN_TESTS_PARALLEL_MESH_PROGRAM_H
#define TERN_TESTS_PARALLEL_MESH_PROGRAM_H

#include "models/language.h"
#include "tests/parallel/mesh_model.h"
#include "tests/parallel/train.h"

enum { PROGRAM_ROWS = 2, PROGRAM_STEPS = 20, PROGRAM_WRITTEN = 24 };

/* Hybrid: sharded over shard, copied over cp. */
typedef enum program_way { BY_DDP, BY_FSDP, BY_HYBRID } program_way;

/* Positions: the model's own, the same given, or wrong ones, which count from 0 on each rank. */
typedef enum program_places { PLACES_OWN, PLACES_GIVEN, PLACES_WRONG } program_places;

typedef struct mesh_program mesh_program;
struct mesh_program {
    mesh_shape shape;
    const char *mesh;      /* as for --mesh; NULL: each strategy is attached by itself, to … */
    int dp, shard, cp, tp; /* … these ranks */
    program_way way;
    int stage;
    bool sum;      /* summed over the ranks with different batches, not averaged */
    bool sequence; /* under tp */
    tn_cp_kind kind;
    bool bf16, late_policy; /* late: the policy is set after the model is split */
    bool recompute, deferred;
    bool keep; /* TN_NO_SYNC in all but the last backward of a step */
    program_places places;
    int ignored; /* of each sequence, how many targets at the beginning do not count */
    /* Between forward and backward of a micro-batch; may be NULL. */
    void (*between)(mesh_model *m, const mesh_program *p, int64_t number);
    int micros; /* per step, on all ranks */
    int steps;
    double losses[PROGRAM_STEPS], norm; /* means over all micro-batches; of the last step */
    train_bits bits;                    /* rank 0's copy of all parameters */
};

static inline mesh_program mesh_program_of(bool llama) {
    return (mesh_program){.shape = mesh_shape_of(llama),
                          .dp = 1,
                          .shard = 1,
                          .cp = 1,
                          .tp = 1,
                          .micros = 1,
                          .steps = PROGRAM_STEPS};
}

static inline const char *mesh_program_text(const mesh_program *p) {
    static char text[320];
    snprintf(text, sizeof(text),
             "llama %d, mesh %s, dp %d shard %d cp %d tp %d, way %d stage %d, sequence %d kind %d, "
             "bf16 %d recompute %d deferred %d dropout %g, between %d places %d",
             p->shape.llama, p->mesh ? p->mesh : "none", p->dp, p->shard, p->cp, p->tp, p->way,
             p->stage, p->sequence, p->kind, p->bf16, p->recompute, p->deferred, p->shape.dropout,
             p->between != NULL, p->places);
    return text;
}

/* ---- A rank ---------------------------------------------------------------------------------- */

/* Each rank draws different weights; rank 0's are used. */
static inline void mesh_program_init(mesh_model *m, const mesh_program *p, int rank) {
    tn_module *parts[4] = {NULL};
    mesh_init(m, &p->shape, 3 + (uint64_t)rank, p->deferred);
    CHECK(tn_lm_parts(m, parts, 4) == 4);
    tn_module_set_recompute(parts[1], p->recompute);
    tn_module_set_recompute(parts[2], p->recompute);
    if (p->bf16 && !p->late_policy) {
        tn_module_set_precision(m, tn_precision_defaults());
    }
}

/* Part of a micro-batch: even numbers are tokens, odd ones targets. Both index dtypes in turn. */
static inline tn_tensor *mesh_program_batch(const mesh_program *p, int64_t number) {
    tn_tensor *t = mesh_tokens_of(&p->shape, PROGRAM_ROWS, number);
    int64_t *at = tn_data_mut(t);
    for (int64_t i = 0; i < tn_count(t) && number % 2 == 1; i++) {
        at[i] = i % p->shape.length < p->ignored && i != 2 ? -100 : at[i];
    }
    return tn_cast(t, number & 2 ? TN_I32 : TN_I64);
}

static inline tn_tensor *mesh_program_loss(mesh_model *m, const mesh_program *p, int64_t number) {
    tn_tensor *x = mesh_program_batch(p, 2 * number), *y = mesh_program_batch(p, 2 * number + 1);
    if (p->places == PLACES_OWN) {
        return tn_lm_loss(m, x, y);
    }
    int64_t length = p->shape.length, here = length / (p->places == PLACES_WRONG ? p->cp : 1);
    tn_tensor *places[8];
    for (int i = 0; i < length / here; i++) {
        places[i] = tn_arange(0, (double)here, 1, TN_I64);
    }
    tn_values in = tn_values_of(x, tn_cat(places, (int)(length / here), 0));
    return tn__lm_loss_of(m, tn_call_values(m, in, NULL).v[0], y);
}

/* Splits the model as a program would. Returns the group of ranks that have different batches. */
static inline tn_group *mesh_program_split(mesh_model *m, tn_group *world, const mesh_program *p,
                                           tn_mesh **mesh) {
    int sizes[] = {p->dp, p->shard, p->cp, p->tp};
    *mesh = tn_mesh_new(world, 4, sizes, (const char *[]){"dp", "shard", "cp", "tp"});
    if (p->tp > 1) {
        bool before = p->deferred && tn_defer_init_begin(); /* as if still open from init */
        CHECK(tn_tensor_parallel(m, tn_mesh_group(*mesh, "tp"),
                                 TN_WITH(tn_tp, .sequence = p->sequence)) == TN_OK);
        tn_defer_init_end(&before);
    }
    if (p->cp > 1) {
        CHECK(tn_context_parallel(m, tn_mesh_group(*mesh, "cp"), p->kind) == TN_OK);
    }
    if (p->late_policy) {
        tn_module_set_precision(m, tn_precision_defaults());
    }
    if (p->way != BY_DDP) {
        bool hybrid = p->way == BY_HYBRID;
        tn_group *outer = hybrid      ? tn_mesh_group(*mesh, "cp")
                          : p->dp > 1 ? tn_mesh_group(*mesh, "dp")
                                      : NULL;
        tn_fsdp(m, tn_mesh_group(*mesh, hybrid ? "shard" : "shard cp"), outer,
                TN_WITH(tn_fsdp, .stage = p->stage, .sum = p->sum));
    } else {
        tn_module_materialize(m);
    }
    if (p->way == BY_DDP && p->dp * p->shard * p->cp > 1) {
        tn_ddp(m, tn_mesh_group(*mesh, "dp shard cp"), TN_WITH(tn_ddp, .sum = p->sum));
    }
    return tn_mesh_group(*mesh, "dp shard");
}

static inline double mesh_program_micro(mesh_model *m, const mesh_program *p, int ranks,
                                        int64_t number) {
    TN_SCOPE;
    if (ranks == 1) { /* else data parallelism does so */
        *tn_default_generator() = (tn_generator){.seed = 5, .stream = (uint64_t)number + 1};
    }
    tn_tensor *loss = mesh_program_loss(m, p, number);
    if (p->between) {
        p->between(m, p, number);
    }
    tn_backward(tn_mul_scalar(loss, (p->sum ? 1.0 : ranks) / p->micros));
    return tn_item(loss);
}

/* A step of the ranks of `data`; the mean of the losses here. */
static inline double mesh_program_step(mesh_model *m, const mesh_program *p, tn_group *data,
                                       int64_t step) {
    int ranks = tn_group_size(data);
    double sum = 0;
    for (int i = tn_group_rank(data); i < p->micros; i += ranks) {
        TN_NO_SYNC(p->keep && i + ranks < p->micros ? m : NULL);
        sum += mesh_program_micro(m, p, ranks, step * p->micros + i);
    }
    return sum * ranks / p->micros;
}

/* world NULL: one rank, nothing is split. */
static inline void mesh_program_train(tn_group *world, void *user) {
    TN_SCOPE;
    mesh_program *p = user;
    mesh_model m;
    tn_mesh *mesh = NULL;
    tn_spread *spread = NULL;
    tn_group *data = NULL;
    mesh_program_init(&m, p, tn_group_rank(world));
    if (world && p->mesh) {
        spread = mesh_spread(&m, world, p->mesh);
        data = tn_spread_data(spread);
    } else if (world) {
        data = mesh_program_split(&m, world, p, &mesh);
    } else if (p->late_policy) {
        tn_module_set_precision(&m, tn_precision_defaults());
    }
    if (!world) {
        tn_module_materialize(&m);
    }
    bool first = tn_group_rank(world) == 0;
    tn_optim *opt = tn_adamw(&m, TN_WITH(tn_adamw, .lr = 1e-3));
    for (int step = 0; step < p->steps && !tn_error(); step++) {
        double loss = tn_group_mean(world, mesh_program_step(&m, p, data, step), 1);
        double norm = tn_optim_clip(opt, 0.5);
        if (first) { /* the others, in the same memory, write nothing */
            p->losses[step] = loss;
            p->norm = norm;
        }
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    train_bits bits = train_whole(&m, world); /* also checks that ranks agree */
    if (first) {
        p->bits = bits;
    } else {
        free(bits.data);
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_mesh_free(mesh);
    tn_spread_free(spread);
}

/* ---- All ranks ------------------------------------------------------------------------------- */

/* Runs p on its ranks, or with one on none; free its bits. */
static inline mesh_program mesh_program_end(mesh_program p, int ranks) {
    if (ranks > 1) {
        run_ok(ranks, mesh_program_train, &p);
    } else {
        failures = 0;
        mesh_program_train(NULL, &p);
        assert_int_equal(tn_error(), TN_OK);
        assert_int_equal(failures, 0);
    }
    assert_true(p.bits.bytes > 4000);
    return p;
}

static inline mesh_program mesh_program_run(mesh_program p) {
    return mesh_program_end(p, p.dp * p.shard * p.cp * p.tp);
}

static inline mesh_program mesh_program_alone(mesh_program p) {
    p.places = PLACES_OWN;
    return mesh_program_end(p, 1);
}

/* The largest difference in any parameter. */
static inline double mesh_difference(const mesh_program *a, const mesh_program *b) {
    assert_int_equal(a->bits.bytes, b->bits.bytes);
    return train_difference(a->bits, b->bits);
}

/* Checks that both, which have run, are equal up to rounding. */
static inline void mesh_expect_close(const mesh_program *one, const mesh_program *split,
                                     double within) {
    double most = mesh_difference(one, split);
    if (!(most < within)) {
        fail_msg("%s: parameters differ by %g", mesh_program_text(split), most);
    }
    for (int i = 0; i < one->steps; i++) {
        if (!(fabs(one->losses[i] - split->losses[i]) < 1e-6)) {
            fail_msg("%s: step %d: loss %.9g, not %.9g", mesh_program_text(split), i,
                     split->losses[i], one->losses[i]);
        }
    }
    assert_true(fabs(one->norm / split->norm - 1) < within);
}

/* Checks that p ends as on one rank. */
static inline void mesh_expect_near(mesh_program p, double within) {
    mesh_program one = mesh_program_alone(p), split = mesh_program_run(p);
    mesh_expect_close(&one, &split, within);
    free(one.bits.data);
    free(split.bits.data);
}

/* Checks that p ends with the bits of `like`, which has run already. */
static inline void mesh_expect_bits(const mesh_program *like, mesh_program p) {
    p = mesh_program_run(p);
    if (!train_same(like->bits, p.bits)) {
        fail_msg("%s: differs by %g", mesh_program_text(&p), mesh_difference(like, &p));
    }
    free(p.bits.data);
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Splits the model, of this program, over g. */
typedef void (*mesh_splitter)(mesh_model *m, tn_group *g, const mesh_program *p);

typedef struct mesh_writing {
    const mesh_program *program;
    double temperature;
    mesh_splitter split;
    int32_t ids[2][PROGRAM_WRITTEN]; /* what one rank has written */
} mesh_writing;

/* Continues two prompts beyond the context, where the caches begin again. */
static inline void mesh_write(mesh_model *m, double temperature, int32_t ids[2][PROGRAM_WRITTEN]) {
    const int32_t first[] = {3, 1, 4}, second[] = {2};
    tn_prompt prompts[] = {{first, 3}, {second, 1}};
    tn_generated out[2];
    tn_generate_options o =
        TN_WITH(tn_generate, .max_new = PROGRAM_WRITTEN, .temperature = temperature, .seed = 6);
    tn_module_train(m, false);
    CHECK(tn_generate(m, prompts, 2, o, out) == TN_OK);
    tn_module_train(m, true);
    for (int i = 0; i < 2 && !tn_error(); i++) {
        int64_t count = out[i].tokens.count;
        CHECK(count >= PROGRAM_WRITTEN);
        memcpy(ids[i], out[i].tokens.ids + count - PROGRAM_WRITTEN, sizeof(ids[i]));
    }
    tn_generated_free(out, 2);
}

static inline void mesh_writes(tn_group *g, void *user) {
    mesh_writing *w = user;
    mesh_model m;
    int32_t ids[2][PROGRAM_WRITTEN] = {{0}};
    mesh_program_init(&m, w->program, 0);
    if (g) {
        w->split(&m, g, w->program);
    }
    mesh_write(&m, w->temperature, g ? ids : w->ids);
    CHECK(!g || memcmp(ids, w->ids, sizeof(ids)) == 0);
    tn_module_finish(&m);
}

/* Checks that 2 and 4 ranks write the same as one. */
static inline void mesh_expect_texts(const mesh_program *p, double temperature,
                                     mesh_splitter split) {
    mesh_writing w = {p, temperature, split, {{0}}};
    failures = 0;
    mesh_writes(NULL, &w);
    assert_int_equal(failures, 0);
    run_ok(2, mesh_writes, &w);
    run_ok(4, mesh_writes, &w);
}

#endif
