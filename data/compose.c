/* Datasets made from others: concatenations, subsets and random splits.
 *
 * Each numbers its own examples and passes a read on to the dataset below, with the index there but
 * the same epoch and place: random numbers there still depend on the place in the whole order.
 */
#include "core/digest.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/collate.h"
#include "data/identity.h"
#include "data/sampler.h"
#include "data/taken.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- One after the other --------------------------------------------------------------------- */

typedef struct chain {
    tn_dataset base;
    tn_digest digest;
    int count;
    struct {
        tn_dataset *d;
        int64_t end; /* one past its last example */
    } list[];
} chain;

/* The dataset that has example *i; *i becomes the index there. */
static tn_dataset *link_of(const chain *d, int64_t *i) {
    int low = 0, high = d->count - 1;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (*i < d->list[middle].end) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    *i -= low ? d->list[low - 1].end : 0;
    return d->list[low].d;
}

static tn_status chain_get(tn_dataset *self, tn_example e, void *x, void *y) {
    tn_dataset *d = link_of((const chain *)self, &e.index);
    return d->get(d, e, x, y);
}

static int64_t chain_length(tn_dataset *self, int64_t i, bool of_y) {
    tn_dataset *d = link_of((const chain *)self, &i);
    tn_dims dims = of_y ? d->y_dims : d->x_dims;
    return tn__dims_vary(dims) ? d->length(d, i, of_y) : dims.size[0];
}

static const tn_field chain_fields[] = {
    TN_FIELD_AS("digest of all", chain, digest),
    {0},
};

/* A digest of all their identities, as text. */
static tn_status chain_digest(tn_dataset *self, char text[33]) {
    const chain *d = (const chain *)self;
    tn__digest *digest = tn__digest_new("concat_dataset");
    tn__buffer j = {.operation = "concat_dataset", .failed = !digest};
    for (int k = 0; k < d->count && !j.failed; k++) {
        j.bytes = 0;
        tn__members m = tn__members_begin(&j);
        if (tn__dataset_put(&m, d->list[k].d, "concat_dataset")) {
            tn__digest_add(digest, &d->list[k].end, sizeof(d->list[k].end));
            tn__digest_add(digest, j.bytes ? j.at : "", j.bytes);
        }
        j.failed = j.failed || tn__pending();
    }
    if (!j.failed) { tn__digest_text(digest, text); }
    tn__buffer_free(&j);
    tn__digest_free(digest);
    return tn_error();
}

static void chain_free(tn_dataset *self) {
    chain *d = (chain *)self;
    for (int k = 0; k < d->count; k++) {
        tn__dataset_give_up(d->list[k].d);
    }
    free(d);
}

/* Whether both name the same classes in the same order. */
static bool same_classes(const char *const *a, const char *const *b) {
    if (!a || !b) { return a == b; }
    for (; *a && *b && strcmp(*a, *b) == 0; a++, b++) {}
    return !*a && !*b;
}

/* Adds dataset k to the chain's size, dimensions and classes. False after raising. */
static bool join_link(chain *d, int k) {
    const tn_dataset *each = d->list[k].d;
    tn_dataset *base = &d->base;
    if (__builtin_add_overflow(base->size, each->size, &base->size)) {
        return tn__fail(TN_EVALUE, "concat_dataset", "more examples than 2^63 - 1");
    }
    d->list[k].end = base->size;
    base->length = each->length ? base->length : NULL;
    if (!tn__dims_join(&base->x_dims, each->x_dims, base->length) ||
        !tn__dims_join(&base->y_dims, each->y_dims, base->length)) {
        return tn__fail(TN_ESHAPE, "concat_dataset",
                        "the examples of dataset %d, \"%s\", differ in shape from those of \"%s\"",
                        k, each->kind, d->list[0].d->kind);
    }
    if (base->x_dtype != each->x_dtype ||
        (base->y_dims.ndim >= 0 && base->y_dtype != each->y_dtype)) {
        return tn__fail(TN_EDTYPE, "concat_dataset",
                        "the examples of dataset %d, \"%s\", differ in dtype from those of \"%s\"",
                        k, each->kind, d->list[0].d->kind);
    }
    if (!same_classes(base->classes, each->classes)) {
        base->classes = NULL; /* a class's number has several names */
    }
    return true;
}

/* Holds all of them, with the first one's dimensions. NULL after raising. */
static chain *chain_new(tn_dataset *const *datasets, int count) {
    for (int k = 0; k < count; k++) {
        if (!datasets || !datasets[k]) {
            tn__raise(TN_EVALUE, "concat_dataset", "dataset %d of %d is NULL", k, count);
            return NULL;
        }
    }
    if (tn__pending() || count < 1) {
        tn__raise(TN_EVALUE, "concat_dataset", "%d datasets (1 at least)", count);
        return NULL;
    }
    chain *d = tn__calloc_for(1, sizeof(*d) + (size_t)count * sizeof(d->list[0]), "concat_dataset");
    if (!d) { return NULL; }
    d->base = tn__dataset_like(datasets[0], "concatenation");
    d->base.size = 0; /* so far */
    d->base.get = chain_get;
    d->base.length = chain_length;
    d->base.fields = chain_fields;
    d->base.digest = chain_digest;
    d->base.free = chain_free;
    d->count = count;
    for (int k = 0; k < count; k++) {
        d->list[k].d = datasets[k];
    }
    return d;
}

tn_dataset *tn_concat_dataset(tn_dataset *const *datasets, int count) {
    int taken = 0;
    while (datasets && taken < count && tn__dataset_take(datasets[taken], "concat_dataset")) {
        taken++;
    }
    bool all = !datasets || taken >= count;
    chain *d = all ? chain_new(datasets, count) : NULL;
    if (!d) {
        while (taken > 0) {
            tn__dataset_give_up(datasets[--taken]);
        }
        return NULL;
    }
    for (int k = 0; k < count; k++) {
        if (!join_link(d, k)) {
            chain_free(&d->base);
            return NULL;
        }
    }
    return &d->base;
}

/* ---- Some examples of one -------------------------------------------------------------------- */

/* Chosen by a list or, without one, `size` places of a permutation from `first` on. */
typedef struct subset {
    tn_dataset base;
    int64_t *indices; /* [base.size] or NULL */
    tn_digest digest;
    uint64_t seed;
    int64_t first;
    char split[48]; /* seed and first, "7:100"; "" with indices */
} subset;

static int64_t index_in_whole(const subset *d, int64_t i) {
    return d->indices ? d->indices[i] : tn__split_index(d->seed, d->base.below->size, d->first + i);
}

static tn_status subset_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const subset *d = (const subset *)self;
    e.index = index_in_whole(d, e.index);
    return d->base.below->get(d->base.below, e, x, y);
}

static int64_t subset_length(tn_dataset *self, int64_t i, bool of_y) {
    const subset *d = (const subset *)self;
    return d->base.below->length(d->base.below, index_in_whole(d, i), of_y);
}

static const tn_field subset_fields[] = {
    TN_FIELD_AS("digest of indices", subset, digest, .optional = true),
    TN_FIELD_AS("split", subset, split, .optional = true),
    {0},
};

static void subset_free(tn_dataset *self) {
    subset *d = (subset *)self;
    tn__dataset_give_up(d->base.below);
    free(d->indices);
    free(d);
}

/* `size` examples of `whole`, which was taken for it. NULL after raising. */
static subset *subset_new(tn_dataset *whole, int64_t size, const char *operation) {
    subset *d = tn__calloc_for(1, sizeof(*d), operation);
    if (!d) { return NULL; }
    d->base = tn__dataset_like(whole, "subset");
    d->base.size = size;
    d->base.get = subset_get;
    d->base.length = whole->length ? subset_length : NULL;
    d->base.fields = subset_fields;
    d->base.below = whole;
    d->base.free = subset_free;
    return d;
}

static bool indices_fit(const tn_dataset *d, const int64_t *indices, int64_t n) {
    if (tn__pending() || !d || n < 0 || (n && !indices)) {
        return tn__fail(TN_EVALUE, "subset", "%s, %lld indices",
                        !d              ? "the dataset is NULL"
                        : n && !indices ? "NULL instead of indices"
                                        : "a dataset",
                        (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        if (indices[i] < 0 || indices[i] >= d->size) {
            return tn__fail(TN_EINDEX, "subset", "index %lld is %lld, but there are %lld examples",
                            (long long)i, (long long)indices[i], (long long)d->size);
        }
    }
    return true;
}

tn_dataset *tn_subset(tn_dataset *d, const int64_t *indices, int64_t n) {
    if (!tn__dataset_take(d, "subset")) { return NULL; }
    size_t bytes = (size_t)n * sizeof(*indices);
    int64_t *mine = indices_fit(d, indices, n) ? tn__malloc_for(bytes, "subset") : NULL;
    subset *s = mine ? subset_new(d, n, "subset") : NULL;
    if (!s) {
        free(mine);
        tn__dataset_give_up(d);
        return NULL;
    }
    if (bytes) { memcpy(mine, indices, bytes); }
    s->indices = mine;
    s->digest = tn__digest_over(mine, bytes);
    return &s->base;
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Writes how many examples each piece has to sizes[count]. False after raising. */
static bool size_pieces(const double *lengths, int count, int64_t size, int64_t *sizes) {
    double sum = 0;
    bool fit = true;
    for (int k = 0; k < count; k++) {
        fit = fit && lengths[k] >= 0 && isfinite(lengths[k]);
        sum += lengths[k];
    }
    bool fractions = fit && fabs(sum - 1) <= 1e-9;
    int64_t given = 0;
    for (int k = 0; k < count && fit; k++) {
        double exact = fractions ? floor(lengths[k] * (double)size) : lengths[k];
        fit = exact <= (double)(size - given) && exact == floor(exact);
        sizes[k] = fit ? (int64_t)exact : 0;
        given += sizes[k];
    }
    for (int k = 0; fractions && given < size; k = (k + 1) % count) {
        sizes[k]++;
        given++;
    }
    if (!fit || given != size) {
        return tn__fail(
            TN_EVALUE, "random_split",
            "lengths whose sum is %.15g, of %lld examples (counts whose sum is that, or "
            "fractions whose sum is 1)",
            sum, (long long)size);
    }
    return true;
}

/* Makes the pieces, each with its own reference to d. False after raising; then there are none. */
static bool make_pieces(tn_dataset *d, const int64_t *sizes, int count, uint64_t seed,
                        tn_dataset **pieces) {
    int64_t first = 0;
    for (int k = 0; k < count; k++) {
        subset *piece = subset_new(d, sizes[k], "random_split");
        if (!piece) {
            for (int made = 0; made < k; made++) {
                tn_dataset_free(pieces[made]);
                pieces[made] = NULL;
            }
            return false;
        }
        tn__dataset_take(tn_dataset_keep(d), "random_split");
        piece->seed = seed;
        piece->first = first;
        snprintf(piece->split, sizeof(piece->split), "%llu:%lld", (unsigned long long)seed,
                 (long long)first);
        pieces[k] = &piece->base;
        first += sizes[k];
    }
    return true;
}

tn_status tn_random_split(tn_dataset *d, const double *lengths, int count, uint64_t seed,
                          tn_dataset **pieces) {
    for (int k = 0; pieces && k < count; k++) {
        pieces[k] = NULL;
    }
    if (!tn__dataset_take(d, "random_split")) { return tn_error(); }
    if (tn__pending() || !d || !lengths || !pieces || count < 1) {
        tn__raise(TN_EVALUE, "random_split",
                  "%d pieces (1 at least), and neither dataset, lengths nor pieces may be NULL",
                  count);
    } else {
        int64_t *sizes = tn__calloc_for((size_t)count, sizeof(*sizes), "random_split");
        if (sizes && size_pieces(lengths, count, d->size, sizes)) {
            make_pieces(d, sizes, count, seed, pieces);
        }
        free(sizes);
    }
    tn__dataset_give_up(d); /* the pieces have their own references */
    return tn_error();
}
