/* What the plugin's files share on the host side: devices, streams, reasons, launches.
 *
 *     device.c      the tables that the core sees, devices, contexts
 *     transfer.c    copies, events, pinned memory
 *     failure.c     reasons, and asynchronous errors
 *     memory.c      device memory, from the runtime's pools
 *     choices.c     decisions that a GPU makes, in one table
 *     *.cu          our kernels: kernel.h lists what they may use
 *     gemm.c        matrix products through cuBLASLt
 *     sdpa.c        attention through cuDNN, conv_dnn.c convolutions
 *     stream.c      streams other than the compute stream
 *     nccl.c        the engine of groups
 *
 * Nothing here raises: an entry returns a status, and tn__cuda_note keeps this thread's reason.
 */
#ifndef TERN_BACKENDS_CUDA_H
#define TERN_BACKENDS_CUDA_H

#include "backends/desc.h"
#include "backends/entries.h"
#include "backends/scratch.h"

#include <cuda_runtime_api.h>
#include <tern/sys/backend.h>
#include <tern/sys/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A bad index that a kernel met; the first one is kept. It is in pinned memory. */
typedef struct tn__cuda_fault {
    int raised;
    int padding;
    long long position, value;
} tn__cuda_fault;

typedef struct tn__cuda_device {
    int index;
    int major, minor;      /* compute capability */
    int processors;        /* streaming multiprocessors */
    int shared_most;       /* bytes of shared memory that a block can ask for */
    cudaStream_t compute;  /* where every thread's kernels go */
    tn__cuda_fault *fault; /* the host's address */
    tn__cuda_fault *fault_on_device;
    void *gemm; /* gemm.c: handle, plans, workspace; made when first needed */
    void *dnn;  /* dnn.c: the same for cuDNN */
} tn__cuda_device;

static inline tn__cuda_device *tn__cuda_device_of(const tn_context *ctx) {
    return (tn__cuda_device *)ctx->own;
}

static inline cudaStream_t tn__cuda_stream(const tn_context *ctx) {
    return (cudaStream_t)ctx->stream;
}

/* The device with this index, ready for use; NULL after a note. Makes it the calling thread's
 * current device. */
tn__cuda_device *tn__cuda_device_at(int index);

/* The reason for this thread's last failure. */
void tn__cuda_note(const char *format, ...) TN_PRINTF(1, 2);
const char *tn__cuda_reason(void);

/* Sends what is right but slow to the log, once for each flag. */
void tn__cuda_say_once(bool *said, const char *format, ...) TN_PRINTF(2, 3);

/* TN_OK, or notes "what: the runtime's message" and returns TN_ENOMEM or TN_EDEVICE. */
tn_status tn__cuda_check(cudaError_t error, const char *what);

/* Called by TN_LAUNCH after each launch: notes a launch that failed, keeps the kernel's name for
 * the message of a late error, and waits if TERN_SYNC=1. */
tn_status tn__cuda_launched(tn_context *ctx, const char *kernel);

/* A mark of the device table. */
typedef struct tn__cuda_mark {
    int index;
    cudaEvent_t event;
    bool beside; /* of a stream beside the compute stream: who waits for it takes no fault */
} tn__cuda_mark;

/* A mark after everything queued so far in a stream of this device; NULL after a note. */
tn__cuda_mark *tn__cuda_mark_in(int index, cudaStream_t stream);
void tn__cuda_mark_free(void *mark);

/* stream.c: the table's streams other than the compute stream. */
void *tn__cuda_stream_new(int index);
void tn__cuda_stream_free(void *stream);
tn_status tn__cuda_stream_join(void *stream, void *mark);
void *tn__cuda_stream_mark(void *stream);
tn_status tn__cuda_stream_copy(void *stream, void *to, const void *from, size_t bytes);

/* Bytes of an element. */
static inline size_t tn__cuda_element(tn_dtype dtype) {
    switch (dtype) {
    case TN_F64:
    case TN_I64:
        return 8;
    case TN_F32:
    case TN_I32:
        return 4;
    case TN_BF16:
    case TN_F16:
        return 2;
    default:
        return 1;
    }
}

static inline bool tn__is_float(tn_dtype dtype) {
    return dtype == TN_F32 || dtype == TN_F64 || dtype == TN_BF16 || dtype == TN_F16;
}

/* The entries: tn__cuda_fill, tn__cuda_copy, …: each has the type of its entry in tn_backend. */
#define TN__DECLARE(entry, ...) TN_ENTRY_TYPE(entry) tn__cuda_##entry;
TN_ENTRIES(TN__DECLARE)
#undef TN__DECLARE

/* Moves d to dense scratch memory, as this dtype and with what it held if it is read. The caller
 * ends the scratch, also after a failure. */
static inline tn_status tn__cuda_stand_in(tn_context *ctx, tn_desc *d, tn_dtype dtype, bool is_read,
                                          tn__workspace *scratch) {
    tn_desc from = *d;
    size_t count = (size_t)tn__desc_densify(d);
    *scratch = tn__workspace_take(ctx, count * tn__cuda_element(dtype));
    d->data = scratch->memory;
    d->dtype = dtype;
    if (!d->data) { return TN_ENOMEM; }
    return is_read ? tn__cuda_copy(ctx, d, &from) : TN_OK;
}

/* And the kernels of operations. */
#define TN_OP(folder, ...) TN__DEVICES(__VA_ARGS__, , , )
#define TN__ON_CPU(name)
#define TN__ON_CUDA(name) extern const tn_op_kernel tn__cuda_op_##name;
#include "ops/list.h"
#undef TN_OP
#undef TN__ON_CPU
#undef TN__ON_CUDA

#ifdef __cplusplus
}
#endif
#endif
