/* The file of a flight record (record_file.h). */
#include "distributed/group/record_file.h"

#include "core/descriptor.h"
#include "tern/core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ATTEMPTS = 8, NAME_SIZE = 64 };

static void warn_of(const char *path, const char *why) {
    tn_log_write(TN_LOG_WARN, "flight recorder: nothing is written: %s: %s", path, why);
}

/* ---- Folders --------------------------------------------------------------------------------- */

/* Checks the open folder: its name could by then refer to something else. NULL: only this user can
 * have put something there. */
static const char *folder_fault(int fd) {
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
        return errno == ELOOP || errno == ENOTDIR ? "not a folder, or a link to one"
                                                  : strerror(errno);
    }
    return about.st_uid != geteuid()             ? "a folder of another user"
           : about.st_mode & (S_IRWXG | S_IRWXO) ? "a folder that others may use"
                                                 : NULL;
}

/* A folder for this user only, made if missing; -1 with the reason. */
static int open_private(const char *path, const char **why) {
    (void)mkdir(path, 0700); /* what is there instead is checked when it is open */
    int fd = tn__above_streams(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    *why = folder_fault(fd);
    if (*why && fd >= 0) { close(fd); }
    return *why ? -1 : fd;
}

static int open_own(char *path, size_t size) {
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *temporary = getenv("TMPDIR"), *why;
    int fd = -1;
    if (runtime && *runtime == '/') {
        snprintf(path, size, "%s/tern", runtime);
        fd = open_private(path, &why);
    }
    if (fd < 0) { /* it is deleted when the user logs out, which jobs outlive */
        snprintf(path, size, "%s/tern-%u", temporary && *temporary ? temporary : "/tmp",
                 (unsigned)geteuid());
        fd = open_private(path, &why);
    }
    if (fd < 0) { warn_of(path, why); }
    return fd;
}

/* The user chose this one, links and all. */
static int open_named(const char *folder, char *path, size_t size) {
    int fd = tn__above_streams(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    snprintf(path, size, "%s", folder);
    if (fd < 0) { warn_of(path, strerror(errno)); }
    return fd;
}

/* ---- Files ----------------------------------------------------------------------------------- */

static bool is_older_record(int folder, const char *name) {
    struct stat about;
    return fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(about.st_mode) &&
           about.st_uid == geteuid();
}

/* Never opens an existing file: an older record is unlinked. The loop is for other threads and
 * processes that create the same name. -1 with errno. */
static int create_file(int folder, const char *name) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        int fd = tn__above_streams(openat(folder, name, how, 0600));
        if (fd >= 0 || errno != EEXIST) { return fd; }
        if (!is_older_record(folder, name) || (unlinkat(folder, name, 0) != 0 && errno != ENOENT)) {
            break;
        }
    }
    errno = EEXIST;
    return -1;
}

FILE *tn__record_open(int rank, char *path, size_t size) {
    const char *named = getenv("TERN_FLIGHT_DIR");
    bool own = !named || !*named;
    char name[NAME_SIZE];
    int folder = own ? open_own(path, size) : open_named(named, path, size);
    if (folder < 0) { return NULL; }
    if (own) { /* for all jobs of the user */
        snprintf(name, sizeof(name), "tern-flight-%d-%d.txt", rank, (int)getpid());
    } else {
        snprintf(name, sizeof(name), "tern-flight-%d.txt", rank);
    }
    size_t used = strlen(path);
    snprintf(path + used, size - used, "/%s", name);
    int fd = create_file(folder, name);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        warn_of(path, errno == EEXIST ? "something that is not this user's record is there"
                                      : strerror(errno));
        if (fd >= 0) { close(fd); }
    }
    close(folder);
    return file;
}
