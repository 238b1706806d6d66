/* The entries that this folder overrides, each with the type that it has in tn_backend. */
#ifndef TERN_BACKENDS_CPU_TABLE_H
#define TERN_BACKENDS_CPU_TABLE_H

#include "backends/cpu/cpu.h"

/* clang-format off */
#define TN_CPU_ENTRIES(X) \
    X(fill) X(copy) X(unary) X(binary) X(compare) X(where) X(reduce) X(matmul) X(gather_rows) \
    X(scatter_add_rows) X(random) X(dropout) X(adam) X(sgd) X(linear) X(softmax) X(softmax_backward) \
    X(layer_norm) X(layer_norm_backward) X(rms_norm) X(rms_norm_backward) X(attention) \
    X(attention_backward) X(cross_entropy) X(cross_entropy_backward)

/* Fused entries that are left empty: their operations call the entries above one after another, which
 * is as fast here. */
#define TN_CPU_EMPTY(X) X(linear_gelu) X(linear_backward_weight) \
    X(add_layer_norm) X(add_layer_norm_backward)
/* clang-format on */

#define TN_CPU_DECLARE(entry) __typeof__(*((tn_backend *)0)->entry) TN_CPU(entry);
TN_CPU_ENTRIES(TN_CPU_DECLARE)

#endif
