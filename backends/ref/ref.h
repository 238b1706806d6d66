/* What the files of ref share: the declarations of all entries, elements of any dtype,
 * and the walk over operands.
 *
 * ref is the specification: one scalar loop per entry, as close to the formula as C allows. All
 * sizes and strides go through walk; all dtypes go through load and store. Floats are loaded as
 * double, which holds every float dtype exactly. Elementwise formulas then compute in their dtype's
 * compute type (float, or double for f64); sums, products and everything built on them are computed
 * in double and rounded once at the end.
 */
#ifndef TERN_BACKENDS_REF_H
#define TERN_BACKENDS_REF_H

#include "backends/entries.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* tn__ref_fill, tn__ref_copy, …: each has the type of its entry in tn_backend. */
#define TN__DECLARE(entry, ...) TN_ENTRY_TYPE(entry) tn__ref_##entry;
TN_ENTRIES(TN__DECLARE)
#undef TN__DECLARE

/* ---- Elements -------------------------------------------------------------------------------- */

static inline bool is_float(tn_dtype dtype) {
    return dtype == TN_F32 || dtype == TN_F64 || dtype == TN_BF16 || dtype == TN_F16;
}

static inline bool is_integer(tn_dtype dtype) { /* bool is neither */
    return dtype == TN_I64 || dtype == TN_I32 || dtype == TN_U8 || dtype == TN_I8;
}

static inline bool is_index(tn_dtype dtype) {
    return dtype == TN_I64 || dtype == TN_I32;
}

/* Element `at` of an array of a float dtype. */
static inline double load_from(const void *data, tn_dtype dtype, int64_t at) {
    switch (dtype) {
    case TN_F32:
        return ((const float *)data)[at];
    case TN_BF16:
        return tn_bf16_to_float(((const tn_bf16 *)data)[at]);
    case TN_F16:
        return tn_f16_to_float(((const tn_f16 *)data)[at]);
    default:
        return ((const double *)data)[at];
    }
}

static inline void store_to(void *data, tn_dtype dtype, int64_t at, double value) {
    switch (dtype) {
    case TN_F32:
        ((float *)data)[at] = (float)value;
        break;
    case TN_BF16:
        ((tn_bf16 *)data)[at] = tn_bf16_from_float((float)value);
        break;
    case TN_F16:
        ((tn_f16 *)data)[at] = tn_f16_from_float((float)value);
        break;
    default:
        ((double *)data)[at] = value;
        break;
    }
}

/* Elements of operands; `at` counts elements from the first one. load_float and store_float are for
 * float dtypes. */
static inline double load_float(const tn_desc *d, int64_t at) {
    return load_from(d->data, d->dtype, at);
}

static inline void store_float(const tn_desc *d, int64_t at, double value) {
    store_to(d->data, d->dtype, at, value);
}

static inline int64_t load_integer(const tn_desc *d, int64_t at) { /* bool too: 0 or 1 */
    switch (d->dtype) {
    case TN_I64:
        return ((const int64_t *)d->data)[at];
    case TN_I32:
        return ((const int32_t *)d->data)[at];
    case TN_I8:
        return ((const int8_t *)d->data)[at];
    case TN_BOOL:
        return ((const uint8_t *)d->data)[at] != 0;
    default:
        return ((const uint8_t *)d->data)[at];
    }
}

static inline void store_integer(const tn_desc *d, int64_t at, int64_t value) {
    switch (d->dtype) {
    case TN_I64:
        ((int64_t *)d->data)[at] = value;
        break;
    case TN_I32:
        ((int32_t *)d->data)[at] = (int32_t)value;
        break;
    case TN_I8:
        ((int8_t *)d->data)[at] = (int8_t)value;
        break;
    case TN_BOOL:
        ((uint8_t *)d->data)[at] = value != 0;
        break;
    default:
        ((uint8_t *)d->data)[at] = (uint8_t)value;
        break;
    }
}

/* Copies one element; both operands have the same dtype. */
static inline void move_element(const tn_desc *y, int64_t to, const tn_desc *x, int64_t from) {
    int64_t size = (int64_t)tn_dtype_size(y->dtype);
    memcpy((char *)y->data + to * size, (const char *)x->data + from * size, (size_t)size);
}

/* Truncates towards zero and saturates at int64's range; NaN becomes 0. */
static inline int64_t to_integer(double x) {
    if (x >= 0x1p63) { return INT64_MAX; }
    return x >= -0x1p63 ? (int64_t)x : x < 0 ? INT64_MIN : 0;
}

/* ---- Walking over operands in step ----------------------------------------------------------- */

enum { WALK_OPERANDS = 4 };

/* All indices of one shape in row-major order, with the element offset of up to four operands:
 *
 *     for (walk w = walk_over(2, y, x); w.left > 0; walk_next(&w)) {
 *         store_float(y, w.at[0], f(load_float(x, w.at[1])));
 *     }
 *
 * The shape is the first operand's. The others have the same ndim; if a size of theirs is larger,
 * only that part is walked. */
typedef struct walk {
    int operands, ndim;
    int64_t size[TN_MAX_DIMS], index[TN_MAX_DIMS];
    int64_t stride[WALK_OPERANDS][TN_MAX_DIMS];
    int64_t at[WALK_OPERANDS];
    int64_t position, left; /* row-major number of this index, and how many are left, with it */
} walk;

static inline walk walk_over(int operands, const tn_desc *shape, ...) {
    walk w = {.operands = operands, .ndim = shape->ndim, .left = 1};
    va_list list;
    va_start(list, shape);
    for (int k = 0; k < operands; k++) {
        const tn_desc *d = k == 0 ? shape : va_arg(list, const tn_desc *);
        for (int i = 0; i < w.ndim; i++) {
            w.stride[k][i] = d->stride[i];
        }
    }
    va_end(list);
    for (int i = 0; i < w.ndim; i++) {
        w.size[i] = shape->size[i];
        w.left *= shape->size[i];
    }
    return w;
}

static inline void walk_next(walk *w) {
    w->position++;
    w->left--;
    for (int i = w->ndim - 1; i >= 0; i--) {
        if (++w->index[i] < w->size[i]) {
            for (int k = 0; k < w->operands; k++) {
                w->at[k] += w->stride[k][i];
            }
            return;
        }
        w->index[i] = 0;
        for (int k = 0; k < w->operands; k++) {
            w->at[k] -= w->stride[k][i] * (w->size[i] - 1);
        }
    }
}

/* Rows: along the last dimension. A 0-dimensional operand is one row of one element. */
static inline int64_t row_length(const tn_desc *x) {
    return x->ndim > 0 ? x->size[x->ndim - 1] : 1;
}

static inline int64_t row_stride(const tn_desc *x) {
    return x->ndim > 0 ? x->stride[x->ndim - 1] : 0;
}

static inline tn_desc rows_of(const tn_desc *x) { /* x without its last dimension */
    tn_desc rows = *x;
    rows.ndim -= x->ndim > 0;
    return rows;
}

#endif
