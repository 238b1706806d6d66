/* What went wrong, and when it is noticed.
 *
 * A call that fails at once is noted for its thread. Failures on the device are asynchronous: a
 * kernel that meets a bad index writes it to the device's fault cell, and a kernel that crashes
 * makes every later call fail. The next call that waits for the device reports it
 * (tn__cuda_settle), with the names of the last kernels. With TERN_SYNC=1 every launch waits and
 * reports its own failure.
 *
 * What is right but slow goes to the log, through the function that the core has given.
 */
#include "backends/cuda/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char reason[TN_DEVICE_WHY];
static bool wait_always; /* TERN_SYNC=1 */

void tn__cuda_failure_begin(void) {
    const char *wish = getenv("TERN_SYNC");
    wait_always = wish && strcmp(wish, "1") == 0;
}

void tn__cuda_note(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof(reason), format, list);
    va_end(list);
}

static _Atomic(void (*)(const char *text)) listener;

void tn__cuda_log_to(void (*say)(const char *text)) {
    atomic_store(&listener, say);
}

void tn__cuda_say_once(bool *said, const char *format, ...) {
    void (*say)(const char *text) = atomic_load(&listener);
    if (!say || __atomic_test_and_set(said, __ATOMIC_RELAXED)) { return; }
    char text[TN_DEVICE_WHY];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    say(text);
}

const char *tn__cuda_reason(void) {
    return reason;
}

/* A kernel's plain name: "fold_rows" of "(fold_rows<R, 32>)". */
static int name_length(const char **launched) {
    *launched += **launched == '(';
    return (int)strcspn(*launched, "<)");
}

/* " (noticed late; the last kernels were a, b; TERN_SYNC=1 finds the call)" */
static void late_text(tn__cuda_own *own, char *text, size_t size) {
    unsigned launches = atomic_load(&own->launches);
    unsigned first = launches > TN__CUDA_NAMES ? launches - TN__CUDA_NAMES : 0;
    size_t used = (size_t)snprintf(text, size, " (noticed late; the last kernels were ");
    if (first == launches) {
        used = (size_t)snprintf(text, size, " (noticed late; no kernel ran; ");
    }
    for (unsigned i = first; i < launches && used < size; i++) {
        const char *name = atomic_load(&own->kernel[i % TN__CUDA_NAMES]);
        name = name ? name : "?";
        int length = name_length(&name);
        used += (size_t)snprintf(text + used, size - used, "%.*s%s", length, name,
                                 i + 1 < launches ? ", " : "; ");
    }
    if (used < size) { snprintf(text + used, size - used, "TERN_SYNC=1 finds the call)"); }
}

/* Errors of a kernel that has crashed: the runtime returns them from every later call. */
static bool is_sticky(cudaError_t error) {
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorExternalDevice:
    case cudaErrorMpsClientTerminated:
#if CUDART_VERSION >= 13000
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
        return true;
    default:
        return false;
    }
}

tn_status tn__cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) { return TN_OK; }
    (void)cudaGetLastError(); /* reported here, not at the next launch */
    if (error == cudaErrorMemoryAllocation) {
        tn__cuda_note("%s: %s", what, cudaGetErrorString(error));
        return TN_ENOMEM;
    }
    char late[640] = "";
    int index = -1;
    if (is_sticky(error) && cudaGetDevice(&index) == cudaSuccess && index >= 0 &&
        index < TN__CUDA_DEVICES && !wait_always) {
        late_text(tn__cuda_own_at(index), late, sizeof(late));
    }
    tn__cuda_note("%s: %s%s%s", what, cudaGetErrorString(error), late,
                  is_sticky(error) ? "; this process cannot use the device any more" : "");
    return TN_EDEVICE;
}

bool tn__cuda_unsettled(tn__cuda_own *own) {
    return __atomic_load_n(&own->base.fault->raised, __ATOMIC_ACQUIRE) != 0;
}

/* Takes the fault out of its cell. The stream has finished, so no kernel is writing to it. */
static bool take_fault(tn__cuda_own *own, tn__cuda_fault *fault) {
    volatile tn__cuda_fault *cell = own->base.fault;
    pthread_mutex_lock(&own->lock);
    fault->raised = cell->raised;
    fault->position = cell->position;
    fault->value = cell->value;
    cell->raised = 0;
    pthread_mutex_unlock(&own->lock);
    return fault->raised != 0;
}

tn_status tn__cuda_settle(tn__cuda_own *own, const char *what) {
    tn_status status = tn__cuda_check(cudaStreamSynchronize(own->base.compute), what);
    if (status != TN_OK || !tn__cuda_unsettled(own)) { return status; }
    tn__cuda_fault fault;
    if (!take_fault(own, &fault)) { return TN_OK; }
    tn_context *ctx = tn__cuda_context(own->base.index);
    ctx->bad_position = fault.position;
    ctx->bad_value = fault.value;
    char late[640] = "";
    if (!wait_always) { late_text(own, late, sizeof(late)); }
    tn__cuda_note("index %lld at position %lld is out of range%s", fault.value, fault.position,
                  late);
    return TN_EINDEX;
}

tn_status tn__cuda_launched(tn_context *ctx, const char *kernel) {
    tn__cuda_own *own = ctx->own;
    unsigned number = atomic_fetch_add_explicit(&own->launches, 1, memory_order_relaxed);
    atomic_store_explicit(&own->kernel[number % TN__CUDA_NAMES], kernel, memory_order_relaxed);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && !wait_always) { return TN_OK; }
    char name[64];
    int length = name_length(&kernel);
    snprintf(name, sizeof(name), "%.*s", length, kernel);
    return error != cudaSuccess ? tn__cuda_check(error, name) : tn__cuda_settle(own, name);
}
