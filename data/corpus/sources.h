/* Files by name: those given, and those in the folders given and in folders within them, sorted by
 * name at each level. Names in folders that begin with '.' are skipped. */
#ifndef TERN_DATA_CORPUS_SOURCES_H
#define TERN_DATA_CORPUS_SOURCES_H

#include "tern/data.h"

enum { TN__SOURCES_DEEPEST = 32 /* folders within each other; a link to itself would never end */ };

typedef struct tn__source_file {
    char *path;
    int64_t bytes;
    int64_t time; /* when it was changed last, in ns */
} tn__source_file;

/* Zeros to begin with. */
typedef struct tn__sources {
    tn__source_file *list;
    int64_t count, capacity;
    int64_t bytes; /* of all */
} tn__sources;

typedef struct tn__names {
    char **list;
    int64_t count, capacity;
} tn__names;

/* The names in a folder, sorted, but those that begin with '.'. Zeros to begin with; free also
 * after it has raised and returned false. */
bool tn__names_in(tn__names *n, const char *folder, const char *operation);
void tn__names_free(tn__names *n);

/* Adds a file, or all files of a folder, which may be empty. False after raising; what was added
 * stays. */
bool tn__sources_add(tn__sources *s, const char *path, const char *operation);
const tn__sources *tn__corpus_sources(const tn_corpus *c);
void tn__sources_free(tn__sources *s);

#endif
