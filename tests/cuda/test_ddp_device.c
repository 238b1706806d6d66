/* Data parallelism on devices, over the emulator: the same bits as one rank that accumulates,
 * buckets on the device, and everything around them. */

#include "device_ranks.h"
#include "tests/parallel/ddp_net.h"
#include "tests/parallel/train.h"
#include "tests/support/test.h"

/* ---- For the ranks --------------------------------------------------------------------------- */

static tn_group *join_world(const char *argument) {
    tn_group *world = device_join(argument, 100);
    rank_assert(world != NULL);
    return world;
}

/* A short run of a small GPT; clipping reads the norm of what has arrived. */
static train_run small_run(int ranks) {
    train_run run = train_run_of(TRAIN_DDP, ranks);
    run.clip = 0.5;
    return run;
}

static void expect_alone(tn_group *world, train_run run) {
    train_run alone = train_oracle(run, NULL);
    train_end want = train_as_rank(NULL, &alone), is = train_as_rank(world, &run);
    rank_assert(tn_error() == TN_OK && train_agrees(&want, &is, &run, 0));
    free(want.bits.data);
    free(is.bits.data);
}

/* N ranks have the bits of one rank that accumulates their micro-batches. */
PLAIN_RANK(match_accumulation) {
    tn_group *world = join_world(argument);
    expect_alone(world, small_run(tn_group_size(world)));
    return device_leave();
}

/* The same of bf16 gradients, each rounded before it is added. Of two ranks: more are summed in f32
 * and rounded once. */
PLAIN_RANK(match_rounded) {
    tn_group *world = join_world(argument);
    train_run run = small_run(tn_group_size(world));
    run.low = true;
    run.steps = 1;
    expect_alone(world, run);
    return device_leave();
}

/* With two micro-batches for each rank, one of them under TN_NO_SYNC; in buckets and without. */
PLAIN_RANK(no_sync) {
    tn_group *world = join_world(argument);
    train_run run = small_run(tn_group_size(world));
    run.micros *= 2;
    run.no_sync = true;
    run.sum = false;
    for (int naive = 0; naive < 2; naive++) {
        run.how = naive ? TRAIN_DDP_NAIVE : TRAIN_DDP;
        expect_alone(world, run);
    }
    return device_leave();
}

/* A net whose gradients the test makes by hand: rank r has the gradients of micro-batch r + 1. */
static numbers mean_of_two(bool use_extra) {
    numbers a = grads_alone(1, use_extra, 1), b = grads_alone(1, use_extra, 2);
    return numbers_sum(&a, &b, 2);
}

PLAIN_RANK(by_hand) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    numbers want = mean_of_two(true);
    net m;
    net_init(&m, 1 + (uint64_t)tn_group_rank(world));
    rank_assert(tn_device_of(m.in.weight).kind == TN_CUDA);
    tn_ddp_options o = TN_WITH(tn_ddp, .bucket_bytes = 128);
    tn_ddp_state *d = tn_ddp(&m, world, o);
    for (int step = 0; step < 3; step++) { /* the second has the buckets in another order */
        tn_module_zero_grad(&m);
        net_backward(&m, tn_group_rank(world) + 1);
        numbers got = grads_of(&m);
        rank_assert(same_numbers(&got, &want));
    }
    rank_assert(d && tn_ddp_statistics(d).steps == 3 && tn_ddp_statistics(d).buckets > 2);
    tn_module_finish(&m);
    return device_leave();
}

PLAIN_RANK(unused_parameters) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    numbers want = mean_of_two(false);
    net m;
    net_init(&m, 1);
    m.use_extra = false;
    tn_ddp_options o = TN_WITH(tn_ddp, .find_unused = true);
    rank_assert(tn_ddp(&m, world, o) != NULL);
    net_backward(&m, tn_group_rank(world) + 1);
    numbers got = grads_of(&m);
    rank_assert(same_numbers(&got, &want)); /* what no one has is -77 in both */
    tn_module_finish(&m);
    return device_leave();
}

/* Half the bytes: every gradient is the mean in bf16, to its rounding. */
PLAIN_RANK(bf16_hook) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    numbers want = mean_of_two(true);
    net m;
    net_init(&m, 1);
    tn_ddp_options o = TN_WITH(tn_ddp, .hook = tn_ddp_bf16);
    rank_assert(tn_ddp(&m, world, o) != NULL);
    net_backward(&m, tn_group_rank(world) + 1);
    numbers got = grads_of(&m);
    rank_assert(tn_error() == TN_OK && got.count == want.count);
    double largest = 0;
    for (int i = 0; i < got.count; i++) {
        float rounded = tn_bf16_to_float(tn_bf16_from_float(got.at[i]));
        rank_assert(got.at[i] == rounded);
        largest = fabs((double)want.at[i]) > largest ? fabs((double)want.at[i]) : largest;
    }
    for (int i = 0; i < got.count; i++) {
        rank_assert(fabs((double)(got.at[i] - want.at[i])) <= largest / 64);
    }
    tn_module_finish(&m);
    return device_leave();
}

/* The weights, by an outer step: the same on all ranks. */
PLAIN_RANK(outer_step) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    net m;
    net_init(&m, 1);
    tn_local_sgd *outer = tn_local_sgd_new(&m, world, TN_WITH(tn_diloco, .every = 1));
    tn_add_scalar_(tn_detach(m.in.weight), tn_group_rank(world));
    rank_assert(tn_local_sgd_step(outer) == TN_OK);
    numbers weights = params_of(&m);
    rank_assert(same_on_ranks(world, &weights) && tn_local_sgd_statistics(outer).drift > 1.0);
    tn_module_free(outer);
    tn_module_finish(&m);
    return device_leave();
}

/* Rank 1 has one batch, the others three: all end with the same parameters. */
PLAIN_RANK(uneven_batches) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    net m;
    net_init(&m, 1);
    tn_ddp_options o = TN_WITH(tn_ddp, .join = true);
    tn_ddp_state *d = tn_ddp(&m, world, o);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    for (int i = 0; i < (tn_group_rank(world) == 1 ? 1 : 3); i++) {
        tn_optim_zero_grad(opt);
        net_backward(&m, 10 * i + tn_group_rank(world));
        tn_optim_step(opt);
    }
    rank_assert(tn_ddp_join(d, opt) == TN_OK && tn_optim_steps(opt) == 3);
    numbers mine = params_of(&m), first = mine;
    void *data = &first;
    size_t bytes = sizeof(first);
    rank_assert(tn_broadcast_bytes(world, &data, &bytes, 0) == TN_OK && bytes == sizeof(first));
    rank_assert(same_numbers(data, &mine));
    if (data != &first) { tn_bytes_free(data); }
    tn_optim_free(opt);
    tn_module_finish(&m);
    return device_leave();
}

/* A rank has its parameters on another device. */
PLAIN_RANK(two_devices) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    net m;
    net_init(&m, 1);
    tn_set_default_device(tn_cpu());
    tn_linear other;
    tn_linear_init(&other, 2, 2, tn_linear_defaults());
    tn_module_add(&m, "other", &other);
    rank_assert(tn_ddp(&m, world, tn_ddp_defaults()) == NULL);
    rank_assert(tn_error() == TN_EDEVICE && strstr(tn_error_message(), "on cpu"));
    tn_error_clear();
    tn_module_finish(&m);
    tn_dist_finish();
    return 0;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void expect_pass(int n, const char *body, const char *engine) {
    device_pass(n, body, engine, 200);
}

PLAIN_TEST(test_ranks_are_accumulation) {
    expect_pass(2, "match_accumulation", "staged");
    expect_pass(3, "match_accumulation", "staged");
}

PLAIN_TEST(test_bf16_gradients) {
    expect_pass(2, "match_rounded", "staged");
}

PLAIN_TEST(test_no_sync_and_the_naive_twin) {
    expect_pass(2, "no_sync", "staged");
}

PLAIN_TEST(test_gradients_by_hand) {
    expect_pass(2, "by_hand", "staged");
    expect_pass(2, "unused_parameters", "staged");
    expect_pass(2, "bf16_hook", "staged");
    expect_pass(2, "outer_step", "staged");
}

PLAIN_TEST(test_join) {
    expect_pass(2, "uneven_batches", "staged");
}

PLAIN_TEST(test_one_device_for_all_parameters) {
    expect_pass(2, "two_devices", "staged");
}

PLAIN_TEST(test_nccl) {
    need_nccl();
    expect_pass(2, "by_hand", "nccl"); /* two addends have the same sum in either order */
    expect_pass(2, "match_accumulation", "nccl");
    expect_pass(2, "uneven_batches", "nccl");
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv)) { return 0; }
    return tests_run(device_set_up, NULL);
}
