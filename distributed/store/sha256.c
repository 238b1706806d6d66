#include "distributed/store/sha256.h"

#include <string.h>

/* The fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int by) {
    return x >> by | x << (32 - by);
}

static void compress(uint32_t state[8], const uint8_t block[TN__SHA256_BLOCK]) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *at = block + 4 * i;
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof(v));
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t choice = (e & v[5]) ^ (~e & v[6]);
        uint32_t majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        uint32_t first =
            v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + choice + constants[i] + w[i];
        uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + majority;
        memmove(v + 1, v, 7 * sizeof(*v));
        v[4] += first;
        v[0] = first + second;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

void tn__sha256_begin(tn__sha256 *s) {
    /* The fractional parts of the square roots of the first 8 primes. */
    *s = (tn__sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void tn__sha256_add(tn__sha256 *s, const void *data, size_t bytes) {
    const uint8_t *from = data;
    for (; bytes; bytes--) {
        size_t used = s->bytes++ % TN__SHA256_BLOCK;
        s->block[used] = *from++;
        if (used == TN__SHA256_BLOCK - 1) {
            compress(s->state, s->block);
        }
    }
}

void tn__sha256_end(tn__sha256 *s, uint8_t digest[TN__DIGEST]) {
    uint64_t bits = 8 * s->bytes;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    tn__sha256_add(s, "\x80", 1);
    while (s->bytes % TN__SHA256_BLOCK != TN__SHA256_BLOCK - sizeof(length)) {
        tn__sha256_add(s, "", 1);
    }
    tn__sha256_add(s, length, sizeof(length));
    for (int i = 0; i < TN__DIGEST; i++) {
        digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

void tn__hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
              uint8_t digest[TN__DIGEST]) {
    uint8_t block[TN__SHA256_BLOCK] = {0}, inner[TN__SHA256_BLOCK], outer[TN__SHA256_BLOCK];
    tn__sha256 s;
    if (key_bytes > sizeof(block)) {
        tn__sha256_begin(&s);
        tn__sha256_add(&s, key, key_bytes);
        tn__sha256_end(&s, block);
    } else if (key_bytes) {
        memcpy(block, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof(block); i++) {
        inner[i] = block[i] ^ 0x36;
        outer[i] = block[i] ^ 0x5c;
    }
    tn__sha256_begin(&s);
    tn__sha256_add(&s, inner, sizeof(inner));
    tn__sha256_add(&s, data, bytes);
    tn__sha256_end(&s, digest);
    tn__sha256_begin(&s);
    tn__sha256_add(&s, outer, sizeof(outer));
    tn__sha256_add(&s, digest, TN__DIGEST);
    tn__sha256_end(&s, digest);
}
