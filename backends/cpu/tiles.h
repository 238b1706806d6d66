/* Tiles of bf16 (AMX): eight registers of 16 rows of 64 bytes, and the six operations on them.
 *
 *     tile_configure()            this thread may use them from here on …
 *     tile_zero(t)                … until tile_release()
 *     tile_load(t, from, apart), tile_store(t, to, apart)     rows `apart` bytes from each other
 *     tile_multiply(c, a, b)      C (16, 16) += A (16, 32) B (32, 16); B's rows are pairs (pairs.h)
 *
 * A tile's number is a constant. Below v4 they are a twin in plain C with the same bits, which runs
 * everywhere: an element of C gains the sum of two chains of fused multiply-adds from 0, one over
 * the even elements of k and one over the odd. Each step rounds to nearest, and a subnormal, given
 * or computed, counts as 0.
 */
#ifndef TERN_BACKENDS_CPU_TILES_H
#define TERN_BACKENDS_CPU_TILES_H

#include "backends/cpu/convert.h"

enum { TILE_SIDE = 16, TILE_BYTES = 64, TILE_K = 32 };

#if TN_CPU_LEVEL >= 4 && defined(__x86_64__)

/* Palette 1: eight tiles of full size. */
typedef struct tile_shapes {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes;

#define TILE_ASM(...) __asm__ volatile(__VA_ARGS__ : "memory")
#define TILE_EIGHT(n) n, n, n, n, n, n, n, n
static const tile_shapes tile_full_shapes = {
    1, 0, {0}, {TILE_EIGHT(TILE_BYTES)}, {TILE_EIGHT(TILE_SIDE)}};

/* In assembly: compilers' intrinsics do not say which memory they read. */
#define TILES_HERE
#define tile_configure() TILE_ASM("ldtilecfg %0" : : "m"(tile_full_shapes))
#define tile_release() TILE_ASM("tilerelease" : :)
#define tile_zero(t) TILE_ASM("tilezero %%tmm" #t : :)
#define tile_load(t, from, apart) \
    TILE_ASM("tileloadd (%0,%1,1), %%tmm" #t : : "r"(from), "r"((int64_t)(apart)))
#define tile_store(t, to, apart) \
    TILE_ASM("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(to), "r"((int64_t)(apart)))
#define tile_multiply(c, a, b) TILE_ASM("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#else

#include <assert.h>

typedef union twin_tile {
    float sum[TILE_SIDE][TILE_SIDE];
    uint32_t pair[TILE_SIDE][TILE_SIDE];
} twin_tile;

static _Thread_local bool twin_configured; /* the processor would refuse the others without it */

#define TILES_HERE twin_tile twin[8];
#define tile_configure() ((void)(twin_configured = true))
#define tile_release() ((void)(twin_configured = false))
#define tile_zero(t) ((void)memset(&twin[t], 0, sizeof(twin_tile)))
#define tile_load(t, from, apart) twin_copy(&twin[t], TILE_BYTES, from, apart)
#define tile_store(t, to, apart) twin_copy(to, apart, &twin[t], TILE_BYTES)
#define tile_multiply(c, a, b) twin_multiply(&twin[c], &twin[a], &twin[b])

static void twin_copy(void *to, int64_t to_apart, const void *from, int64_t from_apart) {
    for (int i = 0; i < TILE_SIDE; i++) {
        memcpy((char *)to + i * to_apart, (const char *)from + i * from_apart, TILE_BYTES);
    }
}

INLINE float twin_flush(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* Half of a pair: 16 bits up to the high end, or what is there already. */
INLINE float twin_half(uint32_t pair, int odd) {
    return twin_flush(float_of_bits(odd ? pair & 0xffff0000u : pair << 16));
}

static void twin_multiply(twin_tile *c, const twin_tile *a, const twin_tile *b) {
    assert(twin_configured);
    for (int i = 0; i < TILE_SIDE; i++) {
        float chain[2][TILE_SIDE] = {{0}};
        for (int p = 0; p < TILE_SIDE; p++) {
            for (int odd = 0; odd < 2; odd++) {
                float x = twin_half(a->pair[i][p], odd);
                for (int j = 0; j < TILE_SIDE; j++) {
                    chain[odd][j] =
                        twin_flush(fmaf(x, twin_half(b->pair[p][j], odd), chain[odd][j]));
                }
            }
        }
        for (int j = 0; j < TILE_SIDE; j++) {
            float sum = twin_flush(chain[0][j] + chain[1][j]);
            c->sum[i][j] = twin_flush(twin_flush(c->sum[i][j]) + sum);
        }
    }
}

#endif

#endif
