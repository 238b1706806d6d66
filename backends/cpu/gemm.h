/* The blocked matrix product in plain C, instantiated by gemm_f32.c and gemm_f64.c for one element type.
 *
 *     C (m, n) = alpha A (m, k) B (k, n) + beta D
 *
 * A and B have any strides; bf16 and f16 operands are converted while they are packed. Both are packed to panels that the
 * micro kernel reads in order: A to MR rows, B to NR columns (two vectors). An element of C is one chain of
 * multiply-adds over k in order, cut every KC; neither KC nor the chain depends on where the element lies or which thread
 * computes it, so any division of the work gives the same bits.
 *
 * D is what is added: C itself (ldd = ldc) or one row for all (a bias: ldd = 0).
 *
 * Before inclusion: T, GEMM(name), NEED_CONVERT (0 for f64).
 */
#include "backends/cpu/cpu.h"

#if TN_CPU_LEVEL >= 4
#define VBYTES 64
#define MR 12
#elif TN_CPU_LEVEL == 3
#define VBYTES 32
#define MR 6
#else
#define VBYTES 16
#define MR 6
#endif
#define VL ((int)(VBYTES / sizeof(T)))
#define NR (2 * VL)
#define KC_MOST 384

typedef T vec __attribute__((vector_size(VBYTES)));
typedef T vec_any __attribute__((vector_size(VBYTES), aligned(sizeof(T)), may_alias));

/* acc (MR, NR) over k: a[i rsa + p csa] b[p ldb + j]. */
static inline __attribute__((always_inline)) void micro(int64_t k, const T *restrict a, int64_t rsa, int64_t csa,
                                                        const T *restrict b, int64_t ldb, vec acc[MR][2]) {
    UNROLL
    for (int i = 0; i < MR; i++) {
        acc[i][0] = (vec){0};
        acc[i][1] = (vec){0};
    }
    for (int64_t p = 0; p < k; p++) {
        vec b0 = *(const vec_any *)b, b1 = *(const vec_any *)(b + VL);
        UNROLL
        for (int i = 0; i < MR; i++) {
            acc[i][0] += a[i * rsa] * b0;
            acc[i][1] += a[i * rsa] * b1;
        }
        a += csa;
        b += ldb;
    }
}
