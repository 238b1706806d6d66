/* Ranks on the emulator's devices: real processes, and the stand-in for NCCL that TERN_NCCL names.
 * Rank r has device r % 2. The bodies join and leave by themselves: each is a PLAIN_RANK. */
#ifndef TERN_TESTS_CUDA_DEVICE_RANKS_H
#define TERN_TESTS_CUDA_DEVICE_RANKS_H

#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tern/tern.h>

/* ---- In a rank ------------------------------------------------------------------------------- */

/* The argument is "ENGINE" or "auto", and may end with ",checked". NULL with an error pending. */
static inline tn_group *device_join(const char *argument, double timeout) {
    static char engine[32];
    tn_dist_options o = tn_dist_defaults();
    snprintf(engine, sizeof(engine), "%.*s", (int)strcspn(argument, ","), argument);
    o.engine = strcmp(engine, "auto") == 0 ? NULL : engine;
    o.checked = strstr(argument, ",checked") != NULL;
    o.device = TN_CUDA;
    o.timeout = timeout;
    return tn_dist_init(o);
}

/* What a body returns. Its process writes a pending error to stderr, where the test reads it. */
static inline int device_leave(void) {
    tn_dist_finish();
    return tn_error() != TN_OK;
}

/* ---- In the test ----------------------------------------------------------------------------- */

static bool has_nccl; /* the stand-in was built */

static inline void need_nccl(void) {
    if (!has_nccl) {
        fprintf(stderr, "the stand-in for NCCL was not built\n");
        skip();
    }
}

/* more (NULL: none) is one variable, as ranks_start takes it. */
static inline ranks_result device_run(int n, const char *body, const char *argument,
                                      const char *more, double timeout) {
    char fake[512], flights[128], folder[128];
    snprintf(fake, sizeof(fake), "TERN_NCCL=%s/emulator/libfake_nccl.so", getenv("TERN_TEST_BIN"));
    snprintf(flights, sizeof(flights), "TERN_FLIGHT_DIR=%s", temp_folder);
    snprintf(folder, sizeof(folder), "TMPDIR=%s", temp_folder);
    const char *env[] = {"TERN_CUDA=cuda_emulator", flights, folder, fake, more, NULL};
    return ranks_run(n, body, argument, env, timeout);
}

static inline void device_pass(int n, const char *body, const char *argument, double timeout) {
    ranks_result r = device_run(n, body, argument, NULL, timeout);
    assert_true(ranks_ok(&r));
    ranks_free(&r);
}

/* A group's set-up. */
static inline int device_set_up(void **state) {
    char path[512];
    snprintf(path, sizeof(path), "%s/emulator/libfake_nccl.so", getenv("TERN_TEST_BIN"));
    has_nccl = access(path, R_OK) == 0;
    return 0;
}

/* First in main: does not return in a rank. Without the emulator, says so in TAP and returns false.
 */
static inline bool device_main(int argc, char **argv) {
    tn_set_threads(1);
    ranks_main(argc, argv);
    setenv("TERN_CUDA", "cuda_emulator", 1);
    bool found = tn_device_count(TN_CUDA) > 0;
    if (!found) { printf("1..0 # SKIP no emulator: %s\n", tn_device_why(TN_CUDA)); }
    return found;
}

#endif
