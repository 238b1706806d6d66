/* What device.c, failure.c and transfer.c share: a device and what only they need of it. */
#ifndef TERN_BACKENDS_CUDA_DEVICE_H
#define TERN_BACKENDS_CUDA_DEVICE_H

#include "backends/cuda/cuda.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    TN__CUDA_DEVICES = 32, /* the most that one process uses */
    TN__CUDA_NAMES = 8,    /* kernels that a late error names */
    TN__CUDA_STAGES = 4,
};

/* A mark, kept for reuse when freed. */
typedef struct tn__cuda_idle_mark {
    tn__cuda_mark base; /* comes first */
    struct tn__cuda_idle_mark *next;
} tn__cuda_idle_mark;

/* Pinned memory that pageable bytes pass through on their way to the device. */
typedef struct tn__cuda_stage {
    void *memory;
    cudaEvent_t sent; /* after the last copy out of it */
} tn__cuda_stage;

typedef struct tn__cuda_own {
    tn__cuda_device base; /* comes first */
    atomic_bool ready;    /* base is set up */

    _Atomic(const char *) kernel[TN__CUDA_NAMES]; /* the last ones launched, in a ring */
    atomic_uint launches;

    cudaMemPool_t pool;                                /* the device's default one */
    atomic_int_least64_t allocated, peak, allocations; /* as tn_memory_stats counts them */

    pthread_mutex_t lock; /* guards the idle marks, and the fault cell while it is read */
    tn__cuda_idle_mark *idle_marks;

    pthread_mutex_t stage_lock;
    tn__cuda_stage stage[TN__CUDA_STAGES];
    unsigned next_stage;
} tn__cuda_own;

/* device.c. Does not check the index. */
tn__cuda_own *tn__cuda_own_at(int index);
/* A device that is set up already; NULL: none. Statistics do not set up a device. */
tn__cuda_own *tn__cuda_ready_at(int index);
/* This thread's context, also for a device that could not be set up. */
tn_context *tn__cuda_context(int index);
/* This process is a child of one that has used CUDA: nothing here may touch the runtime. */
bool tn__cuda_forked(void);

/* Makes a device the thread's current one until tn__cuda_leave, which takes the returned value. */
int tn__cuda_enter(int index);
void tn__cuda_leave(int previous);

/* failure.c */
void tn__cuda_log_to(void (*say)(const char *text)); /* the table's entry */
void tn__cuda_failure_begin(void);                   /* reads TERN_SYNC */
/* Waits for the compute stream, then reports what has gone wrong on the device since the last
 * time. */
tn_status tn__cuda_settle(tn__cuda_own *own, const char *what);
/* Whether tn__cuda_settle has something to report; does not wait. */
bool tn__cuda_unsettled(tn__cuda_own *own);

/* memory.c: what sets up a device's memory, and the entries of the device table. */
tn_status tn__cuda_memory_begin(tn__cuda_own *own);
void *tn__cuda_memory_take(tn__cuda_own *own, size_t bytes); /* NULL after a note, or for 0 bytes */
void *tn__cuda_memory_alloc(int index, size_t bytes);
void tn__cuda_memory_free(int index, void *memory, size_t bytes);
void tn__cuda_memory_trim(int index);
tn_memory_stats tn__cuda_memory_stats(int index);
void tn__cuda_memory_reset_peak(int index);
int tn__cuda_memory_text(int index, char *text, size_t size);

/* transfer.c: the entries of the device table. */
void *tn__cuda_host_alloc(size_t bytes);
void tn__cuda_host_free(void *memory, size_t bytes);
void tn__cuda_host_trim(void);
tn_status tn__cuda_transfer(tn_device to_device, void *to, tn_device from_device, const void *from,
                            size_t bytes);
void *tn__cuda_mark_new(int index);
bool tn__cuda_mark_reached(void *mark);
tn_status tn__cuda_mark_wait(void *mark);
tn_status tn__cuda_mark_join(int index, void *mark);

#endif
