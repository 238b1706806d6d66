/* Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), inline so that
 * kernels vectorise it, on a GPU as well.
 *
 * How a draw is named: the 128-bit counter is (index, call), 64 bits each, low word first; the
 * 64-bit key is seed xor mix(stream), where mix is a bijection with mix(0) = 0. So stream 0 is
 * plain Philox with the seed as its key, and different streams of one seed never share a key.
 */
#ifndef TERN_CORE_PHILOX_H
#define TERN_CORE_PHILOX_H

#include "core/inline.h"
#include "tern/core.h"

/* The finaliser of splitmix64 (Steele et al. 2014). */
TN__INLINE uint64_t tn__mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

TN__INLINE uint64_t tn__philox_key(uint64_t seed, uint64_t stream) {
    return seed ^ tn__mix64(stream);
}

TN__INLINE tn_random4 tn__philox_raw(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    tn_random4 words = {{c0, c1, c2, c3}};
    return words;
}

TN__INLINE tn_random4 tn__philox(uint64_t key, uint64_t call, uint64_t index) {
    return tn__philox_raw(key, index, call);
}

#endif
