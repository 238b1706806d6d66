/* For tests that call ref's kernels by hand: the table, and a context of the CPU. */
#ifndef TERN_TESTS_BACKENDS_REF_H
#define TERN_TESTS_BACKENDS_REF_H

#include "arrays.h"

static const tn_backend *ref;
static tn_context *ctx;

/* A set-up: fills both. */
static inline int ref_begin(void **state) {
    (void)state;
    ref = tn_backend_named("ref");
    ctx = tn_context_of((tn_device){TN_CPU, 0});
    return ref && ctx ? 0 : -1;
}

#endif
