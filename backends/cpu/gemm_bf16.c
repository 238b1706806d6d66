/* The matrix product for bf16: on tiles where the process uses them (gemm_amx.c), else in pairs
 * where that pays (avx512_bf16): a lane multiplies a pair of elements of k and adds both products
 * to an f32 sum. Panels are made of pairs (pairs.h).
 *
 * In pairs an AMD computes twice as fast as in f32, and an Intel half as fast: there bf16 without
 * tiles (Cooper Lake; TERN_CPU=v4) becomes f32. The maker is told by CPUID's name (pairs_pay).
 */
#include "backends/cpu/gemm.h"

#if TN_CPU_LEVEL >= 4 && defined(__x86_64__)

#include "backends/cpu/convert.h"
#include "backends/cpu/pairs.h"

typedef int32_t element;
typedef uint16_t rounded;

#define T float
#define PLAIN TN_BF16
#define PAIR 2
#define STEP 2
#define GEMM pair_product
#define KERNEL_TARGET __attribute__((target("avx512bf16")))
#define MULTIPLY_ADD(sum, a, b) \
    ((vec)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)_mm512_set1_epi32(a), (__m512bh)(b)))
#define ROUND(sum) to_bf16(sum)

static tn_status pair_product(tn_context *ctx, const gemm_job *job);

INLINE void pack_panel(int32_t *dst, const int width, const gemm_side *s, int64_t across,
                       int64_t along, int64_t i0, int64_t n, int64_t p0, int64_t k) {
    const uint16_t *src = (const uint16_t *)s->data + i0 * across + p0 * along;
    pair_width(dst, width, src, across, along, n, k);
}

#include "backends/cpu/gemm_kernel.h"

tn_status TN_CPU(gemm_bf16)(tn_context *ctx, const gemm_job *job) {
    return tn__cpu_tiles ? TN_CPU(gemm_amx)(ctx, job)
           : pairs_pay() ? pair_product(ctx, job)
                         : TN_EUNSUPPORTED;
}

#else

tn_status TN_CPU(gemm_bf16)(tn_context *ctx, const gemm_job *job) {
    return tn__cpu_tiles ? TN_CPU(gemm_amx)(ctx, job) : TN_EUNSUPPORTED;
}

#endif
