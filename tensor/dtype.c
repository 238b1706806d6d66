/* Element types: their names, sizes, and the two 16-bit floats. */
#include "tensor/half.h"

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} types[TN_DTYPES] = {
    [TN_F32] = {"f32", 4, true}, [TN_F64] = {"f64", 8, true},    [TN_BF16] = {"bf16", 2, true},
    [TN_F16] = {"f16", 2, true}, [TN_I64] = {"i64", 8, false},   [TN_I32] = {"i32", 4, false},
    [TN_U8] = {"u8", 1, false},  [TN_BOOL] = {"bool", 1, false}, [TN_I8] = {"i8", 1, false},
};

size_t tn_dtype_size(tn_dtype dtype) {
    return (unsigned)dtype < TN_DTYPES ? types[dtype].size : 0;
}

const char *tn_dtype_name(tn_dtype dtype) {
    return (unsigned)dtype < TN_DTYPES ? types[dtype].name : "unknown";
}

bool tn_dtype_is_float(tn_dtype dtype) {
    return (unsigned)dtype < TN_DTYPES && types[dtype].is_float;
}

float tn_bf16_to_float(tn_bf16 x) {
    return tn__bf16_to_float(x);
}

tn_bf16 tn_bf16_from_float(float x) {
    return tn__bf16_from_float(x);
}

float tn_f16_to_float(tn_f16 x) {
    return tn__f16_to_float(x);
}

tn_f16 tn_f16_from_float(float x) {
    return tn__f16_from_float(x);
}
