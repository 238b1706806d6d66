/* Writing a file so that it is there whole or not at all: temporary name, fsync,
 * rename, fsync of the folder.
 *
 * The temporary name is always PATH.tmp, created with O_EXCL and locked (flock) while it is
 * written. A PATH.tmp that nobody holds locked was left by a process that was killed, and is
 * removed; one that is locked belongs to somebody who is saving to the same path now. Whoever holds
 * the lock of the file that PATH.tmp names is the only one who may remove or rename it.
 */
#include "io/file.h"

#include "core/memory.h"
#include "tern/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ATTEMPTS = 100 };

static void file_fail(tn__file *f, const char *doing) {
    if (!f->failed) {
        f->failed = true;
        tn__raise(errno == ENOMEM ? TN_ENOMEM : TN_EIO, f->operation, "%s: %s: %s", f->path, doing,
                  strerror(errno));
    }
}

/* ---- The temporary file ---------------------------------------------------------------------- */

/* Whether `name` is still the file that fd has open. */
static bool names_this(const char *name, int fd) {
    struct stat by_name, by_fd;
    return lstat(name, &by_name) == 0 && fstat(fd, &by_fd) == 0 && by_name.st_dev == by_fd.st_dev &&
           by_name.st_ino == by_fd.st_ino;
}

/* Removes a temporary file whose writer is gone. False with errno EBUSY when it is not gone, or
 * with another reason. */
static bool remove_stale(const char *name) {
    int fd = open(name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT;
    }
    bool removed = true;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        errno = errno == EWOULDBLOCK ? EBUSY : errno;
        removed = false;
    } else if (names_this(name, fd)) {
        removed = unlink(name) == 0 || errno == ENOENT;
    }
    int why = errno;
    close(fd);
    errno = why;
    return removed;
}

/* A new, locked file of this name; -1 with errno. The loop is for others who come and go between
 * two calls. */
static int create_locked(const char *name) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0 && errno == EEXIST && remove_stale(name)) {
            continue;
        }
        if (fd < 0) {
            return -1;
        }
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0 ||
                      errno != EWOULDBLOCK; /* some file systems have no locks */
        if (locked && names_this(name, fd)) {
            return fd;
        }
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

bool tn__file_begin(tn__file *f, const char *path, const char *operation) {
    *f = (tn__file){.fd = -1, .operation = operation, .failed = true};
    if (tn__pending()) {
        return false;
    }
    if (!path || !*path) {
        tn__raise(TN_EVALUE, operation, "the path is %s", path ? "empty" : "NULL");
        return false;
    }
    size_t room = strlen(path) + sizeof(".tmp");
    f->path = tn__strdup(path);
    f->temporary = tn__malloc(room);
    if (!f->path || !f->temporary) {
        tn__raise(TN_ENOMEM, operation, "%s: no memory", path);
        tn__file_abandon(f);
        return false;
    }
    snprintf(f->temporary, room, "%s.tmp", path);
    f->fd = create_locked(f->temporary);
    if (f->fd < 0) {
        int why = errno;
        tn__raise(TN_EIO, operation, "%s: %s", f->temporary,
                  why == EBUSY ? "another process is writing it" : strerror(why));
        tn__file_abandon(f);
        return false;
    }
    f->failed = false;
    return true;
}

/* ---- Writing --------------------------------------------------------------------------------- */

void tn__file_put(tn__file *f, const void *data, size_t bytes) {
    const char *from = data;
    while (!f->failed && bytes) {
        size_t most = (size_t)1 << 30;
        ssize_t put = write(f->fd, from, bytes < most ? bytes : most);
        if (put > 0) {
            from += put;
            bytes -= (size_t)put;
        } else if (put == 0 || errno != EINTR) {
            errno = put == 0 ? EIO : errno;
            file_fail(f, "writing");
        }
    }
}

void tn__file_patch(tn__file *f, size_t at, const void *data, size_t bytes) {
    if (!f->failed && lseek(f->fd, (off_t)at, SEEK_SET) < 0) {
        file_fail(f, "seeking");
    }
    tn__file_put(f, data, bytes);
}

/* A name is safe on disk when its folder is. */
static void sync_folder(tn__file *f) {
    char *slash = strrchr(f->temporary, '/');
    const char *folder = !slash ? "." : slash == f->temporary ? "/" : f->temporary;
    if (slash) {
        *slash = 0;
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        if (errno != EACCES) { /* a folder may be written and not read */
            file_fail(f, "opening its folder");
        }
        return;
    }
    /* EINVAL: this file system does not sync folders */
    if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS) {
        file_fail(f, "syncing its folder");
    }
    close(fd);
}

static void file_finish(tn__file *f) {
    if (f->fd >= 0) {
        close(f->fd);
    }
    free(f->path);
    free(f->temporary);
    *f = (tn__file){.fd = -1, .failed = true};
}

tn_status tn__file_commit(tn__file *f) {
    if (!f->failed && fsync(f->fd) != 0) {
        file_fail(f, "syncing");
    }
    if (!f->failed && rename(f->temporary, f->path) != 0) {
        file_fail(f, "renaming");
    }
    if (f->failed) {
        tn__file_abandon(f);
        return tn_error();
    }
    sync_folder(f);
    tn_status status = f->failed ? tn_error() : TN_OK;
    file_finish(f);
    return status;
}

void tn__file_abandon(tn__file *f) {
    if (f->fd >= 0) {
        unlink(f->temporary);
    }
    file_finish(f);
}

tn_status tn_write_file(const char *path, const void *data, size_t bytes) {
    tn__file f;
    if (!tn__file_begin(&f, path, "write_file")) {
        return tn_error();
    }
    tn__file_put(&f, data, bytes);
    return tn__file_commit(&f);
}
