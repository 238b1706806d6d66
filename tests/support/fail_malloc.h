/* Memory that runs out for every library of the process: from the n-th allocation of this thread
 * on, k in a row fail. Include once in a program: its functions then replace the C library's for
 * every library, libc's own calls included. Under a sanitizer they replace its functions, which
 * they call; what it replaces completely (strdup, reallocarray) does not get here then. */
#ifndef TERN_TESTS_SUPPORT_FAIL_MALLOC_H
#define TERN_TESTS_SUPPORT_FAIL_MALLOC_H

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/place.h"
#include "core/sanitize.h"
#include "tests/support/no_memory.h"

#if TN__ASAN
#define THE_REAL(name) __interceptor_##name
#else
#define THE_REAL(name) __libc_##name
#endif

void *THE_REAL(malloc)(size_t bytes);
void *THE_REAL(calloc)(size_t count, size_t bytes);
void *THE_REAL(realloc)(void *old, size_t bytes);
void *THE_REAL(memalign)(size_t alignment, size_t bytes);

/* volatile: compilers know malloc and its kin, and that they look at no variable of ours. */
static _Thread_local volatile struct {
    long before; /* allocations that succeed first; -1: all do */
    int left;    /* that then fail */
    bool failed;
} fail_malloc = {.before = -1};

/* From now on. Without libdw, which would crash: errors name functions instead of lines. */
static inline void fail_malloc_at(long n, int in_a_row) {
    tn__place_lines(false);
    fail_malloc.failed = false;
    fail_malloc.left = in_a_row;
    fail_malloc.before = n;
}

/* No more failures; returns whether there was any. */
static inline bool fail_malloc_end(void) {
    fail_malloc.before = -1;
    tn__place_lines(true);
    return fail_malloc.failed;
}

static int malloc_row;

static inline void fail_row_at(long n) {
    fail_malloc_at(n, malloc_row);
}

/* Walks the allocations of a program and its libraries (no_memory.h): each fails alone, then with
 * the next one, … up to `in_a_row`. Libraries may do without some. */
static inline void every_malloc(void (*program)(void), int in_a_row, void (*check)(void)) {
    const memory_fault libraries = {fail_row_at, fail_malloc_end, .is_noticed = false};
    for (malloc_row = 1; malloc_row <= in_a_row; malloc_row++) {
        walk_allocations(&libraries, program, check);
    }
}

static bool malloc_refused(void) {
    if (fail_malloc.before < 0) { return false; }
    if (fail_malloc.before > 0) {
        fail_malloc.before--;
        return false;
    }
    if (fail_malloc.left <= 0) { return false; }
    fail_malloc.left--;
    fail_malloc.failed = true;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes) {
    return malloc_refused() ? NULL : THE_REAL(malloc)(bytes);
}

void *calloc(size_t count, size_t bytes) {
    return malloc_refused() ? NULL : THE_REAL(calloc)(count, bytes);
}

void *realloc(void *old, size_t bytes) {
    return bytes && malloc_refused() ? NULL : THE_REAL(realloc)(old, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
    return malloc_refused() ? NULL : THE_REAL(memalign)(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return malloc_refused() ? NULL : THE_REAL(memalign)(alignment, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes) {
    void *got = malloc_refused() ? NULL : THE_REAL(memalign)(alignment, bytes);
    if (got) { *block = got; }
    return got ? 0 : ENOMEM;
}

#endif
