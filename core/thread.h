/* What core keeps per thread, in one small block that is accessed without a function call.
 *
 * Everything here starts as zeros. Texts, which are large, are elsewhere (tn__thread_texts).
 */
#ifndef TERN_CORE_THREAD_H
#define TERN_CORE_THREAD_H

#include "tern/sys/object.h"

struct tn__frame;
struct tn__cache;

typedef struct tn__thread {
    tn_status error;          /* the pending error (error.c) */
    bool watched;             /* tn__thread_watch has been called */
    struct tn__frame *frames; /* the modules whose forward is running (error.h) */
    uintptr_t *owned; /* what scopes own: tn_object addresses; bit 0: moves outward (scope.c) */
    size_t owned_count;
    int64_t owned_capacity;
    size_t base;               /* of the innermost scope */
    size_t scopes;             /* how many are open */
    const tn_scope *ending;    /* the scope that is releasing what it owns (scope.h) */
    struct tn__cache *cache;   /* small free blocks (allocator.c) */
    struct tn__spares *spares; /* free structs (memory.c) */
    int64_t allocations;       /* tries to allocate, for tests (allocator.h) */
    struct tn__texts *texts;
    int threads;   /* what OpenMP was last set to in this thread (threads.c) */
    int depth;     /* nested forwards (error.h) */
    bool too_deep; /* more were asked for than are allowed */
    bool alone;    /* forked by a process with threads: has no OpenMP team */
} tn__thread;

/* initial-exec: an access is one instruction, even inside a shared library. Programs that load the
 * library late (dlopen) have only a few hundred bytes for all its thread-local variables together:
 * keep this block small, and put nothing large next to it.
 *
 * Name it at each use, take no pointer to it: gcc -O1 lets the undefined sanitizer's null check
 * read the flags of the addition that makes its address, and a static link turns that addition into
 * a lea, which sets none. */
extern _Thread_local tn__thread tn__self __attribute__((tls_model("initial-exec")));

/* Buffers for strings that a caller reads and does not free. */
typedef struct tn__texts {
    char message[sizeof(((tn_error_record *)0)->message)]; /* of the pending error */
    int why;                                               /* where in it the reason begins */
    char build_info[320];
    char shape[8][192]; /* taken in turn */
    unsigned next_shape;
} tn__texts;

/* This thread's; when there is no memory for them, one that threads share, so this never fails. */
tn__texts *tn__thread_texts(void);

/* Arranges for this thread's root scope and caches to be released when it ends. */
void tn__thread_watch(void);

/* Called at a thread's end, in this order (threads.c). */
void tn__scope_thread_end(void);
void tn__allocator_thread_end(void);
void tn__memory_thread_end(void);

/* Called in the thread that forks, before, and then in the child (fork.c). */
void tn__threads_fork(void);
void tn__threads_child(void);

#endif
