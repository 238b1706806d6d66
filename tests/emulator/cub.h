/* What backends/cuda/sort.cu uses of CUB: a stable sort, here by one thread, as one launch. */
#ifndef TERN_TESTS_EMULATOR_CUB_H
#define TERN_TESTS_EMULATOR_CUB_H

#include "tests/emulator/kernel.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace cub {

template <typename T> struct DoubleBuffer {
    T *buffers[2];
    int selector = 0;

    DoubleBuffer(T *current, T *alternate) : buffers{current, alternate} {}
    T *Current() { return buffers[selector]; }
    T *Alternate() { return buffers[1 - selector]; }
};

enum { SORT_SCRATCH = 1024 }; /* bytes that a sort asks for, and fills */

template <typename K, typename V>
void sort_kernel(void *scratch, K *keys, K *keys_out, V *values, V *values_out, int count,
                 int begin, int end) {
    K mask = end - begin < 8 * (int)sizeof(K) ? ((K)1 << (end - begin)) - 1 : ~(K)0;
    std::vector<int> order((size_t)count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [=](int a, int b) {
        return (keys[a] >> begin & mask) < (keys[b] >> begin & mask);
    });
    for (int i = 0; i < count; i++) {
        keys_out[i] = keys[order[(size_t)i]];
        values_out[i] = values[order[(size_t)i]];
    }
    memset(scratch, 0xFF, SORT_SCRATCH);
    memset(keys, 0xFF, (size_t)count * sizeof(K));
    memset(values, 0xFF, (size_t)count * sizeof(V));
}

struct DeviceRadixSort {
    /* The sorted pairs are in the other buffers, which then are the current ones. */
    template <typename K, typename V>
    static cudaError_t SortPairs(void *scratch, size_t &bytes, DoubleBuffer<K> &keys,
                                 DoubleBuffer<V> &values, int count, int begin, int end,
                                 cudaStream_t stream) {
        if (!scratch) {
            bytes = SORT_SCRATCH;
            return cudaSuccess;
        }
        if (bytes < SORT_SCRATCH) { return cudaErrorInvalidValue; }
        tn_emulator::launch_kernel(stream, "cub::DeviceRadixSort", sort_kernel<K, V>, 1, 1, 0,
                                   scratch, keys.Current(), keys.Alternate(), values.Current(),
                                   values.Alternate(), count, begin, end);
        keys.selector = values.selector = 1;
        return cudaSuccess;
    }
};

} // namespace cub

#endif
