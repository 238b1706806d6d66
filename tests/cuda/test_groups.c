/* Groups of ranks whose tensors are on devices, over the emulator: staged with the bits of the
 * engine below it, nccl with a stand-in for the library; the order of compute and transfers;
 * failures, which are reported within the deadline. */

#include "core/plugin.h"
#include "device_ranks.h"
#include "tests/distributed/elements.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/support/test.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tern/sys/group.h>
#include <tern/tern.h>

/* ---- For the ranks --------------------------------------------------------------------------- */

static int rank, ranks;

static tn_group *start_within(const char *argument, double timeout) {
    tn_group *world = device_join(argument, timeout);
    rank = tn_group_rank(world);
    ranks = tn_group_size(world);
    return world;
}

static tn_group *join_world(const char *argument) {
    tn_group *world = start_within(argument, 60);
    rank_assert(world != NULL);
    return world;
}

static const tn_collective KINDS[] = {TN_ALL_REDUCE,     TN_ALL_GATHER, TN_REDUCE_SCATTER,
                                      TN_BROADCAST,      TN_GATHER,     TN_SCATTER,
                                      TN_REDUCE_TO_ROOT, TN_ALL_TO_ALL, TN_SEND};

/* Runs one operation on tensors on `where`; writes what this rank then has to out, which is zeroed
 * first. */
static void run_operation(tn_group *g, tn_collective kind, tn_reduction how, tn_dtype dtype,
                          int64_t count, tn_device where, const void *in, void *out) {
    TN_SCOPE;
    tn_set_default_device(where);
    int root = ranks - 1;
    bool mine = rank == root;
    tn_tensor *one = tn_from_data(in, TN_DIMS(count), dtype), *result = one;
    tn_tensor *all = tn_from_data(in, TN_DIMS(ranks, count), dtype);
    tn_work *w = NULL;
    switch (kind) {
    case TN_ALL_REDUCE:
        w = tn_all_reduce(g, one, how);
        break;
    case TN_ALL_GATHER:
        w = tn_all_gather(g, all, one);
        result = all;
        break;
    case TN_REDUCE_SCATTER:
        w = tn_reduce_scatter(g, one, all, how);
        break;
    case TN_BROADCAST:
        w = tn_broadcast(g, one, root);
        break;
    case TN_GATHER:
        w = tn_gather_to(g, mine ? all : NULL, one, root);
        result = all;
        break;
    case TN_SCATTER:
        w = tn_scatter_from(g, one, mine ? all : NULL, root);
        break;
    case TN_REDUCE_TO_ROOT:
        w = tn_reduce_to(g, one, root, how);
        break;
    case TN_ALL_TO_ALL:
        result = tn_from_data(in, TN_DIMS(ranks, count), dtype);
        w = tn_all_to_all(g, result, all);
        break;
    default: /* from the first rank to the last */
        w = rank == 0 ? tn_send(g, one, root) : mine ? tn_recv(g, one, 0) : NULL;
    }
    tn_work_wait(w, 0);
    tn_copy_out(result, out);
    rank_assert(tn_error() == TN_OK);
    tn_set_default_device(tn_cuda(rank % 2));
}

static void fill_values(void *x, tn_dtype dtype, int64_t n, bool whole) {
    for (int64_t i = 0; i < n; i++) {
        double value = (double)((i * 7 + rank * 3) % 5 + 1);
        put_element(dtype, x, i, whole ? value : value + 0.1 * (double)(i % 13) + 0.001 * rank);
    }
}

/* The bits on the device are those on the CPU in the same group. */
static void compare_bits(tn_group *g, tn_collective kind, tn_reduction how, tn_dtype dtype,
                         int64_t count, bool whole) {
    size_t bytes = (size_t)(ranks * count) * tn_dtype_size(dtype) + 1;
    char *in = malloc(bytes), *device = calloc(1, bytes), *cpu = calloc(1, bytes);
    fill_values(in, dtype, ranks * count, whole);
    run_operation(g, kind, how, dtype, count, tn_cuda(rank % 2), in, device);
    run_operation(g, kind, how, dtype, count, tn_cpu(), in, cpu);
    if (memcmp(device, cpu, bytes) != 0) {
        fprintf(stderr, "%s %s [%lld] reduction %d differs\n", tn_collective_name(kind),
                tn_dtype_name(dtype), (long long)count, (int)how);
        rank_assert(false);
    }
    free(in);
    free(device);
    free(cpu);
}

static void every_collective(tn_group *g, tn_dtype dtype, tn_reduction how, int64_t count,
                             bool whole) {
    for (size_t i = 0; i < COUNT_OF(KINDS); i++) {
        compare_bits(g, KINDS[i], how, dtype, count, whole);
    }
}

/* ---- Numbers --------------------------------------------------------------------------------- */

PLAIN_RANK(all_collectives) {
    tn_group *world = join_world(argument);
    bool nccl = strstr(tn_group_engine(world), "nccl") != NULL;
    for (size_t d = 0; d < COUNT_OF(DTYPES); d++) {
        for (size_t r = 0; r < COUNT_OF(REDUCES); r++) {
            bool has_mean = tn_dtype_is_float(DTYPES[d]) || !nccl;
            if (REDUCES[r] != TN_MEAN || has_mean) {
                compare_bits(world, TN_ALL_REDUCE, REDUCES[r], DTYPES[d], 100, nccl);
            }
        }
        every_collective(world, DTYPES[d], TN_SUM, 33, nccl);
    }
    every_collective(world, TN_F32, TN_SUM, 0, nccl);
    every_collective(world, TN_F32, TN_SUM, 1, nccl);
    return device_leave();
}

/* Longer than the slots of staged, so each is reused. A slot holds one run of elements of these,
 * and several of the others. */
static bool has_one_run(tn_collective kind) {
    return kind == TN_ALL_REDUCE || kind == TN_BROADCAST || kind == TN_REDUCE_TO_ROOT ||
           kind == TN_SEND;
}

PLAIN_RANK(long_tensors) {
    tn_group *world = join_world(argument);
    for (size_t i = 0; i < COUNT_OF(KINDS); i++) {
        int64_t count = has_one_run(KINDS[i]) ? (2 << 20) + 5 : (1 << 19) + 5;
        compare_bits(world, KINDS[i], TN_MEAN, TN_F32, count, false);
    }
    compare_bits(world, TN_ALL_REDUCE, TN_SUM, TN_F64, (1 << 20) + 1, false);
    return device_leave();
}

/* Nothing but the marks keeps these in order: the emulator runs work as late as it may. */
PLAIN_RANK(keep_order) {
    tn_group *world = join_world(argument);
    enum { N = 5000 };
    float sum = (float)(ranks * (ranks + 1) / 2), out[N];
    for (int round = 0; round < 20; round++) {
        TN_SCOPE;
        tn_tensor *x = tn_full(TN_DIMS(N), rank + 1, TN_F32);
        tn_tensor *y = tn_mul_scalar(tn_add(x, x), round + 1); /* queued, perhaps not begun */
        tn_work *first = tn_all_reduce(world, y, TN_SUM);
        tn_work *second = tn_all_reduce(world, x, TN_MAX);
        tn_tensor *other = tn_full(TN_DIMS(N), -1, TN_F32); /* while they are sent */
        rank_assert(tn_work_wait(second, 0) == TN_OK && tn_work_wait(first, 0) == TN_OK);
        tn_tensor *z = tn_mul_scalar(y, 0.5);
        tn_drop(y); /* its memory is free for the next */
        tn_tensor *next = tn_full(TN_DIMS(N), 77, TN_F32);
        rank_assert(tn_copy_out(z, out) == TN_OK);
        rank_assert(out[0] == sum * (float)(round + 1) && out[N - 1] == out[0]);
        rank_assert(tn_copy_out(x, out) == TN_OK && out[N / 2] == (float)ranks);
        rank_assert(tn_copy_out(other, out) == TN_OK && out[1] == -1);
        rank_assert(tn_copy_out(next, out) == TN_OK && out[1] == 77);
    }
    return device_leave();
}

/* Host memory, bytes and barriers in the same group; the engine's own memory; subgroups. */
PLAIN_RANK(beside_host) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    rank_assert(tn_default_device().kind == TN_CUDA && tn_default_device().index == rank % 2);
    rank_assert(fabs(tn_group_mean(world, rank, 1) - 0.5 * (ranks - 1)) < 1e-12);
    void *data = rank == 0 ? (void *)"hello" : NULL;
    size_t bytes = rank == 0 ? 6 : 0;
    rank_assert(tn_broadcast_bytes(world, &data, &bytes, 0) == TN_OK && bytes == 6);
    rank_assert(strcmp(data, "hello") == 0 && tn_barrier(world) == TN_OK);
    if (rank != 0) { tn_bytes_free(data); }
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        float ones[1000];
        tn_tensor *flat = tn_group_empty(world, TN_DIMS(1000), TN_F32);
        rank_assert(tn_device_of(flat).kind == TN_CUDA);
        tn_copy_(flat, tn_ones(TN_DIMS(1000), TN_F32));
        rank_assert(tn_work_wait(tn_all_reduce(world, flat, TN_SUM), 0) == TN_OK);
        rank_assert(tn_copy_out(flat, ones) == TN_OK && ones[999] == (float)ranks);
    }
    int pair[2] = {0, 1};
    tn_group *both = tn_group_new(world, pair, 2);
    if (rank < 2) {
        float got[1];
        tn_tensor *t = tn_full(TN_DIMS(1), rank + 1, TN_F32);
        rank_assert(tn_work_wait(tn_all_reduce(both, t, TN_PRODUCT), 0) == TN_OK);
        rank_assert(tn_copy_out(t, got) == TN_OK && got[0] == 2);
        rank_assert(strcmp(tn_group_engine(both), tn_group_engine(world)) == 0);
    }
    tn_group_free(both);
    tn_tensor *kept = tn_keep(tn_group_empty(world, TN_DIMS(10), TN_F32)); /* outlives the group */
    int status = device_leave();
    tn_release(kept);
    return status;
}

/* The last rank is late; the others' wait must return before that. */
PLAIN_RANK(wait_returns_early) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    tn_tensor *t = tn_full(TN_DIMS(100), 1, TN_F32);
    float out[100];
    rank_assert(tn_barrier(world) == TN_OK);
    bool late = rank == ranks - 1;
    sleep(late ? 3 : 0);
    double begin = tn_flight_now();
    rank_assert(tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0) == TN_OK);
    double waited = tn_flight_now() - begin;
    rank_assert(late || waited < 1.5);
    rank_assert(tn_copy_out(t, out) == TN_OK && out[99] == (float)ranks);
    rank_assert(late || tn_flight_now() - begin > 1.5);
    return device_leave();
}

/* A function of the stand-in for NCCL in this process. */
static void *ask_nccl(const char *function) {
    void *nccl = dlopen(getenv("TERN_NCCL"), RTLD_NOW | RTLD_NOLOAD);
    void *found = nccl ? dlsym(nccl, function) : NULL;
    rank_assert(found != NULL);
    dlclose(nccl);
    return found;
}

/* Rank 1 begins after rank 0 has waited for all of its operations: all are launched, one after
 * another, and only the device waits. The barrier after them, in host memory, ends after them. */
PLAIN_RANK(launch_ahead) {
    enum { N = 6 };
    TN_SCOPE;
    tn_group *world = join_world(argument), *other = tn_group_split(world, 0);
    tn_tensor *t = tn_full(TN_DIMS(10), 1, TN_F32);
    tn_work *works[N];
    float out[10];
    rank_assert(rank == 0 || tn_barrier(other) == TN_OK);
    for (int i = 0; i < N; i++) {
        works[i] = tn_all_reduce(world, t, TN_SUM);
    }
    for (int i = 0; i < N; i++) {
        rank_assert(tn_work_wait(works[i], 0) == TN_OK);
    }
    rank_assert(rank != 0 || tn_barrier(other) == TN_OK);
    rank_assert(tn_barrier(world) == TN_OK);
    rank_assert(tn_copy_out(t, out) == TN_OK && out[9] == 64);
    __typeof__(&fake_nccl_depth) deepest;
    *(void **)&deepest = ask_nccl("fake_nccl_depth");
    rank_assert(rank != 0 || deepest() >= N);
    tn_group_free(other);
    return device_leave();
}

/* Three groups, each with a thread: the operations are launched in the order of issue, even if the
 * first thread is held up by one in host memory for which rank 1 is late. */
PLAIN_RANK(launch_in_order) {
    enum { GROUPS = 3, N = 60 };
    TN_SCOPE;
    tn_group *world = join_world(argument), *groups[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        groups[i] = tn_group_split(world, 0);
    }
    tn_tensor *t = tn_full(TN_DIMS(10), 1, TN_F32);
    tn_tensor *host = tn_empty_on(tn_cpu(), TN_DIMS(1), TN_F32);
    tn_work *works[N + 1];
    int wanted[N], launched[N] = {0};
    rank_assert(rank == 0 || tn_barrier(world) == TN_OK);
    works[N] = tn_all_reduce(groups[0], host, TN_SUM);
    for (int i = 0; i < N; i++) {
        int group = i * i % 7 % GROUPS;
        wanted[i] = group + 1; /* the 0th communicator is the world's */
        works[i] = tn_all_reduce(groups[group], t, TN_MAX);
    }
    usleep(rank == 0 ? 100000 : 0); /* time for the other groups' threads to get it wrong */
    rank_assert(rank != 0 || tn_barrier(world) == TN_OK);
    for (int i = N; i >= 0; i--) {
        rank_assert(tn_work_wait(works[i], 0) == TN_OK);
    }
    __typeof__(&fake_nccl_launches) ask;
    *(void **)&ask = ask_nccl("fake_nccl_launches");
    rank_assert(ask(launched, N) == N && memcmp(launched, wanted, sizeof(wanted)) == 0);
    for (int i = 0; i < GROUPS; i++) {
        tn_group_free(groups[i]);
    }
    return device_leave();
}

PLAIN_RANK(tell_engine) {
    tn_group *world = start_within(argument, 20);
    printf("engine %s\n", world ? tn_group_engine(world) : tn_error_message());
    tn_error_clear();
    return device_leave();
}

/* ---- Faults ---------------------------------------------------------------------------------- */

/* Repeats an all-reduce and a barrier, which reports its failure, until one fails. Rank 1 does what
 * the argument says before its third. */
PLAIN_RANK(fail_in_third) {
    tn_group *world = join_world(argument);
    for (int i = 0; i < 1000 && tn_error() == TN_OK; i++) {
        TN_SCOPE;
        tn_tensor *t = tn_full(TN_DIMS(1000), 1, TN_F32);
        if (i == 2 && !strstr(argument, ",killed")) {
            tn_group_set_timeout(world, 0.5); /* not earlier: the first time, a rank may be slow */
        }
        if (i == 2 && rank == 1 && strstr(argument, ",killed")) {
            usleep(200000); /* let what it has sent arrive */
            kill(getpid(), SIGKILL);
        }
        if (i == 2 && rank == 1 && strstr(argument, ",late")) { usleep(2500000); }
        if (i == 2 && rank == 1 && strstr(argument, ",raise")) {
            tn_raise(TN_EVALUE, "this rank does not like it");
        }
        tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0);
        tn_barrier(world);
    }
    return device_leave();
}

/* One all-reduce, then ten at once; the third of all hangs. */
PLAIN_RANK(hang_in_third) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    tn_tensor *t = tn_full(TN_DIMS(1000), 1, TN_F32);
    tn_work *works[10];
    rank_assert(tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0) == TN_OK);
    rank_assert(tn_barrier(world) == TN_OK);
    tn_group_set_timeout(world, 0.5); /* not earlier: the first time, a rank may be slow */
    for (int i = 0; i < 10; i++) {
        works[i] = tn_all_reduce(world, t, TN_SUM);
    }
    for (int i = 0; i < 10; i++) {
        tn_work_wait(works[i], 0);
    }
    tn_barrier(world);
    return device_leave();
}

PLAIN_RANK(join_only) {
    bool same = strstr(argument, ",same") != NULL;
    if (same || strstr(argument, ",cpu")) { /* both on device 0, or on none */
        tn_dist_options o = TN_WITH(tn_dist, .engine = same ? "shm+nccl" : "nccl");
        tn_set_default_device(same ? tn_cuda(0) : tn_cpu());
        tn_dist_init(o);
    } else {
        start_within(argument, 3);
    }
    return device_leave();
}

PLAIN_RANK(two_places) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    tn_tensor *here = tn_empty(TN_DIMS(4), TN_F32);
    tn_tensor *there = tn_empty_on(tn_cpu(), TN_DIMS(ranks, 4), TN_F32);
    tn_all_gather(world, there, here);
    return device_leave();
}

/* Rank 0's tensor is on its device, the others' are not. */
PLAIN_RANK(two_kinds) {
    TN_SCOPE;
    tn_group *world = join_world(argument);
    tn_device where = rank == 0 ? tn_cuda(0) : tn_cpu();
    tn_tensor *t = tn_empty_on(where, TN_DIMS(4), TN_F32);
    tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0);
    return device_leave();
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static ranks_result run_with(int n, const char *body, const char *argument, const char *more) {
    return device_run(n, body, argument, more, 120);
}

static void expect_pass(int n, const char *body, const char *argument) {
    device_pass(n, body, argument, 120);
}

/* Every rank that is not killed exits with 1 within `seconds`. */
static ranks_result run_badly(int n, const char *body, const char *argument, const char *more,
                              double seconds) {
    ranks_result r = run_with(n, body, argument, more);
    assert_false(r.timed_out);
    if (r.seconds > seconds) { fail_msg("%s took %.1f seconds", argument, r.seconds); }
    for (int i = 0; i < n; i++) {
        if (WIFEXITED(r.status[i]) ? WEXITSTATUS(r.status[i]) != 1
                                   : WTERMSIG(r.status[i]) != SIGKILL) {
            fail_msg("rank %d ended with %d: %s", i, r.status[i], r.output[i]);
        }
    }
    return r;
}

PLAIN_TEST(test_staged_has_the_bits_of_shm) {
    expect_pass(2, "all_collectives", "shm,checked"); /* staged works on every engine */
    expect_pass(3, "all_collectives", "staged");
}

PLAIN_TEST(test_long_tensors_go_in_chunks) {
    expect_pass(3, "long_tensors", "staged");
}

PLAIN_TEST(test_staged_keeps_the_order) {
    expect_pass(3, "keep_order", "staged");
}

PLAIN_TEST(test_staged_beside_the_host) {
    expect_pass(3, "beside_host", "staged");
}

PLAIN_TEST(test_nccl) {
    need_nccl();
    expect_pass(2, "all_collectives", "nccl,checked");
    expect_pass(2, "keep_order", "nccl");
    expect_pass(2, "beside_host", "nccl");
}

PLAIN_TEST(test_waiting_for_nccl_does_not_block) {
    need_nccl();
    expect_pass(2, "wait_returns_early", "nccl");
}

PLAIN_TEST(test_nccl_launches_in_the_order_of_issue) {
    need_nccl();
    expect_pass(2, "launch_in_order", "nccl");
    expect_pass(2, "launch_in_order", "nccl,checked");
}

PLAIN_TEST(test_nccl_launches_the_next_before_the_end) {
    need_nccl();
    expect_pass(2, "launch_ahead", "nccl");
}

static void expect_engine(int n, const char *wish, const char *more, const char *line) {
    ranks_result r = run_with(n, "tell_engine", wish, more);
    for (int i = 0; i < n; i++) {
        assert_says(&r, i, line);
    }
    ranks_free(&r);
}

PLAIN_TEST(test_the_engine_that_suits) {
    expect_engine(2, "auto", "TERN_NCCL=off", "engine shm+staged\n");
    expect_engine(2, "staged", NULL, "engine shm+staged\n");
    need_nccl();
    expect_engine(2, "auto", NULL, "engine shm+nccl\n");
    expect_engine(3, "auto", NULL, "engine shm+staged\n");            /* there are two devices */
    expect_engine(3, "nccl", NULL, "the engine is nccl, but rank 0"); /* … and it was asked for */
}

PLAIN_TEST(test_a_dead_rank_of_staged) {
    ranks_result r = run_badly(3, "fail_in_third", "staged,killed", NULL, 20);
    assert_says(&r, 0, "rank 1 (process ");
    assert_says(&r, 0, "has died");
    assert_says(&r, 2, "has died");
    ranks_free(&r);
    r = run_badly(2, "fail_in_third", "staged,late", NULL, 20);
    assert_says(&r, 0, "timed out waiting for rank 1");
    ranks_free(&r);
    r = run_badly(2, "fail_in_third", "staged,raise", NULL, 20);
    assert_says(&r, 0, "rank 1 gave up");
    assert_says(&r, 0, "does not like it");
    ranks_free(&r);
}

PLAIN_TEST(test_faults_of_nccl) {
    need_nccl();
    ranks_result r = run_badly(2, "fail_in_third", "nccl,killed", "TERN_FAKE_NCCL=lossy", 20);
    assert_says(&r, 0, "has died");
    ranks_free(&r);
    r = run_badly(2, "fail_in_third", "nccl", "TERN_FAKE_NCCL=hang:1:3", 20);
    assert_says(&r, 0, "NCCL has not finished all_reduce within 0.5 seconds");
    ranks_free(&r);
    r = run_badly(2, "hang_in_third", "nccl", "TERN_FAKE_NCCL=hang:1:3", 20);
    assert_says(&r, 0, "operation 4, all_reduce f32 [1000] sum: NCCL has not finished");
    ranks_free(&r);
    r = run_badly(2, "fail_in_third", "nccl", "TERN_FAKE_NCCL=error:1:3", 20);
    assert_says(&r, 1, "connection closed by remote peer");
    assert_says(&r, 1, "operation 5, all_reduce f32 [1000] sum");
    assert_says(&r, 0, "operation 5, all_reduce f32 [1000] sum");
    ranks_free(&r);
    r = run_badly(2, "fail_in_third", "nccl,raise", "TERN_FAKE_NCCL=lossy", 20);
    assert_says(&r, 0, "rank 1 gave up");
    assert_says(&r, 0, "does not like it");
    ranks_free(&r);
}

/* gloo's connections reveal a rank that dies or gives up while NCCL waits for it. */
PLAIN_TEST(test_faults_of_nccl_over_gloo) {
    char why[512];
    need_nccl();
    if (!tn__plugin_symbol("gloo", "tn_gloo_api", why, sizeof(why))) { skip(); }
    ranks_result r = run_badly(2, "fail_in_third", "gloo+nccl,killed", "TERN_FAKE_NCCL=lossy", 20);
    assert_says(&r, 0, "all_reduce f32 [1000] sum: the connection to rank 1 is lost");
    ranks_free(&r);
    r = run_badly(2, "fail_in_third", "gloo+nccl,raise", "TERN_FAKE_NCCL=lossy", 20);
    assert_says(&r, 0, "rank 1 gave up");
    ranks_free(&r);
}

PLAIN_TEST(test_joining_nccl_fails) {
    need_nccl();
    ranks_result r = run_badly(2, "join_only", "nccl", "TERN_FAKE_NCCL=absent:1", 20);
    assert_says(&r, 0, "NCCL has not finished joining within");
    ranks_free(&r);
    r = run_badly(2, "join_only", "nccl,same", NULL, 20);
    assert_says(&r, 0, "Duplicate GPU detected");
    assert_says(&r, 1, "with the engine staged they can share one");
    ranks_free(&r);
    r = run_badly(2, "join_only", "nccl,cpu", NULL, 20);
    assert_says(&r, 0, "this rank's default device is cpu");
    ranks_free(&r);
    r = run_badly(2, "join_only", "shm+nccl", "1:TERN_NCCL=/nowhere/libnccl.so.2", 20);
    assert_says(&r, 0, "rank 1 cannot use NCCL");
    assert_says(&r, 0, "/nowhere/libnccl.so.2: cannot open shared object file");
    assert_says(&r, 1, "/nowhere/libnccl.so.2: cannot open shared object file");
    ranks_free(&r);
}

PLAIN_TEST(test_tensors_in_two_places) {
    ranks_result r = run_badly(2, "two_places", "staged", NULL, 20);
    assert_says(&r, 0, "one tensor is on cpu and the other on cuda:0");
    ranks_free(&r);
    r = run_badly(2, "two_kinds", "staged,checked", NULL, 20);
    assert_says(&r, 1, "all_reduce f32 [4] sum on a device");
    ranks_free(&r);
}

/* Threads of this process, on both devices. */
static void add_ranks(tn_group *world, void *user) {
    TN_SCOPE;
    float *sums = user, out[50];
    int r = tn_group_rank(world);
    tn_set_default_device(tn_cuda(r % 2));
    tn_tensor *t = tn_full(TN_DIMS(50), r + 1, TN_F32);
    tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0);
    tn_copy_out(t, out);
    sums[r] = out[49];
}

PLAIN_TEST(test_threads) {
    float sums[4] = {0};
    if (tn_local_run(4, add_ranks, sums) != TN_OK) { fail_msg("%s", tn_error_message()); }
    for (int r = 0; r < 4; r++) {
        assert_true(sums[r] == 10);
    }
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv)) { return 0; }
    return tests_run(device_set_up, NULL);
}
