/* Every single allocation of a whole small program fails once. Each time there is one clear error,
 * nothing crashes, nothing leaks, and the next run works. */
#ifndef TERN_TESTS_SUPPORT_NO_MEMORY_H
#define TERN_TESTS_SUPPORT_NO_MEMORY_H

#include "tests/support/test.h"

#include "core/allocator.h"
#include <tern/tern.h>

/* Fails the n-th allocation for every n. */
static inline void every_allocation(void (*program)(void)) {
    tn_seed(1);
    program(); /* what is made once and kept is made now */
    assert_string_equal(tn_error_message(), "");
    int64_t live = tn_live_tensors(), n = 0;
    for (bool reached = true; reached; n++) {
        tn__alloc_fail_at(n);
        program();
        reached = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_int_equal(tn_live_tensors(), live);
        if (reached && tn_error() != TN_ENOMEM) {
            fail_msg("allocation %d failed and the error is \"%s\"", (int)n, tn_error_message());
        }
        if (!reached) {
            assert_string_equal(tn_error_message(), "");
        }
        tn_error_clear();
    }
    assert_true(n > 20);
}

#endif
