/* The suite that runs on every operation's samples (tn_op_check), and its makers of inputs, which
 * the tests share. */
#ifndef TERN_OPS_CHECK_H
#define TERN_OPS_CHECK_H

#include "tern/sys/op.h"

/* How an input is laid out in memory. */
typedef enum tn__layout {
    TN__PLAIN,
    TN__TRANSPOSED, /* dimensions stored in reverse */
    TN__SLICED,     /* every other element of a larger tensor, not from its start */
    /* size 1 along the first dimension, repeated by stride 0 inside the checked function */
    TN__REPEATED,
    TN__LAYOUTS
} tn__layout;

TN_API const char *tn__layout_name(tn__layout layout);

/* The tensor that a spec describes, a leaf. Reals are in `dtype`, indices in i64 (i32 if `narrow`),
 * conditions in bool. The values depend only on spec and seed. NULL for an absent input. */
TN_API tn_tensor *tn__spec_tensor(const tn_spec *spec, tn_dtype dtype, tn__layout layout,
                                  bool narrow, uint64_t seed);

/* Whether the spec's input can have a gradient. */
static inline bool tn__spec_real(const tn_spec *spec) {
    return spec->kind == TN_SPEC_REAL || spec->kind == TN_SPEC_DISTINCT ||
           spec->kind == TN_SPEC_VALUES;
}

#endif
