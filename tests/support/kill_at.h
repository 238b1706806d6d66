/* A process that is killed at its n-th call of write, fsync or rename, the same one on every
 * machine: at a write half of the bytes are there. Include once in a program, whose functions come
 * before the C library's for libtern too. */
#ifndef TERN_TESTS_SUPPORT_KILL_AT_H
#define TERN_TESTS_SUPPORT_KILL_AT_H

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long kill_at_call; /* calls until then; 0 or less: never */

static bool kill_is_due(void) {
    return atomic_fetch_sub(&kill_at_call, 1) == 1;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    if (kill_is_due()) {
        (void)!syscall(SYS_write, fd, data, bytes / 2);
        kill(getpid(), SIGKILL);
    }
    return syscall(SYS_write, fd, data, bytes);
}

int fsync(int fd) {
    if (kill_is_due()) {
        kill(getpid(), SIGKILL);
    }
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to) {
    if (kill_is_due()) {
        kill(getpid(), SIGKILL);
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

#endif
