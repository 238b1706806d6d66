/* malloc and its relatives for the library's metadata: as the C library's, but tests can make the
 * n-th one fail (core/allocator.h). Freed with free(). They raise nothing:
 * the caller knows what it was doing. */
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

/* Small structs that come and go with every operation (tensors, storages, nodes): as tn__malloc and
 * free, but free ones are kept in lists of this thread. `bytes` is the same in both calls; a block
 * may be freed in another thread. */
void *tn__struct_alloc(size_t bytes);
void tn__struct_free(void *block, size_t bytes);

/* As tn__struct_free, but the block is left as it is until this thread has retired a few thousand
 * more, all of the same size: who still has a pointer to it can find out that it is dead. */
void tn__struct_retire(void *block, size_t bytes);

/* A copy of a string. */
char *tn__strdup(const char *text);

#endif
