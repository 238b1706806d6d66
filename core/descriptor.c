#include "core/descriptor.h"

#include "core/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int holders;
static bool held[STDERR_FILENO + 1];

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&lock);
}

int tn__above_streams(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) { return fd; }
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), why = errno;
    close(fd);
    errno = why;
    return above;
}

void tn__streams_hold(void) {
    pthread_mutex_lock(&lock);
    int fd = holders++ > 0 ? -1 : open("/dev/null", O_RDWR | O_CLOEXEC);
    for (; fd >= 0 && fd <= STDERR_FILENO; fd = open("/dev/null", O_RDWR | O_CLOEXEC)) {
        held[fd] = true;
    }
    if (fd >= 0) { close(fd); }
    pthread_mutex_unlock(&lock);
}

/* Another thread may have opened a file there since. */
static bool is_null(int fd, const struct stat *null) {
    struct stat about;
    return fstat(fd, &about) == 0 && about.st_dev == null->st_dev && about.st_ino == null->st_ino;
}

void tn__streams_let_go(void) {
    struct stat null;
    pthread_mutex_lock(&lock);
    bool known = stat("/dev/null", &null) == 0;
    holders--;
    for (int fd = 0; holders == 0 && fd <= STDERR_FILENO; fd++) {
        if (held[fd] && known && is_null(fd, &null)) { close(fd); }
        held[fd] = false;
    }
    pthread_mutex_unlock(&lock);
}
