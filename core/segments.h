/* Large blocks of tensor memory, cut out of segments that come from mmap. For allocator.c only. */
#ifndef TERN_CORE_SEGMENTS_H
#define TERN_CORE_SEGMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `bytes` at a multiple of 64, or NULL. *mapped grows by the bytes taken from the system, less
 * those given back; *fresh tells whether any were taken. */
void *tn__segments_alloc(size_t bytes, int64_t *mapped, bool *fresh);

/* Gives a block back; its memory stays here for the next one. */
void tn__segments_free(void *data);

/* Gives segments without a used block back to the system; returns their bytes. */
int64_t tn__segments_trim(void);

#endif
