/* The emulator's blocks: barriers, warps, shared memory, orders, and wrong kernels. */
#include "tests/emulator/test_launch.h"

#include <float.h>

/* ---- Right kernels --------------------------------------------------------------------------- */

static __global__ void where_am_i(int *out) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += (int)(block * 1000 + thread);
}

TEST_WITH(test_every_thread_once, reset_emulator, nullptr) {
    static int out[2 * 3 * 2 * 4 * 5 * 2];
    const char *orders[] = {"forward", "reverse", "shuffle:7"};
    for (const char *order : orders) {
        memset(out, 0, sizeof(out));
        assert_true(tern_emulator_set_order(order));
        assert_int_equal(RUN(where_am_i, dim3(2, 3, 2), dim3(4, 5, 2), 0, out), cudaSuccess);
        for (int i = 0; i < 480; i++) {
            assert_int_equal(out[i], i / 40 * 1000 + i % 40);
        }
    }
    for (const char *order : {"backwards", "", "shuffle:", "shuffle:7x", "shuffle7"}) {
        assert_false(tern_emulator_set_order(order));
    }
}

/* The sum of each block's values, through shuffles and shared memory. */
static __global__ void block_sum(float *out, const float *x) {
    TN_SHARED(float, partial, 32);
    float sum = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(TN_FULL, sum, step);
    }
    if (threadIdx.x % 32 == 0) { partial[threadIdx.x / 32] = sum; }
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0;
        for (unsigned i = 0; i < blockDim.x / 32; i++) {
            total += partial[i];
        }
        out[blockIdx.x] = total;
    }
}

TEST_WITH(test_block_sum, reset_emulator, nullptr) {
    static float x[3 * 1024], out[3];
    for (int i = 0; i < 3 * 1024; i++) {
        x[i] = (float)(i % 17);
    }
    for (const char *order : {"forward", "reverse", "shuffle", "shuffle:99"}) {
        assert_true(tern_emulator_set_order(order));
        assert_int_equal(RUN(block_sum, 3, 1024, 0, out, x), cudaSuccess);
        for (int b = 0; b < 3; b++) {
            float expected = 0;
            for (int i = 0; i < 1024; i++) {
                expected += x[b * 1024 + i];
            }
            assert_float_equal(out[b], expected, 0);
        }
    }
}

static __global__ void shuffle_lanes(double *out) {
    int lane = (int)threadIdx.x;
    double x = lane + 0.5;
    out[lane] = __shfl_sync(TN_FULL, x, 5);
    out[32 + lane] = __shfl_sync(TN_FULL, x, lane + 1, 8);
    out[64 + lane] = __shfl_up_sync(TN_FULL, x, 3);
    out[96 + lane] = __shfl_down_sync(TN_FULL, x, 3, 16);
    out[128 + lane] = __shfl_xor_sync(TN_FULL, x, 9);
    out[160 + lane] = __shfl_xor_sync(TN_FULL, x, 9, 8); /* the segment after is out of reach */
}

TEST_WITH(test_shuffles, reset_emulator, nullptr) {
    static double out[192];
    assert_int_equal(RUN(shuffle_lanes, 1, 32, 0, out), cudaSuccess);
    for (int i = 0; i < 32; i++) {
        assert_true(out[i] == 5.5);
        assert_true(out[32 + i] == i / 8 * 8 + (i + 1) % 8 + 0.5);
        assert_true(out[64 + i] == (i < 3 ? i : i - 3) + 0.5);
        assert_true(out[96 + i] == (i % 16 + 3 < 16 ? i + 3 : i) + 0.5);
        assert_true(out[128 + i] == (i ^ 9) + 0.5);
        assert_true(out[160 + i] == ((i ^ 9) > i / 8 * 8 + 7 ? i : i ^ 9) + 0.5);
    }
}

static __global__ void vote_in_warp(unsigned *out) {
    int lane = (int)threadIdx.x % 32;
    unsigned low = __ballot_sync(0xffff, lane % 3 == 0 && lane < 16);
    out[threadIdx.x] = low | (unsigned)__any_sync(0xffff, lane == 9) << 16 |
                       (unsigned)__all_sync(0xffff, lane != 9) << 17 |
                       (unsigned)__all_sync(0xffff, lane < 16) << 18;
}

/* The half of a warp that the mask names, in a block that ends in the middle of a warp. */
TEST_WITH(test_votes, reset_emulator, nullptr) {
    static unsigned out[16];
    assert_int_equal(RUN(vote_in_warp, 1, 16, 0, out), cudaSuccess);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(out[i], 0x9249 | 1 << 16 | 1 << 18);
    }
}

static __global__ void vote_in_block(int *out) {
    int i = (int)threadIdx.x;
    out[i] = __syncthreads_count(i % 2) + 1000 * __syncthreads_or(i == 7) +
             10000 * __syncthreads_and(i >= 0) + 100000 * __syncthreads_and(i > 0);
}

TEST_WITH(test_predicates, reset_emulator, nullptr) {
    static int out[100];
    assert_int_equal(RUN(vote_in_block, 1, 100, 0, out), cudaSuccess);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(out[i], 11050);
    }
}

static __global__ void update_atomically(int *sum, unsigned *most, float *f,
                                         unsigned long long *last, int *turn) {
    atomicAdd(sum, (int)threadIdx.x);
    atomicMax(most, threadIdx.x * blockIdx.x);
    atomicAdd(f, 0.5f);
    atomicExch(last, 7ull);
    if (atomicCAS(turn, 0, 1 + (int)threadIdx.x) == 0) { atomicSub(sum, 1); }
}

TEST_WITH(test_atomics, reset_emulator, nullptr) {
    int sum = 0, turn = 0;
    unsigned most = 0;
    float f = 0;
    unsigned long long last = 0;
    tern_emulator_set_order("reverse");
    assert_int_equal(RUN(update_atomically, 3, 64, 0, &sum, &most, &f, &last, &turn), cudaSuccess);
    assert_int_equal(sum, 3 * 2016 - 1);
    assert_int_equal(most, 2 * 63);
    assert_float_equal(f, 96, 0);
    assert_int_equal(last, 7);
    assert_int_equal(turn, 64);
}

/* Each instance of a template has its own memory; two calls of one function share it. */
template <typename T> static __device__ T *own_memory() {
    TN_SHARED(T, own, 8);
    return own;
}
static __global__ void find_instances(size_t *out) {
    TN_DYNAMIC(char, all);
    out[0] = (size_t)own_memory<float>();
    out[1] = (size_t)own_memory<double>();
    out[2] = (size_t)own_memory<float>();
    out[3] = (size_t)all % 16;
    TN_DYNAMIC(float, again);
    out[4] = (const char *)again == all;
}

TEST_WITH(test_shared_memory_of_instances, reset_emulator, nullptr) {
    size_t out[5];
    assert_int_equal(RUN(find_instances, 1, 4, 64, out), cudaSuccess);
    assert_true(out[0] != out[1] && out[0] == out[2]);
    assert_int_equal(out[3], 0);
    assert_int_equal(out[4], 1);
}

static __global__ void read_unset(float *out) {
    TN_SHARED(float, memory, 4);
    TN_DYNAMIC(float, dynamic);
    out[blockIdx.x] = memory[threadIdx.x] + dynamic[threadIdx.x];
    memory[threadIdx.x] = dynamic[threadIdx.x] = 1;
}

TEST_WITH(test_shared_memory_is_unset, reset_emulator, nullptr) {
    float out[2] = {0, 0};
    assert_int_equal(RUN(read_unset, 2, 1, 16, out), cudaSuccess);
    assert_true(isnan(out[0]) && isnan(out[1]));
}

struct pair {
    double a;
    int b[10];
};
static __global__ void take_arguments(double *out, pair p, int64_t wide) {
    out[threadIdx.x] = p.a + p.b[threadIdx.x] + (double)wide;
    p.b[(threadIdx.x + 1) % 10] = 0; /* a thread's own copy */
}

/* Arguments have their values at the launch, converted as in a call. */
TEST_WITH(test_arguments_are_copied, reset_emulator, nullptr) {
    double out[10];
    pair p = {0.25, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}};
    TN_LAUNCH(&context, take_arguments, 1, 10, 0, out, p, 3);
    memset(&p, 0, sizeof(p));
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 10; i++) {
        assert_float_equal(out[i], 3.25 + i, 0);
    }
}

static __global__ void many_waits(int *out) {
    TN_SHARED(int, turn, 1);
    if (threadIdx.x == 0) { *turn = 0; }
    __syncthreads();
    for (int i = 0; i < 300; i++) {
        if ((int)threadIdx.x == i % (int)blockDim.x) { *turn += 1; }
        __syncthreads();
    }
    out[blockIdx.x] = *turn;
}

TEST_WITH(test_many_waits, reset_emulator, nullptr) {
    int out[20];
    tern_emulator_set_order("shuffle:3");
    assert_int_equal(RUN(many_waits, 20, 96, 0, out), cudaSuccess);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(out[i], 300);
    }
}

/* ---- Wrong kernels --------------------------------------------------------------------------- */

/* Shows a missing barrier: the neighbour's value is there in one order and not in the other. */
static __global__ void race_neighbours(float *out) {
    TN_SHARED(float, memory, 64);
    memory[threadIdx.x] = (float)threadIdx.x;
    out[threadIdx.x] = memory[(threadIdx.x + 63) % 64];
}

TEST_WITH(test_orders_show_a_race, reset_emulator, nullptr) {
    float forward[64], reverse[64];
    assert_int_equal(RUN(race_neighbours, 1, 64, 0, forward), cudaSuccess);
    tern_emulator_set_order("reverse");
    assert_int_equal(RUN(race_neighbours, 1, 64, 0, reverse), cudaSuccess);
    assert_memory_not_equal(forward, reverse, sizeof(forward));
}

static __global__ void adds_floats(float *sum) {
    atomicAdd(sum, 1.0f / (float)(1 + blockIdx.x * blockDim.x + threadIdx.x));
}

TEST_WITH(test_orders_show_sums_of_floats, reset_emulator, nullptr) {
    float forward = 0, shuffled = 0;
    assert_int_equal(RUN(adds_floats, 50, 64, 0, &forward), cudaSuccess);
    tern_emulator_set_order("shuffle");
    assert_int_equal(RUN(adds_floats, 50, 64, 0, &shuffled), cudaSuccess);
    assert_true(forward != shuffled);
    assert_float_equal(forward, shuffled, 1e-3);
}

/* The launch failed, says why, and the device stays unusable until it is reset. */
static void assert_failed(cudaError_t error, const char *first, const char *second) {
    assert_int_equal(error, cudaErrorLaunchFailure);
    const char *text = cudaGetErrorString(error);
    assert_contains(text, first);
    assert_contains(text, second);
    void *memory;
    assert_int_equal(cudaMalloc(&memory, 8), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    float out[2];
    assert_int_equal(RUN(read_unset, 1, 1, 16, out), cudaErrorLaunchFailure);
    reset_emulator(nullptr);
    assert_int_equal(RUN(read_unset, 2, 1, 16, out), cudaSuccess);
}

static __global__ void leaves_early(int n) {
    if ((int)threadIdx.x >= n) { return; }
    __syncthreads();
}
static __global__ void different_barriers() {
    if (threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}
static __global__ void half_a_shuffle(int *out) {
    if (threadIdx.x < 40) { out[threadIdx.x] = __shfl_xor_sync(TN_FULL, 1, 1); }
}
static __global__ void other_masks(int *out) {
    out[threadIdx.x] = __shfl_sync(threadIdx.x < 8 ? 0xffu : TN_FULL, 1, 0);
}
static __global__ void other_operations() {
    if (threadIdx.x < 8) {
        __any_sync(TN_FULL, 1);
    } else {
        __all_sync(TN_FULL, 1);
    }
}
static __global__ void not_in_the_mask() {
    __syncwarp(0xf0);
}
static __global__ void absent_lane(int *out) {
    out[threadIdx.x] = __shfl_down_sync(TN_FULL, 1, 8);
}
static __global__ void warp_against_block() {
    if (threadIdx.x == 3) {
        __syncthreads();
    } else {
        __syncwarp();
    }
}
static __global__ void beyond_the_end() {
    TN_SHARED(float, small, 5);
    volatile float *p = small;
    p[5] = 1;
}
static __global__ void before_the_start() {
    TN_DYNAMIC(float, rows);
    volatile float *p = rows;
    p[-1] = 1;
}
static __global__ void too_much() {
    TN_SHARED(double, large, 6145);
    *large = 0;
}
static __global__ void no_dynamic() {
    TN_DYNAMIC(float, rows);
    *rows = 0;
}

TEST_WITH(test_divergence, reset_emulator, nullptr) {
    static int out[64];
    assert_failed(RUN(leaves_early, 2, 64, 0, 40), "kernel leaves_early, block (0, 0, 0)",
                  "thread (40, 0, 0) has ended");
    assert_failed(RUN(different_barriers, 1, 32, 0), "different_barriers", "test_kernels.cc:");
    assert_failed(RUN(half_a_shuffle, 1, 64, 0, out), "thread (32, 0, 0) waits in __shfl_xor_sync",
                  "thread (40, 0, 0) has ended");
    assert_failed(RUN(other_masks, 1, 32, 0, out), "other_masks", "__shfl_sync");
    assert_failed(RUN(other_operations, 1, 32, 0), "__any_sync", "__all_sync");
    assert_failed(RUN(not_in_the_mask, 1, 32, 0), "0xf0", "its own lane");
    assert_failed(RUN(absent_lane, 1, 16, 0, out), "__shfl_down_sync", "lane 16");
    assert_failed(RUN(warp_against_block, 1, 32, 0), "__syncwarp",
                  "thread (3, 0, 0) waits in __syncthreads");
}

TEST_WITH(test_shared_memory_limits, reset_emulator, nullptr) {
    assert_failed(RUN(too_much, 1, 1, 0), "large", "49160 bytes");
    assert_failed(RUN(no_dynamic, 1, 1, 0), "rows", "no dynamic shared memory");
#ifndef __SANITIZE_ADDRESS__ /* which ends the program at once */
    assert_failed(RUN(beyond_the_end, 1, 1, 0), "beyond the ends of small", "beyond_the_end");
    assert_failed(RUN(before_the_start, 1, 1, 64), "beyond the ends of dynamic",
                  "before_the_start");
#else
    (void)beyond_the_end;
    (void)before_the_start;
#endif
}

TEST_WITH(test_launch_limits, reset_emulator, nullptr) {
    int out[4];
    assert_int_equal(TN_LAUNCH(&context, where_am_i, 1, 1025, 0, out), TN_EDEVICE);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    const dim3 wrong[][2] = {{dim3(0), dim3(32)},          {dim3(1), dim3(0)},
                             {dim3(1, 65536), dim3(1)},    {dim3(1, 1, 65536), dim3(1)},
                             {dim3(0x80000000u), dim3(1)}, {dim3(1), dim3(1, 1, 65)}};
    for (const dim3 *w : wrong) {
        TN_LAUNCH(&context, where_am_i, w[0], w[1], 0, out);
        assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    }
    TN_LAUNCH(&context, where_am_i, 1, 1, 227 * 1024 + 1, out);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    /* nothing was queued */
    assert_int_equal(RUN(block_sum, 0, 32, 0, nullptr, nullptr), cudaSuccess);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
}
