/* Named tensors, saved and loaded together (state.h). */
#include "io/state.h"

#include "core/buffer.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/plain_text.h"
#include "io/safetensors.h"
#include "nn/layout.h"
#include "optim/average.h"
#include "tensor/recipe.h"
#include "tern/sys/device.h"
#include "tern/sys/tensor.h"

#include <stdio.h>
#include <string.h>

/* ---- Collecting ------------------------------------------------------------------------------ */

/* Copies `item`, except its name, and takes a reference to its tensor. */
static bool state_add(tn__state *s, const char *prefix, const char *name,
                      const tn__state_item *item) {
    if (!tn__readable(item->tensor, s->operation)) { return false; }
    bool later = s->deferred && tn__deferred(item->tensor);
    if (!later && (!tn__elements_made(item->tensor, name, s->operation) ||
                   !tn__usable(item->tensor, s->operation))) {
        return false;
    }
    if (!tn__grow(&s->items, s->count + 1, &s->capacity, sizeof(*s->items), s->operation)) {
        return false;
    }
    char *full = tn__asprintf(s->operation, "%s%s", prefix, name);
    if (!full) { return false; }
    s->items[s->count] = *item;
    s->items[s->count].name = full;
    s->items[s->count++].tensor = tn_keep(item->tensor);
    return true;
}

/* State of a walk over a module or an optimiser. */
typedef struct collector {
    tn__state *state;
    const char *prefix;
    bool failed;
} collector;

/* Whether this rank has all of it, in its own shape. */
static bool is_whole(const tn_entry *entry) {
    return !entry->absent && !entry->parts &&
           tn_dims_equal(tn_shape(entry->stored), entry->layout.whole);
}

/* Whether it is bytes of a block (tn_quantize), whose rows have scales that belong to this rank. */
static bool is_bytes_of_block(const tn_entry *entry) {
    return entry->layout.dim >= 0 && !tn_dtype_is_float(tn_dtype_of(entry->stored));
}

static bool add_entry(const tn_entry *entry, void *user) {
    collector *c = user;
    const tn__state_item item = {
        .tensor = entry->stored, .layout = entry->layout, .buffer = entry->buffer};
    bool added = true;
    if (!c->state->parts && !is_whole(entry)) {
        added = tn__fail(
            TN_EUNSUPPORTED, c->state->operation,
            "\"%s\" is sharded: this rank has %lld of its elements (tn_saver saves and loads in "
            "parts, tn_dist_export writes whole weights)",
            entry->path, (long long)(entry->absent ? 0 : entry->layout.length));
    } else if (is_bytes_of_block(entry)) {
        added = tn__fail(TN_EUNSUPPORTED, c->state->operation,
                         "\"%s\" was quantised after it was cut: the scales of its rows are those "
                         "of this rank's block, not of the whole",
                         entry->path);
    } else if (!entry->absent) {
        added = state_add(c->state, c->prefix, entry->path, &item);
    }
    c->failed = !added;
    return added;
}

static bool add_optim_state(const char *name, tn_tensor *t, const tn_entry *like, void *user) {
    collector *c = user;
    const tn__state_item item = {.tensor = t,
                                 .layout = like ? like->layout : tn__layout_whole(tn_shape(t))};
    c->failed = !state_add(c->state, c->prefix, name, &item);
    return !c->failed;
}

bool tn__state_add_module(tn__state *s, void *module, const char *prefix) {
    collector c = {.state = s, .prefix = prefix};
    if (s->loads && tn_module_materialize(module) != TN_OK) { return false; }
    tn_module_each(module, (tn_walk){.buffers = true, .absent = true}, add_entry, &c);
    return !c.failed && !tn__pending();
}

bool tn__checkpoint_sound(const tn_checkpoint *c, const char *operation) {
    if (!c) { return tn__fail(TN_EVALUE, operation, "the checkpoint is NULL"); }
    return c->step >= 0 ||
           tn__fail(TN_EVALUE, operation, "step %lld, but steps begin at 0", (long long)c->step);
}

bool tn__state_add(tn__state *s, const tn_checkpoint *c) {
    collector optim = {.state = s, .prefix = "optim."},
              average = {.state = s, .prefix = "average."};
    if (c->model && !tn__state_add_module(s, c->model, "model.")) { return false; }
    if (c->optim) { tn__optim_each(c->optim, add_optim_state, &optim); }
    if (c->average && !optim.failed) { tn__average_each(c->average, add_optim_state, &average); }
    return !optim.failed && !average.failed && !tn__pending();
}

void tn__state_free(tn__state *s) {
    for (int i = 0; i < s->count; i++) {
        free(s->items[i].name);
        tn_release(s->items[i].tensor);
        tn_release(s->items[i].source);
    }
    free(s->items);
    s->items = NULL;
    s->count = 0;
    s->capacity = 0;
}

bool tn__state_write(const tn__state *s, tn_safetensors_writer *w) {
    bool done = w != NULL;
    for (int i = 0; done && i < s->count; i++) {
        done = tn_safetensors_writer_add(w, s->items[i].name, s->items[i].tensor) == TN_OK;
    }
    return done;
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* A finite number that became infinite. */
static void raise_infinite(tn_tensor *source, tn_tensor *lost, tn_dtype wanted, const char *path,
                           const char *name, const char *operation) {
    tn_tensor *values = tn_cast(source, TN_F64);
    tn_tensor *most =
        tn_max(tn_abs(tn_where(lost, values, tn_zeros_like(values))), TN_DIMS(), false);
    double value = tn_item(most);
    tn__raise(TN_EVALUE, operation, "%s: \"%s\" has a number of size %.9g, which is infinite in %s",
              path, tn__show(name).text, value, tn_dtype_name(wanted));
}

tn_tensor *tn__state_cast(tn_tensor *source, tn_dtype wanted, const char *path, const char *name,
                          const char *operation) {
    tn_dtype is = tn_dtype_of(source);
    tn_tensor *made = tn_cast(source, wanted);
    bool narrower = is != wanted && (wanted == TN_F16 || (wanted == TN_BF16 && is != TN_F16) ||
                                     (wanted == TN_F32 && is == TN_F64));
    if (tn_is_inert(made) || !narrower || !tn_dtype_is_float(is)) { return made; }
    tn_tensor *lost = tn_logical_and(tn_isinf(made), tn_isfinite(source));
    if (tn_item(tn_any(lost)) != 0) { raise_infinite(source, lost, wanted, path, name, operation); }
    return tn__pending() ? tn_inert() : made;
}

static bool match_one(const tn__state *s, tn__state_item *item, const tn__source *from,
                      bool convert) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_dtype wanted = tn_dtype_of(item->tensor);
    tn_dims shape;
    tn_dtype dtype;
    if (!from->find(item->name, &shape, &dtype, from->user)) {
        return tn__fail(TN_EMISMATCH, s->operation, "%s has no \"%s\"", from->path, item->name);
    }
    if (!tn_dims_equal(shape, item->layout.whole)) {
        return tn__fail(TN_ESHAPE, s->operation, "%s: \"%s\" is %s but the program's is %s",
                        from->path, item->name, tn__dims_text(shape),
                        tn__dims_text(item->layout.whole));
    }
    tn_tensor *source = from->get(item, from->user);
    if (!tn_is_inert(source) && tn_dtype_of(source) != wanted && !convert) {
        return tn__fail(TN_EDTYPE, s->operation, "%s: \"%s\" is %s but the program's is %s",
                        from->path, item->name, tn_dtype_name(tn_dtype_of(source)),
                        tn_dtype_name(wanted));
    }
    source = tn__state_cast(source, wanted, from->path, item->name, s->operation);
    if (tn__deferred(item->tensor)) {
        return !tn_is_inert(source) && tn_storage_refill(item->tensor) == TN_OK &&
               !tn_is_inert(tn_copy_(tn_detach(item->tensor), source));
    }
    item->source = tn_is_inert(source) ? NULL : tn_keep(source);
    return item->source != NULL;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const tn__state_item *)a)->name, ((const tn__state_item *)b)->name);
}

void tn__state_sort(tn__state *s) {
    if (s->count) { qsort(s->items, (size_t)s->count, sizeof(*s->items), compare_names); }
}

bool tn__state_has(const tn__state *s, const char *name) {
    tn__state_item key = {.name = (char *)(uintptr_t)name};
    return s->count &&
           bsearch(&key, s->items, (size_t)s->count, sizeof(key), compare_names) != NULL;
}

bool tn__state_match(tn__state *s, const tn__source *from, bool convert) {
    bool matched = true;
    for (int i = 0; matched && i < s->count; i++) {
        matched = match_one(s, &s->items[i], from, convert);
    }
    tn__state_sort(s);
    return matched;
}

bool tn__state_has_all(const tn__state *s, const tn__source *from) {
    for (int i = 0; i < from->count; i++) {
        const char *name = from->name(i, from->user);
        if (!tn__state_has(s, name)) {
            return tn__fail(TN_EMISMATCH, s->operation,
                            "%s has \"%.200s\", which the program does not have", from->path, name);
        }
    }
    return true;
}

static const char *name_in_file(int i, void *user) {
    return tn_safetensors_name(user, i);
}

static bool find_in_file(const char *name, tn_dims *whole, tn_dtype *dtype, void *user) {
    if (!tn_safetensors_has(user, name)) { return false; }
    *whole = tn_safetensors_shape(user, name);
    tn__safetensors_find_dtype(tn_safetensors_dtype(user, name), dtype);
    return true;
}

static tn_tensor *get_from_file(const tn__state_item *item, void *user) {
    tn_dtype dtype;
    tn_dims shape = tn_shape(item->tensor);
    if (tn_dims_equal(shape, item->layout.whole) ||
        !tn__safetensors_find_dtype(tn_safetensors_dtype(user, item->name), &dtype)) {
        return tn_safetensors_get(user, item->name); /* or raises what dtype it is */
    }
    tn_tensor *t = tn_empty_on(tn_cpu(), shape, dtype);
    bool read = !tn_is_inert(t) &&
                tn__safetensors_read_layout(user, item->name, &item->layout, tn_data_mut(t));
    return read ? t : tn_inert();
}

tn__source tn__source_of_file(tn_safetensors *f) {
    return (tn__source){.path = tn__safetensors_path(f),
                        .metadata = tn__safetensors_metadata(f),
                        .digest = tn__safetensors_digest(f),
                        .count = tn_safetensors_count(f),
                        .name = name_in_file,
                        .find = find_in_file,
                        .get = get_from_file,
                        .user = f};
}

/* Both sides have the same shape and dtype, and `from` is on the CPU. On the CPU a plain copy
 * cannot fail; the general one, for strides, cannot either. If a device fails here, the run is lost
 * anyway.
 *
 * A part without elements counts as changed too: ranks with elements see a change, and all must act
 * on it. */
void tn__state_apply(tn__state *s) {
    TN_NO_GRAD;
    for (int i = 0; i < s->count; i++) {
        tn_tensor *to = s->items[i].tensor, *from = s->items[i].source;
        if (!from) { continue; }
        size_t bytes = (size_t)tn_count(to) * tn_dtype_size(tn_dtype_of(to));
        if (!tn_is_contiguous(to) || !tn_is_contiguous(from)) {
            tn_copy_(to, from);
        } else {
            if (bytes) {
                tn__copy_bytes(to->storage->device, tn__address(to), tn_cpu(), tn__address(from),
                               bytes, s->operation);
            }
            tn__touch(to);
        }
    }
}
