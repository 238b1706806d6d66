/* What the emulator's tests share: a context for launches, and how a launch ends. */
#ifndef TERN_TESTS_EMULATOR_TEST_LAUNCH_H
#define TERN_TESTS_EMULATOR_TEST_LAUNCH_H

#include "tests/emulator/emulator.h"
#include "tests/emulator/kernel.h"

#include "backends/cuda/kernel.h"

#include "tests/support/run.h"

#include <string.h>

inline tn_context context; /* the default stream */

/* The plugin's version records more; here a refused launch is enough. */
tn_status tn__cuda_launched(tn_context *, const char *) {
    return cudaPeekAtLastError() == cudaSuccess ? TN_OK : TN_EDEVICE;
}

/* Launches, waits, and returns the error. */
#define RUN(kernel, grid, block, bytes, ...) \
    (TN_LAUNCH(&context, kernel, grid, block, bytes, ##__VA_ARGS__), cudaDeviceSynchronize())

static inline int reset_emulator(void **) {
    tern_emulator_reset();
    tern_emulator_set_order("forward");
    tern_emulator_set_memory((size_t)1 << 30);
    cudaSetDevice(0);
    return 0;
}

static inline void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) { fail_msg("\"%s\" does not say \"%s\"", text, part); }
}

#endif
