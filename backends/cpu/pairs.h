/* Packs bf16 into panels of pairs of k, as processors that multiply bf16 read them:
 *
 *     packed (k / 2, width): pair (p, i) has elements (i, 2 p) and (i, 2 p + 1), from the low end
 *
 * Rows from n on, and what an odd k lacks, are 0.
 */
#ifndef TERN_BACKENDS_CPU_PAIRS_H
#define TERN_BACKENDS_CPU_PAIRS_H

#include "backends/cpu/cpu.h"

#if TN_CPU_LEVEL >= 4 && defined(__x86_64__)

#include <immintrin.h>

enum { WIDE = 16 }; /* pairs in a register */

/* The first `count` lanes. */
INLINE __mmask16 first_lanes(int64_t count) {
    return count >= WIDE ? (__mmask16)-1 : (__mmask16)((1u << max_of(count, 0)) - 1);
}

/* A panel whose rows are contiguous across it. */
INLINE void pair_columns(int32_t *restrict dst, const int width, const uint16_t *restrict src,
                         int64_t along, int64_t n, int64_t k) {
    for (int64_t p = 0; p < k; p += 2, src += 2 * along, dst += width) {
        UNROLL
        for (int i = 0; i < width; i += WIDE) {
            __mmask16 low = first_lanes(n - i), high = p + 1 < k ? low : 0;
            __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low, src + i)),
                    b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high, src + along + i));
            _mm512_mask_storeu_epi32(dst + i, first_lanes(width - i),
                                     _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
        }
    }
}

/* Transposes 16 x 16 pairs. */
INLINE void turn_square(__m512i r[WIDE]) {
    __m512i s[WIDE];
    UNROLL
    for (int i = 0; i < WIDE; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < WIDE; i += 4) { /* now r[i + c]: column c of each quarter, of 4 rows */
        r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i low = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x44),
                high = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xee),
                low2 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x44),
                high2 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xee);
        s[c] = _mm512_shuffle_i32x4(low, low2, 0x88);
        s[c + 4] = _mm512_shuffle_i32x4(low, low2, 0xdd);
        s[c + 8] = _mm512_shuffle_i32x4(high, high2, 0x88);
        s[c + 12] = _mm512_shuffle_i32x4(high, high2, 0xdd);
    }
    UNROLL
    for (int i = 0; i < WIDE; i++) {
        r[i] = s[i];
    }
}

/* `count` elements of a row as 16 pairs, filled with 0. */
INLINE __m512i load_pairs(const uint16_t *src, int64_t along, int64_t count) {
    if (along == 1) {
        __mmask32 some = count >= 2 * WIDE ? (__mmask32)-1 : (__mmask32)((1u << count) - 1);
        return _mm512_maskz_loadu_epi16(some, src);
    }
    uint16_t row[2 * WIDE] = {0};
    for (int64_t p = 0; p < min_of(count, 2 * WIDE); p++) {
        row[p] = src[p * along];
    }
    return _mm512_loadu_si512(row);
}

/* A panel with any strides, in squares: a cache line of a row is read once. */
INLINE void pair_rows(int32_t *restrict dst, const int width, const uint16_t *restrict src,
                      int64_t across, int64_t along, int64_t n, int64_t k) {
    for (int64_t p = 0; p < k; p += 2 * WIDE, src += 2 * WIDE * along, dst += WIDE * width) {
        UNROLL
        for (int i = 0; i < width; i += WIDE) {
            __m512i r[WIDE];
            UNROLL
            for (int j = 0; j < WIDE; j++) {
                r[j] = i + j < n ? load_pairs(src + (i + j) * across, along, k - p)
                                 : _mm512_setzero_si512();
            }
            turn_square(r);
            UNROLL
            for (int q = 0; q < WIDE; q++) {
                if (p + 2 * q < k) {
                    _mm512_mask_storeu_epi32(dst + q * width + i, first_lanes(width - i), r[q]);
                }
            }
        }
    }
}

INLINE void pair_width(int32_t *dst, const int width, const uint16_t *src, int64_t across,
                       int64_t along, int64_t n, int64_t k) {
    if (across == 1) {
        pair_columns(dst, width, src, along, n, k);
    } else if (along == 1) {
        pair_rows(dst, width, src, across, 1, n, k);
    } else {
        pair_rows(dst, width, src, across, along, n, k);
    }
}

#else

INLINE void pair_width(int32_t *restrict dst, const int width, const uint16_t *restrict src,
                       int64_t across, int64_t along, int64_t n, int64_t k) {
    for (int64_t p = 0; p < k; p += 2, src += 2 * along, dst += width) {
        for (int64_t i = 0; i < width; i++) {
            uint32_t low = i < n ? src[i * across] : 0,
                     high = i < n && p + 1 < k ? src[i * across + along] : 0;
            dst[i] = (int32_t)(low | high << 16);
        }
    }
}

#endif

#endif
