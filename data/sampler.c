/* Samplers: which example is at a place of an epoch, computed from the seed alone.
 *
 * A shuffled epoch is a bijection of [0, size): a Feistel network over pairs (l, r), l < a, r < b,
 * with a * b just large enough, and with additions modulo a and b where a block cipher uses
 * exclusive or (Black, Rogaway 2002, "Ciphers with arbitrary finite domains"). A result that is not
 * below size is permuted again until it is; that concerns fewer than one place in sqrt(size). Round
 * functions are words of Philox.
 *
 * Two kinds have a table, as long as the dataset and the same in all epochs: the running sums of
 * weights, in which a draw is looked up; or the examples in order of length, of which a bucket is a
 * contiguous range. A bucketed order is two permutations: one of all batches, one of the examples
 * in a bucket.
 */
#include "data/sampler.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/memory.h"
#include "tern/sys/tensor.h"

#include <math.h>
#include <stdio.h>

enum { ROUNDS = 8 };

/* The `call` words of the samplers' draws. Generators count calls up from 0, so a program that uses
 * one seed for everything draws its samples and its weights from different numbers. */
#define CALL_SHUFFLE 0xfffffffe00000000u
#define CALL_REPLACE 0xffffffff00000000u
#define CALL_WEIGHTED 0xfffffffc00000000u
#define CALL_BUCKET 0xfffffffb00000000u

tn_sampler tn_sequential_sampler(void) {
    return (tn_sampler){.kind = TN_SAMPLE_SEQUENTIAL, .parts = 1};
}

tn_sampler tn_random_sampler(uint64_t seed) {
    return (tn_sampler){.kind = TN_SAMPLE_SHUFFLED, .seed = seed, .parts = 1};
}

tn_sampler tn_replacement_sampler(uint64_t seed) {
    return (tn_sampler){.kind = TN_SAMPLE_REPLACEMENT, .seed = seed, .parts = 1};
}

/* A number in [0, n): the high half of a 64 x 64 bit product, so the bias is n / 2^64. */
static int64_t draw_index(uint64_t seed, uint64_t epoch, uint64_t call, uint64_t index, int64_t n) {
    uint64_t word = tn__draw_word(seed, epoch, call, index);
    return (int64_t)(((unsigned __int128)word * (uint64_t)n) >> 64);
}

/* The smallest a with a * a >= n. */
static int64_t root_above(int64_t n) {
    int64_t low = 1, high = INT64_C(3037000500);
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if ((uint64_t)middle * (uint64_t)middle >= (uint64_t)n) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static int64_t shuffled_index(uint64_t seed, int64_t size, uint64_t epoch, int64_t position) {
    int64_t a = root_above(size), b = (size - 1) / a + 1, at = position;
    do {
        int64_t l = at % a, r = at / a;
        for (uint64_t round = 0; round < ROUNDS; round += 2) {
            l = (l + draw_index(seed, epoch, CALL_SHUFFLE + round, (uint64_t)r, a)) % a;
            r = (r + draw_index(seed, epoch, CALL_SHUFFLE + round + 1, (uint64_t)l, b)) % b;
        }
        at = r * a + l;
    } while (at >= size);
    return at;
}

int64_t tn__split_index(uint64_t seed, int64_t size, int64_t place) {
    return shuffled_index(seed, size, UINT64_MAX, place); /* no loader has that epoch */
}

/* ---- By weights ------------------------------------------------------------------------------ */

static bool sum_weights(const double *weights, int64_t n, double *sums) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(weights[i] >= 0)) {
            return tn__fail(TN_EVALUE, "weighted_sampler", "weight %lld is %g (0 at least)",
                            (long long)i, weights[i]);
        }
        sums[i] = sum += weights[i];
    }
    if (!isnormal(sum)) { /* a fraction of a denormal sum may round up to the whole sum */
        return tn__fail(TN_EVALUE, "weighted_sampler", "the sum of the weights is %g", sum);
    }
    return true;
}

/* The first example whose running sum is above a random number below the last sum. */
static int64_t weighted_index(const tn_sampler *s, int64_t size, uint64_t epoch, int64_t place) {
    const double *sums = tn_data(s->table);
    uint64_t word = tn__draw_word(s->seed, epoch, CALL_WEIGHTED, (uint64_t)place);
    double at = (double)(word >> 11) * 0x1p-53 * sums[size - 1];
    int64_t low = 0, high = size - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sums[middle] > at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* ---- By length ------------------------------------------------------------------------------- */

typedef struct sized_example {
    int64_t length, index;
} sized_example;

static int compare_lengths(const void *a, const void *b) {
    const sized_example *x = a, *y = b;
    int by_length = (x->length > y->length) - (x->length < y->length);
    return by_length ? by_length : (x->index > y->index) - (x->index < y->index);
}

static bool sort_lengths(const int64_t *lengths, int64_t n, int64_t *order) {
    sized_example *all = tn__calloc_for((size_t)n, sizeof(*all), "bucket_sampler");
    if (!all) { return false; }
    for (int64_t i = 0; i < n; i++) {
        all[i] = (sized_example){lengths[i], i};
    }
    qsort(all, (size_t)n, sizeof(*all), compare_lengths);
    for (int64_t i = 0; i < n; i++) {
        order[i] = all[i].index;
    }
    free(all);
    return true;
}

/* a * b, or `most` if that is less. */
static int64_t product_below(int64_t a, int64_t b, int64_t most) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > most ? most : product;
}

/* The batches of one step, of all parts, are a contiguous range of the order. */
static int64_t bucketed_index(const tn_sampler *s, int64_t size, uint64_t epoch, int64_t place) {
    int64_t step = product_below(s->batch, s->parts, size), whole = size / step;
    if (place < whole * step) { /* what is left over comes last, as a short step */
        place = shuffled_index(s->seed, whole, epoch, place / step) * step + place % step;
    }
    int64_t bucket = product_below(step, s->bucket, size), first = place / bucket * bucket;
    int64_t count = size - first < bucket ? size - first : bucket;
    uint64_t key = tn__draw_word(s->seed, epoch, CALL_BUCKET, (uint64_t)first);
    const int64_t *order = tn_data(s->table);
    return order[first + shuffled_index(key, count, epoch, place - first)];
}

void tn__sampler_identify(const tn_sampler *s, char digest[33], int64_t *step) {
    tn__digest_of(tn_data(s->table), (size_t)tn_count(s->table) * sizeof(int64_t), digest);
    *step = product_below(s->batch, s->parts, INT64_MAX);
}

/* ---- Their tables ---------------------------------------------------------------------------- */

/* Gives s its table, made of a number for each example; inert after raising. `wrong` says what is
 * wrong with the other arguments. */
static tn_sampler with_table(tn_sampler s, tn_tensor *from, const char *wrong) {
    TN_NO_GRAD;
    TN_SCOPE;
    bool weighted = s.kind == TN_SAMPLE_WEIGHTED;
    const char *operation = weighted ? "weighted_sampler" : "bucket_sampler";
    s.parts = 1;
    s.table = tn_inert();
    if (tn__pending() || !tn__usable(from, operation)) { return s; }
    tn_dtype given = tn_dtype_of(from), dtype = weighted ? TN_F64 : TN_I64;
    if (tn_ndim(from) != 1 || tn_count(from) < 1) {
        tn__raise(TN_ESHAPE, operation, "%s is not one number for each example",
                  tn_shape_text(from));
    } else if (wrong) {
        tn__raise(TN_EVALUE, operation, "%s", wrong);
    } else if (weighted ? !tn_dtype_is_float(given) : given != TN_I64) {
        tn__raise(TN_EDTYPE, operation, "the %s are %s (they must be %s)",
                  weighted ? "weights" : "lengths", tn_dtype_name(given),
                  weighted ? "floats" : "i64");
    } else {
        const tn_tensor *all = tn_contiguous(tn_to(tn_cast(from, dtype), tn_cpu()));
        tn_tensor *table = tn_empty_on(tn_cpu(), tn_shape(all), dtype);
        if (!tn_is_inert(all) && !tn_is_inert(table) &&
            (weighted ? sum_weights(tn_data(all), tn_count(all), tn_data_mut(table))
                      : sort_lengths(tn_data(all), tn_count(all), tn_data_mut(table)))) {
            s.table = tn_return(table);
        }
    }
    return s;
}

tn_sampler tn_weighted_sampler(tn_tensor *weights, int64_t draws, uint64_t seed) {
    tn_sampler s = {.kind = TN_SAMPLE_WEIGHTED, .seed = seed, .draws = draws};
    return with_table(s, weights, TN__BEYOND({"draws", draws, 1, 0}));
}

tn_sampler tn_bucket_sampler(tn_tensor *lengths, int64_t batch, int64_t bucket, uint64_t seed) {
    tn_sampler s = {.kind = TN_SAMPLE_BUCKETED, .seed = seed, .batch = batch, .bucket = bucket};
    return with_table(s, lengths, TN__BEYOND({"batch", batch, 1, 0}, {"bucket", bucket, 1, 0}));
}

/* ---- All kinds ------------------------------------------------------------------------------- */

/* Whether the sampler is valid for this many examples and has the table that it needs. */
static bool sampler_fits(const tn_sampler *s, int64_t size) {
    if (s->parts < 1 || s->part < 0 || s->part >= s->parts) {
        return tn__fail(TN_EVALUE, "sampler", "part %lld of %lld (parts count from 0)",
                        (long long)s->part, (long long)s->parts);
    }
    bool weighted = s->kind == TN_SAMPLE_WEIGHTED, bucketed = s->kind == TN_SAMPLE_BUCKETED;
    if (!weighted && !bucketed) { return true; }
    if (!tn__usable(s->table, "sampler")) { return false; }
    bool sound = weighted ? s->draws > 0 : s->batch > 0 && s->bucket > 0;
    if (tn_count(s->table) != size || !sound) {
        return tn__fail(
            TN_EVALUE, "sampler",
            "a sampler %s of %lld examples, but the dataset has %lld, or numbers below 1",
            weighted ? "by weights" : "by lengths", (long long)tn_count(s->table), (long long)size);
    }
    return true;
}

/* Places of an epoch, all parts together. */
static int64_t order_length(const tn_sampler *s, int64_t size) {
    return s->kind == TN_SAMPLE_WEIGHTED ? s->draws : size;
}

int64_t tn_sampler_count(const tn_sampler *s, int64_t size) {
    if (!s) {
        tn__raise(TN_EVALUE, "sampler", "the sampler is NULL");
        return 0;
    }
    if (!sampler_fits(s, size)) { return 0; }
    int64_t length = order_length(s, size);
    switch (s->rule) {
    case TN_PARTS_UNEVEN:
        return length <= s->part ? 0 : (length - s->part - 1) / s->parts + 1;
    case TN_PARTS_PAD:
        return length <= 0 ? 0 : (length - 1) / s->parts + 1;
    case TN_PARTS_DROP:
        return length <= 0 ? 0 : length / s->parts;
    }
    tn__raise(TN_EVALUE, "sampler", "there is no rule %d", (int)s->rule);
    return 0;
}

/* The place in the whole order; padding comes after its end, perhaps beyond INT64_MAX. */
static uint64_t place_of(const tn_sampler *s, int64_t position) {
    return (uint64_t)s->part + (uint64_t)position * (uint64_t)s->parts;
}

int64_t tn__sampler_place(const tn_sampler *s, int64_t size, int64_t position) {
    return (int64_t)(place_of(s, position) % (uint64_t)order_length(s, size));
}

bool tn_sampler_is_real(const tn_sampler *s, int64_t size, int64_t position) {
    return position >= 0 && position < tn_sampler_count(s, size) &&
           place_of(s, position) < (uint64_t)order_length(s, size);
}

int64_t tn_sampler_at(const tn_sampler *s, int64_t size, int64_t epoch, int64_t position) {
    int64_t count = tn_sampler_count(s, size);
    if (!s) { return -1; }
    if (epoch < 0 || position < 0 || position >= count) {
        tn__raise(TN_EINDEX, "sampler",
                  "place %lld of epoch %lld, but there are %lld of %lld examples in this part",
                  (long long)position, (long long)epoch, (long long)count, (long long)size);
        return -1;
    }
    int64_t at = tn__sampler_place(s, size, position);
    switch (s->kind) {
    case TN_SAMPLE_SEQUENTIAL:
        return at;
    case TN_SAMPLE_SHUFFLED:
        return shuffled_index(s->seed, size, (uint64_t)epoch, at);
    case TN_SAMPLE_REPLACEMENT:
        return draw_index(s->seed, (uint64_t)epoch, CALL_REPLACE, (uint64_t)at, size);
    case TN_SAMPLE_WEIGHTED:
        return weighted_index(s, size, (uint64_t)epoch, at);
    case TN_SAMPLE_BUCKETED:
        return bucketed_index(s, size, (uint64_t)epoch, at);
    }
    tn__raise(TN_EVALUE, "sampler", "there is no kind %d", (int)s->kind);
    return -1;
}
