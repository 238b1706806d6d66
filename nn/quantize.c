/* 8-bit weights: each row of a weight becomes signed bytes and one scale,
 *
 *     scale[j] = max |w[j, :]| / 127        bytes[j, :] = w[j, :] / scale[j], rounded to nearest
 *
 * A module takes part by what it registers: a parameter NAME (rows, width) and an empty buffer
 * NAME_scale. Its forward uses the scale if there is one. The bytes stay a parameter, so that ties
 * hold; they require no gradient.
 *
 * Everything is computed before anything is replaced: an error leaves the module as it was.
 */
#include "core/memory.h"
#include "nn/misuse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char operation[] = "quantize";

/* A weight, whose reference its module holds, and its replacement. */
typedef struct exchange {
    tn_tensor *weight;
    tn_tensor *bytes, *scale; /* one reference each */
} exchange;

typedef struct plan {
    exchange **list;
    int count;
    int64_t capacity;
    tn_module_lists *root; /* of the whole tree: weights may be tied to one above */
} plan;

static void plan_free(plan *p) {
    for (int i = 0; i < p->count; i++) {
        tn_release(p->list[i]->bytes);
        tn_release(p->list[i]->scale);
        free(p->list[i]);
    }
    free(p->list);
}

/* ---- One weight ------------------------------------------------------------------------------ */

/* Rows [from, from + count). False after raising. */
static bool quantize_rows(const exchange *e, int64_t from, int64_t count, const char *path) {
    TN_SCOPE;
    tn_tensor *w = tn_cast(tn_narrow(e->weight, 0, from, count), TN_F32);
    tn_tensor *max = tn_max(tn_abs(w), TN_DIMS(1), true); /* (count, 1); NaN if there is one */
    double top = tn_item(tn_max(max, TN_DIMS(), false));
    if (!tn__pending() && !isfinite(top)) {
        tn__raise(TN_EVALUE, operation, "\"%s\" holds %g", path, top);
    }
    /* even a row of zeros has a scale, so nothing divides by 0 */
    tn_tensor *scale = tn_clamp(tn_div_scalar(max, 127.0), 0x1p-126, INFINITY),
              *units = tn_div(w, scale);
    units = tn_add(units, tn_mul_scalar(tn_sign(units), 0.5)); /* casts truncate */
    tn_copy_(tn_narrow(e->bytes, 0, from, count), tn_cast(units, TN_I8));
    tn_copy_(tn_narrow(e->scale, 0, from, count), tn_squeeze(scale, 1));
    return !tn__pending();
}

/* Fills bytes and scale, some rows at a time. False after raising. */
static bool quantize_weight(exchange *e, const char *path) {
    enum { SLICE = 1 << 20 }; /* elements */
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t rows = tn_size(e->weight, 0), width = tn_size(e->weight, 1),
            each = width < SLICE ? SLICE / (width > 0 ? width : 1) : 1;
    tn_device device = tn_device_of(e->weight);
    tn_tensor *bytes = tn_empty_on(device, TN_DIMS(rows, width), TN_I8),
              *scale = tn_empty_on(device, TN_DIMS(rows), TN_F32);
    if (tn_is_inert(bytes) || tn_is_inert(scale)) { return false; }
    e->bytes = tn_keep(bytes);
    e->scale = tn_keep(scale);
    for (int64_t from = 0; from < rows; from += each) {
        if (!quantize_rows(e, from, from + each < rows ? each : rows - from, path)) {
            return false;
        }
    }
    return true;
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* The buffer for the scale of a parameter; NULL: its module cannot read bytes. */
static tn__record *scale_record(const tn_module_lists *lists, const tn__record *weight) {
    size_t n = strlen(weight->name);
    for (int i = 0; !weight->buffer && i < lists->record_count; i++) {
        tn__record *record = lists->records[i];
        if (record->buffer && strncmp(record->name, weight->name, n) == 0 &&
            strcmp(record->name + n, "_scale") == 0) {
            return record;
        }
    }
    return NULL;
}

/* A module that holds `tensor` and would not read a scale; NULL: there is none. */
static const tn_module_lists *holder_without_scale(const tn_module_lists *lists,
                                                   const tn_tensor *tensor) {
    for (int i = 0; i < lists->record_count; i++) {
        const tn__record *record = lists->records[i];
        if (*record->field == tensor && !scale_record(lists, record)) { return lists; }
    }
    for (int i = 0; i < lists->child_count; i++) {
        const tn_module_lists *found = holder_without_scale(lists->children[i], tensor);
        if (found) { return found; }
    }
    return NULL;
}

/* False after raising. */
static bool may_exchange(const plan *p, const tn__record *record, const char *path) {
    const tn_tensor *w = *record->field;
    if (record->part || record->lent) {
        return tn__fail(TN_ESTATE, operation, "\"%s\" is %s", path,
                        record->part ? "sharded" : "in use: its module is being called");
    }
    if (!tn_dtype_is_float(w->dtype) || w->dims.ndim != 2) {
        return tn__fail(TN_EDTYPE, operation, "\"%s\" is %s %s (a float matrix is needed)", path,
                        tn_dtype_name(w->dtype), tn_shape_text(w));
    }
    const tn_module_lists *other = holder_without_scale(p->root, w);
    if (other) {
        tn__raise(TN_EUNSUPPORTED, operation, "\"%s\" is shared with a %s, which cannot read bytes",
                  path, other->kind);
    }
    return !other;
}

static bool is_planned(const plan *p, const tn_tensor *weight) {
    for (int i = 0; i < p->count; i++) {
        if (p->list[i]->weight == weight) { return true; }
    }
    return false;
}

/* False after raising. */
static bool plan_weight(plan *p, const tn__record *record, const char *path) {
    if (!may_exchange(p, record, path) ||
        !tn__grow(&p->list, p->count + 1, &p->capacity, sizeof(*p->list), operation)) {
        return false;
    }
    exchange *e = tn__calloc_for(1, sizeof(*e), operation);
    if (!e) { return false; }
    e->weight = *record->field;
    p->list[p->count++] = e;
    return quantize_weight(e, path);
}

/* Adds the weights of one module that are here and not bytes yet. */
static bool plan_module(tn_module *m, const char *path, void *user) {
    plan *p = user;
    for (int i = 0; m->lists && i < m->lists->record_count; i++) {
        const tn__record *record = m->lists->records[i];
        const tn_tensor *w = *record->field;
        if (w && !record->absent && w->dtype != TN_I8 && scale_record(m->lists, record) &&
            !is_planned(p, w) && !plan_weight(p, record, *path ? path : m->kind)) {
            return false;
        }
    }
    return true;
}

/* Bytes and scale go into every module that holds the weight. */
static void apply_exchange(tn_module_lists *lists, const exchange *e) {
    for (int i = 0; i < lists->record_count; i++) {
        tn__record *record = lists->records[i];
        if (*record->field == e->weight) {
            tn__field_set(scale_record(lists, record)->field, e->scale);
            tn__field_set(record->field, e->bytes);
        }
    }
    for (int i = 0; i < lists->child_count; i++) {
        apply_exchange(lists->children[i], e);
    }
}

/* No parameter requires a gradient from now on. Unlike tn_module_requires_grad it cannot fail. */
static void freeze_below(tn_module_lists *lists) {
    for (int i = 0; i < lists->record_count; i++) {
        tn_tensor *t = tn__record_stored(lists->records[i]);
        if (t && !lists->records[i]->buffer) { tn_set_requires_grad(t, false); }
    }
    for (int i = 0; i < lists->child_count; i++) {
        freeze_below(lists->children[i]);
    }
}

tn_status tn_quantize(void *module) {
    tn_module *m = tn__module_of(module, operation);
    if (!m || tn__pending() || tn_module_materialize(m) != TN_OK) { return tn_error(); }
    char path[TN_MODULE_NAME];
    if (tn__module_stepped(m, path, sizeof(path))) {
        return tn__raise(TN_ESTATE, operation,
                         "an optimiser steps \"%s\" (free it first: what is quantised is not "
                         "trained)",
                         path);
    }
    tn_module *root = tn__module_root(m, operation);
    if (!root || !m->lists) { return tn_error(); }
    plan p = {.root = root->lists};
    tn_module_each_module(m, plan_module, &p);
    if (!tn__pending()) {
        for (int i = 0; i < p.count; i++) {
            apply_exchange(p.root, p.list[i]);
        }
        freeze_below(m->lists);
    }
    plan_free(&p);
    return tn_error();
}
