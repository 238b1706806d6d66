/* The functions of cuda_runtime_api.h that the plugin and the tests use, over two emulated devices;
 * any other function is an undefined symbol. */
#include "tests/emulator/runtime.h"

#include "tests/emulator/block.h"

#include <stdio.h>
#include <string.h>
#include <vector>

using namespace tn_emulator;

typedef std::lock_guard<std::mutex> locked;

static const int version = 13000;
static const int processors = 4;

/* ---- Devices --------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = DEVICES;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    locked guard(lock);
    if (device < 0 || device >= DEVICES) { return result(cudaErrorInvalidDevice); }
    set_current_device(device);
    return result(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    locked guard(lock);
    if (device < 0 || device >= DEVICES) { return result(cudaErrorInvalidDevice); }
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "emulated GPU");
    p->totalGlobalMem = memory_capacity();
    p->sharedMemPerBlock = MOST_STATIC;
    p->sharedMemPerBlockOptin = MOST_SHARED;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->reservedSharedMemPerBlock = 1 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 64 << 10;
    p->warpSize = WARP;
    p->maxThreadsPerBlock = MOST_THREADS;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = MOST_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->minor = 0;
    p->multiProcessorCount = processors;
    p->l2CacheSize = 50 << 20;
    p->pciBusID = device + 1;
    p->unifiedAddressing = p->concurrentKernels = p->canMapHostMemory = 1;
    p->asyncEngineCount = 2;
    return result(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) { return error; }
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = p.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrWarpSize:
        *value = p.warpSize;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
        *value = 1;
        break;
    default:
        *value = 0; /* as for everything that a device lacks */
    }
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *driver) {
    *driver = version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *runtime) {
    *runtime = version;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static const struct {
    cudaError_t error;
    const char *text;
} errors[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInvalidConfiguration, "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "invalid resource handle"},
    {cudaErrorNotReady, "device not ready"},
};

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &e : errors) {
        if (e.error == error) { return e.text; }
    }
    bool sticks = error == cudaErrorLaunchFailure || error == cudaErrorIllegalAddress;
    return sticks ? stuck_text() : "unrecognized error code";
}

cudaError_t cudaGetLastError(void) {
    locked guard(lock);
    return take_last_error(true);
}

cudaError_t cudaPeekAtLastError(void) {
    locked guard(lock);
    return take_last_error(false);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    locked guard(lock);
    cudaError_t error = stuck(current_device());
    return result(error != cudaSuccess ? error
                                       : device_alloc(current_device(), bytes, false, memory));
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
    locked guard(lock);
    return result(host_alloc(bytes, memory));
}

/* Waits for all that is queued, as the real ones do. */
static cudaError_t free_memory(void *memory, bool of_device) {
    locked guard(lock);
    if (!memory) { return result(cudaSuccess); }
    record("free");
    for (int i = 0; i < DEVICES; i++) {
        run_device(i);
    }
    return result(release(memory, of_device) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaFree(void *memory) {
    return free_memory(memory, true);
}

cudaError_t cudaFreeHost(void *memory) {
    return free_memory(memory, false);
}

/* A pool's handle is its device's number, and one. */
static int device_of(cudaMemPool_t pool) {
    return (int)(intptr_t)pool - 1;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    *pool = (cudaMemPool_t)(intptr_t)(device + 1);
    return cudaSuccess;
}

/* The threshold, below which nothing is returned before a trim. */
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, enum cudaMemPoolAttr attribute, void *value) {
    bool all = attribute == cudaMemPoolAttrReleaseThreshold && *(uint64_t *)value == UINT64_MAX;
    return all ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                    void *value) {
    locked guard(lock);
    *(uint64_t *)value = memory_reserved(device_of(pool));
    return attribute == cudaMemPoolAttrReservedMemCurrent ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
    locked guard(lock);
    trim_pool(device_of(pool));
    return result(cudaSuccess);
}

cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t handle) {
    locked guard(lock);
    auto s = stream_of(handle);
    if (!s) { return result(cudaErrorInvalidResourceHandle); }
    cudaError_t error = stuck(s->device);
    return result(error != cudaSuccess ? error : device_alloc(s->device, bytes, true, memory));
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t handle) {
    locked guard(lock);
    auto s = stream_of(handle);
    if (!s) { return result(cudaErrorInvalidResourceHandle); }
    record("free");
    return result(release_in_order(memory, s) ? stuck(s->device) : cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void **device_memory, void *host_memory, unsigned) {
    locked guard(lock);
    const allocation *a = allocation_of(host_memory);
    *device_memory = a && a->device < 0 ? host_memory : nullptr;
    return result(*device_memory ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    locked guard(lock);
    size_t used = memory_reserved(current_device());
    *total = memory_capacity();
    *free = *total > used ? *total - used : 0;
    return result(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *address) {
    locked guard(lock);
    const allocation *a = allocation_of(address);
    memset(attributes, 0, sizeof(*attributes));
    attributes->device = a && a->device >= 0 ? a->device : current_device();
    attributes->type = !a               ? cudaMemoryTypeUnregistered
                       : a->device >= 0 ? cudaMemoryTypeDevice
                                        : cudaMemoryTypeHost;
    attributes->devicePointer = a ? const_cast<void *>(address) : nullptr;
    attributes->hostPointer = a && a->device >= 0 ? nullptr : const_cast<void *>(address);
    return result(cudaSuccess);
}

/* ---- Copies ---------------------------------------------------------------------------------- */

namespace {
/* One end of a copy. */
struct end {
    const allocation *in; /* NULL: pageable host memory */
    bool on_device, inside;

    end(const void *address, size_t bytes) : in(allocation_of(address)) {
        on_device = in && in->device >= 0;
        inside = !in || (!in->freed && (const char *)address + bytes <= in->start + in->bytes);
    }
    unsigned devices() const { return on_device ? 1u << in->device : 0; }
};
} // namespace

static bool kind_fits(enum cudaMemcpyKind kind, const end &to, const end &from) {
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to.on_device && !from.on_device;
    case cudaMemcpyHostToDevice:
        return to.on_device && !from.on_device;
    case cudaMemcpyDeviceToHost:
        return !to.on_device && from.on_device;
    case cudaMemcpyDeviceToDevice:
        return to.on_device && from.on_device;
    default:
        return kind == cudaMemcpyDefault;
    }
}

static const char *kind_text(const end &to, const end &from) {
    return !to.on_device ? "out" : from.on_device ? "on" : "in";
}

/* Pageable memory is read at once, and has been written when this returns; page-locked memory is
 * left to the stream. */
static cudaError_t copy_memory(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                               const std::shared_ptr<stream> &s, bool waits) {
    if (!s) { return cudaErrorInvalidResourceHandle; }
    if (bytes == 0) { return cudaSuccess; }
    end target(to, bytes), source(from, bytes);
    if (!to || !from || !target.inside || !source.inside || !kind_fits(kind, target, source)) {
        return cudaErrorInvalidValue;
    }
    unsigned devices = target.devices() | source.devices();
    if (devices && record("copy %s %zu", kind_text(target, source), bytes)) {
        if (!target.on_device) { memset(to, 0, bytes); }
    } else if (source.in) {
        push(
            s, [=] { memmove(to, from, bytes); }, devices);
    } else {
        auto staged =
            std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
        push(
            s, [=] { memcpy(to, staged->data(), bytes); }, devices);
    }
    if (waits || !target.in) {
        record("wait");
        run_all(s);
    }
    return stuck(s->device);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t handle) {
    locked guard(lock);
    return result(copy_memory(to, from, bytes, kind, stream_of(handle), false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    locked guard(lock);
    return result(copy_memory(to, from, bytes, kind, stream_of(nullptr), true));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t handle) {
    locked guard(lock);
    end target(to, bytes), source(from, bytes);
    bool right = bytes == 0 || (target.on_device && target.in->device == to_device &&
                                source.on_device && source.in->device == from_device);
    return result(
        !right ? cudaErrorInvalidValue
               : copy_memory(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(handle), false));
}

static cudaError_t set_memory(void *memory, int value, size_t bytes,
                              const std::shared_ptr<stream> &s) {
    if (!s) { return cudaErrorInvalidResourceHandle; }
    end target(memory, bytes);
    if (bytes > 0 && (!target.in || !target.inside)) { return cudaErrorInvalidValue; }
    if (bytes > 0 && !(target.on_device && record("set %zu", bytes))) {
        push(
            s, [=] { memset(memory, value, bytes); }, target.devices());
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t handle) {
    locked guard(lock);
    return result(set_memory(memory, value, bytes, stream_of(handle)));
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
    return cudaMemsetAsync(memory, value, bytes, nullptr);
}

/* ---- Streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int) {
    locked guard(lock);
    cudaError_t error = stuck(current_device());
    if (error == cudaSuccess) { *handle = add_stream(!(flags & cudaStreamNonBlocking)); }
    return result(error);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags) {
    return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *handle) {
    return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    locked guard(lock);
    auto s = handle ? stream_of(handle) : nullptr;
    if (!s) { return result(cudaErrorInvalidResourceHandle); }
    remove_stream(s);
    return result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    locked guard(lock);
    auto s = stream_of(handle);
    if (!s) { return result(cudaErrorInvalidResourceHandle); }
    record("wait");
    run_all(s);
    return result(stuck(s->device));
}

/* Polling makes progress: each call does one thing, so a polling loop ends. */
cudaError_t cudaStreamQuery(cudaStream_t handle) {
    locked guard(lock);
    auto s = stream_of(handle);
    if (!s) { return result(cudaErrorInvalidResourceHandle); }
    if (s->queue.empty()) { return result(stuck(s->device)); }
    run_one(s);
    return result(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
    locked guard(lock);
    auto s = stream_of(handle);
    event *e = event_of(event_handle);
    if (!s || !e) { return result(cudaErrorInvalidResourceHandle); }
    if (e->last && e->last->in != s) { push_wait(s, e->last); }
    return result(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void) {
    locked guard(lock);
    record("wait");
    run_device(current_device());
    return result(cudaSuccess);
}

/* ---- Events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags) {
    locked guard(lock);
    cudaError_t error = stuck(current_device());
    if (error == cudaSuccess) { *handle = add_event(!(flags & cudaEventDisableTiming)); }
    return result(error);
}

cudaError_t cudaEventCreate(cudaEvent_t *handle) {
    return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    locked guard(lock);
    event *e = event_of(handle);
    if (!e) { return result(cudaErrorInvalidResourceHandle); }
    remove_event(e);
    return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
    locked guard(lock);
    auto s = stream_of(stream_handle);
    event *e = event_of(handle);
    if (!s || !e || e->device != s->device) { return result(cudaErrorInvalidResourceHandle); }
    e->last = push_point(s);
    return result(stuck(s->device));
}

static bool is_reached(const event *e) {
    return !e->last || e->last->in->done >= e->last->turn;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    locked guard(lock);
    event *e = event_of(handle);
    if (!e) { return result(cudaErrorInvalidResourceHandle); }
    if (is_reached(e)) { return result(stuck(e->device)); }
    run_one(e->last->in);
    return result(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    locked guard(lock);
    event *e = event_of(handle);
    if (!e) { return result(cudaErrorInvalidResourceHandle); }
    if (!is_reached(e)) {
        record("wait");
        run_to(e->last->in, e->last->turn);
    }
    return result(stuck(e->device));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t second) {
    locked guard(lock);
    event *a = event_of(first), *b = event_of(second);
    if (!a || !b || !a->timed || !b->timed || !a->last || !b->last) {
        return result(cudaErrorInvalidResourceHandle);
    }
    if (!is_reached(a) || !is_reached(b)) { return result(cudaErrorNotReady); }
    *milliseconds = (float)(1e3 * (b->last->seconds - a->last->seconds));
    return result(cudaSuccess);
}
