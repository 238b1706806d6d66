/* Bytes as a file: the readers take paths, so the input of a fuzz target becomes a file in memory.
 */
#ifndef TERN_TESTS_FUZZ_BYTES_H
#define TERN_TESTS_FUZZ_BYTES_H

#include "tern/core.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* Aborts unless this is true, in any build. */
static inline void must_hold(int truth, const char *what) {
    if (!truth) {
        fprintf(stderr, "fuzz: %s; the error: %s\n", what, tn_error_message());
        abort();
    }
}

#endif
