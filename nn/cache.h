/* The KV cache: keys and values of earlier positions. The internals of tn_cache_begin, for
 * attention modules.
 *
 *     tn__cache_register(m, &m->cache);                      in the module's init
 *
 *     if (tn__cache_open(&m->cache)) {                       in its forward
 *         tn__cache_append(m, &m->cache, &k, &v);            k and v now hold all positions
 *     }
 *     y = tn_attention(q, k, v, mask, options);
 *     tn__cache_accept(&m->cache, T);                        the next call continues there
 */
#ifndef TERN_NN_CACHE_H
#define TERN_NN_CACHE_H

#include "autograd/mode.h"
#include "tern/nn.h"

/* From now on tn_cache_begin of m, or of a module around it, begins this cache, whose tensors are
 * scratch buffers of m. */
void tn__cache_register(void *m, tn_kv_cache *cache);

/* Whether a call uses the cache: the cache was begun, and nothing is recorded (its contents have no
 * history to differentiate). */
static inline bool tn__cache_open(const tn_kv_cache *cache) {
    return cache->length > 0 && !tn__will_record();
}

/* How many positions come before those of this call. */
static inline int64_t tn__cache_start(const tn_kv_cache *cache) {
    return tn__cache_open(cache) ? cache->filled : 0;
}

/* Views of an open cache: where k and v of this call go, and these with all before them. */
typedef struct tn__cache_place {
    tn_tensor *new_k, *new_v, *all_k, *all_v;
} tn__cache_place;

/* Where k and v (B, G, T, D) go, whose elements are not read yet. False after raising. */
bool tn__cache_reserve(void *m, tn_kv_cache *cache, const tn_tensor *k, const tn_tensor *v,
                       tn__cache_place *place);

/* Appends *k and *v (B, G, T, D) to the open cache of m, and makes them views of all of it, (B, G,
 * filled + T, D). False after raising. */
bool tn__cache_append(void *m, tn_kv_cache *cache, tn_tensor **k, tn_tensor **v);

/* The call that appended T positions has succeeded. Does nothing if the cache is not open or an
 * error is pending. */
void tn__cache_accept(tn_kv_cache *cache, int64_t T);

/* After a failed call in a model: cuts every cache of m and below to at most `filled` positions. */
void tn__cache_restore(void *m, int64_t filled);

/* After a call of which other ranks ran some blocks: their caches here, which have no tensors,
 * count its T positions too. */
void tn__cache_skip(void *m, int64_t T);

/* Removes sequence `row` from every cache of m and below; the last one takes its place. */
void tn__cache_drop_row(void *m, int64_t row);

#endif
