/* What sharding costs in memory: at rest exactly the formula, at the peak also one
 * rank's activations. */

#include "memory_formula.h"
#include "tests/distributed/rank_check.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"

/* ---- At rest --------------------------------------------------------------------------------- */

static void rests_between_steps(tn_group *g, void *user) {
    static int64_t before; /* rank 0 measures while the others wait */
    const train_run *run = user;
    tn_barrier(g);
    if (tn_group_rank(g) == 0) { before = tn_memory().allocated; }
    tn_barrier(g);
    mesh_model m;
    train_model(&m, run, 1);
    formula f = formula_of(&m, run, tn_group_size(g));
    train_groups groups = train_attach(&m, run, g);
    tn_fsdp_state *s = groups.fsdp;
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    for (int step = 0; step < 2; step++) {
        train_step(&m, run, &groups, step, NULL);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    tn_barrier(g);
    if (tn_group_rank(g) == 0) {
        int64_t is = tn_memory().allocated - before, want = at_rest(&f);
        if (is != want) {
            fprintf(stderr, "%s: %lld bytes at rest instead of %lld\n", train_text(run),
                    (long long)is, (long long)want);
        }
        CHECK(is == want);
    }
    tn_fsdp_stats stats = tn_fsdp_statistics(s);
    int64_t stored = parts_of(&f) + part_of(&f, f.units);
    CHECK(stats.parts == (4 + (f.low ? f.compute : 0)) * stored);
    CHECK(stats.buffers == buffers_of(&f));
    CHECK(stats.whole == (run->sharding.stage < 3 ? f.compute * stored * f.ranks : 0));
    tn_barrier(g);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(test_bytes_at_rest) {
    for (int i = 0; i < 4 * 3 * 2 * 2; i++) {
        int ranks = 1 + i % 4;
        train_run run = train_run_of(TRAIN_FSDP, ranks);
        run.sharding.stage = 1 + i / 4 % 3;
        run.bf16 = i / 12 % 2;
        run.frozen = i / 24 ? "wte" : NULL;
        run_ok(ranks, rests_between_steps, &run);
    }
}

/* ---- Peaks, and what data parallelism cannot train: processes with a memory limit ------------ */

/* `argument`: STAGE BF16 PREFETCH. */
RANK(peak_is_right) {
    most m = measure_most(world, argument);
    rank_assert(most_is_right(&m));
    return 0;
}

PLAIN_TEST(test_most_bytes) {
    static const char *const runs[] = {"3 0 1", "3 1 1", "3 0 0", "3 0 2", "2 0 1", "1 1 1"};
    for (int ranks = 1; ranks <= 4; ranks++) {
        for (int i = 0; i < (ranks == 2 ? 6 : 2); i++) {
            ranks_pass(ranks, "peak_is_right", runs[i]);
        }
    }
}

/* Less than one rank needs for whole parameters, gradients and states. */
static int64_t small_limit(void) {
    train_run run = large_run(TRAIN_DDP, 1);
    mesh_model m;
    train_model(&m, &run, 1);
    int64_t psi = tn_module_count(&m);
    tn_module_finish(&m);
    return tn_memory().allocated + 12 * psi;
}

RANK(does_not_fit) {
    train_run run = large_run(TRAIN_DDP, tn_group_size(world));
    tn_memory_set_limit(small_limit());
    free(train_as_rank(world, &run).bits.data);
    rank_assert(tn_error() == TN_ENOMEM || tn_error() == TN_EPEER);
    rank_assert(tn_group_rank(world) != 0 || tn_error() == TN_ENOMEM);
    tn_error_clear();
    return 0;
}

RANK(fits_in_parts) {
    train_run run = large_run(TRAIN_FSDP, tn_group_size(world)), alone = train_oracle(run, NULL);
    train_end want = train_as_rank(NULL, &alone);
    int64_t limit = small_limit(), outside = 0;
    {
        TN_SCOPE; /* measures the group's memory, which the limit does not cover */
        mesh_model m;
        train_model(&m, &run, 1);
        tn_fsdp_stats stats = tn_fsdp_statistics(train_attach(&m, &run, world).fsdp);
        outside = stats.parts + stats.buffers;
        tn_module_finish(&m);
    }
    tn_memory_set_limit(limit - outside);
    train_end is = train_as_rank(world, &run);
    rank_assert(tn_error() == TN_OK);
    rank_assert(train_agrees(&want, &is, &run, 0));
    free(is.bits.data);
    free(want.bits.data);
    return 0;
}

PLAIN_TEST(test_what_one_rank_cannot_hold) {
    ranks_pass(4, "does_not_fit", "");
    ranks_pass(4, "fits_in_parts", "");
}
