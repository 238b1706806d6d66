/* Reading files (reader.h). */
#include "core/reader.h"

#include "core/descriptor.h"
#include "core/error.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The maximum read from files without a size, which have no other limit. */
enum { UNSIZED_MIN = 4096, UNSIZED_MAX = 64 << 20 };

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "something else";
}

bool tn__reader_open(tn__reader *r, const char *path, const char *operation) {
    *r = (tn__reader){.fd = -1, .path = path, .operation = operation};
    if (!path) { return tn__fail(TN_EVALUE, operation, "the path is NULL"); }
    struct stat about;
    /* Opening a device may already have effects; what was opened is checked again. */
    bool known = stat(path, &about) == 0;
    if (known && S_ISREG(about.st_mode)) {
        r->fd = tn__above_streams(open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
        known = r->fd >= 0 && fstat(r->fd, &about) == 0;
    }
    if (known && S_ISREG(about.st_mode)) {
        r->bytes = (size_t)about.st_size;
        return true;
    }
    if (known) {
        tn__raise(TN_EIO, operation, "%s is %s, not a regular file", path, kind_of(about.st_mode));
    } else {
        tn__raise(tn__status_of(errno), operation, "%s: %s", path, strerror(errno));
    }
    tn__reader_close(r);
    return false;
}

void tn__reader_close(tn__reader *r) {
    if (r->fd >= 0) { close(r->fd); }
    r->fd = -1;
}

/* Up to `bytes` from `at` on; fewer only at the file's end. How many, or -1 after raising. */
static ssize_t read_some(const tn__reader *r, size_t at, char *to, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(r->fd, to + done, bytes - done, (off_t)(at + done));
        if (got == 0) { break; }
        if (got < 0 && errno != EINTR) {
            tn__raise(tn__status_of(errno), r->operation, "%s: %s", r->path, strerror(errno));
            return -1;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)done;
}

bool tn__reader_get(const tn__reader *r, size_t at, void *to, size_t bytes) {
    ssize_t got = read_some(r, at, to, bytes);
    if (got >= 0 && (size_t)got < bytes) {
        tn__raise(TN_EIO, r->operation,
                  "%s was cut short while it was read: it had %zu bytes, and now there is none at "
                  "%zu",
                  r->path, r->bytes, at + (size_t)got);
    }
    return got >= 0 && (size_t)got == bytes;
}

bool tn__reader_digest(const tn__reader *r, size_t at, size_t bytes, size_t pages, tn__digest *d) {
    enum { PAGE = 4096 };
    char page[PAGE];
    size_t there = (bytes + PAGE - 1) / PAGE;
    pages = there < pages ? there : pages;
    for (size_t i = 0; i < pages; i++) {
        size_t from = (pages > 1 ? (there - 1) * i / (pages - 1) : 0) * PAGE;
        size_t count = bytes - from < PAGE ? bytes - from : PAGE;
        if (!tn__reader_get(r, at + from, page, count)) { return false; }
        tn__digest_add(d, page, count);
    }
    return true;
}

/* ---- Whole files ----------------------------------------------------------------------------- */

static char *raise_memory(const tn__reader *r, size_t bytes) {
    tn__raise(TN_ENOMEM, r->operation, "%s: no memory for %zu bytes", r->path, bytes);
    return NULL;
}

static char *read_sized(const tn__reader *r, size_t *bytes) {
    char *data = r->bytes < SIZE_MAX ? tn__malloc(r->bytes + 1) : NULL;
    if (!data) { return raise_memory(r, r->bytes); }
    if (!tn__reader_get(r, 0, data, r->bytes)) {
        free(data);
        return NULL;
    }
    *bytes = r->bytes;
    data[r->bytes] = 0;
    return data;
}

static char *read_unsized(const tn__reader *r, size_t *bytes) {
    char *data = NULL;
    size_t length = 0;
    for (size_t capacity = UNSIZED_MIN; capacity <= UNSIZED_MAX; capacity *= 2) {
        char *larger = tn__realloc(data, capacity + 1);
        if (!larger) {
            free(data);
            return raise_memory(r, capacity);
        }
        data = larger;
        ssize_t got = read_some(r, length, data + length, capacity - length);
        if (got < 0) {
            free(data);
            return NULL;
        }
        length += (size_t)got;
        if (length < capacity) {
            *bytes = length;
            data[length] = 0;
            return data;
        }
    }
    tn__raise(TN_EIO, r->operation, "%s has size 0, but does not end within %d bytes", r->path,
              UNSIZED_MAX);
    free(data);
    return NULL;
}

char *tn__read_whole(const char *path, size_t *bytes, const char *operation) {
    tn__reader r;
    *bytes = 0;
    if (!tn__reader_open(&r, path, operation)) { return NULL; }
    char *data = r.bytes ? read_sized(&r, bytes) : read_unsized(&r, bytes);
    tn__reader_close(&r);
    return data;
}
