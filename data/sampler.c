/* Samplers: which example stands at a place of an epoch, computed from the seed alone.
 *
 * A shuffled epoch is a bijection of [0, size): a Feistel network over pairs (l, r), l < a, r < b,
 * with a b just large enough, and additions modulo a and b where a block cipher has exclusive or
 * (Black, Rogaway 2002, "Ciphers with arbitrary finite domains"). A result outside [0, size) is put
 * through again until it is inside; fewer than one place in sqrt(size) is outside. Round functions
 * are words of Philox.
 */
#include "data/sampler.h"
#include "core/error.h"

enum { ROUNDS = 8 };

/* The `call` words of the samplers' draws. Generators count calls up from 0, so a program that uses
 * one seed for everything draws its samples and its weights from different numbers. */
#define CALL_SHUFFLE 0xfffffffe00000000u
#define CALL_REPLACE 0xffffffff00000000u

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
    tn_random4 r = tn_philox(seed, epoch, call, index);
    uint64_t word = (uint64_t)r.word[1] << 32 | r.word[0];
    return (int64_t)(((unsigned __int128)word * (uint64_t)n) >> 64);
}

/* The smallest a with a a >= n. */
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

int64_t tn_sampler_count(const tn_sampler *s, int64_t size) {
    if (!s) {
        tn__raise(TN_EVALUE, "sampler", "the sampler is NULL");
        return 0;
    }
    if (s->parts < 1 || s->part < 0 || s->part >= s->parts) {
        tn__raise(TN_EVALUE, "sampler", "part %lld of %lld (parts count from 0)",
                  (long long)s->part, (long long)s->parts);
        return 0;
    }
    switch (s->rule) {
    case TN_PARTS_UNEVEN:
        return size <= s->part ? 0 : (size - s->part - 1) / s->parts + 1;
    case TN_PARTS_PAD:
        return size <= 0 ? 0 : (size - 1) / s->parts + 1;
    case TN_PARTS_DROP:
        return size <= 0 ? 0 : size / s->parts;
    }
    tn__raise(TN_EVALUE, "sampler", "there is no rule %d", (int)s->rule);
    return 0;
}

/* In the whole order; what fills up stands behind its end, perhaps also behind what an int64_t
 * holds. */
static uint64_t place_of(const tn_sampler *s, int64_t position) {
    return (uint64_t)s->part + (uint64_t)position * (uint64_t)s->parts;
}

int64_t tn__sampler_place(const tn_sampler *s, int64_t size, int64_t position) {
    return (int64_t)(place_of(s, position) % (uint64_t)size);
}

bool tn_sampler_is_real(const tn_sampler *s, int64_t size, int64_t position) {
    return position >= 0 && position < tn_sampler_count(s, size) &&
           place_of(s, position) < (uint64_t)size;
}

int64_t tn_sampler_at(const tn_sampler *s, int64_t size, int64_t epoch, int64_t position) {
    int64_t count = tn_sampler_count(s, size);
    if (!s) {
        return -1;
    }
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
    }
    tn__raise(TN_EVALUE, "sampler", "there is no kind %d", (int)s->kind);
    return -1;
}
