/* What core keeps per thread, in one small block that is reached without a function call.
 *
 * Everything here starts as zeros. The error's text, which is large, stays in error.c.
 */
#ifndef TERN_CORE_THREAD_H
#define TERN_CORE_THREAD_H

#include "tern/sys/object.h"

struct tn__frame;
struct tn__cache;

enum { TN__SPARE_LISTS = 8 };

typedef struct tn__thread {
    tn_status error;              /* the pending error (error.c) */
    bool watched;                 /* tn__thread_watch has been called */
    struct tn__frame *frames;     /* the modules whose forward is running (error.h) */
    uintptr_t *owned;             /* what scopes own: tn_object addresses; bit 0: moves outward (scope.c) */
    size_t owned_count;
    size_t owned_room;
    size_t base;                  /* of the innermost scope */
    const tn_scope *ending;       /* the scope that is releasing what it owns */
    struct tn__cache *cache;      /* small free blocks (allocator.c) */
    struct tn__spare {
        void *first;              /* each links to the next by its first word */
        int count;
    } spare[TN__SPARE_LISTS];     /* free structs of up to 64, 128, … bytes (memory.c) */
    int64_t allocations;          /* tries to allocate, for tests (allocator.h) */
    int threads;                  /* what OpenMP was last told in this thread (threads.c) */
} tn__thread;

/* initial-exec: an access is one instruction, also inside a shared library. Keep this block small. */
extern _Thread_local tn__thread tn__self __attribute__((tls_model("initial-exec")));

/* From now on this thread's root scope and caches are released when it ends. */
void tn__thread_watch(void);

/* Called at a thread's end, in this order (threads.c). */
void tn__scope_thread_end(void);
void tn__allocator_thread_end(void);
void tn__memory_thread_end(void);

#endif
