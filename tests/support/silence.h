/* Code whose output does not matter: stdout is for TAP alone. */
#ifndef TERN_TESTS_SUPPORT_SILENCE_H
#define TERN_TESTS_SUPPORT_SILENCE_H

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

typedef struct silence {
    int out, err;
} silence;

/* From here stdout and stderr go nowhere … */
static inline silence silence_begin(void) {
    fflush(stdout);
    silence before = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
    return before;
}

/* … until here. */
static inline void silence_end(silence before) {
    fflush(stdout);
    dup2(before.out, STDOUT_FILENO);
    dup2(before.err, STDERR_FILENO);
    close(before.out);
    close(before.err);
}

#endif
