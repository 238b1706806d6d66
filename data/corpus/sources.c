#include "data/corpus/sources.h"

#include "core/descriptor.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Walking --------------------------------------------------------------------------------- */

typedef struct walk {
    bool (*visit)(const tn__folder_entry *w, void *user);
    void *user;
    const char *operation;
} walk;

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* By their bytes: the same order in every locale. */
static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool raise_errno(const walk *k, const char *path, int error) {
    return tn__fail(tn__status_of(error), k->operation, "%s: %s", path, strerror(error));
}

static bool walk_path(const walk *k, const char *path, int level);

static bool walk_folder(const walk *k, const char *path, int level) {
    struct dirent **names = NULL;
    if (level > TN__FOLDERS_MOST) {
        return tn__fail(TN_EVALUE, k->operation, "%s: nested %d folders deep (a link to itself?)",
                        path, level);
    }
    int count = scandir(path, &names, is_visible, compare_names);
    bool more = count >= 0 || raise_errno(k, path, errno);
    for (int i = 0; i < count; i++) {
        char *inner = more ? tn__folder_path(path, names[i]->d_name, k->operation) : NULL;
        more = inner && walk_path(k, inner, level + 1);
        free(inner);
        free(names[i]);
    }
    free(names);
    return more;
}

static bool walk_path(const walk *k, const char *path, int level) {
    struct stat about;
    if (stat(path, &about) != 0) {
        int error = errno;
        tn__folder_entry w = {.path = path, .level = level, .missing = true};
        return k->visit(&w, k->user) || raise_errno(k, path, error);
    }
    tn__folder_entry w = {.path = path,
                          .level = level,
                          .folder = S_ISDIR(about.st_mode),
                          .bytes = about.st_size,
                          .time =
                              about.st_mtim.tv_sec * INT64_C(1000000000) + about.st_mtim.tv_nsec};
    return k->visit(&w, k->user) && (!w.folder || walk_folder(k, path, level));
}

bool tn__folder_walk(const char *path, bool (*visit)(const tn__folder_entry *w, void *user),
                     void *user, const char *operation) {
    if (!path) { return tn__fail(TN_EVALUE, operation, "a path is NULL"); }
    return walk_path(&(walk){visit, user, operation}, path, 0);
}

/* ---- Sources --------------------------------------------------------------------------------- */

static bool add_source(const tn__folder_entry *w, void *user) {
    tn__sources *s = user;
    if (w->folder || w->missing) { return w->folder; }
    if (!tn__grow(&s->list, s->count + 1, &s->capacity, sizeof(*s->list), "corpus")) {
        return false;
    }
    char *copy = tn__strdup_for(w->path, "corpus");
    if (!copy) { return false; }
    s->list[s->count++] = (tn__source_file){.path = copy, .bytes = w->bytes, .time = w->time};
    s->bytes += w->bytes;
    return true;
}

bool tn__sources_add(tn__sources *s, const char *path) {
    return tn__folder_walk(path, add_source, s, "corpus");
}

void tn__sources_free(tn__sources *s) {
    for (int64_t i = 0; i < s->count; i++) {
        free(s->list[i].path);
    }
    free(s->list);
    *s = (tn__sources){.count = 0};
}
