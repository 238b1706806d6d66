/* What attention's forward and backward share: tiles of SIDE queries by SIDE keys, their products,
 * and which keys are visible.
 *
 * Rows of q, k, v and dy are first copied to f32 buffers (whatever their dtype and strides). As the
 * right operand of a product they are packed in panels of NR columns; as the left operand they are
 * read in place.
 */
#ifndef TERN_BACKENDS_CPU_ATTENTION_H
#define TERN_BACKENDS_CPU_ATTENTION_H

#include "backends/attention.h"
#include "backends/cpu/rows.h"

#define T float
#include "backends/cpu/vectors.h"
#undef T

enum {
    SIDE = 64,
    STRIP = 12, /* rows of a diagonal tile, cut together to the keys they see */
    NR = 2 * VL,
    TILE_LD = SIDE + 16, /* between rows of a tile of scores */
    ROWS_AHEAD = 4       /* rows to prefetch: processors do not guess where a head goes on */
};

static inline int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* c (rows, NR), rows ldc apart, = or += over k of a[i rsa + p csa] b[p NR + j]; rows is a constant
 * up to MR. */
INLINE void tile_micro(const int rows, int64_t k, const float *restrict a, int64_t rsa, int64_t csa,
                       const float *restrict b, float *restrict c, int64_t ldc, bool add) {
    sum_tile sums;
    load_sums(sums, rows, 2, add ? c : NULL, ldc);
    add_product(sums, rows, 2, k, a, rsa, csa, b, NR, VL);
    store_sums(sums, rows, 2, c, ldc);
}

/* The last m < MR rows: they are computed in fours, and only m are stored. */
INLINE void tile_rest(int64_t m, int64_t k, const float *a, int64_t rsa, int64_t csa,
                      const float *b, float *c, int64_t ldc, bool add) {
    float edge[MR * NR];
    for (int64_t i = 0; i < m; i += 4) {
        int64_t rows = min_of(4, m - i);
        if (rows == 4) {
            tile_micro(4, k, a + i * rsa, rsa, csa, b, c + i * ldc, ldc, add);
            continue;
        }
        for (int64_t r = 0; r < 4 && add; r++) {
            memcpy(edge + r * NR, c + (i + min_of(r, rows - 1)) * ldc, NR * sizeof(float));
        }
        tile_micro(4, k, a + i * rsa, rsa, csa, b, edge, NR, add);
        for (int64_t r = 0; r < rows; r++) {
            memcpy(c + (i + r) * ldc, edge + r * NR, NR * sizeof(float));
        }
    }
}

/* C (m, n) = or += A (m, k) B (k, n), element (i, p) of A at a[i rsa + p csa]. n is rounded up to
 * NR in C, and A can be read up to the next four rows; only m rows of C are written. B is packed
 * with `depth` rows a panel, of which k are used. A row has the same bits at any position among the
 * m, so ranks that split the queries compute the same bits as one rank. */
INLINE void tile_multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t rsa, int64_t csa,
                          const float *b, int64_t depth, float *c, int64_t ldc, bool add) {
    int64_t whole = m / MR * MR;
    for (int64_t j = 0; j < n; j += NR) {
        const float *panel = b + j * depth;
        for (int64_t i = 0; i < whole; i += MR) {
            tile_micro(MR, k, a + i * rsa, rsa, csa, panel, c + i * ldc + j, ldc, add);
        }
        tile_rest(m - whole, k, a + whole * rsa, rsa, csa, panel, c + whole * ldc + j, ldc, add);
    }
}

/* A's rows are lda apart. */
static inline void tile_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                                const float *b, int64_t depth, float *c, int64_t ldc, bool add) {
    tile_multiply(m, n, k, a, lda, 1, b, depth, c, ldc, add);
}

/* The same with A given transposed: (k, m), rows lda apart. */
static inline void tile_product_turned(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                                       const float *b, int64_t depth, float *c, int64_t ldc,
                                       bool add) {
    tile_multiply(m, n, k, a, 1, lda, b, depth, c, ldc, add);
}

/* x (rows, width), width a multiple of NR, to panels: element (p, j) at
 * dst[j / NR depth NR + p NR + j % NR]. */
static inline void pack_rows(float *restrict dst, int64_t depth, const float *restrict x,
                             int64_t rows, int64_t width) {
    for (int64_t j = 0; j < width; j += NR) {
        for (int64_t p = 0; p < rows; p++) {
            memcpy(dst + j * depth + p * NR, x + p * width + j, NR * sizeof(float));
        }
    }
}

/* The transpose of x (columns, k), rows ld apart, as a right operand (k, columns). */
static inline void pack_turned(float *restrict dst, const float *restrict x, int64_t ld,
                               int64_t columns, int64_t k) {
    for (int64_t j0 = 0; j0 < columns; j0 += NR) {
        int64_t width = min_of(NR, columns - j0);
        float *panel = dst + j0 * k;
        if (width == NR) {
            transpose_panel(panel, NR, x + j0 * ld, ld, k);
            continue;
        }
        for (int64_t p = 0; p < k; p++) {
            for (int64_t j = 0; j < NR; j++) {
                panel[p * NR + j] = j < width ? x[(j0 + j) * ld + p] : 0;
            }
        }
    }
}

/* Prefetches a row of a head. */
static inline void fetch_row(const tn_desc *x, const char *row) {
    for (int64_t at = 0; at < x->size[3] * (int64_t)size_of(x->dtype); at += 64) {
        __builtin_prefetch(row + at);
    }
}

/* One row of read_rows; `odd` accumulates 0 times each element, which is 0 if it is finite. */
INLINE void read_row(float *restrict to, const float *restrict x, int64_t depth, float scale,
                     vec *odd) {
    int64_t d = 0;
    for (; d + VL <= depth; d += VL) {
        vec v = *(const vec_any *)(x + d) * scale;
        *(vec_any *)(to + d) = v;
        *odd += v * 0.0f;
    }
    for (; d < depth; d++) {
        to[d] = x[d] * scale;
        (*odd)[0] += to[d] * 0.0f;
    }
}

/* Rows [first, first + n) of head (b, h) to dst, `width` apart, times `scale`. Returns false if an
 * element is not finite. */
static inline bool read_rows(float *restrict dst, int64_t width, const tn_desc *x, int64_t b,
                             int64_t h, int64_t first, int64_t n, float scale) {
    int64_t depth = x->size[3], bytes = (int64_t)size_of(x->dtype), apart = x->stride[2] * bytes;
    bool plain = x->dtype == TN_F32 && x->stride[3] == 1;
    const char *from = desc_at(x, b * x->stride[0] + h * x->stride[1] + first * x->stride[2]);
    vec odd = {0};
    float sum = 0;
    for (int64_t i = 0; i < n; i++, from += apart) {
        float *to = dst + i * width;
        fetch_row(x, from + ROWS_AHEAD * apart);
        if (plain) {
            read_row(to, (const float *)from, depth, scale, &odd);
        } else {
            float line[TILE];
            for (int64_t d = 0; d < depth; d += TILE) {
                int64_t m = min_of(TILE, depth - d);
                load_f32(line, from + d * x->stride[3] * bytes, x->dtype, x->stride[3], m);
                read_row(to + d, line, m, scale, &odd);
            }
        }
        for (int64_t d = depth; d < width; d++) {
            to[d] = 0;
        }
    }
    for (int l = 0; l < VL; l++) {
        sum += odd[l];
    }
    return sum == 0;
}

tn_status TN_CPU(attention_backward)(const tn_op_back *b);

/* Whether attention_few takes these: the queries that share a head of keys are few. */
bool TN_CPU(attention_is_few)(const tn_desc *q, const tn_desc *k);

/* Like attention, with dtypes already checked. An output's bits depend only on its own query, keys,
 * values and mask. */
tn_status TN_CPU(attention_few)(tn_context *ctx, const tn__attention *a);

/* Which keys a query sees. */
typedef struct sight {
    bool causal;
    int64_t shift; /* query i sees keys up to i + shift */
    const tn_desc *mask;
    int64_t b, h;
} sight;

static inline bool key_visible(const sight *s, int64_t i, int64_t j) {
    if (s->causal && j > i + s->shift) { return false; }
    const tn_desc *m = s->mask;
    return !m || ((const uint8_t *)m->data)[s->b * m->stride[0] + s->h * m->stride[1] +
                                            i * m->stride[2] + j * m->stride[3]];
}
/* Whether the whole tile is visible; and how many of the keys, from the first, the last of the
 * queries [i0, i0 + m) may see. */
static inline bool all_visible(const sight *s, int64_t i0, int64_t j0, int64_t n) {
    return !s->mask && (!s->causal || j0 + n - 1 <= i0 + s->shift);
}
static inline int64_t keys_for(const sight *s, int64_t i0, int64_t m, int64_t keys) {
    return s->causal ? max_of(0, min_of(keys, i0 + m + s->shift)) : keys;
}

/* c[i] += p[i][j] x[j] over the visible keys only: for partly masked tiles where x holds NaN or
 * infinity, which a product with 0 would spread. turned: c[j] += p[i][j] x[i]. p[i][j] is at
 * i p_row + j p_col. */
static inline void visible_product(const sight *s, int64_t i0, int64_t m, int64_t j0, int64_t n,
                                   const float *p, int64_t p_row, int64_t p_col, const float *x,
                                   int64_t width, float *c, bool turned) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            if (key_visible(s, i0 + i, j0 + j)) {
                float *to = c + (turned ? j : i) * width;
                const float *from = x + (turned ? i : j) * width;
                for (int64_t d = 0; d < width; d++) {
                    to[d] += p[i * p_row + j * p_col] * from[d];
                }
            }
        }
    }
}

#endif
