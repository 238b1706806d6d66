#include "data/corpus/sources.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* Takes ownership of the path. */
static bool add_file(tn__sources *s, char *path, const struct stat *about, const char *operation) {
    if (!tn__grow(&s->list, s->count + 1, &s->capacity, sizeof(*s->list), operation)) {
        free(path);
        return false;
    }
    int64_t time = about->st_mtim.tv_sec * INT64_C(1000000000) + about->st_mtim.tv_nsec;
    s->list[s->count++] = (tn__source_file){.path = path, .bytes = about->st_size, .time = time};
    s->bytes += about->st_size;
    return true;
}

/* ---- Folders --------------------------------------------------------------------------------- */

typedef struct naming {
    tn__names *names;
    const char *operation;
} naming;

static bool collect_name(const char *name, void *user) {
    const naming *w = user;
    tn__names *n = w->names;
    if (name[0] == '.') { return true; }
    bool fits = tn__grow(&n->list, n->count + 1, &n->capacity, sizeof(*n->list), w->operation);
    char *copy = fits ? tn__strdup_for(name, w->operation) : NULL;
    if (copy) { n->list[n->count++] = copy; }
    return copy != NULL;
}

/* By their bytes: the same order in every locale. */
static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool tn__names_in(tn__names *n, const char *folder, const char *operation) {
    naming w = {n, operation};
    bool done = tn__folder_each(folder, collect_name, &w, operation) && !tn__pending();
    if (done && n->count) { qsort(n->list, (size_t)n->count, sizeof(*n->list), compare_names); }
    return done;
}

void tn__names_free(tn__names *n) {
    for (int64_t i = 0; i < n->count; i++) {
        free(n->list[i]);
    }
    free(n->list);
    *n = (tn__names){.count = 0};
}

static bool add_path(tn__sources *s, char *path, int depth, const char *operation);

static bool add_folder(tn__sources *s, const char *path, int depth, const char *operation) {
    tn__names n = {.count = 0};
    if (depth > TN__SOURCES_DEEPEST) {
        return tn__fail(TN_EVALUE, operation, "%s: nested %d folders deep (a link to itself?)",
                        path, depth);
    }
    bool done = tn__names_in(&n, path, operation);
    for (int64_t i = 0; done && i < n.count; i++) {
        done = add_path(s, tn__folder_path(path, n.list[i], operation), depth + 1, operation);
    }
    tn__names_free(&n);
    return done;
}

/* Takes ownership of the path. NULL: its error has been raised. */
static bool add_path(tn__sources *s, char *path, int depth, const char *operation) {
    struct stat about;
    if (!path) { return false; }
    if (stat(path, &about) != 0) {
        tn__raise(errno == ENOMEM ? TN_ENOMEM : TN_EIO, operation, "%s: %s", path, strerror(errno));
        free(path);
        return false;
    }
    if (!S_ISDIR(about.st_mode)) { return add_file(s, path, &about, operation); }
    bool done = add_folder(s, path, depth, operation);
    free(path);
    return done;
}

bool tn__sources_add(tn__sources *s, const char *path, const char *operation) {
    if (!path) { return tn__fail(TN_EVALUE, operation, "a path is NULL"); }
    char *copy = tn__strdup_for(path, operation);
    return copy && add_path(s, copy, 0, operation);
}

void tn__sources_free(tn__sources *s) {
    for (int64_t i = 0; i < s->count; i++) {
        free(s->list[i].path);
    }
    free(s->list);
    *s = (tn__sources){.count = 0};
}
