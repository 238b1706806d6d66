/* Checks for test_errors.c that an operation refuses something; they record which operations
 * did. */
#ifndef TERN_TESTS_OPS_ERRORS_H
#define TERN_TESTS_OPS_ERRORS_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/golden.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

#define F(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_F32)
#define D(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_F64)
#define I(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_I64)
#define B(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_BOOL)

static bool seen[256]; /* by index in the registry */

/* Whose message it is. */
static void note_operation(const char *message) {
    for (int i = 0; i < tn_op_count(); i++) {
        size_t length = strlen(tn_op_at(i)->name);
        seen[i] |= strncmp(message, tn_op_at(i)->name, length) == 0 && message[length] == ':';
    }
}

/* The call is refused in the words of refusals.txt. */
#define refused(call) \
    note_operation(golden_refused("tests/ops/refusals.txt", #call, (call), __FILE__, __LINE__))

#endif
