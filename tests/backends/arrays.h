/* Operands for kernel tests: memory of any dtype in two layouts, poisoned before use, with gaps
 * that must stay as they are.
 *
 *     array x = array_new(TN_F32, SPREAD, 2, (int64_t[]){3, 5});
 *     array_set(&x, 7, 0.5);                   element 7 in row-major order
 *     ...
 *     array_check_gaps(&x);                    nothing outside the elements was written
 *
 * Unset elements are NaN (integers -1). arrays_free is a cmocka teardown.
 */
#ifndef TERN_TESTS_BACKENDS_ARRAYS_H
#define TERN_TESTS_BACKENDS_ARRAYS_H

#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include <math.h>
#include <tern/sys/backend.h>

typedef enum array_layout {
    DENSE,    /* row-major, or in varying orders while array_any_order is set */
    SPREAD,   /* the first dimension fastest, every stride with gaps */
    ROW_MAJOR /* always */
} array_layout;

typedef struct array {
    tn_desc d;
    unsigned char *memory;
    size_t bytes;
    int64_t count;
} array;

enum { ARRAY_GAP = 0xA5, ARRAY_MOST = 4096 };
static struct {
    void *memory;
    size_t bytes;
} arrays_kept[ARRAY_MOST];
static int arrays_count;

/* In trial.c: memory that the kernels under test can reach, and the order of dense arrays. */
extern bool array_any_order;
void *array_memory(size_t bytes);
void array_memory_free(void *memory, size_t bytes);

static inline int arrays_free(void **state) {
    while (arrays_count > 0) {
        arrays_count--;
        array_memory_free(arrays_kept[arrays_count].memory, arrays_kept[arrays_count].bytes);
    }
    return 0;
}

/* The element offset of row-major element i. */
static inline int64_t array_offset(const array *a, int64_t i) {
    int64_t offset = 0;
    for (int k = a->d.ndim - 1; k >= 0; k--) {
        offset += i % a->d.size[k] * a->d.stride[k];
        i /= a->d.size[k];
    }
    return offset;
}

static inline unsigned char *array_at(const array *a, int64_t i) {
    return (unsigned char *)a->d.data + array_offset(a, i) * (int64_t)tn_dtype_size(a->d.dtype);
}

/* Poisons the elements again. */
static inline void array_poison(array *a) {
    for (int64_t i = 0; i < a->count; i++) {
        memset(array_at(a, i), 0xFF, tn_dtype_size(a->d.dtype));
    }
}

static uint64_t array_walk; /* chooses the orders */

/* The dimensions of a new array from the innermost to the outermost. */
static inline void array_order(array_layout layout, int ndim, int *order) {
    for (int k = 0; k < ndim; k++) {
        order[k] = layout == SPREAD ? k : ndim - 1 - k;
    }
    for (int k = ndim - 1; k > 0 && layout == DENSE && array_any_order; k--) {
        array_walk = array_walk * 6364136223846793005u + 1442695040888963407u;
        int other = (int)((array_walk >> 33) % (uint64_t)(k + 1)), dim = order[k];
        order[k] = order[other];
        order[other] = dim;
    }
}

static inline array array_new(tn_dtype dtype, array_layout layout, int ndim, const int64_t *size) {
    array a = {.d = {.dtype = dtype, .ndim = ndim}, .count = 1};
    int64_t step = layout == SPREAD ? 2 : 1;
    int order[TN_MAX_DIMS];
    array_order(layout, ndim, order);
    for (int k = 0; k < ndim; k++) {
        int dim = order[k];
        a.d.size[dim] = size[dim];
        a.d.stride[dim] = step;
        step *= size[dim] + (layout == SPREAD);
        a.count *= size[dim];
    }
    /* at least four elements of gap after */
    a.bytes = 16 + ((size_t)step + 4) * tn_dtype_size(dtype);
    a.memory = array_memory(a.bytes);
    assert_true(arrays_count < ARRAY_MOST);
    arrays_kept[arrays_count].memory = a.memory;
    arrays_kept[arrays_count++].bytes = a.bytes;
    memset(a.memory, ARRAY_GAP, a.bytes);
    a.d.data = a.memory + 16; /* a gap, and aligned for the widest reads */
    array_poison(&a);
    return a;
}

static inline double array_get(const array *a, int64_t i) {
    const void *p = array_at(a, i);
    switch (a->d.dtype) {
    case TN_F32:
        return *(const float *)p;
    case TN_F64:
        return *(const double *)p;
    case TN_BF16:
        return tn_bf16_to_float(*(const tn_bf16 *)p);
    case TN_F16:
        return tn_f16_to_float(*(const tn_f16 *)p);
    case TN_I64:
        return (double)*(const int64_t *)p;
    case TN_I32:
        return *(const int32_t *)p;
    case TN_I8:
        return *(const int8_t *)p;
    default:
        return *(const uint8_t *)p;
    }
}

static inline void array_set(array *a, int64_t i, double value) {
    void *p = array_at(a, i);
    switch (a->d.dtype) {
    case TN_F32:
        *(float *)p = (float)value;
        break;
    case TN_F64:
        *(double *)p = value;
        break;
    case TN_BF16:
        *(tn_bf16 *)p = tn_bf16_from_float((float)value);
        break;
    case TN_F16:
        *(tn_f16 *)p = tn_f16_from_float((float)value);
        break;
    case TN_I64:
        *(int64_t *)p = (int64_t)value;
        break;
    case TN_I32:
        *(int32_t *)p = (int32_t)value;
        break;
    case TN_I8:
        *(int8_t *)p = (int8_t)(int64_t)value;
        break;
    default:
        *(uint8_t *)p = (uint8_t)value;
        break;
    }
}

/* Some values in (-2, 2) that repeat only after 8192 elements; `salt` makes operands differ. */
static inline void array_vary(array *a, int64_t salt) {
    for (int64_t i = 0; i < a->count; i++) {
        array_set(a, i, (double)((i + 1) * 2749 % 8191 * (2 * salt + 3) % 8191) / 2048 - 2);
    }
}

static inline array array_of(tn_dtype dtype, int64_t count, const double *values) {
    array a = array_new(dtype, DENSE, 1, &count);
    for (int64_t i = 0; i < count; i++) {
        array_set(&a, i, values[i]);
    }
    return a;
}

/* Whether an element's value is `expected` within this many roundings of its dtype; NaN equals NaN.
 */
static inline bool array_near(tn_dtype dtype, double value, double expected, double roundings) {
    if (isnan(expected) || isinf(expected) || isnan(value) || isinf(value)) {
        return isnan(expected) ? isnan(value) : value == expected;
    }
    double step = dtype == TN_F64    ? 0x1p-53
                  : dtype == TN_BF16 ? 0x1p-8
                  : dtype == TN_F16  ? 0x1p-11
                                     : 0x1p-24;
    return fabs(value - expected) <=
           roundings * step * fmax(fabs(expected), dtype == TN_F16 ? 0x1p-14 : 0x1p-60);
}

static inline void array_expect(const array *a, int64_t i, double expected, double roundings) {
    double value = array_get(a, i);
    if (!array_near(a->d.dtype, value, expected, roundings)) {
        fail_msg("%s element %ld is %.17g, expected %.17g", tn_dtype_name(a->d.dtype), (long)i,
                 value, expected);
    }
}

/* Absolute comparison, for results of cancellation. */
static inline void array_expect_within(const array *a, int64_t i, double expected, double most) {
    double value = array_get(a, i);
    if (!(fabs(value - expected) <= most)) {
        fail_msg("%s element %ld is %.17g, expected %.17g", tn_dtype_name(a->d.dtype), (long)i,
                 value, expected);
    }
}

static inline void array_check_gaps(const array *a) {
    unsigned char *element = calloc(a->bytes, 1);
    assert_non_null(element);
    for (int64_t i = 0; i < a->count; i++) {
        memset(element + (array_at(a, i) - a->memory), 1, tn_dtype_size(a->d.dtype));
    }
    for (size_t i = 0; i < a->bytes; i++) {
        if (!element[i] && a->memory[i] != ARRAY_GAP) {
            fail_msg("byte %zu, outside every element, was written", i);
        }
    }
    free(element);
}

static const tn_dtype array_floats[4] = {TN_F32, TN_F64, TN_BF16, TN_F16};
static const tn_dtype array_integers[4] = {TN_I64, TN_I32, TN_U8, TN_I8};

#define ARRAY_TEST(name) TEST_WITH(name, NULL, arrays_free)

#endif
