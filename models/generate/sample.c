/* The next token from logits                           top_p: Holtzman et al. 2019,
 * arXiv:1904.09751
 *
 * Both cuts need one number: the lowest logit at which the candidates number k, or weigh p of the
 * sum. Sorting would find it; a histogram over the logits' bits finds it in three passes for any
 * logits (find_cut). Before that, a bound that is cheap to find usually drops nearly all.
 *
 * The loops go over blocks of LANES numbers, which compilers vectorise: a vocabulary is read for
 * every token of every sequence.
 */
#include "models/generate/sample.h"

#include "core/memory.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { LANES = 16 };

static const double coldest = 1e-30; /* temperatures below are 0: logits' differences stay finite */

tn_status tn__candidates_init(tn__candidates *c, int64_t vocab) {
    float *memory = tn__malloc_for((size_t)vocab * 3 * sizeof(float), "generate");
    *c = (tn__candidates){.logits = memory, .memory = memory};
    if (!memory) { return TN_ENOMEM; }
    c->weights = memory + vocab;
    c->tokens = (int32_t *)(memory + 2 * vocab);
    return TN_OK;
}

void tn__candidates_finish(tn__candidates *c) {
    free(c->memory);
    *c = (tn__candidates){0};
}

void tn__sample_penalize(float *logits, const bool *met, int64_t vocab, double penalty) {
    float p = (float)penalty;
    for (int64_t i = 0; i < vocab; i++) {
        if (met[i]) { logits[i] = logits[i] < 0 ? logits[i] * p : logits[i] / p; }
    }
}

/* ---- The largest ----------------------------------------------------------------------------- */

/* The largest of up to LANES numbers. */
static inline float largest_of_block(const float *x, int64_t n) {
    float most = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        most = x[j] > most ? x[j] : most;
    }
    return most;
}

/* NaN when a logit is NaN or +inf. */
static float largest_logit(const float *logits, int64_t n) {
    float most[LANES];
    int32_t odd[LANES] = {0};
    int64_t whole = n - n % LANES;
    for (int j = 0; j < LANES; j++) {
        most[j] = -INFINITY;
    }
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float x = logits[i + j];
            most[j] = x > most[j] ? x : most[j];
            odd[j] |= !(x < INFINITY);
        }
    }
    for (int64_t i = whole; i < n; i++) {
        odd[0] |= !(logits[i] < INFINITY);
    }
    for (int j = 1; j < LANES; j++) {
        odd[0] |= odd[j];
    }
    float a = largest_of_block(most, LANES), b = largest_of_block(logits + whole, n - whole);
    return odd[0] ? NAN : a > b ? a : b;
}

int64_t tn__sample_best(const float *logits, int64_t vocab) {
    float most = largest_logit(logits, vocab);
    if (!(most > -INFINITY)) { return -1; }
    int64_t i = 0;
    while (logits[i] != most) {
        i++;
    }
    return i;
}

/* ---- Weights --------------------------------------------------------------------------------- */

static inline int32_t bits_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float float_of(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* exp(-x) to a rounding or two, x >= 0; 0 from 87 on. 2^k times a polynomial (Cephes' expf) of the
 * rest, at most ln 2 / 2. Numbers from 0 on have the order of their bits, and integers are compared
 * without branches: loops vectorise. */
static inline float exp_of_minus(float x) {
    const float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f,
                round = 12582912.0f; /* 1.5 2^23: adding it rounds to an integer */
    int32_t bits = bits_of(x), most = bits_of(87.0f), in = -(bits < most);
    x = float_of((bits & in) | (most & ~in));
    float k = round - x * log2_e - round, r = -x - k * ln2_high - k * ln2_low;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return float_of((bits_of(p) + (int32_t)k * (1 << 23)) & in);
}

static void weigh_candidates(tn__candidates *c, float most, double temperature) {
    float t = temperature < (double)FLT_MAX ? (float)temperature : FLT_MAX;
    for (int64_t i = 0; i < c->count; i++) {
        c->weights[i] = exp_of_minus((most - c->logits[i]) / t);
    }
}

static inline double sum_of_block(const float *weights, int64_t n) {
    double sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        sum += (double)weights[j];
    }
    return sum;
}

static double sum_of_weights(const tn__candidates *c) {
    double lane[LANES] = {0}, sum = 0.0;
    int64_t whole = c->count - c->count % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            lane[j] += (double)c->weights[i + j];
        }
    }
    for (int j = 0; j < LANES; j++) {
        sum += lane[j];
    }
    return sum + sum_of_block(c->weights + whole, c->count - whole);
}

/* ---- Bounds: what is below cannot be a candidate --------------------------------------------- */

/* Candidate i becomes number `to`. */
static inline void move_candidate(tn__candidates *c, int64_t to, int64_t i) {
    c->tokens[to] = c->tokens[i];
    c->logits[to] = c->logits[i];
    c->weights[to] = c->weights[i];
}

/* Keeps those of which `by` (logits or weights) is at least `least`. */
static void keep_from(tn__candidates *c, const float *by, float least) {
    int64_t kept = 0;
    for (int64_t i = 0; i < c->count; i += LANES) {
        int64_t n = c->count - i < LANES ? c->count - i : LANES;
        if (n == LANES && largest_of_block(by + i, LANES) < least) { continue; /* most blocks */ }
        for (int64_t j = i; j < i + n; j++) {
            bool keep = by[j] >= least; /* `by` may be one of those that move */
            move_candidate(c, kept, j);
            kept += keep;
        }
    }
    c->count = kept;
}

/* ---- Cuts ------------------------------------------------------------------------------------ */

enum { DIGIT = 11, BINS = 1 << DIGIT, DIGITS = 3 };

/* Integers in the order of the logits. -0 is 0. */
static inline uint32_t order_of(float x) {
    uint32_t bits = (uint32_t)bits_of(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float logit_of(uint32_t order) {
    return float_of((int32_t)(order & 0x80000000u ? order & 0x7fffffffu : ~order));
}

typedef struct cut {
    float logit;    /* those above are in */
    double missing; /* the count or weight still needed from those equal to it; above 0 */
} cut;

/* Where the largest logits reach `need` (above 0, at most the sum), each counted by its weight, or
 * as 1 without weights. Digit by digit from the top: a histogram of the logits that agree with the
 * cut so far shows its bin. */
static cut find_cut(const float *logits, const float *weights, int64_t n, double need) {
    uint32_t found = 0;
    for (int shift = (DIGITS - 1) * DIGIT; shift >= 0; shift -= DIGIT) {
        uint64_t above = ~UINT64_C(0) << (shift + DIGIT);
        double bins[BINS] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint32_t order = order_of(logits[i]);
            if (((order ^ found) & above) == 0) {
                bins[order >> shift & (BINS - 1)] += weights ? (double)weights[i] : 1.0;
            }
        }
        int bin = BINS - 1, last = bin;
        for (; bin >= 0 && need > bins[bin]; bin--) {
            if (bins[bin] > 0.0) {
                need -= bins[bin];
                last = bin;
            }
        }
        if (bin < 0) { /* sums in another order round differently: it is the lowest */
            bin = last;
            need = bins[bin];
        }
        found |= (uint32_t)bin << shift;
    }
    return (cut){logit_of(found), need};
}

/* The k largest logits and those equal to the k-th. k blocks have a number at or above the k-th
 * largest of the blocks' maxima, so the k-th largest of all is not below that. */
static void keep_top_k(tn__candidates *c, int64_t k) {
    float *maxima = c->weights; /* not in use yet */
    int64_t blocks = c->count / LANES;
    for (int64_t i = 0; i < blocks; i++) {
        maxima[i] = largest_of_block(c->logits + i * LANES, LANES);
    }
    if (k <= blocks) { keep_from(c, c->logits, find_cut(maxima, NULL, blocks, (double)k).logit); }
    keep_from(c, c->logits, find_cut(c->logits, NULL, c->count, (double)k).logit);
}

/* The fewest of the largest that weigh p of all; among equals, the first. */
static void keep_top_p(tn__candidates *c, double p) {
    double sum = sum_of_weights(c), need = p > 0.0 ? p * sum : DBL_MIN; /* p = 0: one */
    /* if even all of them were as light, they would weigh less than the others' 1 - p */
    keep_from(c, c->weights, (float)((1.0 - p) * sum / (double)c->count * 0.999));
    cut at = find_cut(c->logits, c->weights, c->count, need);
    keep_from(c, c->logits, at.logit);
    int64_t kept = 0;
    for (int64_t i = 0; i < c->count; i++) {
        bool equal = c->logits[i] == at.logit, keep = !equal || at.missing > 0.0;
        at.missing -= equal ? (double)c->weights[i] : 0.0;
        move_candidate(c, kept, i);
        kept += keep;
    }
    c->count = kept;
}

void tn__sample_candidates(const float *logits, int64_t vocab, tn__sampling how,
                           tn__candidates *c) {
    if (how.temperature < coldest) {
        int64_t best = tn__sample_best(logits, vocab);
        tn__sample_picked(&logits[best], &best, 1, how, c);
        return;
    }
    for (int64_t i = 0; i < vocab; i++) {
        c->tokens[i] = (int32_t)i;
    }
    memcpy(c->logits, logits, (size_t)vocab * sizeof(*logits));
    c->count = vocab;
    if (how.top_k > 0 && how.top_k < vocab) { keep_top_k(c, how.top_k); }
    weigh_candidates(c, largest_logit(logits, vocab), how.temperature);
    if (how.top_p < 1.0) { keep_top_p(c, how.top_p); }
}

void tn__sample_picked(const float *logits, const int64_t *tokens, int64_t n, tn__sampling how,
                       tn__candidates *c) {
    if (how.temperature < coldest) { n = how.top_k = 1; }
    c->count = 0;
    for (int64_t i = 0; i < n && logits[i] >= logits[how.top_k - 1]; i++) {
        int64_t at = c->count++;
        for (; at > 0 && c->tokens[at - 1] > tokens[i]; at--) { /* in ascending order of tokens */
            c->tokens[at] = c->tokens[at - 1];
            c->logits[at] = c->logits[at - 1];
        }
        c->tokens[at] = (int32_t)tokens[i];
        c->logits[at] = logits[i];
    }
    weigh_candidates(c, logits[0], how.temperature < coldest ? 1.0 : how.temperature);
    if (how.top_p < 1.0) { keep_top_p(c, how.top_p); }
}

int64_t tn__sample_draw(const tn__candidates *c, double u) {
    double left = u * sum_of_weights(c);
    int64_t block = 0, i;
    for (; block < c->count; block += LANES) { /* the block in which nothing is left */
        int64_t n = c->count - block < LANES ? c->count - block : LANES;
        double sum = sum_of_block(c->weights + block, n);
        if (left < sum) { break; }
        left -= sum;
    }
    for (i = block; i < c->count; i++) {
        left -= (double)c->weights[i];
        if (left < 0.0) { return c->tokens[i]; }
    }
    for (i = c->count - 1; i > 0 && c->weights[i] == 0.0f; i--) {}
    return c->tokens[i]; /* rounding: u was the whole sum */
}
