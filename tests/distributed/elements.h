/* Elements of every dtype that collectives accept, as double, for tests: whole numbers that are
 * exact in all of these dtypes. */
#ifndef TERN_TESTS_DISTRIBUTED_ELEMENTS_H
#define TERN_TESTS_DISTRIBUTED_ELEMENTS_H

#include "tern/distributed.h"

static const tn_dtype DTYPES[] = {TN_F32, TN_F64, TN_BF16, TN_F16, TN_I64, TN_I32, TN_U8, TN_I8};
static const tn_reduction REDUCES[] = {TN_MEAN, TN_SUM, TN_PRODUCT, TN_MIN, TN_MAX};
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static inline void put_element(tn_dtype dtype, void *x, int64_t i, double value) {
    switch (dtype) {
    case TN_F32:
        ((float *)x)[i] = (float)value;
        break;
    case TN_F64:
        ((double *)x)[i] = value;
        break;
    case TN_BF16:
        ((tn_bf16 *)x)[i] = tn_bf16_from_float((float)value);
        break;
    case TN_F16:
        ((tn_f16 *)x)[i] = tn_f16_from_float((float)value);
        break;
    case TN_I64:
        ((int64_t *)x)[i] = (int64_t)value;
        break;
    case TN_I32:
        ((int32_t *)x)[i] = (int32_t)value;
        break;
    case TN_I8:
        ((int8_t *)x)[i] = (int8_t)(int64_t)value;
        break;
    default:
        ((uint8_t *)x)[i] = (uint8_t)(int64_t)value;
        break;
    }
}

static inline double get_element(tn_dtype dtype, const void *x, int64_t i) {
    switch (dtype) {
    case TN_F32:
        return (double)((const float *)x)[i];
    case TN_F64:
        return ((const double *)x)[i];
    case TN_BF16:
        return (double)tn_bf16_to_float(((const tn_bf16 *)x)[i]);
    case TN_F16:
        return (double)tn_f16_to_float(((const tn_f16 *)x)[i]);
    case TN_I64:
        return (double)((const int64_t *)x)[i];
    case TN_I32:
        return (double)((const int32_t *)x)[i];
    case TN_I8:
        return (double)((const int8_t *)x)[i];
    default:
        return (double)((const uint8_t *)x)[i];
    }
}

#endif
