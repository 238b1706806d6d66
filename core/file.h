/* A file that appears whole or not at all.
 *
 *     tn__file f;
 *     if (!tn__file_begin(&f, path, "save")) { return tn_error(); }
 *     tn__file_put(&f, header, n);
 *     tn__file_print(&f, "%d", number);
 *     return tn__file_commit(&f);            // or tn__file_abandon(&f)
 *
 * After a failure the other calls do nothing, and commit cleans up and raises: an error handler,
 * which may end the program, finds no leftovers.
 */
#ifndef TERN_CORE_FILE_H
#define TERN_CORE_FILE_H

#include "core/buffer.h"
#include "core/digest.h"
#include "core/error.h"

#include <sys/stat.h>

typedef struct tn__file {
    int fd;
    char *path, *temporary;
    const char *operation; /* static text */
    const char *doing;     /* what failed; NULL: nothing yet */
    int why;               /* its errno */
    bool replaces;         /* a file exists already: */
    struct stat before;
    tn__digest *digest; /* of all bytes put, */
    size_t bytes;       /* and their number */
    struct {
        size_t at, bytes;
        char was[TN__DIGEST_DIGITS], is[TN__DIGEST_DIGITS];
    } patch;
    size_t held; /* bytes put and not yet written */
    char buffer[4096];
} tn__file;

/* False after raising. An existing file keeps its mode, and its owner where that is allowed; a new
 * one has the mode that the process's umask leaves. Anything but a regular file is refused. A
 * symlink is replaced, not followed: its author must not choose what is overwritten. */
bool tn__file_begin(tn__file *f, const char *path, const char *operation);
/* Removes a temporary file whose writer is gone. False with errno, EBUSY if it is still there. */
bool tn__file_remove_stale(const char *name);
void tn__file_put(tn__file *f, const void *data, size_t bytes);

/* Like printf, less than 1024 bytes at a time. */
void tn__file_print(tn__file *f, const char *format, ...) TN_PRINTF(2, 3);

/* The digest of what has been put so far: digits[TN__DIGEST_DIGITS + 1]. */
void tn__file_digest(const tn__file *f, char *digits);

/* Overwrites `bytes` (at most TN__DIGEST_DIGITS) of what was put, `at` bytes from the beginning.
 * Once, after everything else. */
void tn__file_patch(tn__file *f, size_t at, const void *was, const void *is, size_t bytes);

/* Reads back what was written and compares its size and digest, then renames it into place. */
tn_status tn__file_commit(tn__file *f);
void tn__file_abandon(tn__file *f);

/* Writes a whole file: at path, or FOLDER/NAME. False after raising, also if the buffer has failed
 * and raised. */
bool tn__file_write_at(const char *path, const void *data, size_t bytes, const char *operation);
bool tn__file_write(const tn__buffer *text, const char *folder, const char *name,
                    const char *operation);

#endif
