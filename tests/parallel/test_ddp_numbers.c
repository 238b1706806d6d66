/* Data parallelism, bit for bit: N ranks match one rank that accumulates N micro-batches; buckets,
 * their sizes, their order and overlap change nothing; the naive version agrees. */

#include "tests/support/test.h"

#include "ddp_train.h"

enum { MOST = 8 };

typedef struct shared_run {
    const ddp_run *run;
    train_bits bits[MOST];
} shared_run;

static void train_rank(tn_group *g, void *user) {
    shared_run *s = user;
    s->bits[tn_group_rank(g)] = ddp_train(g, s->run);
}

/* The result of a run, on which all ranks must agree. */
static train_bits train_on(int ranks, ddp_run run) {
    shared_run s = {.run = &run};
    if (ranks == 1) {
        s.bits[0] = ddp_train(NULL, &run);
    } else {
        tn_local_run(ranks, train_rank, &s);
    }
    if (tn_error()) {
        fail_msg("%s", tn_error_message());
    }
    for (int r = 1; r < ranks; r++) {
        assert_true(train_same(s.bits[0], s.bits[r]));
        free(s.bits[r].data);
    }
    return s.bits[0];
}

/* Frees b. */
static void assert_same(train_bits a, train_bits b) {
    assert_true(train_same(a, b));
    free(b.data);
}

PLAIN_TEST(test_ranks_are_accumulation) {
    static const int ranks[] = {2, 3, 4, 8};
    for (int i = 0; i < 4; i++) {
        ddp_run run = ddp_run_of(ranks[i]);
        run.steps = ranks[i] == 2 ? 4 : 2;
        train_bits alone = train_on(1, run);
        assert_same(alone, train_on(ranks[i], run));
        run.plain = true;
        assert_same(alone, train_on(1, run)); /* data parallelism changes nothing on one rank */
        free(alone.data);
    }
}

PLAIN_TEST(test_means_of_powers_of_two) {
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        ddp_run run = ddp_run_of(ranks);
        run.mean = true;
        run.options.sum = false;
        train_bits alone = train_on(1, run);
        assert_same(alone, train_on(ranks, run));
        free(alone.data);
    }
}

PLAIN_TEST(test_clipping_sees_the_whole_gradient) {
    ddp_run run = ddp_run_of(2);
    train_bits loose = train_on(2, run);
    run.clip = 0.1;
    train_bits alone = train_on(1, run);
    assert_false(train_same(loose, alone));
    assert_same(alone, train_on(2, run));
    free(alone.data);
    free(loose.data);
}

PLAIN_TEST(test_recompute) {
    ddp_run run = ddp_run_of(2);
    train_bits stored = train_on(1, run);
    run.recompute = true;
    assert_same(stored, train_on(2, run));
    free(stored.data);
}

/* With a policy, gradients are reduced in f32: ranks still match accumulation, bit for bit;
 * recompute changes nothing and the naive version agrees. */
PLAIN_TEST(test_mixed_precision) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        ddp_run run = ddp_run_of(ranks);
        train_bits f32 = train_on(1, run);
        run.bf16 = true;
        train_bits alone = train_on(1, run);
        assert_int_equal(alone.bytes, f32.bytes); /* the parameters are f32 */
        assert_false(train_same(alone, f32));
        assert_same(alone, train_on(ranks, run));
        run.plain = true;
        assert_same(alone, train_on(1, run));
        run.plain = false;
        run.recompute = true;
        assert_same(alone, train_on(ranks, run));
        run.recompute = false;
        run.mean = true; /* the naive version only averages */
        run.options.sum = false;
        train_bits means = train_on(ranks, run);
        run.naive = true;
        assert_same(means, train_on(ranks, run));
        free(means.data);
        free(f32.data);
        free(alone.data);
    }
}

PLAIN_TEST(test_buckets_change_nothing) {
    ddp_run run = ddp_run_of(3);
    run.mean = true;
    run.options.sum = false;
    run.naive = true;
    train_bits naive = train_on(3, run);
    run.naive = false;
    static const int64_t sizes[][2] = {{1, 1}, {4 << 10, 20 << 10}, {1 << 20, 25 << 20}};
    for (int i = 0; i < 3; i++) {
        run.options.first_bucket = sizes[i][0];
        run.options.bucket_bytes = sizes[i][1];
        run.options.overlap = i != 1;
        run.options.rebuild = i != 2;
        assert_same(naive, train_on(3, run));
        run.options.rebuild = !run.options.rebuild;
        assert_same(naive, train_on(3, run));
    }
    free(naive.data);
}

PLAIN_TEST(test_a_rerun_is_the_same) {
    ddp_run run = ddp_run_of(4);
    train_bits first = train_on(4, run);
    for (int i = 0; i < 3; i++) {
        assert_same(first, train_on(4, run));
    }
    free(first.data);
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
