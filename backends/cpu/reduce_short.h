/* Reductions of short runs; reduce_short.c. */
#ifndef TERN_BACKENDS_CPU_REDUCE_SHORT_H
#define TERN_BACKENDS_CPU_REDUCE_SHORT_H

#include "backends/cpu/cpu.h"

/* Like the entry reduce, for SUM, MEAN, MAX and MIN of f32, bf16 and f16 if the reduced elements
 * are in short dense blocks; otherwise TN_EUNSUPPORTED, with nothing done. */
tn_status TN_CPU(reduce_short)(tn_context *ctx, tn_reduction f, const tn_desc *y, const tn_desc *x);

#endif
