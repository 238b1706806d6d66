/* For writing a plugin for devices other than the CPU.
 *
 * libtern_cuda.so exports one function, tern_device_table, which fills this table once. The core
 * reaches a device only through the table and knows nothing of NVIDIA's libraries; the kernels are
 * a tn_backend (backend.h), the NCCL engine is a second exported function (group.h).
 *
 * Each device has one compute stream, in which every thread's kernels are queued in the order of
 * the calls. Memory belongs to that stream: a block may be freed as soon as the work that uses it
 * is queued. Anything that uses memory from another stream (a group) keeps the tensor until the
 * compute stream has joined that stream's mark.
 */
#ifndef TERN_SYS_DEVICE_H
#define TERN_SYS_DEVICE_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tn_backend;
struct tn_context;

#define TN_DEVICE_VERSION 4 /* of tn_device_table, and of the kernels' table in it */
#define TN_DEVICE_WHY 1024  /* size of the buffer for a plugin's reason */

typedef struct tn_device_table {
    size_t size;      /* sizeof(tn_device_table) of the build that filled it */
    uint32_t version; /* TN_DEVICE_VERSION */
    const char *name; /* "cuda" */
    int count;        /* devices; 0: none, because … */
    const char *why;  /* … of this; "" if there are some */
    /* Library versions: "CUDA 13.0 (driver 13.0), cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9".
     * Loads libraries that are normally loaded on demand. Returns like snprintf. */
    int (*versions)(char *text, size_t size);
    /* What the plugin has to say to the log, of which it knows nothing: `say` is called from any
     * thread. */
    void (*log_to)(void (*say)(const char *text));

    const struct tn_backend *kernels;         /* for all devices of this kind */
    struct tn_context *(*context)(int index); /* this thread's */
    tn_status (*describe)(int index, tn_device_info *info);

    /* Why the last call on this thread failed, in the library's words. */
    const char *(*reason)(void);

    /* Device memory, aligned to 256 bytes; NULL for 0 bytes, and if there is none left. */
    void *(*alloc)(int index, size_t bytes);
    void (*free)(int index, void *memory, size_t bytes);
    tn_memory_stats (*memory)(int index);
    void (*memory_reset_peak)(int index);
    void (*memory_trim)(int index);
    /* How much memory is in use, for a message. Returns like snprintf. */
    int (*memory_text)(int index, char *text, size_t size);

    /* Page-locked host memory, for asynchronous copies. */
    void *(*host_alloc)(size_t bytes);
    void (*host_free)(void *memory, size_t bytes);

    /* Copies contiguous bytes in the order of the compute streams of both ends. On return source
     * memory on the host may be changed (page-locked memory: after the next mark), and target
     * memory on the host is complete. TN_EINDEX with the context's bad_position and bad_value set,
     * TN_EDEVICE: an earlier failure was noticed now. */
    tn_status (*copy)(tn_device to_device, void *to, tn_device from_device, const void *from,
                      size_t bytes);
    tn_status (*synchronize)(int index); /* as above */

    /* Marks: positions in a device's compute stream. */
    void *(*mark)(int index);           /* after everything queued so far; NULL: failed */
    bool (*mark_reached)(void *mark);   /* does not wait */
    tn_status (*mark_wait)(void *mark); /* the host waits */
    tn_status (*mark_join)(int index, void *mark); /* the compute stream waits, the host does not */
    void (*mark_free)(void *mark);

    /* Streams beside the compute stream, for transfers: their work neither waits for the compute
     * stream's later work nor delays it. */
    void *(*stream_new)(int index);    /* NULL: failed */
    void (*stream_free)(void *stream); /* when its queued work is done */
    /* later work in the stream waits for the mark */
    tn_status (*stream_join)(void *stream, void *mark);
    /* Like mark, in this stream; mark_wait of it leaves failed kernels to who waits for them. */
    void *(*stream_mark)(void *stream);
    /* Queues a copy between its device and page-locked host memory, which must not change until it
     * is done. */
    tn_status (*stream_copy)(void *stream, void *to, const void *from, size_t bytes);
} tn_device_table;

/* The plugin's exported functions. `why` is a buffer of TN_DEVICE_WHY bytes. NULL: incompatible
 * with this core's version. A table with count 0 is valid. */
typedef const tn_device_table *(*tn_device_table_function)(uint32_t version, char *why);

/* The table of a device's kind; NULL for the CPU, and for a kind or an index that does not exist.
 * Raises nothing. The plugin is loaded at the first call: libtern_cuda.so, or libtern_$TERN_CUDA.so
 * (TERN_CUDA=cuda_emulator: docs/cuda.md). */
TN_API const tn_device_table *tn__device_table(tn_device device);
/* The plugin's table itself, even with no devices; NULL if it could not be loaded. */
TN_API const tn_device_table *tn__device_plugin(tn_device_kind kind);

/* Raises the error of a failed call on a device, with its reason and the operation. Returns
 * status. */
TN_API tn_status tn__device_failed(tn_device device, tn_status status, const char *operation);

/* Copies bytes between any two devices; raises errors, which name the operation. */
TN_API tn_status tn__copy_bytes(tn_device to_device, void *to, tn_device from_device,
                                const void *from, size_t bytes, const char *operation);

/* Whether tensors on them may be used in one operation. */
static inline bool tn__same_device(tn_device a, tn_device b) {
    return a.kind == b.kind && a.index == b.index;
}

#ifdef __cplusplus
}
#endif
#endif
