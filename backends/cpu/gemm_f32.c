/* The matrix product for f32, and for bf16 and f16 operands that become f32 as they are packed. */
#define T float
#define PLAIN TN_F32
#define GEMM TN_CPU(gemm_f32)
#define CONVERT_PANEL convert_panel(dst, width, s, start, across, along, n, k);

#include "backends/cpu/convert.h"
#include "backends/cpu/gemm.h"

/* A panel of bf16 or f16: converted along whichever dimension is contiguous. */
static void convert_panel(float *dst, int width, const gemm_side *s, int64_t start, int64_t across,
                          int64_t along, int64_t n, int64_t k) {
    const uint16_t *src = (const uint16_t *)s->data + start;
    float line[512];
    if (n < width) {
        memset(dst, 0, (size_t)(width * k) * sizeof(float));
    }
    if (across == 1) {
        for (int64_t p = 0; p < k; p++) {
            load_f32(dst + p * width, src + p * along, s->dtype, 1, n);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        load_f32(line, src + i * across, s->dtype, along, k);
        for (int64_t p = 0; p < k; p++) {
            dst[p * width + i] = line[p];
        }
    }
}

#include "backends/cpu/gemm_kernel.h"
