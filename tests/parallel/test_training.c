/* Every strategy trains as one rank that has the batches of all. Ranks are threads. */
#include "tests/parallel/train.h"

#include <stdlib.h>

/* ---- Data parallelism and sharding: one rank's bits -------------------------------------------
 */

static void expect_matrix(int ranks, int nth) {
    const train_run *runs;
    int count = train_matrix(&runs, ranks);
    for (int i = 0; i < count; i += nth) {
        train_expect_alone(runs[i], 0);
    }
}

PLAIN_TEST(the_matrix) {
    for (int ranks = 1; ranks <= 4; ranks++) {
        expect_matrix(ranks, 1);
    }
    expect_matrix(8, 5);
}

/* ---- Random actions -------------------------------------------------------------------------- */

/* A run of random actions, the same on all ranks. */
typedef struct course {
    train_run run;
    uint64_t seed;
    train_bits bits[4];
} course;

static tn_tensor *course_loss(mesh_model *m, const train_run *run, int64_t number) {
    return tn_lm_loss(m, train_tokens(run, 2 * number), train_tokens(run, 2 * number + 1));
}

static void course_action(mesh_model *m, const train_run *run, tn_optim *opt, int what,
                          int64_t at) {
    TN_SCOPE;
    bool steps = what >= 5;
    if (what == 0) {
        train_look(m, run);
    } else if (what == 1) { /* a graph without a backward */
        course_loss(m, run, at);
    } else if (what == 2) {
        TN_WHOLE(m);
        train_look(m, run);
    } else if (what == 3) {
        TN_NO_SYNC(m);
        tn_backward(course_loss(m, run, at));
    } else if (what == 4) {
        tn_optim_zero_grad(opt);
    } else if (what == 5) {
        tn_backward(course_loss(m, run, at));
    } else if (what == 6) { /* two forwards, one backward */
        tn_tensor *first = course_loss(m, run, at);
        tn_backward(tn_add(first, course_loss(m, run, at + 1)));
    } else {
        tn_tensor *first = course_loss(m, run, at);
        {
            TN_WHOLE(m);
            train_look(m, run);
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
    mesh_model m;
    train_model(&m, &c->run, 100);
    train_groups groups = train_attach(&m, &c->run, g);
    tn_optim *opt = train_optimiser(&m, &c->run);
    for (int i = 0; i < 14; i++) {
        int64_t at = 2 * (i * tn_group_size(g) + tn_group_rank(g));
        course_action(&m, &c->run, opt, i == 13 ? 5 : (int)tn_random_below(&dice, 8), at);
    }
    c->bits[tn_group_rank(g)] = train_whole(&m, g);
    tn_optim_free(opt);
    tn_module_finish(&m);
    train_detach(&groups);
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

PLAIN_TEST(courses_that_dice_choose) {
    for (int seed = 0; seed < 48; seed++) {
        int ranks = 1 + seed % 3;
        course c = {.run = train_run_of(TRAIN_DDP, ranks), .seed = (uint64_t)seed};
        c.run.looks = LOOKS;
        c.run.bf16 = seed / 3 % 2;
        c.run.recompute = (train_recompute)(seed / 6 % 4);
        train_bits want = course_bits(ranks, c);
        c.run.how = TRAIN_FSDP;
        c.run.sharding.prefetch = seed % 3;
        for (c.run.sharding.stage = 1; c.run.sharding.stage <= 3; c.run.sharding.stage++) {
            train_bits is = course_bits(ranks, c);
            if (!train_same(is, want)) {
                fail_msg("course %d of %s has other bits", seed, train_text(&c.run));
            }
            free(is.data);
        }
        free(want.data);
    }
}
