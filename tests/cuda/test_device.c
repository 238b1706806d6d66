/* Devices through the emulator: tensors on them, copies, marks, errors that come late, running out
 * of memory. What depends on how a process begins (no plugin, the real plugin, TERN_SYNC, …) runs
 * in child processes: this program again with the name of the part. */
#include "core/plugin.h"
#include "tern/sys/backend.h"
#include "tern/sys/device.h"
#include "tern/tern.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

#define MIB (1 << 20)

static const tn_device_table *table; /* of the emulated devices */

static int no_error(void **state) {
    tn_error_clear();
    return tn_set_default_device(tn_cpu());
}

/* A tensor on the device with the elements 0, 1, 2, … */
static tn_tensor *arange_on(tn_device device, tn_dims dims) {
    float data[4096];
    int64_t count = tn_dims_count(dims);
    for (int64_t i = 0; i < count; i++) {
        data[i] = (float)i;
    }
    tn_device before = tn_default_device();
    assert_int_equal(tn_set_default_device(device), TN_OK);
    tn_tensor *t = tn_from_data(data, dims, TN_F32);
    assert_int_equal(tn_set_default_device(before), TN_OK);
    return t;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

TEST_WITH(test_there_and_described, no_error, NULL) {
    assert_int_equal(tn_device_count(TN_CUDA), 2);
    assert_string_equal(tn_device_why(TN_CUDA), "");
    tn_device_info info;
    assert_int_equal(tn_device_describe(tn_cuda(1), &info), TN_OK);
    assert_true(strlen(info.name) > 0);
    assert_true(info.major >= 8 && info.processors > 0 && info.memory > 0);
    char text[1024];
    int length = table->versions(text, sizeof(text));
    assert_int_equal(length, strlen(text));
    assert_non_null(strstr(text, "cuBLASLt "));
    assert_non_null(strstr(text, "cuDNN"));
    assert_non_null(strstr(text, "NCCL"));
    tn_context *ctx = tn_context_of(tn_cuda(1));
    assert_int_equal(ctx->device.index, 1);
    assert_true(ctx->deterministic && ctx->conv_tf32 == tn_conv_tf32());
    tn_set_deterministic(false);
    assert_true(ctx->deterministic); /* as for a call that has begun */
    assert_ptr_equal(ctx, tn_context_of(tn_cuda(1)));
    assert_true(!ctx->deterministic && !tn_deterministic());
    tn_set_deterministic(true);
    assert_true(tn_context_of(tn_cuda(1))->deterministic);
    assert_ptr_not_equal(ctx, tn_context_of(tn_cuda(0)));
}

/* A product of f32 rounds its factors only if that is allowed, also from a plan that is there. */
TEST_WITH(test_rounds_if_allowed, no_error, NULL) {
    TN_SCOPE;
    float fine = 1 + 1.0f / 4096;
    tn_tensor *x = tn_to(tn_full(TN_DIMS(16, 16), (double)fine, TN_F32), tn_cuda(0));
    for (int i = 0; i < 4; i++) {
        tn_set_matmul_tf32(i % 2);
        double rounded = i % 2 ? 1 : (double)fine * fine;
        assert_true(fabs(tn_item(tn_mean_all(tn_matmul(x, x))) - 16 * rounded) < 1e-4);
    }
    tn_set_matmul_tf32(false);
}

TEST_WITH(test_made_read_printed, no_error, NULL) {
    TN_SCOPE;
    tn_tensor *t = arange_on(tn_cuda(0), TN_DIMS(3, 4));
    assert_int_equal(tn_device_of(t).kind, TN_CUDA);
    assert_int_equal((uintptr_t)tn_data(t) % 512, 0);
    assert_true(tn_at(t, TN_DIMS(2, 1)) == 9);
    assert_true(tn_item(tn_select(tn_select(t, 0, 1), 0, 3)) == 7);
    char text[200];
    tn_format(tn_narrow(t, 0, 1, 2), text, sizeof(text));
    assert_non_null(strstr(text, "8"));
    assert_null(strstr(text, "nan"));

    float out[12];
    assert_int_equal(tn_copy_out(t, out), TN_OK);
    for (int i = 0; i < 12; i++) {
        assert_true(out[i] == (float)i);
    }
    assert_int_equal(tn_copy_out(tn_t(t), out), TN_OK); /* strided */
    assert_true(out[1] == 4 && out[2] == 8 && out[3] == 1);
    assert_int_equal(tn_copy_out(tn_narrow(tn_t(t), 0, 1, 2), out), TN_OK);
    assert_true(out[0] == 1 && out[5] == 10);

    tn_tensor *empty = tn_empty_on(tn_cuda(0), TN_DIMS(0, 3), TN_F32);
    assert_false(tn_is_inert(empty));
    assert_int_equal(tn_copy_out(empty, NULL), TN_OK);
    assert_int_equal(tn_error(), TN_OK);
}

TEST_WITH(test_large_copies, no_error, NULL) {
    enum { COUNT = 5 * MIB / 4 + 77 }; /* several stages, and the last one in part */
    static const int64_t counts[] = {1, 16 << 10, (16 << 10) + 1, COUNT};
    int32_t *data = malloc(COUNT * sizeof(*data)), *out = malloc(COUNT * sizeof(*out));
    assert_int_equal(tn_set_default_device(tn_cuda(0)), TN_OK);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < 4; k++) {
            TN_SCOPE;
            for (int i = 0; i < COUNT; i++) {
                data[i] = i * 7 + round;
            }
            tn_tensor *t = tn_from_data(data, TN_DIMS(counts[k]), TN_I32);
            memset(data, 0xff, (size_t)counts[k] * sizeof(*data)); /* it may change at once */
            assert_int_equal(tn_copy_out(t, out), TN_OK);
            for (int64_t i = 0; i < counts[k]; i++) {
                assert_int_equal(out[i], (int)i * 7 + round);
            }
        }
    }
    free(data);
    free(out);
}

TEST_WITH(test_between_devices, no_error, NULL) {
    TN_SCOPE;
    tn_tensor *a = arange_on(tn_cuda(0), TN_DIMS(1000));
    tn_tensor *b = tn_empty_on(tn_cuda(1), TN_DIMS(1000), TN_F32);
    tn_tensor *c = tn_empty_on(tn_cuda(0), TN_DIMS(1000), TN_F32);
    float out[1000];
    size_t bytes = sizeof(out);
    assert_int_equal(table->copy(tn_cuda(1), tn_data_mut(b), tn_cuda(0), tn_data(a), bytes), TN_OK);
    /* What the first device does next comes after the copy. */
    memset(out, 0, bytes);
    assert_int_equal(table->copy(tn_cuda(0), tn_data_mut(a), tn_cpu(), out, bytes), TN_OK);
    assert_int_equal(table->copy(tn_cuda(0), tn_data_mut(c), tn_cuda(1), tn_data(b), bytes), TN_OK);
    assert_int_equal(tn_copy_out(c, out), TN_OK);
    for (int i = 0; i < 1000; i++) {
        assert_true(out[i] == (float)i);
    }
    assert_int_equal(table->copy(tn_cuda(0), tn_data_mut(c), tn_cuda(0), tn_data(a), bytes), TN_OK);
    assert_int_equal(tn_copy_out(c, out), TN_OK);
    assert_true(out[0] == 0 && out[999] == 0);
}

/* ---- Names, limits --------------------------------------------------------------------------- */

TEST_WITH(test_names, no_error, NULL) {
    assert_int_equal(tn_device_named("cpu").kind, TN_CPU);
    assert_int_equal(tn_device_named("cuda").index, 0);
    assert_int_equal(tn_device_named("cuda").kind, TN_CUDA);
    assert_int_equal(tn_device_named("cuda:1").index, 1);
    assert_string_equal(tn_device_text(tn_cuda(1)), "cuda:1");
    assert_int_equal(tn_error(), TN_OK);
    static const char *const none[] = {"",
                                       "gpu",
                                       "cuda:",
                                       "cuda:x",
                                       "cuda:-1",
                                       "cuda:1x",
                                       "cuda:+1",
                                       "cuda: 1",
                                       "CUDA:0",
                                       "cuda0",
                                       "cuda:99999999999999999"};
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
        assert_int_equal(tn_device_named(none[i]).kind, TN_CPU);
        assert_error(TN_EDEVICE, "is not a device");
    }
    tn_device_named(NULL);
    assert_error(TN_EDEVICE, "(NULL)");
    tn_device_named("cuda:2");
    assert_error(TN_EDEVICE, "there is no device cuda:2: 2 devices are here, counted from 0");
}

TEST_WITH(test_wrong_index, no_error, NULL) {
    static const int wrong[] = {-1, 2, 31, 32, 1 << 30, -2147483647 - 1};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        TN_SCOPE;
        tn_device device = tn_cuda(wrong[i]);
        assert_inert(tn_empty_on(device, TN_DIMS(2), TN_F32), TN_EDEVICE,
                     "there is no device cuda:");
        assert_int_equal(tn_set_default_device(device), TN_EDEVICE);
        assert_error(TN_EDEVICE, "2 devices are here");
        assert_int_equal(tn_device_synchronize(device), TN_EDEVICE);
        tn_error_clear();
        assert_int_equal(tn_device_memory(device).allocated, 0);
        tn_error_clear();
        assert_null(tn_context_of(device));
        /* The table itself checks, too. */
        char text[300];
        assert_null(table->alloc(wrong[i], 100));
        table->free(wrong[i], text, 100);
        table->memory_trim(wrong[i]);
        table->memory_text(wrong[i], text, sizeof(text));
        assert_non_null(strstr(text, "there is no CUDA device"));
        assert_null(table->mark(wrong[i]));
        assert_int_equal(table->synchronize(wrong[i]), TN_EDEVICE);
        assert_non_null(strstr(table->reason(), "there is no CUDA device"));
    }
    assert_int_equal(tn_default_device().kind, TN_CPU);
}

static void *default_elsewhere(void *argument) {
    tn_device first = tn_default_device();
    tn_set_default_device(tn_cuda(1));
    TN_SCOPE;
    tn_tensor *t = tn_empty(TN_DIMS(3), TN_F32);
    return (void *)(intptr_t)(first.kind == TN_CPU && tn_device_of(t).index == 1);
}

TEST_WITH(test_default_device_is_a_threads_own, no_error, NULL) {
    assert_int_equal(tn_set_default_device(tn_cuda(0)), TN_OK);
    pthread_t thread;
    void *right;
    assert_int_equal(pthread_create(&thread, NULL, default_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, &right), 0);
    assert_non_null(right);
    TN_SCOPE;
    tn_device device = tn_device_of(tn_empty(TN_DIMS(3), TN_F32));
    assert_int_equal(device.kind, TN_CUDA);
    assert_int_equal(device.index, 0);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

TEST_WITH(test_statistics, no_error, NULL) {
    tn_device_memory_trim(tn_cuda(1));
    tn_memory_stats before = tn_device_memory(tn_cuda(1));
    int64_t other = tn_device_memory(tn_cuda(0)).allocated;
    {
        TN_SCOPE;
        tn_empty_on(tn_cuda(1), TN_DIMS(1000), TN_F32);
        tn_memory_stats stats = tn_device_memory(tn_cuda(1));
        assert_int_equal(stats.allocated, before.allocated + 4000);
        assert_int_equal(stats.allocations, before.allocations + 1);
        assert_true(stats.reserved >= stats.allocated);
        assert_int_equal(tn_device_memory(tn_cuda(0)).allocated, other);
        tn_context *ctx = tn_context_of(tn_cuda(1));
        void *scratch = ctx->workspace(ctx, 1);
        assert_non_null(scratch);
        assert_int_equal(tn_device_memory(tn_cuda(1)).allocated, before.allocated + 4001);
        char text[1000];
        int length = table->memory_text(1, text, sizeof(text));
        assert_int_equal(length, strlen(text));
        assert_non_null(strstr(text, "the device has "));
        assert_int_equal(table->memory_text(1, text, 10), length);
        assert_int_equal(strlen(text), 9);
        ctx->workspace_free(ctx, scratch, 1);
    }
    assert_int_equal(tn_device_memory(tn_cuda(1)).allocated, before.allocated);
    assert_true(tn_device_memory(tn_cuda(1)).peak >= before.allocated + 4000);
    tn_device_memory_reset_peak(tn_cuda(1));
    assert_int_equal(tn_device_memory(tn_cuda(1)).peak, before.allocated);
    tn_device_memory_trim(tn_cuda(1));
    assert_int_equal(tn_device_memory(tn_cuda(1)).reserved, 0);
}

/* The emulated devices have 64 MiB (main). */
TEST_WITH(test_memory_ends_and_comes_back, no_error, NULL) {
    tn_device gpu = tn_cuda(0);
    tn_device_memory_trim(gpu);
    {
        TN_SCOPE;
        tn_tensor *a = tn_empty_on(gpu, TN_DIMS(40, MIB / 4), TN_F32);
        assert_false(tn_is_inert(a));
        assert_true(tn_is_inert(tn_empty_on(gpu, TN_DIMS(40, MIB / 4), TN_F32)));
        assert_non_null(strstr(tn_error_message(), "no memory for 41943040 bytes on cuda:0"));
        assert_non_null(strstr(tn_error_message(), "40.0 MiB in use"));
        assert_error(TN_ENOMEM, "left of 64.0");
        assert_inert(tn_empty_on(gpu, TN_DIMS(1 << 20, 1 << 20, 1 << 18), TN_F32), TN_ENOMEM,
                     "no memory for 1152921504606846976 bytes");
        tn_tensor *b = arange_on(gpu, TN_DIMS(4, 5)); /* later calls work */
        assert_true(tn_at(b, TN_DIMS(3, 4)) == 19);
        assert_true(tn_item(arange_on(tn_cuda(1), TN_DIMS())) == 0); /* the other one has its own */
    }
    TN_SCOPE; /* the pool keeps 40 MiB, which are in the way: they are returned */
    assert_true(tn_device_memory(gpu).reserved >= 40 * MIB);
    assert_false(tn_is_inert(tn_empty_on(gpu, TN_DIMS(50, MIB / 4), TN_F32)));
    assert_int_equal(tn_error(), TN_OK);
}

/* Work that is queued reaches memory that is freed after it; what is taken then has it later. */
TEST_WITH(test_free_in_order, no_error, NULL) {
    char *host = table->host_alloc(4096), *out = table->host_alloc(4096);
    memset(host, 7, 4096);
    void *a = table->alloc(0, 4096), *b = table->alloc(0, 4096);
    assert_int_equal(table->copy(tn_cuda(0), a, tn_cpu(), host, 4096), TN_OK);
    assert_int_equal(table->copy(tn_cuda(0), b, tn_cuda(0), a, 4096), TN_OK);
    table->free(0, a, 4096);
    assert_int_equal(table->copy(tn_cpu(), out, tn_cuda(0), b, 4096), TN_OK);
    assert_memory_equal(out, host, 4096);
    table->free(0, b, 4096);
    table->free(0, NULL, 0);
    table->host_free(host, 4096);
    assert_ptr_equal(table->host_alloc(4000), host); /* kept for its size */
    table->host_free(host, 4000);
    table->host_free(out, 4096);
}

static int said;

static void hear_free(tn_log_level level, const char *message, void *user) {
    said += strstr(message, "which is not in use on this device") != NULL;
}

TEST_WITH(test_wrong_free_is_said, no_error, NULL) {
    tn_log_to(hear_free, TN_LOG_WARN, NULL);
    char *memory = table->alloc(0, 1000);
    int64_t allocated = tn_device_memory(tn_cuda(0)).allocated;
    table->free(0, memory + 512, 100);
    assert_int_equal(said, 1);
    assert_int_equal(tn_device_memory(tn_cuda(0)).allocated, allocated);
    table->free(0, memory, 1000);
    assert_int_equal(tn_device_memory(tn_cuda(0)).allocated, allocated - 1000);
    assert_int_equal(tn_device_synchronize(tn_cuda(0)), TN_OK);
    tn_log_to(NULL, TN_LOG_ERROR, NULL);
}

/* ---- Marks ----------------------------------------------------------------------------------- */

TEST_WITH(test_page_locked_memory_is_read_late, no_error, NULL) {
    enum { BYTES = 300000 };
    char *host = table->host_alloc(BYTES), *out = malloc(BYTES);
    void *memory = table->alloc(0, BYTES);
    memset(host, 1, BYTES);
    assert_int_equal(table->copy(tn_cuda(0), memory, tn_cpu(), host, BYTES), TN_OK);
    void *mark = table->mark(0);
    assert_non_null(mark);
    assert_false(table->mark_reached(mark));
    assert_int_equal(table->mark_wait(mark), TN_OK);
    assert_true(table->mark_reached(mark));
    memset(host, 2, BYTES); /* after the mark it may change */
    assert_int_equal(table->copy(tn_cpu(), out, tn_cuda(0), memory, BYTES), TN_OK);
    assert_int_equal(out[0], 1);
    assert_int_equal(out[BYTES - 1], 1);
    assert_int_equal(table->copy(tn_cpu(), host, tn_cuda(0), memory, BYTES), TN_OK);
    assert_int_equal(host[BYTES - 1], 1); /* what was written has arrived */
    table->mark_free(mark);
    table->mark_free(NULL);
    table->free(0, memory, BYTES);
    table->host_free(host, BYTES);
    table->host_free(NULL, 0);
    assert_null(table->host_alloc(0));
    free(out);
}

TEST_WITH(test_polling_a_mark_ends, no_error, NULL) {
    TN_SCOPE;
    tn_tensor *t = arange_on(tn_cuda(0), TN_DIMS(10));
    void *mark = table->mark(0);
    int polls = 0;
    while (!table->mark_reached(mark) && polls < 100000) {
        polls++;
    }
    assert_true(polls < 100000);
    assert_true(tn_item(tn_select(t, 0, 9)) == 9);
    table->mark_free(mark);
}

TEST_WITH(test_joins, no_error, NULL) {
    char *host = table->host_alloc(100);
    void *memory = table->alloc(0, 100);
    memset(host, 5, 100);
    assert_int_equal(table->copy(tn_cuda(0), memory, tn_cpu(), host, 100), TN_OK);
    void *first = table->mark(0);
    assert_int_equal(table->mark_join(1, first), TN_OK);
    void *second = table->mark(1);
    table->mark_free(first);                           /* a join outlives its mark */
    assert_int_equal(table->mark_wait(second), TN_OK); /* so the first device has copied */
    memset(host, 6, 100);
    assert_int_equal(table->copy(tn_cpu(), host, tn_cuda(0), memory, 100), TN_OK);
    assert_int_equal(host[99], 5);
    table->mark_free(second);

    /* Marks are reused: a new one is not at the place of the old one. */
    for (int i = 0; i < 50; i++) {
        assert_int_equal(table->copy(tn_cuda(0), memory, tn_cpu(), host, 100), TN_OK);
        void *mark = table->mark(0);
        assert_false(table->mark_reached(mark));
        assert_int_equal(table->mark_wait(mark), TN_OK);
        table->mark_free(mark);
    }
    table->free(0, memory, 100);
    table->host_free(host, 100);
}

/* ---- Late errors ----------------------------------------------------------------------------- */

/* y = x[index] on the device with an index that is out of range at position 2. */
static tn_status gather_wrongly(int64_t wrong) {
    TN_SCOPE;
    tn_device gpu = tn_cuda(0);
    tn_tensor *x = arange_on(gpu, TN_DIMS(4, 2)), *y = tn_empty_on(gpu, TN_DIMS(3, 2), TN_F32);
    const int64_t rows[] = {3, 0, wrong};
    assert_int_equal(tn_set_default_device(gpu), TN_OK);
    tn_tensor *index = TN_FROM(rows, TN_DIMS(3), TN_I64);
    assert_int_equal(tn_set_default_device(tn_cpu()), TN_OK);
    tn_desc to = {tn_data_mut(y), TN_F32, 2, {3, 2}, {2, 1}};
    tn_desc from = {tn_data_mut(x), TN_F32, 2, {4, 2}, {2, 1}};
    tn_desc at = {tn_data_mut(index), TN_I64, 1, {3}, {1}};
    return table->kernels->gather_rows(tn_context_of(gpu), &to, &from, &at);
}

TEST_WITH(test_a_bad_index_comes_late, no_error, NULL) {
    assert_int_equal(gather_wrongly(9), TN_OK);
    assert_int_equal(tn_error(), TN_OK);
    assert_int_equal(tn_device_synchronize(tn_cuda(1)), TN_OK); /* that device has no error */
    assert_int_equal(tn_device_synchronize(tn_cuda(0)), TN_EINDEX);
    assert_non_null(strstr(tn_error_message(), "cuda:0: index 9 at position 2 is out of range"));
    assert_non_null(strstr(tn_error_message(), "gather"));
    assert_error(TN_EINDEX, "TERN_SYNC=1 finds the call");
    tn_context *ctx = tn_context_of(tn_cuda(0));
    assert_int_equal(ctx->bad_position, 2);
    assert_int_equal(ctx->bad_value, 9);
    assert_int_equal(tn_device_synchronize(tn_cuda(0)), TN_OK); /* it is reported once */

    TN_SCOPE; /* a copy to the host reports it as well, and so does a mark */
    tn_tensor *t = arange_on(tn_cuda(0), TN_DIMS(3));
    assert_int_equal(gather_wrongly(-1), TN_OK);
    float out[3];
    assert_int_equal(tn_copy_out(t, out), TN_EINDEX);
    assert_error(TN_EINDEX, "index -1 at position 2");
    assert_int_equal(gather_wrongly(4), TN_OK);
    void *mark = table->mark(0);
    assert_int_equal(table->mark_wait(mark), TN_EINDEX);
    assert_non_null(strstr(table->reason(), "index 4 at position 2"));
    table->mark_free(mark);

    /* A loader's thread that waits for its copies takes no fault from who trains. */
    void *stream = table->stream_new(0), *now;
    assert_int_equal(gather_wrongly(5), TN_OK);
    now = table->mark(0);
    assert_int_equal(table->stream_join(stream, now), TN_OK);
    mark = table->stream_mark(stream);
    assert_int_equal(table->mark_wait(mark), TN_OK);
    assert_int_equal(tn_device_synchronize(tn_cuda(0)), TN_EINDEX);
    assert_error(TN_EINDEX, "index 5 at position 2");
    table->mark_free(mark);
    table->mark_free(now);
    table->stream_free(stream);
    assert_int_equal(gather_wrongly(3), TN_OK);
    assert_int_equal(tn_device_synchronize(tn_cuda(0)), TN_OK);
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *live_on_devices(void *argument) {
    int me = (int)(intptr_t)argument;
    intptr_t wrong = 0;
    for (int round = 0; round < 60; round++) {
        TN_SCOPE;
        int32_t data[2000], out[2000];
        tn_device here = tn_cuda((me + round) % 2), there = tn_cuda((me + round + 1) % 2);
        for (int i = 0; i < 2000; i++) {
            data[i] = me * 1000000 + round * 10000 + i;
        }
        tn_set_default_device(here);
        tn_tensor *a = tn_from_data(data, TN_DIMS(2000), TN_I32);
        tn_tensor *b = tn_empty_on(there, TN_DIMS(2000), TN_I32);
        wrong += table->copy(there, tn_data_mut(b), here, tn_data(a), sizeof(data)) != TN_OK;
        tn_drop(a);
        wrong += tn_copy_out(b, out) != TN_OK || memcmp(out, data, sizeof(data)) != 0;
    }
    return (void *)(wrong + tn_error());
}

TEST_WITH(test_threads, no_error, NULL) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, live_on_devices, (void *)(intptr_t)i),
                         0);
    }
    for (int i = 0; i < 4; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
}

TEST_WITH(test_a_forked_child_is_told, no_error, NULL) {
    TN_SCOPE;
    tn_tensor *t = arange_on(tn_cuda(0), TN_DIMS(3)), *m = arange_on(tn_cuda(0), TN_DIMS(4, 4));
    pid_t child = fork();
    if (child == 0) {
        alarm(120);
        bool right = tn_is_inert(tn_empty_on(tn_cuda(0), TN_DIMS(2), TN_F32)) &&
                     strstr(tn_error_message(), "forked");
        tn_error_clear();
        right = right && tn_is_inert(tn_matmul(m, m)) && strstr(tn_error_message(), "forked");
        tn_error_clear();
        right = right && tn_device_synchronize(tn_cuda(0)) == TN_EDEVICE;
        tn_error_clear();
        right = right && isnan(tn_item(tn_select(t, 0, 1))) && tn_error() == TN_EDEVICE;
        tn_drop(t);
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(tn_item(tn_select(t, 0, 1)) == 1);
}

/* ---- A loader -------------------------------------------------------------------------------- */

/* Batches whose kernels run late: a copy, in a stream of its own, waits for those that read what
 * was in its memory before, and they for the copies of their own batch. The host reads only the
 * sum. */
TEST_WITH(test_loader_in_its_stream, no_error, NULL) {
    enum { EXAMPLES = 40, WIDTH = 64, BATCH = 4 };
    for (int threads = 0; threads < 3; threads++) {
        TN_SCOPE;
        float data[EXAMPLES * WIDTH];
        for (int i = 0; i < EXAMPLES * WIDTH; i++) {
            data[i] = (float)(i % 97) + (float)(i / WIDTH);
        }
        tn_dataset *d =
            tn_tensor_dataset(tn_from_data(data, TN_DIMS(EXAMPLES, WIDTH), TN_F32), NULL);
        tn_set_default_device(tn_cuda(0));
        tn_loader *l = tn_loader_new(d, tn_sequential_sampler(),
                                     TN_WITH(tn_loader, .batch = BATCH, .threads = threads));
        tn_tensor *sum = tn_zeros(TN_DIMS(BATCH, WIDTH), TN_F32);
        for (tn_batch b; tn_loader_next(l, &b);) {
            TN_SCOPE;
            tn_add_(sum, tn_mul_scalar(b.x, 1.0 + (double)b.index));
        }
        float got[BATCH * WIDTH];
        assert_int_equal(tn_copy_out(sum, got), TN_OK);
        for (int i = 0; i < BATCH * WIDTH; i++) {
            double want = 0;
            for (int k = 0; k < EXAMPLES / BATCH; k++) {
                want += (double)data[k * BATCH * WIDTH + i] * (1 + k);
            }
            assert_float_equal(got[i], want, 0.0);
        }
        tn_loader_free(l);
        tn_set_default_device(tn_cpu());
    }
}

/* ---- Other processes ------------------------------------------------------------------------- */

enum { SKIPPED = 77 };
static bool skipped; /* of a part: its process ends with SKIPPED */

static void part_missing(void **state) { /* TERN_CUDA=nothing_like_it */
    assert_int_equal(tn_device_count(TN_CUDA), 0);
    assert_non_null(strstr(tn_device_why(TN_CUDA), "libtern_nothing_like_it.so"));
    assert_int_equal(tn_device_named("cuda").kind, TN_CPU);
    assert_error(TN_EDEVICE, "there is no device cuda:0: libtern_nothing_like_it.so");
    TN_SCOPE;
    assert_inert(tn_empty_on(tn_cuda(0), TN_DIMS(2), TN_F32), TN_EDEVICE,
                 "libtern_nothing_like_it.so");
    assert_null(tn__device_plugin(TN_CUDA));
    assert_null(tn_context_of(tn_cuda(0)));
}

static void part_real(void **state) { /* libtern_cuda.so itself */
    const tn_device_table *real = tn__device_plugin(TN_CUDA);
    if (!real) {
        print_message("libtern_cuda.so is not here: %s\n", tn_device_why(TN_CUDA));
        skipped = true;
        return;
    }
    char text[1024];
    assert_true(real->versions(text, sizeof(text)) > 0);
    assert_non_null(strstr(text, "CUDA "));
    if (real->count > 0) {
        print_message("this machine has a GPU: the rest is for those without\n");
        skipped = true;
        return;
    }
    assert_non_null(strstr(real->why, "CUDA driver"));
    tn_device_named("cuda");
    assert_error(TN_EDEVICE, "there is no device cuda:0: ");
    tn_device_synchronize(tn_cuda(0));
    assert_error(TN_EDEVICE, real->why);
    assert_null(real->alloc(0, 100));
    assert_int_equal(real->synchronize(0), TN_EDEVICE);
    assert_non_null(strstr(real->reason(), "there is no CUDA device 0: found 0 devices"));
}

static void part_sync(void **state) { /* TERN_SYNC=1 */
    assert_int_equal(gather_wrongly(7), TN_EINDEX);
    tn_context *ctx = tn_context_of(tn_cuda(0));
    assert_int_equal(ctx->bad_position, 2);
    assert_int_equal(ctx->bad_value, 7);
    assert_null(strstr(table->reason(), "late"));
    assert_int_equal(tn_device_synchronize(tn_cuda(0)), TN_OK);
}

static void part_died(void **state) { /* a kernel dies */
    TN_SCOPE;
    tn_tensor *t = arange_on(tn_cuda(0), TN_DIMS(3)), *other = arange_on(tn_cuda(1), TN_DIMS(3));
    tn_desc y = {tn_data_mut(arange_on(tn_cuda(0), TN_DIMS(1))), TN_F32, 3, {1, 1, 1}, {1, 1, 1}};
    tn_desc a = {tn_data_mut(t), TN_F32, 3, {1, 1, 3}, {3, 3, 1}};
    tn_desc b = {tn_data_mut(t), TN_F32, 3, {1, 3, 1}, {3, 1, 1}};
    assert_int_equal(gather_wrongly(0), TN_OK);
    char why[200];
    void *symbol = tn__plugin_symbol("cuda_emulator", "tern_emulator_break", why, sizeof(why));
    assert_non_null(symbol);
    void (*break_device)(int, const char *);
    memcpy(&break_device, &symbol, sizeof(symbol));
    break_device(0, "somebody wrote to nowhere");
    assert_int_equal(tn_device_synchronize(tn_cuda(0)), TN_EDEVICE);
    assert_non_null(strstr(tn_error_message(), "the last kernels were "));
    /* without the template's arguments */
    assert_non_null(strstr(tn_error_message(), "gather_rows_kernel; "));
    assert_error(TN_EDEVICE, "this process cannot use the device any more");
    assert_inert(tn_empty_on(tn_cuda(0), TN_DIMS(100, 100), TN_F32), TN_ENOMEM,
                 "somebody wrote to nowhere"); /* and not how much memory there is */
    /* which needs scratch memory, the first thing that it cannot have */
    assert_int_equal(table->kernels->matmul(tn_context_of(tn_cuda(0)), &y, &a, &b, 1, 0),
                     TN_ENOMEM);
    assert_non_null(strstr(table->reason(), "device memory: "));
    assert_non_null(strstr(table->reason(), "somebody wrote to nowhere"));
    assert_true(isnan(tn_item(tn_select(t, 0, 1))));
    assert_error(TN_EDEVICE, "somebody wrote to nowhere");
    assert_true(tn_item(tn_select(other, 0, 2)) == 2);
    assert_int_equal(table->synchronize(0), TN_EDEVICE); /* and the process exits cleanly */
}

typedef struct part {
    const char *name, *variable, *value;
    const struct CMUnitTest test;
} part;

static const part parts[] = {
    {"missing", "TERN_CUDA", "nothing_like_it", cmocka_unit_test(part_missing)},
    {"real", "TERN_CUDA", "cuda", cmocka_unit_test(part_real)},
    {"sync", "TERN_SYNC", "1", cmocka_unit_test(part_sync)},
    {"died", "TERN_SYNC", "0", cmocka_unit_test(part_died)},
};
enum { PARTS = sizeof(parts) / sizeof(*parts) };

/* Runs one part in a child process. */
static void run_part(void **state) {
    const part *p = *state;
    pid_t child = fork();
    if (child == 0) {
        setenv(p->variable, p->value, 1);
        setenv("CMOCKA_MESSAGE_OUTPUT", "STDOUT", 1);
        dup2(STDERR_FILENO, STDOUT_FILENO); /* this program's output is TAP */
        execl("/proc/self/exe", "test_device", p->name, (char *)NULL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) { skip(); }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int be_part(const char *name) {
    for (int i = 0; i < PARTS; i++) {
        if (strcmp(parts[i].name, name) == 0) {
            table = tn__device_plugin(TN_CUDA);
            const struct CMUnitTest tests[] = {parts[i].test};
            cmocka_set_message_output(CM_OUTPUT_STDOUT);
            return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : skipped ? SKIPPED : 0;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    setenv("TERN_CUDA", "cuda_emulator", argc < 2);
    setenv("TERN_EMULATOR_MEMORY", "64M", 1);
    if (argc > 1) { return be_part(argv[1]); }
    table = tn__device_plugin(TN_CUDA);
    if (!table) {
        printf("1..0 # SKIP %s\n", tn_device_why(TN_CUDA));
        return 0;
    }
    for (int i = 0; i < PARTS; i++) {
        test_add("run_part", run_part, NULL, NULL, (void *)&parts[i], __COUNTER__);
    }
    return tests_run(NULL, NULL);
}
