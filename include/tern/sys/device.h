/* Devices other than the CPU: what a plugin brings. For those who write one.
 *
 * libtern_cuda.so exports one function, tern_device_table, which fills this table once. The core
 * reaches a device through the table alone and knows nothing of NVIDIA's libraries; the kernels are
 * a tn_backend (backend.h), the NCCL engine a second exported function (group.h).
 *
 * Each device has one compute stream, in which every thread's kernels are queued in the order of
 * the calls. Memory belongs to that stream: a block may be freed as soon as the work that uses it
 * is queued. Whoever uses memory from another stream (a group) holds the tensor until the compute
 * stream has joined that stream's mark.
 */
#ifndef TERN_SYS_DEVICE_H
#define TERN_SYS_DEVICE_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tn_backend;
struct tn_context;

#define TN_DEVICE_VERSION 1 /* of tn_device_table */
#define TN_DEVICE_WHY 1024  /* bytes of the buffer for a plugin's reason */

typedef struct tn_device_table {
    size_t size;      /* sizeof(tn_device_table) of the build that filled it */
    uint32_t version; /* TN_DEVICE_VERSION */
    const char *name; /* "cuda" */
    int count;        /* devices; 0: none, because … */
    const char *why;  /* … of this; "" when there are some */
    /* What it works with: "CUDA 13.0 (driver 13.0), cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9".
     * Loads the libraries that are loaded when needed. As snprintf. */
    int (*versions)(char *text, size_t size);

    const struct tn_backend *kernels;         /* for every device of this kind */
    struct tn_context *(*context)(int index); /* this thread's */
    tn_status (*describe)(int index, tn_device_info *info);

    /* Why the last call on this thread failed, in the library's words. */
    const char *(*reason)(void);

    /* Device memory at a multiple of 512; NULL when there is none left. `tag` says for what: static
     * text, counted in the statistics. */
    void *(*alloc)(int index, size_t bytes, const char *tag);
    void (*free)(int index, void *memory, size_t bytes);
    tn_memory_stats (*memory)(int index);
    void (*memory_reset_peak)(int index);
    void (*memory_trim)(int index);
    /* The allocator's statistics for a message: totals,
     * the largest free block, tags. As snprintf. */
    int (*memory_text)(int index, char *text, size_t size);

    /* Page-locked host memory, from which and into which copies are asynchronous. */
    void *(*host_alloc)(size_t bytes);
    void (*host_free)(void *memory, size_t bytes);

    /* Copies dense bytes in the order of the compute streams of both ends. Host memory may be
     * changed when it returns (page-locked memory: after the next mark), and host memory that was
     * written has arrived. TN_EINDEX with the context's bad_position and bad_value set, TN_EDEVICE:
     * what went wrong earlier was noticed now. */
    tn_status (*copy)(tn_device to_device, void *to, tn_device from_device, const void *from,
                      size_t bytes);
    tn_status (*synchronize)(int index); /* as above */

    /* Marks: places in a device's compute stream. */
    void *(*mark)(int index);                      /* after all that is queued now; NULL: failed */
    bool (*mark_reached)(void *mark);              /* does not wait */
    tn_status (*mark_wait)(void *mark);            /* the host waits */
    tn_status (*mark_join)(int index, void *mark); /* the compute stream waits, the host does not */
    void (*mark_free)(void *mark);

    /* Streams beside the compute stream, for transfers: what is queued in one neither waits for the
     * compute stream's later work nor holds it up. */
    void *(*stream_new)(int index);    /* NULL: failed */
    void (*stream_free)(void *stream); /* when what is queued in it is done */
    /* what is queued from now on waits for it */
    tn_status (*stream_join)(void *stream, void *mark);
    void *(*stream_mark)(void *stream); /* as mark, in this stream */
    /* Queues a copy between its device and page-locked host memory,
     * which stays as it is until then. */
    tn_status (*stream_copy)(void *stream, void *to, const void *from, size_t bytes);
} tn_device_table;

/* The plugin's exported functions. `why` is a buffer of TN_DEVICE_WHY bytes. NULL: this core's
 * version does not fit. A table with count 0 is an answer. */
typedef const tn_device_table *(*tn_device_table_function)(uint32_t version, char *why);

/* The table of a device's kind; NULL for the CPU, for a kind that is not here, and for an index
 * that is not there. Raises nothing. The plugin is loaded at the first call: libtern_cuda.so, or
 * libtern_$TERN_CUDA.so (TERN_CUDA=cuda_emulator: docs/cuda.md). */
TN_API const tn_device_table *tn__device_table(tn_device device);
/* The plugin's table itself, also with no devices; NULL when it could not be loaded. */
TN_API const tn_device_table *tn__device_plugin(tn_device_kind kind);

/* Raises for a call on a device that failed: the reason and what it was for. Returns status. */
TN_API tn_status tn__device_failed(tn_device device, tn_status status, const char *operation);

/* bytes between any two devices; raises. The operation names the error. */
TN_API tn_status tn__copy_bytes(tn_device to_device, void *to, tn_device from_device,
                                const void *from, size_t bytes, const char *operation);

/* Whether tensors there may meet in one operation. */
static inline bool tn__same_device(tn_device a, tn_device b) {
    return a.kind == b.kind && a.index == b.index;
}

#ifdef __cplusplus
}
#endif
#endif
