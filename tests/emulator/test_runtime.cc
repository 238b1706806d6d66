/* The emulator's devices: work that runs late, order between streams,
 * memory that the host cannot touch. */
#include "tests/emulator/test_launch.h"

#include "tests/emulator/fibre.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static __global__ void add_one(int *x, int n) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) { x[i] += 1; }
}

static void launch_add_one(cudaStream_t stream, int *x, int n) {
    tn_context ctx = {};
    ctx.stream = stream;
    assert_int_equal(TN_LAUNCH(&ctx, add_one, (n + 31) / 32, 32, 0, x, n), TN_OK);
}

static cudaStream_t new_stream() {
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static int *new_ints(int count) {
    void *memory;
    assert_int_equal(cudaMalloc(&memory, (size_t)count * sizeof(int)), cudaSuccess);
    assert_int_equal(cudaMemset(memory, 0, (size_t)count * sizeof(int)), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    return (int *)memory;
}

static int *new_pinned(int count) {
    void *memory;
    assert_int_equal(cudaHostAlloc(&memory, (size_t)count * sizeof(int), 0), cudaSuccess);
    memset(memory, 0, (size_t)count * sizeof(int));
    return (int *)memory;
}

/* ---- Streams --------------------------------------------------------------------------------- */

TEST_WITH(test_work_runs_late, reset_emulator, nullptr) {
    cudaStream_t stream = new_stream();
    int *x = new_ints(4), *host = new_pinned(4);
    launch_add_one(stream, x, 4);
    assert_int_equal(cudaMemcpyAsync(host, x, 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    assert_int_equal(host[3], 0); /* a missing wait is seen every time */
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(host[3], 1);
    assert_int_equal(cudaFree(x), cudaSuccess);
    assert_int_equal(cudaFreeHost(host), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
}

/* Pageable memory is read at once and has been written on return; page-locked memory is neither. */
TEST_WITH(test_host_memory_of_copies, reset_emulator, nullptr) {
    cudaStream_t stream = new_stream();
    int *x = new_ints(1), *pinned = new_pinned(1), pageable = 5, back = 0;
    assert_int_equal(cudaMemcpyAsync(x, &pageable, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
    pageable = 6;
    assert_int_equal(cudaMemcpyAsync(&back, x, 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    assert_int_equal(back, 5);
    *pinned = 7;
    assert_int_equal(cudaMemcpyAsync(x, pinned, 4, cudaMemcpyDefault, stream), cudaSuccess);
    *pinned = 8;
    assert_int_equal(cudaMemcpyAsync(&back, x, 4, cudaMemcpyDefault, stream), cudaSuccess);
    assert_int_equal(back, 8);
    cudaFree(x);
    cudaFreeHost(pinned);
    cudaStreamDestroy(stream);
}

TEST_WITH(test_wrong_copies, reset_emulator, nullptr) {
    int *x = new_ints(4), host[4] = {0};
    assert_int_equal(cudaMemcpy(x, host, 20, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(x + 1, x, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(host, x, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyPeerAsync(x, 1, x, 0, 16, nullptr), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(x + 1), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(x), cudaSuccess);
    assert_int_equal(cudaFree(x), cudaErrorInvalidValue);
}

TEST_WITH(test_streams_are_not_ordered, reset_emulator, nullptr) {
    cudaStream_t first = new_stream(), second = new_stream();
    int *x = new_ints(1), *host = new_pinned(1);
    launch_add_one(first, x, 1);
    cudaMemcpyAsync(host, x, 4, cudaMemcpyDefault, second);
    cudaStreamSynchronize(second);
    assert_int_equal(*host, 0); /* second did not wait for first */
    cudaEvent_t event;
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaEventRecord(event, first), cudaSuccess);
    launch_add_one(first, x, 1); /* after the event: not waited for */
    assert_int_equal(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
    cudaMemcpyAsync(host, x, 4, cudaMemcpyDefault, second);
    cudaStreamSynchronize(second);
    assert_int_equal(*host, 1);
    cudaDeviceSynchronize();
    cudaMemcpy(host, x, 4, cudaMemcpyDefault);
    assert_int_equal(*host, 2);
    cudaEventDestroy(event);
    cudaFree(x);
    cudaFreeHost(host);
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
}

/* The default stream and a blocking one wait for each other. */
TEST_WITH(test_default_stream, reset_emulator, nullptr) {
    cudaStream_t blocking;
    assert_int_equal(cudaStreamCreate(&blocking), cudaSuccess);
    int *x = new_ints(1), *host = new_pinned(1);
    launch_add_one(blocking, x, 1);
    cudaMemcpyAsync(host, x, 4, cudaMemcpyDefault, nullptr);
    launch_add_one(blocking, x, 1);
    cudaStreamSynchronize(blocking);
    assert_int_equal(*host, 1);
    cudaFree(x);
    cudaFreeHost(host);
    cudaStreamDestroy(blocking);
}

/* Not ready at first; polling ends. */
TEST_WITH(test_queries, reset_emulator, nullptr) {
    cudaStream_t stream = new_stream();
    int *x = new_ints(1);
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    assert_int_equal(cudaEventQuery(event), cudaSuccess); /* never recorded */
    for (int i = 0; i < 3; i++) {
        launch_add_one(stream, x, 1);
    }
    cudaEventRecord(event, stream);
    int polls = 0;
    while (cudaEventQuery(event) == cudaErrorNotReady) {
        polls++;
    }
    assert_int_equal(polls, 4);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    launch_add_one(stream, x, 1);
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(stream), cudaSuccess);
    cudaEventDestroy(event);
    assert_int_equal(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
    cudaFree(x);
    cudaStreamDestroy(stream);
}

TEST_WITH(test_elapsed_time, reset_emulator, nullptr) {
    cudaStream_t stream = new_stream();
    int *x = new_ints(1);
    cudaEvent_t first, second, plain;
    cudaEventCreate(&first);
    cudaEventCreate(&second);
    cudaEventCreateWithFlags(&plain, cudaEventDisableTiming);
    float milliseconds = -1;
    cudaEventRecord(first, stream);
    launch_add_one(stream, x, 1);
    cudaEventRecord(second, stream);
    assert_int_equal(cudaEventElapsedTime(&milliseconds, first, second), cudaErrorNotReady);
    assert_int_equal(cudaEventSynchronize(second), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&milliseconds, first, second), cudaSuccess);
    assert_true(milliseconds > 0);
    assert_int_equal(cudaEventElapsedTime(&milliseconds, first, plain),
                     cudaErrorInvalidResourceHandle);
    cudaEventDestroy(first);
    cudaEventDestroy(second);
    cudaEventDestroy(plain);
    cudaFree(x);
    cudaStreamDestroy(stream);
}

/* A queue that nothing waits for does not grow without limit. */
TEST_WITH(test_long_queue, reset_emulator, nullptr) {
    cudaStream_t stream = new_stream(), other = new_stream();
    int *x = new_ints(1), host = 0;
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    for (int i = 0; i < 3000; i++) { /* each waits for the other's last */
        cudaStream_t here = i % 2 ? stream : other;
        cudaStreamWaitEvent(here, event, 0);
        launch_add_one(here, x, 1);
        cudaEventRecord(event, here);
    }
    cudaEventSynchronize(event);
    cudaMemcpy(&host, x, 4, cudaMemcpyDefault);
    assert_int_equal(host, 3000);
    cudaEventDestroy(event);
    cudaFree(x);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
}

/* ---- Devices --------------------------------------------------------------------------------- */

TEST_WITH(test_two_devices, reset_emulator, nullptr) {
    int count = 0, value = 9;
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    assert_int_equal(count, 2);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    int *here = new_ints(1);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    cudaStream_t stream = new_stream();
    int *there = new_ints(1);
    launch_add_one(stream, there, 1);
    assert_int_equal(cudaMemcpyPeerAsync(here, 0, there, 1, 4, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(&value, here, 4, cudaMemcpyDefault), cudaSuccess);
    assert_int_equal(value, 1);
    assert_int_equal(cudaSetDevice(0), cudaSuccess); /* a stream of another device */
    TN_LAUNCH(&context, add_one, 1, 1, 0, here, 1);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    tn_context wrong = {};
    wrong.stream = stream;
    assert_int_equal(TN_LAUNCH(&wrong, add_one, 1, 1, 0, there, 1), TN_EDEVICE);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    cudaFree(here);
    cudaFree(there);
    cudaStreamDestroy(stream);
}

TEST_WITH(test_out_of_memory, reset_emulator, nullptr) {
    size_t unused, total;
    tern_emulator_set_memory(1 << 20);
    assert_int_equal(cudaMemGetInfo(&unused, &total), cudaSuccess);
    assert_int_equal(total, 1 << 20);
    size_t before = unused;
    void *memory, *more;
    assert_int_equal(cudaMalloc(&memory, before - 1000), cudaSuccess);
    assert_int_equal(cudaMalloc(&more, 1001), cudaErrorMemoryAllocation);
    assert_null(more);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&more, 1000), cudaSuccess);
    cudaMemGetInfo(&unused, &total);
    assert_int_equal(unused, 0);
    cudaFree(more);
    cudaFree(memory);
    cudaMemGetInfo(&unused, &total);
    assert_int_equal(unused, before);
}

TEST_WITH(test_fresh_memory_is_nan, reset_emulator, nullptr) {
    float *x, host[2] = {0, 0};
    assert_int_equal(cudaMalloc((void **)&x, 8), cudaSuccess);
    cudaMemcpy(host, x, 8, cudaMemcpyDefault);
    assert_true(isnan(host[0]) && isnan(host[1]));
    cudaFree(x);
}

/* ---- Invalid memory -------------------------------------------------------------------------- */

static void read_by_host(int *x) {
    volatile int *p = x;
    (void)*p;
}
static void kernel_beyond(int *x) {
    launch_add_one(nullptr, x, 200);
    cudaDeviceSynchronize();
}
static void kernel_of_other_device(int *x) {
    cudaSetDevice(1);
    launch_add_one(nullptr, x, 1);
    cudaDeviceSynchronize();
}

/* In a child. */
static void assert_dies(void (*act)(int *), int *x) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        if (freopen("/dev/null", "w", stderr)) { act(x); }
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
#ifdef TN_FIBRE_ASAN
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
#else
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
#endif
}

TEST_WITH(test_host_is_kept_out, reset_emulator, nullptr) {
    int *x = new_ints(128);
    launch_add_one(nullptr, x, 128);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_dies(read_by_host, x);
    cudaFree(x);
    assert_dies(read_by_host, x);
}

/* A kernel's own mistake is an error that names the thread; with AddressSanitizer, its report. */
static void assert_illegal(void (*act)(int *), int *x, const char *first, const char *second) {
#ifdef TN_FIBRE_ASAN
    (void)first, (void)second;
    assert_dies(act, x);
#else
    act(x);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorIllegalAddress);
    assert_contains(cudaGetErrorString(cudaErrorIllegalAddress), first);
    assert_contains(cudaGetErrorString(cudaErrorIllegalAddress), second);
#endif
    reset_emulator(nullptr);
}

TEST_WITH(test_kernel_is_kept_in, reset_emulator, nullptr) {
    int *x = new_ints(128); /* 512 bytes: the end of a page */
    assert_illegal(kernel_beyond, x, "block (4, 0, 0): thread (0, 0, 0)",
                   "0 bytes after an allocation of 512");
    assert_illegal(kernel_of_other_device, x, "kernel add_one", "memory of device 0");
    /* both devices continue after the reset, and the host is still kept out */
    launch_add_one(nullptr, x, 128);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_dies(read_by_host, x);
    cudaFree(x);
    assert_illegal(kernel_beyond, x, "thread (0, 0, 0) touches", "which is not allocated");
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *add_in_thread(void *argument) {
    int *x = (int *)argument;
    cudaSetDevice(0);
    cudaStream_t stream;
    bool good = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
    for (int i = 0; i < 200 && good; i++) {
        tn_context ctx = {};
        ctx.stream = stream;
        TN_LAUNCH(&ctx, add_one, 2, 32, 0, x, 64);
        good = i % 10 || cudaStreamSynchronize(stream) == cudaSuccess;
    }
    good = cudaStreamDestroy(stream) == cudaSuccess && good;
    return good ? x : nullptr;
}

TEST_WITH(test_threads, reset_emulator, nullptr) {
    pthread_t threads[4];
    int *x[4], host[64];
    for (int i = 0; i < 4; i++) {
        x[i] = new_ints(64);
        assert_int_equal(pthread_create(&threads[i], nullptr, add_in_thread, x[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, x[i]);
        cudaMemcpy(host, x[i], sizeof(host), cudaMemcpyDefault);
        assert_int_equal(host[0], 200);
        assert_int_equal(host[63], 200);
        cudaFree(x[i]);
    }
}
