/* Sharding, bit for bit: every stage, dtype, kind of recompute, prefetch and number of ranks gives
 * the losses and parameters of data parallelism, which are those of one rank that accumulates the
 * micro-batches of all. Ranks are threads. */

#include "train.h"

#include "tests/support/test.h"

enum { MOST = 4 };

/* ---- Runs ------------------------------------------------------------------------------------ */

typedef struct shared_run {
    const train_run *run;
    train_bits bits[MOST];
} shared_run;

static void train_rank(tn_group *g, void *user) {
    shared_run *s = user;
    s->bits[tn_group_rank(g)] = train_as_rank(g, s->run);
}

/* The result of a run, on which all ranks must agree. */
static train_bits train_on(int ranks, train_run run) {
    shared_run s = {.run = &run};
    if (run.how == TRAIN_ALONE) {
        s.bits[0] = train_as_rank(NULL, &run);
    } else {
        tn_local_run(ranks, train_rank, &s);
    }
    if (tn_error()) {
        print_error("%s on %d ranks: %s\n", train_text(&run), ranks, tn_error_message());
        tn_error_clear();
        fail();
    }
    for (int r = 1; r < ranks && run.how != TRAIN_ALONE; r++) {
        if (!train_same(s.bits[0], s.bits[r])) {
            fail_msg("%s: rank %d of %d has other bits", train_text(&run), r, ranks);
        }
        free(s.bits[r].data);
    }
    return s.bits[0];
}

static void must_give(train_bits want, int ranks, train_run run) {
    train_bits is = train_on(ranks, run);
    if (!train_same(want, is)) {
        size_t at = 0;
        while (at < want.bytes && at < is.bytes && want.data[at] == is.data[at]) {
            at++;
        }
        fail_msg("%s on %d ranks: byte %zu of %zu differs", train_text(&run), ranks, at,
                 want.bytes);
    }
    free(is.data);
}

/* One rank that accumulates the micro-batches of `ranks`, which data parallelism must match.
 * Computed once for each dtype. */
static train_bits reference_bits(int ranks, bool bf16) {
    static train_bits made[MOST + 1][2];
    train_bits *bits = &made[ranks][bf16];
    if (!bits->data) {
        train_run run = train_run_of(TRAIN_ALONE, ranks);
        run.bf16 = bf16;
        *bits = train_on(1, run);
        run.how = TRAIN_DDP;
        must_give(*bits, ranks, run);
    }
    return *bits;
}

/* ---- The matrix ------------------------------------------------------------------------------ */

PLAIN_TEST(test_the_matrix) {
    for (int ranks = 1; ranks <= MOST; ranks++) {
        for (int i = 0; i < TRAIN_MATRIX; i++) {
            train_run run = train_matrix_run(ranks, i);
            must_give(reference_bits(ranks, run.bf16), ranks, run);
        }
    }
}

/* ---- More cases ------------------------------------------------------------------------------ */

/* Any choice of units. */
PLAIN_TEST(test_units) {
    static const char *const units[] = {"h.0 h.2", "h.*.mlp", "h.* ln_f", "h.1"};
    for (int i = 0; i < 4; i++) {
        train_run run = train_run_of(TRAIN_FSDP, 3);
        run.options.units = units[i];
        must_give(reference_bits(3, false), 3, run);
    }
}

/* Averages, which are all that the naive version supports: data parallelism, the naive version and
 * sharding give the same bits. */
PLAIN_TEST(test_means_and_the_naive_twin) {
    for (int ranks = 1; ranks <= MOST; ranks++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            train_run run = train_run_of(TRAIN_DDP, ranks);
            run.mean = true;
            run.options.sum = false;
            run.bf16 = bf16;
            train_bits want = train_on(ranks, run);
            run.how = TRAIN_NAIVE;
            must_give(want, ranks, run);
            run.how = TRAIN_FSDP;
            must_give(want, ranks, run);
            free(want.data);
        }
    }
}

/* Three micro-batches per rank: with no_sync they are summed locally first, as in data parallelism;
 * otherwise each is reduced and added to the parts, as in the naive version. */
PLAIN_TEST(test_accumulation) {
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            train_run run = train_run_of(TRAIN_DDP, 3 * ranks);
            run.bf16 = bf16;
            run.no_sync = true;
            train_bits want = train_on(ranks, run);
            run.how = TRAIN_FSDP;
            for (run.options.stage = 1; run.options.stage <= 3; run.options.stage++) {
                must_give(want, ranks, run);
            }
            free(want.data);
            run.how = TRAIN_NAIVE;
            run.no_sync = false;
            run.mean = true;
            run.options = tn_fsdp_defaults();
            want = train_on(ranks, run);
            run.how = TRAIN_FSDP;
            for (run.options.stage = 1; run.options.stage <= 3; run.options.stage++) {
                must_give(want, ranks, run);
            }
            free(want.data);
        }
    }
}

/* The norm is over the parts of all ranks. */
PLAIN_TEST(test_clipping) {
    for (int ranks = 1; ranks <= 3; ranks++) {
        train_run run = train_run_of(TRAIN_ALONE, ranks);
        run.clip = 0.2;
        train_bits want = train_on(1, run);
        assert_false(train_same(want, reference_bits(ranks, false)));
        run.how = TRAIN_DDP;
        must_give(want, ranks, run);
        run.how = TRAIN_FSDP;
        for (run.options.stage = 1; run.options.stage <= 3; run.options.stage++) {
            must_give(want, ranks, run);
        }
        free(want.data);
    }
}

/* Forwards without a graph change nothing, wherever they are: before the step, between forward and
 * backward, and between backward and the step. */
PLAIN_TEST(test_evaluation_at_each_place) {
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_AROUND; recompute++) {
        for (int stage = 1; stage <= 3; stage++) {
            for (int bf16 = 0; bf16 < 2; bf16++) {
                train_run run = train_run_of(TRAIN_FSDP, 2);
                run.recompute = (train_recompute)recompute;
                run.options.stage = stage;
                run.bf16 = bf16;
                run.evaluate = true;
                must_give(reference_bits(2, bf16), 2, run);
            }
        }
    }
}

/* Two dimensions: sums over the shards of a replica first, then over the replicas, as for whole
 * models whose gradients are reduced by hand. */
PLAIN_TEST(test_hybrid) {
    for (int i = 0; i < 3 * 2 * 2 * 2; i++) {
        int ranks = i / 3 % 2 ? 4 : 2;
        train_run run = train_run_of(TRAIN_BY_HAND, ranks);
        run.replicas = 2;
        run.bf16 = i / 6 % 2;
        run.no_sync = i / 12;
        run.micros = ranks * (run.no_sync ? 3 : 1);
        run.clip = 0.2;
        train_bits want = train_on(ranks, run);
        run.how = TRAIN_FSDP;
        run.deferred = i % 2;
        run.options.stage = 1 + i % 3;
        must_give(want, ranks, run);
        free(want.data);
    }
}

/* With the model on the CPU already. */
PLAIN_TEST(test_offload) {
    for (int i = 0; i < 6; i++) {
        train_run run = train_run_of(TRAIN_FSDP, 3);
        run.options.stage = 1 + i % 3;
        run.options.offload = true;
        run.bf16 = i / 3;
        must_give(reference_bits(3, run.bf16), 3, run);
    }
}

/* Parameters that stay whole on every rank. */
PLAIN_TEST(test_ignored_parameters) {
    static const char *const ignored[] = {"wte.weight", "h.*.ln_1.weight h.*.ln_1.bias",
                                          "h.1.mlp.c_fc.weight"};
    for (int i = 0; i < 2 * 3 * 3; i++) {
        train_run run = train_run_of(TRAIN_FSDP, 3);
        run.options.stage = 1 + i % 3;
        run.options.ignore = ignored[i / 3 % 3];
        run.bf16 = i / 9;
        run.deferred = i % 2;
        must_give(reference_bits(3, run.bf16), 3, run);
        run.micros = 9; /* accumulates averages: sums cannot be reduced again */
        run.mean = true;
        run.options.sum = false;
        run.no_sync = i % 2;
        train_run cut = run;
        cut.options.ignore = NULL;
        train_bits want = train_on(3, cut);
        must_give(want, 3, run);
        free(want.data);
    }
    train_run run = train_run_of(TRAIN_BY_HAND, 4);
    run.replicas = 2;
    train_bits want = train_on(4, run);
    run.how = TRAIN_FSDP;
    run.options.ignore = "wte.weight h.0.*.*.weight";
    must_give(want, 4, run);
    free(want.data);
}

/* ---- Random actions -------------------------------------------------------------------------- */

/* A run of random actions, the same on all ranks. */
typedef struct course {
    train_run run;
    uint64_t seed;
    train_bits bits[MOST];
} course;

static tn_tensor *course_loss(tn_gpt *gpt, const train_run *run, int64_t number) {
    tn_tensor *x = train_tokens(run, 2 * number), *y = train_tokens(run, 2 * number + 1);
    return tn_mul_scalar(tn_cross_entropy(tn_call(gpt, x), y, TN_SUM), 1.0 / TRAIN_TOKENS);
}

static void course_action(tn_gpt *gpt, const train_run *run, tn_optim *opt, int what, int64_t at) {
    TN_SCOPE;
    bool steps = what >= 5;
    if (what == 0) {
        train_evaluate(gpt, run);
    } else if (what == 1) { /* a graph without a backward */
        course_loss(gpt, run, at);
    } else if (what == 2) {
        TN_WHOLE(gpt);
        train_evaluate(gpt, run);
    } else if (what == 3) {
        TN_NO_SYNC(gpt);
        tn_backward(course_loss(gpt, run, at));
    } else if (what == 4) {
        tn_optim_zero_grad(opt);
    } else if (what == 5) {
        tn_backward(course_loss(gpt, run, at));
    } else if (what == 6) { /* two forwards, one backward */
        tn_tensor *first = course_loss(gpt, run, at);
        tn_backward(tn_add(first, course_loss(gpt, run, at + 1)));
    } else {
        tn_tensor *first = course_loss(gpt, run, at);
        {
            TN_WHOLE(gpt);
            train_evaluate(gpt, run);
        }
        tn_backward(first);
    }
    if (steps) {
        tn_optim_clip(opt, 1.0);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
}

static void walk_course(tn_group *g, void *user) {
    TN_SCOPE;
    course *c = user;
    tn_generator dice = {.seed = c->seed};
    tn_gpt gpt;
    train_groups groups = train_groups_of(g, &c->run);
    train_model(&gpt, &c->run, 100);
    train_spread(&gpt, &c->run, &groups);
    tn_optim *opt = train_optimiser(&gpt);
    for (int i = 0; i < 14; i++) {
        int64_t at = 2 * (i * tn_group_size(g) + tn_group_rank(g));
        course_action(&gpt, &c->run, opt, i == 13 ? 5 : (int)tn_random_below(&dice, 8), at);
    }
    c->bits[tn_group_rank(g)] = train_whole(&gpt, g);
    tn_optim_free(opt);
    tn_module_finish(&gpt);
}

/* Returns rank 0's bits, and frees the others'. */
static train_bits course_bits(int ranks, course c) {
    if (tn_local_run(ranks, walk_course, &c) != TN_OK) {
        print_error("course %d of %s: %s\n", (int)c.seed, train_text(&c.run), tn_error_message());
        tn_error_clear();
        fail();
    }
    for (int r = 1; r < ranks; r++) {
        free(c.bits[r].data);
    }
    return c.bits[0];
}

PLAIN_TEST(test_courses_that_dice_choose) {
    for (int seed = 0; seed < 48; seed++) {
        int ranks = 1 + seed % 3;
        course c = {.run = train_run_of(TRAIN_DDP, ranks), .seed = (uint64_t)seed};
        c.run.evaluate = true;
        c.run.bf16 = seed / 3 % 2;
        c.run.recompute = (train_recompute)(seed / 6 % 4);
        train_bits want = course_bits(ranks, c);
        c.run.how = TRAIN_FSDP;
        c.run.options.prefetch = seed % 3;
        c.run.options.keep_last = seed % 2;
        for (c.run.options.stage = 1; c.run.options.stage <= 3; c.run.options.stage++) {
            train_bits is = course_bits(ranks, c);
            if (!train_same(is, want)) {
                fail_msg("course %d of %s has other bits", seed, train_text(&c.run));
            }
            free(is.data);
        }
        free(want.data);
    }
}

PLAIN_TEST(test_a_rerun_is_the_same) {
    for (int i = 0; i < 3; i++) {
        train_run run = train_run_of(TRAIN_FSDP, 4);
        run.steps = 3;
        train_bits first = train_on(4, run);
        must_give(first, 4, run);
        free(first.data);
    }
}

static int free_references(void **state) {
    for (int ranks = 1; ranks <= MOST; ranks++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            free(reference_bits(ranks, bf16).data);
        }
    }
    return 0;
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, free_references);
}
