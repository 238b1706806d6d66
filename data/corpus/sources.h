/* Files by name: those given, and those in the folders given and in folders within them, sorted by
 * name at each level. Names in folders that begin with '.' are skipped. */
#ifndef TERN_DATA_CORPUS_SOURCES_H
#define TERN_DATA_CORPUS_SOURCES_H

#include "tern/data.h"

/* Folders within each other; a link to itself would never end. */
enum { TN__FOLDERS_MOST = 32 };

typedef struct tn__folder_entry {
    const char *path;
    int level;           /* 0: the path given, 1: in this folder, … */
    bool missing;        /* no such file: the rest is 0; false from `visit` is an error */
    bool folder;         /* before what is in it */
    int64_t bytes, time; /* when it was changed last, in ns */
} tn__folder_entry;

/* Calls `visit` with each file and folder, until it returns false; then false, and after raising.
 */
bool tn__folder_walk(const char *path, bool (*visit)(const tn__folder_entry *w, void *user),
                     void *user, const char *operation);

typedef struct tn__source_file {
    char *path;
    int64_t bytes, time;
} tn__source_file;

/* Zeros to begin with. */
typedef struct tn__sources {
    tn__source_file *list;
    int64_t count, capacity;
    int64_t bytes; /* of all */
} tn__sources;

/* Adds a corpus's file, or all files of a folder, which may be empty. False after raising; what was
 * added stays. */
bool tn__sources_add(tn__sources *s, const char *path);
const tn__sources *tn__corpus_sources(const tn_corpus *c);
void tn__sources_free(tn__sources *s);

#endif
