/* Forked children. */
#include "tests/support/fork.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE = 120 };

void child_failed(const char *what, const char *file, int line) {
    fprintf(stderr, "%s:%d: in a child: %s; the error is \"%s\"\n", file, line, what,
            tn_error_message());
    _exit(1);
}

void child_error_at(tn_status status, const char *part, const char *file, int line) {
    if (tn_error() != status || !strstr(tn_error_message(), part)) {
        child_failed(part, file, line);
    }
    tn_error_clear();
}

bool child_passes(void (*body)(void *user), void *user) {
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE);
        body(user);
        child_assert(tn_error() == TN_OK);
        _exit(0);
    }
    int status = -1;
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    if (ended && WIFSIGNALED(status)) {
        fprintf(stderr, "signal %d has ended the child%s\n", WTERMSIG(status),
                WTERMSIG(status) == SIGALRM ? ": it hung" : "");
    }
    return ended && status == 0;
}
