/* Weights of a Hugging Face folder into a module (hf.h).
 *
 * A plan is made first: names, shapes and dtypes are compared, and this rank's elements of each
 * tensor are read. Tensors with elements get their new ones when the plan is applied; those without
 * are read in place, so that a model is in memory only once, and beside it a matrix that must be
 * converted or transposed.
 */
#include "models/weights/hf.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/plain_text.h"
#include "nn/layout.h"
#include "nn/module.h"
#include "ops/deferred.h"
#include "tensor/tensor.h"
#include "tern/sys/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 512, NAMES_SHOWN = 8 };

static const char head_path[] = "lm_head.weight", head_start[] = "lm_head.";

/* ---- Names ----------------------------------------------------------------------------------- */

/* The name that the parameter at `path` has in the files, to name[NAME_SIZE]. */
static const char *name_of(const tn__hf_plan *p, const char *path, char *name) {
    bool bare = !p->prefixed || strncmp(path, head_start, sizeof(head_start) - 1) == 0;
    snprintf(name, NAME_SIZE, "%s%s", bare ? "" : p->form->prefix, path);
    return name;
}

/* The other way round; NULL: no parameter has this name. */
static const char *path_of(const tn__hf_plan *p, const char *name) {
    size_t prefix = strlen(p->form->prefix);
    if (!p->prefixed || strncmp(name, head_start, sizeof(head_start) - 1) == 0) { return name; }
    return strncmp(name, p->form->prefix, prefix) == 0 ? name + prefix : NULL;
}

static bool is_transposed(const tn__hf_plan *p, const char *path) {
    return !p->weights.plain && p->form->transposed && p->form->transposed(path);
}

/* Names for a message: the first of them, and how many. */
typedef struct name_list {
    char text[NAMES_SHOWN * 68];
    size_t length;
    int count;
} name_list;

static void list_name(name_list *l, const char *name) {
    if (l->count++ < NAMES_SHOWN) {
        l->length += (size_t)snprintf(l->text + l->length, sizeof(l->text) - l->length, "%s\"%s\"",
                                      l->length ? ", " : "", tn__show(name).text);
    }
}

static const char *list_rest(const name_list *l, char *text, size_t size) {
    *text = 0;
    if (l->count > NAMES_SHOWN) { snprintf(text, size, " and %d more", l->count - NAMES_SHOWN); }
    return text;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* Whether two tensors of the files have the same elements. */
static bool same_elements(const tn_safetensors *f, const char *a, const tn_safetensors *g,
                          const char *b) {
    char x[4096], y[4096];
    size_t bytes = tn__safetensors_tensor_bytes(f, a);
    bool same = strcmp(tn_safetensors_dtype(f, a), tn_safetensors_dtype(g, b)) == 0 &&
                tn_dims_equal(tn_safetensors_shape(f, a), tn_safetensors_shape(g, b));
    for (size_t at = 0; same && at < bytes; at += sizeof(x)) {
        size_t n = bytes - at < sizeof(x) ? bytes - at : sizeof(x);
        same = tn__safetensors_read(f, a, at, x, n) && tn__safetensors_read(g, b, at, y, n) &&
               memcmp(x, y, n) == 0;
    }
    return same;
}

/* Whether it is one of the model's parameters that other ranks have (stages of a pipeline). */
static bool is_absent(const tn__hf_plan *p, const char *path) {
    const tn__record *record = tn__module_find(p->model, path);
    return record && record->absent;
}

/* Checks a head in the files if the model's head is the token embedding. False after raising. */
static bool check_tied_head(const tn__hf_plan *p) {
    char name[NAME_SIZE];
    const tn__hf_weights *w = &p->weights;
    const tn_safetensors *head = tn__hf_weights_find(w, head_path);
    const tn_safetensors *tokens = tn__hf_weights_find(w, name_of(p, p->form->tokens, name));
    if (!head || !tokens || tn__state_has(&p->state, head_path) || is_absent(p, head_path)) {
        return true;
    }
    bool same = same_elements(head, head_path, tokens, name);
    if (!same && !tn__pending()) {
        tn__raise(TN_EMISMATCH, w->operation,
                  "%s: \"%s\" differs from \"%s\", but in the model they are one tensor", w->path,
                  head_path, name);
    }
    return same;
}

/* Whether the files' tensor is one of the model's, or one that no model needs. */
static bool is_known(const tn__hf_plan *p, const char *name) {
    if (strcmp(name, head_path) == 0) { return true; }
    const char *path = path_of(p, name);
    return (path && (tn__state_has(&p->state, path) || is_absent(p, path))) ||
           (!p->weights.plain && p->form->ignored && p->form->ignored(name));
}

static bool compare_all_names(const tn__hf_plan *p) {
    const tn__hf_weights *w = &p->weights;
    name_list missing = {.count = 0}, surplus = {.count = 0};
    char name[NAME_SIZE], rest[32], other[32];
    for (int i = 0; i < p->state.count; i++) {
        if (!tn__hf_weights_find(w, name_of(p, p->state.items[i].name, name))) {
            list_name(&missing, name);
        }
    }
    for (int i = 0; i < w->count; i++) {
        const char *found = w->tensors[i].name;
        if (!is_known(p, found)) { list_name(&surplus, found); }
    }
    if (missing.count || surplus.count) {
        return tn__fail(TN_EMISMATCH, w->operation, "%s %s%s%s%s%s%s%s", w->path,
                        missing.count ? "has no " : "has ", missing.text,
                        list_rest(&missing, rest, sizeof(rest)),
                        missing.count && surplus.count ? ", and has " : "", surplus.text,
                        list_rest(&surplus, other, sizeof(other)),
                        surplus.count ? ", which the model does not have" : "");
    }
    return true;
}

static bool compare_item(const tn__hf_plan *p, const tn__state_item *item) {
    char name[NAME_SIZE];
    const tn__hf_weights *w = &p->weights;
    const tn_safetensors *f = tn__hf_weights_find(w, name_of(p, item->name, name));
    tn_dims has = tn_safetensors_shape(f, name), wanted = item->layout.whole;
    tn_dtype dtype, is = tn_dtype_of(item->tensor);
    if (is_transposed(p, item->name)) { wanted = TN_DIMS(wanted.size[1], wanted.size[0]); }
    if (!tn_dims_equal(has, wanted)) {
        return tn__fail(TN_ESHAPE, w->operation, "%s: \"%s\" is %s but the model's is %s",
                        tn__safetensors_path(f), name, tn__dims_text(has), tn__dims_text(wanted));
    }
    const char *written = tn_safetensors_dtype(f, name);
    bool known = tn__safetensors_find_dtype(written, &dtype);
    if (!known || (dtype != is && !(tn_dtype_is_float(dtype) && tn_dtype_is_float(is)))) {
        return tn__fail(known ? TN_EDTYPE : TN_EUNSUPPORTED, w->operation,
                        "%s: \"%s\" is %s, which does not become %s", tn__safetensors_path(f), name,
                        tn__show(written).text, tn_dtype_name(is));
    }
    return true;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Reads the whole block that the layout's elements are part of, as it is in the file, and turns it:
 * only the older families have transposed matrices, which are small. */
static bool read_transposed(const tn_safetensors *f, const char *name, const tn_layout *l,
                            void *to) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_dtype dtype;
    tn__safetensors_find_dtype(tn_safetensors_dtype(f, name), &dtype);
    tn_layout turned = *l;
    turned.whole = TN_DIMS(l->whole.size[1], l->whole.size[0]);
    turned.dim = l->dim < 0 ? -1 : 1 - l->dim;
    tn_dims block = tn__layout_block(&turned);
    turned.start = 0;
    turned.length = tn_dims_count(block);
    tn_tensor *there = tn_empty_on(tn_cpu(), block, dtype);
    if (tn_is_inert(there) || !tn__safetensors_read_layout(f, name, &turned, tn__address(there))) {
        return false;
    }
    tn_tensor *here = tn_contiguous(tn_transpose(there, 0, 1));
    if (tn_is_inert(here)) { return false; }
    size_t size = tn_dtype_size(dtype);
    memcpy(to, (const char *)tn__address(here) + (size_t)l->start * size, (size_t)l->length * size);
    return true;
}

bool tn__hf_read(const tn_safetensors *f, const char *name, const tn_layout *layout,
                 bool transposed, void *to) {
    return transposed && layout->length ? read_transposed(f, name, layout, to)
                                        : tn__safetensors_read_layout(f, name, layout, to);
}

/* Reads the item's elements into `to`, which has its shape. */
static bool read_item(const tn__hf_plan *p, const tn__state_item *item, tn_tensor *to) {
    TN_SCOPE;
    TN_NO_GRAD;
    char name[NAME_SIZE];
    const tn_safetensors *f = tn__hf_weights_find(&p->weights, name_of(p, item->name, name));
    tn_dtype dtype;
    tn__safetensors_find_dtype(tn_safetensors_dtype(f, name), &dtype);
    bool direct = dtype == tn_dtype_of(to) && tn_is_contiguous(to) &&
                  tn__same_device(tn_device_of(to), tn_cpu());
    tn_tensor *stage = direct ? to : tn_empty_on(tn_cpu(), tn_shape(to), dtype);
    if (tn_is_inert(stage) ||
        !tn__hf_read(f, name, &item->layout, is_transposed(p, item->name), tn__address(stage))) {
        return false;
    }
    tn__touch(stage);
    if (!direct) {
        tn_tensor *cast = tn__state_cast(stage, tn_dtype_of(to), tn__safetensors_path(f), name,
                                         p->weights.operation);
        tn_copy_(tn_detach(to), tn_to(cast, tn_device_of(to)));
    }
    return !tn__pending();
}

/* A view of the mapped file that can serve as the storage of `item`; or NULL. */
static tn_tensor *view_item(const tn__hf_plan *p, const tn__state_item *item) {
    char name[NAME_SIZE];
    const tn_tensor *t = item->tensor;
    const tn_safetensors *f = tn__hf_weights_find(&p->weights, name_of(p, item->name, name));
    tn_dtype dtype;
    tn__safetensors_find_dtype(tn_safetensors_dtype(f, name), &dtype);
    if (!p->weights.mapped || dtype != tn_dtype_of(t) || is_transposed(p, item->name) ||
        item->layout.dim >= 0 || item->layout.length != tn_dims_count(item->layout.whole) ||
        !tn__defer_covers(t) || !tn__same_device(tn_device_of(t), tn_cpu())) {
        return NULL;
    }
    tn_tensor *view = tn_safetensors_get(f, name);
    return !tn_is_inert(view) && view->storage->release ? view : NULL;
}

/* False after raising. */
static bool fetch_item(const tn__hf_plan *p, tn__state_item *item) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *t = item->tensor, *source = view_item(p, item);
    if (!source && !tn__pending() && tn__deferred(t)) {
        return tn_storage_refill(t) == TN_OK && read_item(p, item, t);
    }
    if (!source && !tn__pending()) {
        source = tn_empty_on(tn_cpu(), tn_shape(t), tn_dtype_of(t));
        read_item(p, item, source);
    }
    if (tn__pending()) { return false; }
    item->source = tn_keep(source);
    return true;
}

/* ---- The plan -------------------------------------------------------------------------------- */

bool tn__hf_plan_make(tn__hf_plan *p, const tn__hf_form *form, void *m) {
    char name[NAME_SIZE];
    p->form = form;
    p->model = m;
    p->state = (tn__state){.operation = p->weights.operation, .deferred = true, .parts = true};
    snprintf(name, sizeof(name), "%s%s", form->prefix, form->tokens);
    p->prefixed = !p->weights.plain && tn__hf_weights_find(&p->weights, name);
    if (!tn__state_add_module(&p->state, m, "")) { return false; }
    tn__state_sort(&p->state);
    bool made = compare_all_names(p);
    for (int i = 0; made && i < p->state.count; i++) {
        made = compare_item(p, &p->state.items[i]);
    }
    made = made && check_tied_head(p);
    tn_status (*deferring)(const tn_tensor *t) = tn__deferring;
    tn__deferring = NULL; /* tensors made here have elements, even under TN_DEFER_INIT */
    for (int i = 0; made && i < p->state.count; i++) {
        made = fetch_item(p, &p->state.items[i]);
    }
    tn__deferring = deferring;
    return made;
}

void tn__hf_plan_apply(tn__hf_plan *p) {
    for (int i = 0; i < p->state.count; i++) {
        tn__state_item *item = &p->state.items[i];
        if (item->source && item->source->storage->release) { /* of the mapped file */
            tn__recipe_drop(item->tensor);
            tn__storage_swap(item->tensor->storage, item->source->storage);
            tn__touch(item->tensor);
            tn_release(item->source);
            item->source = NULL;
        }
    }
    tn__state_apply(&p->state);
}

void tn__hf_plan_free(tn__hf_plan *p) {
    tn__state_free(&p->state);
    tn__hf_weights_free(&p->weights);
}
