/* Visiting what a module and the modules below it have registered.
 *
 * Paths are built on the way down: the names from the root to the module, then the name of the
 * tensor. Names may contain dots, so a search for a path tries every child whose name the path
 * begins with. A transparent child, one whose name is "", adds nothing: its path is that of the
 * module around it.
 *
 * A tied parameter is visited once in any walk: under the name it was tied to if that is below the
 * walk's root, else under the first of its names.
 */
#include "nn/layout.h"
#include "nn/misuse.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- Paths ----------------------------------------------------------------------------------- */

typedef struct path {
    char *text;
    size_t length;
    int64_t capacity;
} path;

/* Appends a name, after a dot unless it is the first. False after TN_ENOMEM. */
static bool path_push(path *p, const char *name) {
    size_t n = strlen(name), dot = p->length > 0 && n > 0;
    int64_t wanted = (int64_t)(p->length + dot + n) + 1;
    if (!tn__grow(&p->text, wanted, &p->capacity, 1, "module_each")) { return false; }
    if (dot) { p->text[p->length++] = '.'; }
    memcpy(p->text + p->length, name, n + 1);
    p->length += n;
    return true;
}

static void path_cut(path *p, size_t length) {
    p->length = length;
    p->text[length] = 0;
}

/* The rest of `text` after `name` and a dot, or NULL. A transparent module is not part of it. */
static const char *path_below(const char *text, const char *name) {
    size_t n = strlen(name);
    if (n == 0) { return text; }
    return strncmp(text, name, n) == 0 && text[n] == '.' ? text + n + 1 : NULL;
}

tn__record *tn__module_find(tn_module *m, const char *text) {
    const tn_module_lists *lists = m->lists;
    for (int i = 0; lists && i < lists->record_count; i++) {
        if (strcmp(lists->records[i]->name, text) == 0) { return lists->records[i]; }
    }
    for (int i = 0; lists && i < lists->child_count; i++) {
        const char *rest = path_below(text, lists->children[i]->name);
        tn_module *child = rest ? tn__module_in_place(lists->children[i], "module_find") : NULL;
        tn__record *found = child ? tn__module_find(child, rest) : NULL;
        if (found) { return found; }
    }
    return NULL;
}

tn__record *tn__module_find_parameter(tn_module *m, const char *text, const char *operation) {
    tn__record *record = text ? tn__module_find(m, text) : NULL;
    if (!record || record->buffer || !*record->field) {
        tn__raise(TN_EVALUE, operation, "%s has no parameter \"%s\"", m->kind,
                  text ? text : "(NULL)");
        return NULL;
    }
    return record;
}

static tn_module *find_child(tn_module *m, const char *text) {
    if (!text[0]) { return m; }
    for (int i = 0; m->lists && i < m->lists->child_count; i++) {
        tn_module_lists *below = m->lists->children[i];
        const char *rest = strcmp(text, below->name) == 0 ? "" : path_below(text, below->name);
        tn_module *child = rest ? tn__module_in_place(below, "module_child") : NULL;
        tn_module *found = child ? find_child(child, rest) : NULL;
        if (found) { return found; }
    }
    return NULL;
}

/* ---- Walking --------------------------------------------------------------------------------- */

/* Calls `module` with m and the modules below it, or `entry` with what they have registered. */
typedef struct walker {
    const char *operation;
    tn_module_visitor module;
    tn_entry_visitor entry;
    void *user;
    tn_walk walk;
    tn_module *root;
    path path;
} walker;

/* The first record below m that holds `tensor` as a parameter; with `untied`, the first that is not
 * tied. */
static const tn__record *first_holder(const tn_module_lists *lists, const tn_tensor *tensor,
                                      bool untied) {
    for (int i = 0; i < lists->record_count; i++) {
        const tn__record *record = lists->records[i];
        if (!record->buffer && tn__record_tensor(record) == tensor && !(untied && record->tied)) {
            return record;
        }
    }
    for (int i = 0; i < lists->child_count; i++) {
        const tn_module_lists *below = lists->children[i];
        const tn__record *found =
            tn__module_is_valid(below) ? first_holder(below, tensor, untied) : NULL;
        if (found) { return found; }
    }
    return NULL;
}

/* Whether the record is not the name under which the walk visits its tensor. */
static bool second_name(const walker *w, const tn__record *record) {
    if (!record->tied) { return false; }
    const tn_tensor *tensor = tn__record_tensor(record);
    const tn__record *first = first_holder(w->root->lists, tensor, true);
    return (first ? first : first_holder(w->root->lists, tensor, false)) != record;
}

static bool record_wanted(const walker *w, const tn__record *record, bool shared) {
    if (!*record->field || (shared && !w->walk.with_shared) ||
        (record->absent && !w->walk.absent)) {
        return false;
    }
    return record->buffer ? w->walk.buffers && (!record->scratch || w->walk.scratch)
                          : !w->walk.no_parameters;
}

tn__record *tn__entry_record(const tn_entry *entry) {
    const tn_module_lists *lists = entry->owner->lists;
    int i = 0;
    while (lists->records[i]->field != entry->field) {
        i++;
    }
    return lists->records[i];
}

/* False when the visitor stops. */
static bool visit_record(walker *w, tn_module *m, tn__record *record) {
    bool shared = second_name(w, record);
    if (!record_wanted(w, record, shared)) { return true; }
    size_t length = w->path.length;
    if (!path_push(&w->path, record->name)) { return false; }
    tn_entry entry = {
        .path = w->path.text,
        .owner = m,
        .field = record->field,
        .buffer = record->buffer,
        .scratch = record->scratch,
        .shared = shared,
        .stored = tn__record_stored(record),
        .layout = record->cut ? record->layout : tn__layout_whole(tn_shape(*record->field)),
        .parts = record->parts,
        .absent = record->absent,
    };
    bool more = w->entry(&entry, w->user);
    path_cut(&w->path, length);
    return more;
}

static bool walk_below(walker *w, tn_module *m) {
    if (w->module && !w->module(m, w->path.text, w->user)) { return false; }
    for (int i = 0; w->entry && m->lists && i < m->lists->record_count; i++) {
        if (!visit_record(w, m, m->lists->records[i])) { return false; }
    }
    for (int i = 0; m->lists && i < m->lists->child_count; i++) {
        tn_module *child = tn__module_in_place(m->lists->children[i], w->operation);
        size_t length = w->path.length;
        if (!child || !path_push(&w->path, child->name) || !walk_below(w, child)) { return false; }
        path_cut(&w->path, length);
    }
    return true;
}

static void walk_all(walker *w, void *module) {
    w->root = tn__module_of(module, w->operation);
    if (!w->root) { return; }
    if (!w->module && !w->entry) {
        tn__raise(TN_EVALUE, w->operation, "the visitor is NULL");
        return;
    }
    if (path_push(&w->path, "")) { walk_below(w, w->root); }
    free(w->path.text);
}

void tn_module_each(void *m, tn_walk walk, tn_entry_visitor f, void *user) {
    walker w = {.operation = "module_each", .entry = f, .user = user, .walk = walk};
    walk_all(&w, m);
}

void tn_module_each_module(void *m, tn_module_visitor f, void *user) {
    walker w = {.operation = "module_each_module", .module = f, .user = user};
    walk_all(&w, m);
}

/* ---- By name --------------------------------------------------------------------------------- */

tn_tensor *tn_module_get(void *module, const char *name) {
    tn_module *m = tn__module_of(module, "module_get");
    if (!m) { return tn_inert(); }
    const tn__record *record = name ? tn__module_find(m, name) : NULL;
    if (!record || !*record->field) {
        tn__raise(TN_EVALUE, "module_get", "%s has no %s \"%s\"", m->kind,
                  record ? "tensor in" : "parameter or buffer", name ? name : "(NULL)");
        return tn_inert();
    }
    return *record->field;
}

tn_module *tn_module_child(void *module, const char *name) {
    tn_module *m = tn__module_of(module, "module_child");
    tn_module *child = m && name ? find_child(m, name) : NULL;
    if (m && !child) {
        tn__raise(TN_EVALUE, "module_child", "%s has no child \"%s\"", m->kind,
                  name ? name : "(NULL)");
    }
    return child;
}

/* ---- Done to all of them ------------------------------------------------------------------- */

static bool count_entry(const tn_entry *entry, void *user) {
    *(int64_t *)user += tn_dims_count(entry->layout.whole);
    return true;
}

int64_t tn_module_count(void *m) {
    int64_t count = 0;
    tn_module_each(m, (tn_walk){.absent = true}, count_entry, &count);
    return count;
}

static bool train_module(tn_module *m, const char *name, void *user) {
    m->training = *(const bool *)user;
    return true;
}

void tn_module_train(void *m, bool training) {
    tn_module_each_module(m, train_module, &training);
}

static bool note_mode(tn_module *m, const char *name, void *user) {
    tn__modes *modes = user;
    if (!tn__grow(&modes->training, modes->count + 1, &modes->capacity, sizeof(*modes->training),
                  modes->operation)) {
        return false;
    }
    modes->training[modes->count++] = m->training;
    return true;
}

static bool restore_mode(tn_module *m, const char *name, void *user) {
    tn__modes *modes = user;
    m->training = modes->restored < modes->count ? modes->training[modes->restored++] : m->training;
    return true;
}

bool tn__modes_set(void *m, bool training, const char *operation, tn__modes *modes) {
    *modes = (tn__modes){.operation = operation};
    tn_module_each_module(m, note_mode, modes);
    if (!tn__pending()) { tn_module_train(m, training); }
    return !tn__pending();
}

void tn__modes_restore(void *m, tn__modes *modes) {
    tn_module_each_module(m, restore_mode, modes);
    free(modes->training);
    *modes = (tn__modes){0};
}

static bool require_entry(const tn_entry *entry, void *user) {
    bool on = *(const bool *)user;
    return !tn_is_inert(tn_set_requires_grad(*entry->field, on)) &&
           !tn_is_inert(tn_set_requires_grad(entry->stored, on));
}

void tn_module_requires_grad(void *m, bool requires_grad) {
    tn_module_each(m, (tn_walk){.absent = true}, require_entry, &requires_grad);
}

static bool zero_entry(const tn_entry *entry, void *user) {
    tn_zero_grad(*entry->field);
    tn_zero_grad(entry->stored);
    return true;
}

void tn_module_zero_grad(void *m) {
    tn_module_each(m, (tn_walk){0}, zero_entry, NULL);
}

void tn_module_set_recompute(void *module, bool on) {
    tn_module *m = tn__module_of(module, "module_set_recompute");
    if (m) { m->recompute = on; }
}

/* ---- Printing -------------------------------------------------------------------------------- */

static void print_module(tn_module *m, FILE *file, int depth) {
    const tn_precision *own = m->lists ? m->lists->precision : NULL;
    fprintf(file, "%*s%s%s%s: %lld parameters%s%s%s\n", 2 * depth, "", m->name,
            m->name[0] ? " " : "", m->kind, (long long)tn_module_count(m),
            m->recompute ? ", recomputed" : "", own ? ", computed in " : "",
            own ? tn_dtype_name(own->compute) : "");
    for (int i = 0; m->lists && i < m->lists->record_count; i++) {
        const tn__record *record = m->lists->records[i];
        if (*record->field) {
            bool wanted = record->buffer || tn_requires_grad(tn__record_stored(record));
            fprintf(file, "%*s%s %s %s%s%s%s%s\n", 2 * depth + 2, "", record->name,
                    tn_shape_text(*record->field), tn_dtype_name(tn_dtype_of(*record->field)),
                    record->buffer ? ", buffer" : "", record->tied ? ", tied" : "",
                    wanted ? "" : ", frozen", record->absent ? ", not on this rank" : "");
        }
    }
    for (int i = 0; m->lists && i < m->lists->child_count; i++) {
        tn_module *child = tn__module_in_place(m->lists->children[i], "module_print");
        if (child) { print_module(child, file, depth + 1); }
    }
}

void tn_module_print(void *module, FILE *file) {
    tn_module *m = tn__module_of(module, "module_print");
    if (m && file) { print_module(m, file, 0); }
}

/* ---- The graph, with names ------------------------------------------------------------------- */

typedef struct leaf_search {
    void *module;
    const tn_tensor *leaf;
    char path[256];
} leaf_search;

static bool match_leaf(const tn_entry *entry, void *user) {
    leaf_search *search = user;
    if (*entry->field != search->leaf) { return true; }
    snprintf(search->path, sizeof search->path, "%s", entry->path);
    return false;
}

static const char *leaf_path(const tn_tensor *leaf, void *user) {
    leaf_search *search = user;
    search->leaf = leaf;
    search->path[0] = 0;
    tn_module_each(search->module, (tn_walk){.buffers = true}, match_leaf, search);
    return search->path[0] ? search->path : NULL;
}

tn_status tn_module_graph_dot(void *module, const tn_tensor *t, const char *to) {
    leaf_search search = {.module = tn__module_of(module, "module_graph_dot")};
    return search.module ? tn_graph_dot(t, to, leaf_path, &search) : tn_error();
}
