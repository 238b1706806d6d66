#include "data/corpus/sources.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static bool raise_memory(const char *operation) {
    tn__raise(TN_ENOMEM, operation, "no memory for the names of files");
    return false;
}

/* Takes the path. */
static bool add_file(tn__sources *s, char *path, int64_t bytes, const char *operation) {
    if (s->count == s->room) {
        int64_t room = s->room ? 2 * s->room : 16;
        char **paths = tn__realloc(s->paths, (size_t)room * sizeof(*paths));
        s->paths = paths ? paths : s->paths;
        int64_t *sizes = paths ? tn__realloc(s->sizes, (size_t)room * sizeof(*sizes)) : NULL;
        if (!sizes) {
            free(path);
            return raise_memory(operation);
        }
        s->sizes = sizes;
        s->room = room;
    }
    s->paths[s->count] = path;
    s->sizes[s->count++] = bytes;
    s->bytes += bytes;
    return true;
}

/* ---- Folders --------------------------------------------------------------------------------- */

typedef struct names {
    char **list;
    size_t count, room;
    bool failed; /* no memory */
} names;

static bool collect_name(const char *name, void *user) {
    names *n = user;
    if (name[0] == '.') {
        return true;
    }
    if (n->count == n->room) {
        size_t room = n->room ? 2 * n->room : 16;
        char **larger = tn__realloc(n->list, room * sizeof(*larger));
        n->list = larger ? larger : n->list;
        n->room = larger ? room : n->room;
    }
    char *copy = n->count < n->room ? tn__strdup(name) : NULL;
    if (copy) {
        n->list[n->count++] = copy;
    }
    n->failed = !copy;
    return copy != NULL;
}

/* By their bytes: the same order for everybody, whatever the language. */
static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_path(tn__sources *s, char *path, int depth, const char *operation);

static bool add_folder(tn__sources *s, const char *path, int depth, const char *operation) {
    names n = {0};
    if (depth > TN__SOURCES_DEEPEST) {
        tn__raise(TN_EVALUE, operation, "%s: %d folders within each other (a link to itself?)",
                  path, depth);
        return false;
    }
    bool done = tn__folder_each(path, collect_name, &n, operation);
    done = done && (!n.failed || raise_memory(operation));
    if (done && n.count) {
        qsort(n.list, n.count, sizeof(*n.list), compare_names);
    }
    for (size_t i = 0; i < n.count; i++) {
        done =
            done && add_path(s, tn__folder_path(path, n.list[i], operation), depth + 1, operation);
        free(n.list[i]);
    }
    free(n.list);
    return done;
}

/* Takes the path. NULL: that has been raised. */
static bool add_path(tn__sources *s, char *path, int depth, const char *operation) {
    struct stat about;
    if (!path) {
        return false;
    }
    if (stat(path, &about) != 0) {
        tn__raise(errno == ENOMEM ? TN_ENOMEM : TN_EIO, operation, "%s: %s", path, strerror(errno));
        free(path);
        return false;
    }
    if (!S_ISDIR(about.st_mode)) {
        return add_file(s, path, (int64_t)about.st_size, operation);
    }
    bool done = add_folder(s, path, depth, operation);
    free(path);
    return done;
}

bool tn__sources_add(tn__sources *s, const char *path, const char *operation) {
    if (!path) {
        tn__raise(TN_EVALUE, operation, "a path is NULL");
        return false;
    }
    char *copy = tn__strdup(path);
    return copy ? add_path(s, copy, 0, operation) : raise_memory(operation);
}

void tn__sources_free(tn__sources *s) {
    for (int64_t i = 0; i < s->count; i++) {
        free(s->paths[i]);
    }
    free(s->paths);
    free(s->sizes);
    *s = (tn__sources){.count = 0};
}
