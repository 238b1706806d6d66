/* A stable sort of keys with the position that each came from, for sums whose order must not depend
 * on the machine. It is an LSD radix sort, eight bits per pass.
 *
 * A pass: each tile counts its digits; one warp per digit sums the counts over the tiles; each tile
 * moves its keys after those of smaller digits and earlier tiles. In a tile, warps take 32 keys at
 * a time, and ballots among the lanes keep equal digits in order.
 */
#ifndef TERN_BACKENDS_CUDA_SORT_CUH
#define TERN_BACKENDS_CUDA_SORT_CUH

#include "backends/cuda/kernel.h"

enum { TN__DIGIT_BITS = 8, TN__DIGITS = 1 << TN__DIGIT_BITS, TN__SORT_TILE = 2048 };
enum { TN__SORT_WARPS = TN__DIGITS / 32 }; /* one thread per digit */

/* `count` keys in keys[0], their positions in at[0]; keys[1] and at[1] are scratch. */
struct tn__sort {
    uint64_t *keys[2];
    uint32_t *at[2];
    uint32_t *counts; /* (digits, tiles), then (digits): totals */
    uint32_t count, tiles;
};

static __device__ __forceinline__ uint32_t tn__digit(uint64_t key, int shift) {
    return (uint32_t)(key >> shift) & (TN__DIGITS - 1);
}

/* Sum over this lane and those before it. */
static __device__ __forceinline__ uint32_t tn__sum_of_lanes(uint32_t value) {
    for (unsigned step = 1; step < 32; step *= 2) {
        uint32_t other = __shfl_up_sync(TN_FULL, value, step);
        value += threadIdx.x % 32 >= step ? other : 0;
    }
    return value;
}

/* Sum over the threads before this one, of a block of TN__DIGITS threads. */
static __device__ __forceinline__ uint32_t tn__sum_before(uint32_t value, uint32_t *warp_sums) {
    uint32_t warp = threadIdx.x / 32, sum = tn__sum_of_lanes(value);
    if (threadIdx.x % 32 == 31) { warp_sums[warp] = sum; }
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++) {
        sum += warp_sums[w];
    }
    return sum - value;
}

static __global__ void __launch_bounds__(TN__DIGITS) tn__sort_count(tn__sort s, int shift) {
    TN_SHARED(uint32_t, counts, TN__DIGITS);
    counts[threadIdx.x] = 0;
    __syncthreads();
    uint32_t first = blockIdx.x * TN__SORT_TILE;
    for (uint32_t i = first + threadIdx.x; i < s.count && i < first + TN__SORT_TILE;
         i += TN__DIGITS) {
        atomicAdd(&counts[tn__digit(s.keys[0][i], shift)], 1u);
    }
    __syncthreads();
    s.counts[(size_t)threadIdx.x * s.tiles + blockIdx.x] = counts[threadIdx.x];
}

/* One warp per digit: its counts become sums over the tiles before. */
static __global__ void __launch_bounds__(TN__DIGITS) tn__sort_add(tn__sort s) {
    uint32_t digit = blockIdx.x * TN__SORT_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t *counts = s.counts + (size_t)digit * s.tiles, total = 0;
    for (uint32_t first = 0; first < s.tiles; first += 32) {
        uint32_t tile = first + lane, count = tile < s.tiles ? counts[tile] : 0;
        uint32_t sum = tn__sum_of_lanes(count);
        if (tile < s.tiles) { counts[tile] = total + sum - count; }
        total += __shfl_sync(TN_FULL, sum, 31);
    }
    if (lane == 0) { s.counts[(size_t)TN__DIGITS * s.tiles + digit] = total; }
}

/* The active lanes of the warp that have this digit. */
static __device__ __forceinline__ unsigned tn__lanes_like(uint32_t digit, bool there) {
    unsigned like = __ballot_sync(TN_FULL, there);
    for (int bit = 0; bit < TN__DIGIT_BITS; bit++) {
        unsigned set = __ballot_sync(TN_FULL, digit >> bit & 1);
        like &= digit >> bit & 1 ? set : ~set;
    }
    return like;
}

static __global__ void __launch_bounds__(TN__DIGITS) tn__sort_move(tn__sort s, int shift) {
    TN_SHARED(uint32_t, warp_sums, TN__SORT_WARPS);
    TN_SHARED(uint32_t, next, TN__DIGITS); /* where the next key of a digit goes */
    TN_SHARED(uint32_t, in_warp, TN__SORT_WARPS * TN__DIGITS);
    uint32_t me = threadIdx.x, warp = me / 32, lane = me % 32;
    uint32_t smaller = tn__sum_before(s.counts[(size_t)TN__DIGITS * s.tiles + me], warp_sums);
    next[me] = smaller + s.counts[(size_t)me * s.tiles + blockIdx.x];
    uint32_t first = blockIdx.x * TN__SORT_TILE;
    for (uint32_t round = 0; round < TN__SORT_TILE && first + round < s.count;
         round += TN__DIGITS) {
        for (int w = 0; w < TN__SORT_WARPS; w++) {
            in_warp[w * TN__DIGITS + me] = 0;
        }
        __syncthreads();
        uint32_t i = first + round + me;
        bool there = i < s.count;
        uint64_t key = there ? s.keys[0][i] : 0;
        uint32_t digit = tn__digit(key, shift);
        unsigned like = tn__lanes_like(digit, there);
        uint32_t rank = (uint32_t)__popc(like & ((1u << lane) - 1));
        if (there && rank == 0) { in_warp[warp * TN__DIGITS + digit] = (uint32_t)__popc(like); }
        __syncthreads();
        uint32_t place = next[me]; /* of digit `me`: replaces the warps' counts by their places */
        for (int w = 0; w < TN__SORT_WARPS; w++) {
            uint32_t count = in_warp[w * TN__DIGITS + me];
            in_warp[w * TN__DIGITS + me] = place;
            place += count;
        }
        next[me] = place;
        __syncthreads();
        if (there) {
            uint32_t to = in_warp[warp * TN__DIGITS + digit] + rank;
            s.keys[1][to] = key;
            s.at[1][to] = s.at[0][i];
        }
        __syncthreads();
    }
}

/* Bytes of s's arrays, for this many keys. */
static inline size_t tn__sort_bytes(int64_t count) {
    size_t tiles = (size_t)tn__ceil_div(count, TN__SORT_TILE);
    return (size_t)count * 2 * (sizeof(uint64_t) + sizeof(uint32_t)) +
           TN__DIGITS * (tiles + 1) * sizeof(uint32_t);
}

static inline tn__sort tn__sort_in(void *memory, int64_t count) {
    tn__sort s;
    s.count = (uint32_t)count;
    s.tiles = (uint32_t)tn__ceil_div(count, TN__SORT_TILE);
    s.keys[0] = (uint64_t *)memory;
    s.keys[1] = s.keys[0] + count;
    s.at[0] = (uint32_t *)(s.keys[1] + count);
    s.at[1] = s.at[0] + count;
    s.counts = s.at[1] + count;
    return s;
}

/* Sorts by keys in [0, limit); the result is in keys[0] and at[0]. */
static inline tn_status tn__sort_run(tn_context *ctx, tn__sort *s, uint64_t limit) {
    tn_status status = TN_OK;
    for (int shift = 0; shift < 64 && (limit - 1) >> shift > 0 && status == TN_OK;
         shift += TN__DIGIT_BITS) {
        status = TN_LAUNCH(ctx, tn__sort_count, s->tiles, TN__DIGITS, 0, *s, shift);
        if (status == TN_OK) {
            status = TN_LAUNCH(ctx, tn__sort_add, TN__DIGITS / TN__SORT_WARPS, TN__DIGITS, 0, *s);
        }
        if (status == TN_OK) {
            status = TN_LAUNCH(ctx, tn__sort_move, s->tiles, TN__DIGITS, 0, *s, shift);
        }
        tn__sort sorted = *s;
        sorted.keys[0] = s->keys[1];
        sorted.keys[1] = s->keys[0];
        sorted.at[0] = s->at[1];
        sorted.at[1] = s->at[0];
        *s = sorted;
    }
    return status;
}

#endif
