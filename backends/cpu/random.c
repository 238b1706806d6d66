/* Random numbers in f32, bf16 and f16, i64 integers, and dropout of contiguous f32, bf16 and f16
 * (backends/random.h says which words an element draws). Philox runs on LINES blocks of four words
 * at once. Everything else is left to ref.
 */
#include "backends/cpu/convert.h"
#include "backends/cpu/registers.h"
#include "backends/desc.h"
#include "backends/polynomials.h"
#include "backends/random.h"
#include "core/philox.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* A round waits for its products, so several vectors of blocks go through it together. */
enum {
    VL = VBYTES / 8, /* blocks in a vector */
    PARTS = REGISTERS / 8,
    LINES = 32,
    WORDS = 4 * LINES
};

typedef uint64_t vec __attribute__((vector_size(VBYTES)));

/* Products of the elements' lower halves. With intrinsics, since gcc multiplies whole elements. */
INLINE vec multiply_halves(vec a, vec b) {
#if !defined(__x86_64__)
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#elif TN_CPU_LEVEL >= 4
    return (vec)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif TN_CPU_LEVEL == 3
    return (vec)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (vec)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}

typedef struct draw {
    const tn_desc *y, *x; /* x: dropout's input */
    tn_random_kind kind;
    tn_random_key key;
    double a, b, limit; /* limit: tn__uniform_limit */
    uint32_t threshold;
    uint64_t philox_key;
} draw;

/* pair[p][i] holds words 2p and 2p + 1 of block index + i, the first one low. Only the lower halves
 * of the elements of c count. */
static inline void draw_lines(uint64_t pair[2][LINES], const draw *d, uint64_t index) {
    const vec zero = {0};
    for (int from = 0; from < LINES; from += PARTS * VL) {
        uint32_t k0 = (uint32_t)d->philox_key, k1 = (uint32_t)(d->philox_key >> 32);
        vec c[4][PARTS];
        UNROLL
        for (int i = 0; i < PARTS; i++) {
            vec at = zero + index;
            UNROLL
            for (int l = 0; l < VL; l++) {
                at[l] += (uint64_t)(from + i * VL + l);
            }
            c[0][i] = at;
            c[1][i] = at >> 32;
            c[2][i] = zero + d->key.call;
            c[3][i] = c[2][i] >> 32;
        }
        for (int round = 0; round < 10; round++) {
            UNROLL
            for (int i = 0; i < PARTS; i++) {
                vec a = multiply_halves(c[0][i], zero + 0xd2511f53u),
                    b = multiply_halves(c[2][i], zero + 0xcd9e8d57u);
                c[0][i] = (b >> 32) ^ c[1][i] ^ (zero + k0);
                c[1][i] = b;
                c[2][i] = (a >> 32) ^ c[3][i] ^ (zero + k1);
                c[3][i] = a;
            }
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        UNROLL
        for (int i = 0; i < PARTS; i++) {
            vec first = (c[0][i] & 0xffffffffu) | c[1][i] << 32,
                second = (c[2][i] & 0xffffffffu) | c[3][i] << 32;
            memcpy(pair[0] + from + i * VL, &first, sizeof first);
            memcpy(pair[1] + from + i * VL, &second, sizeof second);
        }
    }
}

/* The words of elements [first, first + WORDS) of one word each; first is a multiple of 4. */
static inline void draw_words(uint32_t *restrict word, const draw *d, int64_t first) {
    uint64_t pair[2][LINES], both[2 * LINES];
    draw_lines(pair, d, (d->key.first + (uint64_t)first) / 4);
    for (int i = 0; i < LINES; i++) {
        both[2 * i] = pair[0][i];
        both[2 * i + 1] = pair[1][i];
    }
    memcpy(word, both, sizeof both); /* the low word lies first */
}

/* sin and cos of r for |r| <= pi / 4. */
INLINE float sin_small(float r) {
    float z = r * r;
    float p = -1.951521805e-4f;
    p = p * z + 8.332160291e-3f;
    p = p * z - 1.666665460e-1f;
    return copysignf(r + r * z * p, r); /* for -0 */
}
INLINE float cos_small(float r) {
    float z = r * r;
    float p = 2.443308269e-5f;
    p = p * z - 1.388731562e-3f;
    p = p * z + 4.166664567e-2f;
    return 1.0f - 0.5f * z + z * z * p;
}

/* sin(r + q pi / 2). */
INLINE float sin_turned(float r, uint32_t q) {
    float y = (q & 1) != 0 ? cos_small(r) : sin_small(r);
    return tn__of_bits(tn__bits_of(y) ^ (q & 2) << 30);
}

/* tn__box_muller_f with polynomials: the angle is 4 v quarter turns, of which both the sine and the
 * cosine are needed, in single precision. */
static inline void draw_normals(float *restrict value, const draw *d, int64_t first) {
    uint64_t pair[2][LINES];
    float normal[4][LINES];
    draw_lines(pair, d, (d->key.first + (uint64_t)first) / 4);
    for (int p = 0; p < 2; p++) {
#pragma omp simd
        for (int i = 0; i < LINES; i++) {
            float u = tn__uniform24((uint32_t)pair[p][i]),
                  quarters = 4.0f * tn__uniform24((uint32_t)(pair[p][i] >> 32));
            int q = (int)(quarters + 0.5f);
            float angle = (quarters - (float)q) * 1.57079632679489662f;
            float r = tn__sqrtf(-2.0f * tn__logf(1.0f - u));
            double even = r * sin_turned(angle, (uint32_t)q + 1);
            double odd = r * sin_turned(angle, (uint32_t)q);
            normal[2 * p][i] = (float)(d->a + d->b * even);
            normal[2 * p + 1][i] = (float)(d->a + d->b * odd);
        }
    }
    for (int i = 0; i < LINES; i++) {
        for (int w = 0; w < 4; w++) {
            value[4 * i + w] = normal[w][i];
        }
    }
}

static inline void draw_uniforms(float *restrict value, const draw *d, int64_t first) {
    uint32_t word[WORDS];
    double width = d->b - d->a, limit = d->limit;
    draw_words(word, d, first);
    if (d->a == 0 && d->b == 1) { /* f32 is exact */
        float most = (float)limit;
        for (int i = 0; i < WORDS; i++) {
            float drawn = tn__uniform24(word[i]);
            value[i] = drawn < most ? drawn : most;
        }
        return;
    }
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
    uint64_t pair[2][LINES];
    uint64_t low = (uint64_t)(int64_t)d->a, range = (uint64_t)(int64_t)d->b - low;
    for (int half = 0; half < WORDS; half += WORDS / 2) {
        draw_lines(pair, d, (d->key.first + (uint64_t)(first + half)) / 2);
        for (int i = 0; i < LINES; i++) {
            int64_t *to = value + half + 2 * i;
            to[0] = (int64_t)(low + tn__below(pair[0][i], range));
            to[1] = (int64_t)(low + tn__below(pair[1][i], range));
        }
    }
}

/* Elements [first, first + n), n <= WORDS. */
static void draw_values(const draw *d, int64_t first, int64_t n) {
    float buffer[WORDS];
    int64_t integer[WORDS];
    bool direct = d->y->dtype == TN_F32 && n == WORDS;
    float *value = direct ? (float *)desc_at(d->y, first) : buffer;
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
    if (!direct) { store_f32(desc_at(d->y, first), d->y->dtype, 1, value, n); }
}

static void drop_values(const draw *d, int64_t first, int64_t n) {
    uint32_t word[WORDS];
    float buffer[WORDS], scale = (float)(1 / (1 - d->a));
    bool direct = d->y->dtype == TN_F32;
    const float *x = row_f32(buffer, desc_at(d->x, first), d->x->dtype, 1, n);
    float *y = direct ? (float *)desc_at(d->y, first) : buffer;
    draw_words(word, d, first);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float kept = x[i] * scale;
        y[i] = word[i] >> 8 >= d->threshold ? kept : 0;
    }
    if (!direct) { store_f32(desc_at(d->y, first), d->y->dtype, 1, y, n); }
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

/* Drawn where the elements are contiguous, then copied: a layout changes no bit. */
static tn_status draw_apart(tn_context *ctx, const tn_desc *y, tn_random_kind kind,
                            tn_random_key key, double a, double b) {
    tn_desc apart = *y;
    size_t count = (size_t)tn__desc_densify(&apart);
    TN__SCRATCH(char, memory, ctx, (count * size_of(y->dtype)));
    if (!memory) { return TN_ENOMEM; }
    apart.data = memory;
    tn_status status = TN_CPU(random)(ctx, &apart, kind, key, a, b);
    return status == TN_OK ? TN_CPU(copy)(ctx, y, &apart) : status;
}

tn_status TN_CPU(random)(tn_context *ctx, const tn_desc *y, tn_random_kind kind, tn_random_key key,
                         double a, double b) {
    bool has_dtype = kind == TN_INTEGER ? y->dtype == TN_I64 : is_f32_like(y->dtype);
    if (!has_dtype) { return TN_CPU(ref)->random(ctx, y, kind, key, a, b); }
    if (!is_contiguous(y)) { return draw_apart(ctx, y, kind, key, a, b); }
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
