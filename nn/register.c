/* What a module is made of: parameters, buffers and children, by name.
 *
 * Registration keeps the address of a field, not the tensor: when sharding or precision replaces
 * the tensor in the field, every walk of the module sees the new one. The module owns one reference
 * to whatever is in the field.
 */
#include "core/memory.h"
#include "nn/misuse.h"
#include "tensor/recipe.h"
#include "text/utf8.h"

#include <stdio.h>
#include <string.h>

/* ---- Registering ----------------------------------------------------------------------------- */

/* What a transparent child (one without a name) registers shares the names of the module around it:
 * the lists whose names must not clash with those of `lists`. */
static const tn_module_lists *name_space(const tn_module_lists *lists) {
    while (lists->up && !lists->name[0]) {
        lists = lists->up;
    }
    return lists;
}

static bool name_taken(const tn_module_lists *lists, const char *name) {
    for (int i = 0; i < lists->record_count; i++) {
        if (strcmp(lists->records[i]->name, name) == 0) { return true; }
    }
    for (int i = 0; i < lists->child_count; i++) {
        const tn_module_lists *child = lists->children[i];
        if (child->name[0] ? strcmp(child->name, name) == 0 : name_taken(child, name)) {
            return true;
        }
    }
    return false;
}

/* The first name in a transparent child that is taken in `space`; NULL: none. */
static const char *name_that_clashes(const tn_module_lists *space, const tn_module_lists *child) {
    for (int i = 0; i < child->record_count; i++) {
        if (name_taken(space, child->records[i]->name)) { return child->records[i]->name; }
    }
    for (int i = 0; i < child->child_count; i++) {
        const tn_module_lists *below = child->children[i];
        if (!below->name[0]) {
            const char *name = name_that_clashes(space, below);
            if (name) { return name; }
        } else if (name_taken(space, below->name)) {
            return below->name;
        }
    }
    return NULL;
}

static bool raise_taken(const tn_module_lists *space, const char *name, const char *operation) {
    return tn__fail(TN_EVALUE, operation, "%s has something named \"%s\" already", space->kind,
                    name);
}

/* False after raising. */
static bool name_fits(const tn_module *m, const tn_module_lists *lists, const char *name,
                      const char *operation) {
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length >= TN_MODULE_NAME || name[0] == '.' || name[length - 1] == '.') {
        return tn__fail(
            TN_EVALUE, operation,
            "%s: the name \"%.80s\" must have 1 to %d characters and no dot at its ends", m->kind,
            name ? name : "(NULL)", TN_MODULE_NAME - 1);
    }
    if (!tn__is_utf8(name)) { /* files and traces could not have it */
        return tn__fail(TN_EVALUE, operation, "%s: the name \"%s\" is not UTF-8", m->kind, name);
    }
    const tn_module_lists *space = name_space(lists);
    return !name_taken(space, name) || raise_taken(space, name, operation);
}

/* The same for a child: what a transparent one has registered must not clash. */
static bool child_fits(const tn_module *m, const tn_module_lists *lists, const char *name,
                       const tn_module_lists *child) {
    if (!name || name[0]) { return name_fits(m, lists, name, "module_add"); }
    const tn_module_lists *space = name_space(lists);
    const char *clash = name_that_clashes(space, child);
    return !clash || raise_taken(space, clash, "module_add");
}

static bool field_taken(const tn_module *m, tn_tensor **field) {
    for (int i = 0; m->lists && i < m->lists->record_count; i++) {
        if (m->lists->records[i]->field == field) { return true; }
    }
    return false;
}

/* Adds a record without a tensor; NULL after raising. */
static tn__record *add_record(tn_module *m, const char *name, tn_tensor **field,
                              const char *operation) {
    tn_module_lists *lists = tn__module_lists(m, operation);
    if (!lists || !name_fits(m, lists, name, operation)) { return NULL; }
    if (field_taken(m, field)) {
        tn__raise(TN_EVALUE, operation, "%s: the field of \"%s\" is registered already", m->kind,
                  name);
        return NULL;
    }
    if (!tn__grow(&lists->records, lists->record_count + 1, &lists->record_capacity,
                  sizeof(*lists->records), operation)) {
        return NULL;
    }
    tn__record *record = tn__calloc_for(1, sizeof(*record), operation);
    if (!record) { return NULL; }
    record->field = field;
    memcpy(record->name, name, strlen(name) + 1);
    lists->records[lists->record_count++] = record;
    return record;
}

/* What both kinds of registration check first. False after raising, with *field inert and m
 * broken. */
static bool may_register(tn_module *m, const char *name, tn_tensor **field, const char *operation) {
    if (!field) {
        return tn__fail(TN_EVALUE, operation, "the field of \"%s\" is NULL",
                        name ? name : "(NULL)");
    }
    return tn__module_of(m, operation) && !tn__pending();
}

static tn_status entry_failed(tn_module *m, tn_tensor **field) {
    bool aligned = m && (uintptr_t)m % _Alignof(tn_module) == 0;
    if (aligned && (m->state == TN__MODULE_ALIVE || m->state == TN__MODULE_BROKEN) &&
        !tn__module_moved(m)) {
        m->state = TN__MODULE_BROKEN;
        if (field && !field_taken(m, field)) { *field = tn_inert(); }
    } else if (field) {
        *field = tn_inert();
    }
    return tn_error();
}

tn_status tn_module_param(void *module, const char *name, tn_tensor **field, tn_tensor *tensor) {
    tn_module *m = module;
    if (!may_register(m, name, field, "module_param")) { return entry_failed(m, field); }
    if (!tensor) {
        *field = NULL;
        return TN_OK;
    }
    if (!tn__usable_or_deferred(tensor, "module_param") ||
        tn_is_inert(tn_set_requires_grad(tensor, true)) || tn__pending() ||
        !add_record(m, name, field, "module_param")) {
        return entry_failed(m, field);
    }
    *field = tn_keep(tensor);
    if (tn__deferred(tensor)) { tn__recipe_name(tensor, name); }
    return TN_OK;
}

static tn_status register_buffer(tn_module *m, const char *name, tn_tensor **field,
                                 tn_tensor *tensor, bool scratch, const char *operation) {
    if (!may_register(m, name, field, operation) || (tensor && !tn__usable(tensor, operation))) {
        return entry_failed(m, field);
    }
    tn__record *record = add_record(m, name, field, operation);
    if (!record) { return entry_failed(m, field); }
    record->buffer = true;
    record->scratch = scratch;
    *field = tn_keep(tensor);
    return TN_OK;
}

tn_status tn_module_buffer(void *m, const char *name, tn_tensor **field, tn_tensor *tensor) {
    return register_buffer(m, name, field, tensor, false, "module_buffer");
}

tn_status tn_module_scratch(void *m, const char *name, tn_tensor **field, tn_tensor *tensor) {
    return register_buffer(m, name, field, tensor, true, "module_scratch");
}

static bool is_around(const tn_module_lists *c, const tn_module_lists *lists) {
    while (lists && lists != c) {
        lists = lists->up;
    }
    return lists != NULL;
}

/* False after raising: walks of a tree recurse. */
static bool depth_fits(const tn_module_lists *lists, const tn_module_lists *c) {
    int depth = c->height + 1;
    for (; lists; lists = lists->up) {
        depth++;
    }
    if (depth > TN__DEEPEST) {
        tn__raise(TN_EVALUE, "module_add", "the tree of modules would be %d deep (at most %d)",
                  depth, TN__DEEPEST);
    }
    return depth <= TN__DEEPEST;
}

static void join_tree(tn_module_lists *lists, tn_module_lists *c, const char *name) {
    memcpy(c->name, name, strlen(name) + 1);
    memcpy(c->module->name, name, strlen(name) + 1);
    c->up = lists;
    c->module->parent = lists->module;
    lists->children[lists->child_count++] = c;
    int height = c->height + 1;
    for (tn_module_lists *up = lists; up && up->height < height; up = up->up) {
        up->height = height++;
    }
}

/* Even while an error is pending: finishing m then finishes the child too. False after raising: it
 * is not m's child. */
static bool add_child(tn_module *m, const char *name, tn_module *c) {
    if (c->parent) {
        return tn__fail(
            TN_ESTATE, "module_add",
            "%s is \"%s\" of %s already (a module has one parent; share with tn_module_tie)",
            c->kind, c->name, c->parent->kind);
    }
    tn_module_lists *lists = tn__module_lists(m, "module_add");
    tn_module_lists *below = lists ? tn__module_lists(c, "module_add") : NULL;
    if (below && is_around(below, lists)) {
        return tn__fail(TN_EVALUE, "module_add", "%s would contain itself", c->kind);
    }
    if (!below || !child_fits(m, lists, name, below) || !depth_fits(lists, below) ||
        !tn__grow(&lists->children, lists->child_count + 1, &lists->child_capacity,
                  sizeof(*lists->children), "module_add")) {
        tn__module_end(c); /* no one else would */
        return false;
    }
    join_tree(lists, below, name);
    return true;
}

void *tn_module_own(void *module, const char *name, void *child) {
    tn_module *m = tn__module_of(module, "module_add");
    tn_module *c = tn__module_of(child, "module_add");
    bool added = m && c && add_child(m, name, c);
    if (!m && c && c->heap && !c->parent) { tn__module_end(c); }
    if (!added || tn__pending()) { entry_failed(m, NULL); }
    return added ? c : NULL;
}

tn_status tn_module_add(void *m, const char *name, void *child) {
    tn_module_own(m, name, child);
    return tn_error();
}

tn_status tn_module_append(void *module, void *child) {
    const tn_module *m = tn__module_of(module, "module_append");
    const tn_module_lists *lists = m ? m->lists : NULL;
    int place = lists ? lists->child_count : 0;
    char name[16];
    snprintf(name, sizeof(name), "%d", place);
    while (lists && name_taken(name_space(lists), name)) { /* an earlier child was removed */
        snprintf(name, sizeof(name), "%d", ++place);
    }
    return tn_module_add(module, name, child);
}

/* ---- Changing what is registered ------------------------------------------------------------- */

static tn__record *find_parameter(tn_module *m, const char *path) {
    tn__record *record = tn__module_find_parameter(m, path, "module_tie");
    return record && tn__usable_or_deferred(*record->field, "module_tie") ? record : NULL;
}

tn_status tn_module_tie(void *module, const char *name, const char *with) {
    tn_module *m = module;
    if (!tn__module_of(m, "module_tie") || tn__pending()) { return tn_error(); }
    tn__record *second = find_parameter(m, name), *first = second ? find_parameter(m, with) : NULL;
    if (!first) { return tn_error(); }
    const tn_tensor *a = *second->field, *b = *first->field;
    if (first == second) {
        return tn__raise(TN_EVALUE, "module_tie", "\"%s\" cannot be tied to itself", name);
    }
    if (a->dtype != b->dtype) {
        return tn__raise(TN_EDTYPE, "module_tie", "%s is %s but %s is %s", name,
                         tn_dtype_name(a->dtype), with, tn_dtype_name(b->dtype));
    }
    if (!tn_dims_equal(a->dims, b->dims)) {
        return tn__raise(TN_ESHAPE, "module_tie", "%s is %s but %s is %s", name, tn_shape_text(a),
                         with, tn_shape_text(b));
    }
    tn__field_set(second->field, *first->field);
    second->tied = true;
    tn__record_set_part(second, first->part, first->cut ? &first->layout : NULL, first->parts);
    return TN_OK;
}

static void exchange_below(const tn_module_lists *lists, tn_tensor *old, tn_tensor *new,
                           const char *operation) {
    for (int i = 0; i < lists->record_count; i++) {
        tn__record *record = lists->records[i];
        if (!record->buffer && *record->field == old) { tn__field_set(record->field, new); }
    }
    for (int i = 0; i < lists->child_count; i++) {
        if (tn__module_in_place(lists->children[i], operation)) {
            exchange_below(lists->children[i], old, new, operation);
        }
    }
}

bool tn__module_exchange(tn_module *m, tn_tensor *old, tn_tensor *new, const char *operation) {
    const tn_module *root = tn__module_root(m, operation);
    if (root) {
        tn_keep(old); /* fields are still compared with it after the last one has released it */
        exchange_below(root->lists, old, new, operation);
        tn_release(old);
    }
    return !tn__pending();
}

tn_status tn_module_set_buffer(void *module, const char *name, tn_tensor *tensor) {
    tn_module *m = module;
    if (!tn__module_of(m, "module_set_buffer") || tn__pending() ||
        (tensor && !tn__usable(tensor, "module_set_buffer"))) {
        return tn_error();
    }
    for (int i = 0; name && m->lists && i < m->lists->record_count; i++) {
        tn__record *record = m->lists->records[i];
        if (record->buffer && strcmp(record->name, name) == 0) {
            tn__field_set(record->field, tensor);
            return TN_OK;
        }
    }
    return tn__raise(TN_EVALUE, "module_set_buffer", "%s has no buffer \"%s\"", m->kind,
                     name ? name : "(NULL)");
}
