/* Whether the module is the same on every rank, or the batch.
 *
 * Each rank describes its module as text, a line for each parameter and buffer. The ranks compare
 * digests of it; only when these differ are the texts exchanged, and all ranks find the same first
 * line that differs.
 */
#include "autograd/leaf.h"
#include "core/buffer.h"
#include "core/memory.h"
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
    if (tn__deferred(x)) {
        tn__buffer_text(t, ", without elements");
    }
    tn__buffer_text(t, "\n");
    return !t->failed;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* Exchanges digests and lengths: *same if all digests are, and the longest text's length. */
static bool compare_digests(tn_group *g, const tn__buffer *t, bool *same, int64_t *longest) {
    TN_SCOPE;
    TN__ON_CPU;
    int64_t mine[2] = {(int64_t)XXH3_64bits(t->at, t->bytes), (int64_t)t->bytes};
    tn_tensor *all = tn_empty(TN_DIMS(tn_group_size(g), 2), TN_I64);
    if (tn_work_wait(tn_all_gather(g, all, TN_FROM(mine, TN_DIMS(2), TN_I64)), 0) != TN_OK) {
        return false;
    }
    const int64_t *heard = tn_data(all);
    *same = true;
    *longest = 0;
    for (int r = 0; r < tn_group_size(g); r++) {
        *same = *same && heard[2 * r] == heard[0];
        *longest = heard[2 * r + 1] > *longest ? heard[2 * r + 1] : *longest;
    }
    return true;
}

/* The first line of `at`, for a message. */
static const char *line_of(const char *at, char *line, size_t size) {
    snprintf(line, size, "%.*s", (int)strcspn(at, "\n"), at);
    return *at ? line : "nothing more";
}

/* texts[r] begins at r * stride. Raises the first difference of the first rank that differs from
 * rank 0. */
static void raise_difference(const char *texts, int64_t stride, int ranks, const char *operation) {
    int other = 1;
    while (other < ranks - 1 && strcmp(texts, texts + other * stride) == 0) {
        other++;
    }
    const char *a = texts, *b = texts + other * stride;
    for (size_t n = strcspn(a, "\n") + 1; *a && strncmp(a, b, n) == 0; n = strcspn(a, "\n") + 1) {
        a += n;
        b += n;
    }
    char ours[320], theirs[320];
    tn__raise(TN_EMISMATCH, operation, "rank 0 has %s, but rank %d has %s",
              line_of(a, ours, sizeof(ours)), other, line_of(b, theirs, sizeof(theirs)));
}

/* False when the texts did not arrive. */
static bool exchange_texts(tn_group *g, const tn__buffer *t, int64_t longest,
                           const char *operation) {
    TN_SCOPE;
    TN__ON_CPU;
    int ranks = tn_group_size(g);
    int64_t stride = longest + 1;
    tn_tensor *mine = tn_zeros(TN_DIMS(stride), TN_U8),
              *all = tn_empty(TN_DIMS(ranks, stride), TN_U8);
    if (!tn__pending()) {
        memcpy(tn_data_mut(mine), t->at, t->bytes);
    }
    if (tn_work_wait(tn_all_gather(g, all, mine), 0) != TN_OK) {
        return false;
    }
    raise_difference(tn_data(all), stride, ranks, operation);
    return true;
}

bool tn__parallel_compare(tn_module *m, tn_group *g, const char *options, const char *operation,
                          bool *differ) {
    tn__buffer t = {.operation = operation};
    tn__buffer_format(&t, "options %s\n", options);
    tn_module_each(m, (tn_walk){.buffers = true, .with_shared = true}, describe_entry, &t);
    bool same = true;
    int64_t longest;
    if (!tn__pending() && compare_digests(g, &t, &same, &longest) && !same) {
        *differ = exchange_texts(g, &t, longest, operation);
    }
    tn__buffer_free(&t);
    return !tn__pending();
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
