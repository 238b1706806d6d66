/* Which parameters require gradients, by their paths: paths.h has the patterns. */
#include "nn/paths.h"

#include "nn/module.h"

#include <string.h>

/* ---- Patterns -------------------------------------------------------------------------------- */

const char *tn__path_next(const char *list, const char **end) {
    list += strspn(list, " ");
    *end = list + strcspn(list, " ");
    return *list ? list : NULL;
}

/* With `below` it may also be the beginning of the path, before a dot. */
static bool path_matches(const char *pattern, const char *end, const char *path, bool below) {
    for (; pattern < end && *pattern != '*'; pattern++, path++) {
        if (*pattern != *path) { return false; }
    }
    if (pattern == end) { return *path == 0 || (below && *path == '.'); }
    for (;; path++) {
        if (path_matches(pattern + 1, end, path, below)) { return true; }
        if (*path == 0 || *path == '.') { return false; }
    }
}

bool tn__path_fits(const char *pattern, const char *end, const char *path) {
    return path_matches(pattern, end, path, false);
}

bool tn__paths_fit(const char *list, const char *path) {
    const char *end;
    for (const char *at = tn__path_next(list, &end); at; at = tn__path_next(end, &end)) {
        if (tn__path_fits(at, end, path)) { return true; }
    }
    return false;
}

/* ---- Freezing -------------------------------------------------------------------------------- */

/* One pattern of the list, applied to the parameters that it names. */
typedef struct freezing {
    const char *begin, *end;
    bool apply, wanted;
    int named, changed;
} freezing;

static bool freeze_entry(const tn_entry *entry, void *user) {
    freezing *f = user;
    if (!path_matches(f->begin, f->end, entry->path, true)) { return true; }
    f->named++;
    tn_dtype dtype = tn_dtype_of(entry->stored);
    if (f->wanted && !tn_dtype_is_float(dtype)) {
        tn__raise(TN_EDTYPE, "unfreeze", "\"%s\" is %s, which has no gradient", entry->path,
                  tn_dtype_name(dtype));
    }
    if (!f->apply) { return !tn__pending(); }
    f->changed += tn_requires_grad(entry->stored) != f->wanted;
    if (!f->wanted) {
        tn_zero_grad(*entry->field);
        tn_zero_grad(entry->stored);
    }
    return !tn_is_inert(tn_set_requires_grad(*entry->field, f->wanted)) &&
           !tn_is_inert(tn_set_requires_grad(entry->stored, f->wanted));
}

/* Applies every pattern of the list, after checking all of them. */
static int set_wanted(void *module, const char *paths, bool wanted, const char *operation) {
    tn_module *m = tn__module_of(module, operation);
    if (m && !paths) { tn__raise(TN_EVALUE, operation, "the paths are NULL"); }
    if (!m || !paths) { return -1; }
    freezing f = {.wanted = wanted};
    for (int apply = 0; apply < 2; apply++) {
        f.apply = apply;
        for (f.begin = tn__path_next(paths, &f.end); f.begin;
             f.begin = tn__path_next(f.end, &f.end)) {
            f.named = 0;
            tn_module_each(m, (tn_walk){.with_shared = true, .absent = true}, freeze_entry, &f);
            if (f.named == 0 && !tn__pending()) {
                tn__raise(TN_EVALUE, operation,
                          "no parameter of the %s matches \"%.*s\" (paths of parameters or "
                          "modules separated by spaces; * matches anything but a dot)",
                          m->kind, (int)(f.end - f.begin), f.begin);
            }
        }
        if (tn__pending()) { return -1; }
    }
    return f.changed;
}

int tn_freeze(void *m, const char *paths) {
    return set_wanted(m, paths, false, "freeze");
}

int tn_unfreeze(void *m, const char *paths) {
    return set_wanted(m, paths, true, "unfreeze");
}
