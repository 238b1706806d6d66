/* Data parallelism: what a step does to gradients, buffers and random numbers.
 * Ranks are threads. */

#include "ddp_net.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

/* ---- Gradients ------------------------------------------------------------------------------- */

/* The module is inside another one that is recomputed in backward. */
static void inside_recompute(tn_group *g, void *user) {
    TN_SCOPE;
    int rank = tn_group_rank(g);
    net m, alone[2];
    tn_sequential outer;
    net_init(&m, 1);
    tn_sequential_init(&outer);
    tn_sequential_add(&outer, &m);
    tn_module_set_recompute(&outer, true);
    tn_ddp_state *ddp = tn_ddp(&m, g, small_buckets());
    tn_fill_(m.mean, rank);
    for (int step = 0; step < 2; step++) {
        tn_module_zero_grad(&m);
        tn_backward(tn_sum_all(tn_call(&outer, tn_full(TN_DIMS(3, NET_IN), rank + 1, TN_F32))));
    }
    CHECK(tn_at(m.mean, TN_DIMS(0)) == 0); /* broadcast, though no graph was recorded */
    CHECK(tn_ddp_statistics(ddp).steps == 2);
    CHECK(tn_default_generator()->stream == (uint64_t)(2 * 2 + rank + 1));
    numbers own[2];
    for (int r = 0; r < 2; r++) {
        net_init(&alone[r], 1);
        tn_backward(tn_sum_all(tn_call(&alone[r], tn_full(TN_DIMS(3, NET_IN), r + 1, TN_F32))));
        own[r] = grads_of(&alone[r]);
        tn_module_finish(&alone[r]);
    }
    numbers want = numbers_sum(&own[0], &own[1], 2), is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&outer);
}

typedef struct dropping {
    tn_module base;
    tn_linear linear;
    tn_dropout drop;
} dropping;

static tn_tensor *dropping_forward(tn_module *self, tn_tensor *x) {
    dropping *m = (dropping *)self;
    return tn_call(&m->drop, tn_call(&m->linear, x));
}

/* The random stream is set inside the recomputed module: dropout must draw the same mask both
 * times. */
static void drops_inside_recompute(tn_group *g, void *user) {
    enum { WIDTH = 32 };
    TN_SCOPE;
    dropping m;
    tn_sequential outer;
    tn_module_init(&m, "dropping", dropping_forward);
    tn_linear_init(&m.linear, 4, WIDTH, tn_linear_defaults());
    tn_dropout_init(&m.drop, 0.5);
    tn_module_add(&m, "linear", &m.linear);
    tn_module_add(&m, "drop", &m.drop);
    tn_sequential_init(&outer);
    tn_sequential_add(&outer, &m);
    tn_module_set_recompute(&outer, true);
    if (user) {
        CHECK(tn_ddp_naive(&m, g) == TN_OK);
    } else {
        CHECK(tn_ddp(&m, g, tn_ddp_defaults()) != NULL);
    }
    tn_seed(7); /* a stream of no round: forward sets it */
    tn_tensor *y = tn_call(&outer, tn_ones(TN_DIMS(1, 4), TN_F32)),
              *kept = tn_zeros(TN_DIMS(WIDTH), TN_F32);
    for (int64_t i = 0; i < WIDTH; i++) {
        ((float *)tn_data_mut(kept))[i] = tn_at(y, TN_DIMS(0, i)) != 0 ? 2 : 0;
    }
    tn_work_wait(tn_all_reduce(g, kept, TN_MEAN), 0);
    tn_backward(tn_sum_all(y));
    CHECK(tn_equal(kept, tn_grad_of(m.linear.bias)));
    tn_module_finish(&outer);
}

TEST(test_a_part_of_a_recomputed_module) {
    run_ok(2, inside_recompute, NULL);
    run_ok(2, drops_inside_recompute, NULL);
    run_ok(2, drops_inside_recompute, "naive");
}

/* Adding to averages is allowed; adding to sums is not. */
static void adds_to_averages(tn_group *g, void *user) {
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, tn_ddp_defaults());
    net_backward(&m, rank);
    numbers first = grads_of(&m);
    net_backward(&m, 2 + rank);
    numbers a = grads_alone(1, true, 2), b = grads_alone(1, true, 3);
    a = numbers_sum(&first, &a, 1);
    b = numbers_sum(&first, &b, 1);
    numbers want = numbers_sum(&a, &b, 2), is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&m);
}

static void adds_to_sums(tn_group *g, void *user) {
    bool no_sync = user != NULL;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, TN_WITH(tn_ddp, .sum = true));
    net_backward(&m, tn_group_rank(g));
    CHECK(tn_error() == TN_OK);
    if (no_sync) {
        TN_NO_SYNC(&m);
        net_backward(&m, 2);
    } else {
        net_backward(&m, 2);
    }
    CHECK(tn_error() == TN_ESTATE || tn_error() == TN_EPEER);
    tn_module_finish(&m);
}

TEST(test_a_second_backward_without_zeroing) {
    run_ok(2, adds_to_averages, NULL);
    assert_contains(run_failing(2, adds_to_sums, NULL, TN_ESTATE), "summed over the ranks already");
    assert_contains(run_failing(2, adds_to_sums, "", TN_ESTATE), "TN_NO_SYNC");
}

/* ---- Buffers --------------------------------------------------------------------------------- */

static void broadcasts_buffers(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    float rank = (float)tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, *o);
    tn_fill_(m.mean, rank + 10);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        net_loss(&m, 0);
    }
    CHECK(tn_at(m.mean, TN_DIMS(0)) == rank + 10); /* no graph: buffers stay */
    if (rank == 1) {
        TN_NO_SYNC(&m);
        net_backward(&m, 0);
    }
    CHECK(tn_at(m.mean, TN_DIMS(0)) == rank + 10);
    net_backward(&m, 0);
    CHECK(tn_at(m.mean, TN_DIMS(0)) == (o->broadcast_buffers ? 10 : rank + 10));
    tn_fill_(m.mean, rank + 20);
    tn_module_train(&m, false);
    net_backward(&m, 0);
    CHECK(tn_at(m.mean, TN_DIMS(0)) == rank + 20);
    tn_module_finish(&m);
}

typedef struct scaled {
    tn_module base;
    tn_linear linear;
    tn_tensor *scale; /* a buffer that backward needs */
} scaled;

static tn_tensor *scaled_forward(tn_module *self, tn_tensor *x) {
    scaled *m = (scaled *)self;
    return tn_mul(tn_call(&m->linear, x), m->scale);
}

/* Two forwards and one backward, as for a discriminator. */
static void saves_buffers(tn_group *g, void *user) {
    scaled m;
    tn_module_init(&m, "scaled", scaled_forward);
    tn_linear_init(&m.linear, 4, 3, tn_linear_defaults());
    tn_module_add(&m, "linear", &m.linear);
    tn_module_buffer(&m, "scale", &m.scale, tn_ones(TN_DIMS(3), TN_F32));
    if (user) {
        CHECK(tn_ddp_naive(&m, g) == TN_OK);
    } else {
        CHECK(tn_ddp(&m, g, tn_ddp_defaults()) != NULL);
    }
    for (int step = 0; step < 2; step++) {
        TN_SCOPE;
        tn_module_zero_grad(&m);
        tn_fill_(m.scale, 10 * step + 2 + tn_group_rank(g));
        tn_tensor *x = tn_ones(TN_DIMS(2, 4), TN_F32), *real = tn_call(&m, x);
        CHECK(tn_backward(tn_sum_all(tn_add(real, tn_call(&m, x)))) == TN_OK);
        CHECK(tn_at(tn_grad_of(m.linear.bias), TN_DIMS(0)) == 4 * (10 * step + 2));
    }
    tn_module_finish(&m);
}

TEST(test_two_forwards_and_one_backward) {
    run_ok(2, saves_buffers, NULL);
    run_ok(2, saves_buffers, "naive");
}

TEST(test_buffers_come_from_rank_0) {
    tn_ddp_options o = tn_ddp_defaults();
    run_ok(3, broadcasts_buffers, &o);
    o.broadcast_buffers = false;
    run_ok(3, broadcasts_buffers, &o);
}

/* ---- Random numbers -------------------------------------------------------------------------- */

RANKS_TEST(test_random_numbers_are_the_micro_batchs, 1, 3) {
    uint64_t rank = (uint64_t)tn_group_rank(world), ranks = (uint64_t)tn_group_size(world);
    tn_generator *generator = tn_default_generator();
    tn_seed(77);
    generator->call = 13;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, world, tn_ddp_defaults());
    CHECK(generator->stream == rank + 1 && generator->call == 0 && generator->seed == 77);
    generator->call = 5;
    net_backward(&m, 0);
    CHECK(generator->stream == ranks + rank + 1 && generator->call == 0);
    {
        TN_NO_SYNC(&m);
        net_backward(&m, 0); /* still a micro-batch */
    }
    CHECK(generator->stream == 2 * ranks + rank + 1);
    generator->stream = 5 * ranks + 1; /* rank 0's, as from a checkpoint */
    generator->call = 3;
    {
        TN_SCOPE;
        net_loss(&m, 0);
        CHECK(generator->stream == 5 * ranks + rank + 1 && generator->call == 3);
        net_loss(&m, 0);
        CHECK(generator->stream == 5 * ranks + rank + 1);
        TN_NO_GRAD;
        generator->stream = 0;
        net_loss(&m, 0);
        CHECK(generator->stream == 0);
    }
    tn_module_finish(&m);
}
