/* Whether the module is the same on every rank, or the batch.
 *
 * Each rank describes its module as text, a line for each parameter and buffer, on which all agree.
 */
#include "autograd/leaf.h"
#include "core/buffer.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/base.h"
#include "tensor/recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- A module as text ------------------------------------------------------------------------ */

static bool describe_entry(const tn_entry *entry, void *user) {
    tn__buffer *t = user;
    const tn_tensor *x = *entry->field;
    tn__buffer_format(t, "%s %s %s %s", entry->buffer ? "buffer" : "parameter", entry->path,
                      tn_dtype_name(tn_dtype_of(x)), tn_shape_text(x));
    if (entry->layout.dim >= 0) {
        tn__buffer_format(t, ", block %d of %d", entry->layout.slice, entry->layout.slices);
    }
    if (tn_device_of(x).kind != TN_CPU) {
        tn__buffer_text(t, ", on a device"); /* not which one: it may differ */
    }
    if (entry->shared) {
        tn__buffer_text(t, ", tied");
    } else if (!entry->buffer && !tn_requires_grad(x)) {
        tn__buffer_text(t, ", frozen");
    } else if (!entry->buffer && x->leaf->grad_dtype != x->dtype) {
        tn__buffer_format(t, " with gradients in %s", tn_dtype_name(x->leaf->grad_dtype));
    }
    if (tn__deferred(x)) { tn__buffer_text(t, ", without elements"); }
    tn__buffer_text(t, "\n");
    return !t->failed;
}

tn_status tn__parallel_agree(tn_module *m, tn_group *g, const char *options,
                             const char *operation) {
    tn__buffer t = {.operation = operation};
    if (!tn__pending()) {
        tn__buffer_format(&t, "options %s\n", options);
        tn_module_each(m, (tn_walk){.buffers = true, .with_shared = true}, describe_entry, &t);
    }
    tn_status status = tn__agree(g, t.at, operation);
    tn__buffer_free(&t);
    return status;
}

/* ---- A batch --------------------------------------------------------------------------------- */

/* A digest of shape and elements; false after raising. */
static bool digest_of(const tn_tensor *x, const char *operation, int64_t *digest) {
    size_t bytes = (size_t)tn_count(x) * tn_dtype_size(tn_dtype_of(x));
    void *elements = tn__malloc_for(bytes ? bytes : 1, operation);
    bool done = elements && tn_copy_out(x, elements) == TN_OK;
    if (done) {
        const char *shape = tn_shape_text(x);
        *digest = (int64_t)XXH3_64bits_withSeed(elements, bytes, XXH3_64bits(shape, strlen(shape)));
    }
    free(elements);
    return done;
}

bool tn__parallel_same_input(tn_group *g, const tn_tensor *x, const tn_module *m,
                             tn__compared *last, const char *operation) {
    TN_SCOPE;
    TN__ON_CPU;
    int64_t mine = 0;
    if (!tn__compare_due(last, m) || !x || tn_is_inert(x) || tn_dtype_is_float(tn_dtype_of(x))) {
        return true;
    }
    *last = (tn__compared){true, m->training};
    if (!digest_of(x, operation, &mine)) {
        tn_group_abort(g, tn_error_message());
        return false;
    }
    tn_tensor *all = tn_empty(TN_DIMS(tn_group_size(g)), TN_I64);
    if (tn_work_wait(tn_all_gather(g, all, tn_from_data(&mine, TN_DIMS(), TN_I64)), 0) != TN_OK) {
        return false;
    }
    const int64_t *heard = tn_data(all);
    for (int r = 1; r < tn_group_size(g); r++) {
        if (heard[r] != heard[0]) {
            tn__raise(TN_EMISMATCH, operation,
                      "rank %d of the group has other tokens than rank 0: these ranks get the same "
                      "batches (a sampler is given the ranks with other ones, tn_spread_data), and "
                      "the same prompts, seeds and callbacks of tn_generate",
                      r);
            return false;
        }
    }
    return true;
}
