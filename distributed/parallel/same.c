/* Whether the module is the same on every rank, or the batch; and giving all ranks one rank's.
 *
 * Each rank describes its module as text, a line for each parameter and buffer, on which all agree.
 */
#include "autograd/leaf.h"
#include "core/buffer.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/group/values.h"
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
    tn_dtype compute = tn_module_compute_dtype(entry->owner, x->dtype);
    if (!entry->buffer && compute != x->dtype) {
        tn__buffer_format(t, ", computed in %s", tn_dtype_name(compute));
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
            return tn__fail(
                TN_EMISMATCH, operation,
                "rank %d of the group has other tokens than rank 0: these ranks get the same "
                "batches (a sampler is given the ranks with other ones, tn_spread_data), and "
                "the same prompts, seeds and callbacks of tn_generate",
                r);
        }
    }
    return true;
}

/* ---- Giving ---------------------------------------------------------------------------------- */

typedef struct sharing {
    tn_group *group;
    int root;
    bool training; /* between the steps of a loop, which may have ended on another rank */
} sharing;

/* A parameter whose elements are not made yet: shares how they will be made. */
static bool share_recipe(const sharing *s, tn_tensor *t) {
    struct tn__recipe *mine = t->storage->recipe, theirs = *mine;
    if (tn__broadcast_values(s->group, &theirs, sizeof(theirs), TN_U8, s->root) == TN_OK) {
        theirs.device = mine->device;
        *mine = theirs;
    }
    return !tn__pending();
}

/* Tensors that collectives do not accept are sent as a copy. */
static bool share_entry(const tn_entry *entry, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    const sharing *s = user;
    tn_tensor *t = *entry->field, *sent = tn_detach(t);
    if (tn__deferred(t) && !entry->buffer) { return share_recipe(s, t); }
    if (tn_dtype_of(t) == TN_BOOL) { sent = tn_cast(sent, TN_U8); }
    sent = tn_contiguous(sent);
    tn_work *w = tn_broadcast(s->group, sent, s->root);
    tn_status status = s->training ? tn__parallel_wait(w) : tn_work_wait(w, 0);
    if (status == TN_OK && !tn_shares_storage(sent, t)) { tn_copy_(t, sent); }
    return !tn__pending();
}

tn_status tn__parallel_share(tn_module *m, tn_group *g, int root, bool parameters) {
    sharing s = {.group = g, .root = root, .training = !parameters};
    if (tn_group_size(g) > 1 && !tn__pending()) {
        tn_walk walk = {.buffers = true, .no_parameters = !parameters};
        tn_module_each(m, walk, share_entry, &s);
    }
    return tn_error();
}

void tn__parallel_take_buffers(tn__parallel *p) {
    if (p->buffers_due && p->module->training) {
        p->buffers_due = tn__parallel_share(p->module, p->group, 0, false) != TN_OK ||
                         tn__parallel_share(p->module, p->outer, 0, false) != TN_OK;
    }
}

tn_status tn__parallel_sum_parts(const tn_parts *parts, double *values, int n) {
    return tn__reduce_values(parts->group, values, n, TN_F64, TN_SUM);
}

const tn_parts *tn__parallel_chain(tn_parts *links, int *count, tn_group *g,
                                   const tn_parts *beyond) {
    int i = 0;
    while (i < *count && links[i].next != beyond) {
        i++;
    }
    if (i == *count) {
        links[(*count)++] =
            (tn_parts){.next = beyond, .sum = tn__parallel_sum_parts, .group = g, .counts = true};
    }
    return &links[i];
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Whether a rank's data may have ended: none has given up or died. */
static bool may_have_ended(const tn_error_record *e) {
    return (e->status == TN_EPEER || e->status == TN_EMISMATCH) && !strstr(e->message, "gave up") &&
           !strstr(e->message, "has died");
}

tn_status tn__parallel_wait(tn_work *w) {
    if (tn__pending()) {
        tn_work_wait(w, 0);
        return tn_error();
    }
    tn__quiet(1);
    tn_work_wait(w, 0);
    tn__quiet(-1);
    tn_error_record e;
    if (tn_error_take(&e)) {
        if (may_have_ended(&e)) {
            static const char hint[] = " (do all ranks call the same modules? If one's data has "
                                       "ended, DDP has tn_ddp_join)";
            size_t length = strlen(e.message), space = sizeof(e.message) - sizeof(hint);
            memcpy(e.message + (length < space ? length : space), hint, sizeof(hint));
        }
        tn_error_give(&e);
    }
    return tn_error();
}
