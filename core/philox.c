/* Random numbers on the host: the public face of core/philox.h, and single draws. */
#include "core/philox.h"

#include "core/error.h"

#include <math.h>

static _Thread_local tn_generator default_generator;

tn_generator *tn_default_generator(void) {
    return &default_generator;
}

void tn_seed(uint64_t seed) {
    default_generator = (tn_generator){.seed = seed};
}

tn_random4 tn_philox(uint64_t seed, uint64_t stream, uint64_t call, uint64_t index) {
    return tn__philox(tn__philox_key(seed, stream), call, index);
}

static uint64_t draw_word64(const tn_generator *g, uint64_t index) {
    tn_random4 r = tn_philox(g->seed, g->stream, g->call, index);
    return (uint64_t)r.word[1] << 32 | r.word[0];
}

static double uniform_of(uint32_t low, uint32_t high) {
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

double tn_random_uniform(tn_generator *g) {
    if (!g) {
        tn__raise(TN_EVALUE, "random_uniform", "the generator is NULL");
        return NAN;
    }
    tn_random4 r = tn_philox(g->seed, g->stream, g->call++, 0);
    return uniform_of(r.word[0], r.word[1]);
}

/* Like element 0 of an f64 draw (backends/random.h). */
double tn_random_normal(tn_generator *g) {
    if (!g) {
        tn__raise(TN_EVALUE, "random_normal", "the generator is NULL");
        return NAN;
    }
    tn_random4 r = tn_philox(g->seed, g->stream, g->call++, 0);
    double u = uniform_of(r.word[0], r.word[1]), v = uniform_of(r.word[2], r.word[3]);
    return sqrt(-2.0 * log(1.0 - u)) * cos(6.28318530717958648 * v);
}

/* Values below 2^64 mod n are drawn again, so that what is left is a whole number of ranges. One
 * draw on average; each retry takes the next index of the same call, so a draw is always one
 * call. */
int64_t tn_random_below(tn_generator *g, int64_t n) {
    if (!g) {
        tn__raise(TN_EVALUE, "random_below", "the generator is NULL");
        return 0;
    }
    if (n < 1) {
        tn__raise(TN_EVALUE, "random_below", "n is %lld (at least 1)", (long long)n);
        return 0;
    }
    uint64_t range = (uint64_t)n, min = (0 - range) % range, bits, index = 0;
    do {
        bits = draw_word64(g, index++);
    } while (bits < min);
    g->call++;
    return (int64_t)(bits % range);
}
