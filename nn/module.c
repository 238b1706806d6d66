/* Modules: building them and taking them apart.
 * What is registered lies in three growable lists (nn/module.h).
 *
 * Registration keeps the address of a field, not the tensor: whoever exchanges the tensor in the
 * field (sharding, precision) is seen by everybody who walks the module. The module owns one
 * reference to whatever is in the field.
 *
 * Read next: nn/walk.c (visiting), nn/call.c (calling).
 */
#include "nn/module.h"

#include "core/fork.h"
#include "core/memory.h"
#include "tensor/recipe.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Modules that have moved ----------------------------------------------------------------- *
 *
 * A module is the program's memory. Its `place` is where it was when something of it was
 * registered: when it is seen elsewhere, those who hold its lists are told, since whatever is in
 * the old place now must not be read. */

/* All lists that there are: what a copied module points to may be gone. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_module_lists *all_lists;

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&all_lock);
}

static void lists_enter(tn_module_lists *lists) {
    pthread_mutex_lock(&all_lock);
    lists->after = all_lists;
    if (all_lists) {
        all_lists->before = lists;
    }
    all_lists = lists;
    pthread_mutex_unlock(&all_lock);
}

static void lists_leave(tn_module_lists *lists) {
    pthread_mutex_lock(&all_lock);
    *(lists->before ? &lists->before->after : &all_lists) = lists->after;
    if (lists->after) {
        lists->after->before = lists->before;
    }
    pthread_mutex_unlock(&all_lock);
}

/* Modules are members of each other's structs as a rule, so what is below has moved as well. */
static void mark_tree(tn_module_lists *lists, bool moved) {
    __atomic_store_n(&lists->moved, moved, __ATOMIC_RELAXED);
    for (int i = 0; i < lists->child_count; i++) {
        mark_tree(lists->children[i], moved);
    }
}

/* Tells those who hold the lists of a module that was seen elsewhere. */
static void mark_moved(const tn_module *m) {
    pthread_mutex_lock(&all_lock);
    for (tn_module_lists *l = all_lists; l; l = l->after) {
        if (l == m->lists && l->module == m->place) {
            mark_tree(l, true);
        }
    }
    pthread_mutex_unlock(&all_lock);
}

static void raise_moved(const char *operation, const char *kind, const char *name) {
    tn__raise(TN_ESTATE, operation,
              "the %s%s%s has moved since it was registered (a vector that grew, a struct that was "
              "copied or returned?): modules stay where they are, in a struct or each on the heap",
              kind, *name ? " " : "", name);
}

/* "h.0.attn" at the end of text; returns where it begins. */
static char *path_text(const tn_module_lists *lists, char *text, size_t room) {
    char *at = text + room - 1;
    for (*at = 0; lists && lists->up; lists = lists->up) {
        size_t length = strlen(lists->name), dot = *at != 0;
        if (length == 0) {
            continue; /* transparent */
        }
        if ((size_t)(at - text) < length + dot) {
            break;
        }
        at -= dot;
        if (dot) {
            *at = '.';
        }
        at -= length;
        memcpy(at, lists->name, length);
    }
    return at;
}

tn_module *tn__module_in_place(tn_module_lists *lists, const char *operation) {
    if (!tn__module_stands(lists)) {
        char text[256];
        raise_moved(operation, lists->kind, path_text(lists, text, sizeof(text)));
        return NULL;
    }
    return lists->module;
}

tn_module *tn__module_root(tn_module *m, const char *operation) {
    tn_module_lists *root = m->lists;
    while (root && root->up) {
        root = root->up;
    }
    return root ? tn__module_in_place(root, operation) : m;
}

/* A module that nothing was registered in may move. */
static bool has_moved(const tn_module *m) {
    return m->place && m->place != m;
}

/* ---- What a module is ------------------------------------------------------------------------ */

/* Whether a module may lie at m; false after raising. */
static bool is_module_place(void *m, const char *operation) {
    if (!m) {
        tn__raise(TN_EVALUE, operation, "the module is NULL");
        return false;
    }
    if ((uintptr_t)m % _Alignof(tn_module) != 0) {
        tn__raise(TN_EVALUE, operation,
                  "%p is not a module (pass a struct that begins with tn_module)", m);
        return false;
    }
    return true;
}

tn_module *tn__module_of(void *m, const char *operation) {
    if (!is_module_place(m, operation)) {
        return NULL;
    }
    tn_module *module = m;
    if (module->state == TN__MODULE_FINISHED) {
        tn__raise(TN_ESTATE, operation, "the module (%s) is finished", module->kind);
        return NULL;
    }
    if (module->state != TN__MODULE_ALIVE && module->state != TN__MODULE_BROKEN) {
        tn__raise(TN_EVALUE, operation,
                  "%p is not a module (pass a struct that begins with tn_module, after its init)",
                  m);
        return NULL;
    }
    if (has_moved(module)) {
        mark_moved(module);
        raise_moved(operation, module->kind, module->name);
        return NULL;
    }
    if (module->lists && __atomic_load_n(&module->lists->moved, __ATOMIC_RELAXED)) {
        /* what was seen elsewhere was a copy: this is the module */
        mark_tree(module->lists, false);
    }
    return module;
}

/* False after raising. */
static bool is_module_size(size_t bytes, const char *kind) {
    if (bytes < sizeof(tn_module)) {
        tn__raise(TN_EVALUE, "module_new", "%s: %zu bytes are less than a tn_module has",
                  kind ? kind : "module", bytes);
    }
    return bytes >= sizeof(tn_module);
}

void tn_module_init(void *module, const char *kind, tn_module_forward forward) {
    tn_module *m = module;
    if (!is_module_place(m, "module_init")) {
        return;
    }
    *m = (tn_module){.state = TN__MODULE_ALIVE,
                     .training = true,
                     .kind = kind ? kind : "module",
                     .forward = forward};
    if (!forward) {
        m->state = TN__MODULE_BROKEN;
        tn__raise(TN_EVALUE, "module_init", "%s: the forward is NULL", m->kind);
    }
}

void tn_module_init_values(void *module, const char *kind, tn_module_forward_values forward) {
    tn_module *m = module;
    if (!is_module_place(m, "module_init_values")) {
        return;
    }
    *m = (tn_module){.state = TN__MODULE_ALIVE,
                     .training = true,
                     .kind = kind ? kind : "module",
                     .forward_values = forward};
    if (!forward) {
        m->state = TN__MODULE_BROKEN;
        tn__raise(TN_EVALUE, "module_init_values", "%s: the forward is NULL", m->kind);
    }
}

bool tn__layer_begin(void *m, size_t bytes, const char *kind, tn_module_forward forward,
                     tn_module_forward_values forward_values) {
    if (!m) {
        tn__raise(TN_EVALUE, kind, "the module is NULL");
        return false;
    }
    memset(m, 0, bytes);
    if (forward) {
        tn_module_init(m, kind, forward);
    } else {
        tn_module_init_values(m, kind, forward_values);
    }
    return true;
}

void *tn__layer_alloc(size_t bytes) {
    void *m = tn__calloc(1, bytes);
    if (!m) {
        tn__raise(TN_ENOMEM, "module_new", "no memory for a module of %zu bytes", bytes);
    }
    return m;
}

void *tn__layer_on_heap(void *m) {
    if (m) {
        ((tn_module *)m)->heap = true;
    }
    return m;
}

void *tn_module_new(size_t bytes, const char *kind, tn_module_forward forward) {
    tn_module *m = is_module_size(bytes, kind) ? tn__layer_alloc(bytes) : NULL;
    if (m) {
        tn_module_init(m, kind, forward);
    }
    return tn__layer_on_heap(m);
}

void *tn_module_new_values(size_t bytes, const char *kind, tn_module_forward_values forward) {
    tn_module *m = is_module_size(bytes, kind) ? tn__layer_alloc(bytes) : NULL;
    if (m) {
        tn_module_init_values(m, kind, forward);
    }
    return tn__layer_on_heap(m);
}

void tn__layer_refuse(void *layer, tn_status status, const char *format, ...) {
    tn_module *m = layer;
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    m->state = TN__MODULE_BROKEN;
    tn__raise(status, m->kind, "%s", text);
}

/* ---- Lists ----------------------------------------------------------------------------------- */

bool tn__module_grow(void ***array, int count, int *room, const char *operation) {
    if (count < *room) {
        return true;
    }
    int more = *room ? *room * 2 : 4;
    void **grown = tn__realloc(*array, (size_t)more * sizeof(*grown));
    if (!grown) {
        tn__raise(TN_ENOMEM, operation, "no memory for the module's lists");
        return false;
    }
    *array = grown;
    *room = more;
    return true;
}

tn_module_lists *tn__module_lists(tn_module *m, const char *operation) {
    if (!m->lists) {
        m->lists = tn__calloc(1, sizeof(*m->lists));
        if (!m->lists) {
            tn__raise(TN_ENOMEM, operation, "no memory for the module's lists");
            return NULL;
        }
        m->lists->refs = 1;
        m->lists->module = m->place = m;
        m->lists->kind = m->kind;
        lists_enter(m->lists);
    }
    return m->lists;
}

void tn__module_lists_release(tn_module_lists *lists) {
    if (lists && __atomic_fetch_sub(&lists->refs, 1, __ATOMIC_ACQ_REL) == 1) {
        lists_leave(lists);
        free(lists->records);
        free(lists->children);
        free(lists->hooks);
        free(lists->precision);
        free(lists);
    }
}

/* ---- Registering ----------------------------------------------------------------------------- */

/* What is registered in a transparent child, one without a name, stands beside what is registered
 * around it: the lists with whose names those of `lists` have to get along. */
static const tn_module_lists *name_space(const tn_module_lists *lists) {
    while (lists->up && !lists->name[0]) {
        lists = lists->up;
    }
    return lists;
}

static bool name_taken(const tn_module_lists *lists, const char *name) {
    for (int i = 0; i < lists->record_count; i++) {
        if (strcmp(lists->records[i]->name, name) == 0) {
            return true;
        }
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
        if (name_taken(space, child->records[i]->name)) {
            return child->records[i]->name;
        }
    }
    for (int i = 0; i < child->child_count; i++) {
        const tn_module_lists *below = child->children[i];
        if (!below->name[0]) {
            const char *name = name_that_clashes(space, below);
            if (name) {
                return name;
            }
        } else if (name_taken(space, below->name)) {
            return below->name;
        }
    }
    return NULL;
}

static bool raise_taken(const tn_module_lists *space, const char *name, const char *operation) {
    tn__raise(TN_EVALUE, operation, "%s has something named \"%s\" already", space->kind, name);
    return false;
}

/* False after raising. */
static bool name_fits(const tn_module *m, const tn_module_lists *lists, const char *name,
                      const char *operation) {
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length >= TN_MODULE_NAME || name[0] == '.' || name[length - 1] == '.') {
        tn__raise(TN_EVALUE, operation,
                  "%s: the name \"%.80s\" must have 1 to %d characters and no dot at its ends",
                  m->kind, name ? name : "(NULL)", TN_MODULE_NAME - 1);
        return false;
    }
    const tn_module_lists *space = name_space(lists);
    return !name_taken(space, name) || raise_taken(space, name, operation);
}

/* The same for a child: what a transparent one has registered must fit. */
static bool child_fits(const tn_module *m, const tn_module_lists *lists, const char *name,
                       const tn_module_lists *child) {
    if (!name || name[0]) {
        return name_fits(m, lists, name, "module_add");
    }
    const tn_module_lists *space = name_space(lists);
    const char *clash = name_that_clashes(space, child);
    return !clash || raise_taken(space, clash, "module_add");
}

static bool field_taken(const tn_module *m, tn_tensor **field) {
    for (int i = 0; m->lists && i < m->lists->record_count; i++) {
        if (m->lists->records[i]->field == field) {
            return true;
        }
    }
    return false;
}

/* Adds a record without a tensor; NULL after raising. */
static tn__record *add_record(tn_module *m, const char *name, tn_tensor **field,
                              const char *operation) {
    tn_module_lists *lists = tn__module_lists(m, operation);
    if (!lists || !name_fits(m, lists, name, operation)) {
        return NULL;
    }
    if (field_taken(m, field)) {
        tn__raise(TN_EVALUE, operation, "%s: the field of \"%s\" is registered already", m->kind,
                  name);
        return NULL;
    }
    if (!tn__module_grow((void ***)&lists->records, lists->record_count, &lists->record_room,
                         operation)) {
        return NULL;
    }
    tn__record *record = tn__calloc(1, sizeof(*record));
    if (!record) {
        tn__raise(TN_ENOMEM, operation, "no memory for \"%s\"", name);
        return NULL;
    }
    record->field = field;
    memcpy(record->name, name, strlen(name) + 1);
    lists->records[lists->record_count++] = record;
    return record;
}

/* What both kinds of registration check first. False after raising, with *field inert and m
 * broken. */
static bool may_register(tn_module *m, const char *name, tn_tensor **field, const char *operation) {
    if (!field) {
        tn__raise(TN_EVALUE, operation, "the field of \"%s\" is NULL", name ? name : "(NULL)");
        return false;
    }
    return tn__module_of(m, operation) && !tn__pending();
}

static tn_status entry_failed(tn_module *m, tn_tensor **field) {
    bool aligned = m && (uintptr_t)m % _Alignof(tn_module) == 0;
    if (aligned && (m->state == TN__MODULE_ALIVE || m->state == TN__MODULE_BROKEN) &&
        !has_moved(m)) {
        m->state = TN__MODULE_BROKEN;
        if (field && !field_taken(m, field)) {
            *field = tn_inert();
        }
    } else if (field) {
        *field = tn_inert();
    }
    return tn_error();
}

tn_status tn_module_param(void *module, const char *name, tn_tensor **field, tn_tensor *tensor) {
    tn_module *m = module;
    if (!may_register(m, name, field, "module_param")) {
        return entry_failed(m, field);
    }
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
    if (tn__deferred(tensor)) {
        tn__recipe_name(tensor, name);
    }
    return TN_OK;
}

static tn_status register_buffer(tn_module *m, const char *name, tn_tensor **field,
                                 tn_tensor *tensor, bool scratch, const char *operation) {
    if (!may_register(m, name, field, operation) || (tensor && !tn__usable(tensor, operation))) {
        return entry_failed(m, field);
    }
    tn__record *record = add_record(m, name, field, operation);
    if (!record) {
        return entry_failed(m, field);
    }
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

/* False after raising: those who walk a tree go down it by recursion. */
static bool depth_fits(const tn_module_lists *lists, const tn_module_lists *c) {
    int depth = c->height + 1;
    for (; lists; lists = lists->up) {
        depth++;
    }
    if (depth > TN__DEEPEST) {
        tn__raise(TN_EVALUE, "module_add", "a tree of modules that is %d deep (at most %d)", depth,
                  TN__DEEPEST);
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

/* Finishes a module that no other has, and frees it if that is its owner's to do. */
static void end_module(tn_module *m) {
    bool heap = m->heap;
    tn_module_finish(m);
    if (heap) {
        free(m);
    }
}

/* Also while an error is pending: whoever finishes m then finishes the child too. False after
 * raising, when it is not m's child. */
static bool add_child(tn_module *m, const char *name, tn_module *c) {
    if (c->parent) {
        tn__raise(TN_ESTATE, "module_add",
                  "%s is \"%s\" of %s already (a module has one parent; share with tn_module_tie)",
                  c->kind, c->name, c->parent->kind);
        return false;
    }
    tn_module_lists *lists = tn__module_lists(m, "module_add");
    tn_module_lists *below = lists ? tn__module_lists(c, "module_add") : NULL;
    if (below && is_around(below, lists)) {
        tn__raise(TN_EVALUE, "module_add", "%s would contain itself", c->kind);
        return false;
    }
    if (!below || !child_fits(m, lists, name, below) || !depth_fits(lists, below) ||
        !tn__module_grow((void ***)&lists->children, lists->child_count, &lists->child_room,
                         "module_add")) {
        end_module(c); /* nobody else would */
        return false;
    }
    join_tree(lists, below, name);
    return true;
}

void *tn_module_own(void *module, const char *name, void *child) {
    tn_module *m = tn__module_of(module, "module_add");
    tn_module *c = tn__module_of(child, "module_add");
    bool added = m && c && add_child(m, name, c);
    if (!m && c && c->heap && !c->parent) {
        end_module(c);
    }
    if (!added || tn__pending()) {
        entry_failed(m, NULL);
    }
    return added ? c : NULL;
}

tn_status tn_module_add(void *m, const char *name, void *child) {
    tn_module_own(m, name, child);
    return tn_error();
}

tn_status tn_module_append(void *module, void *child) {
    const tn_module *m = tn__module_of(module, "module_append");
    char name[16];
    snprintf(name, sizeof(name), "%d", m && m->lists ? m->lists->child_count : 0);
    return tn_module_add(module, name, child);
}

/* ---- Changing what is registered ------------------------------------------------------------- */

static tn__record *find_parameter(tn_module *m, const char *path) {
    tn__record *record = path ? tn__module_find(m, path, NULL) : NULL;
    if (!record || record->buffer) {
        tn__raise(TN_EVALUE, "module_tie", "%s has no parameter \"%s\"", m->kind,
                  path ? path : "(NULL)");
        return NULL;
    }
    return tn__usable_or_deferred(*record->field, "module_tie") ? record : NULL;
}

/* What is stored under the record's name from now on. layout NULL: all of the field's tensor. */
static void record_set_part(tn__record *record, tn_tensor *part, const tn_layout *layout,
                            const tn_parts *parts) {
    tn_tensor *old = record->part;
    record->part = tn_keep(part);
    record->parts = parts;
    record->cut = layout != NULL;
    record->layout = layout ? *layout : (tn_layout){0};
    tn_release(old);
}

tn_status tn_module_tie(void *module, const char *name, const char *with) {
    tn_module *m = module;
    if (!tn__module_of(m, "module_tie") || tn__pending()) {
        return tn_error();
    }
    tn__record *second = find_parameter(m, name), *first = second ? find_parameter(m, with) : NULL;
    if (!first) {
        return tn_error();
    }
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
    tn_tensor *old = *second->field;
    *second->field = tn_keep(*first->field);
    tn_release(old);
    second->tied = true;
    record_set_part(second, first->part, first->cut ? &first->layout : NULL, first->parts);
    return TN_OK;
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
            tn_tensor *old = *record->field;
            *record->field = tn_keep(tensor);
            tn_release(old);
            return TN_OK;
        }
    }
    return tn__raise(TN_EVALUE, "module_set_buffer", "%s has no buffer \"%s\"", m->kind,
                     name ? name : "(NULL)");
}

/* The block that a layout cuts out of the whole; false after raising. */
static bool find_block(const tn_layout *layout, const char *path, tn_dims *block) {
    *block = layout->whole;
    int64_t cuts = (int64_t)layout->pieces * layout->slices;
    bool sane =
        tn_dims_count(layout->whole) >= 0 && layout->dim >= -1 && layout->dim < layout->whole.ndim;
    if (sane && layout->dim >= 0) {
        int64_t *size = &block->size[layout->dim];
        sane = layout->pieces >= 1 && layout->slice >= 0 && layout->slice < layout->slices &&
               *size % cuts == 0;
        *size = sane ? *size / layout->slices : 0;
    }
    if (!sane) {
        tn__raise(TN_EVALUE, "module_set_part",
                  "%s: %s cannot be cut along dimension %d into slice %d of %d of %d pieces", path,
                  tn__dims_text(layout->whole), layout->dim, layout->slice, layout->slices,
                  layout->pieces);
        return false;
    }
    int64_t count = tn_dims_count(*block);
    sane = layout->start >= 0 && layout->length >= 0 && layout->start <= count &&
           layout->length <= count - layout->start;
    if (!sane) {
        tn__raise(TN_EVALUE, "module_set_part",
                  "%s: %lld elements from %lld on are not in a block of %lld", path,
                  (long long)layout->length, (long long)layout->start, (long long)count);
    }
    return sane;
}

/* Whether the field and the part are what the layout says; false after raising. */
static bool part_fits(const tn_tensor *field, const tn_tensor *part, const tn_layout *layout,
                      const char *path) {
    tn_dims block;
    if (!find_block(layout, path, &block)) {
        return false;
    }
    if (!tn_dims_equal(tn_shape(field), block)) {
        tn__raise(TN_ESHAPE, "module_set_part", "the field of %s is %s but the block is %s", path,
                  tn_shape_text(field), tn__dims_text(block));
        return false;
    }
    int64_t stored = tn_count(part ? part : field);
    if (stored != layout->length) {
        tn__raise(TN_ESHAPE, "module_set_part", "the %s of %s has %lld elements, not %lld",
                  part ? "part" : "field", path, (long long)stored, (long long)layout->length);
        return false;
    }
    if (part && tn_dtype_of(part) != tn_dtype_of(field)) {
        tn__raise(TN_EDTYPE, "module_set_part", "%s is %s but the part is %s", path,
                  tn_dtype_name(tn_dtype_of(field)), tn_dtype_name(tn_dtype_of(part)));
        return false;
    }
    return true;
}

/* A new part for all names of one parameter. */
typedef struct exchange {
    const tn_tensor *of; /* the parameter */
    tn_tensor *part;
    const tn_layout *layout;
    const tn_parts *parts;
} exchange;

static bool may_exchange(const tn_entry *entry, void *user) {
    const exchange *e = user;
    const tn_module_lists *lists = entry->owner->lists;
    if (tn__entry_tensor(entry) != e->of) {
        return true;
    }
    if (lists->lending || __atomic_load_n(&lists->stepped, __ATOMIC_RELAXED) > 0) {
        tn__raise(TN_ESTATE, "module_set_part", "%s %s (shard first, then make the optimiser)",
                  entry->path, lists->lending ? "is in use by a call" : "is held by an optimiser");
        return false;
    }
    return true;
}

static bool exchange_part(const tn_entry *entry, void *user) {
    const exchange *e = user;
    if (tn__entry_tensor(entry) == e->of) {
        record_set_part(tn__entry_record(entry), e->part, e->layout, e->parts);
    }
    return true;
}

tn_status tn_module_set_part(void *module, const char *path, tn_tensor *part, tn_layout layout,
                             const tn_parts *parts) {
    tn_module *m = tn__module_of(module, "module_set_part");
    if (!m || tn__pending()) {
        return tn_error();
    }
    const tn__record *record = path ? tn__module_find(m, path, NULL) : NULL;
    if (!record || record->buffer) {
        return tn__raise(TN_EVALUE, "module_set_part", "%s has no parameter \"%s\"", m->kind,
                         path ? path : "(NULL)");
    }
    tn_tensor *field = tn__record_tensor(record);
    if (!tn__readable(field, "module_set_part") ||
        (part && !tn__readable(part, "module_set_part")) ||
        !part_fits(field, part, &layout, path)) {
        return tn_error();
    }
    exchange e = {field, part, &layout, parts};
    tn_walk all = {.with_shared = true};
    tn_module *root = tn__module_root(m, "module_set_part");
    if (root) {
        tn_module_each(root, all, may_exchange, &e);
    }
    if (part && !tn__pending()) {
        tn_set_requires_grad(part, tn_requires_grad(field));
    }
    if (!tn__pending()) {
        tn_module_each(root, all, exchange_part, &e);
    }
    return tn_error();
}

/* ---- The end --------------------------------------------------------------------------------- */

static void leave_parent(tn_module *m) {
    tn_module_lists *own = m->lists, *lists = own ? own->up : NULL;
    for (int i = 0; lists && i < lists->child_count; i++) {
        if (lists->children[i] == own) {
            lists->child_count--;
            memmove(lists->children + i, lists->children + i + 1,
                    (size_t)(lists->child_count - i) * sizeof(*lists->children));
            break;
        }
    }
    if (own) {
        own->up = NULL;
    }
    m->parent = NULL;
}

static void release_all(tn_module_lists *lists) {
    while (lists->child_count > 0) {
        tn_module_lists *below = lists->children[--lists->child_count];
        tn_module *child = tn__module_in_place(below, "module_finish");
        below->up = NULL;
        if (child) { /* what another has is not known any more, and stays */
            child->parent = NULL;
            end_module(child);
        }
    }
    lists->strategy = NULL;
    tn__module_drop_hooks(lists);
    while (lists->record_count > 0) {
        tn__record *record = lists->records[--lists->record_count];
        tn_tensor *tensor = *record->field;
        *record->field = NULL;
        tn_release(tensor);
        tn_release(record->lent);
        tn_release(record->part);
        free(record);
    }
    lists->module = NULL;
    tn__module_lists_release(lists);
}

void tn_module_finish(void *module) {
    tn_module *m = module;
    bool aligned = (uintptr_t)m % _Alignof(tn_module) == 0;
    if (!m || (aligned && (m->state == 0 || m->state == TN__MODULE_FINISHED)) ||
        !tn__module_of(m, "module_finish")) {
        return;
    }
    m->state = TN__MODULE_FINISHED;
    leave_parent(m);
    if (m->lists) {
        release_all(m->lists);
        m->lists = NULL;
    }
    if (m->finish) {
        m->finish(m);
    }
}

void tn_module_free(void *module) {
    tn_module *m = module;
    bool aligned = (uintptr_t)m % _Alignof(tn_module) == 0;
    bool finished = m && aligned && m->state == TN__MODULE_FINISHED;
    if (!m || (!finished && !tn__module_of(m, "module_free"))) {
        return;
    }
    if (!m->heap) {
        tn__raise(TN_EVALUE, "module_free",
                  "%s was not made by a tn_module_new or tn_..._new (tn_module_finish is for what "
                  "lies in a struct)",
                  m->kind);
        return;
    }
    end_module(m);
}
