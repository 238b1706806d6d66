/* What all datasets share, and two that are in memory: rows of tensors, and windows of a token
 * sequence. */
#include "core/digest.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/identity.h"
#include "data/rows.h"
#include "data/sampler.h"
#include "data/taken.h"
#include "tern/sys/tensor.h"

#include <stdio.h>
#include <string.h>

/* The `call` word of the draws of examples (sampler.c has the others). */
#define CALL_EXAMPLE 0xfffffffd00000000u

tn_generator tn_example_generator(tn_example e, uint64_t seed) {
    return (tn_generator){
        .seed = tn__draw_word(seed, (uint64_t)e.epoch, CALL_EXAMPLE, (uint64_t)e.place)};
}

/* ---- Identity -------------------------------------------------------------------------------- */

static tn_status make_digest(tn_dataset *d, tn_digest *digest) {
    char text[TN__DIGEST_DIGITS + 1] = "";
    tn_status status = TN_OK;
    if (tn__digest_known(digest) || (!digest->data && !d->digest)) { return TN_OK; }
    if (digest->data) {
        tn__digest_of(digest->data, digest->bytes, text);
    } else {
        status = d->digest(d, text);
    }
    if (status == TN_OK && !tn__pending()) { tn__digest_note(digest, text); }
    return status;
}

bool tn__dataset_put(tn__members *m, tn_dataset *d, const char *operation) {
    if (d->below && !tn__dataset_put(m, d->below, operation)) { return false; }
    for (const tn_field *f = d->fields; f && f->name; f++) {
        tn_status status = f->kind != TN_FIELD_DIGEST
                               ? TN_OK
                               : make_digest(d, (tn_digest *)((char *)d + f->offset));
        if (status != TN_OK || tn__pending()) {
            return tn__fail(status, operation, "no digest of the dataset \"%s\"", d->kind);
        }
    }
    tn__fields_put(m, d->fields, d, false);
    return true;
}

/* ---- Owners ---------------------------------------------------------------------------------- */

/* `takers` of a freed dataset, until its memory is reused. */
#define FREED INT64_MIN

/* Whether d may be used; false after raising. */
static bool is_alive(const tn_dataset *d, const char *operation) {
    if (__atomic_load_n(&d->takers, __ATOMIC_RELAXED) == FREED) {
        return tn__fail(
            TN_ESTATE, operation,
            "the dataset was freed (a loader, tn_subset or anything else that takes one frees "
            "it with itself; call tn_dataset_keep(d) first to keep it)");
    }
    return true;
}

/* Whether all references to d belong to takers. */
static bool is_taken(const tn_dataset *d) {
    return d->free && __atomic_load_n(&d->takers, __ATOMIC_RELAXED) >
                          __atomic_load_n(&d->keepers, __ATOMIC_RELAXED);
}

static void drop_reference(tn_dataset *d) {
    if (__atomic_fetch_sub(&d->keepers, 1, __ATOMIC_ACQ_REL) == 0) {
        d->keepers = 0; /* one without `free` may be used again */
        if (d->free) {
            __atomic_store_n(&d->takers, FREED, __ATOMIC_RELAXED);
            d->free(d);
        }
    }
}

bool tn__dataset_take(tn_dataset *d, const char *operation) {
    if (!d) { return true; }
    if (!is_alive(d, operation)) { return false; }
    if (is_taken(d)) {
        return tn__fail(
            TN_ESTATE, operation,
            "the dataset \"%s\" belongs to a loader or another dataset already, which frees it "
            "(pass tn_dataset_keep(d) to one of them)",
            d->kind);
    }
    __atomic_fetch_add(&d->takers, 1, __ATOMIC_RELAXED);
    return true;
}

void tn__dataset_give_up(tn_dataset *d) {
    if (d) {
        __atomic_fetch_sub(&d->takers, 1, __ATOMIC_RELAXED);
        drop_reference(d);
    }
}

void tn_dataset_free(tn_dataset *d) {
    if (!d || !is_alive(d, "dataset_free")) { return; }
    if (is_taken(d)) {
        tn__raise(TN_ESTATE, "dataset_free",
                  "the dataset \"%s\" belongs to a loader or another dataset, which frees it (pass "
                  "tn_dataset_keep(d) there, and it stays yours as well)",
                  d->kind);
        return;
    }
    drop_reference(d);
}

tn_dataset *tn_dataset_keep(tn_dataset *d) {
    if (!d || !is_alive(d, "dataset_keep")) { return NULL; }
    __atomic_fetch_add(&d->keepers, 1, __ATOMIC_RELAXED);
    return d;
}

tn_status tn_dataset_get(tn_dataset *d, int64_t i, void *x, void *y) {
    if (!d || !d->get || i < 0 || i >= d->size) {
        return tn__raise(d ? TN_EINDEX : TN_EVALUE, "dataset_get",
                         "example %lld of %lld of the dataset \"%s\"", (long long)i,
                         (long long)(d ? d->size : 0), d ? d->kind : "NULL");
    }
    if (!x || (!y && d->y_dims.ndim >= 0)) {
        return tn__raise(TN_EVALUE, "dataset_get", "%s is NULL", x ? "y" : "x");
    }
    return d->get(d, (tn_example){.index = i, .place = i}, x, y);
}

tn_tensor *tn_dataset_lengths(tn_dataset *d) {
    if (tn__pending() || !d || d->x_dims.ndim < 1 || d->size < 0) {
        tn__raise(TN_EVALUE, "dataset_lengths", "the dataset is NULL or its x has no dimensions");
        return tn_inert();
    }
    TN_SCOPE;
    tn_tensor *lengths = tn_empty_on(tn_cpu(), TN_DIMS(d->size), TN_I64);
    int64_t *at = tn_data_mut(lengths);
    for (int64_t i = 0; at && i < d->size; i++) {
        at[i] = d->x_dims.size[0] == -1 ? d->length(d, i, false) : d->x_dims.size[0];
        if (at[i] < 0) {
            tn__raise(TN_EVALUE, "dataset_lengths", "the length of example %lld is %lld",
                      (long long)i, (long long)at[i]);
            break;
        }
    }
    return tn_return(lengths);
}

/* ---- Rows of tensors ------------------------------------------------------------------------- */

typedef struct rows {
    tn_dataset base;
    tn_tensor *x, *y;        /* contiguous, one reference each; y may be NULL */
    size_t x_bytes, y_bytes; /* of one row */
    tn_digest x_digest, y_digest;
    char **names; /* of classes, for one free(); NULL: not its own */
} rows;

static const void *row_at(const tn_tensor *t, size_t bytes, int64_t i) {
    return (const char *)tn_data(t) + (size_t)i * bytes;
}

static tn_status rows_get(tn_dataset *self, tn_example e, void *x, void *y) {
    rows *d = (rows *)self;
    if (!tn__usable(d->x, "tensor_dataset") || (d->y && !tn__usable(d->y, "tensor_dataset"))) {
        return tn_error();
    }
    memcpy(x, row_at(d->x, d->x_bytes, e.index), d->x_bytes);
    if (d->y) { memcpy(y, row_at(d->y, d->y_bytes, e.index), d->y_bytes); }
    return TN_OK;
}

static tn_status pictures_get(tn_dataset *self, tn_example e, void *x, void *y) {
    rows *d = (rows *)self;
    const uint8_t *pixels = row_at(d->x, d->x_bytes, e.index);
    for (size_t p = 0; p < d->x_bytes; p++) {
        ((float *)x)[p] = (float)pixels[p] / 255.0f;
    }
    if (d->y) { memcpy(y, row_at(d->y, d->y_bytes, e.index), d->y_bytes); }
    return TN_OK;
}

static const tn_field rows_fields[] = {
    TN_FIELD_AS("digest of x", rows, x_digest),
    TN_FIELD_AS("digest of y", rows, y_digest, .optional = true),
    {0},
};

/* The digest of x, then that of y; their elements may have moved since the dataset was made. */
static tn_status rows_digest(tn_dataset *self, char text[33]) {
    const rows *d = (const rows *)self;
    const tn_tensor *t = tn__digest_known(&d->x_digest) ? d->y : d->x;
    if (t && tn__usable(t, "tensor_dataset")) {
        tn__digest_of(tn_data(t), (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)), text);
    }
    return tn_error();
}

static void rows_free(tn_dataset *self) {
    rows *d = (rows *)self;
    tn_release(d->x);
    tn_release(d->y);
    free(d->names);
    free(d);
}

static tn_dims row_dims(const tn_tensor *t) {
    tn_dims dims = tn_shape(t);
    return tn_dims_from(dims.ndim - 1, dims.size + 1);
}

static bool has_rows(const tn_tensor *t, const char *name) {
    if (!tn__usable(t, "tensor_dataset")) { return false; }
    if (tn_ndim(t) < 1) {
        return tn__fail(TN_ESHAPE, "tensor_dataset",
                        "%s is %s: its first dimension should count the examples", name,
                        tn_shape_text(t));
    }
    return true;
}

tn_dataset *tn_tensor_dataset(tn_tensor *x, tn_tensor *y) {
    TN_SCOPE;
    TN_NO_GRAD;
    if (!has_rows(x, "x") || (y && !has_rows(y, "y"))) { return NULL; }
    if (y && tn_size(y, 0) != tn_size(x, 0)) {
        tn__raise(TN_ESHAPE, "tensor_dataset",
                  "x is %s but y is %s (the first dimensions must be equal)", tn_shape_text(x),
                  tn_shape_text(y));
        return NULL;
    }
    x = tn_to(tn_contiguous(x), tn_cpu());
    y = y ? tn_to(tn_contiguous(y), tn_cpu()) : NULL;
    if (tn_is_inert(x) || (y && tn_is_inert(y))) { return NULL; }
    rows *d = tn__calloc_for(1, sizeof(*d), "tensor_dataset");
    if (!d) { return NULL; }
    d->base = (tn_dataset){.kind = "tensors",
                           .size = tn_size(x, 0),
                           .x_dims = row_dims(x),
                           .x_dtype = tn_dtype_of(x),
                           .y_dims = {.ndim = -1},
                           .get = rows_get,
                           .fields = rows_fields,
                           .digest = rows_digest,
                           .free = rows_free};
    d->x = tn_keep(x);
    d->x_bytes = (size_t)tn_dims_count(d->base.x_dims) * tn_dtype_size(d->base.x_dtype);
    if (y) {
        d->base.y_dims = row_dims(y);
        d->base.y_dtype = tn_dtype_of(y);
        d->y = tn_keep(y);
        d->y_bytes = (size_t)tn_dims_count(d->base.y_dims) * tn_dtype_size(d->base.y_dtype);
    }
    return &d->base;
}

/* NULL after raising. */
static char **copy_names(const char *const *names) {
    size_t count = 0, bytes = 0;
    for (; names[count]; count++) {
        bytes += strlen(names[count]) + 1;
    }
    char **copy = tn__malloc_for((count + 1) * sizeof(*copy) + bytes, "tensor_dataset");
    char *to = (char *)(copy ? copy + count + 1 : NULL);
    for (size_t i = 0; copy && i <= count; i++) {
        copy[i] = names[i] ? strcpy(to, names[i]) : NULL;
        to += names[i] ? strlen(to) + 1 : 0;
    }
    return copy;
}

static void free_block(void *block, void *user) {
    free(block);
}

tn_tensor *tn__rows_adopt(void *block, tn_dims dims, tn_dtype dtype) {
    void *at;
    memcpy(&at, block, sizeof(at));
    tn_tensor *t = tn_from_memory(at, dims, dtype, free_block, NULL);
    if (!tn_is_inert(t)) { memset(block, 0, sizeof(at)); }
    return t;
}

tn_dataset *tn__rows_dataset(const char *kind, tn_tensor *x, tn_tensor *y,
                             const char *const *classes) {
    TN_SCOPE;
    bool pictures = tn_dtype_of(x) == TN_U8;
    tn_dataset *d = tn_tensor_dataset(x, y && pictures ? tn_cast(y, TN_I64) : y);
    if (!d) { return NULL; }
    d->kind = kind;
    d->x_dtype = TN_F32;
    d->get = pictures ? pictures_get : rows_get;
    char **names = classes ? copy_names(classes) : NULL;
    ((rows *)d)->names = names;
    d->classes = (const char *const *)names;
    if (classes && !names) {
        rows_free(d);
        return NULL;
    }
    return d;
}

/* ---- Windows of tokens ----------------------------------------------------------------------- */

typedef struct windows {
    tn_dataset base;
    int64_t length;
    tn_digest digest;
    int32_t *tokens; /* [size + length] */
} windows;

static tn_status windows_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const windows *d = (const windows *)self;
    const int32_t *from = d->tokens + e.index;
    int64_t *input = x, *target = y;
    for (int64_t t = 0; t < d->length; t++) {
        input[t] = from[t];
        target[t] = from[t + 1];
    }
    return TN_OK;
}

static const tn_field windows_fields[] = {TN_FIELD(windows, digest), {0}};

static void windows_free(tn_dataset *self) {
    free(((windows *)self)->tokens);
    free(self);
}

tn_dataset *tn_token_dataset(const int32_t *tokens, int64_t n, int64_t length) {
    if (length < 1) {
        tn__raise(TN_EVALUE, "token_dataset", "the length of a window is %lld (1 at least)",
                  (long long)length);
        return NULL;
    }
    if (n <= length) {
        tn__raise(TN_EVALUE, "token_dataset",
                  "%lld tokens, but a window of length %lld takes %llu at least", (long long)n,
                  (long long)length, (unsigned long long)length + 1);
        return NULL;
    }
    if (!tokens) {
        tn__raise(TN_EVALUE, "token_dataset", "NULL instead of %lld tokens", (long long)n);
        return NULL;
    }
    windows *d = tn__calloc_for(1, sizeof(*d), "token_dataset");
    int32_t *mine = d ? tn__calloc_for((size_t)n, sizeof(*mine), "token_dataset") : NULL;
    if (!mine) {
        free(d);
        return NULL;
    }
    d->base = (tn_dataset){.kind = "tokens",
                           .size = n - length,
                           .x_dims = TN_DIMS(length),
                           .y_dims = TN_DIMS(length),
                           .x_dtype = TN_I64,
                           .y_dtype = TN_I64,
                           .get = windows_get,
                           .fields = windows_fields,
                           .free = windows_free};
    d->length = length;
    d->tokens = memcpy(mine, tokens, (size_t)n * sizeof(int32_t));
    d->digest = tn__digest_over(mine, (size_t)n * sizeof(int32_t));
    return &d->base;
}
