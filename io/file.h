/* A file that appears whole or not at all.
 *
 *     tn__file f;
 *     if (!tn__file_begin(&f, path, "save")) { return tn_error(); }
 *     tn__file_put(&f, header, n);
 *     tn__file_put(&f, data, m);
 *     return tn__file_commit(&f);            // or tn__file_abandon(&f)
 *
 * The first failure is raised, with `operation` and path;
 * what follows does nothing and commit cleans up.
 */
#ifndef TERN_IO_FILE_H
#define TERN_IO_FILE_H

#include "core/error.h"

typedef struct tn__file {
    int fd;
    char *path, *temporary;
    const char *operation; /* static text */
    bool failed;
} tn__file;

bool tn__file_begin(tn__file *f, const char *path, const char *operation);
void tn__file_put(tn__file *f, const void *data, size_t bytes);

/* Replaces bytes that were written, `at` bytes from the beginning. Once, before commit. */
void tn__file_patch(tn__file *f, size_t at, const void *data, size_t bytes);

tn_status tn__file_commit(tn__file *f);
void tn__file_abandon(tn__file *f);

#endif
