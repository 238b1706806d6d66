/* Memory that runs out: every single allocation of a small program fails once. Each time there is
 * one clear error, nothing crashes, nothing leaks, and the next run works.
 *
 * A program is a function that cleans up after itself, whatever has failed, and that asserts what
 * must hold if there was no error. fail_malloc.h does the same for the libraries below Tern. */
#ifndef TERN_TESTS_SUPPORT_NO_MEMORY_H
#define TERN_TESTS_SUPPORT_NO_MEMORY_H

#include "tests/support/test.h"

#include "core/allocator.h"
#include <tern/tern.h>

/* What makes the n-th allocation fail from `begin` to `end`, which says whether it came to that. */
typedef struct memory_fault {
    void (*begin)(long n);
    bool (*end)(void);
    bool is_noticed; /* always; otherwise the program may do without that memory */
} memory_fault;

/* Fails the n-th allocation for every n; `check`, if not NULL, is called after each run. Returns
 * how many allocations there are. */
static inline long walk_allocations(const memory_fault *fault, void (*program)(void),
                                    void (*check)(void)) {
    tn_seed(1);
    program(); /* what is made once and kept is made now */
    assert_string_equal(tn_error_message(), "");
    if (check) { check(); }
    int64_t live = tn_live_tensors();
    long n = 0;
    for (bool failed = true; failed; n++) {
        assert_true(n < 20000);
        fault->begin(n);
        program();
        failed = fault->end();
        bool right = failed ? tn_error() == TN_ENOMEM || (!fault->is_noticed && !tn_error())
                            : tn_error() == TN_OK;
        if (!right) {
            fail_msg("allocation %ld %s and the error is \"%s\"", n,
                     failed ? "failed" : "did not fail", tn_error_message());
        }
        tn_error_clear();
        if (tn_live_tensors() != live) {
            fail_msg("allocation %ld failed, and then there are %lld tensors, not %lld", n,
                     (long long)tn_live_tensors(), (long long)live);
        }
        if (check) { check(); }
    }
    assert_true(n > 1);
    return n - 1;
}

static inline void fail_own_at(long n) {
    tn__alloc_fail_at(n);
}

static inline bool fail_own_end(void) {
    bool failed = !tn__alloc_fail_armed();
    tn__alloc_fail_at(-1);
    return failed;
}

/* Tern's own allocations. */
static inline long every_allocation_then(void (*program)(void), void (*check)(void)) {
    const memory_fault own = {fail_own_at, fail_own_end, .is_noticed = true};
    return walk_allocations(&own, program, check);
}

static inline long every_allocation(void (*program)(void)) {
    return every_allocation_then(program, NULL);
}

#endif
