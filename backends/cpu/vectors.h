/* Vectors of T, which the including file defines, and tiles of sums that stay in registers: the
 * products of convolutions, attention and recurrent cells are made of these. `rows` and `vectors`
 * are compile-time constants.
 */
#ifndef TERN_BACKENDS_CPU_VECTORS_H
#define TERN_BACKENDS_CPU_VECTORS_H

#include "backends/cpu/registers.h"
#include "backends/cpu/transpose.h"

enum { VL = VBYTES / sizeof(T), MOST_ROWS = 12, MOST_WIDE = 4 }; /* of a tile: rows, vectors */

typedef T vec __attribute__((vector_size(VBYTES)));
typedef T vec_any __attribute__((vector_size(VBYTES), aligned(sizeof(T)), may_alias));

/* (rows, vectors VL) */
typedef vec sum_tile[MOST_ROWS][MOST_WIDE];

/* From c, whose rows are `apart`; 0 where it is NULL. */
INLINE void load_sums(sum_tile sums, const int rows, const int vectors, const T *c, int64_t apart) {
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            sums[i][v] = (vec){0};
            if (c) { sums[i][v] = *(const vec_any *)(c + i * apart + v * VL); }
        }
    }
}

/* Adds A (rows, k) B (k, vectors VL): element (i, p) of A is a[i a_row + p a_col], and vector v of
 * B's row p is at b + p b_row + v b_vector. */
INLINE void add_product(sum_tile sums, const int rows, const int vectors, int64_t k,
                        const T *restrict a, int64_t a_row, int64_t a_col, const T *restrict b,
                        int64_t b_row, int64_t b_vector) {
    for (int64_t p = 0; p < k; p++, a += a_col, b += b_row) {
        vec x[MOST_WIDE];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            x[v] = *(const vec_any *)(b + v * b_vector);
        }
        UNROLL
        for (int i = 0; i < rows; i++) {
            UNROLL
            for (int v = 0; v < vectors; v++) {
                sums[i][v] += a[i * a_row] * x[v];
            }
        }
    }
}

INLINE void store_sums(sum_tile sums, const int rows, const int vectors, T *c, int64_t apart) {
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            *(vec_any *)(c + i * apart + v * VL) = sums[i][v];
        }
    }
}

/* Adds them to c. */
INLINE void accumulate_sums(sum_tile sums, const int rows, const int vectors, T *c, int64_t apart) {
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            *(vec_any *)(c + i * apart + v * VL) += sums[i][v];
        }
    }
}

#endif
