#include "io/tensorboard/record.h"

#include <pthread.h>

static uint32_t table[256];

static void make_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
        table[i] = crc;
    }
}

uint32_t tn__crc32c(const void *data, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_table);
    const unsigned char *at = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc = crc >> 8 ^ table[(crc ^ at[i]) & 255];
    }
    return ~crc;
}

static void put_check(unsigned char *to, const void *data, size_t bytes) {
    uint32_t crc = tn__crc32c(data, bytes);
    uint32_t masked = (crc >> 15 | crc << 17) + 0xa282ead8u;
    for (int i = 0; i < 4; i++) {
        to[i] = (unsigned char)(masked >> 8 * i);
    }
}

void tn__record_frame(const void *data, size_t bytes, unsigned char before[TN__RECORD_BEFORE],
                      unsigned char after[TN__RECORD_AFTER]) {
    for (int i = 0; i < 8; i++) {
        before[i] = (unsigned char)((uint64_t)bytes >> 8 * i);
    }
    put_check(before + 8, before, 8);
    put_check(after, data, bytes);
}
