/* Sequences of different lengths, each its own tensor. */
#include "core/digest.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/collate.h"
#include "data/identity.h"
#include "tern/data.h"
#include "tern/sys/tensor.h"

#include <stdio.h>
#include <string.h>

static const char operation[] = "sequence_dataset";

typedef struct sequences {
    tn_dataset base;
    tn_tensor **x, **y; /* [base.size], contiguous, one reference each; y may be NULL */
    tn_digest digest;
} sequences;

static size_t bytes_of(const tn_tensor *t) {
    return (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
}

static tn_status copy_sequence(const tn_tensor *t, void *to) {
    if (!tn__usable(t, operation)) { return tn_error(); }
    if (bytes_of(t)) { memcpy(to, tn_data(t), bytes_of(t)); }
    return TN_OK;
}

static tn_status sequences_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const sequences *d = (const sequences *)self;
    if (copy_sequence(d->x[e.index], x) != TN_OK || (d->y && copy_sequence(d->y[e.index], y))) {
        return tn_error();
    }
    return TN_OK;
}

static int64_t sequences_length(tn_dataset *self, int64_t i, bool of_y) {
    const sequences *d = (const sequences *)self;
    return tn_size(of_y ? d->y[i] : d->x[i], 0);
}

static void add_sequence(tn__digest *digest, const tn_tensor *t) {
    size_t bytes = bytes_of(t);
    tn__digest_add(digest, &bytes, sizeof(bytes));
    tn__digest_add(digest, tn_data(t), bytes);
}

static const tn_field sequences_fields[] = {TN_FIELD(sequences, digest), {0}};

static tn_status sequences_digest(tn_dataset *self, char text[33]) {
    const sequences *d = (const sequences *)self;
    tn__digest *digest = tn__digest_new(operation);
    if (!digest) { return TN_ENOMEM; }
    for (int64_t i = 0; i < d->base.size; i++) {
        add_sequence(digest, d->x[i]);
        if (d->y) { add_sequence(digest, d->y[i]); }
    }
    tn__digest_text(digest, text);
    tn__digest_free(digest);
    return TN_OK;
}

static void free_list(tn_tensor **list, int64_t n) {
    for (int64_t i = 0; list && i < n; i++) {
        tn_release(list[i]);
    }
    free(list);
}

static void sequences_free(tn_dataset *self) {
    sequences *d = (sequences *)self;
    free_list(d->x, self->size);
    free_list(d->y, self->size);
    free(d);
}

/* The dimensions of all sequences; the first is -1 if it differs. False after raising. */
static bool common_dims(tn_tensor *const *list, int64_t n, const char *name, tn_dims *dims) {
    for (int64_t i = 0; i < n; i++) {
        if (!tn__usable(list[i], operation)) { return false; }
        if (i == 0) { *dims = tn_shape(list[i]); }
        if (!tn__dims_join(dims, tn_shape(list[i]), true)) {
            return tn__fail(TN_ESHAPE, operation,
                            "%s[%lld] is %s but %s[0] is %s (only the first sizes may differ)",
                            name, (long long)i, tn_shape_text(list[i]), name,
                            tn_shape_text(list[0]));
        }
        if (tn_dtype_of(list[i]) != tn_dtype_of(list[0])) {
            return tn__fail(TN_EDTYPE, operation, "%s[%lld] is %s but %s[0] is %s", name,
                            (long long)i, tn_dtype_name(tn_dtype_of(list[i])), name,
                            tn_dtype_name(tn_dtype_of(list[0])));
        }
    }
    return true;
}

/* The same tensors, contiguous and on the CPU, kept. NULL after raising. */
static tn_tensor **keep_list(tn_tensor *const *list, int64_t n) {
    tn_tensor **kept = tn__calloc_for((size_t)n, sizeof(*kept), operation);
    if (!kept) { return NULL; }
    for (int64_t i = 0; i < n; i++) {
        TN_SCOPE;
        tn_tensor *t = tn_to(tn_contiguous(list[i]), tn_cpu());
        if (tn_is_inert(t)) {
            free_list(kept, n);
            return NULL;
        }
        kept[i] = tn_keep(t);
    }
    return kept;
}

static bool fill_sequences(sequences *d, tn_tensor *const *x, tn_tensor *const *y) {
    tn_dataset *base = &d->base;
    if (!common_dims(x, base->size, "x", &base->x_dims) ||
        (y && !common_dims(y, base->size, "y", &base->y_dims))) {
        return false;
    }
    base->x_dtype = tn_dtype_of(x[0]);
    base->y_dtype = y ? tn_dtype_of(y[0]) : base->y_dtype;
    d->x = keep_list(x, base->size);
    d->y = d->x && y ? keep_list(y, base->size) : NULL;
    return d->x && (!y || d->y);
}

tn_dataset *tn_sequence_dataset(tn_tensor *const *x, tn_tensor *const *y, int64_t n) {
    TN_NO_GRAD;
    if (tn__pending() || !x || n < 1) {
        tn__raise(TN_EVALUE, operation, "%s", x ? TN__BEYOND({"n", n, 1, 0}) : "x is NULL");
        return NULL;
    }
    sequences *d = tn__calloc_for(1, sizeof(*d), operation);
    if (!d) { return NULL; }
    d->base = (tn_dataset){.kind = "sequences",
                           .size = n,
                           .y_dims = {.ndim = -1},
                           .get = sequences_get,
                           .length = sequences_length,
                           .fields = sequences_fields,
                           .digest = sequences_digest,
                           .free = sequences_free};
    if (!fill_sequences(d, x, y)) {
        sequences_free(&d->base);
        return NULL;
    }
    return &d->base;
}
