/* Checks for test_errors.c that an operation refuses something; they record which operations
 * did. */
#ifndef TERN_TESTS_OPS_ERRORS_H
#define TERN_TESTS_OPS_ERRORS_H

#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

#define F(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_F32)
#define D(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_F64)
#define I(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_I64)
#define B(...) tn_zeros(TN_DIMS(__VA_ARGS__), TN_BOOL)

static bool seen[256]; /* by index in the registry */

static void note_operation(const char *name, size_t length) {
    for (int i = 0; i < tn_op_count(); i++) {
        const char *known = tn_op_at(i)->name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) {
            seen[i] = true;
        }
    }
}

/* y is inert, and the error is this one. `message` begins with the operation's name and a colon. */
static void refused_with(tn_tensor *y, tn_status status, const char *message) {
    if (!tn_is_inert(y) || tn_error() != status || !strstr(tn_error_message(), message)) {
        char said[512];
        snprintf(said, sizeof said, "%s: %s", tn_status_name(tn_error()), tn_error_message());
        tn_error_clear(); /* so that later tests report their own errors */
        fail_msg("%s, not %s", message, said);
    }
    note_operation(message, strcspn(message, ":"));
    tn_error_clear();
}

/* The same, for a message without the operation's name. */
static void refused_by(tn_tensor *y, const char *name, tn_status status, const char *text) {
    char message[256];
    snprintf(message, sizeof message, "%s: %s", name, text);
    refused_with(y, status, message);
}

#endif
