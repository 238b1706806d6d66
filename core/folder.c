#include "core/folder.h"

#include "core/buffer.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "core/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool raise_errno(const char *path, const char *operation) {
    return tn__fail(tn__status_of(errno), operation, "%s: %s", path, strerror(errno));
}

bool tn__folder_make(const char *path, const char *operation) {
    struct stat about;
    if (mkdir(path, 0777) == 0) { return true; }
    int why = errno;
    bool there = why == EEXIST && stat(path, &about) == 0;
    if (there && S_ISDIR(about.st_mode)) { return true; }
    errno = there ? ENOTDIR : why;
    return raise_errno(path, operation);
}

char *tn__folder_path(const char *folder, const char *name, const char *operation) {
    if (!folder) {
        tn__raise(TN_EVALUE, operation, "the folder is NULL");
        return NULL;
    }
    return tn__asprintf(operation, "%s/%s", folder, name);
}

bool tn__folder_has(const char *folder, const char *name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return length < (int)sizeof(path) && access(path, F_OK) == 0;
}

/* NULL with errno. */
static DIR *open_folder(const char *path, int how) {
    int fd = tn__above_streams(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | how));
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !folder) { close(fd); }
    return folder;
}

/* The next name that is not "." or ".."; NULL at the end, or with errno. */
static const char *next_name(DIR *folder) {
    const struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(folder);
    } while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    return entry ? entry->d_name : NULL;
}

bool tn__folder_each(const char *path, bool (*f)(const char *name, void *user), void *user,
                     const char *operation) {
    DIR *folder = open_folder(path, 0);
    if (!folder) { return raise_errno(path, operation); }
    const char *name = next_name(folder);
    bool more = true;
    while (name && more) {
        more = f(name, user);
        name = more ? next_name(folder) : NULL;
    }
    bool read = !more || errno == 0;
    if (!read) { raise_errno(path, operation); }
    closedir(folder);
    return read;
}

bool tn__folder_remove(const char *path, const char *operation) {
    DIR *folder = open_folder(path, O_NOFOLLOW);
    if (!folder) { return errno == ENOENT || raise_errno(path, operation); }
    const char *name = next_name(folder);
    while (name && (unlinkat(dirfd(folder), name, 0) == 0 || errno == ENOENT)) {
        name = next_name(folder);
    }
    bool empty = !name && errno == 0;
    bool gone = empty && (rmdir(path) == 0 || errno == ENOENT);
    if (!gone) { raise_errno(path, operation); }
    closedir(folder);
    return gone;
}

bool tn__folder_sync(const char *path, const char **doing) {
    *doing = "opening its folder";
    int fd = tn__above_streams(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) { return errno == EACCES; }
    *doing = "syncing its folder";
    bool done = fsync(fd) == 0 || errno == EINVAL || errno == EROFS;
    int why = errno;
    close(fd);
    errno = why;
    return done;
}
