/* Bytes of tensor data on the CPU, and the switch that makes allocations fail in tests.
 *
 * Two sources. Blocks up to 64 KiB have fixed size classes; each thread keeps some free ones for
 * itself, so an allocation is a few instructions. Larger ones are cut out of segments of 2 MiB
 * pages; free neighbours are merged. Statistics and the limit are tern/core.h's. Under the address
 * sanitizer nothing is cached.
 */
#ifndef TERN_CORE_ALLOCATOR_H
#define TERN_CORE_ALLOCATOR_H

#include "tern/core.h"

/* `bytes`, aligned to 64, uninitialised (debug builds: all bits 1, which is NaN). NULL for 0 bytes,
 * when the system has none left, or beyond tn_memory_set_limit. Raises nothing. */
void *tn__alloc(size_t bytes);

/* `bytes` is what tn__alloc was given. NULL is fine. Debug builds fill the block with 0xA5. */
void tn__free(void *data, size_t bytes);
/* Tensors' bytes that others have made, such as a group's shared memory, or freed (below 0): they
 * are in tn_memory, too. */
void tn__count_elsewhere(int64_t bytes);

/* For tests: after `n` more allocations (tn__alloc and core/memory.h, all threads) one fails; 0:
 * the next. -1: none. */
TN_API void tn__alloc_fail_at(int64_t n);
TN_API bool tn__alloc_fail_armed(void); /* false once it has failed, or when off */
TN_API int64_t tn__alloc_count(void);   /* of both kinds, by this thread, so far */

/* Counts one allocation; true: this one must fail. */
bool tn__alloc_fails(void);

#endif
