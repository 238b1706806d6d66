/* A caching allocator over any source of segments: device memory, pinned memory, host memory
 * in tests. It does not depend on CUDA.
 *
 * All its bookkeeping is on the host; it never reads a segment, except for guards. A free block may
 * still be in use by queued work: the pool belongs to one stream, so the next owner's work comes
 * after it (sys/device.h).
 */
#ifndef TERN_BACKENDS_CUDA_ALLOCATOR_H
#define TERN_BACKENDS_CUDA_ALLOCATOR_H

#include <tern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN__CUDA_ALIGN 512 /* of blocks, and of segments */

/* Where segments come from. Calls are made one at a time. */
typedef struct tn__cuda_source {
    void *user;
    void *(*alloc_segment)(void *user, size_t bytes);              /* NULL: none left */
    void (*free_segment)(void *user, void *segment, size_t bytes); /* waits for its last use */
    /* For guards only, in stream order; false: failed. */
    bool (*read)(void *user, void *to_host, const void *from, size_t bytes);
    bool (*fill)(void *user, void *to, int byte, size_t bytes);
} tn__cuda_source;

typedef struct tn__cuda_pool tn__cuda_pool;

typedef enum tn__cuda_pool_kind {
    TN__CUDA_CACHING,
    /* Blocks are surrounded by guard bytes, which are checked when they are freed; new ones are
     * filled with 1 bits (NaN), freed ones with 0xA5. */
    TN__CUDA_GUARDED,
    /* Every block is a segment of exactly its size and is returned at once: for checkers that track
     * the source's allocations (compute-sanitizer, the emulator's pages). */
    TN__CUDA_DIRECT,
} tn__cuda_pool_kind;

/* NULL: no memory on the host. */
tn__cuda_pool *tn__cuda_pool_new(const tn__cuda_source *source, tn__cuda_pool_kind kind);
/* Returns every segment, including those with blocks in use. */
void tn__cuda_pool_free(tn__cuda_pool *pool);

/* Any thread. NULL for 0 bytes, and when the source has no memory left even after everything cached
 * was returned. `tag` is static text. */
void *tn__cuda_pool_take(tn__cuda_pool *pool, size_t bytes, const char *tag);

/* `bytes` as passed to take; `memory` may be NULL. false, with the reason in why[size], if the
 * address is not in use (nothing happens), or if it was taken with another size or its guards were
 * written to (it is freed all the same). */
bool tn__cuda_pool_give(tn__cuda_pool *pool, void *memory, size_t bytes, char *why, size_t size);

/* Returns the segments that have no block in use. */
void tn__cuda_pool_trim(tn__cuda_pool *pool);

tn_memory_stats tn__cuda_pool_stats(tn__cuda_pool *pool);
void tn__cuda_pool_reset_peak(tn__cuda_pool *pool);

/* Bytes in blocks of this tag, and the most there have been since reset_peak. */
void tn__cuda_pool_tag(tn__cuda_pool *pool, const char *tag, int64_t *now, int64_t *peak);

typedef struct tn__cuda_pool_shape {
    int64_t segments, used_blocks, free_blocks;
    int64_t free_bytes, largest_free; /* largest_free: of one block */
    double fragmentation;             /* 1 - largest_free / free_bytes; 0 when nothing is free */
} tn__cuda_pool_shape;
tn__cuda_pool_shape tn__cuda_pool_inspect(tn__cuda_pool *pool);

/* All of this as text, for the message of an allocation that failed. Like snprintf. */
int tn__cuda_pool_text(tn__cuda_pool *pool, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
