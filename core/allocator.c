/* Tensor memory: size classes for small blocks, segments.c for large ones,
 * statistics and the limit.
 *
 * A small block (up to 64 KiB) comes from its class's list in this thread's cache; an empty list
 * takes some from the process's list of that class, and only then from the system. A full list
 * gives half of itself to the process. Classes are 64 bytes apart up to 512 and an eighth of a
 * power of two from there, so at most 12.5 % of a block (and 63 bytes) is unused. A free block's
 * first word links to the next.
 *
 * `allocated` counts bytes as asked for, `reserved` what they occupy.
 * The limit is on `allocated` without `elsewhere`. */
#include "core/allocator.h"

#include "core/fork.h"
#include "core/sanitize.h"
#include "core/segments.h"
#include "core/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef TN_DEBUG_TENSORS
enum { POISON = 1 };
#else
enum { POISON = 0 };
#endif

enum { ALIGN = 64, CLASSES = 64, SMALL = 64 << 10, BIN_BYTES = 128 << 10, BIN_MAX = 32 };

typedef struct link {
    struct link *next;
} link;

typedef struct bin {
    link *first;
    int count;
} bin;

/* A thread's own blocks and counts. Counts are written by the owner and read by any thread. */
typedef struct tn__cache {
    bin bins[CLASSES];
    int64_t allocations;
    int64_t from_cache;
    struct tn__cache *next, *previous;
} tn__cache;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static bin shared[CLASSES];
static tn__cache *caches;
/* of threads that have ended, or have no cache */
static int64_t ended_allocations, ended_from_cache;

static int64_t allocated, peak, reserved, limit; /* atomic */
static int64_t elsewhere; /* atomic; of `allocated`, what others have made: no limit holds it back
                           */
static int64_t fail_in = -1; /* atomic */

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&lock);
}

/* ---- Injected failures ----------------------------------------------------------------------- */

bool tn__alloc_fails(void) {
    tn__self.allocations++;
    if (__builtin_expect(__atomic_load_n(&fail_in, __ATOMIC_RELAXED) < 0, 1)) { return false; }
    int64_t left = __atomic_load_n(&fail_in, __ATOMIC_RELAXED);
    while (left >= 0 && !__atomic_compare_exchange_n(&fail_in, &left, left - 1, false,
                                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return left == 0;
}

void tn__alloc_fail_at(int64_t n) {
    __atomic_store_n(&fail_in, n < 0 ? -1 : n, __ATOMIC_RELAXED);
}

bool tn__alloc_fail_armed(void) {
    return __atomic_load_n(&fail_in, __ATOMIC_RELAXED) >= 0;
}

int64_t tn__alloc_count(void) {
    return tn__self.allocations;
}

/* ---- Small blocks ---------------------------------------------------------------------------- */

static int class_of(size_t bytes) {
    uint32_t units = (uint32_t)((bytes + ALIGN - 1) / ALIGN);
    if (units <= 8) { return (int)units - 1; }
    int shift = 31 - __builtin_clz(units - 1) - 3;
    return 8 + shift * 8 + (int)((units - 1) >> shift) - 8;
}

static size_t class_bytes(int class) {
    if (class < 8) { return (size_t)(class + 1) * ALIGN; }
    return (size_t)(class % 8 + 9) * ALIGN << (class / 8 - 1);
}

static int class_max(int class) {
    size_t max = BIN_BYTES / class_bytes(class);
    return max > BIN_MAX ? BIN_MAX : (int)max;
}

/* Moves up to `count` blocks. */
static void move_blocks(bin *to, bin *from, int count) {
    while (count-- > 0 && from->first) {
        link *block = from->first;
        from->first = block->next;
        block->next = to->first;
        to->first = block;
        __atomic_store_n(&from->count, from->count - 1, __ATOMIC_RELAXED);
        __atomic_store_n(&to->count, to->count + 1, __ATOMIC_RELAXED);
    }
}

/* This thread's cache; NULL when there is no memory for one. */
static tn__cache *make_cache(void) {
    tn__cache *cache = calloc(1, sizeof(*cache));
    if (!cache) { return NULL; }
    pthread_mutex_lock(&lock);
    cache->next = caches;
    if (caches) { caches->previous = cache; }
    caches = cache;
    pthread_mutex_unlock(&lock);
    tn__self.cache = cache;
    tn__thread_watch();
    return cache;
}

void tn__allocator_thread_end(void) {
    tn__cache *cache = tn__self.cache;
    if (!cache) { return; }
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CLASSES; i++) {
        move_blocks(&shared[i], &cache->bins[i], cache->bins[i].count);
    }
    ended_allocations += cache->allocations;
    ended_from_cache += cache->from_cache;
    if (cache->next) { cache->next->previous = cache->previous; }
    if (cache->previous) {
        cache->previous->next = cache->next;
    } else {
        caches = cache->next;
    }
    pthread_mutex_unlock(&lock);
    tn__self.cache = NULL;
    free(cache);
}

/* A block from the system; trims and tries again if it has none. */
static void *from_system(size_t align, size_t bytes) {
    void *block = NULL;
    if (posix_memalign(&block, align, bytes) != 0) {
        tn_memory_trim();
        if (posix_memalign(&block, align, bytes) != 0) { return NULL; }
    }
    __atomic_fetch_add(&reserved, (int64_t)bytes, __ATOMIC_RELAXED);
    return block;
}

static void to_system(void *block, size_t bytes) {
    __atomic_fetch_sub(&reserved, (int64_t)bytes, __ATOMIC_RELAXED);
    free(block);
}

static void *small_alloc(size_t bytes, bool *cached) {
    int class = class_of(bytes);
    tn__cache *cache = tn__self.cache ? tn__self.cache : make_cache();
    if (!cache) { return from_system(ALIGN, class_bytes(class)); }
    bin *own = &cache->bins[class];
    if (!own->first && __atomic_load_n(&shared[class].count, __ATOMIC_RELAXED) > 0) {
        pthread_mutex_lock(&lock);
        move_blocks(own, &shared[class], (class_max(class) + 1) / 2);
        pthread_mutex_unlock(&lock);
    }
    link *block = own->first;
    if (!block) { return from_system(ALIGN, class_bytes(class)); }
    own->first = block->next;
    own->count--;
    *cached = true;
    return block;
}

static void small_free(void *data, size_t bytes) {
    int class = class_of(bytes);
    tn__cache *cache = tn__self.cache ? tn__self.cache : make_cache();
    if (!cache) {
        to_system(data, class_bytes(class));
        return;
    }
    bin *own = &cache->bins[class];
    link *block = data;
    block->next = own->first;
    own->first = block;
    if (++own->count > class_max(class)) {
        pthread_mutex_lock(&lock);
        move_blocks(&shared[class], own, own->count / 2);
        pthread_mutex_unlock(&lock);
    }
}

/* ---- Both sizes ------------------------------------------------------------------------------ */

static void raise_peak(int64_t now) {
    int64_t before = __atomic_load_n(&peak, __ATOMIC_RELAXED);
    while (now > before && !__atomic_compare_exchange_n(&peak, &before, now, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {}
}

static bool count_in(size_t bytes) {
    int64_t now = __atomic_add_fetch(&allocated, (int64_t)bytes, __ATOMIC_RELAXED);
    int64_t max = __atomic_load_n(&limit, __ATOMIC_RELAXED);
    if (max > 0 && now - __atomic_load_n(&elsewhere, __ATOMIC_RELAXED) > max) {
        __atomic_fetch_sub(&allocated, (int64_t)bytes, __ATOMIC_RELAXED);
        return false;
    }
    raise_peak(now);
    return true;
}

void tn__count_elsewhere(int64_t bytes) {
    __atomic_fetch_add(&elsewhere, bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&reserved, bytes, __ATOMIC_RELAXED);
    raise_peak(__atomic_add_fetch(&allocated, bytes, __ATOMIC_RELAXED));
}

static void count_call(bool cached) {
    tn__cache *cache = tn__self.cache;
    if (cache) {
        __atomic_store_n(&cache->allocations, cache->allocations + 1, __ATOMIC_RELAXED);
        __atomic_store_n(&cache->from_cache, cache->from_cache + cached, __ATOMIC_RELAXED);
        return;
    }
    pthread_mutex_lock(&lock);
    ended_allocations++;
    ended_from_cache += cached;
    pthread_mutex_unlock(&lock);
}

static void *large_alloc(size_t bytes, bool *cached) {
    int64_t mapped = 0;
    bool fresh = false;
    void *block = tn__segments_alloc(bytes, &mapped, &fresh);
    if (!block) {
        tn_memory_trim();
        block = tn__segments_alloc(bytes, &mapped, &fresh);
    }
    if (mapped) { __atomic_fetch_add(&reserved, mapped, __ATOMIC_RELAXED); }
    *cached = !fresh;
    return block;
}

void *tn__alloc(size_t bytes) {
    if (bytes == 0 || bytes > INT64_MAX / 2 || tn__alloc_fails() || !count_in(bytes)) {
        return NULL;
    }
    bool cached = false;
    void *data;
    if (TN__ASAN) {
        data = from_system(ALIGN, bytes);
    } else {
        data = bytes <= SMALL ? small_alloc(bytes, &cached) : large_alloc(bytes, &cached);
    }
    if (!data) {
        __atomic_fetch_sub(&allocated, (int64_t)bytes, __ATOMIC_RELAXED);
        return NULL;
    }
    count_call(cached);
    if (POISON) { memset(data, 0xff, bytes); }
    return data;
}

void tn__free(void *data, size_t bytes) {
    if (!data) { return; }
    if (POISON) { memset(data, 0xa5, bytes); }
    __atomic_fetch_sub(&allocated, (int64_t)bytes, __ATOMIC_RELAXED);
    if (TN__ASAN) {
        to_system(data, bytes);
    } else if (bytes <= SMALL) {
        small_free(data, bytes);
    } else {
        tn__segments_free(data);
    }
}

tn_memory_stats tn_memory(void) {
    tn_memory_stats stats = {
        .allocated = __atomic_load_n(&allocated, __ATOMIC_RELAXED),
        .peak = __atomic_load_n(&peak, __ATOMIC_RELAXED),
        .reserved = __atomic_load_n(&reserved, __ATOMIC_RELAXED),
    };
    pthread_mutex_lock(&lock);
    stats.allocations = ended_allocations;
    stats.from_cache = ended_from_cache;
    for (tn__cache *c = caches; c; c = c->next) {
        stats.allocations += __atomic_load_n(&c->allocations, __ATOMIC_RELAXED);
        stats.from_cache += __atomic_load_n(&c->from_cache, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
    return stats;
}

void tn_memory_reset_peak(void) {
    __atomic_store_n(&peak, __atomic_load_n(&allocated, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

void tn_memory_set_limit(int64_t bytes) {
    __atomic_store_n(&limit, bytes > 0 ? bytes : 0, __ATOMIC_RELAXED);
}

/* Other threads' caches, at most a few MiB each, stay: only their owners may touch them. */
void tn_memory_trim(void) {
    bin all[CLASSES];
    pthread_mutex_lock(&lock);
    memcpy(all, shared, sizeof(all));
    memset(shared, 0, sizeof(shared));
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < CLASSES; i++) {
        if (tn__self.cache) {
            move_blocks(&all[i], &tn__self.cache->bins[i], tn__self.cache->bins[i].count);
        }
        for (link *block = all[i].first, *next; block; block = next) {
            next = block->next;
            to_system(block, class_bytes(i));
        }
    }
    __atomic_fetch_sub(&reserved, tn__segments_trim(), __ATOMIC_RELAXED);
}
