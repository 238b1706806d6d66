/* Parameters of which only a part is on this rank: what sharding declares (tn_module_set_part) is
 * checked against the field, and kept in the parameter's records. And absent ones, which only other
 * stages of a pipeline use (tn__module_set_absent).
 */
#include "nn/layout.h"
#include "nn/misuse.h"

#include "tensor/recipe.h"
#include "tensor/tensor.h"

void tn__record_set_part(tn__record *record, tn_tensor *part, const tn_layout *layout,
                         const tn_parts *parts) {
    tn__field_set(&record->part, part);
    record->parts = parts;
    record->cut = layout != NULL;
    record->layout = layout ? *layout : (tn_layout){0};
}

/* The block that a layout cuts from the whole; false after raising. */
static bool find_block(const tn_layout *layout, const char *path, tn_dims *block) {
    tn_layout all = *layout;
    all.start = all.length = 0;
    if (!tn__layout_sound(&all)) {
        return tn__fail(TN_EVALUE, "module_set_part",
                        "%s: %s cannot be cut along dimension %d into slice %d of %d of %d pieces",
                        path, tn__dims_text(layout->whole), layout->dim, layout->slice,
                        layout->slices, layout->pieces);
    }
    *block = tn__layout_block(layout);
    int64_t count = tn_dims_count(*block);
    if (!tn__layout_sound(layout)) {
        tn__raise(TN_EVALUE, "module_set_part",
                  "%s: %lld elements from %lld on are not in a block of %lld", path,
                  (long long)layout->length, (long long)layout->start, (long long)count);
    }
    return !tn__pending();
}

/* Whether the field and the part are what the layout says; false after raising. */
static bool part_fits(const tn_tensor *field, const tn_tensor *part, const tn_layout *layout,
                      const char *path) {
    tn_dims block;
    if (!find_block(layout, path, &block)) { return false; }
    if (!tn_dims_equal(tn_shape(field), block)) {
        return tn__fail(TN_ESHAPE, "module_set_part", "the field of %s is %s but the block is %s",
                        path, tn_shape_text(field), tn__dims_text(block));
    }
    int64_t stored = tn_count(part ? part : field);
    if (stored != layout->length) {
        return tn__fail(TN_ESHAPE, "module_set_part", "the %s of %s has %lld elements, not %lld",
                        part ? "part" : "field", path, (long long)stored,
                        (long long)layout->length);
    }
    if (part && tn_dtype_of(part) != tn_dtype_of(field)) {
        return tn__fail(TN_EDTYPE, "module_set_part", "%s is %s but the part is %s", path,
                        tn_dtype_name(tn_dtype_of(field)), tn_dtype_name(tn_dtype_of(part)));
    }
    return true;
}

/* ---- Exchanging ------------------------------------------------------------------------------ */

/* A new part for all names of one parameter. */
typedef struct exchange {
    const char *operation;
    const tn_tensor *of; /* the parameter */
    tn_tensor *part;
    const tn_layout *layout; /* NULL: the parameter is absent */
    const tn_parts *parts;
} exchange;

static bool may_exchange(const tn_entry *entry, void *user) {
    const exchange *e = user;
    const tn_module_lists *lists = entry->owner->lists;
    if (tn__entry_tensor(entry) != e->of) { return true; }
    if (lists->lending || __atomic_load_n(&lists->stepped, __ATOMIC_RELAXED) > 0) {
        return tn__fail(TN_ESTATE, e->operation, "%s %s (shard first, then make the optimiser)",
                        entry->path,
                        lists->lending ? "is in use by a call" : "is held by an optimiser");
    }
    return true;
}

static bool exchange_part(const tn_entry *entry, void *user) {
    const exchange *e = user;
    tn__record *record = tn__entry_record(entry);
    if (tn__record_tensor(record) != e->of) { return true; }
    if (e->layout) {
        tn__record_set_part(record, e->part, e->layout, e->parts);
    } else {
        record->absent = true;
    }
    return true;
}

tn_status tn_module_set_part(void *module, const char *path, tn_tensor *part, tn_layout layout,
                             const tn_parts *parts) {
    tn_module *m = tn__module_of(module, "module_set_part");
    if (!m || tn__pending()) { return tn_error(); }
    const tn__record *record = tn__module_find_parameter(m, path, "module_set_part");
    if (!record) { return TN_EVALUE; }
    tn_tensor *field = tn__record_tensor(record);
    if (!tn__readable(field, "module_set_part") ||
        (part && !tn__readable(part, "module_set_part")) ||
        !part_fits(field, part, &layout, path)) {
        return tn_error();
    }
    exchange e = {"module_set_part", field, part, &layout, parts};
    tn_walk all = {.with_shared = true};
    tn_module *root = tn__module_root(m, "module_set_part");
    if (root) { tn_module_each(root, all, may_exchange, &e); }
    if (part && !tn__pending()) { tn_set_requires_grad(part, tn_requires_grad(field)); }
    if (!tn__pending()) { tn_module_each(root, all, exchange_part, &e); }
    return tn_error();
}

/* ---- Absent ones ----------------------------------------------------------------------------- */

tn_status tn__module_set_absent(tn_module *module, const char *path) {
    static const char operation[] = "module_set_absent";
    tn_module *m = tn__module_of(module, operation),
              *root = m ? tn__module_root(m, operation) : NULL;
    if (!root || tn__pending()) { return tn_error(); }
    const tn__record *record = tn__module_find_parameter(m, path, operation);
    if (!record) { return TN_EVALUE; }
    if (record->part) { return tn__raise(TN_ESTATE, operation, "a part of %s is here", path); }
    tn_tensor *field = tn__record_tensor(record);
    exchange e = {.operation = operation, .of = field};
    tn_walk all = {.with_shared = true};
    tn_module_each(root, all, may_exchange, &e);
    if (tn__pending()) { return tn_error(); }
    tn_zero_grad(field);
    if (tn__deferred(field)) { tn__recipe_drop(field); }
    if (tn_storage_empty(field) == TN_OK) { tn_module_each(root, all, exchange_part, &e); }
    return tn_error();
}
