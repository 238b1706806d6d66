/* Random numbers and dropout: backends/random.h, element by element. */
#include "backends/random.h"
#include "backends/ref/ref.h"

/* The words that element i draws from: one of 32 bits, or the pair of a 64-bit number. */
static uint32_t word_of(tn_random_key key, int64_t i) {
    return tn_philox(key.seed, key.stream, key.call, (key.first + (uint64_t)i) / 4).word[i % 4];
}

static uint64_t word64_of(tn_random_key key, int64_t i) {
    tn_random4 r = tn_philox(key.seed, key.stream, key.call, (key.first + (uint64_t)i) / 2);
    return tn__word64(r.word[2 * (i % 2)], r.word[2 * (i % 2) + 1]);
}

/* Uniform in [0, 1): of 53 bits for f64, of 24 bits otherwise. */
static double draw_uniform(tn_dtype dtype, tn_random_key key, int64_t i) {
    return dtype == TN_F64 ? tn__uniform53(word64_of(key, i)) : tn__uniform24(word_of(key, i));
}

static double draw_normal(tn_dtype dtype, tn_random_key key, int64_t i) {
    int64_t even = i - i % 2;
    double u = draw_uniform(dtype, key, even), v = draw_uniform(dtype, key, even + 1), pair[2];
    tn__box_muller_d(u, v, &pair[0], &pair[1]);
    return pair[i % 2];
}

tn_status tn__ref_random(tn_context *ctx, const tn_desc *y, tn_random_kind kind, tn_random_key key,
                         double a, double b) {
    if (kind == TN_INTEGER ? !is_integer(y->dtype) : !is_float(y->dtype)) {
        return TN_EUNSUPPORTED;
    }
    double limit = tn__uniform_limit(y->dtype, a, b);
    uint64_t low = (uint64_t)to_integer(a), range = (uint64_t)to_integer(b) - low;
    for (walk w = walk_over(1, y); w.left > 0; walk_next(&w)) {
        int64_t i = w.position;
        switch (kind) {
        case TN_INTEGER:
            store_integer(y, w.at[0], (int64_t)(low + tn__below(word64_of(key, i), range)));
            break;
        case TN_NORMAL:
            store_float(y, w.at[0], a + b * draw_normal(y->dtype, key, i));
            break;
        case TN_BERNOULLI:
            store_float(y, w.at[0], draw_uniform(y->dtype, key, i) < a);
            break;
        default:
            store_float(y, w.at[0], fmin(a + (b - a) * draw_uniform(y->dtype, key, i), limit));
            break;
        }
    }
    return TN_OK;
}

tn_status tn__ref_dropout(tn_context *ctx, const tn_desc *y, const tn_desc *x, double p,
                          tn_random_key key) {
    if (!is_float(y->dtype) || x->dtype != y->dtype) { return TN_EUNSUPPORTED; }
    double scale = 1 / (1 - p);
    bool wide = y->dtype == TN_F64;
    uint32_t dropped_below = tn__threshold24(p);
    for (walk w = walk_over(2, y, x); w.left > 0; walk_next(&w)) {
        bool keep = word_of(key, w.position) >> 8 >= dropped_below;
        double element = load_float(x, w.at[1]),
               kept = wide ? element * scale : (double)((float)element * (float)scale);
        store_float(y, w.at[0], keep ? kept : 0);
    }
    return TN_OK;
}
