/* A process that is killed at its n-th call of write, fsync or rename, the same one on every
 * machine: at a write, half of the bytes have been written. With KILL_AT_NAMES defined every call
 * that changes names counts, and a call can fail instead. Include once in a program: its functions
 * then replace the C library's, for libtern too. */
#ifndef TERN_TESTS_SUPPORT_KILL_AT_H
#define TERN_TESTS_SUPPORT_KILL_AT_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long kill_at_call; /* calls until then; 0 or less: never */

static bool kill_is_due(void) {
    return atomic_fetch_sub(&kill_at_call, 1) == 1;
}

#ifdef KILL_AT_NAMES
static atomic_long fail_at_call; /* the same, for the call that fails */
static bool no_second_names;     /* as on some file systems */

/* Whether the call is to fail, if the process is still there. */
static bool call_is_bad(void) {
    if (kill_is_due()) { kill(getpid(), SIGKILL); }
    errno = EIO;
    return atomic_fetch_sub(&fail_at_call, 1) == 1;
}

int unlink(const char *path) {
    return call_is_bad() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int folder, const char *path, int how) {
    return call_is_bad() ? -1 : (int)syscall(SYS_unlinkat, folder, path, how);
}

int rmdir(const char *path) {
    return call_is_bad() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdir(const char *path, mode_t mode) {
    return call_is_bad() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int link(const char *from, const char *to) {
    if (no_second_names) {
        errno = EPERM;
        return -1;
    }
    return call_is_bad() ? -1 : (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}
#else
static bool call_is_bad(void) {
    if (kill_is_due()) { kill(getpid(), SIGKILL); }
    return false;
}
#endif

ssize_t write(int fd, const void *data, size_t bytes) {
    if (kill_is_due()) {
        (void)!syscall(SYS_write, fd, data, bytes / 2);
        kill(getpid(), SIGKILL);
    }
    return syscall(SYS_write, fd, data, bytes);
}

/* What the kernel has survives a process that is killed. */
int fsync(int fd) {
    return call_is_bad() ? -1 : 0;
}

int rename(const char *from, const char *to) {
    return call_is_bad() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

#endif
