/* For tests that call ref's kernels directly: the table, and the CPU's context. */
#ifndef TERN_TESTS_BACKENDS_REF_H
#define TERN_TESTS_BACKENDS_REF_H

#include "arrays.h"

static const tn_backend *ref;
static tn_context *ctx;

/* A cmocka setup: sets both. */
static inline int ref_begin(void **state) {
    ref = tn_backend_named("ref");
    ctx = tn_context_of((tn_device){TN_CPU, 0});
    return ref && ctx ? 0 : -1;
}

#endif
