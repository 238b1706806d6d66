/* Device memory, from the runtime's pools (cudaMallocAsync), which work in the order of the compute
 * stream: a block that is freed serves the next tensor at once, whose kernels come after those that
 * still use it. A device's pool keeps what is freed until a trim.
 */
#include "backends/cuda/device.h"

#include <stdio.h>

static double in_mib(int64_t bytes) {
    return (double)bytes / (1 << 20);
}

tn_status tn__cuda_memory_begin(tn__cuda_own *own) {
    int index = own->base.index, pools = 0;
    uint64_t all = UINT64_MAX;
    cudaError_t error = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, index);
    if (error == cudaSuccess && !pools) {
        tn__cuda_note("the driver has no memory pools for this device (cudaMallocAsync)");
        return TN_EDEVICE;
    }
    if (error == cudaSuccess) { error = cudaDeviceGetDefaultMemPool(&own->pool, index); }
    if (error == cudaSuccess) {
        error = cudaMemPoolSetAttribute(own->pool, cudaMemPoolAttrReleaseThreshold, &all);
    }
    return tn__cuda_check(error, "the device's memory pool");
}

static void trim_pool(tn__cuda_own *own) {
    (void)cudaStreamSynchronize(own->base.compute); /* what was freed is in use until then */
    (void)cudaMemPoolTrimTo(own->pool, 0);
    (void)cudaGetLastError();
}

void tn__cuda_memory_trim(int index) {
    tn__cuda_own *own = tn__cuda_ready_at(index);
    if (own) {
        trim_pool(own);
        tn__cuda_host_trim();
    }
}

static void count_bytes(tn__cuda_own *own, int64_t bytes) {
    int64_t now = atomic_fetch_add(&own->allocated, bytes) + bytes, peak = atomic_load(&own->peak);
    while (now > peak && !atomic_compare_exchange_weak(&own->peak, &peak, now)) {}
}

void *tn__cuda_memory_take(tn__cuda_own *own, size_t bytes) {
    void *memory = NULL;
    if (bytes == 0) { return NULL; }
    cudaError_t error = cudaMallocAsync(&memory, bytes, own->base.compute);
    if (error == cudaErrorMemoryAllocation) { /* unless what the pool keeps is in the way */
        (void)cudaGetLastError();
        trim_pool(own);
        error = cudaMallocAsync(&memory, bytes, own->base.compute);
    }
    if (tn__cuda_check(error, "device memory") != TN_OK) { return NULL; }
    atomic_fetch_add(&own->allocations, 1);
    count_bytes(own, (int64_t)bytes);
    return memory;
}

void *tn__cuda_memory_alloc(int index, size_t bytes) {
    return tn__cuda_device_at(index) ? tn__cuda_memory_take(tn__cuda_own_at(index), bytes) : NULL;
}

/* The runtime does not know the memory only if something here is wrong; a device that has failed
 * says so elsewhere. */
void tn__cuda_memory_free(int index, void *memory, size_t bytes) {
    static bool said;
    tn__cuda_own *own = tn__cuda_ready_at(index);
    if (!own || !memory) { return; }
    cudaError_t error = cudaFreeAsync(memory, own->base.compute);
    if (error != cudaSuccess) { (void)cudaGetLastError(); }
    if (error == cudaErrorInvalidValue) {
        tn__cuda_say_once(&said, "a free of %p, which is not in use on this device", memory);
    } else {
        count_bytes(own, -(int64_t)bytes);
    }
}

tn_memory_stats tn__cuda_memory_stats(int index) {
    uint64_t reserved = 0;
    tn__cuda_own *own = tn__cuda_ready_at(index);
    if (!own) { return (tn_memory_stats){.allocated = 0}; }
    (void)cudaMemPoolGetAttribute(own->pool, cudaMemPoolAttrReservedMemCurrent, &reserved);
    return (tn_memory_stats){.allocated = atomic_load(&own->allocated),
                             .peak = atomic_load(&own->peak),
                             .reserved = (int64_t)reserved,
                             .allocations = atomic_load(&own->allocations)};
}

void tn__cuda_memory_reset_peak(int index) {
    tn__cuda_own *own = tn__cuda_ready_at(index);
    if (own) { atomic_store(&own->peak, atomic_load(&own->allocated)); }
}

int tn__cuda_memory_text(int index, char *text, size_t size) {
    size_t idle = 0, all = 0;
    if (!tn__cuda_device_at(index) ||
        tn__cuda_check(cudaMemGetInfo(&idle, &all), "the device's memory") != TN_OK) {
        return snprintf(text, size, "%s", tn__cuda_reason()); /* e.g. the device has failed */
    }
    tn_memory_stats s = tn__cuda_memory_stats(index);
    return snprintf(
        text, size,
        "%.1f MiB in use, peak %.1f; %.1f reserved; the device has %.1f MiB left of %.1f",
        in_mib(s.allocated), in_mib(s.peak), in_mib(s.reserved), in_mib((int64_t)idle),
        in_mib((int64_t)all));
}
