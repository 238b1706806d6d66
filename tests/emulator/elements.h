/* Elements of cuBLASLt's matrices as doubles, for its stand-in and the tests of that. */
#ifndef TERN_TESTS_EMULATOR_ELEMENTS_H
#define TERN_TESTS_EMULATOR_ELEMENTS_H

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static inline size_t element_size(uint32_t type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

static inline double get_element(uint32_t type, const void *data, int64_t i) {
    switch (type) {
    case CUDA_R_64F:
        return ((const double *)data)[i];
    case CUDA_R_32F:
        return ((const float *)data)[i];
    case CUDA_R_16BF:
        return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    default:
        return __half2float(((const __half *)data)[i]);
    }
}

static inline void put_element(uint32_t type, void *data, int64_t i, double value) {
    switch (type) {
    case CUDA_R_64F:
        ((double *)data)[i] = value;
        break;
    case CUDA_R_32F:
        ((float *)data)[i] = (float)value;
        break;
    case CUDA_R_16BF:
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn((float)value);
        break;
    default:
        ((__half *)data)[i] = __float2half_rn((float)value);
    }
}

#endif
