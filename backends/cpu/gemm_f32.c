/* The matrix product for f32, and for bf16 and f16 operands that become f32 as they are packed. */
#define T float
#define PLAIN TN_F32
#define GEMM TN_CPU(gemm_f32)
#define CONVERT_PANEL \
    convert_panel(dst, width, (const uint16_t *)s->data + start, s->dtype, across, along, n, k);

#include "backends/cpu/convert.h"
#include "backends/cpu/registers.h"
#include "backends/cpu/transpose.h"

/* Elements of a row that are converted before they are transposed: they stay in the L1 cache. A
 * panel has at most PANEL rows. */
enum { STRIP = 64, PANEL = 32 };

/* A full panel whose rows are apart and whose columns are contiguous. */
INLINE void convert_columns(float *restrict dst, const int width, const uint16_t *restrict src,
                            tn_dtype dtype, int64_t along, int64_t k) {
    for (int64_t p = 0; p < k; p++) {
        for (int i = 0; i < width; i++) {
            uint16_t e = src[p * along + i];
            dst[p * width + i] = dtype == TN_BF16 ? from_bf16(e) : from_f16(e);
        }
    }
}

/* A panel whose columns are apart; rows from n on are 0. */
INLINE void convert_rows(float *restrict dst, const int width, const uint16_t *restrict src,
                         tn_dtype dtype, int64_t across, int64_t along, int64_t n, int64_t k) {
    float strip[PANEL * STRIP];
    memset(strip + n * STRIP, 0, (size_t)((width - n) * STRIP) * sizeof(float));
    for (int64_t p = 0; p < k; p += STRIP) {
        int64_t w = min_of(STRIP, k - p);
        for (int64_t i = 0; i < n; i++) {
            load_f32(strip + i * STRIP, src + i * across + p * along, dtype, along, w);
        }
        transpose_panel(dst + p * width, width, strip, STRIP, w);
    }
}

/* A panel of bf16 or f16. */
INLINE void convert_panel(float *dst, const int width, const uint16_t *src, tn_dtype dtype,
                          int64_t across, int64_t along, int64_t n, int64_t k) {
    if (across != 1 || n < width) {
        convert_rows(dst, width, src, dtype, across, along, n, k);
    } else if (dtype == TN_BF16) {
        convert_columns(dst, width, src, TN_BF16, along, k);
    } else {
        convert_columns(dst, width, src, TN_F16, along, k);
    }
}

#include "backends/cpu/gemm_kernel.h"
