/* A dataset whose examples pass through transforms as they are read.
 *
 * An example goes to and fro between two pieces of scratch memory; the last transform writes where
 * the batch is made.
 */
#include "tern/transforms.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/taken.h"

#include <stdio.h>
#include <string.h>

#define FIRST_STREAM (UINT64_C(1) << 32) /* of a reading's generator: the dataset's own is 0 */

typedef struct transformed {
    tn_dataset base;
    tn_dataset *below;
    uint64_t seed;
    int64_t room; /* floats: the most that stands between two transforms */
    int count;
    tn_transform list[]; /* [count] */
} transformed;

/* x of the dataset below is in `from`. */
static tn_status apply_list(const transformed *d, tn_example e, float *from, float *to, float *x) {
    tn_generator of_example = tn_example_generator(e, d->seed);
    tn_dims dims = d->below->x_dims;
    for (int k = 0; k < d->count; k++) {
        const tn_transform *t = &d->list[k];
        tn_generator random = of_example;
        random.stream = FIRST_STREAM + (uint64_t)k;
        tn_status status = t->apply(t, dims, from, k == d->count - 1 ? x : to, &random);
        if (status != TN_OK || tn__pending()) {
            return tn__raise(status, "transform", "%s of example %lld failed without saying why",
                             t->kind, (long long)e.index);
        }
        if (t->shape && t->shape(t, &dims) != TN_OK) {
            return tn_error();
        }
        float *written = to;
        to = from;
        from = written;
    }
    return TN_OK;
}

static tn_status transformed_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const transformed *d = (const transformed *)self;
    if (d->count == 0) {
        return d->below->get(d->below, e, x, y);
    }
    float *scratch = tn__malloc(2 * (size_t)d->room * sizeof(float));
    if (!scratch) {
        return tn__raise(TN_ENOMEM, "transform", "no memory for an example");
    }
    tn_status status = d->below->get(d->below, e, scratch, y);
    if (status == TN_OK) {
        status = apply_list(d, e, scratch, scratch + d->room, x);
    }
    free(scratch);
    return status;
}

static int64_t transformed_length(tn_dataset *self, int64_t i, bool of_y) {
    const transformed *d = (const transformed *)self;
    return d->below->length(d->below, i, of_y);
}

/* Adds text as snprintf does, behind the first *used bytes. */
static void add_text(char *text, size_t room, int *used, const char *part) {
    size_t left = *used < (int)room ? room - (size_t)*used : 0;
    *used += snprintf(left ? text + *used : NULL, left, "%s", part);
}

static int transformed_describe(tn_dataset *self, char *text, size_t room) {
    const transformed *d = (const transformed *)self;
    char part[64];
    int used = d->below->describe ? d->below->describe(d->below, text, room) : 0;
    if (used < 0) {
        return used;
    }
    snprintf(part, sizeof(part), "%sseed of transforms %llu", used ? ", " : "",
             (unsigned long long)d->seed);
    add_text(text, room, &used, part);
    for (int k = 0; k < d->count; k++) {
        const tn_transform *t = &d->list[k];
        snprintf(part, sizeof(part), ", %.40s %s", t->kind, t->values ? "" : "there");
        add_text(text, room, &used, part);
        for (int v = 0; v < t->values; v++) {
            snprintf(part, sizeof(part), "%s%.9g", v ? ":" : "", t->value[v]);
            add_text(text, room, &used, part);
        }
    }
    return used;
}

static void transformed_free(tn_dataset *self) {
    transformed *d = (transformed *)self;
    tn__dataset_give_up(d->below);
    free(d);
}

/* What comes out of all transforms, and the most that stands between two. False after raising. */
static bool follow_dims(const tn_transform *list, int count, tn_dims *dims, int64_t *room) {
    *room = tn_dims_count(*dims);
    for (int k = 0; k < count; k++) {
        const tn_transform *t = &list[k];
        const int most = sizeof(t->value) / sizeof(*t->value);
        if (!t->apply || !t->kind || t->values < 0 || t->values > most) {
            tn__raise(TN_EVALUE, "transformed",
                      "transform %d has no kind, no apply or %d values (0 to %d)", k, t->values,
                      most);
            return false;
        }
        tn_status status = t->shape ? t->shape(t, dims) : TN_OK;
        int64_t elements = tn_dims_count(*dims);
        if (status != TN_OK || tn__pending() || elements < 0 ||
            elements > INT64_MAX / (int64_t)(4 * sizeof(float))) {
            tn__raise(status == TN_OK ? TN_ESHAPE : status, "transformed",
                      "%s does not take such examples", t->kind);
            return false;
        }
        *room = elements > *room ? elements : *room;
    }
    return true;
}

static bool can_transform(const tn_dataset *d, const tn_transform *list, int count) {
    if (tn__pending() || !d || count < 0 || (count && !list)) {
        tn__raise(TN_EVALUE, "transformed", "%s, %d transforms",
                  d ? "a dataset" : "the dataset is NULL", count);
        return false;
    }
    if (d->x_dtype != TN_F32) {
        tn__raise(TN_EDTYPE, "transformed", "x of the dataset \"%s\" is %s, but should be f32",
                  d->kind, tn_dtype_name(d->x_dtype));
        return false;
    }
    if (tn_dims_count(d->x_dims) < 0) {
        tn__raise(TN_ESHAPE, "transformed", "x of the dataset \"%s\" has no fixed size", d->kind);
        return false;
    }
    return true;
}

/* Everything but the dataset below. NULL after raising. */
static transformed *transformed_new(const tn_dataset *below, const tn_transform *list, int count,
                                    uint64_t seed) {
    tn_dims dims = below->x_dims;
    int64_t room;
    if (!follow_dims(list, count, &dims, &room)) {
        return NULL;
    }
    transformed *d = tn__malloc(sizeof(*d) + (size_t)count * sizeof(*list));
    if (!d) {
        tn__raise(TN_ENOMEM, "transformed", "no memory for %d transforms", count);
        return NULL;
    }
    *d = (transformed){.base = {.kind = "transformed",
                                .size = below->size,
                                .x_dims = dims,
                                .y_dims = below->y_dims,
                                .x_dtype = TN_F32,
                                .y_dtype = below->y_dtype,
                                .classes = below->classes,
                                .get = transformed_get,
                                .length = below->length ? transformed_length : NULL,
                                .describe = transformed_describe,
                                .free = transformed_free},
                       .seed = seed,
                       .room = room,
                       .count = count};
    if (count) {
        memcpy(d->list, list, (size_t)count * sizeof(*list));
    }
    return d;
}

tn_dataset *tn_transformed(tn_dataset *d, const tn_transform *list, int count, uint64_t seed) {
    if (!tn__dataset_take(d, "transformed")) {
        return NULL;
    }
    transformed *t = can_transform(d, list, count) ? transformed_new(d, list, count, seed) : NULL;
    if (!t) {
        tn__dataset_give_up(d);
        return NULL;
    }
    t->below = d;
    return &t->base;
}
