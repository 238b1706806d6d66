/* Writing a file so that it is there whole or not at all: temporary name, fsync, reading back,
 * rename, fsync of the folder.
 *
 * The temporary name is always PATH.tmp, created with O_EXCL and locked (flock) while it is
 * written. An unlocked PATH.tmp was left by a process that was killed, and is removed; a locked one
 * belongs to another process saving to the same path now. Only the holder of the lock on the file
 * that PATH.tmp names may remove or rename it.
 */
#include "core/file.h"

#include "core/descriptor.h"
#include "core/folder.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { ATTEMPTS = 100, CHUNK = 1 << 15 };

/* Only the first failure counts, with its errno. */
static void note_failure(tn__file *f, const char *doing) {
    if (!f->doing) {
        f->why = errno;
        f->doing = doing;
    }
}

/* ---- The temporary file ---------------------------------------------------------------------- */

/* Whether `name` is still the file that fd has open. */
static bool names_this(const char *name, int fd) {
    struct stat by_name, by_fd;
    return lstat(name, &by_name) == 0 && fstat(fd, &by_fd) == 0 && by_name.st_dev == by_fd.st_dev &&
           by_name.st_ino == by_fd.st_ino;
}

/* The file's mode may already be that of a read-only one. */
bool tn__file_remove_stale(const char *name) {
    int how = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = tn__above_streams(open(name, O_WRONLY | how));
    if (fd < 0 && errno == EACCES) { fd = tn__above_streams(open(name, O_RDONLY | how)); }
    if (fd < 0) { return errno == ENOENT; }
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

/* A new, locked file of this name; -1 with errno. The loop is for other processes that come and go
 * between two calls. */
static int create_locked(const char *name, mode_t mode) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int fd =
            tn__above_streams(open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
        if (fd < 0 && errno == EEXIST && tn__file_remove_stale(name)) { continue; }
        if (fd < 0) { return -1; }
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0 ||
                      errno != EWOULDBLOCK; /* some file systems have no locks */
        if (locked && names_this(name, fd)) { return fd; }
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

static void file_finish(tn__file *f) {
    if (f->fd >= 0) { close(f->fd); }
    tn__digest_free(f->digest);
    free(f->path);
    free(f->temporary);
    f->fd = -1;
    f->digest = NULL;
    f->path = f->temporary = NULL;
}

/* /dev/stdout and the like. They lead to whatever is open, which may be a file. */
static bool is_link_of_system(const char *path) {
    static const char open_files[] = "/proc/";
    char target[sizeof(open_files) - 1];
    return readlink(path, target, sizeof(target)) == (ssize_t)sizeof(target) &&
           memcmp(target, open_files, sizeof(target)) == 0;
}

/* Whether f->path may be replaced: it names nothing, a regular file or a link to one. */
static bool may_replace(tn__file *f) {
    f->replaces = stat(f->path, &f->before) == 0;
    if (f->replaces && (!S_ISREG(f->before.st_mode) || is_link_of_system(f->path))) {
        return tn__fail(TN_EIO, f->operation, "%s is not a regular file", f->path);
    }
    return true;
}

static void file_reset(tn__file *f, const char *operation) {
    f->fd = -1;
    f->operation = operation;
    f->doing = NULL;
    f->path = f->temporary = NULL;
    f->digest = NULL;
    f->bytes = f->held = f->patch.bytes = 0;
}

bool tn__file_begin(tn__file *f, const char *path, const char *operation) {
    file_reset(f, operation);
    if (tn__pending()) { return false; }
    if (!path || !*path) {
        return tn__fail(TN_EVALUE, operation, "the path is %s", path ? "empty" : "NULL");
    }
    f->path = tn__strdup_for(path, operation);
    f->temporary = tn__asprintf(operation, "%s.tmp", path);
    f->digest = tn__digest_new(operation);
    if (!f->path || !f->temporary || !f->digest || !may_replace(f)) {
        file_finish(f);
        return false;
    }
    f->fd = create_locked(f->temporary, f->replaces ? 0600 : 0666);
    if (f->fd < 0) {
        int why = errno;
        file_finish(f);
        return tn__fail(tn__status_of(why), operation, "%s.tmp: %s", path,
                        why == EBUSY ? "another process is writing it" : strerror(why));
    }
    return true;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void write_out(tn__file *f, const char *from, size_t bytes) {
    while (!f->doing && bytes) {
        size_t max = (size_t)1 << 30;
        ssize_t put = write(f->fd, from, bytes < max ? bytes : max);
        if (put > 0) {
            from += put;
            bytes -= (size_t)put;
        } else if (put == 0 || errno != EINTR) {
            errno = put == 0 ? EIO : errno;
            note_failure(f, "writing");
        }
    }
}

static void flush_held(tn__file *f) {
    write_out(f, f->buffer, f->held);
    f->held = 0;
}

void tn__file_put(tn__file *f, const void *data, size_t bytes) {
    if (f->doing || !bytes) { return; }
    tn__digest_add(f->digest, data, bytes);
    f->bytes += bytes;
    if (bytes > sizeof(f->buffer) - f->held) { flush_held(f); }
    if (bytes > sizeof(f->buffer)) {
        write_out(f, data, bytes);
        return;
    }
    memcpy(f->buffer + f->held, data, bytes);
    f->held += bytes;
}

void tn__file_print(tn__file *f, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (bytes < 0 || bytes >= (int)sizeof(text)) {
        errno = bytes < 0 ? errno : EOVERFLOW;
        note_failure(f, "printing");
        return;
    }
    tn__file_put(f, text, (size_t)bytes);
}

void tn__file_digest(const tn__file *f, char *digits) {
    tn__digest_text(f->digest, digits);
}

void tn__file_patch(tn__file *f, size_t at, const void *was, const void *is, size_t bytes) {
    flush_held(f);
    if (!f->doing && lseek(f->fd, (off_t)at, SEEK_SET) < 0) { note_failure(f, "seeking"); }
    write_out(f, is, bytes);
    f->patch.at = at;
    f->patch.bytes = bytes;
    memcpy(f->patch.was, was, bytes);
    memcpy(f->patch.is, is, bytes);
}

/* ---- Reading back ---------------------------------------------------------------------------- */

/* Whether the part of the patch in this chunk is right; restores what it replaced, since the digest
 * covers that. */
static bool undo_patch(const tn__file *f, char *chunk, size_t at, size_t bytes) {
    bool same = true;
    for (size_t i = 0; i < f->patch.bytes; i++) {
        size_t place = f->patch.at + i;
        if (place >= at && place < at + bytes) {
            same = same && chunk[place - at] == f->patch.is[i];
            chunk[place - at] = f->patch.was[i];
        }
    }
    return same;
}

/* Whether size and digest of the file's contents are those of what was put into it. */
static void read_back(tn__file *f) {
    char put[TN__DIGEST_DIGITS + 1], found[TN__DIGEST_DIGITS + 1], chunk[CHUNK];
    size_t at = 0;
    bool same = true;
    tn__digest_text(f->digest, put);
    tn__digest_reset(f->digest);
    for (;;) {
        ssize_t got = pread(f->fd, chunk, sizeof(chunk), (off_t)at);
        if (got < 0 && errno == EINTR) { continue; }
        if (got < 0) {
            note_failure(f, "reading back");
            return;
        }
        if (got == 0) { break; }
        same = undo_patch(f, chunk, at, (size_t)got) && same;
        tn__digest_add(f->digest, chunk, (size_t)got);
        at += (size_t)got;
    }
    tn__digest_text(f->digest, found);
    if (!same || at != f->bytes || strcmp(put, found) != 0) {
        errno = EIO;
        note_failure(f, "what was read back is not what was written");
    }
}

/* ---- Taking the name ------------------------------------------------------------------------- */

/* Takes owner and mode from the file that it replaces. If the group cannot be set, its permissions
 * are dropped. */
static void keep_rights(tn__file *f) {
    mode_t mode = f->before.st_mode & 0777;
    bool mine = fchown(f->fd, f->before.st_uid, f->before.st_gid) == 0;
    if (!mine && fchown(f->fd, (uid_t)-1, f->before.st_gid) != 0) {
        mode = (mode & 0707) | (mode & 07) << 3;
    }
    if (fchmod(f->fd, mode) != 0 && errno != EPERM) { /* some file systems have no modes */
        note_failure(f, "setting its permissions");
    }
}

/* A name is safely on disk once its folder is. */
static void sync_folder(tn__file *f) {
    char *slash = strrchr(f->temporary, '/');
    const char *folder = !slash ? "." : slash == f->temporary ? "/" : f->temporary;
    if (slash) { *slash = 0; }
    const char *doing;
    if (!tn__folder_sync(folder, &doing)) { note_failure(f, doing); }
}

/* False: f->path is unchanged. */
static bool take_name(tn__file *f) {
    flush_held(f);
    if (!f->doing && f->replaces) { keep_rights(f); }
    if (!f->doing && fsync(f->fd) != 0) { note_failure(f, "syncing"); }
    if (!f->doing) { read_back(f); }
    if (!f->doing && rename(f->temporary, f->path) != 0) { note_failure(f, "renaming"); }
    return !f->doing;
}

tn_status tn__file_commit(tn__file *f) {
    if (take_name(f)) {
        sync_folder(f);
    } else {
        unlink(f->temporary);
    }
    char *path = f->path;
    f->path = NULL;
    file_finish(f);
    tn_status status = TN_OK;
    if (f->doing) {
        status = tn__raise(tn__status_of(f->why), f->operation, "%s: %s: %s", path, f->doing,
                           strerror(f->why));
    }
    free(path);
    return status;
}

void tn__file_abandon(tn__file *f) {
    unlink(f->temporary);
    file_finish(f);
}

bool tn__file_write_at(const char *path, const void *data, size_t bytes, const char *operation) {
    tn__file f;
    if (!tn__file_begin(&f, path, operation)) { return false; }
    tn__file_put(&f, data, bytes);
    return tn__file_commit(&f) == TN_OK;
}

bool tn__file_write(const tn__buffer *text, const char *folder, const char *name,
                    const char *operation) {
    char *path = text->failed ? NULL : tn__folder_path(folder, name, operation);
    bool done = path && tn__file_write_at(path, text->at, text->bytes, operation);
    free(path);
    return done;
}
