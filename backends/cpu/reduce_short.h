/* Reductions of short runs; reduce_short.c. */
#ifndef TERN_BACKENDS_CPU_REDUCE_SHORT_H
#define TERN_BACKENDS_CPU_REDUCE_SHORT_H

#include "backends/cpu/cpu.h"

/* As the entry reduce, for SUM, MEAN, MAX and MIN of f32, bf16 and f16 where what goes lies in
 * short dense blocks; TN_EUNSUPPORTED, and nothing done, where it does not. */
tn_status TN_CPU(reduce_short)(tn_context *ctx, tn_reduction f, const tn_desc *y, const tn_desc *x);

#endif
