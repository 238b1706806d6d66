/* The devices, and the table through which the core reaches them.
 *
 * A device is set up when it is first used: its compute stream, its memory pool, its fault cell.
 * It lives as long as the process; at exit nothing is torn down, because the driver may already be
 * gone.
 *
 * Threads: any thread may call anything. All of them queue into the device's one compute stream,
 * each with its own context. fork: CUDA does not survive it, so in a child nothing here touches the
 * runtime: every call fails with a reason, and frees do nothing.
 */
#include "backends/cuda/device.h"

#include "backends/cuda/dnn.h"
#include "backends/cuda/libraries.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static tn_device_table table;
static char table_why[TN_DEVICE_WHY];
static atomic_bool forked;

static tn__cuda_own devices[TN__CUDA_DEVICES];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

tn__cuda_own *tn__cuda_own_at(int index) {
    return &devices[index];
}

bool tn__cuda_forked(void) {
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

static void in_child(void) {
    atomic_store(&forked, true);
}

int tn__cuda_enter(int index) {
    int previous = index;
    if (cudaGetDevice(&previous) == cudaSuccess && previous != index) {
        (void)cudaSetDevice(index);
    }
    return previous;
}

void tn__cuda_leave(int previous) {
    int now = previous;
    if (cudaGetDevice(&now) == cudaSuccess && previous != now) { (void)cudaSetDevice(previous); }
}

/* ---- Devices --------------------------------------------------------------------------------- */

static tn_status read_limits(tn__cuda_device *d) {
    const struct {
        int *value;
        enum cudaDeviceAttr attribute;
    } limits[] = {
        {&d->major, cudaDevAttrComputeCapabilityMajor},
        {&d->minor, cudaDevAttrComputeCapabilityMinor},
        {&d->processors, cudaDevAttrMultiProcessorCount},
        {&d->shared_most, cudaDevAttrMaxSharedMemoryPerBlockOptin},
    };
    tn_status status = TN_OK;
    for (size_t i = 0; i < sizeof(limits) / sizeof(*limits) && status == TN_OK; i++) {
        cudaError_t error = cudaDeviceGetAttribute(limits[i].value, limits[i].attribute, d->index);
        status = tn__cuda_check(error, "the device's properties");
    }
    return status;
}

static tn_status make_fault(tn__cuda_device *d) {
    void *host = NULL, *device = NULL;
    cudaError_t error =
        cudaHostAlloc(&host, sizeof(*d->fault), cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess) {
        memset(host, 0, sizeof(*d->fault));
        d->fault = host;
        error = cudaHostGetDevicePointer(&device, host, 0);
        d->fault_on_device = device;
    }
    return tn__cuda_check(error, "the device's fault cell");
}

/* Under the lock. What was made before a failure is kept for the next try. */
static tn_status device_make(tn__cuda_own *own, int index) {
    tn__cuda_device *d = &own->base;
    d->index = index;
    tn_status status = read_limits(d);
    if (status == TN_OK && !d->compute) {
        cudaError_t error = cudaStreamCreateWithFlags(&d->compute, cudaStreamNonBlocking);
        status = tn__cuda_check(error, "the device's stream");
    }
    if (status == TN_OK && !d->fault_on_device) {
        cudaFreeHost(d->fault);
        status = make_fault(d);
    }
    return status == TN_OK ? tn__cuda_memory_begin(own) : status;
}

tn__cuda_device *tn__cuda_device_at(int index) {
    if (index < 0 || index >= table.count) {
        tn__cuda_note("there is no CUDA device %d: found %d device%s", index, table.count,
                      table.count == 1 ? "" : "s");
        return NULL;
    }
    if (tn__cuda_forked()) {
        tn__cuda_note(
            "this process was forked by one that uses CUDA, which does not work in a child "
            "(start a new program, or use threads)");
        return NULL;
    }
    tn__cuda_own *own = &devices[index];
    if (tn__cuda_check(cudaSetDevice(index), "choosing the device") != TN_OK) { return NULL; }
    if (!atomic_load_explicit(&own->ready, memory_order_acquire)) {
        pthread_mutex_lock(&making);
        bool ready = atomic_load(&own->ready) || device_make(own, index) == TN_OK;
        atomic_store_explicit(&own->ready, ready, memory_order_release);
        pthread_mutex_unlock(&making);
        if (!ready) { return NULL; }
    }
    return &own->base;
}

tn__cuda_own *tn__cuda_ready_at(int index) {
    bool there = index >= 0 && index < table.count && !tn__cuda_forked() &&
                 atomic_load_explicit(&devices[index].ready, memory_order_acquire);
    return there ? &devices[index] : NULL;
}

static tn_status device_describe(int index, tn_device_info *info) {
    struct cudaDeviceProp properties;
    tn_status status = tn__cuda_forked() ? TN_EDEVICE : TN_OK;
    if (status != TN_OK) {
        tn__cuda_note("this process was forked by one that uses CUDA");
        return status;
    }
    status = tn__cuda_check(cudaGetDeviceProperties(&properties, index), "the device's properties");
    if (status == TN_OK) {
        snprintf(info->name, sizeof(info->name), "%s", properties.name);
        info->major = properties.major;
        info->minor = properties.minor;
        info->processors = properties.multiProcessorCount;
        info->memory = (int64_t)properties.totalGlobalMem;
    }
    return status;
}

/* ---- Contexts -------------------------------------------------------------------------------- */

static void *workspace_alloc(tn_context *ctx, size_t bytes) {
    tn__cuda_own *own = tn__cuda_ready_at(ctx->device.index);
    return own ? tn__cuda_memory_take(own, bytes) : NULL;
}

static void workspace_free(tn_context *ctx, void *memory, size_t bytes) {
    tn__cuda_memory_free(ctx->device.index, memory, bytes);
}

tn_context *tn__cuda_context(int index) {
    static _Thread_local tn_context contexts[TN__CUDA_DEVICES];
    tn_context *ctx = &contexts[index];
    if (!ctx->own) {
        *ctx = (tn_context){.device = {TN_CUDA, index},
                            .deterministic = true,
                            .workspace = workspace_alloc,
                            .workspace_free = workspace_free,
                            .own = &devices[index]};
    }
    ctx->stream = devices[index].base.compute;
    return ctx;
}

/* Also for a device that cannot be set up: its launches fail and say why. */
static tn_context *device_context(int index) {
    (void)tn__cuda_device_at(index);
    return tn__cuda_context(index);
}

/* ---- The rest of the table ------------------------------------------------------------------- */

static tn_status device_synchronize(int index) {
    return tn__cuda_device_at(index) ? tn__cuda_settle(&devices[index], "waiting for the device")
                                     : TN_EDEVICE;
}

/* ", cuDNN 9.19.0", or that there is none and why. */
static int library_text(char *text, size_t size, const char *name, const char *version,
                        const char *(*why)(void)) {
    return version ? snprintf(text, size, ", %s %s", name, version)
                   : snprintf(text, size, ", no %s (%s)", name, why());
}

/* Why the first device's cuDNN does not start; NULL: nothing is wrong. */
static const char *starting_trouble(void) {
    if (table.count == 0 || tn__cuda_forked()) { return NULL; }
    int previous = tn__cuda_enter(0);
    const char *trouble = tn__dnn_trouble();
    tn__cuda_leave(previous);
    return trouble;
}

static int plugin_versions(char *text, size_t size) {
    int runtime = 0, driver = 0;
    size_t blas = cublasLtGetVersion();
    const tn__cudnn_table *dnn = tn__cudnn();
    const tn__nccl_table *nccl = tn__nccl();
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
    char own[1024], driver_text[32] = "no driver";
    if (driver > 0) {
        snprintf(driver_text, sizeof(driver_text), "driver %d.%d", driver / 1000,
                 driver % 1000 / 10);
    }
    int length =
        snprintf(own, sizeof(own), "CUDA %d.%d (%s), cuBLASLt %zu.%zu.%zu", runtime / 1000,
                 runtime % 1000 / 10, driver_text, blas / 10000, blas / 100 % 100, blas % 100);
    length += library_text(own + length, sizeof(own) - (size_t)length, "cuDNN",
                           dnn ? dnn->version : NULL, tn__cudnn_why);
    const char *trouble = starting_trouble();
    if (trouble && (size_t)length < sizeof(own)) {
        length += snprintf(own + length, sizeof(own) - (size_t)length,
                           " (which does not start: %s)", trouble);
    }
    if ((size_t)length < sizeof(own)) {
        library_text(own + length, sizeof(own) - (size_t)length, "NCCL",
                     nccl ? nccl->version : NULL, tn__nccl_why);
    }
    return snprintf(text, size, "%s", own);
}

/* The kernels: of operations, and the entries. */
static const tn_op_kernel *const fused[TN_FUSED_COUNT] = {
#define TN_OP(folder, ...) TN__DEVICES(__VA_ARGS__, , , )
#define TN__ON_CPU(name)
#define TN__ON_CUDA(name) [TN_FUSED(name)] = &tn__cuda_op_##name,
#include "ops/list.h"
};

#define ENTRY(entry, ...) .entry = tn__cuda_##entry,
static const tn_backend kernels = {.size = sizeof(tn_backend),
                                   .version = TN_BACKEND_VERSION,
                                   .name = "cuda",
                                   .fused = fused,
                                   TN_ENTRIES(ENTRY)};

/* The number of devices; 0: the driver's message is in table_why. */
static int count_devices(void) {
    int count = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    if (error != cudaSuccess || count <= 0) {
        bool missing = cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
        const char *words =
            error != cudaSuccess ? cudaGetErrorString(error) : "there are no devices";
        snprintf(table_why, sizeof(table_why), "%s%s",
                 missing ? "no CUDA driver is installed: " : "the CUDA driver says: ", words);
        return 0;
    }
    return count < TN__CUDA_DEVICES ? count : TN__CUDA_DEVICES;
}

static void fill_table(void) {
    tn__cuda_failure_begin();
    for (int i = 0; i < TN__CUDA_DEVICES; i++) {
        pthread_mutex_init(&devices[i].lock, NULL);
        pthread_mutex_init(&devices[i].stage_lock, NULL);
    }
    table = (tn_device_table){
        .size = sizeof(table),
        .version = TN_DEVICE_VERSION,
        .name = "cuda",
        .count = count_devices(),
        .why = table_why,
        .versions = plugin_versions,
        .log_to = tn__cuda_log_to,
        .kernels = &kernels,
        .context = device_context,
        .describe = device_describe,
        .reason = tn__cuda_reason,
        .alloc = tn__cuda_memory_alloc,
        .free = tn__cuda_memory_free,
        .memory = tn__cuda_memory_stats,
        .memory_reset_peak = tn__cuda_memory_reset_peak,
        .memory_trim = tn__cuda_memory_trim,
        .memory_text = tn__cuda_memory_text,
        .host_alloc = tn__cuda_host_alloc,
        .host_free = tn__cuda_host_free,
        .copy = tn__cuda_transfer,
        .synchronize = device_synchronize,
        .mark = tn__cuda_mark_new,
        .mark_reached = tn__cuda_mark_reached,
        .mark_wait = tn__cuda_mark_wait,
        .mark_join = tn__cuda_mark_join,
        .mark_free = tn__cuda_mark_free,
        .stream_new = tn__cuda_stream_new,
        .stream_free = tn__cuda_stream_free,
        .stream_join = tn__cuda_stream_join,
        .stream_mark = tn__cuda_stream_mark,
        .stream_copy = tn__cuda_stream_copy,
    };
    if (table.count > 0) { pthread_atfork(NULL, NULL, in_child); }
}

TN_API const tn_device_table *tern_device_table(uint32_t version, char *why);

const tn_device_table *tern_device_table(uint32_t version, char *why) {
    if (version != TN_DEVICE_VERSION) {
        snprintf(why, TN_DEVICE_WHY, "it has version %d of the device table, this libtern %u",
                 TN_DEVICE_VERSION, version);
        return NULL;
    }
    pthread_once(&once, fill_table);
    return &table;
}
