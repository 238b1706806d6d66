/* Files by name: as they are given, and those in folders, sorted by name at each level, including
 * folders within them. Names in folders that begin with '.' are skipped. */
#ifndef TERN_DATA_CORPUS_SOURCES_H
#define TERN_DATA_CORPUS_SOURCES_H

#include "tern/core.h"

enum { TN__SOURCES_DEEPEST = 32 /* folders in the one given; a link to itself has no end */ };

/* Zeros to begin with. */
typedef struct tn__sources {
    char **paths;
    int64_t *sizes; /* bytes, of each */
    int64_t count, capacity;
    int64_t bytes; /* of all */
} tn__sources;

/* A file, or all files of a folder, of which there may be none. False after raising; what was added
 * stays. */
bool tn__sources_add(tn__sources *s, const char *path, const char *operation);
void tn__sources_free(tn__sources *s);

#endif
