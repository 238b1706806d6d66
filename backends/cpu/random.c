/* Random numbers and dropout for contiguous f32 (backends/random.h says which words an element
 * draws). Philox runs on LINES blocks of four words at once. Everything else is left to ref.
 */
#include "backends/cpu/convert.h"
#include "backends/polynomials.h"
#include "backends/random.h"
#include "core/philox.h"

enum { LINES = 16, WORDS = 4 * LINES };

/* The words of elements [first, first + WORDS) of y; first is a multiple of 4. */
static inline void draw_words(uint32_t *restrict word, tn_random_key key, int64_t first) {
    uint64_t k = tn__philox_key(key.seed, key.stream), index = (key.first + (uint64_t)first) / 4;
    uint32_t c0[LINES], c1[LINES], c2[LINES], c3[LINES];
    uint32_t k0 = (uint32_t)k, k1 = (uint32_t)(k >> 32);
    for (int i = 0; i < LINES; i++) {
        c0[i] = (uint32_t)(index + (uint64_t)i);
        c1[i] = (uint32_t)((index + (uint64_t)i) >> 32);
        c2[i] = (uint32_t)key.call;
        c3[i] = (uint32_t)(key.call >> 32);
    }
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int i = 0; i < LINES; i++) {
            uint64_t a = (uint64_t)0xd2511f53u * c0[i], b = (uint64_t)0xcd9e8d57u * c2[i];
            c0[i] = (uint32_t)(b >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)b;
            c2[i] = (uint32_t)(a >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)a;
        }
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    for (int i = 0; i < LINES; i++) {
        word[4 * i] = c0[i];
        word[4 * i + 1] = c1[i];
        word[4 * i + 2] = c2[i];
        word[4 * i + 3] = c3[i];
    }
}

typedef struct draw {
    float *y;
    const float *x; /* dropout's input */
    tn_random_kind kind;
    tn_random_key key;
    double a, b, limit; /* limit: tn__uniform_limit */
    uint32_t threshold;
} draw;

/* Elements [first, first + n), n <= WORDS. */
static void draw_values(const draw *d, int64_t first, int64_t n) {
    uint32_t word[WORDS];
    float value[WORDS];
    draw_words(word, d->key, first);
    switch (d->kind) {
    case TN_NORMAL:
        for (int i = 0; i < WORDS; i += 2) {
            float even, odd;
            tn__box_muller_f(tn__uniform24(word[i]), tn__uniform24(word[i + 1]), &even, &odd);
            value[i] = (float)(d->a + d->b * (double)even);
            value[i + 1] = (float)(d->a + d->b * (double)odd);
        }
        break;
    case TN_BERNOULLI:
        for (int i = 0; i < WORDS; i++) {
            value[i] = word[i] >> 8 < d->threshold;
        }
        break;
    default: {
        double width = d->b - d->a, limit = d->limit;
        for (int i = 0; i < WORDS; i++) {
            double drawn = d->a + width * (double)tn__uniform24(word[i]);
            value[i] = (float)(drawn < limit ? drawn : limit);
        }
        break;
    }
    }
    memcpy(d->y + first, value, (size_t)n * sizeof(float));
}

static void drop_values(const draw *d, int64_t first, int64_t n) {
    uint32_t word[WORDS];
    float scale = (float)(1 / (1 - d->a));
    draw_words(word, d->key, first);
    const float *x = d->x + first;
    float *y = d->y + first;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float kept = x[i] * scale;
        y[i] = word[i] >> 8 >= d->threshold ? kept : 0;
    }
}

static void draw_all(const draw *d, int64_t count, void (*values)(const draw *, int64_t, int64_t)) {
    int64_t tasks = div_up(count, CHUNK);
    int threads = team_size(tasks, count);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t end = min_of((task + 1) * CHUNK, count);
        for (int64_t i = task * CHUNK; i < end; i += WORDS) {
            values(d, i, min_of(WORDS, end - i));
        }
    }
}

tn_status TN_CPU(random)(tn_context *ctx, const tn_desc *y, tn_random_kind kind, tn_random_key key,
                         double a, double b) {
    if (y->dtype != TN_F32 || kind == TN_INTEGER || !is_contiguous(y)) {
        return TN_CPU(ref)->random(ctx, y, kind, key, a, b);
    }
    draw d = {.y = y->data,
              .kind = kind,
              .key = key,
              .a = a,
              .b = b,
              .limit = tn__uniform_limit(TN_F32, a, b),
              .threshold = tn__threshold24(a)};
    draw_all(&d, count_of(y), draw_values);
    return TN_OK;
}

tn_status TN_CPU(dropout)(tn_context *ctx, const tn_desc *y, const tn_desc *x, double p,
                          tn_random_key key) {
    if (y->dtype != TN_F32 || x->dtype != TN_F32 || !is_contiguous(y) || !is_contiguous(x)) {
        return TN_CPU(ref)->dropout(ctx, y, x, p, key);
    }
    draw d = {.y = y->data, .x = x->data, .key = key, .a = p, .threshold = tn__threshold24(p)};
    draw_all(&d, count_of(y), drop_values);
    return TN_OK;
}
