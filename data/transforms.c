/* A dataset whose examples pass through transforms as they are read.
 *
 * An example goes back and forth between two scratch buffers; the last transform writes into the
 * batch.
 */
#include "tern/transforms.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/taken.h"

#include <stdio.h>
#include <string.h>

#define FIRST_STREAM (UINT64_C(1) << 32) /* of an example's generator: the dataset uses 0 */

enum { VALUES = sizeof(((tn_transform *)0)->value) / sizeof(double) };

typedef struct step {
    tn_transform transform;
    char values[18 * VALUES]; /* its arguments, in the form that checkpoints have: "32:0.5" */
} step;

typedef struct transformed {
    tn_dataset base;
    uint64_t seed;
    int64_t scratch_size; /* in floats: the largest x between two transforms */
    int count;
    tn_field *fields; /* [count + 2]: the seed, and each one's values under its kind */
    step list[];      /* [count] */
} transformed;

/* `from` has x of the dataset below. */
static tn_status apply_list(const transformed *d, tn_example e, float *from, float *to, float *x) {
    tn_generator of_example = tn_example_generator(e, d->seed);
    tn_dims dims = d->base.below->x_dims;
    for (int k = 0; k < d->count; k++) {
        const tn_transform *t = &d->list[k].transform;
        tn_generator random = of_example;
        random.stream = FIRST_STREAM + (uint64_t)k;
        tn_status status = t->apply(t, dims, from, k == d->count - 1 ? x : to, &random);
        if (status != TN_OK || tn__pending()) {
            return tn__raise(status, "transform", "%s of example %lld failed without saying why",
                             t->kind, (long long)e.index);
        }
        if (t->shape && t->shape(t, &dims) != TN_OK) { return tn_error(); }
        float *written = to;
        to = from;
        from = written;
    }
    return TN_OK;
}

static tn_status transformed_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const transformed *d = (const transformed *)self;
    if (d->count == 0) { return d->base.below->get(d->base.below, e, x, y); }
    float *scratch = tn__malloc_for(2 * (size_t)d->scratch_size * sizeof(float), "transform");
    if (!scratch) { return TN_ENOMEM; }
    tn_status status = d->base.below->get(d->base.below, e, scratch, y);
    if (status == TN_OK) { status = apply_list(d, e, scratch, scratch + d->scratch_size, x); }
    free(scratch);
    return status;
}

static int64_t transformed_length(tn_dataset *self, int64_t i, bool of_y) {
    const transformed *d = (const transformed *)self;
    return d->base.below->length(d->base.below, i, of_y);
}

static void fill_fields(transformed *d) {
    /* cppcheck-suppress nullPointer */ /* a member's offset */
    d->fields[0] = (tn_field)TN_FIELD_AS("seed of transforms", transformed, seed);
    for (int k = 0; k < d->count; k++) {
        step *s = &d->list[k];
        int used = 0;
        for (int v = 0; v < s->transform.values; v++) {
            used += snprintf(s->values + used, sizeof(s->values) - (size_t)used, "%s%.9g",
                             v ? ":" : "", s->transform.value[v]);
        }
        if (!used) { strcpy(s->values, "there"); }
        d->fields[k + 1] = (tn_field){.name = s->transform.kind,
                                      .kind = TN_FIELD_CHARS,
                                      .offset = (size_t)(s->values - (char *)d),
                                      .bytes = sizeof(s->values)};
    }
}

static void transformed_free(tn_dataset *self) {
    transformed *d = (transformed *)self;
    tn__dataset_give_up(d->base.below);
    free(d->fields);
    free(d);
}

/* The result's dimensions, and the size of the largest x between two transforms. False after
 * raising. */
static bool follow_dims(const tn_transform *list, int count, tn_dims *dims, int64_t *scratch_size) {
    *scratch_size = tn_dims_count(*dims);
    for (int k = 0; k < count; k++) {
        const tn_transform *t = &list[k];
        if (!t->apply || !t->kind || t->values < 0 || t->values > VALUES) {
            return tn__fail(TN_EVALUE, "transformed",
                            "transform %d has no kind, no apply or %d values (0 to %d)", k,
                            t->values, VALUES);
        }
        tn_status status = t->shape ? t->shape(t, dims) : TN_OK;
        int64_t elements = tn_dims_count(*dims);
        if (status != TN_OK || tn__pending() || elements < 0 ||
            elements > INT64_MAX / (int64_t)(4 * sizeof(float))) {
            return tn__fail(status == TN_OK ? TN_ESHAPE : status, "transformed",
                            "%s does not take such examples", t->kind);
        }
        *scratch_size = elements > *scratch_size ? elements : *scratch_size;
    }
    return true;
}

static bool can_transform(const tn_dataset *d, const tn_transform *list, int count) {
    if (tn__pending() || !d || count < 0 || (count && !list)) {
        return tn__fail(TN_EVALUE, "transformed", "%s, %d transforms",
                        d ? "a dataset" : "the dataset is NULL", count);
    }
    if (d->x_dtype != TN_F32) {
        return tn__fail(TN_EDTYPE, "transformed",
                        "x of the dataset \"%s\" is %s, but should be f32", d->kind,
                        tn_dtype_name(d->x_dtype));
    }
    if (tn_dims_count(d->x_dims) < 0) {
        return tn__fail(TN_ESHAPE, "transformed", "x of the dataset \"%s\" has no fixed size",
                        d->kind);
    }
    return true;
}

/* NULL after raising. */
static transformed *transformed_new(tn_dataset *below, const tn_transform *list, int count,
                                    uint64_t seed) {
    tn_dims dims = below->x_dims;
    int64_t scratch_size;
    if (!follow_dims(list, count, &dims, &scratch_size)) { return NULL; }
    transformed *d =
        tn__calloc_for(1, sizeof(*d) + (size_t)count * sizeof(*d->list), "transformed");
    tn_field *fields = d ? tn__calloc_for((size_t)count + 2, sizeof(*fields), "transformed") : NULL;
    if (!fields) {
        free(d);
        return NULL;
    }
    d->base = tn__dataset_like(below, "transformed");
    d->base.x_dims = dims;
    d->base.get = transformed_get;
    d->base.length = below->length ? transformed_length : NULL;
    d->base.fields = fields;
    d->base.below = below;
    d->base.free = transformed_free;
    d->seed = seed;
    d->scratch_size = scratch_size;
    d->count = count;
    d->fields = fields;
    for (int k = 0; k < count; k++) {
        d->list[k].transform = list[k];
    }
    fill_fields(d);
    return d;
}

tn_dataset *tn_transformed(tn_dataset *d, const tn_transform *list, int count, uint64_t seed) {
    if (!tn__dataset_take(d, "transformed")) { return NULL; }
    transformed *t = can_transform(d, list, count) ? transformed_new(d, list, count, seed) : NULL;
    if (!t) {
        tn__dataset_give_up(d);
        return NULL;
    }
    return &t->base;
}
