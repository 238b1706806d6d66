/* Options that are lists of paths: "h.*.attn h.*.mlp" (nn/paths.h). */
#include "distributed/parallel/base.h"
#include "nn/paths.h"

/* One pattern, and whether it matched the path of any module or parameter. */
typedef struct pattern_use {
    const char *begin, *end;
    bool used;
} pattern_use;

static bool use_pattern(tn_module *m, const char *path, void *user) {
    pattern_use *use = user;
    use->used = *path && tn__path_fits(use->begin, use->end, path);
    return !use->used;
}

static bool use_pattern_for(const tn_entry *entry, void *user) {
    return use_pattern(NULL, entry->path, user);
}

bool tn__patterns_used(tn_module *m, const char *list, bool parameters, const char *operation,
                       const char *what) {
    const char *end, *at = list ? tn__path_next(list, &end) : NULL;
    for (; at; at = tn__path_next(end, &end)) {
        pattern_use use = {.begin = at, .end = end};
        if (parameters) { /* including those of other pipeline stages */
            tn_walk all = {.with_shared = true, .absent = true};
            tn_module_each(m, all, use_pattern_for, &use);
        } else {
            tn_module_each_module(m, use_pattern, &use);
        }
        if (!use.used && !tn__pending()) {
            tn__raise(TN_EVALUE, operation,
                      "%s: no %s of the %s matches \"%.*s\" (paths separated by spaces; * matches "
                      "anything but a dot)",
                      what, parameters ? "parameter" : "module", m->kind, (int)(end - at), at);
        }
    }
    return !tn__pending();
}
