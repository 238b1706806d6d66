/* malloc and its relatives for the library's metadata: like the C library's, but tests can make the
 * n-th one fail (core/allocator.h). Freed with free(). Those that take an operation raise TN_ENOMEM
 * for it; the others raise nothing. */
#ifndef TERN_CORE_MEMORY_H
#define TERN_CORE_MEMORY_H

#include "core/allocator.h"

#include <stdlib.h>

static inline void *tn__malloc(size_t bytes) {
    return tn__alloc_fails() ? NULL : malloc(bytes ? bytes : 1);
}

static inline void *tn__calloc(size_t count, size_t bytes) {
    return tn__alloc_fails() ? NULL : calloc(count ? count : 1, bytes ? bytes : 1);
}

/* On failure `old` stays as it is. */
static inline void *tn__realloc(void *old, size_t bytes) {
    return tn__alloc_fails() ? NULL : realloc(old, bytes ? bytes : 1);
}

/* Small structs that come and go with every operation (tensors, storages, nodes): like tn__malloc
 * and free, but free ones are kept in lists of this thread. `bytes` is the same in both calls; a
 * block may be freed in another thread. */
void *tn__struct_alloc(size_t bytes);
void tn__struct_free(void *block, size_t bytes);

/* Like tn__struct_free, but the block is left as it is until this thread has retired a few thousand
 * more of the same size: holders of a stale pointer can find out that it is dead. */
void tn__struct_retire(void *block, size_t bytes);

/* A copy of a string. */
char *tn__strdup(const char *text);

/* ---- Variants that raise --------------------------------------------------------------------- */

/* Like those without _for; NULL after raising. */
TN_API void *tn__malloc_for(size_t bytes, const char *operation);
TN_API void *tn__calloc_for(size_t count, size_t size, const char *operation);
TN_API char *tn__strdup_for(const char *text, const char *operation);

/* What tn__grow does when the array is too small. */
TN_API bool tn__grow_array(void *array, int64_t count, int64_t *capacity, size_t size,
                           const char *operation);

/* Makes the growing array whose address is in `array` (any T **) at least `count` elements of
 * `size` bytes long; *capacity is how many it holds now. The length doubles, so that appending one
 * by one costs no more than a few copies of each element. False after raising TN_ENOMEM (nothing is
 * raised where `operation` is NULL): the array is as it was.
 *
 *     if (!tn__grow(&l->items, l->count + 1, &l->capacity, sizeof(*l->items), "clip")) {
 *         return false;
 *     }
 *     l->items[l->count++] = item;
 */
static inline bool tn__grow(void *array, int64_t count, int64_t *capacity, size_t size,
                            const char *operation) {
    return count <= *capacity || tn__grow_array(array, count, capacity, size, operation);
}

#endif
