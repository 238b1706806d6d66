/* A caching allocator: blocks cut out of segments, best fit, free neighbours merged.
 *
 * Blocks of up to 1 MiB are cut from segments of 2 MiB, larger ones from segments of 20 MiB; from
 * 10 MiB on, a block gets a segment of its own size. So small blocks, which are more often
 * long-lived, do not fragment the large segments. The scheme and its numbers are those of PyTorch's
 * allocator. Unused segments are returned by a trim, and when the source has no memory left; the
 * request is then tried once more.
 *
 * Every block is in one of three trees: blocks in use, by address; free small ones and free large
 * ones, by size and then address. The blocks of a segment also form a list in address order. */
#include "backends/cuda/allocator.h"

#include "backends/cuda/blocks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define SMALL (1 * MIB)
#define SMALL_SEGMENT (2 * MIB)
#define MEDIUM (10 * MIB)
#define MEDIUM_SEGMENT (20 * MIB)
#define LARGE_STEP (2 * MIB)

enum { ALIGN = TN__CUDA_ALIGN, GUARD = 512, TAGS = 8 };
enum { GUARD_BYTE = 0xc7, NEW_BYTE = 0xff, FREED_BYTE = 0xa5 };

struct segment {
    segment *next, **link; /* link: what points here */
    size_t bytes;
    bool large;
    block *first;
};

typedef struct tag {
    const char *name;
    int64_t now, peak;
} tag;

struct tn__cuda_pool {
    pthread_mutex_t lock; /* guards everything below */
    tn__cuda_source source;
    tn__cuda_pool_kind kind;
    segment *segments;
    tree used, free[2]; /* free: small, large */
    uint64_t random;
    tn_memory_stats stats;
    tag tags[TAGS]; /* the last one counts all other tags */
};

static bool is_guarded(const tn__cuda_pool *pool) {
    return pool->kind == TN__CUDA_GUARDED;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static uint64_t next_random(tn__cuda_pool *pool) { /* xorshift */
    pool->random ^= pool->random << 13;
    pool->random ^= pool->random >> 7;
    pool->random ^= pool->random << 17;
    return pool->random;
}

static tree *free_tree(tn__cuda_pool *pool, const block *b) {
    return &pool->free[b->home->large];
}

static void put_free(tn__cuda_pool *pool, block *b) {
    b->used = false;
    tree_insert(free_tree(pool, b), b, next_random(pool));
}

/* Splits off the end of a block as a free block. Without host memory the block stays whole. */
static void block_split(tn__cuda_pool *pool, block *b, size_t bytes) {
    /* smaller remainders would only be in the way */
    size_t least = bytes > SMALL ? SMALL + ALIGN : ALIGN;
    block *rest = b->bytes - bytes >= least ? malloc(sizeof(*rest)) : NULL;
    if (!rest) { return; }
    *rest = (block){.address = b->address + bytes,
                    .bytes = b->bytes - bytes,
                    .home = b->home,
                    .before = b,
                    .after = b->after};
    if (rest->after) { rest->after->before = rest; }
    b->after = rest;
    b->bytes = bytes;
    put_free(pool, rest);
}

/* Merges `b` and the free block `next` after it. Neither is in a tree. */
static block *block_join(block *b, block *next) {
    b->bytes += next->bytes;
    b->after = next->after;
    if (b->after) { b->after->before = b; }
    free(next);
    return b;
}

/* Frees a block that is in no tree. */
static void block_release(tn__cuda_pool *pool, block *b) {
    block *before = b->before, *after = b->after;
    if (after && !after->used) {
        tree_remove(free_tree(pool, after), after);
        b = block_join(b, after);
    }
    if (before && !before->used) {
        tree_remove(free_tree(pool, before), before);
        b = block_join(before, b);
    }
    put_free(pool, b);
}

/* ---- Segments -------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes, size_t step) {
    return (bytes + step - 1) / step * step;
}

static size_t segment_bytes(const tn__cuda_pool *pool, size_t bytes) {
    if (pool->kind == TN__CUDA_DIRECT) { return bytes; }
    if (bytes <= SMALL) { return SMALL_SEGMENT; }
    return bytes < MEDIUM ? MEDIUM_SEGMENT : round_up(bytes, LARGE_STEP);
}

/* The only block of a new segment, free but in no tree yet. */
static block *segment_new(tn__cuda_pool *pool, size_t bytes, bool large) {
    segment *s = malloc(sizeof(*s));
    block *b = malloc(sizeof(*b));
    char *memory = s && b ? pool->source.alloc_segment(pool->source.user, bytes) : NULL;
    if (!memory) {
        free(s);
        free(b);
        return NULL;
    }
    *s = (segment){pool->segments, &pool->segments, bytes, large, b};
    if (s->next) { s->next->link = &s->next; }
    pool->segments = s;
    pool->stats.reserved += (int64_t)bytes;
    *b = (block){.address = memory, .bytes = bytes, .home = s};
    return b;
}

/* The segment's only block must be in no tree. */
static void segment_free(tn__cuda_pool *pool, segment *s) {
    *s->link = s->next;
    if (s->next) { s->next->link = s->link; }
    pool->stats.reserved -= (int64_t)s->bytes;
    pool->source.free_segment(pool->source.user, s->first->address, s->bytes);
    free(s->first);
    free(s);
}

static void pool_trim(tn__cuda_pool *pool) {
    for (segment *s = pool->segments, *next; s; s = next) {
        next = s->next;
        if (!s->first->used && !s->first->after) {
            tree_remove(free_tree(pool, s->first), s->first);
            segment_free(pool, s);
        }
    }
}

/* A block from the source; failing that, from a segment of just its size, or a free block of the
 * other kind. */
static block *block_from_source(tn__cuda_pool *pool, size_t bytes) {
    bool large = bytes > SMALL;
    block *b = segment_new(pool, segment_bytes(pool, bytes), large);
    if (!b) {
        pool_trim(pool);
        b = segment_new(pool, segment_bytes(pool, bytes), large);
    }
    if (!b) { b = segment_new(pool, bytes, large); }
    if (!b && (b = tree_best_fit(&pool->free[!large], bytes))) {
        tree_remove(free_tree(pool, b), b);
    }
    return b;
}

/* ---- Guards ---------------------------------------------------------------------------------- */

/* Bytes of the guard after the caller's: at least GUARD. */
static size_t guard_after(size_t asked) {
    return round_up(asked, ALIGN) - asked + GUARD;
}

static void guard_set(tn__cuda_pool *pool, const block *b) {
    const tn__cuda_source *s = &pool->source;
    char *memory = b->address + GUARD;
    s->fill(s->user, b->address, GUARD_BYTE, GUARD);
    s->fill(s->user, memory, NEW_BYTE, b->asked);
    s->fill(s->user, memory + b->asked, GUARD_BYTE, guard_after(b->asked));
}

/* The first changed byte of a guard, or -1. A guard that cannot be read counts as intact. */
static int guard_changed(tn__cuda_pool *pool, const char *guard, size_t bytes) {
    unsigned char seen[2 * GUARD];
    if (!pool->source.read(pool->source.user, seen, guard, bytes)) { return -1; }
    for (size_t i = 0; i < bytes; i++) {
        if (seen[i] != GUARD_BYTE) { return (int)i; }
    }
    return -1;
}

/* Whether a guard was written to; *at: its first changed byte, from the caller's first byte. */
static bool guard_broken(tn__cuda_pool *pool, const block *b, int64_t *at) {
    int before = guard_changed(pool, b->address, GUARD);
    int after = guard_changed(pool, b->address + GUARD + b->asked, guard_after(b->asked));
    *at = before >= 0 ? before - GUARD : (int64_t)b->asked + after;
    return before >= 0 || after >= 0;
}

/* ---- Statistics ------------------------------------------------------------------------------ */

static int tag_of(tn__cuda_pool *pool, const char *name) {
    int i = 0;
    while (i < TAGS - 1 && pool->tags[i].name && strcmp(pool->tags[i].name, name) != 0) {
        i++;
    }
    if (!pool->tags[i].name) { pool->tags[i].name = i < TAGS - 1 ? name : "other"; }
    return i;
}

static void pool_count(tn__cuda_pool *pool, int at, int64_t bytes) {
    tag *t = &pool->tags[at];
    tn_memory_stats *s = &pool->stats;
    t->now += bytes;
    t->peak = t->now > t->peak ? t->now : t->peak;
    s->allocated += bytes;
    s->peak = s->allocated > s->peak ? s->allocated : s->peak;
}

/* ---- Allocating and freeing
 * ----------------------------------------------------------------------- */

tn__cuda_pool *tn__cuda_pool_new(const tn__cuda_source *source, tn__cuda_pool_kind kind) {
    tn__cuda_pool *pool = calloc(1, sizeof(*pool));
    if (pool) {
        pool->source = *source;
        pool->kind = kind;
        pool->free[0].by_size = pool->free[1].by_size = true;
        pool->random = 0x9e3779b97f4a7c15;
        pthread_mutex_init(&pool->lock, NULL);
    }
    return pool;
}

void tn__cuda_pool_free(tn__cuda_pool *pool) {
    if (!pool) { return; }
    for (segment *s = pool->segments, *next; s; s = next) {
        next = s->next;
        while (s->first->after) {
            block_join(s->first, s->first->after);
        }
        segment_free(pool, s);
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static block *pool_take(tn__cuda_pool *pool, size_t bytes, const char *name) {
    size_t rounded = pool->kind == TN__CUDA_DIRECT ? bytes : round_up(bytes, ALIGN);
    size_t wanted = rounded + (is_guarded(pool) ? 2 * GUARD : 0);
    tree *fitting = &pool->free[wanted > SMALL];
    block *b = tree_best_fit(fitting, wanted);
    bool cached = b;
    if (cached) {
        tree_remove(fitting, b);
    } else if (!(b = block_from_source(pool, wanted))) {
        return NULL;
    }
    block_split(pool, b, wanted);
    b->used = true;
    b->asked = bytes;
    b->tag = tag_of(pool, name);
    tree_insert(&pool->used, b, next_random(pool));
    pool->stats.allocations++;
    pool->stats.from_cache += cached;
    pool_count(pool, b->tag, (int64_t)bytes);
    if (is_guarded(pool)) { guard_set(pool, b); }
    return b;
}

void *tn__cuda_pool_take(tn__cuda_pool *pool, size_t bytes, const char *name) {
    if (bytes == 0 || bytes > INT64_MAX / 2) { return NULL; }
    pthread_mutex_lock(&pool->lock);
    block *b = pool_take(pool, bytes, name);
    char *memory = !b ? NULL : is_guarded(pool) ? b->address + GUARD : b->address;
    pthread_mutex_unlock(&pool->lock);
    return memory;
}

/* Says why no block in use begins here. */
static bool report_foreign(tn__cuda_pool *pool, const char *memory, char *why, size_t size) {
    uintptr_t at = (uintptr_t)memory;
    const char *reason = "is not from this device's memory";
    for (segment *s = pool->segments; s; s = s->next) {
        uintptr_t first = (uintptr_t)s->first->address;
        if (at >= first && at < first + s->bytes) {
            reason = "is not in use: it was freed before, or is inside a block";
        }
    }
    snprintf(why, size, "free of %p, which %s", (const void *)memory, reason);
    return false;
}

static bool pool_give(tn__cuda_pool *pool, char *memory, size_t bytes, char *why, size_t size) {
    block *b = tree_at(&pool->used, is_guarded(pool) ? memory - GUARD : memory);
    if (!b) { return report_foreign(pool, memory, why, size); }
    int64_t at = 0;
    bool broken = is_guarded(pool) && guard_broken(pool, b, &at);
    if (broken) {
        snprintf(why, size, "byte %lld of a block of %zu bytes at %p (%s) was written to",
                 (long long)at, b->asked, (void *)memory, pool->tags[b->tag].name);
    } else if (b->asked != bytes) {
        snprintf(why, size, "free of %zu bytes at %p, where %zu bytes were allocated (%s)", bytes,
                 (void *)memory, b->asked, pool->tags[b->tag].name);
    }
    bool well = !broken && b->asked == bytes;
    if (is_guarded(pool)) {
        pool->source.fill(pool->source.user, b->address, FREED_BYTE, b->bytes);
    }
    pool_count(pool, b->tag, -(int64_t)b->asked);
    tree_remove(&pool->used, b);
    block_release(pool, b);
    if (pool->kind == TN__CUDA_DIRECT) { pool_trim(pool); }
    return well;
}

bool tn__cuda_pool_give(tn__cuda_pool *pool, void *memory, size_t bytes, char *why, size_t size) {
    if (!memory) { return true; }
    pthread_mutex_lock(&pool->lock);
    bool well = pool_give(pool, memory, bytes, why, size);
    pthread_mutex_unlock(&pool->lock);
    return well;
}

void tn__cuda_pool_trim(tn__cuda_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool_trim(pool);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- Inspecting
 * --------------------------------------------------------------------------------- */

tn_memory_stats tn__cuda_pool_stats(tn__cuda_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    tn_memory_stats stats = pool->stats;
    pthread_mutex_unlock(&pool->lock);
    return stats;
}

void tn__cuda_pool_reset_peak(tn__cuda_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->stats.peak = pool->stats.allocated;
    for (int i = 0; i < TAGS; i++) {
        pool->tags[i].peak = pool->tags[i].now;
    }
    pthread_mutex_unlock(&pool->lock);
}

void tn__cuda_pool_tag(tn__cuda_pool *pool, const char *name, int64_t *now, int64_t *peak) {
    *now = *peak = 0;
    pthread_mutex_lock(&pool->lock);
    for (int i = 0; i < TAGS; i++) {
        const tag *t = &pool->tags[i];
        if (t->name && strcmp(t->name, name) == 0) {
            *now = t->now;
            *peak = t->peak;
        }
    }
    pthread_mutex_unlock(&pool->lock);
}

static tn__cuda_pool_shape pool_inspect(const tn__cuda_pool *pool) {
    tn__cuda_pool_shape shape = {.segments = 0};
    for (const segment *s = pool->segments; s; s = s->next) {
        shape.segments++;
        for (const block *b = s->first; b; b = b->after) {
            int64_t bytes = b->used ? 0 : (int64_t)b->bytes;
            shape.used_blocks += b->used;
            shape.free_blocks += !b->used;
            shape.free_bytes += bytes;
            shape.largest_free = bytes > shape.largest_free ? bytes : shape.largest_free;
        }
    }
    if (shape.free_bytes > 0) {
        shape.fragmentation = 1 - (double)shape.largest_free / (double)shape.free_bytes;
    }
    return shape;
}

tn__cuda_pool_shape tn__cuda_pool_inspect(tn__cuda_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    tn__cuda_pool_shape shape = pool_inspect(pool);
    pthread_mutex_unlock(&pool->lock);
    return shape;
}

/* Appends like snprintf: `length` counts the whole text, even if it does not fit. */
static void TN_PRINTF(4, 5)
    text_add(char *text, size_t size, int *length, const char *format, ...) {
    va_list list;
    va_start(list, format);
    size_t used = (size_t)*length < size ? (size_t)*length : size;
    *length += vsnprintf(size ? text + used : NULL, size - used, format, list);
    va_end(list);
}

/* "1.5 GiB": one number of at most 4 digits and its unit. */
static void add_bytes(char *text, size_t size, int *length, int64_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; unit < 4 && value >= KIB; unit++) {
        value /= KIB;
    }
    text_add(text, size, length, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

int tn__cuda_pool_text(tn__cuda_pool *pool, char *text, size_t size) {
    int length = 0;
    pthread_mutex_lock(&pool->lock);
    const tn_memory_stats *s = &pool->stats;
    tn__cuda_pool_shape shape = pool_inspect(pool);
    add_bytes(text, size, &length, s->allocated);
    text_add(text, size, &length, " in use, peak ");
    add_bytes(text, size, &length, s->peak);
    text_add(text, size, &length, "; ");
    add_bytes(text, size, &length, s->reserved);
    text_add(text, size, &length, " reserved; ");
    add_bytes(text, size, &length, shape.free_bytes);
    text_add(text, size, &length, " of it free in %lld block%s, the largest ",
             (long long)shape.free_blocks, shape.free_blocks == 1 ? "" : "s");
    add_bytes(text, size, &length, shape.largest_free);
    for (int i = 0; i < TAGS && pool->tags[i].name; i++) {
        text_add(text, size, &length, "%s%s ", i == 0 ? "; " : ", ", pool->tags[i].name);
        add_bytes(text, size, &length, pool->tags[i].now);
    }
    pthread_mutex_unlock(&pool->lock);
    return length;
}
