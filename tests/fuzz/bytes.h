/* Fuzz targets: their frame, and bytes as a file, for readers take paths.
 *
 *     FUZZ(shards, NULL) {
 *         bytes_file f = bytes_file_open(data, bytes);
 *         ...
 *
 * Include it first.
 */
#ifndef TERN_TESTS_FUZZ_BYTES_H
#define TERN_TESTS_FUZZ_BYTES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tern/core.h"
#include "tern/tensor.h"

/* Aborts unless this is true, in any build. */
static inline void must_hold(int truth, const char *what) {
    if (!truth) {
        fprintf(stderr, "fuzz: %s; the error: %s\n", what, tn_error_message());
        abort();
    }
}

/* ---- A target -------------------------------------------------------------------------------- */

/* In a build for the fuzzer it is the program's; tests that replay the corpus call fuzz_NAME. */
#ifdef TERN_FUZZER
#define FUZZ_ENTRY(target)                                          \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);  \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) { \
        return target(data, bytes);                                 \
    }
#else
#define FUZZ_ENTRY(target)
#endif

/* What follows is its body, with the input in `data` and `bytes`; it may leave no tensor. `make`,
 * or NULL, is called once before the first input. */
#define FUZZ(name, make)                                           \
    static void try_##name(const uint8_t *data, size_t bytes);     \
    static int fuzz_##name(const uint8_t *data, size_t bytes) {    \
        static bool made;                                          \
        fuzz_input(try_##name, made ? NULL : (make), data, bytes); \
        made = true;                                               \
        return 0;                                                  \
    }                                                              \
    FUZZ_ENTRY(fuzz_##name)                                        \
    static void try_##name(const uint8_t *data, size_t bytes)

static inline void fuzz_input(void (*try)(const uint8_t *data, size_t bytes), void (*make)(void),
                              const uint8_t *data, size_t bytes) {
    if (make) { make(); }
    int64_t live = tn_live_tensors();
    try(data, bytes);
    must_hold(tn_live_tensors() == live, "a leak");
}

/* Returns `made`: whether something was made of the input. Otherwise there is an error of one of
 * these kinds, which names the file (or `file` is NULL); it is cleared. */
#define WAS_TAKEN(made, file, ...) was_taken(made, file, (const tn_status[]){__VA_ARGS__, TN_OK})
static inline bool was_taken(bool made, const char *file, const tn_status *kinds) {
    must_hold(made == (tn_error() == TN_OK), "made with an error, or neither");
    while (*kinds != TN_OK && *kinds != tn_error()) {
        kinds++;
    }
    must_hold(made || *kinds != TN_OK, "an unexpected error");
    must_hold(made || !file || strstr(tn_error_message(), file), "an error without the file");
    tn_error_clear();
    return made;
}

/* ---- Bytes as a file ------------------------------------------------------------------------- */

typedef struct bytes_file {
    int fd;
    char path[64];
} bytes_file;

static inline bytes_file bytes_file_open(const void *data, size_t bytes) {
    bytes_file f = {.fd = memfd_create("fuzz", MFD_CLOEXEC)};
    if (f.fd < 0 || write(f.fd, data, bytes) != (ssize_t)bytes) {
        perror("fuzz");
        exit(2);
    }
    snprintf(f.path, sizeof(f.path), "/proc/self/fd/%d", f.fd);
    return f;
}

static inline void bytes_file_close(bytes_file *f) {
    close(f->fd);
}

#endif
