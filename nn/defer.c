/* Building modules without their elements (TN_DEFER_INIT), and making these later, whole or in
 * parts.
 *
 * While it is open, new tensors have a recipe instead of elements (tensor/recipe.h), and what
 * initialises them adds its steps to it (ops/deferred.h). Draws take their number from the
 * generator as usual, so the elements do not depend on when, where or in how many parts they are
 * made. PyTorch's relatives are the meta device and torchdistx's deferred_init.
 */
#include "nn/defer.h"

#include "nn/module.h"

bool tn_defer_init_begin(void) {
    bool before = tn__deferring != NULL;
    tn__deferring = tn__deferred_make;
    return before;
}

void tn_defer_init_end(const bool *before) {
    tn__deferring = before && *before ? tn__deferred_make : NULL;
}

/* Sharding makes the parameters that it has taken over. */
static bool make_entry(const tn_entry *entry, void *user) {
    tn_tensor *t = tn__entry_tensor(entry);
    return entry->stored != t || !tn__deferred(t) || tn__deferred_make(t) == TN_OK;
}

tn_status tn_module_materialize(void *module) {
    tn_module *m = tn__module_of(module, "module_materialize");
    if (m && !tn__pending()) {
        tn_module_each(m, (tn_walk){.buffers = true, .scratch = true}, make_entry, NULL);
    }
    return tn_error();
}

tn_status tn__draw_part(const tn_tensor *leaf, int64_t start, int64_t length, tn_tensor *out) {
    if (start < 0 || length < 0 || length > tn_count(leaf) - start || tn_count(out) != length) {
        return tn__raise(
            TN_EVALUE, "draw_part", "%lld elements from %lld on of %s, into a tensor of %lld",
            (long long)length, (long long)start, tn_shape_text(leaf), (long long)tn_count(out));
    }
    return tn__deferred_part(leaf, start, out);
}

bool tn__fill_part(tn_tensor *whole, const tn_layout *layout, tn_tensor *part) {
    TN_NO_GRAD;
    TN_SCOPE;
    bool deferred = tn__deferred(whole);
    tn_tensor *to = tn_reshape(part, TN_DIMS(layout->length)),
              *from = deferred ? NULL : tn_reshape(tn_detach(whole), TN_DIMS(tn_count(whole)));
    for (tn__layout_span run = {0}; run.here < layout->length && !tn__pending();
         run.here += run.length) {
        TN_SCOPE;
        run = tn__layout_run(layout, run.here);
        tn_tensor *place = tn_narrow(to, 0, run.here, run.length);
        if (deferred) {
            tn__draw_part(whole, run.whole, run.length, place);
        } else {
            tn_copy_(place, tn_narrow(from, 0, run.whole, run.length));
        }
    }
    return !tn__pending();
}
