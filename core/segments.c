/* Large blocks: a two-level segregated fit (Masmano et al. 2004, "TLSF: a new dynamic memory
 * allocator for real-time systems").
 *
 * A segment is one mapping, a multiple of 2 MiB, filled with adjacent blocks:
 *
 *     | header | data ...... | header | data ... | header | data ......... | end |
 *
 * A header knows its block's size and the block before, so a freed block is joined with free
 * neighbours at once. Free blocks are in lists by size, 8 lists for each power of two; a bit for
 * each list says whether it has any. A request takes the first block of the first list that is sure
 * to fit and leaves the rest as a free block. So memory serves any mix of sizes, and what is wasted
 * inside a block is below two pages.
 *
 * Fresh pages are slow, so segments stay mapped. Before another one is mapped, unused ones that are
 * too small for the request are unmapped in exchange: the sum follows the peak instead of adding up
 * every shape ever seen.
 */
#include "core/segments.h"

#include "core/fork.h"

#include <sys/mman.h>

typedef struct block {
    size_t size;          /* with the header; a multiple of PAGE but for the last; 0: the end */
    struct block *before; /* the neighbour below; NULL: the first */
    struct block *next, *previous; /* in its list, while free */
    bool used;
    char pad[64 - 4 * sizeof(size_t) - sizeof(bool)];
} block;
_Static_assert(sizeof(block) == 64, "data begins at a multiple of 64");

typedef struct segment {
    struct segment *next, *previous;
    size_t bytes; /* of the mapping; this head is inside, before the first block */
    char pad[64 - 3 * sizeof(size_t)];
} segment;
_Static_assert(sizeof(segment) == 64, "the first block begins at a multiple of 64");

enum {
    PAGE = 4096,
    HUGE = 2 << 20,
    SMALLEST = 12,
    LISTS = (47 - SMALLEST) * 8,
    WORDS = (LISTS + 63) / 64
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *lists[LISTS];
static uint64_t filled[WORDS];
static segment *segments;
static size_t mapped_bytes;

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&lock);
}

/* The list for blocks of `size`: three bits after the leading one tell the eighth of the power of
 * two. */
static int list_of(size_t size) {
    int high = 63 - __builtin_clzll(size);
    int list = (high - SMALLEST) * 8 + (int)((size >> (high - 3)) & 7);
    return list < LISTS ? list : LISTS - 1;
}

static block *block_after(block *b) {
    return (block *)((char *)b + b->size);
}

static block *first_block(segment *s) {
    return (block *)(s + 1);
}

static void insert_block(block *b) {
    int i = list_of(b->size);
    b->used = false;
    b->previous = NULL;
    b->next = lists[i];
    if (b->next) { b->next->previous = b; }
    lists[i] = b;
    filled[i / 64] |= 1ull << (i % 64);
}

static void take_out(block *b) {
    int i = list_of(b->size);
    if (b->next) { b->next->previous = b->previous; }
    if (b->previous) {
        b->previous->next = b->next;
    } else {
        lists[i] = b->next;
        if (!b->next) { filled[i / 64] &= ~(1ull << (i % 64)); }
    }
}

/* A free block of at least `size`. In the list of that very size some may be too small: the first
 * few are tried. */
static block *find_block(size_t size) {
    int i = list_of(size), tries = 8;
    for (block *b = lists[i]; b && tries-- > 0; b = b->next) {
        if (b->size >= size) { return b; }
    }
    i++;
    for (int word = i / 64; word < WORDS; word++) {
        uint64_t bits = filled[word];
        if (word == i / 64) { bits &= i % 64 ? ~0ull << (i % 64) : ~0ull; }
        if (bits) {
            block *b = lists[word * 64 + __builtin_ctzll(bits)];
            if (b->size >= size) { /* the last list has no upper bound */
                return b;
            }
        }
    }
    return NULL;
}

/* Marks b used and splits off the excess as a free block. */
static void use_block(block *b, size_t size) {
    take_out(b);
    b->used = true;
    size_t rest = b->size - size;
    if (rest >= PAGE) {
        b->size = size;
        block *left = block_after(b);
        left->size = rest;
        left->before = b;
        block_after(left)->before = left;
        insert_block(left);
    }
}

static bool segment_unused(segment *s) {
    block *b = first_block(s);
    return !b->used && block_after(b)->size == 0;
}

static void unmap_segment(segment *s) {
    take_out(first_block(s));
    if (s->next) { s->next->previous = s->previous; }
    if (s->previous) {
        s->previous->next = s->next;
    } else {
        segments = s->next;
    }
    mapped_bytes -= s->bytes;
    munmap(s, s->bytes);
}

/* Gives unused segments back until `enough` bytes are; returns how many that were. */
static size_t unmap_unused(size_t enough) {
    size_t given = 0;
    for (segment *s = segments, *next; s && given < enough; s = next) {
        next = s->next;
        if (segment_unused(s)) {
            given += s->bytes;
            unmap_segment(s);
        }
    }
    return given;
}

/* `bytes` (a multiple of HUGE) at a multiple of HUGE, so that huge pages can back all of it. */
static void *map_aligned(size_t bytes) {
    char *start =
        mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) { return NULL; }
    size_t below = (size_t)(-(uintptr_t)start % HUGE);
    if (below) { munmap(start, below); }
    if (below < HUGE) { munmap(start + below + bytes, HUGE - below); }
    madvise(start + below, bytes, MADV_HUGEPAGE);
    return start + below;
}

/* A new segment with one free block of at least `size`. It is larger than needed, but by no more
 * than an eighth of what is mapped already, so that many blocks of medium size share one. */
static bool map_segment(size_t size) {
    size_t head = sizeof(segment) + sizeof(block), spare = mapped_bytes / 8;
    size_t min = (size + head + HUGE - 1) / HUGE * HUGE;
    size_t wanted = spare < (64u << 20) ? spare / HUGE * HUGE : 64u << 20;
    size_t bytes = wanted > min ? wanted : min;
    segment *s = map_aligned(bytes);
    if (!s && bytes > min) {
        bytes = min;
        s = map_aligned(bytes);
    }
    if (!s) { return false; }
    *s = (segment){.next = segments, .bytes = bytes};
    if (segments) { segments->previous = s; }
    segments = s;
    mapped_bytes += bytes;
    block *b = first_block(s);
    *b = (block){.size = bytes - head};
    *block_after(b) = (block){.before = b, .used = true};
    insert_block(b);
    return true;
}

void *tn__segments_alloc(size_t bytes, int64_t *mapped, bool *fresh) {
    if (bytes > (size_t)1 << 46) { return NULL; }
    size_t size = (bytes + sizeof(block) + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&lock);
    int64_t mapped_before = (int64_t)mapped_bytes;
    block *b = find_block(size);
    if (!b) {
        unmap_unused(size);
        if (map_segment(size) || (unmap_unused(SIZE_MAX) && map_segment(size))) {
            b = find_block(size);
            *fresh = true;
        }
    }
    if (b) { use_block(b, size); }
    *mapped += (int64_t)mapped_bytes - mapped_before;
    pthread_mutex_unlock(&lock);
    return b ? b + 1 : NULL;
}

void tn__segments_free(void *data) {
    block *b = (block *)data - 1;
    pthread_mutex_lock(&lock);
    block *next = block_after(b), *before = b->before;
    if (!next->used) {
        take_out(next);
        b->size += next->size;
    }
    if (before && !before->used) {
        take_out(before);
        before->size += b->size;
        b = before;
    }
    block_after(b)->before = b;
    insert_block(b);
    pthread_mutex_unlock(&lock);
}

int64_t tn__segments_trim(void) {
    pthread_mutex_lock(&lock);
    size_t given = unmap_unused(SIZE_MAX);
    pthread_mutex_unlock(&lock);
    return (int64_t)given;
}
