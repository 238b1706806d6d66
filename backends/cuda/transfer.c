/* Transfers: pinned memory, copies, marks (events). */
#include "backends/cuda/device.h"

#include <stdlib.h>
#include <string.h>

enum {
    AT_ONCE = 64 << 10, /* up to here the runtime has copied pageable bytes when it returns */
    STAGE = 1 << 20,
};

/* ---- Pinned memory ------------------------------------------------------------------------ *
 *
 * Pinning takes milliseconds, so what is freed is kept for the next request of its size, a power of
 * two, as PyTorch does. */

enum { LEAST_BITS = 12, MOST_BITS = 48 };

static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;
/* A block that is kept begins with the address of the next one. */
typedef struct pinned_block {
    struct pinned_block *next;
} pinned_block;
static pinned_block *idle_pinned[MOST_BITS]; /* of 2^i bytes */

/* The i of a block for so many bytes. */
static int pinned_bits(size_t bytes) {
    int bits = LEAST_BITS;
    while (bits < MOST_BITS && (size_t)1 << bits < bytes) {
        bits++;
    }
    return bits;
}

static void *take_idle(int bits) {
    pthread_mutex_lock(&pinned_lock);
    pinned_block *block = idle_pinned[bits];
    if (block) { idle_pinned[bits] = block->next; }
    pthread_mutex_unlock(&pinned_lock);
    return block;
}

void *tn__cuda_host_alloc(size_t bytes) {
    int bits = pinned_bits(bytes);
    if (bytes == 0 || bits == MOST_BITS || tn__cuda_forked()) {
        tn__cuda_note("no page-locked memory of %zu bytes%s", bytes,
                      tn__cuda_forked() ? ": this process was forked" : "");
        return NULL;
    }
    void *memory = take_idle(bits);
    if (memory) { return memory; }
    cudaError_t error = cudaHostAlloc(&memory, (size_t)1 << bits, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        tn__cuda_host_trim();
        error = cudaHostAlloc(&memory, (size_t)1 << bits, cudaHostAllocPortable);
    }
    return tn__cuda_check(error, "page-locked memory") == TN_OK ? memory : NULL;
}

void tn__cuda_host_free(void *memory, size_t bytes) {
    if (!memory || tn__cuda_forked()) { return; }
    int bits = pinned_bits(bytes);
    pinned_block *block = memory;
    pthread_mutex_lock(&pinned_lock);
    block->next = idle_pinned[bits];
    idle_pinned[bits] = block;
    pthread_mutex_unlock(&pinned_lock);
}

void tn__cuda_host_trim(void) {
    for (int bits = LEAST_BITS; bits < MOST_BITS; bits++) {
        for (void *memory; (memory = take_idle(bits));) {
            (void)cudaFreeHost(memory);
        }
    }
    (void)cudaGetLastError();
}

static bool is_page_locked(const void *memory) {
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, memory);
    if (error != cudaSuccess) { (void)cudaGetLastError(); }
    return error == cudaSuccess && attributes.type == cudaMemoryTypeHost;
}

/* ---- Marks ----------------------------------------------------------------------------------- */

/* A mark that is not in use, or a new one. */
static tn__cuda_idle_mark *mark_take(tn__cuda_own *own) {
    pthread_mutex_lock(&own->lock);
    tn__cuda_idle_mark *mark = own->idle_marks;
    if (mark) { own->idle_marks = mark->next; }
    pthread_mutex_unlock(&own->lock);
    if (mark) { return mark; }
    mark = malloc(sizeof(*mark));
    if (!mark) {
        tn__cuda_note("no memory for a mark");
        return NULL;
    }
    mark->base.index = own->base.index;
    cudaError_t error = cudaEventCreateWithFlags(&mark->base.event, cudaEventDisableTiming);
    if (tn__cuda_check(error, "a mark") != TN_OK) {
        free(mark);
        return NULL;
    }
    return mark;
}

tn__cuda_mark *tn__cuda_mark_in(int index, cudaStream_t stream) {
    if (tn__cuda_forked()) {
        tn__cuda_note("a mark: this process was forked by one that uses CUDA");
        return NULL;
    }
    int previous = tn__cuda_enter(index);
    tn__cuda_idle_mark *mark = mark_take(tn__cuda_own_at(index));
    if (mark && tn__cuda_check(cudaEventRecord(mark->base.event, stream), "a mark") != TN_OK) {
        tn__cuda_mark_free(mark);
        mark = NULL;
    }
    tn__cuda_leave(previous);
    if (mark) { mark->base.beside = false; }
    return mark ? &mark->base : NULL;
}

void tn__cuda_mark_free(void *mark) {
    if (!mark || tn__cuda_forked()) { return; }
    tn__cuda_idle_mark *idle = mark;
    tn__cuda_own *own = tn__cuda_own_at(idle->base.index);
    pthread_mutex_lock(&own->lock);
    idle->next = own->idle_marks;
    own->idle_marks = idle;
    pthread_mutex_unlock(&own->lock);
}

void *tn__cuda_mark_new(int index) {
    const tn__cuda_device *device = tn__cuda_device_at(index);
    return device ? tn__cuda_mark_in(index, device->compute) : NULL;
}

bool tn__cuda_mark_reached(void *mark) {
    const tn__cuda_mark *m = mark;
    cudaError_t error = tn__cuda_forked() ? cudaSuccess : cudaEventQuery(m->event);
    if (error != cudaSuccess) { (void)cudaGetLastError(); }
    return error != cudaErrorNotReady; /* the next wait reports what went wrong */
}

tn_status tn__cuda_mark_wait(void *mark) {
    const tn__cuda_mark *m = mark;
    if (!tn__cuda_device_at(m->index)) { return TN_EDEVICE; }
    tn__cuda_own *own = tn__cuda_own_at(m->index);
    tn_status status = tn__cuda_check(cudaEventSynchronize(m->event), "waiting for a mark");
    bool settles = status == TN_OK && !m->beside && tn__cuda_unsettled(own);
    return settles ? tn__cuda_settle(own, "waiting for a mark") : status;
}

tn_status tn__cuda_mark_join(int index, void *mark) {
    const tn__cuda_device *device = tn__cuda_device_at(index);
    const tn__cuda_mark *m = mark;
    return !device ? TN_EDEVICE
                   : tn__cuda_check(cudaStreamWaitEvent(device->compute, m->event, 0),
                                    "a stream that waits for a mark");
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* The next stage, after its last copy has ended; NULL: no memory for it. */
static tn__cuda_stage *stage_take(tn__cuda_own *own) {
    tn__cuda_stage *s = &own->stage[own->next_stage++ % TN__CUDA_STAGES];
    if (!s->sent && cudaEventCreateWithFlags(&s->sent, cudaEventDisableTiming) != cudaSuccess) {
        s->sent = NULL;
    }
    if (s->sent && !s->memory) { s->memory = tn__cuda_host_alloc(STAGE); }
    (void)cudaGetLastError();
    return s->memory && cudaEventSynchronize(s->sent) == cudaSuccess ? s : NULL;
}

/* Queues one piece; the host's bytes may change when it returns. */
static cudaError_t send_piece(tn__cuda_own *own, void *to, const void *from, size_t bytes) {
    cudaStream_t compute = own->base.compute;
    tn__cuda_stage *s = stage_take(own);
    if (!s) {
        cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, compute);
        return error == cudaSuccess ? cudaStreamSynchronize(compute) : error;
    }
    memcpy(s->memory, from, bytes);
    cudaError_t error = cudaMemcpyAsync(to, s->memory, bytes, cudaMemcpyHostToDevice, compute);
    return error == cudaSuccess ? cudaEventRecord(s->sent, compute) : error;
}

/* Pageable memory passes through the stages: the host fills one while the device empties another,
 * and waits for nothing that was queued before. */
static tn_status send_staged(tn__cuda_own *own, void *to, const void *from, size_t bytes) {
    static const char *const what = "a copy to the device";
    if (bytes <= AT_ONCE || is_page_locked(from)) {
        return tn__cuda_check(
            cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, own->base.compute), what);
    }
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&own->stage_lock);
    for (size_t at = 0; at < bytes && error == cudaSuccess; at += STAGE) {
        size_t piece = bytes - at < STAGE ? bytes - at : STAGE;
        error = send_piece(own, (char *)to + at, (const char *)from + at, piece);
    }
    pthread_mutex_unlock(&own->stage_lock);
    return tn__cuda_check(error, what);
}

static tn_status fetch_staged(tn__cuda_own *own, void *to, const void *from, size_t bytes) {
    static const char *const what = "a copy from the device";
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, own->base.compute);
    tn_status status = tn__cuda_check(error, what);
    return status == TN_OK ? tn__cuda_settle(own, what) : status;
}

/* Makes a device's compute stream wait for what is queued in another's. */
static tn_status follow_stream(int index, int before) {
    void *mark = tn__cuda_mark_new(before);
    tn_status status = mark ? tn__cuda_mark_join(index, mark) : TN_EDEVICE;
    tn__cuda_mark_free(mark);
    return status;
}

/* Copies between two devices: after all that both have queued, before what either queues next. */
static tn_status pass_between(tn__cuda_own *to_own, void *to, tn__cuda_own *from_own,
                              const void *from, size_t bytes) {
    int to_index = to_own->base.index, from_index = from_own->base.index;
    tn_status status = follow_stream(to_index, from_index);
    if (status == TN_OK) {
        cudaError_t error =
            cudaMemcpyPeerAsync(to, to_index, from, from_index, bytes, to_own->base.compute);
        status = tn__cuda_check(error, "a copy between devices");
    }
    return status == TN_OK ? follow_stream(from_index, to_index) : status;
}

tn_status tn__cuda_transfer(tn_device to_device, void *to, tn_device from_device, const void *from,
                            size_t bytes) {
    bool sends = to_device.kind == TN_CUDA, fetches = from_device.kind == TN_CUDA;
    if (bytes == 0) { return TN_OK; }
    if (!sends && !fetches) {
        memcpy(to, from, bytes);
        return TN_OK;
    }
    int index = sends ? to_device.index : from_device.index;
    if ((fetches && !tn__cuda_device_at(from_device.index)) || !tn__cuda_device_at(index)) {
        return TN_EDEVICE;
    }
    tn__cuda_own *own = tn__cuda_own_at(index);
    if (!fetches) { return send_staged(own, to, from, bytes); }
    if (!sends) { return fetch_staged(own, to, from, bytes); }
    if (from_device.index != index) {
        return pass_between(own, to, tn__cuda_own_at(from_device.index), from, bytes);
    }
    cudaError_t error =
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, own->base.compute);
    return tn__cuda_check(error, "a copy on the device");
}
