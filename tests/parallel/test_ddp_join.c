/* Data parallelism on ranks with different numbers of batches: an error that says so, or
 * tn_ddp_join. Ranks are threads. */

#include "ddp_net.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { MOST = 4 };

/* ---- Without join ---------------------------------------------------------------------------- */

static void ends_early(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    tn_group_set_timeout(g, 20);
    tn_ddp(&m, g, tn_ddp_defaults());
    for (int step = 0; step < (tn_group_rank(g) == 1 ? 2 : 3) && !tn_error(); step++) {
        net_backward(&m, step);
    }
    if (user && tn_group_rank(g) == 1) { tn_barrier(g); /* after its training loop */ }
    tn_module_finish(&m);
}

PLAIN_TEST(test_the_short_rank_is_named) {
    const char *said = run_failing(3, ends_early, NULL, TN_EPEER);
    assert_contains(said, "rank 1 has left");
    assert_contains(said, "tn_ddp_join");
    assert_contains(run_failing(3, ends_early, "", TN_EMISMATCH), "rank 1 is in barrier");
}

/* ---- With join ------------------------------------------------------------------------------- */

typedef struct plan {
    int ranks;
    int batches[MOST];
    tn_ddp_options options;
    int epochs;
} plan;

static const double learning_rate = 0.5;

static bool descend_entry(const tn_entry *entry, void *user) {
    TN_NO_GRAD;
    TN_SCOPE;
    if (tn_grad_of(*entry->field)) {
        tn_add_scaled_(*entry->field, tn_grad_of(*entry->field), -learning_rate);
    }
    return true;
}

/* A step of plain gradient descent, and zeroed gradients. */
static void descend_net(net *m) {
    if (!tn_error()) {
        tn_module_each(m, (tn_walk){0}, descend_entry, NULL);
        tn_module_zero_grad(m);
    }
}

/* The expected result on all ranks: one process that computes for all of them. Ranks without a
 * batch contribute zeros, and the average divides by all ranks. */
static numbers play_ranks(const plan *p, int *steps) {
    net m;
    net_init(&m, 1);
    *steps = 0;
    for (int epoch = 0; epoch < p->epochs; epoch++) {
        for (int step = 0;; step++) {
            numbers sum = {.count = 0};
            int active = 0;
            for (int r = 0; r < p->ranks; r++) {
                numbers mine = {.count = 213};
                if (step < p->batches[r]) {
                    tn_module_zero_grad(&m);
                    net_backward(&m, 10 * step + r);
                    mine = grads_of(&m);
                    active++;
                }
                sum = r == 0 ? mine : numbers_sum(&sum, &mine, 1);
            }
            if (active == 0) { break; }
            tn_module_zero_grad(&m);
            TN_SCOPE;
            int at = 0;
            tn_tensor *leaves[] = {m.out.weight, m.out.bias,     m.in.weight,
                                   m.in.bias,    m.extra.weight, m.extra.bias};
            for (int i = 0; i < 6; i++) {
                tn_tensor *grad = tn_from_data(sum.at + at, tn_shape(leaves[i]), TN_F32);
                at += (int)tn_count(leaves[i]);
                tn_set_grad(leaves[i], p->options.sum ? grad : tn_mul_scalar(grad, 1.0 / p->ranks));
            }
            descend_net(&m);
            ++*steps;
        }
    }
    numbers n = params_of(&m);
    tn_module_finish(&m);
    return n;
}

static void joins_others(tn_group *g, void *user) {
    const plan *p = user;
    int rank = tn_group_rank(g);
    int steps;
    numbers want = play_ranks(p, &steps);
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, p->options);
    for (int epoch = 0; epoch < p->epochs; epoch++) {
        for (int step = 0; step < p->batches[rank]; step++) {
            net_backward(&m, 10 * step + rank);
            descend_net(&m);
        }
        tn_set_grad(m.in.bias, tn_ones(tn_shape(m.in.bias), TN_F32)); /* left by the loop */
        CHECK(tn_ddp_join(ddp, NULL) == TN_OK);
        CHECK(tn_at(tn_grad_of(m.in.bias), TN_DIMS(3)) == 1);
        tn_module_zero_grad(&m);
    }
    numbers is = params_of(&m);
    CHECK(same_numbers(&is, &want));
    CHECK(tn_ddp_statistics(ddp).steps == steps);
    CHECK(tn_default_generator()->stream == (uint64_t)(steps * p->ranks + rank + 1));
    tn_module_finish(&m);
}

PLAIN_TEST(test_join) {
    static const plan plans[] = {
        {.ranks = 2, .batches = {3, 1}, .epochs = 2},
        {.ranks = 2, .batches = {0, 2}, .epochs = 1},
        {.ranks = 4, .batches = {1, 4, 0, 3}, .epochs = 2},
        {.ranks = 2, .batches = {0, 0}, .epochs = 1},
        {.ranks = 2, .batches = {2, 2}, .epochs = 1},
    };
    for (size_t i = 0; i < 2 * sizeof(plans) / sizeof(plans[0]); i++) {
        plan p = plans[i / 2];
        p.options = tn_ddp_defaults();
        p.options.join = true;
        p.options.sum = i % 2;
        p.options.bucket_bytes = 1;
        run_ok(p.ranks, joins_others, &p);
    }
}

/* Buffers come from the lowest rank that still trains, and in the end from the last. Joined ranks
 * also take part in forwards without a backward, and in accumulation. */
static void joins_a_richer_loop(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, *o);
    for (int step = 0; step < rank; step++) { /* rank 0 never, rank 2 twice */
        TN_SCOPE;
        m.use_extra = step == 0 || !o->find_unused;
        tn_module_requires_grad(&m.extra, step == 0); /* joined ranks cannot know this */
        tn_fill_(m.mean, 100 * rank + step);
        net_loss(&m, 0);
        CHECK(tn_at(m.mean, TN_DIMS(0)) == (step == 0 ? 100 : 201));
        {
            TN_NO_SYNC(&m);
            net_backward(&m, 1);
        }
        tn_backward(tn_add(net_loss(&m, 2), net_loss(&m, 3)));
        descend_net(&m);
    }
    CHECK(tn_ddp_join(ddp, NULL) == TN_OK);
    CHECK(tn_ddp_statistics(ddp).steps == 2);
    CHECK(tn_at(m.mean, TN_DIMS(0)) == 201);
    CHECK(tn_default_generator()->stream == (uint64_t)(4 * 3 + rank + 1));
    numbers mine = params_of(&m);
    TN_SCOPE;
    tn_tensor *t = tn_from_data(mine.at, TN_DIMS(mine.count), TN_F32), *other = tn_copy(t);
    tn_work_wait(tn_broadcast(g, other, 0), 0);
    CHECK(tn_equal(t, other));
    tn_module_finish(&m);
}

PLAIN_TEST(test_join_in_a_richer_loop) {
    tn_ddp_options o = TN_WITH(tn_ddp, .join = true);
    run_ok(3, joins_a_richer_loop, &o);
    o.find_unused = true;
    o.bucket_bytes = 1;
    run_ok(3, joins_a_richer_loop, &o);
}

/* A joined rank has made fewer steps: an optimiser with state must continue like the others'. For
 * bf16 weights the state has a master copy. */
static void goes_on_with_state(tn_group *g, void *user) {
    const tn_dtype *dtype = user;
    TN_SCOPE;
    int rank = tn_group_rank(g);
    tn_linear m;
    tn_linear_init(&m, NET_IN, NET_OUT, TN_WITH(tn_linear, .dtype = *dtype));
    tn_ddp_state *ddp = tn_ddp(&m, g, TN_WITH(tn_ddp, .join = true));
    tn_optim *opt = tn_adamw(&m, TN_WITH(tn_adamw, .lr = 0.1));
    for (int epoch = 0; epoch < 2; epoch++) {
        int batches = epoch == 0 ? (int[]){0, 4, 2}[rank] : 3;
        for (int step = 0; step < batches; step++) {
            tn_tensor *x = tn_cast(tn_full(TN_DIMS(2, NET_IN), step + rank + 1, TN_F32), *dtype);
            tn_backward(tn_sum_all(tn_call(&m, x)));
            tn_optim_step(opt);
            tn_optim_zero_grad(opt);
            if (epoch == 1) {
                tn_tensor *other = tn_copy(tn_detach(m.weight));
                tn_work_wait(tn_broadcast(g, other, 1), 0);
                CHECK(tn_equal(tn_detach(m.weight), other));
            }
        }
        CHECK(tn_ddp_join(ddp, opt) == TN_OK);
        CHECK(tn_optim_steps(opt) == (epoch == 0 ? 4 : 7));
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
}

PLAIN_TEST(test_join_with_an_optimiser) {
    tn_dtype dtypes[] = {TN_F32, TN_BF16};
    run_ok(3, goes_on_with_state, &dtypes[0]);
    run_ok(3, goes_on_with_state, &dtypes[1]);
}

/* A joined rank receives the others' error; active ranks that disagree do, too. */
static void fails_while_joined(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, *o);
    if (tn_group_rank(g) == 0) {
        CHECK(tn_ddp_join(ddp, NULL) == TN_EPEER);
    } else {
        m.use_extra = false;
        net_backward(&m, 0);
        CHECK(tn_error() == TN_ESTATE);
    }
    tn_module_finish(&m);
}

static void skips_a_backward(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, *o);
    TN_SCOPE;
    tn_tensor *loss = net_loss(&m, 0);
    if (tn_group_rank(g) == 0) {
        tn_backward(loss);
    } else {
        net_loss(&m, 1);
    }
    CHECK(tn_error() == TN_EMISMATCH || tn_error() == TN_EPEER);
    tn_module_finish(&m);
}

static void does_not_join(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, tn_ddp_defaults());
    CHECK(tn_ddp_join(ddp, NULL) == TN_ESTATE &&
          failed_with(TN_ESTATE, "the option join is false"));
    tn_module_finish(&m);
}

PLAIN_TEST(test_errors) {
    tn_ddp_options o = TN_WITH(tn_ddp, .join = true);
    run_failing(2, fails_while_joined, &o, TN_ESTATE);
    assert_contains(run_failing(2, skips_a_backward, &o, TN_EMISMATCH), "rank 0 begins a backward");
    run_ok(1, does_not_join, NULL);
}
