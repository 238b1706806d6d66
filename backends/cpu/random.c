/* Random numbers and dropout for contiguous f32, bf16 and f16, and i64 integers (backends/random.h
 * says which words an element draws). Philox runs on LINES blocks of four words at once. Everything
 * else is left to ref.
 */
#include "backends/cpu/convert.h"
#include "backends/polynomials.h"
#include "backends/random.h"
#include "core/philox.h"

enum { LINES = 16, WORDS = 4 * LINES };

/* Where a vector multiplies 64 bits, gcc does so even for 32: narrow lanes would only be widened
 * and narrowed again. */
#ifdef __AVX512DQ__
typedef uint64_t philox_lane;
#else
typedef uint32_t philox_lane;
#endif

/* word[w][i] is word w of index + i: the same numbers, in loops that compilers vectorise. */
static inline void philox_lines(uint64_t key, uint64_t call, uint64_t index,
                                uint32_t word[4][LINES]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    philox_lane c0[LINES], c1[LINES], c2[LINES], c3[LINES];
    for (int i = 0; i < LINES; i++) {
        c0[i] = (uint32_t)(index + (uint64_t)i);
        c1[i] = (uint32_t)((index + (uint64_t)i) >> 32);
        c2[i] = (uint32_t)call;
        c3[i] = (uint32_t)(call >> 32);
    }
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int i = 0; i < LINES; i++) {
            uint64_t a = (uint64_t)0xd2511f53u * (uint32_t)c0[i];
            uint64_t b = (uint64_t)0xcd9e8d57u * (uint32_t)c2[i];
            c0[i] = (uint32_t)(b >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)b;
            c2[i] = (uint32_t)(a >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)a;
        }
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    for (int i = 0; i < LINES; i++) {
        word[0][i] = (uint32_t)c0[i];
        word[1][i] = (uint32_t)c1[i];
        word[2][i] = (uint32_t)c2[i];
        word[3][i] = (uint32_t)c3[i];
    }
}

typedef struct draw {
    const tn_desc *y, *x; /* x: dropout's input */
    tn_random_kind kind;
    tn_random_key key;
    double a, b, limit; /* limit: tn__uniform_limit */
    uint32_t threshold;
    uint64_t philox_key;
} draw;

/* to[4 i + w] = line[w][i]. */
#define INTERLEAVE(to, line)            \
    for (int i = 0; i < LINES; i++) {   \
        (to)[4 * i] = (line)[0][i];     \
        (to)[4 * i + 1] = (line)[1][i]; \
        (to)[4 * i + 2] = (line)[2][i]; \
        (to)[4 * i + 3] = (line)[3][i]; \
    }

/* word[w][i] is word w of block first + i of this draw. */
static inline void draw_lines(uint32_t word[4][LINES], const draw *d, uint64_t first) {
    philox_lines(d->philox_key, d->key.call, first, word);
}

/* The words of elements [first, first + WORDS) of one word each; first is a multiple of 4. */
static inline void draw_words(uint32_t *restrict word, const draw *d, int64_t first) {
    uint32_t line[4][LINES];
    draw_lines(line, d, (d->key.first + (uint64_t)first) / 4);
    INTERLEAVE(word, line)
}

/* tn__box_muller_f with polynomials: the angle is 4 v quarter turns. */
static inline void draw_normals(float *restrict value, const draw *d, int64_t first) {
    uint32_t word[4][LINES];
    float normal[4][LINES];
    draw_lines(word, d, (d->key.first + (uint64_t)first) / 4);
    for (int w = 0; w < 4; w += 2) {
#pragma omp simd
        for (int i = 0; i < LINES; i++) {
            float u = tn__uniform24(word[w][i]), quarters = 4.0f * tn__uniform24(word[w + 1][i]);
            int q = (int)(quarters + 0.5f);
            float angle = (quarters - (float)q) * 1.57079632679489662f;
            float r = tn__sqrtf(-2.0f * tn__logf(1.0f - u));
            double even = r * tn__sin_turned(angle, (uint32_t)q + 1);
            double odd = r * tn__sin_turned(angle, (uint32_t)q);
            normal[w][i] = (float)(d->a + d->b * even);
            normal[w + 1][i] = (float)(d->a + d->b * odd);
        }
    }
    INTERLEAVE(value, normal)
}

static inline void draw_uniforms(float *restrict value, const draw *d, int64_t first) {
    uint32_t word[WORDS];
    double width = d->b - d->a, limit = d->limit;
    draw_words(word, d, first);
    for (int i = 0; i < WORDS; i++) {
        double drawn = d->a + width * (double)tn__uniform24(word[i]);
        value[i] = (float)(drawn < limit ? drawn : limit);
    }
}

static inline void draw_choices(float *restrict value, const draw *d, int64_t first) {
    uint32_t word[WORDS];
    draw_words(word, d, first);
    for (int i = 0; i < WORDS; i++) {
        value[i] = word[i] >> 8 < d->threshold;
    }
}

/* Two elements have a block's four words; first is even. */
static inline void draw_integers(int64_t *restrict value, const draw *d, int64_t first) {
    uint32_t word[4][LINES];
    uint64_t low = (uint64_t)(int64_t)d->a, range = (uint64_t)(int64_t)d->b - low;
    for (int half = 0; half < WORDS; half += WORDS / 2) {
        draw_lines(word, d, (d->key.first + (uint64_t)(first + half)) / 2);
        for (int i = 0; i < LINES; i++) {
            int64_t *pair = value + half + 2 * i;
            pair[0] = (int64_t)(low + tn__below(tn__word64(word[0][i], word[1][i]), range));
            pair[1] = (int64_t)(low + tn__below(tn__word64(word[2][i], word[3][i]), range));
        }
    }
}

/* Elements [first, first + n), n <= WORDS. */
static void draw_values(const draw *d, int64_t first, int64_t n) {
    float value[WORDS];
    int64_t integer[WORDS];
    switch (d->kind) {
    case TN_INTEGER:
        draw_integers(integer, d, first);
        memcpy((int64_t *)d->y->data + first, integer, (size_t)n * sizeof *integer);
        return;
    case TN_NORMAL:
        draw_normals(value, d, first);
        break;
    case TN_BERNOULLI:
        draw_choices(value, d, first);
        break;
    default:
        draw_uniforms(value, d, first);
        break;
    }
    store_f32(desc_at(d->y, first), d->y->dtype, 1, value, n);
}

static void drop_values(const draw *d, int64_t first, int64_t n) {
    uint32_t word[WORDS];
    float value[WORDS], scale = (float)(1 / (1 - d->a));
    draw_words(word, d, first);
    load_f32(value, desc_at(d->x, first), d->x->dtype, 1, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float kept = value[i] * scale;
        value[i] = word[i] >> 8 >= d->threshold ? kept : 0;
    }
    store_f32(desc_at(d->y, first), d->y->dtype, 1, value, n);
}

static void draw_all(const draw *d, void (*values)(const draw *, int64_t, int64_t)) {
    int64_t count = count_of(d->y), tasks = div_up(count, CHUNK);
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
    bool has_dtype = kind == TN_INTEGER ? y->dtype == TN_I64 : is_f32_like(y->dtype);
    if (!has_dtype || !is_contiguous(y)) {
        return TN_CPU(ref)->random(ctx, y, kind, key, a, b);
    }
    draw d = {.y = y,
              .kind = kind,
              .key = key,
              .a = a,
              .b = b,
              .limit = kind == TN_UNIFORM ? tn__uniform_limit(y->dtype, a, b) : 0,
              .threshold = tn__threshold24(a),
              .philox_key = tn__philox_key(key.seed, key.stream)};
    draw_all(&d, draw_values);
    return TN_OK;
}

tn_status TN_CPU(dropout)(tn_context *ctx, const tn_desc *y, const tn_desc *x, double p,
                          tn_random_key key) {
    if (!is_f32_like(y->dtype) || x->dtype != y->dtype || !is_contiguous(y) || !is_contiguous(x)) {
        return TN_CPU(ref)->dropout(ctx, y, x, p, key);
    }
    draw d = {.y = y,
              .x = x,
              .key = key,
              .a = p,
              .threshold = tn__threshold24(p),
              .philox_key = tn__philox_key(key.seed, key.stream)};
    draw_all(&d, drop_values);
    return TN_OK;
}
