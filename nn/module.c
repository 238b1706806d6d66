/* Modules: how one begins, where it is, and how it ends.
 * What is registered is in three growable lists (nn/module.h).
 *
 * Read next: nn/register.c (what is in the lists), nn/walk.c (visiting), nn/call.c (calling).
 */
#include "nn/layer.h"
#include "nn/misuse.h"

#include "core/alive.h"
#include "core/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Where a module is ----------------------------------------------------------------------- */

/* A module is in the program's memory. Its `place` is its address when it first registered
 * something; a vector that grew, or a struct that was copied, is found elsewhere, and the old place
 * must no longer be read. Every build checks, where a module is used and where a walk reaches it,
 * for instance when an optimiser is made. */
TN__ALIVE_LIST(every_list, "module");

/* m was seen elsewhere: code that holds its lists, or those of a module below it, will know. A copy
 * of what is finished has lists that were freed. */
static void note_left(const tn_module *m) {
    if (tn__alive_has(&every_list, m->lists)) {
        __atomic_store_n(&m->lists->left, true, __ATOMIC_RELAXED);
    }
}

/* What was seen elsewhere was a copy: m is the module. */
static void note_back(const tn_module *m) {
    if (m->lists && __atomic_load_n(&m->lists->left, __ATOMIC_RELAXED)) {
        __atomic_store_n(&m->lists->left, false, __ATOMIC_RELAXED);
    }
}

static void raise_moved(const char *operation, const char *kind, const char *name) {
    tn__raise(TN_ESTATE, operation,
              "the %s%s%s has moved since it was registered (a vector that grew, a struct that was "
              "copied or returned?): modules stay where they are, in a struct or each on the heap",
              kind, *name ? " " : "", name);
}

/* "h.0.attn" at the end of text; returns where it begins. */
static char *path_text(const tn_module_lists *lists, char *text, size_t size) {
    char *at = text + size - 1;
    for (*at = 0; lists && lists->up; lists = lists->up) {
        size_t length = strlen(lists->name), dot = *at != 0;
        if (length == 0) { continue; /* transparent */ }
        if ((size_t)(at - text) < length + dot) { break; }
        at -= dot;
        if (dot) { *at = '.'; }
        at -= length;
        memcpy(at, lists->name, length);
    }
    return at;
}

tn_module *tn__module_in_place(tn_module_lists *lists, const char *operation) {
    if (!tn__module_is_valid(lists)) {
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

/* ---- What a module is ------------------------------------------------------------------------ */

/* Whether a module may be at m; false after raising. */
static bool is_module_place(void *m, const char *operation) {
    if (!m) { return tn__fail(TN_EVALUE, operation, "the module is NULL"); }
    if ((uintptr_t)m % _Alignof(tn_module) != 0) {
        return tn__fail(TN_EVALUE, operation,
                        "%p is not a module (pass a struct that begins with tn_module)", m);
    }
    return true;
}

/* Something else is at m: a tensor says so (sys/object.h). */
static void raise_no_module(const void *m, const char *operation) {
    if (((const tn_object *)m)->state == TN__ALIVE) {
        tn__raise(TN_EVALUE, operation,
                  "a tensor %s instead of a module (tn_parameters(&t, 1) makes a module of loose "
                  "tensors)",
                  tn_shape_text(m));
    } else {
        tn__raise(TN_EVALUE, operation,
                  "%p is not a module (pass a struct that begins with tn_module, after its init)",
                  m);
    }
}

tn_module *tn__module_of(void *m, const char *operation) {
    if (!is_module_place(m, operation)) { return NULL; }
    tn_module *module = m;
    if (module->state == TN__MODULE_FINISHED) {
        tn__raise(TN_ESTATE, operation, "the module (%s) is finished", module->kind);
        return NULL;
    }
    if (module->state != TN__MODULE_ALIVE && module->state != TN__MODULE_BROKEN) {
        raise_no_module(m, operation);
        return NULL;
    }
    if (tn__module_moved(module)) {
        note_left(module);
        raise_moved(operation, module->kind, module->name);
        return NULL;
    }
    note_back(module);
    return module;
}

/* False after raising. */
static bool is_module_size(size_t bytes, const char *kind) {
    if (bytes < sizeof(tn_module)) {
        tn__raise(TN_EVALUE, "module_new", "%s: %zu bytes are too few for a tn_module",
                  kind ? kind : "module", bytes);
    }
    return bytes >= sizeof(tn_module);
}

static void begin_module(void *module, const char *kind, tn_module_forward forward,
                         tn_module_forward_values forward_values, const char *operation) {
    tn_module *m = module;
    if (!is_module_place(m, operation)) { return; }
    bool complete = forward || forward_values;
    *m = (tn_module){.state = complete ? TN__MODULE_ALIVE : TN__MODULE_BROKEN,
                     .training = true,
                     .kind = kind ? kind : "module",
                     .forward = forward,
                     .forward_values = forward_values};
    if (!complete) { tn__raise(TN_EVALUE, operation, "%s: the forward is NULL", m->kind); }
}

void tn_module_init(void *m, const char *kind, tn_module_forward forward) {
    begin_module(m, kind, forward, NULL, "module_init");
}

void tn_module_init_values(void *m, const char *kind, tn_module_forward_values forward) {
    begin_module(m, kind, NULL, forward, "module_init_values");
}

bool tn__layer_begin(void *m, size_t bytes, const char *kind, tn_module_forward forward,
                     tn_module_forward_values forward_values) {
    if (!m) { return tn__fail(TN_EVALUE, kind, "the module is NULL"); }
    memset(m, 0, bytes);
    begin_module(m, kind, forward, forward_values, "module_init");
    return true;
}

/* A module on the heap comes after its place in the list of those, so that one that was freed is
 * not read. */
typedef union heap_place {
    tn__alive alive;
    max_align_t aligned;
} heap_place;

TN__ALIVE_LIST(heap_modules, "module");

void *tn__layer_alloc(size_t bytes) {
    if (bytes > PTRDIFF_MAX - sizeof(heap_place)) { /* no object is so large */
        tn__raise(TN_ENOMEM, "module_new", "no memory for %zu bytes", bytes);
        return NULL;
    }
    heap_place *place = tn__calloc_for(1, sizeof(*place) + bytes, "module_new");
    if (!place) { return NULL; }
    tn__alive_begin(&heap_modules, place);
    return place + 1;
}

bool tn__layer_here(const void *m) {
    return tn__alive_has(&heap_modules, (const heap_place *)m - 1);
}

void tn__layer_free(void *m) {
    heap_place *place = (heap_place *)m - 1;
    tn__alive_drop(&heap_modules, place);
    free(place);
}

void *tn__layer_on_heap(void *m) {
    if (m) { ((tn_module *)m)->heap = true; }
    return m;
}

void *tn_module_new(size_t bytes, const char *kind, tn_module_forward forward) {
    tn_module *m = is_module_size(bytes, kind) ? tn__layer_alloc(bytes) : NULL;
    if (m) { tn_module_init(m, kind, forward); }
    return tn__layer_on_heap(m);
}

void *tn_module_new_values(size_t bytes, const char *kind, tn_module_forward_values forward) {
    tn_module *m = is_module_size(bytes, kind) ? tn__layer_alloc(bytes) : NULL;
    if (m) { tn_module_init_values(m, kind, forward); }
    return tn__layer_on_heap(m);
}

bool tn__layer_refuse(void *layer, tn_status status, const char *format, ...) {
    tn_module *m = layer;
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    m->state = TN__MODULE_BROKEN;
    return tn__fail(status, m->kind, "%s", text);
}

bool tn__layer_options(void *layer, bool made, const char *what) {
    tn_module *m = layer;
    if (!made) { m->state = TN__MODULE_BROKEN; }
    return tn__options_made(made, m->kind, what);
}

bool tn__layer_fits(void *m, const char *wrong) {
    return !wrong || tn__layer_refuse(m, TN_EVALUE, "%s", wrong);
}

bool tn__layer_eps(void *m, double eps) {
    return eps >= 0.0 || tn__layer_refuse(m, TN_EVALUE, "eps is %g (it must be at least 0)", eps);
}

bool tn__layer_probability(void *m, const char *what, double p) {
    return (p >= 0.0 && p <= 1.0) ||
           tn__layer_refuse(m, TN_EVALUE, "%s is %g (a probability is in [0, 1])", what, p);
}

bool tn__layer_multiple(void *m, const char *what, int64_t size, const char *of, int64_t divisor) {
    return size % divisor == 0 ||
           tn__layer_refuse(m, TN_EVALUE, "%s is %lld but %s is %lld (%s must be a multiple)", what,
                            (long long)size, of, (long long)divisor, what);
}

/* ---- Lists ----------------------------------------------------------------------------------- */

tn_module_lists *tn__module_lists(tn_module *m, const char *operation) {
    if (!m->lists) {
        m->lists = tn__calloc_for(1, sizeof(*m->lists), operation);
        if (!m->lists) { return NULL; }
        tn__alive_begin(&every_list, m->lists);
        m->lists->refs = 1;
        m->lists->module = m->place = m;
        m->lists->kind = m->kind;
    }
    return m->lists;
}

void tn__module_lists_release(tn_module_lists *lists) {
    if (lists && __atomic_fetch_sub(&lists->refs, 1, __ATOMIC_ACQ_REL) == 1) {
        free(lists->records);
        free(lists->children);
        free(lists->hooks);
        free(lists->precision);
        tn__alive_drop(&every_list, lists);
        free(lists);
    }
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
    if (own) { own->up = NULL; }
    m->parent = NULL;
}

static void release_all(tn_module_lists *lists) {
    while (lists->child_count > 0) {
        tn_module_lists *below = lists->children[--lists->child_count];
        tn_module *child = tn__module_in_place(below, "module_finish");
        below->up = NULL;
        if (child) { /* a child of another parent is unknown and stays */
            child->parent = NULL;
            tn__module_end(child);
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
    if (m->finish) { m->finish(m); }
}

void tn__module_end(tn_module *m) {
    bool heap = m->heap;
    tn_module_finish(m);
    if (heap) { tn__layer_free(m); }
}

void tn_module_free(void *module) {
    if (module && !tn__layer_here(module)) {
        tn__raise(TN_EVALUE, "module_free",
                  "the module was not made by a tn_module_new or tn_..._new (tn_module_finish is "
                  "for modules in a struct), or was freed before");
    } else if (module) {
        tn__module_end(module);
    }
}
